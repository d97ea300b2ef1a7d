"""The operations of Amazon ECS and their handlers."""

from corral.aws.handlers import handlers_in
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
    task_sets,
    tasks,
)

JOINS = "a host joins its cluster when Corral starts on it (`corral up`)."
UPDATES = "the agent is part of Corral. To update it, install a newer Corral and start it again."
REPORTS = "only Corral's own agents report the states of tasks."
REPORTED = ("SubmitTaskStateChange", "SubmitContainerStateChange", "SubmitAttachmentStateChanges")

HEAVY = frozenset({"ListTasks"})
HANDLERS = handlers_in("ecs", globals()) | {
    "UpdateClusterSettings": clusters.update_cluster,
    **{
        operation: container_instances.refuse(operation, JOINS)
        for operation in ("RegisterContainerInstance", "DiscoverPollEndpoint")
    },
    "UpdateContainerAgent": container_instances.refuse("UpdateContainerAgent", UPDATES),
    **{operation: container_instances.refuse(operation, REPORTS) for operation in REPORTED},
}
