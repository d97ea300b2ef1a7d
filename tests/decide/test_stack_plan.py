"""The plan of stack operations: order of steps, differences, rollbacks, signals and texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.decide.templates.stack_plan import (
    CAN_BE_DELETED,
    CAN_BE_UPDATED,
    CLEANUPS,
    MOVES,
    Difference,
    Restoration,
    SignalRule,
    count_signals,
    difference,
    duration_s,
    failed_resources,
    is_retained,
    next_deleted,
    next_forward,
    restoration,
    timed_out,
)
from corral.model.stack import ResourceStatus, ResourceVersion, StackResource, StackStatus
from examples import examples


def row(logical_id: str, *dependencies: str, leftover: int = 0, **more: Any) -> StackResource:
    version = more.pop("version", ResourceVersion("T", dependencies=dependencies, physical_id=logical_id))
    return StackResource("s", logical_id, ResourceStatus.CREATE_COMPLETE, version, 1.0, leftover=leftover, **more)


def rows(*found: StackResource) -> dict[str, StackResource]:
    return {each.key: each for each in found}


@pytest.mark.parametrize(
    "done, busy, most, ready",
    [
        (set(), [], 9, ["a", "d"]),
        (set(), [], 1, ["a"]),
        (set(), ["a"], 9, ["d"]),
        ({"a"}, ["d"], 9, ["b", "c"]),
        ({"a", "b", "d"}, [], 9, ["c"]),
        ({"a", "b", "c", "d"}, [], 9, ["e"]),
        ({"a", "b", "c", "d", "e"}, [], 9, []),
    ],
)
def test_a_resource_begins_when_its_dependencies_are_done(done: set[str], busy: list[str], most: int, ready: list[str]) -> None:
    dependencies = {"a": [], "b": ["a"], "c": ["a"], "d": [], "e": ["b", "c", "d"]}
    assert next_forward(dependencies, done, busy, most) == ready


@pytest.mark.parametrize(
    "remaining, busy, failed, ready",
    [
        ("abce", "", "", ["e"]),
        ("abce", "e", "", []),
        ("abc", "", "", ["b", "c"]),
        ("abc", "b", "", ["c"]),
        ("ab", "", "b", []),  # a resource that another one still needs is kept
        ("a", "", "", ["a"]),
        ("", "", "", []),
    ],
)
def test_a_resource_is_deleted_after_those_that_need_it(remaining: str, busy: str, failed: str, ready: list[str]) -> None:
    resources = rows(row("a"), row("b", "a"), row("c", "a"), row("e", "b", "c"))
    assert next_deleted(resources, list(remaining), list(busy), list(failed), 9) == ready


def test_leftovers_of_two_versions_that_need_each_other_are_deleted_in_any_order() -> None:
    resources = rows(row("a", "b", leftover=1), row("b", "a", leftover=1), row("a"))
    assert next_deleted(resources, ["a/1", "b/1"], [], [], 9) == ["a/1", "b/1"]
    assert next_deleted(resources, ["a/1", "b/1"], ["a/1"], [], 9) == []


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.sets(st.integers(0, 8)), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_every_graph_is_created_and_deleted_completely(graph: list[set[int]], random: Any) -> None:
    dependencies = {str(at): [str(each) for each in needed if each < at] for at, needed in enumerate(graph)}
    done: set[str] = set()
    busy: set[str] = set()
    while len(done) < len(graph):
        busy.update(next_forward(dependencies, done, busy, random.randint(1, 3)))
        ended = random.choice(sorted(busy))
        assert all(each in done for each in dependencies[ended])
        busy.remove(ended)
        done.add(ended)
    resources = rows(*(row(key, *needed) for key, needed in dependencies.items()))
    while done:
        busy.update(next_deleted(resources, sorted(done), busy, [], random.randint(1, 3)))
        ended = random.choice(sorted(busy))
        assert not any(ended in dependencies[other] for other in done)
        busy.remove(ended)
        done.remove(ended)


OLD = ResourceVersion("T", {"A": 1, "B": 2}, physical_id="p", attributes={"Arn": "x"})


@pytest.mark.parametrize(
    "new, forced, expected",
    [
        (ResourceVersion("T", {"A": 1, "B": 2}), [], Difference.NOTHING),
        (ResourceVersion("T", {"A": 1, "B": 2}, dependencies=("x",)), [], Difference.RECORD),
        (ResourceVersion("T", {"A": 1, "B": 2}, deletion_policy="Retain"), [], Difference.RECORD),
        (ResourceVersion("T", {"A": 1, "B": 2}, metadata={"m": 1}), [], Difference.METADATA),
        (ResourceVersion("T", {"A": 1, "B": 3}), [], Difference.UPDATE),
        (ResourceVersion("T", {"A": 1}), [], Difference.UPDATE),
        (ResourceVersion("T", {"A": 3, "B": 2}), ["A"], Difference.REPLACE),
    ],
)
def test_differences(new: ResourceVersion, forced: list[str], expected: Difference) -> None:
    assert difference(OLD, new, lambda: forced) is expected


@pytest.mark.parametrize(
    "resource, expected",
    [
        (row("a", version=OLD), Restoration.NOTHING),
        (row("a", version=OLD, is_new=True), Restoration.DELETE),
        (row("a", version=OLD, before=OLD), Restoration.RECORD),
        (row("a", version=OLD.but(metadata={"m": 1}), before=OLD), Restoration.RECORD),
        (row("a", version=OLD.but(properties={}), before=OLD), Restoration.UPDATE),
        (row("a", version=OLD.but(physical_id="q"), before=OLD), Restoration.SWITCH),
        (row("a", version=OLD.but(physical_id=None), before=OLD), Restoration.SWITCH),
    ],
)
def test_restorations(resource: StackResource, expected: Restoration) -> None:
    assert restoration(resource, lambda old, new: old.physical_id != new.physical_id) is expected


@pytest.mark.parametrize(
    "deletion, replace, leftover, is_new, on_create, kept",
    [
        ("", "", 0, False, False, False),
        ("Delete", "Retain", 0, False, False, False),
        ("Retain", "", 0, False, False, True),
        ("Retain", "", 0, True, True, True),
        ("RetainExceptOnCreate", "", 0, False, False, True),
        ("RetainExceptOnCreate", "", 0, False, True, False),
        ("Snapshot", "Snapshot", 0, False, False, False),
        ("Retain", "", 1, False, False, False),
        ("", "Retain", 1, False, False, True),
        ("", "Retain", 1, True, True, False),
    ],
)
def test_retention(deletion: str, replace: str, leftover: int, is_new: bool, on_create: bool, kept: bool) -> None:
    version = OLD.but(deletion_policy=deletion, update_replace_policy=replace)
    assert is_retained(row("a", version=version, leftover=leftover, is_new=is_new), on_create=on_create) is kept


@pytest.mark.parametrize(
    "signals, count, percent, expired, rule, text",
    [
        ("", 1, 100, False, SignalRule.WAITING, "Received 0 of 1 resource signal(s)."),
        ("S", 1, 100, False, SignalRule.ENOUGH, ""),
        ("SS", 3, 100, False, SignalRule.WAITING, "Received 2 of 3 resource signal(s)."),
        ("SS", 3, 50, False, SignalRule.ENOUGH, ""),
        ("SF", 2, 50, False, SignalRule.ENOUGH, ""),
        ("F", 1, 100, False, SignalRule.FAILED, "Received 1 FAILURE signal(s) out of 1."),
        ("FF", 3, 50, False, SignalRule.FAILED, "Received 2 FAILURE signal(s) out of 3."),
        ("", 2, 100, True, SignalRule.FAILED, "Failed to receive 2 resource signal(s) within the specified duration"),
        ("S", 2, 100, True, SignalRule.FAILED, "Received 1 SUCCESS signal(s) out of 2."),
        ("", 0, 100, False, SignalRule.ENOUGH, ""),
    ],
)
def test_signals(signals: str, count: int, percent: int, expired: bool, rule: SignalRule, text: str) -> None:
    given = {str(at): "SUCCESS" if each == "S" else "FAILURE" for at, each in enumerate(signals)}
    decided, reason = count_signals(given, count, percent, expired=expired)
    assert decided is rule and reason.startswith(text)


def test_texts_durations_and_timeouts() -> None:
    assert failed_resources(["A", "B"], []) == "The following resource(s) failed to create: [A, B]. "
    both = "The following resource(s) failed to create: [A]. The following resource(s) failed to update: [B]. "
    assert failed_resources(["A"], ["B"]) == both
    assert failed_resources([], [], ["C"]) == "The following resource(s) failed to delete: [C]. "
    assert [duration_s(text) for text in ("PT5M", "PT1H30M", "PT90S", "PT", "5M", "P1D")] == [300.0, 5400.0, 90.0, None, None, None]
    assert not timed_out(0.0, None, 1e9) and not timed_out(0.0, 1, 59.9) and timed_out(0.0, 1, 60.0)


def test_every_operation_ends() -> None:
    """From each status in progress some moves lead to a steady one, and every operation begins at a status that allows it."""
    assert set(MOVES) == set(StackStatus)
    steady = {status for status in StackStatus if not status.in_progress}
    for status in StackStatus:
        seen, waiting = {status}, [status]
        while waiting:
            for following in MOVES[waiting.pop()] - seen:
                seen.add(following)
                waiting.append(following)
        assert seen & steady
        # A nested stack can also be deleted while its cleanup waits for its parent.
        assert (StackStatus.DELETE_IN_PROGRESS in MOVES[status]) == (status in CAN_BE_DELETED | CLEANUPS)
        assert status not in CAN_BE_UPDATED or StackStatus.UPDATE_IN_PROGRESS in MOVES[status]
