"""The permissions that operations of ECS need.

Most handlers use only the last part of an ARN in a request, and ignore its region and account. So this module builds the ARN of the
resource that the handler will find.
"""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import RUN_ON_HOST, Params, Permission, pass_role, request_tags
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import NO_RESOURCE, UNKNOWN_RESOURCE
from corral.model.instance import DEFAULT_CLUSTER
from corral.services.ecs import lookup
from corral.services.ecs.host_access import setting_with_host_access
from corral.services.ecs.lookup import find_definition, short, split_definition
from corral.store import Store

CLUSTERS = frozenset(
    {
        "DeleteCluster",
        "ListAttributes",
        "ListContainerInstances",
        "PutClusterCapacityProviders",
        "UpdateCluster",
        "UpdateClusterSettings",
    }
)
TASKS = frozenset({"DescribeTasks", "ExecuteCommand", "GetTaskProtection", "StopTask", "UpdateTaskProtection"})
INSTANCES = frozenset(
    {"DeregisterContainerInstance", "DescribeContainerInstances", "UpdateContainerAgent", "UpdateContainerInstancesState"}
)
ATTRIBUTES = frozenset({"DeleteAttributes", "PutAttributes"})
DEFINITIONS = frozenset({"DeleteTaskDefinitions", "DeregisterTaskDefinition"})
SERVICES = frozenset(
    {"CreateService", "DeleteService", "DescribeServices", "ListServiceDeployments", "UpdateService", "UpdateServicePrimaryTaskSet"}
)
TASK_SETS = frozenset({"CreateTaskSet", "DeleteTaskSet", "DescribeTaskSets", "UpdateTaskSet"})
DEPLOYMENTS = frozenset({"ContinueServiceDeployment", "DescribeServiceDeployments", "StopServiceDeployment"})
PROVIDERS = frozenset({"DeleteCapacityProvider", "DescribeCapacityProviders", "UpdateCapacityProvider"})
TAGS = frozenset({"TagResource", "UntagResource", "ListTagsForResource"})


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation in ("RunTask", "StartTask"):
        return _launch(tx, caller, operation, params)
    arns = _arns(caller, operation, params) or [NO_RESOURCE]
    needed = [Permission(f"ecs:{operation}", each, _context(caller, _cluster_in(each, params), params)) for each in arns]
    if operation == "RegisterTaskDefinition":
        return needed + _pass_roles(tx, caller, params, {}) + host_permissions(params)
    if operation in ("CreateService", "CreateTaskSet", "UpdateService") and params.get("taskDefinition"):
        return needed + host_permissions(_definition(tx, caller, params["taskDefinition"])[1])
    return needed


def _context(caller: Caller, cluster: str, params: Params) -> Context:
    return {"ecs:cluster": (lookup.arn(caller.account, caller.region, f"cluster/{cluster}"),), **request_tags(params)}


def _launch(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    name, document = _definition(tx, caller, params.get("taskDefinition", ""))
    definition_arn = lookup.arn(caller.account, caller.region, f"task-definition/{name}")
    context = _context(caller, _cluster_of(params), params)
    return [
        Permission(f"ecs:{operation}", definition_arn, context),
        *_pass_roles(tx, caller, document, params.get("overrides") or {}),
        *host_permissions(document),
    ]


def _definition(tx: Tx[Store], caller: Caller, given: str) -> tuple[str, Params]:
    """FAMILY:REVISION and the document of the task definition that the handler will find."""
    try:
        revision, _, document = find_definition(tx, caller, given)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return short(given), {}
    return f"{split_definition(given)[0]}:{revision}", document


def _pass_roles(tx: Tx[Store], caller: Caller, document: Params, overrides: Params) -> list[Permission]:
    """The permissions to pass the task's roles. A task can do what its roles allow, so its creator needs these permissions."""
    given = [overrides.get(member) or document.get(member) for member in ("taskRoleArn", "executionRoleArn")]
    return [pass_role(tx, caller, role, "ecs-tasks") for role in dict.fromkeys(given) if role]


def host_permissions(definition: Params) -> list[Permission]:
    """The permission to run a task that has access to the host, if the task definition gives this access."""
    return [RUN_ON_HOST] if setting_with_host_access(definition) is not None else []


def _arns(caller: Caller, operation: str, params: Params) -> list[str]:
    """Return the ARNs of the resources that a request names. Return NO_RESOURCE for an operation that has no resource on AWS."""

    def arn(resource: str) -> str:
        return lookup.arn(caller.account, caller.region, resource)

    cluster = _cluster_of(params)
    if operation in CLUSTERS:
        return [arn(f"cluster/{cluster}")]
    if operation == "RegisterTaskDefinition":
        return [arn(f"task-definition/{params.get('family', '')}:*")]
    if operation == "CreateCluster":
        return [arn(f"cluster/{params.get('clusterName') or DEFAULT_CLUSTER}")]
    if operation == "DescribeClusters":
        return [arn(f"cluster/{short(each)}") for each in params.get("clusters") or [cluster]]
    if operation in TASKS:
        return [arn(f"task/{cluster}/{short(each)}") for each in _named(params, "tasks", "task")]
    if operation in INSTANCES:
        return [
            arn(f"container-instance/{cluster}/{short(each)}") for each in _named(params, "containerInstances", "containerInstance")
        ]
    if operation in ATTRIBUTES:
        targets = dict.fromkeys(short(each.get("targetId") or "") for each in params.get("attributes") or ())
        return [arn(f"container-instance/{cluster}/{each}") for each in targets]
    if operation in DEFINITIONS:
        return [arn(f"task-definition/{_revision(each)}") for each in _named(params, "taskDefinitions", "taskDefinition")]
    if operation in SERVICES:
        given = params.get("serviceName") if operation == "CreateService" else None
        return [arn(f"service/{cluster}/{short(each)}") for each in ([given] if given else _named(params, "services", "service"))]
    if operation in TASK_SETS:
        service = short(params.get("service") or "")
        given = params.get("taskSets") or [params.get("taskSet") or "*"]
        return [arn(f"task-set/{cluster}/{service}/ecs-svc/{short(each)}") for each in given]
    if operation in DEPLOYMENTS:
        return [arn(_resource(each)) for each in _named(params, "serviceDeploymentArns", "serviceDeploymentArn")]
    if operation == "DescribeServiceRevisions":
        return [arn(_resource(each)) for each in _named(params, "serviceRevisionArns", "")]
    if operation in PROVIDERS:
        given = params.get("capacityProvider") or params.get("name") or "*"
        return [arn(f"capacity-provider/{short(each)}") for each in params.get("capacityProviders") or [given]]
    if operation in TAGS:
        return [params.get("resourceArn", UNKNOWN_RESOURCE)]
    return [NO_RESOURCE]


def _cluster_of(params: Params) -> str:
    """Return the name of the cluster in a request."""
    return short(params.get("cluster") or "") or DEFAULT_CLUSTER


def _cluster_in(resource_arn: str, params: Params) -> str:
    """Return the name of the cluster in an ARN, or else of the cluster in the request."""
    kind, *names = resource_arn.rpartition(":")[2].split("/")
    return names[0] if len(names) > 1 or (names and kind == "cluster") else _cluster_of(params)


def _named(params: Params, several: str, one: str) -> list[str]:
    """Return the resources that a request names in the member `several` or `one`. Return ["*"] if it names none."""
    return params.get(several) or [params.get(one) or "*"]


def _revision(given: str) -> str:
    """Return FAMILY:REVISION. The number of the revision has no leading zeros."""
    try:
        family, revision = split_definition(given)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return short(given)
    return family if revision is None else f"{family}:{revision}"


def _resource(given: str) -> str:
    """Return the last part of the ARN of a service deployment or service revision. The handler ignores the account in this ARN."""
    return given.split(":", 5)[-1]
