"""Pause and continue tasks, for `corral pause` and `corral resume`.

A response describes the pause as it is then: the host of the task needs some time to move the memory of its GPUs. DescribeTaskPause
waits until it has done so.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.commands import Wait
from corral.core.transactions import Tx
from corral.model.pause import Cause, Pause, PausePhase
from corral.model.placement import TASK
from corral.model.task import Task
from corral.services.corral.errors import HostNotConnectedException, InvalidRequestException, TaskNotFoundException, ecs_refusals
from corral.services.corral.signals import AGAIN_S, NOT_CONNECTED, RECONNECT_S
from corral.services.ecs.lookup import find_cluster, short
from corral.services.ecs.pauses import begin_pause, begin_return, stay_paused, why_not_pausable
from corral.services.ecs.task_description import last_status, why_claim_waits
from corral.services.ecs.task_progress import host_of
from corral.store import Store

WAIT_MAX_S = 20.0
BY_USER = "paused by {}"


def pause_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Pause a running task. A task that waits to continue stays paused."""
    task = _find(tx, params, caller)
    phase = task.pause.phase if task.pause is not None else PausePhase.RUNNING
    reason = params.get("reason") or BY_USER.format(caller.principal.name or caller.principal.kind)
    if phase is PausePhase.PAUSED:
        return _row(tx, stay_paused(tx, task, reason))
    if phase is PausePhase.PAUSING:
        return _row(tx, task)
    if phase is PausePhase.RESUMING:
        raise InvalidRequestException(f"Task {task.label} is about to continue. Pause it when it runs again.")
    if why := why_not_pausable(tx, task):
        raise InvalidRequestException(f"Task {task.label} cannot be paused: {why}.")
    _require_connection(tx, task)
    return _row(tx, begin_pause(tx, task, Cause.USER, reason))


def resume_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Let a paused task continue as soon as its GPUs are free. A task that is not paused is not changed."""
    task = _find(tx, params, caller)
    if task.pause is not None and task.pause.phase is PausePhase.PAUSING:
        raise InvalidRequestException(f"Task {task.label} is still being paused. Let it continue when it is paused.")
    if task.is_paused:
        _require_connection(tx, task)
        task = begin_return(tx, task)
    return _row(tx, task)


def describe_task_pause(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe the pause of a task. Wait up to `waitSeconds` while its memory moves, or while it waits for its GPUs."""
    task, wait_s = _find(tx, params, caller), params.get("waitSeconds", 0)
    if not 0 <= wait_s <= WAIT_MAX_S:
        raise InvalidRequestException(f"waitSeconds {wait_s} is not valid: pass 0 to {WAIT_MAX_S:.0f} seconds.")
    goes_on = task.pause is not None and (task.pause.returns or task.pause.phase in (PausePhase.PAUSING, PausePhase.RESUMING))
    if wait_s and goes_on and not tx.final:
        raise Wait([f"task:{task.id}"], tx.now_s + wait_s)
    return _row(tx, task)


def _find(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> Task:
    with ecs_refusals():
        cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    task = tx.store.tasks.get(short(params["task"]))
    if task is None or (task.region, task.cluster) != (caller.region, cluster):
        raise TaskNotFoundException(f"Task {params['task'][:300]} was not found in cluster {cluster}. `corral ps` lists the tasks.")
    return task


def _require_connection(tx: Tx[Store], task: Task) -> None:
    """If the agent of the host is not connected, wait: it may reconnect after a restart of this server."""
    host_id = host_of(tx, task)
    if not tx.settings.server.is_connected(host_id):
        if tx.final:
            raise HostNotConnectedException(NOT_CONNECTED)
        raise Wait([f"signal:{host_id}"], tx.now_s + RECONNECT_S, again_s=tx.now_s + AGAIN_S)


def _row(tx: Tx[Store], task: Task) -> dict[str, Any]:
    pause = task.pause or Pause()
    claim = tx.store.claims.get(TASK, task.id) if pause.returns else None
    return {
        "task": task.id,
        "name": task.label,
        "lastStatus": last_status(task),
        "phase": pause.phase.value,
        "cause": pause.cause.value if pause.cause is not None and pause.is_active else None,
        "reason": pause.reason if pause.is_active else "",
        "sinceS": pause.since_s if pause.is_active else None,
        "hostMemoryMiB": pause.held_mib,
        "moveOutSeconds": pause.out_s,
        "moveBackSeconds": pause.back_s,
        "pausedSeconds": pause.lost_s(tx.now_s),
        "pauses": pause.pauses,
        "returns": pause.returns,
        "waitsFor": why_claim_waits(tx, task.pool, claim) if claim is not None else "",
        "whyNot": pause.why_not,
    }
