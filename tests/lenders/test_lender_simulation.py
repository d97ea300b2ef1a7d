"""Corral and a random lender, which is slow, refuses, forgets, kills and loses machines: nothing is leaked or ended too early.

The core, its rows and its reconcilers are real, and so are the decisions of the keeper. Answers are lost or late, and Corral
forgets what it had in memory. Each planted fault must be found by some seed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import ApiError
from corral.core.ids import RandomIds
from corral.core.transactions import Tx
from corral.decide import allocations
from corral.decide.allocations import LenderMemory, Plan
from corral.fleet import hosts, instances
from corral.fleet.instances import InstanceRequest
from corral.model.agent_protocol import HostOptions
from corral.model.allocation import LENDER_TAG, LOCAL, Found, Phase, allocation_cluster
from corral.model.instance import InstanceState
from corral.model.lender_settings import SlurmSettings
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.services.corral import joining, lending
from corral.services.corral.joining import JoinRefused, Redemption
from corral.services.ecs import host_reports
from corral.store import Store
from store.rows import hello

SEEDS, STEPS, CALM_STEPS = 12, 120, 160
STEP_S = 5.0
LENDERS = ("one", "two")
CHOICES = ("one", "two", "one,two", "one,local", "local,two", "one,local,two")


class Violation(AssertionError):
    """Something that must never happen."""


class Job(Struct):
    """A job of the lender, and the truth about its processes, which the lender does not always know."""

    label: str
    secret: str
    phase: Phase = Phase.WAITING
    alive: bool = False  # whether its processes run
    cut_off: bool = False  # whether its machine is out of sight of the lender
    host_id: str = ""
    ended_steps: int = 0


class RandomLender:
    def __init__(self, name: str, rng: Random) -> None:
        self.name = name
        self.prefix = f"corral-x.{name}."
        self.jobs: dict[str, Job] = {}  # all, also those that the lender has forgotten
        self.known: set[str] = set()
        self.faulty = True
        self._rng = rng
        self._late: list[tuple[int, str, str]] = []  # steps, label, secret

    def launch(self, label: str, secret: str) -> str | None:
        """Return the id of a job, or None if the request is refused."""
        if self.faulty and self._rng.random() < 0.2:
            return None
        return self._accept(label, secret)

    def launch_later(self, label: str, secret: str) -> None:
        """A request without an answer arrives after some time."""
        self._late.append((self._rng.randrange(1, 6), label, secret))

    def _accept(self, label: str, secret: str) -> str:
        handle = f"{self.name}{len(self.jobs)}"
        self.jobs[handle] = Job(label, secret)
        self.known.add(handle)
        return handle

    def found(self) -> list[Found]:
        phase = {handle: Phase.UNKNOWN if self.jobs[handle].cut_off else self.jobs[handle].phase for handle in self.known}
        return [
            Found(self.jobs[handle].label, handle, phase[handle], f"{handle} is {phase[handle]}", None, f"machine-{handle}")
            for handle in sorted(self.known)
        ]

    def phase_of_missing(self, handle: str) -> Phase:
        return Phase.UNKNOWN if handle in self.jobs and self.jobs[handle].cut_off else Phase.ENDED

    def terminate(self, handle: str) -> None:
        job = self.jobs[handle]
        if job.phase is Phase.WAITING:
            job.phase = Phase.ENDED
        elif job.phase is Phase.RUNNING:
            job.phase = Phase.ENDING

    def pass_time(self) -> None:
        late, self._late = self._late, []
        for steps, label, secret in late:
            if steps:
                self._late.append((steps - 1, label, secret))
            else:
                self._accept(label, secret)
        for handle, job in self.jobs.items():
            if job.phase is Phase.WAITING and self._rng.random() < 0.3:
                job.phase, job.alive = Phase.RUNNING, True
            elif job.phase is Phase.ENDING and not job.cut_off and self._rng.random() < 0.5:
                job.phase, job.alive = Phase.ENDED, False
            elif job.phase is Phase.ENDED and not job.cut_off:
                job.alive, job.ended_steps = False, job.ended_steps + 1
            if job.ended_steps > 20:
                self.known.discard(handle)  # as Slurm forgets jobs after MinJobAge
            if self.faulty and job.phase is Phase.RUNNING:
                self._harm(handle, job)
            if job.cut_off and (not self.faulty or self._rng.random() < 0.1):
                job.cut_off = False
                if job.phase in (Phase.ENDING, Phase.ENDED):
                    job.phase, job.alive = Phase.ENDED, False

    def _harm(self, handle: str, job: Job) -> None:
        chance = self._rng.random()
        if chance < 0.01:
            job.phase, job.alive = Phase.ENDED, False  # killed
        elif chance < 0.02:
            job.phase, job.cut_off = Phase.ENDED, True  # its machine has failed, and still runs everything
        elif chance < 0.03:
            job.phase, job.cut_off = Phase.ENDED, True
            self.known.discard(handle)  # and the lender has forgotten it


class World:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.store, self.clock = Store(None), VirtualClock(1_000.0)
        settings = Settings(lenders={name: SlurmSettings() for name in LENDERS})
        self.core = Core(self.store, settings=settings, clock=self.clock, ids=RandomIds(), reconcilers=STATE)
        self.lenders = [RandomLender(name, self.rng) for name in LENDERS]
        self.memories = {each.name: LenderMemory(each.prefix) for each in self.lenders}
        self.run(lambda tx: host_reports.hello(tx, hello("h", 4, options=HostOptions(cluster=LOCAL))))

    def run(self, handler: Callable[[Tx[Store]], Any]) -> Any:
        outbox = self.core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults, outbox.faults[0]
        answer = outbox.answers[0][1]
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def simulate(self) -> None:
        for step in range(STEPS + CALM_STEPS):
            self.faulty = step < STEPS
            for lender in self.lenders:
                lender.faulty = self.faulty
            if self.faulty:
                self._ask_for_something()
            for lender in self.lenders:
                self._keep(lender)
                lender.pass_time()
                self._join(lender)
            self.clock.advance(STEP_S)
            alive = [job.host_id for lender in self.lenders for job in lender.jobs.values() if job.alive and job.host_id]
            self.run(lambda tx, alive=alive: hosts.heartbeats(tx, ["h", *alive]))
            self._check_ends()
        self._check_result()

    def _ask_for_something(self) -> None:
        live = [each for each in self.store.instances.all() if not each.is_host and each.state is not InstanceState.TERMINATED]
        if self.rng.random() < 0.25 and len(live) < 6:
            tags = [{"Key": LENDER_TAG, "Value": self.rng.choice(CHOICES)}]
            request = InstanceRequest(
                owner="root", region="us-east-1", cluster="c", type="g5.xlarge", gpus=1, cpu_units=1024, memory_mib=1024,
                details={"Tags": tags},
            )  # fmt: skip
            self.run(lambda tx: instances.launch(tx, request))
        if live and self.rng.random() < 0.15:
            chosen = self.rng.choice(live).id
            self.run(lambda tx: instances.terminate(tx, tx.store.instances.get(chosen), "a test ends it"))  # type: ignore[arg-type]
        if self.rng.random() < 0.02:  # Corral is killed
            self.memories = {each.name: LenderMemory(each.prefix) for each in self.lenders}

    def _is_lost(self) -> bool:
        return self.faulty and self.rng.random() < 0.15

    def _keep(self, lender: RandomLender) -> None:
        """A round of the keeper, any part of which may be lost."""
        memory, now_s = self.memories[lender.name], self.clock.now_s()
        if self._is_lost():
            return  # the lender does not answer
        wanted, found = self.store.allocations.of_lender(lender.name), lender.found()
        phases = {each.instance_id: lender.phase_of_missing(each.handle) for each in memory.missing_too_long(wanted, found, now_s)}
        planned: Plan = allocations.plan(lender.prefix, wanted, found + memory.still_counted(wanted, found, phases))
        if planned.reports:
            memory.repeat_later(self.run(lambda tx: lending.report(tx, planned.reports)), now_s)
        for handle in planned.terminate:
            if not self._is_lost():
                lender.terminate(handle)
        for allocation in planned.launch:
            if memory.may_launch(allocation.instance_id, now_s):
                self._launch(lender, allocation.instance_id, memory)

    def _launch(self, lender: RandomLender, instance_id: str, memory: LenderMemory) -> None:
        secret = f"{self.rng.random()}"
        if self.run(lambda tx: lending.request_of(tx, instance_id, secret)) is None or self._is_lost():
            return
        if self._is_lost():
            lender.launch_later(lender.prefix + instance_id, secret)
            return
        handle = lender.launch(lender.prefix + instance_id, secret)
        if handle is None:
            memory.repeat_later([instance_id], self.clock.now_s())
            self.run(lambda tx: lending.refused(tx, instance_id, "the lender refuses it"))
        elif not self._is_lost():  # else the answer is lost
            self.run(lambda tx: lending.requested(tx, instance_id, handle))

    def _join(self, lender: RandomLender) -> None:
        """Pilots ask to join, and their hosts report."""
        for handle, job in lender.jobs.items():
            if job.host_id or not job.alive or self.rng.random() < 0.3:
                continue
            instance_id = job.label.removeprefix(lender.prefix)
            request = Redemption(instance_id, job.secret, "pilot", f"key-{handle}", "1", "10.0.0.1", {}, handle)
            try:
                host = self.run(lambda tx, request=request: joining.redeem(tx, request))
            except JoinRefused:
                continue
            row = self.store.allocations.get(instance_id)
            if row is None or row.handle != handle:
                raise Violation(f"{handle} has joined for an instance that has {row}")
            job.host_id = host.id
            options = HostOptions(cluster=allocation_cluster(instance_id))
            self.run(lambda tx, host=host, options=options: host_reports.hello(tx, hello(host.id, 1, options=options)))

    def _check_ends(self) -> None:
        """While a process of an allocation may run, its row exists: so its tasks are not given up."""
        rows = {(each.lender, each.handle) for each in self.store.allocations.all()}
        for lender in self.lenders:
            for handle, job in lender.jobs.items():
                if job.alive and job.host_id and (lender.name, handle) not in rows:
                    raise Violation(f"{handle} counts as ended, and runs")

    def _check_result(self) -> None:
        """Each instance that was not terminated runs, and the lenders have exactly the jobs of these instances."""
        live = {
            each.id: each for each in self.store.instances.all() if not each.is_host and each.state is not InstanceState.TERMINATED
        }
        for lender in self.lenders:
            ours = {each.handle for each in self.store.allocations.of_lender(lender.name)}
            theirs = {handle for handle, job in lender.jobs.items() if job.phase is not Phase.ENDED or job.alive}
            if ours != theirs:
                raise Violation(f"Corral has {ours} of {lender.name}, which has {theirs}")
        for row in self.store.allocations.all():
            if row.instance_id not in live:
                raise Violation(f"{row} is left of an instance that was terminated")
        waiting = [each for each in live.values() if each.state is InstanceState.PENDING]
        if any(self.store.allocations.get(each.id) is not None for each in waiting):
            raise Violation(f"these instances have an allocation and do not run: {waiting}")


def test_every_instance_that_is_granted_is_used_or_given_back() -> None:
    for seed in range(SEEDS):
        try:
            World(seed).simulate()
        except AssertionError as wrong:
            wrong.add_note(f"seed {seed}")
            raise


# Planted faults

PLAN = allocations.plan


def _without_orphans(prefix: str, wanted: Any, found: Any) -> Plan:
    wanted = list(wanted)
    ours = {prefix + each.instance_id for each in wanted}
    return PLAN(prefix, wanted, [each for each in found if each.label in ours])


def _failed_machines_have_ended(prefix: str, wanted: Any, found: Any) -> Plan:
    return PLAN(prefix, wanted, [replace(each, phase=Phase.ENDED) if each.phase is Phase.UNKNOWN else each for each in found])


def _forgotten_has_ended(prefix: str, wanted: Any, found: Any) -> Plan:
    return PLAN(prefix, wanted, [each for each in found if each.phase is not Phase.UNKNOWN or "is" in each.reason])


def _ends_once(tx: Tx[Store], reports: Any) -> list[str]:
    return lending_report(tx, tuple(each for each in reports if each.phase is not Phase.ENDED))


def _ending_is_ended(prefix: str, wanted: Any, found: Any) -> Plan:
    return PLAN(prefix, wanted, [replace(each, phase=Phase.ENDED) if each.phase is Phase.ENDING else each for each in found])


lending_report = lending.report
FAULTS: dict[str, tuple[Any, str, Any]] = {
    "an allocation that no row remembers stays": (allocations, "plan", _without_orphans),
    "a machine that has failed is proof": (allocations, "plan", _failed_machines_have_ended),
    "an allocation that is ending has ended": (allocations, "plan", _ending_is_ended),
    "a forgotten allocation is gone wherever its machine is": (RandomLender, "phase_of_missing", lambda self, handle: Phase.ENDED),
    "ends are not stored": (lending, "report", _ends_once),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    for seed in range(SEEDS):
        try:
            World(seed).simulate()
        except AssertionError as found:
            print(f"{fault}: seed {seed}, {found}")
            return
    raise AssertionError(f"no seed has found it: {fault}")
