"""The operations of Amazon ECS and their handlers."""

from corral.services.ecs import (
    account_settings,
    capacity_providers,
    clusters,
    container_instances,
    definitions,
    execute_command,
    service_deployments,
    services,
    tags,
    task_protection,
    tasks,
)

JOINS = "a host joins its cluster when Corral starts on it (`corral up`)."
UPDATES = "the agent is part of Corral. To update it, install a newer Corral and start it again."
REPORTS = "only Corral's own agents report the states of tasks."
REPORTED = ("SubmitTaskStateChange", "SubmitContainerStateChange", "SubmitAttachmentStateChanges")

HANDLERS = {
    "CreateCluster": clusters.create_cluster,
    "DeleteCluster": clusters.delete_cluster,
    "DescribeClusters": clusters.describe_clusters,
    "ListClusters": clusters.list_clusters,
    "UpdateCluster": clusters.update_cluster,
    "UpdateClusterSettings": clusters.update_cluster,
    "PutClusterCapacityProviders": clusters.put_cluster_capacity_providers,
    "CreateCapacityProvider": capacity_providers.create_capacity_provider,
    "DeleteCapacityProvider": capacity_providers.delete_capacity_provider,
    "DescribeCapacityProviders": capacity_providers.describe_capacity_providers,
    "UpdateCapacityProvider": capacity_providers.update_capacity_provider,
    "RegisterTaskDefinition": definitions.register_task_definition,
    "DescribeTaskDefinition": definitions.describe_task_definition,
    "DeregisterTaskDefinition": definitions.deregister_task_definition,
    "DeleteTaskDefinitions": definitions.delete_task_definitions,
    "ListTaskDefinitions": definitions.list_task_definitions,
    "ListTaskDefinitionFamilies": definitions.list_task_definition_families,
    "CreateService": services.create_service,
    "UpdateService": services.update_service,
    "DeleteService": services.delete_service,
    "DescribeServices": services.describe_services,
    "ListServices": services.list_services,
    "ListServiceDeployments": service_deployments.list_service_deployments,
    "DescribeServiceDeployments": service_deployments.describe_service_deployments,
    "DescribeServiceRevisions": service_deployments.describe_service_revisions,
    "StopServiceDeployment": service_deployments.stop_service_deployment,
    "ContinueServiceDeployment": service_deployments.continue_service_deployment,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
    "PutAccountSetting": account_settings.put_account_setting,
    "PutAccountSettingDefault": account_settings.put_account_setting_default,
    "ListAccountSettings": account_settings.list_account_settings,
    "DeleteAccountSetting": account_settings.delete_account_setting,
    "UpdateTaskProtection": task_protection.update_task_protection,
    "GetTaskProtection": task_protection.get_task_protection,
    "RunTask": tasks.run_task,
    "StartTask": tasks.start_task,
    "StopTask": tasks.stop_task,
    "ExecuteCommand": execute_command.execute_command,
    "DescribeTasks": tasks.describe_tasks,
    "ListTasks": tasks.list_tasks,
    "ListContainerInstances": container_instances.list_container_instances,
    "DescribeContainerInstances": container_instances.describe_container_instances,
    "UpdateContainerInstancesState": container_instances.update_container_instances_state,
    "PutAttributes": container_instances.put_attributes,
    "DeleteAttributes": container_instances.delete_attributes,
    "ListAttributes": container_instances.list_attributes,
    **{
        operation: container_instances.refuse(operation, JOINS)
        for operation in ("RegisterContainerInstance", "DiscoverPollEndpoint")
    },
    "DeregisterContainerInstance": container_instances.deregister_container_instance,
    "UpdateContainerAgent": container_instances.refuse("UpdateContainerAgent", UPDATES),
    **{operation: container_instances.refuse(operation, REPORTS) for operation in REPORTED},
}
