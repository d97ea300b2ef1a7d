"""What Corral does about the allocations of a lender: a table of cases, and a lender that loses answers, kills and forgets."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.decide.allocations import EPILOG_S, LenderMemory, Plan, plan
from corral.model.allocation import Allocation, AllocationState, Found, Phase

FORGOTTEN = "the lender slurm does not know the allocation 1 any more"
PREFIX = "corral-x-"
WANTED, WAITING, RUNNING, ENDING = AllocationState


def wants(state: AllocationState = WANTED, handle: str = "", reason: str = "") -> Allocation:
    return Allocation("i", "slurm", state=state, handle=handle, reason=reason)


def has(handle: str, phase: Phase, label: str = "corral-x-i", reason: str = "") -> Found:
    return Found(label, handle, phase, reason)


def words(planned: Plan) -> list[str]:
    """The plan as words, such as `launch i`, `terminate 7`, `i is running`."""
    launches = [f"launch {each.instance_id}" for each in planned.launch]
    ends = [f"terminate {handle}" for handle in planned.terminate]
    return launches + ends + [f"{each.instance_id} {each.handle} {each.phase.value}".strip() for each in planned.reports]


@pytest.mark.parametrize(
    "wanted, found, expected",
    [
        ([wants()], [], ["launch i"]),
        ([wants()], [has("1", Phase.WAITING)], ["i 1 waiting"]),  # the answer to the request was lost
        ([wants()], [has("1", Phase.ENDED)], ["launch i"]),  # of an earlier request
        ([wants()], [has("9", Phase.WAITING), has("10", Phase.RUNNING)], ["terminate 9", "i 10 running"]),  # requested twice
        ([wants(WAITING, "1")], [has("1", Phase.WAITING)], []),
        ([wants(WAITING, "1")], [has("1", Phase.WAITING, reason="Resources")], ["i 1 waiting"]),
        ([wants(WAITING, "1")], [has("1", Phase.WAITING), has("2", Phase.RUNNING)], ["terminate 2"]),
        ([wants(RUNNING, "1")], [has("1", Phase.ENDED)], ["i 1 ended"]),
        ([wants(RUNNING, "1")], [has("1", Phase.BROKEN)], ["i 1 broken"]),
        ([wants(ENDING, "1")], [has("1", Phase.BROKEN)], ["terminate 1", "i 1 broken"]),
        ([wants()], [has("1", Phase.BROKEN)], ["launch i", "terminate 1"]),  # of an earlier request
        ([], [has("1", Phase.BROKEN)], ["terminate 1"]),
        (
            [wants(RUNNING, "1")],
            [has("1", Phase.UNKNOWN, reason="the node has failed")],
            ["i 1 unknown"],
        ),  # its machine is out of sight: no proof
        ([wants(RUNNING, "1")], [], ["i 1 ended"]),
        ([wants(RUNNING, "1")], [has("1", Phase.BROKEN)], ["i 1 broken"]),
        ([wants(ENDING, "1")], [has("1", Phase.BROKEN)], ["terminate 1", "i 1 broken"]),
        ([wants()], [has("1", Phase.BROKEN)], ["launch i", "terminate 1"]),  # its pilot has not joined
        ([], [has("1", Phase.BROKEN)], ["terminate 1"]),
        ([wants(RUNNING, "1")], [has("1", Phase.OVER)], ["i 1 over"]),
        ([wants(ENDING, "1")], [has("1", Phase.OVER)], ["i 1 over"]),  # there is nothing to terminate
        ([wants(ENDING, "1")], [has("1", Phase.ENDING)], []),
        ([wants(ENDING, "1")], [has("1", Phase.UNKNOWN, reason="the node has failed")], ["terminate 1", "i 1 unknown"]),
        ([wants(ENDING, "1")], [has("1", Phase.RUNNING)], ["terminate 1"]),
        ([wants(ENDING, "1")], [has("1", Phase.ENDED)], ["i 1 ended"]),
        ([wants(ENDING)], [], ["i  ended"]),
        ([wants(ENDING)], [has("1", Phase.RUNNING)], ["terminate 1", "i 1 running"]),
        ([], [has("1", Phase.RUNNING), has("2", Phase.ENDED), has("3", Phase.OVER)], ["terminate 1"]),  # no row remembers it
        ([], [has("1", Phase.RUNNING, "corral-y-i"), has("2", Phase.RUNNING, "train")], []),  # of others
    ],
)
def test_a_plan(wanted: list[Allocation], found: list[Found], expected: list[str]) -> None:
    assert words(plan(PREFIX, wanted, found)) == expected


def test_what_the_lender_has_forgotten_has_ended() -> None:
    [report] = plan(PREFIX, [wants(RUNNING, "1")], []).reports
    assert report.reason == FORGOTTEN


def test_a_missing_allocation_counts_as_alive_until_its_lender_proves_the_end() -> None:
    """Its epilog may run, and its machine may be out of sight. Another job that has got its id is not it."""
    memory, wanted = LenderMemory(PREFIX), [wants(RUNNING, "1")]
    assert memory.missing_too_long(wanted, [has("1", Phase.RUNNING, "corral-x-other")], 100.0) == []
    [counted] = memory.still_counted(wanted, [], {})
    assert (counted.handle, counted.phase) == ("1", Phase.UNKNOWN)
    assert memory.missing_too_long(wanted, [], 100.0 + EPILOG_S) == wanted
    assert memory.still_counted(wanted, [], {"i": Phase.UNKNOWN}) == [counted]  # its node has not come back
    [over] = memory.still_counted(wanted, [], {"i": Phase.OVER})  # the lender has ended it, and that proves nothing
    assert (over.handle, over.phase, over.reason) == ("1", Phase.OVER, FORGOTTEN)
    assert memory.still_counted(wanted, [], {"i": Phase.ENDED}) == []
    assert memory.missing_too_long(wanted, [has("1", Phase.RUNNING)], 200.0) == []  # the lender knows it again
    assert memory.still_counted(wanted, [has("1", Phase.RUNNING)], {}) == []


def test_a_failed_request_is_repeated_later_and_later() -> None:
    memory, now_s, pauses = LenderMemory(PREFIX), 0.0, list[float]()
    for _ in range(9):
        memory.repeat_later(["i"], now_s)
        pauses.append(next(pause for pause in range(1, 400) if memory.may_launch("i", now_s + pause)))
        now_s += pauses[-1]
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    memory.missing_too_long([], [], now_s)
    assert memory.may_launch("i", now_s)


class FaultyLender:
    """A lender that starts, ends and forgets allocations as it likes."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.jobs: dict[str, Found] = {}
        self._last = 0

    def launch(self, label: str) -> str:
        self._last += 1
        self.jobs[str(self._last)] = Found(label, str(self._last), Phase.WAITING)
        return str(self._last)

    def pass_time(self, faults: bool) -> None:
        for handle, job in list(self.jobs.items()):
            if job.phase is Phase.WAITING and self._rng.random() < 0.5:
                self.jobs[handle] = replace(job, phase=Phase.RUNNING)
            elif job.phase is Phase.ENDED and self._rng.random() < 0.3:
                del self.jobs[handle]
            elif faults and job.phase is Phase.RUNNING and self._rng.random() < 0.1:
                self.jobs[handle] = replace(job, phase=Phase.ENDED)

    def terminate(self, handle: str) -> None:
        self.jobs[handle] = replace(self.jobs[handle], phase=Phase.ENDED)

    def alive(self) -> list[str]:
        return sorted(job.label.removeprefix(PREFIX) for job in self.jobs.values() if job.phase is not Phase.ENDED)


@given(st.integers(0, 10**9))
def test_every_allocation_is_used_or_given_back(seed: int) -> None:
    """Answers are lost, and instances are no longer needed, at any time. In the end each instance has one allocation."""
    rng = Random(seed)
    lender, rows = FaultyLender(rng), dict[str, Allocation]()
    for step in range(60):
        faults = step < 30
        if faults and rng.random() < 0.4:
            rows[f"i{step}"] = Allocation(f"i{step}", "slurm")
        if faults and rows and rng.random() < 0.3:
            name = rng.choice(sorted(rows))
            rows[name] = replace(rows[name], state=ENDING)
        planned = plan(PREFIX, list(rows.values()), list(lender.jobs.values()))
        for report in planned.reports:
            row = rows[report.instance_id]
            if report.phase is Phase.ENDED:
                del rows[report.instance_id]
            else:
                state = row.state if row.state is ENDING else RUNNING if report.phase is Phase.RUNNING else WAITING
                rows[report.instance_id] = replace(row, handle=report.handle, state=state)
        for handle in planned.terminate:
            if not faults or rng.random() < 0.7:  # the request may be lost
                lender.terminate(handle)
        for allocation in planned.launch:
            handle = lender.launch(PREFIX + allocation.instance_id)
            if not faults or rng.random() < 0.6:  # the answer may be lost
                rows[allocation.instance_id] = replace(allocation, handle=handle, state=WAITING)
        lender.pass_time(faults)
    assert lender.alive() == sorted(rows)
    assert all(row.state is RUNNING for row in rows.values())


def test_the_digest_of_a_secret_of_a_pilot_is_reported_until_its_host_has_joined() -> None:
    said = replace(has("1", Phase.RUNNING), digest="d")
    [report] = plan(PREFIX, [wants(RUNNING, "1")], [said]).reports
    assert report.digest == "d"
    assert plan(PREFIX, [replace(wants(RUNNING, "1"), digest="d")], [said]).reports == ()
    assert plan(PREFIX, [replace(wants(RUNNING, "1"), digest="e", host_id="h")], [said]).reports == ()
