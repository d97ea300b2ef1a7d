"""What becomes of runs and tasks: late, doubled and reordered words, and containers that matter or do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from corral.decide.lifecycle import ESSENTIAL_EXITED, Progress, advance, observe
from corral.model.run import Observed, RunState
from corral.model.task import MOVES, Ask, Run, Task, TaskState

NOW_S = 100.0
STARTED = Observed("r", pid=7, started_at_s=10.0)
ENDED = Observed("r", pid=7, started_at_s=10.0, stopped_at_s=20.0, exit_code=3)
FAILED = Observed("r", stopped_at_s=20.0, reason="no such program")
QUEUED = Observed("r")


def run(name: str = "r", state: str = "PENDING", *, essential: bool = True, code: int | None = 0, reason: str | None = None) -> Run:
    """A run as the rows have it; `FAILED` stands for one that ended without having started."""
    if state == "FAILED":
        return Run(name, "t", name, 0, essential, 0, RunState.STOPPED, stopped_at_s=20.0, reason=reason)
    found = Run(name, "t", name, 0, essential, 0, RunState(state))
    if state != "PENDING":
        found = replace(found, pid=7, started_at_s=10.0)
    if state == "STOPPED":
        found = replace(found, stopped_at_s=20.0, exit_code=code, reason=reason)
    return found


def follow(before: Task) -> Progress:
    """What the task becomes by the runs that it has."""
    return advance(before, before.runs, NOW_S)


def task(*runs: Run, state: TaskState = TaskState.PENDING, desired: TaskState = TaskState.RUNNING) -> Task:
    return Task("t", "us-east-1", "default", "arn", "hosts", state, desired, Ask(), 1.0, host_id="h", runs=runs)


@pytest.mark.parametrize(
    ("words", "state", "exit_code", "reason"),
    [
        ([QUEUED], "PENDING", None, None),
        ([STARTED], "RUNNING", None, None),
        ([STARTED, STARTED], "RUNNING", None, None),
        ([STARTED, QUEUED], "RUNNING", None, None),  # a late word changes nothing
        ([STARTED, ENDED], "STOPPED", 3, None),
        ([ENDED], "STOPPED", 3, None),  # the word that it had started was lost
        ([ENDED, STARTED], "STOPPED", 3, None),
        ([ENDED, ENDED], "STOPPED", 3, None),
        ([ENDED, FAILED], "STOPPED", 3, None),  # the first end stays
        ([FAILED], "STOPPED", None, "no such program"),
        ([FAILED, STARTED], "STOPPED", None, "no such program"),
    ],
)
def test_observe(words: list[Observed], state: str, exit_code: int | None, reason: str | None) -> None:
    found = run()
    for word in words:
        found = observe(found, word)
    assert (found.state, found.exit_code, found.reason) == (state, exit_code, reason)


def test_a_word_that_says_nothing_new_gives_the_same_object() -> None:
    """The core compares by identity: nothing is written, and nobody woken."""
    assert observe(running := observe(run(), STARTED), STARTED) is running
    assert observe(ended := observe(running, ENDED), ENDED) is ended


def test_a_run_lost_on_its_host_keeps_when_it_started() -> None:
    lost = observe(observe(run(), STARTED), Observed("r", stopped_at_s=30.0, reason="lost"))
    assert (lost.started_at_s, lost.pid, lost.stopped_at_s) == (10.0, 7, 30.0)


@pytest.mark.parametrize(
    ("runs", "state", "desired", "stop", "code"),
    [
        ([run("a"), run("b")], "PENDING", "RUNNING", [], None),
        ([run("a", "RUNNING"), run("b")], "PENDING", "RUNNING", [], None),  # running once all have started
        ([run("a", "RUNNING"), run("b", "RUNNING")], "RUNNING", "RUNNING", [], None),
        ([run("a", "RUNNING"), run("b", "STOPPED", essential=False)], "RUNNING", "RUNNING", [], None),
        ([run("a"), run("b", "STOPPED", essential=False)], "PENDING", "RUNNING", [], None),
        ([run("a", "STOPPED"), run("b", "RUNNING")], "RUNNING", "STOPPED", ["b"], "EssentialContainerExited"),
        ([run("a", "STOPPED"), run("b", "RUNNING", essential=False)], "RUNNING", "STOPPED", ["b"], "EssentialContainerExited"),
        ([run("a", "STOPPED"), run("b")], "PENDING", "STOPPED", ["b"], "EssentialContainerExited"),
        ([run("a", "STOPPED"), run("b", "STOPPED")], "STOPPED", "STOPPED", [], "EssentialContainerExited"),
        ([run("a", "FAILED", reason="why"), run("b", "RUNNING")], "PENDING", "STOPPED", ["b"], "TaskFailedToStart"),
        ([run("a", "FAILED", reason="why")], "STOPPED", "STOPPED", [], "TaskFailedToStart"),
        ([run("a", "STOPPED", code=None, reason="lost")], "STOPPED", "STOPPED", [], "TerminationNotice"),
        ([run("a", "RUNNING"), run("b", "FAILED", essential=False)], "PENDING", "RUNNING", [], None),
    ],
)
def test_advance(runs: list[Run], state: str, desired: str, stop: list[str], code: str | None) -> None:
    progress = follow(task(*runs))
    after = progress.task
    assert (after.state, after.desired, list(progress.stop), after.stop_code) == (state, desired, stop, code)
    assert (after.stopped_at_s is not None) == (after.state is TaskState.STOPPED)


@pytest.mark.parametrize(
    ("ended", "reason"),
    [
        (run("a", "STOPPED"), ESSENTIAL_EXITED),
        (run("a", "FAILED", reason="no such program"), "no such program"),
        (run("a", "FAILED"), "the container did not start"),
        (run("a", "STOPPED", code=None, reason="the host was restarted"), "the host was restarted"),
        (run("a", "STOPPED", code=None), "the container was lost"),
    ],
)
def test_the_reason_is_for_a_person(ended: Run, reason: str) -> None:
    assert follow(task(ended)).task.stopped_reason == reason


def test_the_first_reason_to_stop_stays() -> None:
    stopping = replace(task(run("a", "STOPPED"), desired=TaskState.STOPPED), stop_code="UserInitiated", stopped_reason="enough")
    after = follow(stopping).task
    assert (after.state, after.stop_code, after.stopped_reason) == (TaskState.STOPPED, "UserInitiated", "enough")


def test_a_stopping_task_asks_until_every_run_has_ended() -> None:
    stopping = task(run("a", "RUNNING"), run("b"), run("c", "STOPPED"), state=TaskState.RUNNING, desired=TaskState.STOPPED)
    assert follow(stopping).stop == ("a", "b")


@pytest.mark.parametrize("state", [TaskState.PROVISIONING, TaskState.STOPPED])
def test_what_is_not_placed_or_is_over_stays_as_it_is(state: TaskState) -> None:
    still = task(run("a", "STOPPED"), state=state)
    assert follow(still).task is still


def test_words_in_any_order_end_alike_and_only_along_the_table() -> None:
    """Four words on two containers, each order: the same end, and never a move that the table does not have."""
    words = [
        Observed("a", 1, 10.0),
        Observed("b", 2, 11.0),
        Observed("a", 1, 10.0, 20.0, 0),
        Observed("b", 2, 11.0, 21.0, 143),
    ]
    ends = set()
    for order in permutations(words):
        now = task(run("a"), run("b", essential=False))
        for word in order:
            runs = tuple(observe(each, word) if each.id == word.run_id else each for each in now.runs)
            after = advance(now, runs, NOW_S).task
            assert after.state is now.state or after.state in MOVES[now.state]
            now = after
        ends.add((now.state, now.desired, now.stop_code, tuple((each.id, each.exit_code) for each in now.runs)))
    assert ends == {(TaskState.STOPPED, TaskState.STOPPED, "EssentialContainerExited", (("a", 0), ("b", 143)))}
