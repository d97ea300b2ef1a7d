"""Task protection: a protected task is not chosen when its service scales in.

There are two APIs. A client calls UpdateTaskProtection of ECS. A task that protects itself calls ECS's agent (`ECS_AGENT_URI`). A
new deployment of the service does not stop a protected task either. An Auto Scaling group waits for protected tasks before it
terminates their instance (`fleet/leaving_tasks.py`). ECS protects only tasks of services, but Corral protects every task. As on
ECS, StopTask stops a protected task.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.leaving_tasks import mark_leaving
from corral.model.principal import role_session
from corral.model.task import Task, TaskState
from corral.services.ecs.errors import InvalidParameterException, TaskNotFound
from corral.services.ecs.lookup import arn, find_cluster, task_id_in
from corral.services.ecs.task_description import task_arn_of
from corral.services.ecs.task_metadata import role_name, unstopped_task
from corral.services.ecs.task_progress import mark_service
from corral.store import Store

EXPIRES_DEFAULT_MINUTES = 120
EXPIRES_MAX_MINUTES = 2880  # limit of the agent's API; the limit of ECS's API is in aws/constraints/ecs.py
NO_TASK = "Failed to find a task for the request"
NOT_DECODED = "UpdateTaskProtection: failed to decode request"

Failure = dict[str, str]


def update_task_protection(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    enabled, minutes = params["protectionEnabled"], params.get("expiresInMinutes", EXPIRES_DEFAULT_MINUTES)
    tasks, failures = _find(tx, caller, params)
    changed = []
    for task in tasks:
        if task.desired is TaskState.STOPPED:
            task_arn = task_arn_of(caller.account, task)
            failures.append({"arn": task_arn, "reason": "TASK_NOT_VALID", "detail": "The task is stopping or has stopped."})
            continue
        details = {key: value for key, value in task.details.items() if key != "protectedUntil"}
        if enabled:
            details["protectedUntil"] = tx.now_s + minutes * 60
        mark_service(tx, task)
        mark_leaving(tx, task.id)
        changed.append(_protection(caller, tx.store.tasks.set_details(task, details), tx.now_s))
    return {"protectedTasks": changed, "failures": failures}


def get_task_protection(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    tasks, failures = _find(tx, caller, params)
    return {"protectedTasks": [_protection(caller, task, tx.now_s) for task in tasks], "failures": failures}


def agent_task_protection(tx: Tx[Store], run_id: str, change: dict[str, Any] | None) -> dict[str, Any]:
    """The agent's API: return the protection of a run's task. If `change` is given, change the protection first."""
    task = unstopped_task(tx, run_id)
    if task is None:
        raise TaskNotFound(NO_TASK)
    account = tx.settings.account
    principal = role_session(account, role_name(tx, task), task.id, task.program_owner)
    caller = Caller(account, task.region, principal, task_id=task.id)
    params: dict[str, Any] = {"cluster": task.cluster, "tasks": [task.id]}
    if change is None:
        found = get_task_protection(tx, params, caller)
    else:
        found = update_task_protection(tx, params | _agent_params(change), caller)
    if found["failures"]:
        [failure] = found["failures"]
        return {"failure": {"Arn": failure["arn"], "Reason": failure["reason"], "Detail": failure.get("detail")}}
    [protected] = found["protectedTasks"]
    until_s, until = protected.get("expirationDate"), None
    if until_s:
        until = datetime.fromtimestamp(tx.steps.wall_s(until_s), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "protection": {
            "ExpirationDate": until,
            "ProtectionEnabled": protected["protectionEnabled"],
            "TaskArn": task_arn_of(account, task),
        }
    }


def _agent_params(change: dict[str, Any]) -> dict[str, Any]:
    """Convert a request to the agent's API into the parameters of UpdateTaskProtection."""
    minutes, enabled = change.get("ExpiresInMinutes"), change.get("ProtectionEnabled")
    whole = minutes is None or (isinstance(minutes, int) and not isinstance(minutes, bool))
    if not whole or not isinstance(enabled, bool | None) or change.keys() - {"ExpiresInMinutes", "ProtectionEnabled"}:
        raise InvalidParameterException(NOT_DECODED)
    if enabled is None:
        raise InvalidParameterException("Invalid request: does not contain 'ProtectionEnabled' field")
    if minutes is not None and not 1 <= minutes <= EXPIRES_MAX_MINUTES:
        raise InvalidParameterException(f"expiresInMinutes must be between 1 and {EXPIRES_MAX_MINUTES}.")
    return {"protectionEnabled": enabled, **({"expiresInMinutes": minutes} if minutes is not None else {})}


def _find(tx: Tx[Store], caller: Caller, params: dict[str, Any]) -> tuple[list[Task], list[Failure]]:
    cluster, _ = find_cluster(tx, caller, params["cluster"])
    if "tasks" not in params:
        raise InvalidParameterException("Tasks must be specified.")
    tasks: list[Task] = []
    failures: list[Failure] = []
    for name in dict.fromkeys(task_id_in(caller, cluster, each) for each in params["tasks"]):
        task = tx.store.tasks.get(name)
        if task is not None and (task.region, task.cluster) == (caller.region, cluster):
            tasks.append(task)
        else:
            failures.append({"arn": arn(caller.account, caller.region, f"task/{cluster}/{name}"), "reason": "MISSING"})
    return tasks, failures


def _protection(caller: Caller, task: Task, now_s: float) -> dict[str, Any]:
    until_s = task.details.get("protectedUntil", 0.0)
    protected = until_s > now_s
    return {
        "taskArn": task_arn_of(caller.account, task),
        "protectionEnabled": protected,
        **({"expirationDate": until_s} if protected else {}),
    }
