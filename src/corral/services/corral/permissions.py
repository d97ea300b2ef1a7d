"""The permissions that Corral's own operations need, and the facts about what they name that policies can test.

An operation on a task has the ARN of the task in ECS, so that policies can test its owner and its tags. Operations on hosts, GPUs,
tokens and the whole server have no resource.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources
from corral.access.resources import ResourceFacts, facts_of
from corral.core.transactions import Tx
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.operations.listings import Listed
from corral.services.corral.limits import concerns
from corral.services.corral.queue_peek import queue_name
from corral.services.ecs.lookup import arn, short
from corral.store import Store
from corral.store.task_history import HistoryFilter

TASKS = {
    **dict.fromkeys(("DescribeTaskPause", "ListOutputFiles", "PauseTask", "ResumeTask", "RevokeSessions", "SignalTask"), "task"),
    "UpdateWaitingTasks": "tasks",
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    here = f"{caller.region}:{caller.account}"
    arns: list[str] = []
    if member := TASKS.get(operation):
        given = params.get(member) or []
        cluster = short(params.get("cluster") or "") or DEFAULT_CLUSTER
        arns = [_task_arn(tx, caller, short(each), cluster) for each in ([given] if isinstance(given, str) else given)]
    elif operation == "InterruptSpotInstance":
        arns = [f"arn:aws:ec2:{here}:instance/{params.get('instance', '')}"]
    elif operation == "DescribeQueueWorkers":
        arns = [f"arn:aws:sqs:{here}:{params.get('queue', '')}"]
    elif operation == "PeekMessages":  # the permission of ReceiveMessage, so that a policy about the queue need not name both
        return on_resources("sqs:ReceiveMessage", [f"arn:aws:sqs:{here}:{queue_name(params.get('queue') or '')}"], {})
    return on_resources(f"corral:{operation}", arns, {})


def _task_arn(tx: Tx[Store], caller: Caller, task_id: str, cluster: str) -> str:
    """Return the ARN of a task. The cluster is that of the task, or else that of the request."""
    task = tx.store.tasks.get(task_id)
    return arn(caller.account, caller.region, f"task/{task.cluster if task is not None else cluster}/{task_id}")


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts | None:
    """Return the facts of a resource, as its service tells them. The history knows the owners of tasks that ECS has forgotten."""
    service = permission.resource.split(":", 3)[2] if permission.resource.startswith("arn:") else ""
    if not service or permission.action.partition(":")[2] in LISTED:
        return ResourceFacts()
    found = facts_of(tx, caller, Permission(f"{service}:", permission.resource))
    if service == "ecs" and found is not None and found.owner is None:
        stopped = tx.store.tasks.history.get(permission.resource.rpartition("/")[2])
        return ResourceFacts(stopped.record.owner) if stopped is not None else found
    return found


def _owner_in_row(tx: Tx[Store], caller: Caller, params: Params, element: Any) -> str | None:
    """Return the owner in a row of a listing. A row without an owner is always shown."""
    owner: str | None = element.get("owner")
    return owner


def _owner_of_name(tx: Tx[Store], caller: Caller, params: Params, name: str) -> str | None:
    """Return the owner of the newest task with the name."""
    found = tx.store.tasks.history.latest(HistoryFilter(caller.region, name=name))
    return found[0].record.owner if found else None


def _owner_of_log(tx: Tx[Any], caller: Caller, params: Params, element: Any) -> str | None:
    found: str | None = tx.store.owner_of_stream(caller.region, params["group"], element["name"])
    return found


def _owner_of_limits(tx: Tx[Store], caller: Caller, params: Params, element: Any) -> str | None:
    return concerns(tx, caller, element["subject"])


LISTED = {
    "DescribeInstances": Listed(("instances",), _owner_in_row),
    "DescribeLimits": Listed(("limits",), _owner_of_limits),
    "DescribeLogStates": Listed(("logs",), _owner_of_log),
    "DescribeUsage": Listed(("owners",), _owner_in_row),
    "GetHistory": Listed(("tasks",), _owner_in_row),
    "GetStatus": Listed(("instances", "running", "paused", "waiting", "idle"), _owner_in_row),
    "ListRuns": Listed(("running", "waiting"), _owner_in_row),
    "ListTaskNames": Listed(("names",), _owner_of_name),
}
