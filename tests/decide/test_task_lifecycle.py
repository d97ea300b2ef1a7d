"""The lifecycle of runs and tasks: late, duplicated and reordered reports; essential and other containers."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.decide.tasks.lifecycle import ESSENTIAL_EXITED, TaskProgress, advance, duration_text, observe, task_health
from corral.model.run import Observed, RunState
from corral.model.task import MOVES, ContainerRules, Demand, RestartPolicy, Run, Task, TaskState

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


def ids(runs: tuple[Run, ...]) -> list[str]:
    return [each.id for each in runs]


def follow(before: Task) -> TaskProgress:
    """The progress of a task from its present runs."""
    return advance(before, before.runs, NOW_S)


def task(*runs: Run, state: TaskState = TaskState.PENDING, desired: TaskState = TaskState.RUNNING) -> Task:
    return Task("t", "us-east-1", "default", "arn", "hosts", state, desired, Demand(), 1.0, instance_id="i", runs=runs)


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


def test_a_report_without_news_returns_the_same_object() -> None:
    """The core compares by identity: nothing is written, and no waiting caller wakes."""
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
        ([run("a", "RUNNING"), run("b", "FAILED", essential=False)], "RUNNING", "RUNNING", [], None),  # it is not essential
    ],
)
def test_advance(runs: list[Run], state: str, desired: str, stop: list[str], code: str | None) -> None:
    progress = follow(task(*runs))
    after = progress.task
    assert (after.state, after.desired, ids(progress.stop), after.stop_code) == (state, desired, stop, code)
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
def test_the_stopped_reason(ended: Run, reason: str) -> None:
    assert follow(task(ended)).task.stopped_reason == reason


def test_the_first_reason_to_stop_stays() -> None:
    stopping = replace(task(run("a", "STOPPED"), desired=TaskState.STOPPED), stop_code="UserInitiated", stopped_reason="enough")
    after = follow(stopping).task
    assert (after.state, after.stop_code, after.stopped_reason) == (TaskState.STOPPED, "UserInitiated", "enough")


def test_a_stopping_task_stops_its_runs_until_all_have_ended() -> None:
    stopping = task(run("a", "RUNNING"), run("b"), run("c", "STOPPED"), state=TaskState.RUNNING, desired=TaskState.STOPPED)
    assert ids(follow(stopping).stop) == ["a", "b"]


@pytest.mark.parametrize("state", [TaskState.PROVISIONING, TaskState.STOPPED])
def test_a_task_that_waits_or_has_stopped_does_not_change(state: TaskState) -> None:
    still = task(run("a", "STOPPED"), state=state)
    assert follow(still).task is still


def test_reports_in_any_order_end_alike_and_only_by_allowed_moves() -> None:
    """Four reports on two containers in each order: the same end, and only moves of the table."""
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


# Tasks of several containers


def dependent(name: str, *, essential: bool = True) -> Run:
    return run(name, essential=essential).but(waits=True)


def well(state: Run, verdict: str = "HEALTHY") -> Run:
    return state.but(health=verdict)


def rules_for(*needs: tuple[str, str, str], timeout_s: float | None = None, **restart: RestartPolicy) -> dict[str, ContainerRules]:
    """(container, needed container, condition)"""
    names = {name for container, needed, _ in needs for name in (container, needed)} | restart.keys()
    return {
        name: ContainerRules(
            tuple((needed, condition) for container, needed, condition in needs if container == name), timeout_s, restart.get(name)
        )
        for name in names
    }


GIVEN_UP = [
    ("STOPPED", 3, "SUCCESS", "as dependency did not exit successfully."),
    ("STOPPED", None, "SUCCESS", "as dependency did not exit successfully."),
    ("STOPPED", None, "COMPLETE", "as dependency did not exit."),
    ("STOPPED", 0, "HEALTHY", "as dependency exited before it was healthy."),
    ("FAILED", None, "START", "because dependency will never start"),
    ("FAILED", None, "COMPLETE", "because dependency will never start"),
    ("FAILED", None, "SUCCESS", "because dependency will never start"),
    ("FAILED", None, "HEALTHY", "because dependency will never start"),
]


@pytest.mark.parametrize(
    ("needed", "condition", "goes"),
    [
        (run("a"), "START", False),
        (run("a", "RUNNING"), "START", True),
        (run("a", "STOPPED"), "START", True),  # it did start
        (run("a", "RUNNING"), "COMPLETE", False),
        (run("a", "STOPPED", code=3), "COMPLETE", True),
        (run("a", "RUNNING"), "SUCCESS", False),
        (run("a", "STOPPED", code=0), "SUCCESS", True),
        (run("a", "RUNNING"), "HEALTHY", False),
        (well(run("a", "RUNNING"), "UNHEALTHY"), "HEALTHY", False),  # it may recover
        (well(run("a", "RUNNING")), "HEALTHY", True),
        (run("a").but(restarts=1), "START", True),  # about to start again
        (run("a").but(restarts=1), "HEALTHY", False),
    ],
)
def test_when_a_container_may_start(needed: Run, condition: str, goes: bool) -> None:
    before = task(needed.but(essential=False), dependent("b")).but(plain=False)
    progress = advance(before, before.runs, NOW_S, rules_for(("b", "a", condition)))
    assert (ids(progress.start), progress.task.runs[1].waits) == ((["b"], False) if goes else ([], True))
    again = advance(progress.task, progress.task.runs, NOW_S, rules_for(("b", "a", condition)))
    assert again.task == progress.task and again.start == ()  # what was ordered once is not decided anew


@pytest.mark.parametrize(("state", "code", "condition", "words"), GIVEN_UP)
@pytest.mark.parametrize("place", ["first of the chain", "middle of the chain"])
def test_each_failure_at_each_place_of_a_chain(state: str, code: int | None, condition: str, words: str, place: str) -> None:
    """c needs b, b needs a; only c is essential. A failure fails every dependent container, and the task says why."""
    if place == "first of the chain":
        runs = (dependent("c"), dependent("b", essential=False), run("a", state, essential=False, code=code, reason="broken"))
        rules, failed, behind = rules_for(("b", "a", condition), ("c", "b", "START")), "a", "b"
    else:
        runs = (dependent("c"), run("b", state, essential=False, code=code, reason="broken"), run("a", "STOPPED", essential=False))
        rules, failed, behind = rules_for(("b", "a", "SUCCESS"), ("c", "b", condition)), "b", "c"
    before = task(*runs).but(plain=False)
    after = advance(before, before.runs, NOW_S, rules).task
    found = {each.container: each for each in after.runs}
    assert (found[behind].state, found[behind].exit_code, found[behind].started_at_s) == (RunState.STOPPED, None, None)
    assert found[behind].reason == (
        f"CannotStartContainerError: dependency graph: failed to resolve container ordering dependency [{failed}] "
        f"for target [{behind}] {words}"
    )
    assert (after.state, after.stop_code) == (TaskState.STOPPED, "TaskFailedToStart")
    assert after.stopped_reason == found["c"].reason
    assert after.started_at_s is None


def test_the_last_of_a_chain_fails() -> None:
    rules = rules_for(("b", "a", "HEALTHY"), ("c", "b", "START"))
    runs = (well(run("a", "RUNNING", essential=False)), run("b", "RUNNING", essential=False), run("c", "FAILED", reason="broken"))
    before = task(*runs).but(plain=False)
    progress = advance(before, before.runs, NOW_S, rules)
    assert (progress.task.stop_code, progress.task.stopped_reason) == ("TaskFailedToStart", "broken")
    assert ids(progress.stop) == ["b"]  # a only after b


def test_the_reason_is_the_container_that_ended_by_itself() -> None:
    runs = (dependent("b"), run("a", "FAILED", reason="no such program"))
    before = task(*runs).but(plain=False)
    assert advance(before, before.runs, NOW_S, rules_for(("b", "a", "START"))).task.stopped_reason == "no such program"


@pytest.mark.parametrize("condition", ["COMPLETE", "SUCCESS", "HEALTHY"])
def test_a_start_timeout(condition: str) -> None:
    """It belongs to the needed container and counts from its start. The condition START has no timeout."""
    before = task(run("a", "RUNNING", essential=False), dependent("b")).but(plain=False)
    rules = rules_for(("b", "a", condition), timeout_s=5.0)
    early = advance(before, before.runs, 14.9, rules)
    assert (early.task.runs[1].waits, early.next_check_at_s) == (True, 15.0)
    late = advance(before, before.runs, 15.0, rules)
    assert late.task.runs[1].reason == (
        "CannotStartContainerError: dependency graph: container ordering dependency [a] for target [b] has timed out."
    )
    assert (late.task.stop_code, ids(late.stop)) == ("TaskFailedToStart", ["a"])


def test_a_start_timeout_before_the_start() -> None:
    before = task(run("a", essential=False), dependent("b")).but(plain=False)
    assert advance(before, before.runs, NOW_S, rules_for(("b", "a", "COMPLETE"), timeout_s=5.0)).next_check_at_s is None


def test_an_unneeded_container_that_cannot_start_does_not_end_the_task() -> None:
    runs = (run("main", "RUNNING"), run("a", "STOPPED", essential=False, code=1), dependent("b", essential=False))
    before = task(*runs).but(plain=False)
    after = advance(before, before.runs, NOW_S, rules_for(("b", "a", "SUCCESS"))).task
    assert (after.state, after.desired, after.runs[2].state) == (TaskState.RUNNING, TaskState.RUNNING, RunState.STOPPED)


def test_containers_stop_in_reverse_order() -> None:
    """c needs b and a, b needs a: c is stopped first, then b, then a. A container that never started is not started."""
    rules = rules_for(("b", "a", "START"), ("c", "b", "START"), ("c", "a", "START"), ("d", "c", "HEALTHY"))
    runs = (run("a", "RUNNING"), run("b", "RUNNING"), run("c", "RUNNING"), dependent("d"))
    now = task(*runs, state=TaskState.PENDING, desired=TaskState.STOPPED).but(plain=False)
    told = []
    while now.state is not TaskState.STOPPED:
        progress = advance(now, now.runs, NOW_S, rules)
        told.append(ids(progress.stop))
        ended = tuple(
            each.but(state=RunState.STOPPED, stopped_at_s=1.0) if each in progress.stop else each for each in progress.task.runs
        )
        now = progress.task.but(runs=ended)
    assert told == [["c"], ["b"], ["a"], []]
    assert (now.runs[3].reason, now.runs[3].exit_code) == ("stopped before it was started", None)


def test_no_container_starts_when_the_task_stops_in_the_same_step() -> None:
    """No host was ordered to start it, so no host would ever report its end."""
    runs = (run("main", "STOPPED"), run("a", "STOPPED", essential=False), dependent("b"))
    before = task(*runs).but(plain=False)
    progress = advance(before, before.runs, NOW_S, rules_for(("b", "a", "SUCCESS"), main=RestartPolicy(60.0)))
    assert progress.start == () and progress.task.state is TaskState.STOPPED
    assert (progress.task.stop_code, progress.task.runs[2].reason) == ("EssentialContainerExited", "stopped before it was started")


# Starting again


@pytest.mark.parametrize(
    ("ended", "again"),
    [
        (run("a", "STOPPED", code=1), True),  # it ran for ten seconds
        (run("a", "STOPPED", code=0), True),
        (run("a", "STOPPED", code=9), False),  # ignored
        (run("a", "STOPPED", code=1).but(stopped_at_s=19.9), False),  # too short
        (run("a", "STOPPED", code=None, reason="lost"), False),  # its exit code is unknown
        (run("a", "FAILED", reason="no such program"), False),
    ],
)
def test_which_runs_restart(ended: Run, again: bool) -> None:
    before = task(run("a", "RUNNING").but(gpu_ids=("GPU-1",), health="UNHEALTHY"), state=TaskState.RUNNING).but(plain=False)
    seen = (ended.but(gpu_ids=("GPU-1",)),)
    progress = advance(before, seen, NOW_S, rules_for(a=RestartPolicy(10.0, frozenset({9}))))
    (after,) = progress.task.runs
    if again:
        assert (after.state, after.restarts, after.exit_code, after.health) == (RunState.PENDING, 1, None, None)
        assert (after.gpu_ids, after.attempt_id) == (("GPU-1",), "a.1")
        assert [each.attempt_id for each in progress.start] == ["a.1"]
        assert (progress.task.state, progress.task.desired) == (TaskState.RUNNING, TaskState.RUNNING)
    else:
        assert progress.start == () and progress.task.state is TaskState.STOPPED


def test_no_run_restarts_while_the_task_stops() -> None:
    stopping = task(run("a", "STOPPED", code=1), state=TaskState.RUNNING, desired=TaskState.STOPPED).but(plain=False)
    assert advance(stopping, stopping.runs, NOW_S, rules_for(a=RestartPolicy(0.0))).task.state is TaskState.STOPPED


def test_a_restart_that_fails_ends_the_task_as_an_exit_does() -> None:
    before = task(run("a").but(restarts=1), state=TaskState.RUNNING).but(plain=False)
    seen = (before.runs[0].but(state=RunState.STOPPED, stopped_at_s=50.0, exit_code=None, reason="no such program"),)
    after = advance(before, seen, NOW_S, rules_for(a=RestartPolicy(0.0))).task
    assert (after.stop_code, after.stopped_reason) == ("EssentialContainerExited", ESSENTIAL_EXITED)


# Limits and health


def test_a_time_limit_counts_from_the_start() -> None:
    before = task(run("a", "RUNNING")).but(plain=False, time_limit_s=3600.0)
    started = advance(before, before.runs, NOW_S, {})
    assert (started.task.state, started.next_check_at_s) == (TaskState.RUNNING, 3610.0)
    over = advance(started.task, started.task.runs, 3610.0, {})
    assert (over.task.stop_code, over.task.stopped_reason) == ("UserInitiated", "Time limit of 1h reached")
    assert ids(over.stop) == ["a"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(4 * 3600.0, "4h"), (5400.0, "1h30m"), (90.0, "1m30s"), (1.0, "1s"), (0.5, "0.5s"), (86_400.0, "1d"), (90.5, "90.5s")],
)
def test_duration_text(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words


@pytest.mark.parametrize(
    ("verdicts", "task_is"),
    [
        (["HEALTHY"], "HEALTHY"),
        ([None], "UNKNOWN"),
        (["HEALTHY", None], "UNKNOWN"),
        (["UNHEALTHY", None], "UNHEALTHY"),
        (["UNHEALTHY", "HEALTHY"], "UNHEALTHY"),
        (["HEALTHY", "HEALTHY"], "HEALTHY"),
    ],
)
def test_the_health_of_a_task(verdicts: list[str | None], task_is: str) -> None:
    assert task_health(verdicts) == task_is


def test_health_is_stored_and_the_last_verdict_stays_after_the_end() -> None:
    running = observe(observe(run(), STARTED), replace(STARTED, health="HEALTHY"))
    assert running.health == "HEALTHY"
    assert observe(running, STARTED) is running  # an agent that has no verdict yet takes none back
    assert observe(observe(running, replace(STARTED, health="UNHEALTHY")), ENDED).health == "UNHEALTHY"


@given(st.data())
def test_every_task_ends(data: st.DataObject) -> None:
    """Any dependencies, any reports in any order: no container starts before its conditions hold, and every task ends."""
    names = "abcd"[: data.draw(st.integers(1, 4))]
    needs = [
        (name, needed, data.draw(st.sampled_from(("START", "COMPLETE", "SUCCESS", "HEALTHY"))))
        for at, name in enumerate(names)
        for needed in names[:at]
        if data.draw(st.booleans())
    ]
    policies = {name: RestartPolicy(0.0, frozenset({0})) for name in names if data.draw(st.booleans())}
    rules = rules_for(*needs, timeout_s=data.draw(st.sampled_from((None, 5.0))), **policies)
    rules |= {name: ContainerRules() for name in names if name not in rules}
    essential = {name: data.draw(st.booleans()) for name in names}
    runs = tuple(run(name, essential=essential[name]).but(waits=bool(rules[name].depends_on)) for name in names)
    now, now_s = task(*runs).but(plain=False), 10.0
    known = {each.attempt_id for each in runs if not each.waits}  # what its host was told to start
    for _ in range(60):
        choices = [each for each in now.runs if each.state is not RunState.STOPPED and not each.waits]
        if not choices:
            break
        now_s += 1.0
        chosen = data.draw(st.sampled_from(choices))
        assert chosen.attempt_id in known
        code = data.draw(st.sampled_from((0, 0, 1, None)))
        if chosen.state is RunState.RUNNING and data.draw(st.booleans()):
            seen = Observed("", health=data.draw(st.sampled_from(("HEALTHY", "UNHEALTHY"))))
        elif chosen.state is RunState.RUNNING:
            seen = Observed("", 1, chosen.started_at_s, now_s, code, None if code is not None else "lost")
        else:
            fails = data.draw(st.integers(0, 4)) == 0
            seen = Observed("", stopped_at_s=now_s, reason="broken") if fails else Observed("", 1, now_s)
        words = tuple(observe(each, seen) if each is chosen else each for each in now.runs)
        progress = advance(now, words, now_s, rules)
        assert progress.task.state is now.state or progress.task.state in MOVES[now.state] or now.state is TaskState.PENDING
        known |= {each.attempt_id for each in progress.start}
        assert all(each.attempt_id in known for each in progress.stop)
        now = progress.task
    else:
        return  # it went on starting again
    assert now.state is TaskState.STOPPED, now


def test_a_restarted_container_keeps_its_runtime_id():
    """Its log stream has that name. Other facts are those of the new container."""
    first = observe(run("a"), Observed("a", started_at_s=1.0, about={"runtimeId": "one", "privateIpv4Address": "10.0.0.1"}))
    second = first.but(restarts=1, state=RunState.PENDING)
    seen = Observed("a.1", started_at_s=2.0, about={"runtimeId": "two", "privateIpv4Address": "10.0.0.2"})
    assert observe(second, seen).about == {"runtimeId": "one", "privateIpv4Address": "10.0.0.2"}
