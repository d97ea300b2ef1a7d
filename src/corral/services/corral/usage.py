"""DescribeUsage: the GPU-hours of each owner, in total and by day, and how much of them the GPUs did nothing."""

from __future__ import annotations

from datetime import date
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.shares import decay_of, use_at
from corral.fleet.limits import limits_of, members_of, weight_of
from corral.services.corral.errors import InvalidRequestException
from corral.store import Store
from corral.store.owner_use import HOUR_S, USE_KEPT_S, HourUse

DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0
EPOCH = date(1970, 1, 1).toordinal()
OFFSET_MAX_S = 18 * 3600
STEP_EVERY = 50  # owners


def describe_usage(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe what owners have used. `permissions.py` leaves out the owners that the caller may not see."""
    offset_s = params.get("utcOffset", 0)
    if abs(offset_s) > OFFSET_MAX_S:
        raise InvalidRequestException(f"utcOffset {offset_s} is not valid: pass at most {OFFSET_MAX_S} seconds.")
    since_s = max(_since_s(tx, params), tx.now_s - USE_KEPT_S)
    found: dict[str, list[HourUse]] = {}
    for at, owner in enumerate(tx.store.owner_uses.owners()):
        if at % STEP_EVERY == 0:
            tx.step()
        hours = _hours(tx, owner, since_s)
        if hours:
            found[owner] = hours
    total_s = sum(each.gpu_s for hours in found.values() for each in hours)
    wanted = params.get("owner")
    counted: dict[str, float] = {}
    rows = []
    for at, (owner, hours) in enumerate(found.items()):
        if at % STEP_EVERY == 0:
            tx.step()
        if wanted is None or owner == wanted:
            rows.append(_row(tx, owner, hours, total_s, offset_s) | {"limits": _limits(tx, owner, counted)})
    rows.sort(key=lambda row: (-row["gpuHours"], row["owner"]))
    return {"fromS": since_s, "toS": tx.now_s, "owners": rows}


def _since_s(tx: Tx[Store], params: dict[str, Any]) -> float:
    if "since" in params:
        return tx.steps.steady_s(float(params["since"]))
    return float(tx.now_s - params.get("last", WEEK_S))


def _hours(tx: Tx[Store], owner: str, since_s: float) -> list[HourUse]:
    """Return the hours of an owner, with the idle seconds that are not written yet. The first hour counts in proportion."""
    unsaved = tx.store.idle_holders.unsaved(owner)
    found = []
    for each in tx.store.owner_uses.hours(owner, since_s, tx.now_s):
        part = min(1.0, each.hour + 1 - since_s / HOUR_S)
        idle_s = min(each.gpu_s, each.idle_gpu_s + unsaved.get(each.hour, 0.0))
        found.append(HourUse(each.hour, each.gpu_s * part, idle_s * part))
    return [each for each in found if each.gpu_s]


def _row(tx: Tx[Store], owner: str, hours: list[HourUse], total_s: float, offset_s: int) -> dict[str, Any]:
    days: dict[int, list[float]] = {}
    for each in hours:
        day = int((tx.steps.wall_s(each.hour * HOUR_S) + offset_s) // DAY_S)
        sums = days.setdefault(day, [0.0, 0.0])
        sums[0] += each.gpu_s
        sums[1] += each.idle_gpu_s
    uses = tx.store.owner_uses
    gpu_s = sum(each.gpu_s for each in hours)
    return {
        "owner": owner,
        "gpuHours": gpu_s / HOUR_S,
        "idleGpuHours": sum(each.idle_gpu_s for each in hours) / HOUR_S,
        "share": gpu_s / total_s,
        "gpus": uses.held(owner),
        "decayedGpuHours": use_at(uses.use(owner), tx.now_s, decay_of(tx.settings.half_life_s)).used / HOUR_S,
        "weight": weight_of(tx, owner),
        "days": [
            {"date": date.fromordinal(EPOCH + day).isoformat(), "gpuHours": sums[0] / HOUR_S, "idleGpuHours": sums[1] / HOUR_S}
            for day, sums in sorted(days.items())
        ],
    }


def _limits(tx: Tx[Store], owner: str, counted: dict[str, float]) -> list[dict[str, Any]]:
    """Return the limits of GPU-hours that hold for an owner, and what counts for them now.

    `counted` keeps what counts for a subject, because a group may have many members.
    """
    found = []
    for each in limits_of(tx, owner):
        most, subject = each.limits.gpu_hours_per_week, each.subject
        if most is not None:
            if subject not in counted:
                counted[subject] = tx.store.owner_uses.gpu_s(members_of(tx, subject), tx.now_s - WEEK_S, tx.now_s) / HOUR_S
            found.append({"subject": subject, "gpuHoursPerWeek": most, "usedGpuHours": counted[subject]})
    return found
