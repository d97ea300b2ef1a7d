"""The permissions that operations of AWS Batch need."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, pass_role, request_tags, request_values
from corral.access.resources import ResourceFacts
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.model.compute_environment import CLUSTER_TAG
from corral.model.numbers import whole_number
from corral.operations.listings import Listed, OwnerOf
from corral.services.batch.definition_rules import check_job_definition
from corral.services.batch.job_definitions import REVISION_MAX, TASKS, JobDefinition, find_definition
from corral.services.batch.names import DEFINITION, ENVIRONMENT, JOB, POLICY, QUEUE, RESOURCE, SERVICE, arn, short
from corral.services.batch.task_documents import all_task_properties
from corral.services.ecs import host_access
from corral.services.ecs.lookup import split_definition
from corral.services.ecs.permissions import pull_images, read_secrets, use_cluster
from corral.store import Store

ACTIONS = {"CancelJobs": "CancelJob", "TerminateJobs": "TerminateJob"}  # operation → action, where their names differ
# The request members that name a resource, and the kind of the resource.
MEMBERS = {
    "computeEnvironment": ENVIRONMENT,
    "computeEnvironmentName": ENVIRONMENT,
    "consumableResource": RESOURCE,
    "consumableResourceName": RESOURCE,
    "jobDefinition": DEFINITION,
    "jobDefinitionName": DEFINITION,
    "jobQueue": QUEUE,
    "jobQueueName": QUEUE,
    "schedulingPolicyArn": POLICY,
}
# The members of a container's properties that are condition keys of RegisterJobDefinition
CONTAINER_KEYS = {
    "batch:awslogscreategroup": "logConfiguration.options.awslogs-create-group",
    "batch:awslogsgroup": "logConfiguration.options.awslogs-group",
    "batch:awslogsregion": "logConfiguration.options.awslogs-region",
    "batch:awslogsstreamprefix": "logConfiguration.options.awslogs-stream-prefix",
    "batch:image": "image",
    "batch:logdriver": "logConfiguration.logDriver",
    "batch:privileged": "privileged",
    "batch:user": "user",
}
JOBS = frozenset({"CancelJob", "TerminateJob"})
MANY_JOBS = frozenset({"CancelJobs", "TerminateJobs"})
POLICIES = frozenset({"DeleteSchedulingPolicy", "UpdateSchedulingPolicy"})


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the resources, and to pass the roles of the job definition from which a job is submitted."""
    share: Context = {"batch:shareidentifier": (params["shareIdentifier"],)} if params.get("shareIdentifier") else {}
    action, arns = f"batch:{ACTIONS.get(operation, operation)}", _arns(tx, caller, operation, params)
    needed = on_resources(action, arns, {**share, **request_tags(params), **_container_context(operation, params)})
    if operation == "CreateComputeEnvironment" and (cluster := (params.get("tags") or {}).get(CLUSTER_TAG)):
        needed += use_cluster(tx, caller, cluster)
    if operation == "RegisterJobDefinition":
        tasks = _new_tasks(params)
        needed += [each for task in tasks for each in (*read_secrets(tx, caller, task), *pull_images(tx, caller, task))]
    tasks = _stored_tasks(tx, caller, params) if operation == "SubmitJob" else []
    roles = [task.get(member) for task in tasks for member in ("taskRoleArn", "executionRoleArn")]
    return needed + [pass_role(tx, caller, role, "ecs-tasks") for role in dict.fromkeys(roles) if role]


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    """Return the facts of a resource. Operations that list resources count as those on a resource of the caller."""
    if permission.action.partition(":")[2] in LISTED:
        return ResourceFacts()
    return _facts(tx, caller.region, permission.resource)


def _facts(tx: Tx[Store], region: str, resource_arn: str) -> ResourceFacts:
    kind, _, name = resource_arn.split(":", 5)[-1].partition("/")
    if kind == JOB:
        job = tx.store.jobs.get(name)
        return ResourceFacts(job.owner, dict(job.spec.tags)) if job is not None else ResourceFacts()
    if kind == DEFINITION:
        family, _, revision = name.partition(":")
        number = whole_number(revision, REVISION_MAX) or 0
        owner = tx.store.job_definitions.owner(region, family, number)
        return ResourceFacts(owner, tx.store.job_definitions.document(region, family, number)["tags"]) if owner else ResourceFacts()
    document = tx.store.stored.get(SERVICE, kind, region, name)
    if document is None:
        return ResourceFacts()
    return ResourceFacts(tx.store.stored.owner(SERVICE, kind, region, name), document.get("tags", {}))


def _container_context(operation: str, params: Params) -> Context:
    """The condition keys of RegisterJobDefinition. A key has the values of all containers of the job definition."""
    if operation != "RegisterJobDefinition":
        return {}
    containers = [container for task in _new_tasks(params) for container in task["containers"]]
    found: dict[str, tuple[str, ...]] = {}
    for each in containers:
        for key, values in {"batch:privileged": ("false",), **request_values(each, CONTAINER_KEYS)}.items():
            found[key] = tuple(dict.fromkeys((*found.get(key, ()), *values)))
    return found


def _owner(kind: str, member: str) -> OwnerOf:
    """Return a function that finds the owner of an element by its member with a name, an id or an ARN."""

    def find(tx: Tx[Store], caller: Caller, params: Params, element: Any) -> str | None:
        given = str(element.get(member) or "")
        name = short(kind, caller.region, given)
        return _facts(tx, caller.region, arn(caller.account, caller.region, f"{kind}/{name}")).owner

    return find


LISTED = {
    "DescribeComputeEnvironments": Listed(("computeEnvironments",), _owner(ENVIRONMENT, "computeEnvironmentName")),
    "DescribeJobDefinitions": Listed(("jobDefinitions",), _owner(DEFINITION, "jobDefinitionArn")),
    "DescribeJobQueues": Listed(("jobQueues",), _owner(QUEUE, "jobQueueName")),
    "DescribeJobs": Listed(("jobs",), _owner(JOB, "jobId")),
    "DescribeSchedulingPolicies": Listed(("schedulingPolicies",), _owner(POLICY, "arn")),
    "GetJobQueueSnapshot": Listed(("frontOfQueue.jobs",), _owner(JOB, "jobArn")),
    "ListConsumableResources": Listed(("consumableResources",), _owner(RESOURCE, "consumableResourceName")),
    "ListJobs": Listed(("jobSummaryList",), _owner(JOB, "jobId")),
    "ListJobsByConsumableResource": Listed(("jobs",), _owner(JOB, "jobArn")),
    "ListSchedulingPolicies": Listed(("schedulingPolicies",), _owner(POLICY, "arn")),
}


def gives_host(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> bool:
    """Whether a request registers a job definition with access to the host, or submits a job of one."""
    as_account = host_access.acts_as_account(tx, caller, caller.owner)
    if operation == "SubmitJob":
        return any(host_access.runs_on_host(tx, task, as_account=as_account) for task in _stored_tasks(tx, caller, params))
    return any(host_access.gives_host(tx, task, as_account=as_account) for task in _new_tasks(params))


def _arns(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[str]:
    """Return the ARNs of the resources that a request names.

    As on AWS, return none for operations that list or describe. ListTagsForResource and DescribeConsumableResource are exceptions.
    """
    if params.get("resourceArn"):
        return [params["resourceArn"]]

    def named(kind: str, given: str) -> str:
        return arn(caller.account, caller.region, f"{kind}/{short(kind, caller.region, given)}")

    if operation.startswith(("Describe", "List")) and operation != "DescribeConsumableResource":
        return []
    if operation in JOBS:
        return [named(JOB, params.get("jobId", ""))]
    if operation in MANY_JOBS:
        return [named(JOB, each) for each in params.get("jobs") or ()]
    if operation in POLICIES:
        return [named(POLICY, params.get("arn", ""))]
    if operation == "CreateSchedulingPolicy":
        return [named(POLICY, params.get("name", ""))]
    found = [named(kind, params[member]) for member, kind in MEMBERS.items() if params.get(member)]
    if params.get("jobDefinition") and (definition := _definition(tx, caller, params)) is not None:
        revision = named(DEFINITION, f"{definition.name}:{definition.revision}")
        found = [revision if each.split(":", 5)[5].startswith(f"{DEFINITION}/") else each for each in found]
    environments = (each.get("computeEnvironment") or "" for each in params.get("computeEnvironmentOrder") or ())
    return [*found, *(named(ENVIRONMENT, each) for each in environments)]


def _new_tasks(params: Params) -> list[Params]:
    """Return the ECS task definitions of the job definition that a request registers."""
    try:
        check_job_definition({**params})
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return []
    return [{**task, "containerDefinitions": task["containers"]} for task in all_task_properties({**params})]


def _stored_tasks(tx: Tx[Store], caller: Caller, params: Params) -> list[Params]:
    """Return the ECS task definitions of the job that a request submits.

    If the job definition of the request is unknown, return none: the handler refuses the request.
    """
    found = _definition(tx, caller, params)
    names = (split_definition(each) for each in (found.document[TASKS] if found is not None else ()))
    documents = (tx.store.definitions.get(caller.region, family, revision) for family, revision in names)
    return [each[2] for each in documents if each is not None]


def _definition(tx: Tx[Store], caller: Caller, params: Params) -> JobDefinition | None:
    """Return the revision of the job definition that the handler will find, or None."""
    try:
        return find_definition(tx, caller.region, params.get("jobDefinition", ""), caller.owner)
    except ApiError:
        return None
