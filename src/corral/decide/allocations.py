"""What to do about the allocations of a lender, from what Corral wants and what the lender has.

The lender is asked again and again, and nothing is remembered of earlier questions. So a lost answer, a restart of Corral or of the
lender, and a request that arrives twice do no harm: the label of an allocation says to which instance it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from corral.model.allocation import Allocation, AllocationState, Found, Phase

GONE = "the lender does not know it any more"


class AllocationReport(Struct, frozen=True):
    """What has changed about an allocation."""

    instance_id: str
    handle: str
    phase: Phase
    reason: str
    ends_at_s: float | None = None


class Plan(Struct, frozen=True):
    launch: tuple[Allocation, ...]  # to request from the lender
    terminate: tuple[str, ...]  # handles
    reports: tuple[AllocationReport, ...]


def plan(label_prefix: str, wanted: Iterable[Allocation], found: Iterable[Found]) -> Plan:
    """Compare the allocations that Corral has with those that the lender has.

    `found` must be complete: an allocation with a handle that is not among them is at its end. The lender has forgotten only
    allocations whose processes are gone.
    """
    by_label: dict[str, list[Found]] = {}
    for each in found:
        if each.label.startswith(label_prefix):
            by_label.setdefault(each.label.removeprefix(label_prefix), []).append(each)
    launch, reports = list[Allocation](), list[AllocationReport]()
    terminate = list[str]()
    for allocation in wanted:
        of_it = by_label.pop(allocation.instance_id, [])
        mine = _mine(allocation, of_it)
        terminate += [other.handle for other in of_it if other is not mine and other.phase is not Phase.ENDED]
        if mine is not None:
            if mine.phase is not Phase.ENDED and allocation.state is AllocationState.ENDING:
                terminate.append(mine.handle)
            if _differs(allocation, mine):
                reports.append(AllocationReport(allocation.instance_id, mine.handle, mine.phase, mine.reason, mine.ends_at_s))
        elif allocation.handle:
            reports.append(AllocationReport(allocation.instance_id, allocation.handle, Phase.ENDED, GONE))
        elif allocation.state is AllocationState.ENDING:
            reports.append(AllocationReport(allocation.instance_id, "", Phase.ENDED, "it was not requested"))
        else:
            launch.append(allocation)
    terminate += [each.handle for others in by_label.values() for each in others if each.phase is not Phase.ENDED]
    return Plan(tuple(launch), tuple(terminate), tuple(reports))


def _mine(allocation: Allocation, found: list[Found]) -> Found | None:
    """Return which of the allocations with the label of an instance is the right one.

    If the answer to a request was lost, Corral does not know the handle. The newest one has the token that is stored last. One
    that has ended was the attempt of an earlier request.
    """
    if allocation.handle:
        return next((each for each in found if each.handle == allocation.handle), None)
    alive = [each for each in found if each.phase is not Phase.ENDED]
    return max(alive, key=lambda each: (len(each.handle), each.handle), default=None)


def _differs(allocation: Allocation, found: Found) -> bool:
    known = {AllocationState.WAITING: Phase.WAITING, AllocationState.RUNNING: Phase.RUNNING}.get(allocation.state)
    return (
        found.phase is Phase.ENDED
        or found.ends_at_s is not None
        or allocation.handle != found.handle
        or (allocation.state is not AllocationState.ENDING and (known is not found.phase or allocation.reason != found.reason))
    )
