"""Queue options in tags, when a task of the task queue gets in line, and when a task is requeued."""

from __future__ import annotations

import pytest

from corral.decide.tasks.task_queue import next_state, outcome, requeue_at_s
from corral.model.instance import host_pool
from corral.model.queue_options import NO_OPTIONS, ArrayMembers, QueueOptionError, QueueOptions, queue_options
from corral.model.run import RunState
from corral.model.task import Demand, Run, StopCode, Task, TaskState
from corral.model.task_queue import QueuedTask, QueueState, TaskArray

A, B = "a" * 32, "b" * 32


def tags(**values: str) -> list[dict[str, str]]:
    return [{"key": f"corral:{name.replace('_', '-')}", "value": value} for name, value in values.items()]


def test_options_are_read_from_tags() -> None:
    given = tags(priority="-7", hold="true", not_before="1767225600", after=f"{A} array:x.1", after_any=f"{A} {B}", requeue="3")
    options = queue_options([*given, *tags(array="x2 10 5 4", refuse_unfit="true", name="lr0.1"), {"key": "mine", "value": "?"}], 3)
    assert options == QueueOptions(
        priority=-7, held=True, not_before_s=1767225600.0, after=(A, "array:x.1"), after_any=(B,),
        array=ArrayMembers("x2", 10, 5, 4), requeues=3, refuse_unfit=True,
    )  # fmt: skip
    assert options.array is not None and options.array.tag_value(2) == "x2 20 1 4"
    assert queue_options(tags(name="lr0.1", time_limit="60", hold="false")) is NO_OPTIONS
    assert queue_options([*tags(after=A), {"key": "corral:after:2", "value": B}]).after == (A, B)


@pytest.mark.parametrize(
    ("tag", "value", "rule"),
    [
        ("priority", "1001", "a whole number from -1000 to 1000"),
        ("priority", "--1", "a whole number from -1000 to 1000"),
        ("priority", "", "a whole number from -1000 to 1000"),
        ("hold", "yes", "`true` or `false`"),
        ("refuse-unfit", "1", "`true` or `false`"),
        ("not-before", "tomorrow", "a time in whole seconds"),
        ("not-before", "99999999999999", "a time in whole seconds"),
        ("requeue", "-1", "a whole number from 0 to 100"),
        ("requeue", "\u0663", "a whole number from 0 to 100"),
        ("after", " ", "leave the tag out"),
        ("array", "x 0 1", "ID FIRST STEP LIMIT"),
        ("array", "x 0 0 1", "ID FIRST STEP LIMIT"),
        ("array", "x/y 0 1 1", "ID FIRST STEP LIMIT"),
        ("array", "x 0 1 9999999", "ID FIRST STEP LIMIT"),
        ("array", "x 2147483647 1 0", "at most 2147483647"),
    ],
)
def test_an_error_names_the_tag_the_value_and_the_rule(tag: str, value: str, rule: str) -> None:
    with pytest.raises(QueueOptionError) as error:
        queue_options([{"key": f"corral:{tag}", "value": value}], count=2)
    assert str(error.value).startswith(f"The tag corral:{tag} has the value '{value}', but it must be ")
    assert rule in str(error.value)


def test_an_id_that_is_not_valid_is_named() -> None:
    for wrong in ("train", A[1:], A.upper(), "array:", "array:a/b"):
        with pytest.raises(QueueOptionError, match="32 hexadecimal digits") as error:
            queue_options(tags(after=f"{B} {wrong}"))
        assert f"'{wrong}'" in str(error.value)
    many = {f"after:{number}": " ".join(f"{number * 7 + at:032x}" for at in range(7)) for number in range(15)}
    with pytest.raises(QueueOptionError, match="name 105 tasks and arrays, but a task can wait for at most 100"):
        queue_options(tags(**many))


RUN = QueuedTask("t", "t", QueueState.WAITING)
FULL, ROOM = TaskArray("r/a", 2, waiting=1, admitted=2), TaskArray("r/a", 2, waiting=1, admitted=1)


@pytest.mark.parametrize(
    ("run", "array", "expected"),
    [
        (RUN, None, QueueState.ADMITTED),
        (RUN.but(held=True), None, QueueState.WAITING),
        (RUN.but(unmet=1), None, QueueState.WAITING),
        (RUN.but(not_before_s=100.1), None, QueueState.WAITING),
        (RUN.but(not_before_s=100.0), None, QueueState.ADMITTED),
        (RUN, ROOM, QueueState.ADMITTED),
        (RUN, FULL, QueueState.READY),
        (RUN, FULL.but(limit=0), QueueState.ADMITTED),
        (RUN.but(held=True), FULL, QueueState.WAITING),
        (RUN.but(state=QueueState.ADMITTED), FULL, QueueState.ADMITTED),
        (RUN.but(state=QueueState.ADMITTED, held=True), FULL, QueueState.WAITING),
    ],
)
def test_a_task_gets_in_line_when_nothing_holds_it_back(run: QueuedTask, array: TaskArray | None, expected: QueueState) -> None:
    assert next_state(run, array, now_s=100.0) is expected


def stopped(*codes: int | None, code: StopCode = StopCode.ESSENTIAL_EXITED, placed: bool = True) -> Task:
    """A stopped task whose essential containers ended one after the other. The first container is not essential."""
    side = Run("r", "t", "side", 0, False, 0, RunState.STOPPED, exit_code=9, stopped_at_s=0.0)
    runs = [
        Run(f"r{at}", "t", f"c{at}", at + 1, True, 0, RunState.STOPPED, exit_code=exit_code, stopped_at_s=float(at))
        for at, exit_code in enumerate(codes)
    ]
    return Task(
        "t", "r", "default", "arn", host_pool("default"), TaskState.STOPPED, TaskState.STOPPED, Demand(), 1.0,
        instance_id="i" if placed else None, stop_code=code.value, stopped_reason="why", runs=(side, *runs),
    )  # fmt: skip


def test_the_first_essential_container_decides_how_a_task_ended() -> None:
    assert outcome(stopped(0, 143)).succeeded
    assert outcome(stopped(3, 0)).text == "ended with exit code 3"
    assert outcome(stopped(0, code=StopCode.USER)).text == "was stopped: why"
    assert not outcome(stopped(0, code=StopCode.USER)).succeeded


def test_a_failed_task_is_requeued_after_a_growing_delay() -> None:
    run = RUN.but(state=QueueState.ADMITTED, requeues=2)
    delays = [requeue_at_s(run.but(attempt=attempt), stopped(1), 100.0) for attempt in (0, 1, 5, 6, 99)]
    assert delays == [101.0, 102.0, 132.0, 160.0, 160.0]
    assert requeue_at_s(run, stopped(None, code=StopCode.TERMINATION), 100.0) == 101.0
    assert requeue_at_s(run, stopped(None, code=StopCode.FAILED_TO_START), 100.0) == 101.0
    for never in (stopped(0), stopped(1, code=StopCode.USER), stopped(None, code=StopCode.FAILED_TO_START, placed=False)):
        assert requeue_at_s(run, never, 100.0) is None
    assert requeue_at_s(run.but(requeues=0), stopped(1), 100.0) is None
