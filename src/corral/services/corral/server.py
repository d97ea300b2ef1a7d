"""Operations on the whole server: its sessions, the token of its metrics, and the end of all tasks or of a spot instance."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.access.sessions import metrics_token
from corral.core.transactions import Tx
from corral.fleet.spot_interruptions import NOTICE_S, interrupt
from corral.services.corral.errors import AccessDeniedException, InvalidRequestException, TaskNotFoundException
from corral.services.ecs.stop_all import pause, stop_all
from corral.store import Store

PAUSE_MAX_S = 600.0
USAGE = 'Send {"all": true}, or {"task": ID} with the 32 hexadecimal digits of a running task.'


def get_metrics_token(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"token": metrics_token(tx.settings.session_key, tx.settings.sessions.of_root)}


def stop_all_tasks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Stop tasks, and start none for some seconds. `corral down --stop-tasks` repeats this until no task is left."""
    pause_s = params["pause"]
    if not 0 <= pause_s <= PAUSE_MAX_S:
        raise InvalidRequestException(f"pause {pause_s:g} is not valid: pass 0 to {PAUSE_MAX_S:.0f} seconds.")
    if not pause_s:
        pause(tx, 0.0)
        return {}
    return stop_all(tx, params.get("reason") or "all tasks were stopped", pause_s)


def revoke_sessions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Revoke sessions, first on disk, then in memory. The task of revoked sessions gets no new ones."""
    if not caller.principal.has_own_key:
        raise AccessDeniedException(
            "Sessions cannot revoke sessions: sign the request with the root key (`corral env`) or the key of a user."
        )
    valid, live = tx.settings.sessions, tx.store.tasks.live
    if params == {"all": True}:
        tx.settings.server.save_sessions({"generation": valid.generation + 1})
        valid.generation += 1
    elif params.keys() == {"task"}:
        task_id: str = params["task"]
        if task_id not in live:
            raise TaskNotFoundException(f"No task {task_id} is running. The sessions of a task end when the task stops.")
        revoked = {each for each in valid.revoked_tasks if each in live} | {task_id}
        tx.settings.server.save_sessions({"revokedTasks": sorted(revoked)})
        valid.revoked_tasks = revoked
    else:
        raise InvalidRequestException(USAGE)
    return params


def interrupt_spot_instance(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    at_s = interrupt(tx, params["instance"], params.get("notice", NOTICE_S))
    return {"instance": params["instance"], "terminatesAtS": at_s}
