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
from corral.store.owner_use import DAY_S, HOUR_S, USE_KEPT_S

WEEK_S = 7 * 86_400.0
EPOCH = date(1970, 1, 1).toordinal()
OFFSET_MAX_S = 18 * 3600
STEP_EVERY = 50  # owners
Days = dict[int, tuple[float, float]]  # day → GPU-seconds, and those in which the GPUs did nothing


def describe_usage(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Describe what owners have used. `permissions.py` leaves out the owners that the caller may not see."""
    offset_s = params.get("utcOffset", 0)
    if abs(offset_s) > OFFSET_MAX_S:
        raise InvalidRequestException(f"utcOffset {offset_s} is not valid: pass at most {OFFSET_MAX_S} seconds.")
    since_s = max(_since_s(tx, params), tx.now_s - USE_KEPT_S)
    ahead_s = tx.steps.ahead_s + offset_s
    found: dict[str, Days] = {}
    for at, owner in enumerate(tx.store.owner_uses.owners()):
        if at % STEP_EVERY == 0:
            tx.step()
        days = _days(tx, owner, since_s, ahead_s)
        if days:
            found[owner] = days
    total_s = sum([gpu_s for days in found.values() for gpu_s, _ in days.values()])
    wanted = params.get("owner")
    counted: dict[str, float] = {}
    rows = []
    for at, (owner, days) in enumerate(found.items()):
        if at % STEP_EVERY == 0:
            tx.step()
        if wanted is None or owner == wanted:
            rows.append(_row(tx, owner, days, total_s) | {"limits": _limits(tx, owner, counted)})
    rows.sort(key=lambda row: (-row["gpuHours"], row["owner"]))
    return {"fromS": since_s, "toS": tx.now_s, "owners": rows}


def _since_s(tx: Tx[Store], params: dict[str, Any]) -> float:
    if "since" in params:
        return tx.steps.steady_s(float(params["since"]))
    return float(tx.now_s - params.get("last", WEEK_S))


def _days(tx: Tx[Store], owner: str, since_s: float, ahead_s: float) -> Days:
    """Return the days of an owner, with the idle seconds that are not written yet."""
    days = tx.store.owner_uses.days(owner, since_s, tx.now_s, ahead_s)
    for hour, idle_s in tx.store.idle_holders.unsaved(owner).items():
        day = int((hour * HOUR_S + ahead_s) // DAY_S)
        if day in days and hour >= since_s // HOUR_S:
            days[day] = days[day][0], min(days[day][0], days[day][1] + idle_s)
    return days


def _row(tx: Tx[Store], owner: str, days: Days, total_s: float) -> dict[str, Any]:
    uses = tx.store.owner_uses
    gpu_s = sum([each for each, _ in days.values()])
    return {
        "owner": owner,
        "gpuHours": gpu_s / HOUR_S,
        "idleGpuHours": sum([each for _, each in days.values()]) / HOUR_S,
        "share": gpu_s / total_s,
        "gpus": uses.held(owner),
        "decayedGpuHours": use_at(uses.use(owner), tx.now_s, decay_of(tx.settings.half_life_s)).used / HOUR_S,
        "weight": weight_of(tx, owner),
        "days": [
            {"date": date.fromordinal(EPOCH + day).isoformat(), "gpuHours": used_s / HOUR_S, "idleGpuHours": idle_s / HOUR_S}
            for day, (used_s, idle_s) in days.items()
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
