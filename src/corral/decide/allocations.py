"""What to do about the allocations of a lender, from what Corral wants and what the lender has.

The lender is asked again and again, and nothing is remembered of earlier questions. So a lost answer, a restart of Corral or of the
lender, and a request that arrives twice do no harm: the label of an allocation says to which instance it belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from corral.model.allocation import Allocation, AllocationState, Found, Phase

EPILOG_S = 60.0  # the programs that clean up after an allocation may run for this time after the lender has forgotten it
AGAIN_MIN_S, AGAIN_MAX_S = 5.0, 300.0  # a request that has failed is repeated after this time, which doubles each time


class AllocationReport(Struct, frozen=True):
    """What has changed about an allocation."""

    instance_id: str
    handle: str
    phase: Phase
    reason: str
    ends_at_s: float | None = None
    machine: str = ""
    digest: str = ""
    ends_why: str = ""


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
        terminate += [other.handle for other in of_it if other is not mine and other.phase.needs_end]
        if mine is not None:
            if mine.phase.needs_end and allocation.state is AllocationState.ENDING:
                terminate.append(mine.handle)
            if _differs(allocation, mine):
                reports.append(_report(allocation, mine))
        elif allocation.handle:
            reports.append(AllocationReport(allocation.instance_id, allocation.handle, Phase.ENDED, _gone(allocation)))
        elif allocation.state is AllocationState.ENDING:
            reports.append(AllocationReport(allocation.instance_id, "", Phase.ENDED, "it was not requested"))
        else:
            launch.append(allocation)
    terminate += [each.handle for others in by_label.values() for each in others if each.phase.needs_end]
    return Plan(tuple(launch), tuple(terminate), tuple(reports))


def _mine(allocation: Allocation, found: list[Found]) -> Found | None:
    """Return which of the allocations with the label of an instance is the right one.

    If the answer to a request was lost, Corral does not know the handle. The newest one has the token that is stored last. One
    that has ended was the attempt of an earlier request.
    """
    if allocation.handle:
        return next((each for each in found if each.handle == allocation.handle), None)
    alive = [each for each in found if not each.phase.is_useless]
    return max(alive, key=lambda each: (len(each.handle), each.handle), default=None)


def _gone(allocation: Allocation) -> str:
    return f"the lender {allocation.lender} does not know the allocation {allocation.handle} any more"


def _report(allocation: Allocation, found: Found) -> AllocationReport:
    return AllocationReport(
        allocation.instance_id, found.handle, found.phase, found.reason, found.ends_at_s, found.machine, found.digest,
        found.ends_why,
    )  # fmt: skip


def _differs(allocation: Allocation, found: Found) -> bool:
    waits = allocation.state in (AllocationState.WANTED, AllocationState.WAITING)
    return (
        found.phase.is_useless
        or found.ends_at_s is not None
        or waits is not (found.phase is Phase.WAITING)
        or (allocation.state is AllocationState.WANTED)
        or (allocation.handle, allocation.reason) != (found.handle, found.reason)
        or (found.machine != "" and allocation.machine != found.machine)
        or (found.digest != "" and allocation.digest != found.digest and not allocation.host_id)
    )


class LenderMemory:
    """What must be remembered between two comparisons. Nothing wrong happens if a restart of Corral loses it."""

    def __init__(self, label_prefix: str) -> None:
        self._prefix = label_prefix
        self._missing: dict[str, float] = {}  # instance → since when the lender does not know its allocation
        self._again: dict[str, tuple[float, float]] = {}  # instance → when its request is repeated, and the pause before it

    def missing_too_long(self, wanted: Iterable[Allocation], found: Iterable[Found], now_s: float) -> list[Allocation]:
        """Return the allocations that the lender has not known for EPILOG_S.

        A controller of Slurm that was killed can forget a job, and give its id to another job. So the label counts, too.
        """
        wanted, known = list(wanted), {(each.label, each.handle) for each in found}
        self._again = {each.instance_id: self._again[each.instance_id] for each in wanted if each.instance_id in self._again}
        missing = [each for each in wanted if each.handle and (self._prefix + each.instance_id, each.handle) not in known]
        self._missing = {each.instance_id: self._missing.get(each.instance_id, now_s) for each in missing}
        return [each for each in missing if now_s - self._missing[each.instance_id] >= EPILOG_S]

    def still_counted(self, wanted: Iterable[Allocation], found: Sequence[Found], phases: Mapping[str, Phase]) -> list[Found]:
        """Return the missing allocations whose processes may still run. `phases` are those that have been missing too long."""
        counted = list[Found]()
        for each in wanted:
            phase = phases.get(each.instance_id, Phase.UNKNOWN)
            if each.instance_id in self._missing and phase is not Phase.ENDED:
                reason = each.reason if phase is Phase.UNKNOWN else _gone(each)
                counted.append(Found(self._prefix + each.instance_id, each.handle, phase, reason, machine=each.machine))
        return counted

    def repeat_later(self, instance_ids: Iterable[str], now_s: float) -> None:
        """Let the next request for these instances wait."""
        for instance_id in instance_ids:
            _, pause_s = self._again.get(instance_id, (0.0, AGAIN_MIN_S / 2))
            pause_s = min(2 * pause_s, AGAIN_MAX_S)
            self._again[instance_id] = (now_s + pause_s, pause_s)

    def may_launch(self, instance_id: str, now_s: float) -> bool:
        return now_s >= self._again.get(instance_id, (0.0, 0.0))[0]
