"""The use of GPUs by each owner: exact by hour and decayed, also after rollbacks, and if the server is killed at any time."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from math import exp
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from corral.model.instance import Instance, InstanceState, cluster_pool, host_pool
from corral.model.job_line import decayed
from corral.model.placement import Placement
from corral.model.run import RunState
from corral.model.task import Task, TaskState
from corral.services.ecs.gpu_assignment import share_gpus
from corral.store import Store
from corral.store.owner_use import HOUR_S, USE_KEPT_S
from examples import examples
from memory_files import MEMORY
from store.rows import OWN, claim, hello

BEGIN_S = 1_000 * HOUR_S + 100.0
OWNERS = ("root", "user/ann", "user/bob")
LENT = "-lent"  # follows the name of a task on an instance: what the owner of the instance does not hold meanwhile
HOSTS = host_pool("default")
INSTANCES = cluster_pool("r", "c")


class Held(NamedTuple):
    """A time in which an owner held GPUs, from events alone."""

    owner: str
    gpus: float
    from_s: float
    until_s: float


class Naive:
    """Recomputes everything from a list of grants and releases."""

    def __init__(self) -> None:
        self.ended: list[Held] = []
        self.open: dict[str, tuple[str, float, float]] = {}  # holder → owner, GPUs, since
        self.lent: dict[str, str] = {}  # task → the instance on which it is

    def copy(self) -> Naive:
        found = Naive()
        found.ended, found.open, found.lent = list(self.ended), dict(self.open), dict(self.lent)
        return found

    def holders(self) -> list[str]:
        return sorted(holder for holder in self.open if not holder.endswith(LENT))

    def hold(self, holder: str, owner: str, gpus: float, now_s: float) -> None:
        self.open[holder] = owner, gpus, now_s

    def lend(self, task: str, owner: str, instance: str, now_s: float) -> None:
        """A task has one GPU of an instance: its owner holds it in place of the owner of the instance."""
        lender = self.open[instance][0]
        self.lent[task] = instance
        self.open[task] = owner, 0.0 if owner == lender else 1.0, now_s
        self.open[task + LENT] = lender, 0.0 if owner == lender else -1.0, now_s

    def release(self, holder: str, now_s: float) -> None:
        self.lent.pop(holder, None)
        for each in (holder, holder + LENT):
            if each in self.open:
                owner, gpus, since_s = self.open.pop(each)
                self.ended.append(Held(owner, gpus, since_s, now_s))

    def pass_on(self, holder: str, owner: str, now_s: float) -> None:
        """A task or an instance gets another owner."""
        gpus, instance = self.open[holder][1], self.lent.get(holder)
        on_it = [(task, self.open[task][0]) for task, found in self.lent.items() if found == holder]
        for task, _ in on_it:
            self.release(task, now_s)
        self.release(holder, now_s)
        if instance is None:
            self.hold(holder, owner, gpus, now_s)
        else:
            self.lend(holder, owner, instance, now_s)
        for task, task_owner in on_it:
            self.lend(task, task_owner, holder, now_s)

    def times(self, owner: str, now_s: float) -> Iterator[Held]:
        yield from [each for each in self.ended if each.owner == owner]
        yield from [Held(owner, gpus, since_s, now_s) for found, gpus, since_s in self.open.values() if found == owner]

    def held(self, owner: str) -> float:
        return sum(gpus for found, gpus, _ in self.open.values() if found == owner)

    def hours(self, owner: str, now_s: float) -> dict[int, float]:
        found: dict[int, float] = {}
        for each in self.times(owner, now_s):
            for hour in range(int(each.from_s // HOUR_S), int(each.until_s // HOUR_S) + 1):
                seconds = min(each.until_s, (hour + 1) * HOUR_S) - max(each.from_s, hour * HOUR_S)
                found[hour] = found.get(hour, 0.0) + each.gpus * max(0.0, seconds)
        return {hour: gpu_s for hour, gpu_s in found.items() if gpu_s > 1e-6}

    def decayed(self, owner: str, now_s: float, decay_s: float) -> float:
        return sum(
            each.gpus * decay_s * (exp((each.until_s - now_s) / decay_s) - exp((each.from_s - now_s) / decay_s))
            for each in self.times(owner, now_s)
        )


def place(store: Store, task: Task, slot_id: str, gpu_ids: tuple[str, ...], now_s: float) -> Task:
    store.tasks.add(task, (0, now_s))
    return store.tasks.place(task, Placement(slot_id, gpu_ids), share_gpus(task.runs, gpu_ids), now_s)


def end(store: Store, task_id: str, now_s: float) -> None:
    task = store.tasks.get(task_id)
    assert task is not None
    runs = tuple(run.but(state=RunState.STOPPED, exit_code=0, stopped_at_s=now_s) for run in task.runs)
    ended = {"state": TaskState.STOPPED, "desired": TaskState.STOPPED, "stopping_at_s": now_s, "stopped_at_s": now_s}
    store.tasks.change(task, task.but(runs=runs, **ended), now_s)


class UseMachine(RuleBasedStateMachine):
    """`now` has the events of the open transaction; `committed` and `saved` are those that rollbacks restore."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="corral-use-", dir=MEMORY))
        self.kills = 0
        self.store = self.open()
        self.now, self.saved = Naive(), None
        self.now_s = BEGIN_S
        self.number = 0

    def open(self) -> Store:
        store = Store(self.folder / f"state-{self.kills}.db")
        store.execute("PRAGMA synchronous=OFF")
        store.owner_uses.decay_s = 5 * HOUR_S
        return store

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.store.begin()
        self.store.hosts.put(hello(gpus=8), self.now_s)
        self.store.commit()
        self.committed = self.now.copy()
        self.store.begin()

    def free(self) -> list[str]:
        """The GPUs of the host that no task and no instance has."""
        return list(self.store.fleet.pool(HOSTS).slot(OWN).gpus)

    @rule(seconds=st.sampled_from((0.5, 60.0, 1_000.0, HOUR_S, 7_000.0, 30 * HOUR_S)))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(owner=st.sampled_from(OWNERS), gpus=st.integers(0, 3))
    def start_task(self, owner: str, gpus: int) -> None:
        free = self.free()
        if len(free) >= gpus:
            self.number += 1
            task = claim(f"t{self.number}", gpus, memory_mib=16).but(owner=owner)
            place(self.store, task, OWN, tuple(free[:gpus]), self.now_s)
            self.now.hold(task.id, owner, gpus, self.now_s)

    @rule(owner=st.sampled_from(OWNERS), shared_mib=st.sampled_from((4_000, 8_000, 16_000)))
    def start_sharing_task(self, owner: str, shared_mib: int) -> None:
        slot = self.store.fleet.pool(HOSTS).slot(OWN)
        room = [gpu_id for gpu_id, mib in slot.shared.items() if mib >= shared_mib] or list(slot.gpus)
        if room:
            self.number += 1
            task = claim(f"t{self.number}", 1, gpu_memory_mib=shared_mib).but(owner=owner)
            place(self.store, task, OWN, (room[0],), self.now_s)
            self.now.hold(task.id, owner, shared_mib / 16_000, self.now_s)

    @rule(owner=st.sampled_from(OWNERS), gpus=st.integers(0, 3))
    def launch(self, owner: str, gpus: int) -> None:
        free = self.free()
        if len(free) >= gpus:
            self.number += 1
            waiting = Instance(
                f"i{self.number}", "r", "c", "type", InstanceState.PENDING, gpus, 1024, 1024, self.now_s, owner=owner
            )
            self.store.instances.add(waiting, HOSTS, (self.now_s,))
            self.store.instances.launch(waiting, Placement(OWN, tuple(free[:gpus])), self.now_s)
            self.now.hold(waiting.id, owner, gpus, self.now_s)

    @rule(owner=st.sampled_from(OWNERS))
    def start_task_on_instance(self, owner: str) -> None:
        """The owner of the task holds the GPU while the task runs, in place of the owner of the instance."""
        for slot in self.store.fleet.pool(INSTANCES).slots():
            if slot.gpus and not slot.draining:
                self.number += 1
                task = claim(f"t{self.number}", 1, pool=INSTANCES).but(owner=owner)
                place(self.store, task, slot.id, (slot.gpus[0],), self.now_s)
                self.now.lend(task.id, owner, slot.id, self.now_s)
                return

    @precondition(lambda self: self.now.open)
    @rule(data=st.data(), stops=st.booleans())
    def end(self, data: st.DataObject, stops: bool) -> None:
        holder = data.draw(st.sampled_from(self.now.holders()))
        if holder.startswith("t"):
            end(self.store, holder, self.now_s)
        else:
            for task in self.store.tasks.on(holder):
                end(self.store, task.id, self.now_s)
                self.now.release(task.id, self.now_s)
            instance = self.store.instances.get(holder)
            assert instance is not None
            state = InstanceState.STOPPING if stops else InstanceState.SHUTTING_DOWN
            ending = self.store.instances.begin_end(instance, state, "a test ends it", self.now_s)
            if stops:
                self.store.instances.stop(ending, self.now_s)
            else:
                self.store.instances.terminate(ending, self.now_s)
        self.now.release(holder, self.now_s)

    @precondition(lambda self: self.now.open)
    @rule(data=st.data(), owner=st.sampled_from(OWNERS))
    def pass_on(self, data: st.DataObject, owner: str) -> None:
        holder = data.draw(st.sampled_from(self.now.holders()))
        if holder.startswith("t"):
            task = self.store.tasks.get(holder)
            assert task is not None
            self.store.tasks.set_owner(task, owner, task.details, self.now_s)
        else:
            instance = self.store.instances.get(holder)
            assert instance is not None
            self.store.instances.set_owner(instance, owner, self.now_s)
        self.now.pass_on(holder, owner, self.now_s)

    @precondition(lambda self: self.saved is None)
    @rule()
    def savepoint(self) -> None:
        self.store.savepoint()
        self.saved = self.now.copy()

    @precondition(lambda self: self.saved is not None)
    @rule(keeps=st.booleans())
    def end_savepoint(self, keeps: bool) -> None:
        if keeps:
            self.store.release()
        else:
            self.store.rollback_to_savepoint()
            self.now = self.saved
        self.saved = None

    @precondition(lambda self: self.saved is None)
    @rule()
    def commit(self) -> None:
        self.store.commit()
        self.committed = self.now.copy()
        self.store.begin()

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.now, self.saved = self.committed.copy(), None
        self.store.begin()

    @rule()
    def kill(self) -> None:
        """The server is killed: a new one finds the files as they are at this moment."""
        before, self.kills = self.kills, self.kills + 1
        for suffix in ("", "-wal"):
            if (path := self.folder / f"state-{before}.db{suffix}").exists():
                shutil.copy(path, self.folder / f"state-{self.kills}.db{suffix}")
        self.store.rollback()
        self.store.close()
        self.store = self.open()
        self.now, self.saved = self.committed.copy(), None
        self.store.begin()

    @invariant()
    def use_is_what_the_events_say(self) -> None:
        uses = self.store.owner_uses
        for owner in OWNERS:
            assert uses.held(owner) == pytest.approx(self.now.held(owner), abs=1e-9)
            hours = {each.hour: each.gpu_s for each in uses.hours(owner, 0.0, self.now_s) if each.gpu_s > 1e-6}
            assert hours == pytest.approx(self.now.hours(owner, self.now_s), abs=1e-5)
            use = uses.use(owner)
            now = decayed(use.used, use.held, self.now_s - use.at_s, uses.decay_s) if use.at_s else 0.0
            assert now == pytest.approx(self.now.decayed(owner, self.now_s, uses.decay_s), rel=1e-9, abs=1e-5)
            days: dict[int, float] = {}
            for hour, gpu_s in hours.items():
                day = int((hour + 5) // 24)
                days[day] = days.get(day, 0.0) + gpu_s
            found = {day: gpu_s for day, (gpu_s, _) in uses.days(owner, 0.0, self.now_s, 5 * HOUR_S).items() if gpu_s > 1e-6}
            assert found == pytest.approx(days, abs=1e-5)
            recent = uses.days(owner, self.now_s - 9_000.0, self.now_s)
            assert sum(gpu_s for gpu_s, _ in recent.values()) == pytest.approx(
                uses.gpu_s([owner], self.now_s - 9_000.0, self.now_s)
            )
            since_s = self.now_s - 10 * HOUR_S
            in_window = uses.gpu_s([owner], since_s // HOUR_S * HOUR_S, self.now_s)
            expected = [gpu_s for hour, gpu_s in hours.items() if hour >= since_s // HOUR_S]
            assert in_window == pytest.approx(sum(expected), abs=1e-5)
        assert sorted(uses.holders()) == [owner for owner in OWNERS if self.now.held(owner)]

    @invariant()
    def memory_is_that_of_placed_tasks(self) -> None:
        for owner in OWNERS:
            sql = "SELECT coalesce(sum(memory_mib), 0) FROM task WHERE owner = ? AND state IN ('PENDING', 'RUNNING')"
            assert self.store.owner_uses.memory_mib(owner) == self.store.execute(sql, (owner,)).fetchone()[0]


TestUse = UseMachine.TestCase
TestUse.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


def test_a_window_counts_its_first_hour_in_proportion() -> None:
    store = Store(None)
    store.hosts.put(hello(), 0.0)
    place(store, claim("t", 2), OWN, ("GPU-h-0", "GPU-h-1"), 10 * HOUR_S)
    end(store, "t", 12 * HOUR_S)
    uses = store.owner_uses
    assert uses.gpu_s(["root", "user/eve"], 10 * HOUR_S, 12 * HOUR_S) == pytest.approx(4 * HOUR_S)
    assert uses.gpu_s(["root"], 10.25 * HOUR_S, 12 * HOUR_S) == pytest.approx(3.5 * HOUR_S)
    assert uses.gpu_s(["root"], 12 * HOUR_S, 12 * HOUR_S) == 0.0


def test_old_hours_are_deleted() -> None:
    store = Store(None)
    store.hosts.put(hello(), 0.0)
    place(store, claim("t", 1), OWN, ("GPU-h-0",), 0.0)
    end(store, "t", 3.5 * HOUR_S)
    store.undo_log.prepare_commit()
    now_s = USE_KEPT_S + 2 * HOUR_S
    assert [each.hour for each in store.owner_uses.hours("root", 0.0, now_s)] == [0, 1, 2, 3]
    assert store.owner_uses.drop_before(now_s - USE_KEPT_S, 1) == 1 and store.owner_uses.drop_before(now_s - USE_KEPT_S, 10) == 1
    assert [each.hour for each in store.owner_uses.hours("root", 0.0, now_s)] == [2, 3]


def test_readers_see_what_was_published(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.db")
    with closing(store), closing(store.reader()) as reader:
        store.begin()
        store.hosts.put(hello(), 0.0)
        place(store, claim("t", 2), OWN, ("GPU-h-0", "GPU-h-1"), 1.5 * HOUR_S)
        store.publish()
        store.commit()
        reader.begin_reading()
        reader.show_published()
        assert reader.owner_uses.held("root") == 2.0
        assert [(each.hour, each.gpu_s) for each in reader.owner_uses.hours("root", 0.0, 2.25 * HOUR_S)] == [
            (1, 3_600.0),
            (2, 1_800.0),
        ]
        reader.end_reading()
