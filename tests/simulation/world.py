"""The whole control plane inside one seed: real core, store, reconcilers and handlers; a virtual clock; simulated hosts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from msgspec import structs

from corral.core.clock import VirtualClock
from corral.core.core import Core
from corral.core.handovers import Delivery
from corral.core.ids import SeededIds
from corral.core.transactions import Reconciler, Tx
from corral.fleet import hosts
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.instance import InstanceState, host_pool, is_host_pool
from corral.model.placement import INSTANCE, TASK
from corral.model.settings import ScalingTimes, Settings
from corral.model.stop_reasons import HOST_FORGOTTEN
from corral.reconcile import STATE
from corral.services.corral import joining
from corral.services.ecs import host_loss, host_reports
from corral.services.ecs.handlers import HANDLERS
from corral.store.pool_index import PoolIndex
from memory_files import MEMORY
from simulation import joined_hosts
from simulation import plan as plans
from simulation.agenda import Agenda, Stuck
from simulation.checkers import listeners, matches_all
from simulation.clients import CALLER, FAMILIES, Clients
from simulation.group_clients import GroupClients
from simulation.host import ENDLESS, Engine, Host
from simulation.joined_hosts import serves_hello
from simulation.lanes import LANES, SimLogStore, SimMetricStore, SimStore
from simulation.log_clients import LogClients
from simulation.plane import Plane
from simulation.scaling_clients import ScalingClients
from simulation.service_clients import ServiceClients

LIVENESS_S = 1500.0
EVENTS_MAX = 20_000  # in each phase; hundreds are usual
LOOK_EVERY_S = 5.0
LOST_AFTER_S, CUT_EVERY_S, CHANGE_EVERY_S = 35.0, 8.0, 20.0
HOSTS_MAX, NEW_HOSTS = 12, 16  # the numbers of hosts that replace others begin with NEW_HOSTS
TAIL = 60  # lines of the trace that come with a failure


def forget(tx: Tx[Any], host_id: str) -> int | str:
    """Forget a host as `corral hosts forget` does, or say why not."""
    if tx.store.hosts.get(host_id) is None:
        return "it has not connected"
    return host_loss.why_not_forgotten(tx, host_id) or host_loss.forget(tx, host_id, HOST_FORGOTTEN)


def _is_known(tx: Tx[Any], host: Host) -> bool:
    joined = tx.store.joined_hosts.find(host.id)
    return joined is not None and bool(joined.machine)


@dataclass(frozen=True)
class Parts:
    """What the world is made of: a test hands in a faulty one and sees whether anybody objects."""

    core: type[Core[Any]] = Core
    delivery: type[Delivery] = Delivery
    store: type[SimStore] = SimStore
    log_store: type[SimLogStore] = SimLogStore
    metric_store: type[SimMetricStore] = SimMetricStore
    plane: type[Plane] = Plane
    engine: type[Engine] = Engine
    reconcilers: Mapping[str, Reconciler] = field(default_factory=lambda: STATE)
    handlers: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: HANDLERS)
    hello: Callable[..., None] = host_reports.hello
    report: Callable[..., None] = host_reports.report
    heartbeats: Callable[..., None] = hosts.heartbeats
    forget: Callable[..., Any] = forget
    identify: Callable[..., str] = joining.identify
    tune: Callable[[plans.Plan], plans.Plan] = lambda plan: plan  # a rare fault is looked for where it would show


class World:
    def __init__(self, seed: int, folder: Path, checkers: Sequence[Any], parts: Parts | None = None) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.parts = parts or Parts()
        self.plan = self.parts.tune(plans.draw(self.rng, Random(f"services of {seed}"), Random(f"clusters of {seed}")))
        self.clock = VirtualClock()
        self.agenda = Agenda(self.clock)
        lost_after = {DEFAULT_CLUSTER: LOST_AFTER_S} if self.plan.with_loss else {}
        self.settings = Settings(scaling=ScalingTimes(capacity_provider_in_s=60.0), lost_after=lost_after)
        self.ids = SeededIds(Random(self.rng.getrandbits(64)))
        self.trace: list[str] = []
        self.faulty = True
        self.healed_s = 0.0
        self.withheld_changes = 0  # how often somebody kept a GPU away, or gave it back
        self._checkers = checkers
        self._listeners: dict[str, list[Callable[..., None]]] = {}
        self.hosts = [Host(self, number, size) for number, size in enumerate(self.plan.hosts)]
        self.clients = Clients(self)
        self.service_clients = ServiceClients(self)
        self.group_clients = GroupClients(self)
        self.scaling_clients = ScalingClients(self)
        self.log_clients = LogClients(self)
        self.plane = self.parts.plane(self, folder)
        for checker in checkers:
            checker.world = self

    def note(self, *words: object) -> None:
        self.trace.append(f"{self.agenda.now:9.3f} {' '.join(map(str, words))}")

    def tell(self, what: str, *about: Any) -> None:
        if what not in self._listeners:
            self._listeners[what] = listeners(self._checkers, what)
        for listener in self._listeners[what]:
            listener(*about)

    def reading(self) -> Tx[Any]:
        """What a handler that only reads needs, outside any transaction."""
        return Tx(self.plane.store, self.clock.now_s(), self.ids, self.settings, self.clock.steps)

    def down_s(self) -> float:
        """How long something is away: mostly briefly, sometimes for longer than anybody waits."""
        if not self.faulty:
            return 0.1
        return self.rng.choice((0.01, 0.2, 2.0, 2.0, 25.0)) * self.rng.random()

    # The two phases

    def simulate(self) -> list[str]:
        self.note("seed", self.seed, self.plan)
        self.plane.start()
        for number in range(FAMILIES):
            self.clients.register(f"f{number}")
        if self.plan.with_services:
            self.service_clients.begin()
        if self.plan.with_groups:
            self.group_clients.begin()
        if self.plan.with_alarms:
            self.scaling_clients.begin()
        if self.plan.with_instances or self.plan.with_groups:
            self.clients.create_fleet()
        for host in self.hosts:
            self.agenda.after(self.down_s(), host.start_agent)
            self.agenda.after(5 * self.rng.random(), partial(self.clients.put_rack, host.id))
        self._stream(self.plan.requests)
        self.log_clients.begin()
        self._break_something()
        if self.plan.with_loss:
            self._cut_off()
        if self.plan.with_changes:
            self._change_machines()
        self._run_until(lambda: self.agenda.now >= self.plan.safety_s)
        self.heal()
        if self.plan.with_services or self.plan.with_groups:
            self._let_services_settle()
        deadline_s = self.agenda.now + LIVENESS_S
        self._run_until(lambda: self.settled() or self.agenda.now > deadline_s)
        if not self.settled():
            raise Stuck(f"still unfinished: {list(self.unfinished())}, {self.plane.undelivered()} hand-overs")
        self.tell("finished")
        for lane in self.plane.lanes.values():
            lane.store.connection.close()
        return self.trace

    def _let_services_settle(self) -> None:
        """Services and groups that are not deleted reach their number of tasks and instances. Then all are deleted."""
        deadline_s = self.agenda.now + LIVENESS_S
        self._run_until(lambda: self._quiet() or self.agenda.now > deadline_s)
        if not self._quiet():
            raise Stuck(f"services and groups do not settle: {list(self._unsettled())}")
        self.note("services are quiet")
        self.tell("services_settled")
        self.service_clients.delete_all()
        self.group_clients.delete_all()

    def _quiet(self) -> bool:
        return self.plane.up and self.clients.all_answered() and next(self._unsettled(), None) is None

    def _unsettled(self) -> Iterator[str]:
        if not self.plane.up:
            yield "the core is down"
            return
        yield from self.service_clients.unsettled()
        yield from self.group_clients.unsettled()
        if self.plan.with_alarms:
            yield from self.scaling_clients.unsettled()

    def _run_until(self, over: Callable[[], bool]) -> None:
        for _ in range(EVENTS_MAX):
            if over():
                return
            assert self.agenda.step(), "nothing will ever happen again"
        raise Stuck("too many events")

    def heal(self) -> None:
        """Faults off. A random core of the hosts lives on; the rest stay dead for ever."""
        self.faulty = False
        self.healed_s = self.agenda.now
        self.plane.trouble.clear()
        self.plane.steps_left.clear()
        living = [host for host in self.hosts if self.rng.random() < 0.6 and not host.dead]
        living = living or [self.rng.choice([host for host in self.hosts if not host.dead])]
        self.note("healed", [host.id[-2:] for host in living])
        for host in self.hosts:
            host.away_until = 0.0
            for gpu_id in list(host.foreign):
                host.somebody_computes(gpu_id)
            host.cut_until = 0.0
            if host in living:
                if host.agent is not None:
                    host.agent.cut()  # whatever stood still comes anew
                self.agenda.after(self.rng.random(), host.start_agent)
            else:
                host.die()
        self._stop_the_endless()

    def _stop_the_endless(self) -> None:
        if self.plane.up:
            for host in self.hosts:
                if host.has_joined and not host.dead:
                    joined_hosts.join_again(host)
            self.clients.release_all()
            rows = self.plane.store.execute(
                "SELECT id, cluster, definition_arn FROM task WHERE desired = 'RUNNING' AND task_group NOT LIKE 'service:%' "
                "ORDER BY id"
            )
            for task_id, cluster, definition_arn in rows.fetchall():
                if self._is_endless(definition_arn):
                    self.clients.ask("StopTask", {"cluster": cluster, "task": task_id, "reason": "the end"}, again=False)
            if self.plan.with_services:
                self.service_clients.calm()
            if self.plan.with_groups:
                self.group_clients.calm()
            # Some instances end now. The others stay to the end, unless a claim waits for their GPUs.
            late = self.agenda.now > self.healed_s + LIVENESS_S / 2 and self._waits_for_instances()
            for instance in self.plane.store.instances.all():
                if not instance.is_host and not instance.group and (late or int(instance.id, 16) % 2):
                    self.clients.terminate(instance.id)
                if instance.status == "DRAINING" and instance.state is InstanceState.RUNNING:
                    again = {"cluster": instance.cluster, "containerInstances": [instance.id], "status": "ACTIVE"}
                    self.clients.ask("UpdateContainerInstancesState", again, again=False)
        self.agenda.after(LOOK_EVERY_S, self._stop_the_endless)

    def _waits_for_instances(self) -> bool:
        """Whether a claim needs GPUs that a host has lent to EC2 instances.

        Such a claim may reserve the host, and claims behind it wait as long as the instances run. An instance runs until a client
        terminates it, as an endless task runs until a client stops it. So the clients end both: without that nothing has to end.
        """
        return any(
            slot.connected and slot.total.gpus < claim.demand.least_gpus <= slot.whole.gpus
            for pool in self._host_pools()
            for claim in pool.heads()
            for slot in pool.slots()
        )

    def _host_pools(self) -> list[PoolIndex]:
        store = self.plane.store
        return [store.fleet.pool(host_pool(cluster)) for cluster in sorted(store.instances.clusters_of_hosts())]

    def _is_endless(self, definition_arn: str) -> bool:
        """Whether only a StopTask will end such a task."""
        family, _, revision = definition_arn.rpartition("/")[2].partition(":")
        found = self.plane.store.definitions.get(CALLER.region, family, int(revision))
        assert found is not None
        by_name = {container["name"]: container for container in found[2]["containerDefinitions"]}

        def starts(name: str) -> bool:
            needs = [(need["containerName"], need["condition"]) for need in by_name[name].get("dependsOn", ())]
            return all(ends(other) if condition in ("COMPLETE", "SUCCESS") else starts(other) for other, condition in needs)

        def ends(name: str) -> bool:
            return by_name[name]["command"] != [ENDLESS] and starts(name)

        return not any(ends(name) for name, container in by_name.items() if container["essential"])

    def settled(self) -> bool:
        if not self.plane.up or not self.clients.all_answered() or self.service_clients.active():
            return False
        if self.group_clients.left():
            return False
        if next(self.unfinished(), None) is not None:
            return False
        dead = {host.id for host in self.hosts if host.dead}
        if any(host["connected"] for host in self.plane.store.hosts.all() if host["id"] in dead):
            return False
        return not self.plane.undelivered()

    def unfinished(self) -> Iterator[str]:
        """Tasks that have not stopped and could: on a living host, or waiting for less than a living slot has. Instances too."""
        if not self.plane.up:
            yield "the core is down"
            return
        living = {host.id: host for host in self.hosts if not host.dead}
        rows = self.plane.store.execute(
            "SELECT task.id, task.state, instance.host_id FROM task LEFT JOIN instance ON instance.id = task.instance_id "
            "WHERE task.state != 'STOPPED' ORDER BY task.id"
        )
        for task_id, state, host_id in rows.fetchall():
            if host_id in living or (host_id is None and self._could_hold(living, TASK, task_id)):
                yield f"{task_id} {state}"
        for instance in self.plane.store.instances.all():
            ends = instance.state in (InstanceState.SHUTTING_DOWN, InstanceState.STOPPING) and instance.host_id in living
            if ends or (instance.state is InstanceState.PENDING and self._could_hold(living, INSTANCE, instance.id)):
                yield f"{instance.id} {instance.state}"

    def _could_hold(self, living: Mapping[str, Host], kind: str, id: str) -> bool:
        """Whether a slot of a living host would hold a claim if nothing else were on it."""
        store = self.plane.store
        claim = store.claims.get(kind, id)
        assert claim is not None, f"{kind} {id} waits and has no claim"
        task = store.tasks.get(id) if kind == TASK else None
        demand, of_hosts = claim.demand, task is None or is_host_pool(task.pool)
        pools = self._host_pools() if task is None else [store.fleet.pool(task.pool)]
        if of_hosts and any(store.hosts.get(host_id) is None for host_id in living):
            return True  # a host that has not said hello yet
        return any(
            slot.total.gpus >= demand.least_gpus
            and slot.total.cpu_units >= demand.cpu_units
            and slot.total.memory_mib >= demand.memory_mib
            and (demand.rules is None or matches_all(demand.rules.member_of, slot.attributes))
            and (demand.rules is None or demand.rules.instance_group in ("", self._group_of(slot.id)))
            for pool in pools
            for slot in pool.slots()
            if store.instances.host_of(slot.id) in living and not slot.moves_to
        )

    def _group_of(self, instance_id: str) -> str:
        instance = self.plane.store.instances.get(instance_id)
        return instance.group if instance is not None else ""

    # What happens

    def _stream(self, left: int) -> None:
        """Requests, in bursts."""
        if left <= 0 or not self.faulty:
            return
        burst = self.rng.randint(1, self.plan.burst_max)
        for _ in range(burst):
            self.clients.something()
        mean_s = self.plan.safety_s * burst / self.plan.requests
        self.agenda.after(self.rng.expovariate(1 / mean_s), partial(self._stream, left - burst))

    def _break_something(self) -> None:
        if not self.faulty or not self.plan.faults:
            return
        fault = self.rng.choice(self.plan.faults)
        self.note("fault", fault)
        self._break(fault, self.rng.choice(self.hosts))
        self.agenda.after(self.rng.expovariate(1 / self.plan.fault_every_s), self._break_something)

    def _change_machines(self) -> None:
        """Start a copy of the disk of a host elsewhere, install a machine again, or let it join again in a new folder."""
        if not self.faulty:
            return
        host = self.rng.choice([each for each in self.hosts if not each.dead])
        what = self.rng.choice(("is copied", "is copied", "is installed again", "joins in a new folder"))
        if what == "is copied":
            self._start_copy(host)
        elif len(self.hosts) < HOSTS_MAX:
            self.note("host", host.id, what)
            new = host.join_again(len(self.hosts) + NEW_HOSTS, installed_again=what == "is installed again")
            self.hosts.append(new)
            self.agenda.after(self.down_s(), new.start_agent)
            if not host.dead:
                host.away_until = self.agenda.now + self.rng.choice((20.0, 40.0, 60.0))
                self.agenda.after(self.down_s(), host.start_agent)
        self.agenda.after(self.rng.expovariate(1 / CHANGE_EVERY_S), self._change_machines)

    def _start_copy(self, host: Host) -> None:
        """Let a copy of a host's disk connect from another machine, once. Its journal says that the runs of the host have ended."""
        ends = [structs.replace(seen, stopped_at_s=self.clock.wall_s(), reason="a restart") for seen in host.engine.observe()]
        hello = structs.replace(host.hello(ends), boot_id="boot of a copy")
        said = self.plane.submit(lambda tx: serves_hello(tx, hello, self, {"machine-id": "another"}) if _is_known(tx, host) else "")
        said.then(partial(self.note, "copy of", host.id))

    def _cut_off(self) -> None:
        """Cut the network of a host for some time, or forget one that is silent. The host may return with its tasks."""
        if not self.faulty:
            return
        host, away_s = self.rng.choice(self.hosts), self.rng.choice((5.0, 20.0, 40.0, 60.0))
        if self.rng.random() < 0.5:
            self.note("away", host.id, away_s)
            host.away_until = self.agenda.now + away_s
            if host.agent is not None:
                host.agent.cut()
        elif self.plane.up:
            self.plane.submit(partial(self.parts.forget, host_id=host.id)).then(partial(self.note, "forgets", host.id))
        self.agenda.after(self.rng.expovariate(1 / CUT_EVERY_S), self._cut_off)

    def _break(self, fault: str, host: Host) -> None:
        match fault:
            case "agent crash":
                host.crash_agent()
                self.agenda.after(self.down_s(), host.start_agent)
            case "reboot":
                host.reboot()
                self.agenda.after(self.down_s(), host.start_agent)
            case "link break" if host.agent is not None:
                host.agent.cut()
            case "link stall" if host.agent is not None and host.agent.connection is not None:
                until = self.agenda.now + self.rng.choice((0.5, 5.0, 20.0, 40.0))
                host.agent.connection.up.stalled_until = host.agent.connection.down.stalled_until = until
            case "core crash" if self.plane.up:
                self.plane.crash()
            case "crash before commit" | "crash after commit" | "disk full":
                self.plane.trouble[self.rng.choice(LANES)] = fault
            case "crash between steps" if self.plane.up:
                self.plane.steps_left[self.rng.choice(LANES)] = self.rng.randrange(6)
            case "clock step":
                step_s = self.rng.choice((-3600.0, 10.0, 86400.0))
                self.clock.set_wall(step_s)
                if self.plane.up:
                    self.plane.wall_clock_set(step_s)
            case "cut" | "revoke":
                joined = self.rng.choice([each for each in self.hosts if each.has_joined])
                joined_hosts.cut(joined) if fault == "cut" else joined_hosts.revoke(joined)
            case "hold" if host.gpus:
                self.clients.hold(host.id, self.rng.choice(host.gpus).gpu_id)
            case "foreign process" if host.gpus:
                host.somebody_computes(self.rng.choice(host.gpus).gpu_id)
            case "failing command":
                self.clients.fail_on_purpose()
                self.log_clients.fail_on_purpose()


def simulate(seed: int, checkers: Sequence[Any], parts: Parts | None = None) -> World:
    """One seed, from nothing to the end of everything that can end; raises what a checker objects to."""
    with tempfile.TemporaryDirectory(prefix="corral-sim-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        world = World(seed, Path(folder), checkers, parts)
        try:
            world.simulate()
        except Exception as error:
            error.add_note("\n".join([f"seed {seed}; the last of its trace:", *world.trace[-TAIL:]]))
            raise
        return world
