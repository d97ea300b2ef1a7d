"""The operations of job queues: create, update, delete and describe.

A new queue is VALID at once. After DeleteJobQueue, the status of the queue is DELETING until its jobs have ended. Then a reconciler
deletes the queue.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.compute_environment import ComputeEnvironment
from corral.operations.pagination import among
from corral.operations.stored_resources import Params
from corral.services.batch.environments import find_environment
from corral.services.batch.errors import EXISTS, ClientException, missing, refused
from corral.services.batch.names import (
    DELETING,
    DISABLED,
    ENABLED,
    ENVIRONMENT,
    PAGES,
    QUEUE,
    SERVICE,
    VALID,
    arn,
    check_name,
    checked_tags,
    listed,
    queue_key,
    short,
    shown,
)
from corral.services.batch.scheduling_policies import find_policy
from corral.store import Store
from corral.store.stored_resources import Document

ENVIRONMENTS_MAX = 3
PRIORITY_MAX = 1000
QUEUES_MAX = 500  # per region; AWS's quota is 50, and can be raised
DESCRIBED_MAX = 100
ACTIONS_MAX = 10
REASON_MAX_CHARACTERS = 1024
ACTION_MIN_S, ACTION_MAX_S = 600, 86_400
HEALTHY = "JobQueue Healthy"
ECS, ECS_FARGATE = "ECS", "ECS_FARGATE"
CHANGED = ("state", "priority", "computeEnvironmentOrder", "schedulingPolicyArn", "jobStateTimeLimitActions")


def create_job_queue(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name, tags = check_name("jobQueueName", params["jobQueueName"]), checked_tags(params)
    _check_members(params)
    if not params.get("computeEnvironmentOrder"):
        raise ClientException("computeEnvironmentOrder must have 1 to 3 compute environments: it is empty.")
    order, type_ = _order(tx, caller, params["computeEnvironmentOrder"])
    if params.get("jobQueueType", type_) != type_:
        rule = f"its compute environments have the type {type_}. Corral serves the types {ECS} and {ECS_FARGATE}."
        raise refused("jobQueueType", params["jobQueueType"], rule)
    queue: Document = {
        "jobQueueName": name,
        "jobQueueArn": arn(caller.account, caller.region, f"{QUEUE}/{name}"),
        "state": params.get("state", ENABLED),
        "status": VALID,
        "statusReason": HEALTHY,
        "priority": params["priority"],
        "computeEnvironmentOrder": order,
        "jobQueueType": type_,
        "tags": tags,
        "_createdAt": tx.now_s,
    }
    if params.get("schedulingPolicyArn"):
        queue["schedulingPolicyArn"] = find_policy(tx, caller.region, params["schedulingPolicyArn"])["arn"]
    if params.get("jobStateTimeLimitActions"):
        queue["jobStateTimeLimitActions"] = params["jobStateTimeLimitActions"]
    if len(tx.store.stored.listed(SERVICE, QUEUE, caller.region, limit=QUEUES_MAX)) == QUEUES_MAX:
        raise ClientException(f"A region can have at most {QUEUES_MAX} job queues: delete one first.")
    if not tx.store.stored.add(SERVICE, QUEUE, caller.region, name, queue, tx.now_s, caller.owner):
        raise ClientException(EXISTS)
    tx.mark(queue_key(caller.region, name))
    return {"jobQueueName": name, "jobQueueArn": queue["jobQueueArn"]}


def update_job_queue(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Change a queue. Its waiting jobs follow the new priority, environments and rules at once."""
    queue = _existing(tx, caller, params["jobQueue"])
    if queue["status"] == DELETING:
        raise ClientException(f"Cannot update, job queue {queue['jobQueueName']} is being deleted.")
    _check_members(params)
    changes = {member: params[member] for member in CHANGED if member in params}
    if "computeEnvironmentOrder" in changes:
        if not changes["computeEnvironmentOrder"]:
            raise ClientException("computeEnvironmentOrder must have 1 to 3 compute environments: it is empty.")
        changes["computeEnvironmentOrder"], changes["jobQueueType"] = _order(tx, caller, changes["computeEnvironmentOrder"])
    if "schedulingPolicyArn" in changes:
        changes["schedulingPolicyArn"] = _new_policy(tx, caller, queue, changes["schedulingPolicyArn"])
    tx.store.stored.change(SERVICE, QUEUE, caller.region, queue["jobQueueName"], {**queue, **changes})
    tx.mark(queue_key(caller.region, queue["jobQueueName"]))
    return {"jobQueueName": queue["jobQueueName"], "jobQueueArn": queue["jobQueueArn"]}


def delete_job_queue(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Begin to delete a queue. A reconciler terminates its jobs and then deletes the queue.

    Do nothing if the queue does not exist.
    """
    name = short(QUEUE, caller.region, params["jobQueue"])
    queue = tx.store.stored.get(SERVICE, QUEUE, caller.region, name) if name else None
    if queue is None:
        return {}
    if queue["state"] != DISABLED:
        raise ClientException(f"Cannot delete, state must be {DISABLED}: disable the job queue {name} with UpdateJobQueue first.")
    tx.store.stored.change(SERVICE, QUEUE, caller.region, name, {**queue, "status": DELETING})
    tx.mark(queue_key(caller.region, name))
    return {}


def describe_job_queues(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe queues. Names that do not exist are omitted."""
    given = params.get("jobQueues") or []
    if len(given) > DESCRIBED_MAX:
        raise ClientException(f"jobQueues can have at most {DESCRIBED_MAX} elements: it has {len(given)}.")
    candidates = listed(tx, caller, QUEUE)
    if given:
        names = dict.fromkeys(short(QUEUE, caller.region, each) for each in given)
        documents = {name: tx.store.stored.get(SERVICE, QUEUE, caller.region, name) for name in names if name}
        candidates = among({name: queue for name, queue in documents.items() if queue is not None})
    found, more = PAGES.page(params, candidates)
    return {"jobQueues": [shown(queue) for queue in found], **more}


def _existing(tx: Tx[Store], caller: Caller, given: str) -> Document:
    name = short(QUEUE, caller.region, given)
    queue = tx.store.stored.get(SERVICE, QUEUE, caller.region, name) if name else None
    if queue is None:
        raise missing(QUEUE, given)
    return queue


def _check_members(params: Params) -> None:
    """Check the members of a request whose rules do not depend on other resources."""
    if params.get("serviceEnvironmentOrder"):
        raise ClientException("Corral does not serve service environments: use computeEnvironmentOrder instead.")
    if params.get("state", ENABLED) not in (ENABLED, DISABLED):
        raise refused("state", params["state"], f"it must be {ENABLED} or {DISABLED}.")
    if not 0 <= params.get("priority", 0) <= PRIORITY_MAX:
        raise refused("priority", params["priority"], f"it must be between 0 and {PRIORITY_MAX}.")
    actions = params.get("jobStateTimeLimitActions", [])
    if len(actions) > ACTIONS_MAX:
        raise ClientException(f"jobStateTimeLimitActions can have at most {ACTIONS_MAX} elements: it has {len(actions)}.")
    for action in actions:
        if action["state"] != "RUNNABLE":
            raise refused("state", action["state"], "a time limit action is possible for the state RUNNABLE only.")
        if action["action"] != "CANCEL":
            raise refused("action", action["action"], "the only time limit action for container jobs is CANCEL.")
        if not ACTION_MIN_S <= action["maxTimeSeconds"] <= ACTION_MAX_S:
            raise refused("maxTimeSeconds", action["maxTimeSeconds"], f"it must be between {ACTION_MIN_S} and {ACTION_MAX_S}.")
        if not 1 <= len(action["reason"]) <= REASON_MAX_CHARACTERS:
            raise ClientException(f"reason must have 1 to {REASON_MAX_CHARACTERS} characters: it has {len(action['reason'])}.")


def _order(tx: Tx[Store], caller: Caller, given: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return the compute environments of a queue with their ARNs, sorted by `order`, and the type of the queue."""
    if len(given) > ENVIRONMENTS_MAX:
        rule = f"computeEnvironmentOrder can have at most {ENVIRONMENTS_MAX} compute environments"
        raise ClientException(f"{rule}: it has {len(given)}.")
    found = [_valid_environment(tx, caller, each["computeEnvironment"]) for each in given]
    for what, values in (("order", [each["order"] for each in given]), ("computeEnvironment", [each.name for each in found])):
        if twice := [value for value in values if values.count(value) > 1]:
            raise ClientException(f"computeEnvironmentOrder has the {what} {twice[0]} more than once: each {what} must be unique.")
    types = {ECS_FARGATE if each.is_fargate else ECS for each in found}
    if len(types) > 1:
        listed_ = ", ".join(f"{each.name} ({each.kind or each.type})" for each in found)
        raise ClientException(f"EC2 and Fargate compute environments can't be mixed in one job queue: {listed_}.")
    pairs = sorted(zip(given, found, strict=True), key=lambda pair: pair[0]["order"])
    return [{"order": each["order"], "computeEnvironment": environment.arn} for each, environment in pairs], types.pop()


def _valid_environment(tx: Tx[Store], caller: Caller, given: str) -> ComputeEnvironment:
    environment = find_environment(tx, caller.region, given)
    if environment is None:
        raise missing(ENVIRONMENT, given)
    if environment.status != VALID:
        raise ClientException(
            f"Compute environment {environment.name} must be in the status {VALID}: its status is {environment.status}"
            f"{f' ({environment.status_reason})' if environment.status_reason else ''}."
        )
    return environment


def _new_policy(tx: Tx[Store], caller: Caller, queue: Document, given: str) -> str:
    """Return the ARN of the policy that replaces the policy of a queue."""
    if "schedulingPolicyArn" not in queue:
        raise ClientException(
            f"Job queue {queue['jobQueueName']} was created without a scheduling policy, so it can't get one. Create another "
            "job queue."
        )
    if not given:
        raise ClientException(f"The scheduling policy of job queue {queue['jobQueueName']} can be replaced, but can't be removed.")
    return str(find_policy(tx, caller.region, given)["arn"])
