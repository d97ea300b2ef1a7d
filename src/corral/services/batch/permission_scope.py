"""Finds the resources and the tasks that a request to AWS Batch concerns.

`access/permissions.py` lists the permissions that the request needs for these resources and tasks. A `JobTask` has the parts of a
task definition that matter for permissions: the roles, and the settings that give access to the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.services.batch.job_definitions import TASKS, JobDefinition, find_definition
from corral.services.batch.names import DEFINITION, ENVIRONMENT, JOB, POLICY, QUEUE, RESOURCE, arn, short
from corral.services.ecs.lookup import split_definition
from corral.store import Store

Params = Mapping[str, Any]
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
JOBS = frozenset({"CancelJob", "TerminateJob"})
MANY_JOBS = frozenset({"CancelJobs", "TerminateJobs"})
POLICIES = frozenset({"DeleteSchedulingPolicy", "UpdateSchedulingPolicy"})


class JobTask(Struct, frozen=True):
    roles: tuple[str, ...]  # the names or ARNs of jobRoleArn and executionRoleArn
    definition: dict[str, Any]  # an ECS task definition, or at least its members that matter for permissions


def arns_of(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[str]:
    """Return the ARNs of the resources that a request names.

    As on AWS, return none for operations that list or describe. ListTagsForResource is an exception.
    """
    if params.get("resourceArn"):
        return [params["resourceArn"]]

    def named(kind: str, given: str) -> str:
        return arn(caller.account, caller.region, f"{kind}/{short(kind, caller.region, given)}")

    if operation.startswith(("Describe", "List")):
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


def tasks_of(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[JobTask]:
    """Return the tasks that a request registers or submits.

    If the job definition of the request is unknown, return none: the handler refuses the request.
    """
    if operation == "RegisterJobDefinition":
        nodes = (params.get("nodeProperties") or {}).get("nodeRangeProperties") or ()
        return [task for each in (params, *nodes) for task in _given(each)]
    if operation != "SubmitJob":
        return []
    found = _definition(tx, caller, params)
    names = (split_definition(each) for each in (found.document[TASKS] if found is not None else ()))
    documents = (tx.store.definitions.get(caller.region, family, revision) for family, revision in names)
    return [JobTask(_roles(each[2], "taskRoleArn"), each[2]) for each in documents if each is not None]


def _definition(tx: Tx[Store], caller: Caller, params: Params) -> JobDefinition | None:
    """Return the revision of the job definition that the handler will find, or None."""
    try:
        return find_definition(tx, caller.region, params.get("jobDefinition", ""))
    except ApiError:
        return None


def _given(properties: Params) -> Iterator[JobTask]:
    """Yield the tasks of a job definition or of a range of nodes, from a request."""
    container = properties.get("containerProperties") or properties.get("container")
    if container:
        volumes = container.get("volumes") or []
        yield JobTask(_roles(container, "jobRoleArn"), {"containerDefinitions": [container], "volumes": volumes})
    for task in (properties.get("ecsProperties") or {}).get("taskProperties") or ():
        yield JobTask(_roles(task, "taskRoleArn"), {**task, "containerDefinitions": task.get("containers") or []})


def _roles(document: Params, member: str) -> tuple[str, ...]:
    return tuple(document[each] for each in (member, "executionRoleArn") if document.get(each))
