"""Amazon ECS."""

from corral.services.ecs import clusters, definitions, instances, running, tasks

HANDLERS = {
    "CreateCluster": clusters.create_cluster,
    "DeleteCluster": clusters.delete_cluster,
    "DescribeClusters": clusters.describe_clusters,
    "ListClusters": clusters.list_clusters,
    "RegisterTaskDefinition": definitions.register_task_definition,
    "DescribeTaskDefinition": definitions.describe_task_definition,
    "DeregisterTaskDefinition": definitions.deregister_task_definition,
    "ListTaskDefinitions": definitions.list_task_definitions,
    "ListTaskDefinitionFamilies": definitions.list_task_definition_families,
    "RunTask": running.run_task,
    "StopTask": tasks.stop_task,
    "DescribeTasks": tasks.describe_tasks,
    "ListTasks": tasks.list_tasks,
    "ListContainerInstances": instances.list_container_instances,
    "DescribeContainerInstances": instances.describe_container_instances,
}
