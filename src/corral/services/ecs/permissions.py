"""The permissions that operations of ECS need (`policy_facts.py` has the facts about its resources).

Most handlers use only the last part of an ARN in a request, and ignore its region and account. So this module builds the ARN of the
resource that the handler will find.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from corral.access.authorization import role_may
from corral.access.caller import Caller
from corral.access.permissions import LateContext, Params, Permission, of_other_owner, pass_role
from corral.access.resources import ResourceFacts
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import NO_RESOURCE, UNKNOWN_RESOURCE
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.principal import ROOT
from corral.model.private_environment import is_private
from corral.services.ecr.image_names import own_image
from corral.services.ecs import host_access, lookup
from corral.services.ecs.capacity_providers import existing_group
from corral.services.ecs.container_secrets import permissions_to_read
from corral.services.ecs.host_access import acts_as_account, runs_on_host
from corral.services.ecs.lookup import find_definition, short, split_definition
from corral.services.ecs.policy_facts import LISTED, facts_of_ecs, request_context
from corral.services.ecs.run_spec import controls_host
from corral.services.ecs.service_deployments import service_of_deployment
from corral.services.ecs.task_spec import secrets_of, spec_of
from corral.store import Store

ANY_KIND = ""  # the name in the request contains the kind
# The kind of a resource in its ARN, the request members that can name the resource, and the operations.
RESOURCES = (
    ("cluster", ("clusters", "clusterName", "cluster"),
     "CreateCluster DeleteCluster DescribeClusters ListAttributes ListContainerInstances PutClusterCapacityProviders UpdateCluster "
     "UpdateClusterSettings"),
    ("task", ("tasks", "task"), "DescribeTasks ExecuteCommand GetTaskProtection StopTask UpdateTaskProtection"),
    ("container-instance", ("containerInstances", "containerInstance"),
     "DeregisterContainerInstance DescribeContainerInstances UpdateContainerAgent UpdateContainerInstancesState"),
    ("container-instance", ("attributes",), "DeleteAttributes PutAttributes"),
    # On AWS, DescribeTaskDefinition has no resource. Here, a definition has an owner, and may contain secrets.
    ("task-definition", ("taskDefinitions", "taskDefinition"),
     "DeleteTaskDefinitions DeregisterTaskDefinition DescribeTaskDefinition"),
    ("service", ("services", "serviceName", "service"),
     "CreateService DeleteService DescribeServices ListServiceDeployments UpdateService UpdateServicePrimaryTaskSet"),
    ("task-set", ("taskSets", "taskSet"),
     "CreateTaskSet DeleteTaskSet DescribeTaskSets UpdateTaskSet"),
    (ANY_KIND, ("serviceDeploymentArns", "serviceDeploymentArn", "serviceRevisionArns"),
     "ContinueServiceDeployment DescribeServiceDeployments DescribeServiceRevisions StopServiceDeployment"),
    ("capacity-provider", ("capacityProviders", "capacityProvider", "name"),
     "DeleteCapacityProvider DescribeCapacityProviders UpdateCapacityProvider"),
)  # fmt: skip
LISTINGS = frozenset(f"ecs:{operation}" for operation in LISTED)
DEPLOY = frozenset({"CreateService", "CreateTaskSet", "UpdateService"})
KINDS = {operation: (kind, members) for kind, members, operations in RESOURCES for operation in operations.split()}
IN_CLUSTER = frozenset({"container-instance", "service", "task"})  # kinds whose ARN has the name of the cluster before their own


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    if operation in ("RunTask", "StartTask"):
        return _launch(tx, caller, operation, params)
    arns = _arns(caller, operation, params) or [NO_RESOURCE]
    if operation == "DescribeTaskDefinition":
        name, _ = _definition(tx, caller, params.get("taskDefinition", ""))
        arns = [lookup.arn(caller.account, caller.region, f"task-definition/{name}")]
    action = f"ecs:{operation}"
    needed = [Permission(action, each, LateContext(partial(_context, caller, operation, each, params))) for each in arns]
    if operation in DEPLOY:
        needed += use_cluster(tx, caller, _cluster_of(params))
    if operation in ("CreateCluster", "PutClusterCapacityProviders"):
        return needed + _use_providers(tx, caller, params)
    if operation == "RegisterTaskDefinition":
        return needed + read_secrets(tx, caller, params) + read_files(tx, caller, params) + pull_images(tx, caller, params)
    if operation == "CreateCapacityProvider":
        return needed + _use_group(tx, caller, params)
    if operation == "DeregisterContainerInstance" and _is_host(tx, short(params["containerInstance"])):
        return [*needed, Permission("corral:ForgetHost", NO_RESOURCE)]
    if operation in DEPLOY and params.get("taskDefinition"):
        name, document = _definition(tx, caller, params["taskDefinition"])
        return [*needed, *_use_definition(tx, caller, name), *_pass_roles(tx, caller, document, {})]
    return needed


def gives_host(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> bool:
    """Whether a request registers, starts, deploys, scales or enters tasks with access to the host."""
    as_account = acts_as_account(tx, caller, caller.owner)
    if operation == "RegisterTaskDefinition":
        return host_access.gives_host(tx, params, as_account=as_account)
    if operation == "ExecuteCommand":
        task = tx.store.tasks.get(short(params.get("task") or ""))
        own = task is not None and acts_as_account(tx, caller, task.program_owner)
        return task is not None and controls_host(tx, task, spec_of(tx, task), own_account=own)
    role = (params.get("overrides") or {}).get("taskRoleArn") or ""
    if params.get("taskDefinition"):
        document = _definition(tx, caller, params["taskDefinition"])[1]
        if runs_on_host(tx, document, role, as_account=as_account):
            return True
    if params.get("serviceDeploymentArn"):
        cluster, name = service_of_deployment(params["serviceDeploymentArn"])
    else:
        cluster, name = _cluster_of(params), short(params.get("service") or "")
    return service_runs_on_host(tx, caller, cluster, name)


def service_runs_on_host(tx: Tx[Store], caller: Caller, cluster: str, name: str) -> bool:
    """Whether tasks of a service have access to the host: of a current or an older deployment, or of the target of a rollback."""
    service = tx.store.ecs_services.get(caller.region, cluster, name)
    if service is None:
        return False
    own = acts_as_account(tx, caller, service.owner)
    for each in (*service.deployments, *((service.completed,) if service.completed is not None else ())):
        found = tx.store.definitions.get(caller.region, *split_definition(each.definition_arn))
        if found is not None and runs_on_host(tx, found[2], as_account=own and each.uses_account):
            return True
    return False


def _is_host(tx: Tx[Store], instance_id: str) -> bool:
    """Whether this is the own instance of a host. To deregister it is to forget the host."""
    instance = tx.store.instances.get(instance_id)
    return instance is not None and instance.is_host


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    """Return the facts of a resource. Operations that list resources count as those on a resource of the caller."""
    if permission.action in LISTINGS:
        return ResourceFacts()
    return facts_of_ecs(tx, caller.region, permission.resource)


def _context(caller: Caller, operation: str, resource_arn: str, params: Params) -> Context:
    of_cluster = lookup.arn(caller.account, caller.region, f"cluster/{_cluster_in(resource_arn, params)}")
    return {**request_context(caller, operation, params), "ecs:cluster": (of_cluster,)}


def _launch(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    name, document = _definition(tx, caller, params.get("taskDefinition", ""))
    definition_arn = lookup.arn(caller.account, caller.region, f"task-definition/{name}")
    context = _context(caller, operation, NO_RESOURCE, params)
    overrides = params.get("overrides") or {}
    needed = [Permission(f"ecs:{operation}", definition_arn, context), *_pass_roles(tx, caller, document, overrides)]
    role = overrides.get("executionRoleArn") or document.get("executionRoleArn")
    needed += use_cluster(tx, caller, _cluster_of(params))
    return needed + read_files(tx, caller, {"containerDefinitions": overrides.get("containerOverrides"), "executionRoleArn": role})


def use_cluster(tx: Tx[Store], caller: Caller, cluster: str) -> list[Permission]:
    """The permission to run tasks in the cluster of another user, whose instances would count as used by that user.

    The clusters of the root user are for everyone.
    """
    cluster_arn = lookup.arn(caller.account, caller.region, f"cluster/{cluster}")
    owner = facts_of_ecs(tx, caller.region, cluster_arn).owner
    return of_other_owner(caller, owner, "ecs:RunTask", cluster_arn) if owner != ROOT else []


def _use_providers(tx: Tx[Store], caller: Caller, params: Params) -> list[Permission]:
    """The permission to let tasks of a cluster scale the groups of capacity providers of other owners."""
    needed: list[Permission] = []
    for name in dict.fromkeys(short(str(each)) for each in params.get("capacityProviders") or ()):
        used = lookup.arn(caller.account, caller.region, f"capacity-provider/{name}")
        needed += of_other_owner(caller, facts_of_ecs(tx, caller.region, used).owner, "ecs:PutClusterCapacityProviders", used)
    return needed


def _use_definition(tx: Tx[Store], caller: Caller, name: str) -> list[Permission]:
    """The permission to run the task definition of another owner in a service: the one to run it as a task."""
    used = lookup.arn(caller.account, caller.region, f"task-definition/{name}")
    return of_other_owner(caller, facts_of_ecs(tx, caller.region, used).owner, "ecs:RunTask", used)


def _definition(tx: Tx[Store], caller: Caller, given: str) -> tuple[str, Params]:
    """FAMILY:REVISION and the document of the task definition that the handler will find."""
    try:
        revision, _, document = find_definition(tx, caller, given)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return short(given), {}
    return f"{split_definition(given)[0]}:{revision}", document


def _pass_roles(tx: Tx[Store], caller: Caller, document: Params, overrides: Params) -> list[Permission]:
    """The permissions to pass the roles of a task definition that the request does not override."""
    given = [document.get(member) for member in ("taskRoleArn", "executionRoleArn") if not overrides.get(member)]
    return [pass_role(tx, caller, role, "ecs-tasks") for role in dict.fromkeys(given) if role]


def read_secrets(tx: Tx[Store], caller: Caller, definition: Params) -> list[Permission]:
    """The permissions to read the parameters and secrets that the containers of a task definition get as variables.

    The caller does not need those of the execution role. It must be allowed to pass that role.
    """
    containers = definition.get("containerDefinitions") or ()
    given = dict.fromkeys(secret.get("valueFrom") or "" for container in containers for secret in secrets_of(container))
    needed = [permission for each in given for permission in permissions_to_read(tx, caller, each)]
    role = definition.get("executionRoleArn")
    return [each for each in needed if not role or not role_may(tx, role, each)]


def pull_images(tx: Tx[Store], caller: Caller, definition: Params) -> list[Permission]:
    """The permissions to read images of this registry whose repositories belong to other owners. Hosts pull images for all tasks.

    As with secrets, the caller does not need those of the execution role.
    """
    needed: list[Permission] = []
    images = dict.fromkeys(container.get("image") or "" for container in definition.get("containerDefinitions") or ())
    for own in filter(None, (own_image(tx.settings, image, caller.region) for image in images)):
        name = re.split("[:@]", own.name)[0]
        repository = tx.store.images.repository(own.region, name)
        owner = repository.owner if repository is not None else None
        arn = f"arn:aws:ecr:{own.region}:{caller.account}:repository/{name}"
        needed += of_other_owner(caller, owner, "ecr:BatchGetImage", arn)
    role = definition.get("executionRoleArn")
    return [each for each in needed if not role or not role_may(tx, role, each)]


def read_files(tx: Tx[Store], caller: Caller, definition: Params) -> list[Permission]:
    """The permissions to read the environment files of the containers of a task definition. The execution role may have them.

    A file of the private bucket needs none: a caller can use only those that it has uploaded (`fleet/private_environments.py`).
    """
    containers = definition.get("containerDefinitions") or ()
    given = (str(file.get("value") or "") for each in containers for file in each.get("environmentFiles") or ())
    files = dict.fromkeys(each.partition(":::")[2] for each in given if not is_private(each))
    needed = [Permission("s3:GetObject", f"arn:aws:s3:::{each}") for each in files if each]
    role = definition.get("executionRoleArn")
    return [each for each in needed if not _may_read(tx, caller, role, each)]


def _may_read(tx: Tx[Store], caller: Caller, role: str | None, needed: Permission) -> bool:
    """Whether the execution role may read an object, or a program in a container of its own owner, which needs no permission."""
    bucket = tx.store.buckets.get(needed.resource.partition(":::")[2].partition("/")[0])
    is_open = caller.confined and (bucket is None or bucket.owner == caller.owner)
    return is_open or (bool(role) and role_may(tx, role or "", needed))


def _use_group(tx: Tx[Store], caller: Caller, params: Params) -> list[Permission]:
    """The permission to let a capacity provider scale the Auto Scaling group of another owner: as on AWS, the one to tag it."""
    try:
        group = existing_group(tx, caller, str((params.get("autoScalingGroupProvider") or {}).get("autoScalingGroupArn") or ""))
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return []
    return of_other_owner(caller, group.owner, "autoscaling:CreateOrUpdateTags", group.arn(tx.settings.account))


def _arns(caller: Caller, operation: str, params: Params) -> list[str]:
    """Return the ARNs of the resources that a request names. Return NO_RESOURCE for an operation that has no resource on AWS."""
    if operation not in KINDS:
        if operation in ("TagResource", "UntagResource", "ListTagsForResource"):
            return [params.get("resourceArn", UNKNOWN_RESOURCE)]
        if operation == "RegisterTaskDefinition":
            return [lookup.arn(caller.account, caller.region, f"task-definition/{params.get('family', '')}:*")]
        return [NO_RESOURCE]
    kind, members = KINDS[operation]
    given: Any = DEFAULT_CLUSTER if "clusters" in members else "*"
    for member in members:
        if params.get(member):
            given = params[member]
            break
    find: Callable[[Any], str] = NAMES.get(kind, _name)
    start = lookup.arn(caller.account, caller.region, _before_name(kind, params))
    if isinstance(given, str):
        return [start + find(given)]
    return [start + name for name in dict.fromkeys([find(each) for each in given])]


def _before_name(kind: str, params: Params) -> str:
    """Return what precedes the name of a resource in the last part of its ARN."""
    if kind in IN_CLUSTER:
        return f"{kind}/{_cluster_of(params)}/"
    if kind == "task-set":
        return f"{kind}/{_cluster_of(params)}/{short(params.get('service') or '')}/ecs-svc/"
    return f"{kind}/" if kind != ANY_KIND else ""


def _name(given: Any) -> str:
    """Return the name of a resource, or of the container instance of an attribute, as its ARN contains it."""
    return short(given if isinstance(given, str) else given.get("targetId") or "")


def _cluster_of(params: Params) -> str:
    return short(params.get("cluster") or "") or DEFAULT_CLUSTER


def _cluster_in(resource_arn: str, params: Params) -> str:
    """Return the name of the cluster in an ARN, or else of the cluster in the request."""
    kind, *names = resource_arn.rpartition(":")[2].split("/")
    return names[0] if len(names) > 1 or (names and kind == "cluster") else _cluster_of(params)


def _revision(given: str) -> str:
    """Return FAMILY:REVISION. The number of the revision has no leading zeros."""
    try:
        family, revision = split_definition(given)
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return short(given)
    return family if revision is None else f"{family}:{revision}"


def _after_account(given: str) -> str:
    """Return the last part of an ARN. The handler ignores its account."""
    return given.split(":", 5)[-1]


# Kind → the function that returns the name of a resource as its ARN contains it
NAMES: Mapping[str, Callable[[str], str]] = {"task-definition": _revision, ANY_KIND: _after_account}
