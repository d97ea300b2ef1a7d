"""Decides which instances of an Auto Scaling group an instance refresh replaces next, and how much of the refresh is done.

Capacity is counted in units: one unit for each instance or, in a weighted group, as many units as the weight of the instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct

from corral.decide.scaling.group_capacity import COUNTED
from corral.model.group import GroupMember, InstanceRefresh, LifecycleState

PENDING, IN_PROGRESS, BAKING, CANCELLING = "Pending", "InProgress", "Baking", "Cancelling"
SUCCESSFUL, FAILED, CANCELLED = "Successful", "Failed", "Cancelled"
ROLLING_BACK, ROLLED_BACK = "RollbackInProgress", "RollbackSuccessful"
ACTIVE = frozenset({PENDING, IN_PROGRESS, BAKING, CANCELLING, ROLLING_BACK})
MIN_HEALTHY_PERCENTAGE, MAX_HEALTHY_PERCENTAGE = 90, 100
CHECKPOINT_DELAY_S = 3600.0
BLOCKED_MAX_S = 3600.0  # how long a refresh waits if only protected and standby instances are left, as on AWS


class RefreshStep(Struct, frozen=True):
    refresh: InstanceRefresh  # the refresh with its new progress, to be stored
    replace: frozenset[str] = frozenset()  # instances to terminate now
    surge: int = 0  # extra units that the group may have during the refresh
    again_s: float | None = None


def step_refresh(
    refresh: InstanceRefresh, desired: int, members: Sequence[GroupMember], now_s: float, warmup_s: float
) -> RefreshStep:
    wishes = refresh.preferences
    present = {member.instance_id: member for member in members if member.state in COUNTED or _in_standby(member)}
    remaining = [present[each] for each in refresh.remaining if each in present]
    ignored = [member for member in remaining if _blocking(member, wishes) == "Ignore"]
    remaining = [member for member in remaining if member not in ignored]
    total = refresh.total - len(ignored)
    held = [member for member in remaining if _blocking(member, wishes) == "Wait"]
    ready, cold_until_s = _ready_units(members, refresh.remaining, now_s, warmup_s)
    heaviest = max((member.weight for member in present.values()), default=1)
    updated = max(0, total - len(remaining) - ceil(max(0, desired - ready) / heaviest))
    now = refresh.but(total=total, remaining=tuple(member.instance_id for member in remaining), status=_started(refresh.status))
    limit = wishes.get("CheckpointPercentages") or [100]
    percentage = 100 * updated // total if total else 100
    if percentage >= limit[-1] and (not remaining or limit[-1] < 100):
        return _finish(now, now_s)
    while now.checkpoints_passed < len(limit) - 1 and percentage >= limit[now.checkpoints_passed]:
        delay_s = wishes.get("CheckpointDelay", CHECKPOINT_DELAY_S)
        now = now.but(checkpoints_passed=now.checkpoints_passed + 1, resumes_at_s=now_s + delay_s)
    if now.resumes_at_s is not None and now_s < now.resumes_at_s:
        return RefreshStep(now.but(reason=f"Waiting after the checkpoint at {percentage}%."), again_s=now.resumes_at_s)
    now = now.but(resumes_at_s=None, reason="")
    free = [member for member in remaining if member not in held]
    if held and not free:
        return _blocked(now, held, now_s)
    now = now.but(blocked_since_s=None)
    # No more instances are replaced than the next checkpoint needs.
    quota = ceil(total * limit[now.checkpoints_passed] / 100) - (total - len(remaining))
    surge = _surge(wishes, desired, min(len(free), quota))
    spare = ready - ceil(desired * wishes.get("MinHealthyPercentage", MIN_HEALTHY_PERCENTAGE) / 100)
    idle = ready >= sum(member.weight for member in present.values() if not _in_standby(member)) >= desired
    chosen: list[str] = []
    for member in sorted(free, key=lambda each: (each.created_at_s, each.instance_id)):
        serves = member.state is LifecycleState.IN_SERVICE and not member.unhealthy
        first_alone = not chosen and idle and not surge  # if no instance can be spared, replace one
        if len(chosen) < quota and (not serves or member.weight <= spare or first_alone):
            chosen.append(member.instance_id)
            spare -= member.weight if serves else 0
    return RefreshStep(now, frozenset(chosen), surge, cold_until_s)


def percentage_complete(refresh: InstanceRefresh) -> int:
    """Return the percentage that DescribeInstanceRefreshes shows."""
    if refresh.status in (SUCCESSFUL, BAKING) or not refresh.total:
        return 100
    return 100 * (refresh.total - len(refresh.remaining)) // refresh.total


def _started(status: str) -> str:
    return IN_PROGRESS if status == PENDING else status


def _in_standby(member: GroupMember) -> bool:
    return member.state is LifecycleState.STANDBY


def _blocking(member: GroupMember, wishes: dict[str, str]) -> str:
    """Return `Wait` or `Ignore` if the preferences keep a protected or standby instance, and an empty string otherwise."""
    wish = ""
    if _in_standby(member):
        wish = wishes.get("StandbyInstances", "Wait")
    elif member.protected:
        wish = wishes.get("ScaleInProtectedInstances", "Wait")
    return wish if wish in ("Wait", "Ignore") else ""


def _ready_units(members: Sequence[GroupMember], old: Sequence[str], now_s: float, warmup_s: float) -> tuple[int, float | None]:
    """Return the units in service, and the time when the warm-up of the next instance ends.

    New instances count only after their warm-up. Instances that are to be replaced always count.
    """
    outdated, units, warm_at = frozenset(old), 0, list[float]()
    for member in members:
        if member.state is not LifecycleState.IN_SERVICE or member.unhealthy:
            continue
        at_s = (member.in_service_at_s or 0.0) + warmup_s
        if member.instance_id in outdated or at_s <= now_s:
            units += member.weight
        else:
            warm_at.append(at_s)
    return units, min(warm_at, default=None)


def _surge(wishes: dict[str, int], desired: int, replaceable: int) -> int:
    above = wishes.get("MaxHealthyPercentage", MAX_HEALTHY_PERCENTAGE) - 100
    return min(max(1, desired * above // 100), max(0, replaceable)) if above > 0 else 0


def _blocked(now: InstanceRefresh, held: Sequence[GroupMember], now_s: float) -> RefreshStep:
    since_s = now.blocked_since_s if now.blocked_since_s is not None else now_s
    if now_s >= since_s + BLOCKED_MAX_S:
        reason = (
            f"For an hour, the only instances left to replace were in standby or protected from scale-in ({len(held)}): return "
            "them to service, remove the protection, or set the preferences StandbyInstances and ScaleInProtectedInstances."
        )
        return RefreshStep(now.but(status=FAILED, reason=reason, ended_at_s=now_s))
    reason = f"Waiting: the only instances left to replace are in standby or protected from scale-in ({len(held)})."
    return RefreshStep(now.but(blocked_since_s=since_s, reason=reason), again_s=since_s + BLOCKED_MAX_S)


def _finish(now: InstanceRefresh, now_s: float) -> RefreshStep:
    bake_s = now.preferences.get("BakeTime", 0)
    if now.status == IN_PROGRESS and bake_s:
        ends_s = now_s + bake_s
        return RefreshStep(now.but(status=BAKING, resumes_at_s=ends_s, reason="Waiting for the bake time."), again_s=ends_s)
    if now.status == BAKING and now.resumes_at_s is not None and now_s < now.resumes_at_s:
        return RefreshStep(now, again_s=now.resumes_at_s)
    status = ROLLED_BACK if now.status == ROLLING_BACK else SUCCESSFUL
    return RefreshStep(now.but(status=status, ended_at_s=now_s, resumes_at_s=None, reason="", remaining=()))
