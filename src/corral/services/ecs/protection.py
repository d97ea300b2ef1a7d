"""Task protection: kept and shown until it expires.

ECS protects only tasks of services; here are no services yet, so every task may be protected. It keeps a task from being
chosen when a service scales in; StopTask stops a protected task, as on ECS.
"""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.task import Task, TaskState
from corral.services.caller import Caller
from corral.services.ecs.describing import task_arn_of
from corral.services.ecs.naming import InvalidParameterException, arn, find_cluster, short
from corral.store import Store

EXPIRES_DEFAULT_MINUTES = 120

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
        changed.append(_shown(caller, tx.store.tasks.set_details(task, details), tx.now_s))
    return {"protectedTasks": changed, "failures": failures}


def get_task_protection(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    tasks, failures = _find(tx, caller, params)
    return {"protectedTasks": [_shown(caller, task, tx.now_s) for task in tasks], "failures": failures}


def _find(tx: Tx[Store], caller: Caller, params: dict[str, Any]) -> tuple[list[Task], list[Failure]]:
    cluster, _ = find_cluster(tx, caller, params["cluster"])
    if "tasks" not in params:
        raise InvalidParameterException("Tasks must be specified.")
    tasks: list[Task] = []
    failures: list[Failure] = []
    for name in dict.fromkeys(short(each) for each in params["tasks"]):
        task = tx.store.tasks.get(name)
        if task is not None and (task.region, task.cluster) == (caller.region, cluster):
            tasks.append(task)
        else:
            failures.append({"arn": arn(caller.account, caller.region, f"task/{cluster}/{name}"), "reason": "MISSING"})
    return tasks, failures


def _shown(caller: Caller, task: Task, now_s: float) -> dict[str, Any]:
    until_s = task.details.get("protectedUntil", 0.0)
    protected = until_s > now_s
    return {
        "taskArn": task_arn_of(caller.account, task),
        "protectionEnabled": protected,
        **({"expirationDate": until_s} if protected else {}),
    }
