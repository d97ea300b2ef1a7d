"""The store compared with a dict: the same random operations on both, and equal contents after each of them.

It runs in memory and on a file; savepoints, commits, rollbacks and reopening come in any order, as the core would use them.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from corral.decide.placement.place import place
from corral.decide.tasks.lifecycle import advance, observe
from corral.model.instance import Instance, InstanceState, cluster_pool, host_instance_id, host_pool
from corral.model.placement import Placement
from corral.model.run import Observed, RunState
from corral.model.task import Demand, PlacementRules, Task, TaskState
from corral.services.ecs.gpu_assignment import share_gpus
from corral.store import HOLD_PREFIX, Store
from examples import examples
from memory_files import MEMORY
from store.rows import claim, derived_index, hello

HOSTS = st.sampled_from(("h1", "h2", "h3"))
FAMILIES = st.sampled_from(("f", "g"))
NAMES = st.sampled_from(("x", "y", "z"))
RULES = st.sampled_from(
    (
        None,
        None,
        PlacementRules("r/default", ("attribute:x == 1",)),
        PlacementRules("r/default", distinct=True, group="r/default/", depends_on_tasks=True),
        PlacementRules("r/default", strategy=(("spread", "attribute:x"), ("random", "")), group="r/default/"),
    )
)
SHARED_MIB = st.sampled_from((0, 0, 3_000, 5_000, 8_000))  # 0: whole GPUs
LIMITS_S = st.sampled_from((None, 1_000.0, 2_000.0))
TASKS = st.integers(0, 11).map(lambda number: f"t{number}")
INSTANCES = st.integers(0, 5).map(lambda number: f"i{number}")
JOINED = cluster_pool("r", "c")  # the pool of the instances that joined the cluster `c`
POOLS = st.sampled_from((host_pool("default"), host_pool("default"), JOINED))


@dataclass
class Model:
    """The expected contents of the store."""

    clusters: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    definitions: dict[tuple[str, int], tuple[str, dict[str, Any]]] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)  # family → its last revision number
    stored: dict[str, dict[str, Any]] = field(default_factory=dict)
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    instances: dict[str, Instance] = field(default_factory=dict)  # without the hosts' own
    taken: dict[str, str] = field(default_factory=dict)  # GPU → the instance that owns it, without hosts' own instances
    tasks: dict[str, Task] = field(default_factory=dict)
    roaming: set[str] = field(default_factory=set)  # tasks that may use two pools; those that wait are in the index
    due: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, tuple[str, str, float]] = field(default_factory=dict)

    def leases(self) -> dict[str, list[tuple[str, int]]]:
        """GPU → (task, memory on the GPU that it shares or 0), for placed runs that have not ended."""
        found: dict[str, list[tuple[str, int]]] = {}
        for task in self.tasks.values():
            for run in task.runs:
                for gpu in run.gpu_ids if run.state is not RunState.STOPPED else ():
                    found.setdefault(gpu, []).append((task.id, run.gpu_memory_mib))
        return found

    def shared(self, slot_id: str, host_id: str) -> dict[str, int]:
        """GPU that tasks share → its memory that is left. GPUs that get no new tasks are not in it."""
        host = self.hosts[host_id]
        is_own = slot_id == host_instance_id(host_id)
        away = {*host["foreign"], *host["failed"], *(host["away"] if is_own else ())}
        return {
            gpu: host["gpu_memory_mib"] - sum(memory_mib for _, memory_mib in holders)
            for gpu, holders in self.leases().items()
            if holders[0][1]
            and gpu in host["gpus"]
            and gpu not in away
            and self.taken.get(gpu, host_instance_id(host_id)) == slot_id
        }

    def slots(self, pool: str) -> dict[str, tuple[tuple[str, ...], int, int]]:
        """Slot → its free GPUs, CPU units and memory."""
        if pool == host_pool("default"):
            sizes = {host_instance_id(host_id): (host_id, host["cpu_units"], 4096) for host_id, host in self.hosts.items()}
        else:
            living = [each for each in self.instances.values() if each.host_id and each.state is not InstanceState.TERMINATED]
            sizes = {each.id: (str(each.host_id), each.cpu_units, each.memory_mib) for each in living if each.pool == pool}
        return {slot_id: self._free(slot_id, *size) for slot_id, size in sizes.items()}

    def _free(self, slot_id: str, host_id: str, cpu_units: int, memory_mib: int) -> tuple[tuple[str, ...], int, int]:
        host = self.hosts[host_id]
        is_own = slot_id == host_instance_id(host_id)
        held = {*self.leases(), *host["foreign"], *host["failed"], *(host["away"] if is_own else ())}
        owned = [gpu for gpu in host["gpus"] if self.taken.get(gpu) == (None if is_own else slot_id)]
        there = [task.demand for task in self.tasks.values() if task.instance_id == slot_id and task.state is not TaskState.STOPPED]
        return (
            tuple(gpu for gpu in owned if gpu not in held),
            cpu_units - sum(demand.cpu_units for demand in there),
            memory_mib - sum(demand.memory_mib for demand in there),
        )


class StoreMachine(RuleBasedStateMachine):
    """`now` is the state in the open transaction; `committed` and `saved` are the states that rollbacks restore."""

    on_file = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="corral-store-", dir=MEMORY)) if self.on_file else None
        self.store = self.open()
        self.now, self.committed, self.saved = Model(), Model(), None
        self.clock_s = 100.0
        self.documents = 0

    def open(self) -> Store:
        store = Store(self.folder / "state.db" if self.folder else None)
        store.execute("PRAGMA synchronous=OFF")
        return store

    def teardown(self) -> None:
        self.store.close()
        if self.folder is not None:
            shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.store.begin()

    # Transactions in the order in which the core uses them

    @precondition(lambda self: self.saved is None)
    @rule()
    def savepoint(self) -> None:
        self.store.savepoint()
        self.saved = deepcopy(self.now)

    @precondition(lambda self: self.saved is not None)
    @rule()
    def release(self) -> None:
        self.store.release()
        self.saved = None

    @precondition(lambda self: self.saved is not None)
    @rule()
    def back_to_savepoint(self) -> None:
        self.store.rollback_to_savepoint()
        self.now, self.saved = self.saved, None

    @precondition(lambda self: self.saved is None)
    @rule()
    def commit(self) -> None:
        self.store.commit()
        self.committed = deepcopy(self.now)
        self.store.begin()

    @rule()
    def rollback(self) -> None:
        self.store.rollback()
        self.now, self.saved = deepcopy(self.committed), None
        self.store.begin()

    @precondition(lambda self: self.on_file)
    @rule()
    def reopen(self) -> None:
        """The process ends, with its open transaction."""
        self.store.close()
        self.store = self.open()
        self.now, self.saved = deepcopy(self.committed), None
        self.store.begin()

    # Writes

    @rule(name=NAMES, active=st.booleans(), tag=st.integers(0, 3))
    def put_cluster(self, name: str, active: bool, tag: int) -> None:
        status = "ACTIVE" if active else "INACTIVE"
        self.store.clusters.put("r", name, status, {"tag": tag})
        self.now.clusters[name] = (status, {"tag": tag})

    @rule(family=FAMILIES)
    def add_definition(self, family: str) -> None:
        self.documents += 1
        document = {"family": family, "number": self.documents}
        revision = self.store.definitions.add("r", family, document, "root")
        assert revision == 1 + self.now.revisions.get(family, 0)
        self.now.revisions[family] = revision
        self.now.definitions[family, revision] = ("ACTIVE", document)

    @precondition(lambda self: self.now.definitions)
    @rule(data=st.data(), status=st.sampled_from(("ACTIVE", "INACTIVE", "DELETE_IN_PROGRESS")))
    def change_definition(self, data: st.DataObject, status: str) -> None:
        family, revision = data.draw(st.sampled_from(sorted(self.now.definitions)))
        document = {**self.now.definitions[family, revision][1], "changedAt": self.clock_s}
        self.store.definitions.change("r", family, revision, status, document)
        self.now.definitions[family, revision] = (status, document)

    @rule()
    def drop_deleted_definitions(self) -> None:
        assert self.store.definitions.drop_deleted("account", 100) == 0, "no task here refers to one"
        for key, (status, _) in list(self.now.definitions.items()):
            if status == "DELETE_IN_PROGRESS":
                del self.now.definitions[key]

    @rule(name=NAMES, number=st.integers(0, 9))
    def add_stored(self, name: str, number: int) -> None:
        assert self.store.stored.add("s", "k", "r", name, {"number": number}, self.clock_s) == (name not in self.now.stored)
        self.now.stored.setdefault(name, {"number": number})

    @rule(name=NAMES, number=st.integers(0, 9))
    def change_stored(self, name: str, number: int) -> None:
        assert self.store.stored.change("s", "k", "r", name, {"number": number}) == (name in self.now.stored)
        if name in self.now.stored:
            self.now.stored[name] = {"number": number}

    @rule(name=NAMES)
    def drop_stored(self, name: str) -> None:
        assert self.store.stored.drop("s", "k", "r", name) == (name in self.now.stored)
        self.now.stored.pop(name, None)

    @rule(
        host_id=HOSTS,
        gpus=st.integers(0, 4),
        cpu_units=st.sampled_from((1024, 4096)),
        gpu_memory_mib=st.sampled_from((16_000, 16_000, 9_000)),
    )
    def put_host(self, host_id: str, gpus: int, cpu_units: int, gpu_memory_mib: int) -> None:
        """A host may reconnect with other GPUs, and with less capacity than its tasks use."""
        said = hello(host_id, gpus, cpu_units=cpu_units, gpu_memory_mib=gpu_memory_mib)
        self.store.hosts.put(said, self.clock_s)
        shown = [gpu.gpu_id for gpu in said.gpus]
        away = self.now.hosts[host_id]["away"] if host_id in self.now.hosts else set()
        failed = self.now.hosts[host_id]["failed"] if host_id in self.now.hosts else set()
        self.now.hosts[host_id] = {
            "gpus": shown, "cpu_units": cpu_units, "memory_mib": 4096, "connected": True, "away": away, "foreign": set(),
            "failed": failed, "gpu_memory_mib": gpu_memory_mib,
        }  # fmt: skip

    @precondition(lambda self: self.now.hosts)
    @rule(data=st.data(), at=st.integers(0, 3))
    def hold_or_release(self, data: st.DataObject, at: int) -> None:
        host_id = data.draw(st.sampled_from(sorted(self.now.hosts)))
        gpu_id, away = f"GPU-{host_id}-{at}", self.now.hosts[host_id]["away"]
        own_id = host_instance_id(host_id)
        assert self.store.instances.drop_attribute(own_id, HOLD_PREFIX + gpu_id) == (gpu_id in away)
        if gpu_id not in away:
            self.store.instances.put_attribute(own_id, HOLD_PREFIX + gpu_id, "mine")
        away ^= {gpu_id}

    @precondition(lambda self: self.now.hosts)
    @rule(data=st.data(), used=st.sets(st.integers(0, 3)))
    def others_compute(self, data: st.DataObject, used: set[int]) -> None:
        host_id = data.draw(st.sampled_from(sorted(self.now.hosts)))
        host = self.now.hosts[host_id]
        found = {gpu_id: [(7, "x")] if at in used else [] for at, gpu_id in enumerate(host["gpus"])}
        now_used = {gpu_id for gpu_id, processes in found.items() if processes}
        assert self.store.hosts.put_foreign(host_id, found) == (now_used != host["foreign"])
        host["foreign"] = now_used

    @precondition(lambda self: self.now.hosts)
    @rule(data=st.data(), failed=st.sets(st.integers(0, 3)))
    def gpus_fail(self, data: st.DataObject, failed: set[int]) -> None:
        """A host reports faults of its GPUs. A GPU that it no longer has keeps its fault until the next report."""
        host_id = data.draw(st.sampled_from(sorted(self.now.hosts)))
        host = self.now.hosts[host_id]
        now_failed = {gpu_id for at, gpu_id in enumerate(host["gpus"]) if at in failed}
        changed = self.store.hosts.put_faults(host_id, dict.fromkeys(now_failed, "Xid 79"), self.clock_s)
        assert set(changed) == now_failed ^ host["failed"]
        host["failed"] = now_failed

    @precondition(lambda self: self.now.hosts)
    @rule(data=st.data(), connected=st.booleans())
    def hear_or_miss_a_host(self, data: st.DataObject, connected: bool) -> None:
        host_id = data.draw(st.sampled_from(sorted(self.now.hosts)))
        if connected:
            self.store.hosts.seen([host_id], self.clock_s)
        else:
            self.store.hosts.silent(host_id)
        self.now.hosts[host_id]["connected"] = connected

    @precondition(lambda self: self.now.hosts)
    @rule(data=st.data(), value=st.sampled_from(("", "1", None)), status=st.sampled_from(("ACTIVE", "DRAINING")))
    def say_something_of_a_host(self, data: st.DataObject, value: str | None, status: str) -> None:
        host_id = host_instance_id(data.draw(st.sampled_from(sorted(self.now.hosts))))
        said = self.store.instances.attributes(host_id)
        if value is None:
            assert self.store.instances.drop_attribute(host_id, "x") == ("x" in said)
        else:
            self.store.instances.put_attribute(host_id, "x", value)
        self.store.instances.set_status(host_id, status)
        others = {name: text for name, text in said.items() if name != "x"}  # holds are attributes too
        assert self.store.instances.attributes(host_id) == others | ({} if value is None else {"x": value})

    @rule(instance_id=INSTANCES, gpus=st.integers(0, 3), since_s=st.integers(1, 3), cluster=st.sampled_from(("c", "c", "")))
    def claim_instance(self, instance_id: str, gpus: int, since_s: int, cluster: str) -> None:
        if instance_id not in self.now.instances:
            waiting = Instance(instance_id, "r", cluster, "type", InstanceState.PENDING, gpus, 2048, 2048, float(since_s))
            self.store.instances.add(waiting, host_pool("default"), (float(since_s),))
            self.now.instances[instance_id] = waiting

    @rule(instance_id=INSTANCES)
    def launch_instance(self, instance_id: str) -> None:
        waiting = self.now.instances.get(instance_id)
        if waiting is None or waiting.state is not InstanceState.PENDING:
            return
        spot = place(self.store.fleet.pool(host_pool("default")), waiting.demand)
        if isinstance(spot, Placement):
            self.now.instances[instance_id] = self.store.instances.launch(waiting, spot, self.clock_s)
            self.now.taken |= dict.fromkeys(spot.gpu_ids, instance_id)

    @rule(instance_id=INSTANCES, since_s=st.integers(1, 3))
    def stop_or_start_instance(self, instance_id: str, since_s: int) -> None:
        """An instance that stops keeps its GPUs while it has tasks; a stopped one owns nothing and may wait again."""
        instance = self.now.instances.get(instance_id)
        if instance is None:
            return
        if instance.state is InstanceState.RUNNING:
            self.now.instances[instance_id] = self.store.instances.begin_end(
                instance, InstanceState.STOPPING, "why", self.clock_s
            )  # fmt: skip
        elif instance.state is InstanceState.STOPPING and not self.store.tasks.on(instance_id):
            self.now.instances[instance_id] = self.store.instances.stop(instance, self.clock_s)
            self.now.taken = {gpu: owner for gpu, owner in self.now.taken.items() if owner != instance_id}
        elif instance.state is InstanceState.STOPPED:
            restarted, _ = self.store.instances.restart(instance, host_pool("default"), (float(since_s),), "why")
            self.now.instances[instance_id] = restarted.but(cluster="c")

    @rule(instance_id=INSTANCES)
    def end_instance(self, instance_id: str) -> None:
        """An instance shuts down first, and gives its GPUs back only when it has no tasks."""
        instance = self.now.instances.get(instance_id)
        if instance is None or instance.state is InstanceState.TERMINATED:
            return
        if instance.state in (InstanceState.RUNNING, InstanceState.STOPPING):
            ending = self.store.instances.begin_end(instance, InstanceState.SHUTTING_DOWN, "", self.clock_s)
            self.now.instances[instance_id] = ending
        elif not self.store.tasks.on(instance_id):
            self.now.instances[instance_id] = self.store.instances.terminate(instance, self.clock_s)
            self.now.taken = {gpu: owner for gpu, owner in self.now.taken.items() if owner != instance_id}
        elif any(self.now.taken.get(gpu) == instance_id for gpu in self.now.leases()):
            own_id = host_instance_id(str(instance.host_id))
            with pytest.raises(sqlite3.IntegrityError):  # a leased GPU cannot change its owner
                self.store.execute("UPDATE gpu SET instance_id = ? WHERE instance_id = ?", (own_id, instance_id))

    @rule(
        task_id=TASKS, gpus=st.integers(0, 3), since_s=st.integers(1, 3), cpu_units=st.sampled_from((0, 512)), rules=RULES,
        pool=POOLS, roams=st.booleans(), limit_s=LIMITS_S, shared_mib=SHARED_MIB,
    )  # fmt: skip
    def add_claim(
        self,
        task_id: str,
        gpus: int,
        since_s: int,
        cpu_units: int,
        rules: PlacementRules | None,
        pool: str,
        roams: bool,
        limit_s: float | None,
        shared_mib: int,
    ) -> None:
        if task_id not in self.now.tasks:
            gpus = 1 if shared_mib else gpus
            task = claim(
                task_id, gpus, since_s=float(since_s), cpu_units=cpu_units, memory_mib=256, rules=rules, pool=pool,
                gpu_memory_mib=shared_mib,
            )  # fmt: skip
            task = task.but(time_limit_s=limit_s)
            self.store.tasks.add(task, (float(since_s),), roams=roams, longest_s=limit_s)
            self.now.tasks[task_id] = task
            if roams:
                self.now.roaming.add(task_id)

    @rule(task_id=TASKS, pool=POOLS)
    def move_claim(self, task_id: str, pool: str) -> None:
        task = self.now.tasks.get(task_id)
        if task is not None and task.state is TaskState.PROVISIONING and task_id in self.now.roaming and task.pool != pool:
            self.store.tasks.move_claim(task, pool)
            self.now.tasks[task_id] = task.but(pool=pool, version=task.version + 1)

    @rule(task_id=TASKS, gpus=st.integers(0, 3), pool=POOLS, limit_s=LIMITS_S, shared_mib=SHARED_MIB)
    def add_placed(self, task_id: str, gpus: int, pool: str, limit_s: float | None, shared_mib: int) -> None:
        gpus = 1 if shared_mib else gpus
        spot = place(self.store.fleet.pool(pool), Demand(gpus, 0, 256, gpu_memory_mib=shared_mib))
        if task_id in self.now.tasks or not isinstance(spot, Placement):
            return
        task = claim(task_id, gpus, memory_mib=256, pool=pool, gpu_memory_mib=shared_mib).but(time_limit_s=limit_s)
        runs = share_gpus(task.runs, spot.gpu_ids)
        placed = replace(task, state=TaskState.PENDING, instance_id=spot.slot_id, placed_at_s=self.clock_s, runs=runs)
        self.store.tasks.add(placed)
        self.now.tasks[task_id] = placed

    @rule(task_id=TASKS)
    def grant(self, task_id: str) -> None:
        task = self.now.tasks.get(task_id)
        if task is None or task.state is not TaskState.PROVISIONING:
            return
        spot = place(self.store.fleet.pool(task.pool), task.demand)
        if isinstance(spot, Placement):
            after = self.store.tasks.place(task, spot, share_gpus(task.runs, spot.gpu_ids), self.clock_s)
            self.now.tasks[task_id] = after

    @rule(task_id=TASKS, ended=st.booleans())
    def hear_of_a_run(self, task_id: str, ended: bool) -> None:
        task = self.now.tasks.get(task_id)
        if task is None or task.state in (TaskState.PROVISIONING, TaskState.STOPPED):
            return
        self.clock_s += 1
        run = task.runs[0]
        seen = Observed(run.id, 7, self.clock_s - 1, self.clock_s if ended else None, 0 if ended else None)
        self._change(task, advance(task, (observe(run, seen),), self.clock_s).task)

    @rule(task_id=TASKS)
    def stop(self, task_id: str) -> None:
        task = self.now.tasks.get(task_id)
        if task is None or task.desired is TaskState.STOPPED:
            return
        after = replace(task, desired=TaskState.STOPPED, stopping_at_s=self.clock_s, stop_code="UserInitiated")
        if task.state is TaskState.PROVISIONING:
            runs = tuple(replace(run, state=RunState.STOPPED) for run in task.runs)
            after = replace(after, state=TaskState.STOPPED, stopped_at_s=self.clock_s, runs=runs)
        self._change(task, after)

    @rule(task_id=TASKS, tag=st.integers(0, 3))
    def set_task_details(self, task_id: str, tag: int) -> None:
        task = self.now.tasks.get(task_id)
        if task is not None:
            self.now.tasks[task_id] = self.store.tasks.set_details(task, {"tag": tag})

    def _change(self, before: Task, after: Task) -> None:
        self.store.tasks.change(before, after, self.clock_s)
        moved = (before.state, before.desired) != (after.state, after.desired)
        self.now.tasks[before.id] = replace(after, version=before.version + moved)

    @rule()
    def drop_stopped(self) -> None:
        old = [task.id for task in self.now.tasks.values() if task.stopped_at_s is not None and task.stopped_at_s < self.clock_s]
        assert self.store.tasks.drop_stopped(self.clock_s, 100) == len(old)
        for task_id in old:
            del self.now.tasks[task_id]

    @rule(name=NAMES, at_s=st.integers(90, 130))
    def set_due(self, name: str, at_s: int) -> None:
        self.store.set_due(f"look:{name}", float(at_s))
        self.now.due[f"look:{name}"] = min(float(at_s), self.now.due.get(f"look:{name}", float(at_s)))

    @rule(limit=st.integers(1, 3))
    def take_due(self, limit: int) -> None:
        """Keys of the reconciler `look` may be taken together. They are taken in the order of their times."""
        expected = sorted((at_s, key) for key, at_s in self.now.due.items() if at_s <= self.clock_s)[:limit]
        assert self.store.take_due(self.clock_s, limit, {"look"}) == [key for _, key in expected]
        for _, key in expected:
            del self.now.due[key]

    @rule(name=NAMES, reply=st.integers(0, 9), lives_s=st.integers(-5, 20))
    def remember(self, name: str, reply: int, lives_s: int) -> None:
        self.store.tokens.put("scope", name, "digest", str(reply), self.clock_s + lives_s)
        self.now.tokens[name] = ("digest", str(reply), self.clock_s + lives_s)

    @rule()
    def drop_tokens(self) -> None:
        old = [name for name, token in self.now.tokens.items() if token[2] <= self.clock_s]
        assert self.store.tokens.drop_expired(self.clock_s, 100) == len(old)
        for name in old:
            del self.now.tokens[name]

    # Comparison

    @invariant()
    def rows_agree(self) -> None:
        store, now = self.store, self.now
        assert {name: store.clusters.get("r", name) for name in now.clusters} == now.clusters
        assert store.clusters.names("r", "", 10) == sorted(name for name, (status, _) in now.clusters.items() if status == "ACTIVE")
        for (family, revision), (status, document) in now.definitions.items():
            assert store.definitions.get("r", family, revision) == (revision, status, document)
        for family in ("f", "g"):
            active = [at for (name, at), (status, _) in now.definitions.items() if (name, status) == (family, "ACTIVE")]
            newest = store.definitions.get("r", family, None)
            assert (newest[0] if newest else 0) == max(active, default=0)
        for status in ("ACTIVE", "INACTIVE", "DELETE_IN_PROGRESS"):
            listed = sorted(key for key, (its_status, _) in now.definitions.items() if its_status == status)
            assert store.definitions.listed("r", status, family=None, after=None, limit=99, descending=False) == listed
            after = store.definitions.listed("r", status, family=None, after=("f", 1), limit=99, descending=True)
            assert after == [key for key in reversed(listed) if key < ("f", 1)]
        active_families = {family for (family, _), (status, _) in now.definitions.items() if status == "ACTIVE"}
        assert store.definitions.families("r", "", "ACTIVE", "", 9) == sorted(active_families)
        assert store.definitions.families("r", "", "ALL", "", 9) == sorted({family for family, _ in now.definitions})
        assert dict(store.stored.listed("s", "k", "r")) == now.stored
        assert {host["id"]: bool(host["connected"]) for host in store.hosts.all()} == {
            host_id: host["connected"] for host_id, host in now.hosts.items()
        }
        assert {task_id: store.tasks.get(task_id) for task_id in now.tasks} == now.tasks
        assert sum(store.tasks.listing.counts().values()) == len(now.tasks)
        for host_id, host in now.hosts.items():
            assert store.instances.holds(host_instance_id(host_id)) == dict.fromkeys(sorted(host["away"]), "mine")
            assert store.hosts.foreign(host_id).keys() == host["foreign"]
            assert store.hosts.faults(host_id).keys() == host["failed"] & set(host["gpus"])
        held = {gpu: task_ids for host_id in now.hosts for gpu, task_ids in store.hosts.holders(host_id).items()}
        assert held == {gpu: sorted(task_id for task_id, _ in holders) for gpu, holders in now.leases().items()}
        modes = dict(store.execute("SELECT id, mode FROM gpu").fetchall())
        assert {gpu for gpu, mode in modes.items() if mode == "shared"} == {
            gpu for gpu, holders in now.leases().items() if holders[0][1]
        }
        assert store.next_due_s() == min(now.due.values(), default=None)
        for name, token in now.tokens.items():
            assert store.tokens.get("scope", name, self.clock_s) == (token[:2] if token[2] > self.clock_s else None)

    @invariant()
    def index_agrees(self) -> None:
        for name in (host_pool("default"), JOINED):
            pool = self.store.fleet.pool(name)
            found = {slot.id: (tuple(slot.gpus), slot.cpu_units, slot.memory_mib) for slot in pool.slots()}
            assert found == self.now.slots(name)
            for slot in pool.slots():
                host_id = self.store.instances.host_of(slot.id)
                assert slot.shared == self.now.shared(slot.id, host_id)
                assert set(slot.shared).isdisjoint(slot.gpus), "a GPU that tasks share is offered as a whole"
            tasks = [task for task in self.now.tasks.values() if task.state is TaskState.PROVISIONING and task.pool == name]
            waiting = [((task.created_at_s,), "task", task.id) for task in tasks]
            if name == host_pool("default"):
                pending = [each for each in self.now.instances.values() if each.state is InstanceState.PENDING]
                waiting += [((each.created_at_s,), "instance", each.id) for each in pending]
            assert pool.waiting() == len(waiting)
            if waiting:
                head = pool.heads()[0]
                assert (head.rank, head.kind, head.id) == min(waiting)

    @invariant()
    def no_gpu_has_two_owners(self) -> None:
        offered = [
            gpu for pool in (host_pool("default"), JOINED) for slot in self.store.fleet.pool(pool).slots() for gpu in slot.gpus
        ]
        assert len(offered) == len(set(offered)), "a GPU is offered by two slots"
        owners = dict(self.store.execute("SELECT id, instance_id FROM gpu").fetchall())
        for gpu, owner in owners.items():
            assert owner == self.now.taken.get(gpu, host_instance_id(gpu.split("-")[1]))

    @invariant()
    def running_instances_are_billed(self) -> None:
        billed = [name for (name,) in self.store.execute("SELECT instance_id FROM instance_usage WHERE billed_until IS NULL")]
        running = [each.id for each in self.now.instances.values() if each.state is InstanceState.RUNNING]
        assert sorted(billed) == sorted(running)

    @invariant()
    def live_tasks_are_those_committed(self) -> None:
        tasks = self.committed.tasks.values()
        assert self.store.tasks.live == {task.id for task in tasks if task.instance_id and task.state is not TaskState.STOPPED}

    @invariant()
    def index_is_what_the_rows_say(self) -> None:
        fleet, claims = derived_index(self.store)
        assert self.store.fleet.snapshot() == fleet.snapshot()
        assert self.store.claims.roaming == claims.roaming
        self.store.owner_uses._write()  # as before a commit
        before = self.store.owner_uses.snapshot()
        self.store.owner_uses.rebuild(self.store.instances.slices())
        assert self.store.owner_uses.snapshot() == before
        waiting = {task_id for task_id in self.now.roaming if self.now.tasks[task_id].state is TaskState.PROVISIONING}
        pending = {each.id for each in self.now.instances.values() if each.state is InstanceState.PENDING}
        assert {each.id for claims in self.store.claims.roaming.values() for each in claims} == waiting | pending


class FileStoreMachine(StoreMachine):
    on_file = True


TestInMemory = StoreMachine.TestCase
TestInMemory.settings = settings(max_examples=examples(40, usual=20), stateful_step_count=40, deadline=None)
TestOnFile = FileStoreMachine.TestCase
TestOnFile.settings = settings(max_examples=examples(25, usual=12), stateful_step_count=40, deadline=None)
