"""The agent's API (`ECS_AGENT_URI`): a task protects itself, in the words of ECS's agent."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services import sessions
from corral.services.caller import Caller
from corral.services.ecs.describing import task_arn_of
from corral.services.ecs.metadata import role_name, task_inside
from corral.services.ecs.naming import InvalidParameterException
from corral.services.ecs.protection import get_task_protection, update_task_protection
from corral.store import Store

ResourceNotFoundException = api_error("ResourceNotFoundException", 404)

EXPIRES_MAX_MINUTES = 2880


def protection_inside(tx: Tx[Store], run_id: str, wanted: dict[str, Any] | None) -> dict[str, Any]:
    """How the task of a run is protected, after what it wants has been done; None: it only asks."""
    task = task_inside(tx, run_id)
    if task is None:
        raise ResourceNotFoundException("Failed to find a task for the request")
    account = tx.settings.account
    principal = sessions.role_session(account, role_name(tx, task), task.id)
    caller = Caller(account, task.region, principal, task_id=task.id, is_session=True)
    params: dict[str, Any] = {"cluster": task.cluster, "tasks": [task.id]}
    if wanted is None:
        found = get_task_protection(tx, params, caller)
    else:
        found = update_task_protection(tx, params | _checked(wanted), caller)
    if found["failures"]:
        [failure] = found["failures"]
        return {"failure": {"Arn": failure["arn"], "Reason": failure["reason"], "Detail": failure.get("detail")}}
    [protected] = found["protectedTasks"]
    until_s = protected.get("expirationDate")
    until = datetime.fromtimestamp(until_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z") if until_s else None
    return {
        "protection": {
            "ExpirationDate": until,
            "ProtectionEnabled": protected["protectionEnabled"],
            "TaskArn": task_arn_of(account, task),
        }
    }


def _checked(wanted: dict[str, Any]) -> dict[str, Any]:
    minutes, enabled = wanted.get("ExpiresInMinutes"), wanted.get("ProtectionEnabled")
    whole = minutes is None or (isinstance(minutes, int) and not isinstance(minutes, bool))
    if not whole or not isinstance(enabled, bool | None) or wanted.keys() - {"ExpiresInMinutes", "ProtectionEnabled"}:
        raise InvalidParameterException("UpdateTaskProtection: failed to decode request")
    if enabled is None:
        raise InvalidParameterException("Invalid request: does not contain 'ProtectionEnabled' field")
    if minutes is not None and not 1 <= minutes <= EXPIRES_MAX_MINUTES:  # this request is not one of ECS's own API
        raise InvalidParameterException(f"expiresInMinutes must be between 1 and {EXPIRES_MAX_MINUTES}.")
    return {"protectionEnabled": enabled, **({"expiresInMinutes": minutes} if minutes is not None else {})}
