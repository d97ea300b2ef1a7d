"""SetLimits and DescribeLimits. `fleet/limits.py` decides which limits hold for an owner."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.limits import groups_of
from corral.fleet.shares import limits_changed
from corral.model.limits import EVERYONE, GROUP, NO_LIMITS, SUBJECTS, Limits
from corral.model.principal import ROOT, USER
from corral.services.corral.errors import GroupNotFoundException, InvalidRequestException, UserNotFoundException
from corral.store import Store

# The name of each limit in the API
NAMES = {
    "gpus": "gpus",
    "waitingGpus": "waiting_gpus",
    "gpuHoursPerWeek": "gpu_hours_per_week",
    "longestS": "longest_s",
    "memoryMiB": "memory_mib",
    "priority": "priority",
    "storedBytes": "stored_bytes",
    "requestsPerSecond": "requests_per_second",
    "weight": "weight",
}


def set_limits(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Set and remove limits of a subject. Those that the request does not name stay."""
    subject = params["subject"]
    _check_subject(tx, subject)
    values = {NAMES[name]: value for name, value in params.get("limits", {}).items()}
    unknown = [name for name in params.get("remove", ()) if name not in NAMES]
    if unknown:
        raise InvalidRequestException(f"{unknown[0][:100]} is not a limit: use {', '.join(NAMES)}.")
    removed = dict.fromkeys([NAMES[name] for name in params.get("remove", ())])
    limits = replace(tx.store.limits.of.get(subject, NO_LIMITS), **{**removed, **values})
    problem = limits.problem()
    if problem is not None:
        raise InvalidRequestException(problem)
    tx.store.limits.put(subject, limits)
    limits_changed(tx)
    return {"subject": subject, "limits": _shown(limits)}


def describe_limits(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List the limits of all subjects, or those that hold for one. `permissions.py` leaves out those of others."""
    stored, subject = tx.store.limits.of.copy(), params.get("subject")
    if subject is not None:
        _check_subject(tx, subject)
        holding = [subject, *[f"{GROUP}/{name}" for name in groups_of(tx, subject)]]
        holding += [EVERYONE] if subject.startswith(f"{USER}/") else []
        stored = {each: limits for each, limits in stored.items() if each in holding}
    return {"limits": [{"subject": each, "limits": _shown(stored[each])} for each in sorted(stored, key=_order)]}


def concerns(tx: Tx[Store], caller: Caller, subject: str) -> str | None:
    """Return the owner of the limits of a subject, for policies. None: all callers may see them."""
    if subject == EVERYONE:
        return None
    kind, _, name = subject.partition("/")
    if kind == GROUP:
        return caller.owner if name in groups_of(tx, caller.owner) else ROOT
    return subject


def _check_subject(tx: Tx[Store], subject: str) -> None:
    kind, _, name = subject.partition("/")
    if subject in (EVERYONE, ROOT):
        return
    if kind not in (USER, GROUP) or not name:
        raise InvalidRequestException(f"subject {subject[:100]} is not valid: use {SUBJECTS}.")
    if tx.store.stored.text("iam", kind, "", name) is not None:
        return
    if kind == USER:
        raise UserNotFoundException(f"There is no user {name[:100]}: `corral user list` lists the users.")
    raise GroupNotFoundException(f"There is no group {name[:100]}: `corral aws iam list-groups` lists the groups.")


def _order(subject: str) -> tuple[int, str]:
    return (EVERYONE, ROOT, GROUP, USER).index(subject.partition("/")[0]), subject


def _shown(limits: Limits) -> dict[str, Any]:
    return {name: value for name, of in NAMES.items() if (value := getattr(limits, of)) is not None}
