"""The ledger of instance-hours: its rows outlive their instances, and a rollback takes them back."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.model.instance import Instance, InstanceState, host_pool
from corral.model.placement import Placement
from corral.store import Store
from corral.store.instance_usage import BILLED_MIN_S, UsageTotal
from store.rows import OWN, hello

HOUR_S = 3600.0
STACK = [{"Key": "Name", "Value": "x"}, {"Key": "aws:cloudformation:stack-name", "Value": "ml"}]


def store_with_host(path: Path | None = None) -> Store:
    store = Store(path)
    store.hosts.put(hello("h", 4), 1.0)
    return store


def launch(store: Store, name: str, at_s: float, gpus: int = 0, **more: Any) -> Instance:
    waiting = Instance(name, "r", "", more.pop("type", "g5.xlarge"), InstanceState.PENDING, gpus, 1024, 1024, at_s, **more)
    store.instances.add(waiting, host_pool("default"), (at_s,))
    return store.instances.launch(waiting, Placement(OWN, tuple(f"GPU-h-{at}" for at in range(gpus))), at_s)


def end(store: Store, name: str, at_s: float, state: InstanceState = InstanceState.SHUTTING_DOWN) -> Instance:
    instance = store.instances.get(name)
    assert instance is not None
    return store.instances.begin_end(instance, state, "a test ends it", at_s)


def used(store: Store, now_s: float, since_s: float = 0.0) -> dict[str, float]:
    """Seconds by group."""
    return {each.name: each.billed_s for each in store.instances.usage.totals("group_name", since_s, now_s)}


def test_hours_count_from_the_launch_to_the_end_and_outlive_the_instance() -> None:
    store = store_with_host()
    waiting = Instance("w", "r", "", "g5.xlarge", InstanceState.PENDING, 0, 1024, 1024, 50.0, group="train")
    store.instances.add(waiting, host_pool("default"), (50.0,))
    assert used(store, 100.0) == {}, "waiting costs nothing"
    store.instances.launch(waiting, Placement(OWN, ()), 100.0)
    assert used(store, 300.0) == {"train": 200.0}, "a running instance counts until now"
    ending = end(store, "w", 400.0)
    assert used(store, 9_000.0) == {"train": 300.0}, "an instance that shuts down costs nothing"
    store.instances.terminate(ending, 500.0)
    assert store.instances.drop_terminated(1_000.0, 10) == 1 and store.instances.get("w") is None
    assert used(store, 9_000.0) == {"train": 300.0}


def test_totals_by_group_and_stack_with_gpus_and_market() -> None:
    store = store_with_host()
    launch(store, "a", 0.0, 2, type="p3.8xlarge", group="train", details={"Tags": STACK})
    launch(store, "b", HOUR_S, group="train", details={"Tags": STACK, "InstanceLifecycle": "spot"})
    launch(store, "c", HOUR_S)
    usage, now_s = store.instances.usage, 2 * HOUR_S
    assert usage.totals("group_name", 0.0, now_s) == [
        UsageTotal("r", "", "g5.xlarge", 1, HOUR_S, 0.0, 0.0, "root"),
        UsageTotal("r", "train", "g5.xlarge", 1, HOUR_S, HOUR_S, 0.0, "root"),
        UsageTotal("r", "train", "p3.8xlarge", 1, 2 * HOUR_S, 0.0, 4 * HOUR_S, "root"),
    ]
    assert [(each.name, each.type) for each in usage.totals("stack", 0.0, now_s)] == [
        ("", "g5.xlarge"), ("ml", "g5.xlarge"), ("ml", "p3.8xlarge")
    ]  # fmt: skip
    assert usage.instances(0.0, now_s) == 3 and usage.first_s() == 0.0


def test_only_the_time_since_then_counts() -> None:
    store = store_with_host()
    launch(store, "old", 0.0, group="old")
    end(store, "old", 1_000.0)
    launch(store, "new", 500.0, group="new")
    assert used(store, 3_000.0, since_s=1_000.0) == {"new": 2_000.0}
    assert used(store, 3_000.0, since_s=600.0) == {"old": 400.0, "new": 2_400.0}


def test_a_start_is_billed_for_a_minute_at_least() -> None:
    store = store_with_host()
    launch(store, "a", 100.0)
    end(store, "a", 110.0, InstanceState.STOPPING)
    assert used(store, 110.0) == {"": BILLED_MIN_S}
    stopping = store.instances.get("a")
    assert stopping is not None
    waiting, _ = store.instances.restart(store.instances.stop(stopping, 200.0), host_pool("default"), (200.0,), "again")
    store.instances.launch(waiting, Placement(OWN, ()), 200.0)
    assert used(store, 300.0) == {"": BILLED_MIN_S + 100.0}, "and a stopped instance costs nothing"
    end(store, "a", 400.0)
    assert used(store, 999.0) == {"": BILLED_MIN_S + 200.0}


def test_hours_go_to_the_group_of_their_time() -> None:
    store = store_with_host()
    alone = launch(store, "a", 0.0)
    attached = store.instances.set_group(alone, "train", 10.0)
    again = store.instances.set_group(attached, "train", 20.0)
    store.instances.set_group(store.instances.set_group(again, "other", 30.0), "train", 30.0)
    end(store, "a", 40.0)
    assert used(store, 100.0) == {"": 10.0, "train": BILLED_MIN_S - 10.0, "other": 0.0}
    assert store.instances.usage.instances(0.0, 100.0) == 1
    stopped = store.instances.get("a")
    assert stopped is not None
    store.instances.set_group(stopped, "late", 50.0)
    assert "late" not in used(store, 100.0), "an instance that does not run has no hours"


def test_a_clock_that_goes_back_costs_nothing() -> None:
    store = store_with_host()
    launch(store, "a", 1_000.0)
    assert used(store, 900.0) == {"": 0.0}
    attached = store.instances.get("a")
    assert attached is not None
    store.instances.set_group(attached, "g", 900.0)
    end(store, "a", 800.0)
    assert used(store, 2_000.0) == {"": 0.0, "g": 160.0}


def test_the_hosts_own_capacity_is_no_instance_hour() -> None:
    assert used(store_with_host(), 1e9) == {}


def test_old_periods_are_dropped_and_running_ones_are_kept() -> None:
    store = store_with_host()
    for number in range(5):
        launch(store, f"i{number}", 0.0)
        end(store, f"i{number}", 100.0 + number)
    launch(store, "running", 0.0)
    assert [store.instances.usage.drop_before(104.0, 3) for _ in range(3)] == [3, 1, 0]
    assert store.instances.usage.instances(0.0, 200.0) == 2


def test_two_open_periods_of_an_instance_are_refused() -> None:
    store = store_with_host()
    running = launch(store, "a", 0.0)
    with pytest.raises(sqlite3.IntegrityError):
        store.instances.usage.begin(running, 5.0)


def test_a_crash_before_the_commit_leaves_neither_the_instance_nor_its_hours(tmp_path: Path) -> None:
    store = store_with_host(tmp_path / "state.db")
    store.begin()
    launch(store, "kept", 10.0)
    store.commit()
    store.begin()
    end(store, "kept", 20.0)
    launch(store, "lost", 20.0)
    store.close()  # the process dies here
    again = Store(tmp_path / "state.db")
    kept = again.instances.get("kept")
    assert kept is not None and kept.state is InstanceState.RUNNING and again.instances.get("lost") is None
    assert used(again, 110.0) == {"": 100.0} and again.instances.usage.instances(0.0, 110.0) == 1
    end(again, "kept", 200.0)
    assert used(again, 300.0) == {"": 190.0}
    again.close()


@given(
    steps=st.lists(st.tuples(st.sampled_from(("a", "b")), st.integers(0, 500), st.sampled_from(("", "g", "h"))), max_size=30),
    cut=st.integers(0, 5_000),
)
def test_windows_add_up(steps: list[tuple[str, int, str]], cut: int) -> None:
    """The hours before and after any instant are together those of the whole ledger, by group and by stack."""
    store, now_s = store_with_host(), 0.0
    for name, wait_s, group in steps:
        now_s += wait_s
        found = store.instances.get(name)
        if found is None:
            launch(store, name, now_s, group=group)
        elif found.state is InstanceState.RUNNING and group != found.group:
            store.instances.set_group(found, group, now_s)
        elif found.state is InstanceState.RUNNING:
            store.instances.stop(end(store, name, now_s, InstanceState.STOPPING), now_s)
        elif found.state is InstanceState.STOPPED:
            waiting, _ = store.instances.restart(found, host_pool("default"), (now_s,), "again")
            store.instances.launch(waiting, Placement(OWN, ()), now_s)
    now_s += BILLED_MIN_S
    usage, at_s = store.instances.usage, min(float(cut), now_s)
    whole, after = (sum(used(store, now_s, since_s).values()) for since_s in (0.0, at_s))
    by_stack = sum(each.billed_s for each in usage.totals("stack", 0.0, now_s))
    before = store.execute(
        "SELECT coalesce(sum(max(0.0, min(coalesce(billed_until, ?1), ?2) - began_at)), 0) FROM instance_usage", (now_s, at_s)
    ).fetchone()[0]
    assert by_stack == whole
    assert before + after == pytest.approx(whole)
