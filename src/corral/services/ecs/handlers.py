"""The operations of Amazon ECS, and who serves them."""

from corral.services.ecs import clusters, definitions, executing, instances, protection, providers, running, settings, tags, tasks

JOINS = "a host joins by itself, when Corral is started on it (`corral up`)."
LEAVES = "a host stays known. Set it to DRAINING to give it nothing new, or stop Corral on it (`corral down`)."
UPDATES = "the agent is part of Corral and as new as it is. Install a newer Corral and start it again."
REPORTS = "only Corral's own agents report what became of tasks."
REPORTED = ("SubmitTaskStateChange", "SubmitContainerStateChange", "SubmitAttachmentStateChanges")

HANDLERS = {
    "CreateCluster": clusters.create_cluster,
    "DeleteCluster": clusters.delete_cluster,
    "DescribeClusters": clusters.describe_clusters,
    "ListClusters": clusters.list_clusters,
    "UpdateCluster": clusters.update_cluster,
    "UpdateClusterSettings": clusters.update_cluster,
    "PutClusterCapacityProviders": clusters.put_cluster_capacity_providers,
    "CreateCapacityProvider": providers.create_capacity_provider,
    "DeleteCapacityProvider": providers.delete_capacity_provider,
    "DescribeCapacityProviders": providers.describe_capacity_providers,
    "UpdateCapacityProvider": providers.update_capacity_provider,
    "RegisterTaskDefinition": definitions.register_task_definition,
    "DescribeTaskDefinition": definitions.describe_task_definition,
    "DeregisterTaskDefinition": definitions.deregister_task_definition,
    "DeleteTaskDefinitions": definitions.delete_task_definitions,
    "ListTaskDefinitions": definitions.list_task_definitions,
    "ListTaskDefinitionFamilies": definitions.list_task_definition_families,
    "TagResource": tags.tag_resource,
    "UntagResource": tags.untag_resource,
    "ListTagsForResource": tags.list_tags_for_resource,
    "PutAccountSetting": settings.put_account_setting,
    "PutAccountSettingDefault": settings.put_account_setting_default,
    "ListAccountSettings": settings.list_account_settings,
    "DeleteAccountSetting": settings.delete_account_setting,
    "UpdateTaskProtection": protection.update_task_protection,
    "GetTaskProtection": protection.get_task_protection,
    "RunTask": running.run_task,
    "StartTask": running.start_task,
    "StopTask": tasks.stop_task,
    "ExecuteCommand": executing.execute_command,
    "DescribeTasks": tasks.describe_tasks,
    "ListTasks": tasks.list_tasks,
    "ListContainerInstances": instances.list_container_instances,
    "DescribeContainerInstances": instances.describe_container_instances,
    "UpdateContainerInstancesState": instances.update_container_instances_state,
    "PutAttributes": instances.put_attributes,
    "DeleteAttributes": instances.delete_attributes,
    "ListAttributes": instances.list_attributes,
    **{operation: instances.refuse(operation, JOINS) for operation in ("RegisterContainerInstance", "DiscoverPollEndpoint")},
    "DeregisterContainerInstance": instances.refuse("DeregisterContainerInstance", LEAVES),
    "UpdateContainerAgent": instances.refuse("UpdateContainerAgent", UPDATES),
    **{operation: instances.refuse(operation, REPORTS) for operation in REPORTED},
}
