"""The page `/_corral/set` for `corral set`: changes tasks that wait (`services/ecs/waiting_changes.py`).

The response has a row for each task. A task that does not wait is not changed, and its row has its state. If one change is not
valid, no task of the same command is changed. Several commands together change the tasks of a large array, so that no command keeps
the lane busy for long.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from corral import aws
from corral.access.caller import Caller
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.model.placement import TASK
from corral.model.task import Task, TaskState
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.server.pages.runs_page import needs_of
from corral.server.task_permissions import RequiredOperation
from corral.services.ecs.lookup import find_cluster, short
from corral.services.ecs.queue_reasons import why_queued
from corral.services.ecs.task_description import why_claim_waits
from corral.services.ecs.task_queue import read_options
from corral.services.ecs.waiting_changes import WaitingChange, change_waiting, is_waiting
from corral.store import Store

TASKS_MAX = 100  # tasks in one request
CHUNK = 20  # the most tasks that one command changes or describes

SetDenied = api_error("AccessDenied", 403)
InvalidSetRequest = api_error("InvalidRequest", 400)
SetTaskNotFound = api_error("TaskNotFound", 404)
SetMethodNotAllowed = api_error("MethodNotAllowed", 405)


class SetOptions(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    tasks: list[str]  # ids or ARNs
    cluster: str | None = None  # None: the cluster `default`
    priority: int | None = None
    held: bool | None = None
    time_limit_seconds: int | None = None  # 0: no time limit
    gpus: str | None = None  # a number, or ALL

    def change(self) -> WaitingChange:
        return WaitingChange(self.priority, self.held, self.time_limit_seconds, self.gpus)


class SetRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    state: Lane[Store]
    action: str = "corral:SetTasks"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return authentication.signature(self.request)

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("corral", "SetTasks", dict)

    def denied(self, message: str) -> ApiError:
        return SetDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.method != "POST":
            raise SetMethodNotAllowed(f"{self.request.method} is not served here; use POST.")
        try:
            given = msgspec.json.decode(self.request.body, type=SetOptions)
        except ValueError as error:  # also UnicodeDecodeError, which is no error of msgspec
            raise InvalidSetRequest(f'Send {{"tasks": [ID], "priority": 5, "gpus": "2"}} ({error}).') from None
        if not 1 <= len(given.tasks) <= TASKS_MAX:
            raise InvalidSetRequest(f"The request names {len(given.tasks)} tasks: name 1 to {TASKS_MAX} tasks.")
        rows: list[dict[str, Any]] = []
        places = await self.state.submit(partial(_places, task_ids=given.tasks))
        for start in range(0, len(given.tasks), CHUNK):
            part = given.tasks[start : start + CHUNK]
            changed = await self.state.submit(partial(_change, given=given, task_ids=part, caller=caller))
            # The scheduler has run since then. So this describes what has become of the tasks.
            rows += await self.state.submit(partial(_describe, changed=changed, places=places))
        return aws.Response(200, [("content-type", "application/json")], msgspec.json.encode({"tasks": rows}))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


def _places(tx: Tx[Store], task_ids: list[str]) -> dict[str, int | None]:
    """Return the places of all tasks before any of them changes, because the change of one task moves the others."""
    found = (tx.store.tasks.get(short(each)) for each in task_ids)
    return {task.id: _place(tx, task) for task in found if task is not None}


def _change(tx: Tx[Store], given: SetOptions, task_ids: list[str], caller: Caller) -> dict[str, bool]:
    """Change the tasks that wait. Return whether each task was changed."""
    cluster, _ = find_cluster(tx, caller, given.cluster)
    found: dict[str, bool] = {}
    for each in task_ids:
        task = tx.store.tasks.get(short(each))
        if task is None or (task.region, task.cluster) != (caller.region, cluster):
            raise SetTaskNotFound(f"Task {each[:300]} was not found in cluster {cluster}. `corral ps` lists the tasks.")
        found[task.id] = is_waiting(task)
        if is_waiting(task):
            change_waiting(tx, task, given.change())
    return found


def _describe(tx: Tx[Store], changed: dict[str, bool], places: dict[str, int | None]) -> list[dict[str, Any]]:
    by_id = tx.store.tasks.several(list(changed))
    return [_row(tx, by_id[task_id], was, places.get(task_id)) for task_id, was in changed.items() if task_id in by_id]


def _row(tx: Tx[Store], task: Task, changed: bool, place_before: int | None) -> dict[str, Any]:
    waits, options = is_waiting(task), read_options(task.details.get("tags", ()))
    is_stopping = task.state is not TaskState.STOPPED and task.desired is TaskState.STOPPED
    claim = tx.store.claims.get(TASK, task.id)
    reason = (why_claim_waits(tx, task.pool, claim) if claim is not None else why_queued(tx, task)) if waits else ""
    return {
        "task": task.id,
        "name": task.label,
        "changed": changed,
        "state": "STOPPING" if is_stopping else "WAITING" if waits else task.state.value,
        "place": _place(tx, task),
        "placeBefore": place_before,
        "priority": options.priority,
        "held": waits and options.held,
        "timeLimitSeconds": task.time_limit_s,
        "needs": needs_of(task.demand),
        "reason": reason,
    }


def _place(tx: Tx[Store], task: Task) -> int | None:
    """Return the place of a task in the waiting list of its pool. Return None if it has no claim."""
    claim = tx.store.claims.get(TASK, task.id)
    return tx.store.fleet.pool(task.pool).place_in_line(claim) if claim is not None else None
