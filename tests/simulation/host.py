"""A simulated host: an engine that outlives its agent, and an agent that forgets everything when it dies.

They keep the contract of model/agent_protocol.py as corral.node does: starting twice is once, one report is unanswered at a
time, and an end is forgotten only when it was acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from corral.core.ids import simulated_gpu_id
from corral.model.agent_protocol import DEFAULT_CLUSTER, HEARTBEAT_S, Hello, HostOptions, Orders, Report
from corral.model.gpu import Foreign, GpuDevice
from corral.model.gpu_metrics import GpuSample
from corral.model.run import Observed, RunSpec
from corral.model.stop_reasons import STOPPED_BEFORE_START
from corral.node.gpu_topology import simulated
from simulation.link import Connection
from simulation.plan import LAB, HostSize

if TYPE_CHECKING:
    from simulation.world import World

ENDLESS = "serve"  # the command of a run that ends only when it is stopped
SIGTERM, SIGKILL = 143, 137
RECONNECT_S = 0.3


@dataclass(slots=True)
class Process:
    """What really is, as opposed to what anybody was told."""

    spec: RunSpec
    pid: int | None = None
    started_at_s: float | None = None
    stopped_at_s: float | None = None
    exit_code: int | None = None
    reason: str | None = None
    stopping: bool = False
    says_it_never_started: bool = False

    def observed(self) -> Observed:
        if self.says_it_never_started:
            return Observed(self.spec.run_id, stopped_at_s=self.stopped_at_s, reason=self.reason)
        return Observed(self.spec.run_id, self.pid, self.started_at_s, self.stopped_at_s, self.exit_code, self.reason)


class Engine:
    """The spawner: knows every run until it may forget it."""

    def __init__(self, world: World, host: Host) -> None:
        self.world = world
        self.host = host
        self.runs: dict[str, Process] = {}
        self._boots = 0
        self._pids = 1000
        self.answered_at = 0.0  # when the agent sent the last message that the core has answered

    def start(self, spec: RunSpec) -> None:
        known = self.runs.get(spec.run_id)
        if known is not None:
            self._tell(known)  # a repeated order may mean that the report was lost
            return
        process = self.runs[spec.run_id] = Process(spec)
        self._later(self.world.plan.start_s * self.world.rng.random(), partial(self._spawn, process))

    def stop(self, run_id: str, *, by_core: bool = True) -> None:
        process = self.runs.get(run_id)
        if process is None or process.stopped_at_s is not None or process.stopping:
            return
        process.stopping = True
        if by_core:
            self.world.tell("run_told_to_stop", self.host, process)
        if process.pid is None:
            self._end(process, None, STOPPED_BEFORE_START)
        elif self.world.rng.random() < self.world.plan.hangs_on_stop:
            self._later(process.spec.stop_grace_s, partial(self._end, process, SIGKILL, None))
        else:
            self._later(0.1 * self.world.rng.random(), partial(self._end, process, SIGTERM, None))

    def forget(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            process = self.runs.get(run_id)
            lost = self.world.rng.random() < self.world.plan.forgets_to_forget and self.world.faulty
            if process is not None and process.stopped_at_s is not None and not lost:
                del self.runs[run_id]

    def observe(self) -> list[Observed]:
        return [process.observed() for process in self.runs.values()]

    def agent_died(self) -> None:
        """Nothing of the engine dies with its agent."""

    def reboot(self) -> None:
        """Every process is gone; the journal may have survived and says so."""
        self._boots += 1
        remembers = self.world.rng.random() < 0.5
        for process in self.runs.values():
            if process.stopped_at_s is None:
                self._note_end(process, None, "the machine was restarted")
        if not remembers:
            self.runs.clear()

    def _later(self, delay_s: float, what: Any) -> None:
        boot = self._boots
        self.world.agenda.after(delay_s, lambda: what() if boot == self._boots and not self.host.dead else None)

    def _spawn(self, process: Process) -> None:
        world, plan = self.world, self.world.plan
        if process.stopped_at_s is not None:
            return
        if world.faulty and world.rng.random() < plan.start_failure:
            self._end(process, None, "CannotStartContainerError: no such program")
            return
        self._pids += 1
        process.pid, process.started_at_s = self._pids, world.clock.wall_s()
        if process.spec.fence_s is not None:
            self._fence(process, process.spec.fence_s)
        world.note("engine", self.host.id, "started", process.spec.run_id, process.spec.gpu_ids)
        world.tell("run_started", self.host, process)
        if world.faulty and world.rng.random() < plan.says_failed:
            process.says_it_never_started = True
            self._end(process, None, "CannotStartContainerError: or so it seems")
            return
        if process.spec.command != [ENDLESS]:
            code = world.rng.choice((0, 0, 0, 1, 2, SIGKILL))
            lost = world.rng.random() < plan.lost_exit
            end = partial(self._end, process, None if lost else code, "its end was not observed" if lost else None)
            self._later(world.rng.expovariate(1 / plan.run_s), end)
        self._tell(process)

    def _fence(self, process: Process, after_s: float) -> None:
        """Stop a run when the core has not answered for so long, also without an agent."""
        if process.stopped_at_s is not None or process.stopping:
            return
        if self.world.agenda.now >= self.answered_at + after_s:
            self.world.note("engine", self.host.id, "fences", process.spec.run_id)
            self.stop(process.spec.run_id, by_core=False)
        else:
            self._later(1.0, partial(self._fence, process, after_s))

    def lose_power(self) -> None:
        for process in self.runs.values():
            if process.stopped_at_s is None:
                self._note_end(process, None, "the power failed")

    def _end(self, process: Process, exit_code: int | None, reason: str | None) -> None:
        if process.stopped_at_s is None:
            self._note_end(process, exit_code, reason)
            self._tell(process)

    def _note_end(self, process: Process, exit_code: int | None, reason: str | None) -> None:
        process.stopped_at_s = self.world.clock.wall_s()
        process.exit_code, process.reason = exit_code, reason
        self.world.note("engine", self.host.id, "ended", process.spec.run_id, exit_code, reason)
        self.world.tell("run_ended", self.host, process)

    def _tell(self, process: Process) -> None:
        if self.host.agent is not None:
            self.host.agent.changed(process.spec.run_id)


class Agent:
    """One life of an agent process."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = host.world
        self._connection: Connection | None = None
        self._welcomed = False
        self._unanswered: list[Observed] | None = None
        self._changed: dict[str, None] = {}
        self._health: dict[str, str | None] = {}  # of runs that it was told to look at
        self._sampled: dict[str, None] = {}  # GPUs that others began or ceased to use
        self._reported_at = 0.0
        self._sent_at = 0.0

    @property
    def lives(self) -> bool:
        return self.host.agent is self

    def connect(self) -> None:
        if not self.lives or self._connection is not None:
            return
        if self.world.agenda.now < self.host.away_until:
            self.world.agenda.at(self.host.away_until, self.connect)
            return
        self._connection = self.world.plane.accept(self)
        if self._connection is None:
            self.world.agenda.after(RECONNECT_S * (0.5 + self.world.rng.random()), self.connect)
            return
        self._welcomed = False
        self._changed.clear()
        self._sampled.clear()
        self._unanswered = [self._with_health(seen) for seen in self.host.engine.observe()]
        # A socket of this machine: what an earlier connection said is read before what a later one says.
        hello = self.host.hello(self._unanswered)
        self._sent_at = self.world.agenda.now
        self.host.hello_at = self._connection.up.send({"hello": hello}, not_before=self.host.hello_at)
        self._beat(self._connection)

    def heard(self, connection: Connection, message: dict[str, Any]) -> None:
        if not self.lives or connection is not self._connection:
            return
        match message:
            case {"welcome": _}:
                self._welcomed = True
                self._answered()
            case {"ack": _}:
                self._answered()
            case {"orders": Orders() as orders} if self._welcomed:
                for spec in orders.start:
                    self.host.engine.start(spec)
                for spec in (*orders.start, *orders.check):
                    self._look_after(spec)
                for run_id in orders.stop:
                    self.host.engine.stop(run_id)

    def lost(self, connection: Connection) -> None:
        if self.lives and connection is self._connection:
            self._connection = self._unanswered = None
            self.world.agenda.after(RECONNECT_S * self.world.rng.random(), self.connect)

    def changed(self, run_id: str) -> None:
        self._changed[run_id] = None
        self._report()

    def sampled(self, gpu_id: str) -> None:
        self._sampled[gpu_id] = None
        self._report()

    def cut(self) -> None:
        """The agent or its host is gone: so is the connection."""
        if self._connection is not None:
            self._connection.break_off()

    @property
    def connection(self) -> Connection | None:
        return self._connection

    def _answered(self) -> None:
        ended = [seen.run_id for seen in self._unanswered or () if seen.stopped_at_s is not None]
        self.host.engine.answered_at = self._sent_at
        self.world.tell("end_acknowledged", self.host, ended)
        self.host.engine.forget(ended)
        self._unanswered = None
        self._report()

    def _report(self) -> None:
        idle = self.world.agenda.now < self._reported_at + HEARTBEAT_S
        if self._connection is None or self._unanswered is not None or (not self._changed and not self._sampled and idle):
            return
        known = self.host.engine.runs
        self._unanswered = [self._with_health(known[run_id].observed()) for run_id in self._changed if run_id in known]
        samples = [GpuSample(gpu_id, 0.0, 0, foreign=self.host.foreign.get(gpu_id, [])) for gpu_id in self._sampled]
        self._changed.clear()
        self._sampled.clear()
        self._reported_at = self.world.agenda.now
        self._sent_at = self.world.agenda.now
        self._connection.up.send({"report": Report(runs=self._unanswered, gpus=samples)})

    def _look_after(self, spec: RunSpec) -> None:
        if spec.health is not None and spec.run_id not in self._health:
            self._health[spec.run_id] = None
            self._check_later(spec)

    def _check_later(self, spec: RunSpec) -> None:
        self.world.agenda.after(self.world.rng.expovariate(1.0), partial(self._check, spec))

    def _check(self, spec: RunSpec) -> None:
        process = self.host.engine.runs.get(spec.run_id)
        if not self.lives or process is None or process.stopped_at_s is not None:
            return
        if process.pid is not None:
            verdict = "UNHEALTHY" if self.world.rng.random() < 0.3 else "HEALTHY"
            self._health[spec.run_id] = verdict
            self.world.note("agent", self.host.id, "finds", spec.run_id, verdict)
            self.world.tell("run_judged", self.host, process, verdict)
            self.changed(spec.run_id)
        if self._health[spec.run_id] != "HEALTHY":
            self._check_later(spec)

    def _with_health(self, seen: Observed) -> Observed:
        verdict = self._health.get(seen.run_id)
        return seen if verdict is None or seen.stopped_at_s is not None else replace(seen, health=verdict)

    def _beat(self, connection: Connection) -> None:
        if self.lives and connection is self._connection:
            self._report()
            self.world.agenda.after(HEARTBEAT_S, partial(self._beat, connection))


class Host:
    def __init__(self, world: World, number: int, size: HostSize) -> None:
        self.world = world
        self.id = f"{number:032x}"
        self.size = size
        self.boot_id = "boot-0"
        self.dead = False  # for ever
        self.has_joined = world.plan.with_loss or (world.plan.with_joined and number > 0)
        self.mates: list[Host] = []  # other hosts on the same machine: it joined again in a new folder
        self.cut_until = 0.0  # its network is cut until then
        self.hello_at = 0.0
        self.away_until = 0.0  # until then, no network
        self.cluster = LAB if world.plan.with_clusters and number == len(world.plan.hosts) - 1 else DEFAULT_CLUSTER
        self._moves = world.plan.with_clusters and 0 < number < len(world.plan.hosts) - 1
        self.engine: Engine = world.parts.engine(world, self)
        self.agent: Agent | None = None
        self.foreign: dict[str, list[Foreign]] = {}
        self.gpus = [
            GpuDevice(simulated_gpu_id(self.id, index), index, "Simulated", 16_000, simulated=True) for index in range(size.gpus)
        ]

    def hello(self, runs: list[Observed]) -> Hello:
        name, size = f"host-{self.id[-2:]}", self.size
        links = simulated("T4", len(self.gpus))  # pairs and halves, so that there is something to choose
        return Hello(self.id, self.boot_id, name, size.cpu_units, size.memory_mib, self.gpus, runs,
                     options=HostOptions(cluster=self.cluster, address="10.0.0.1"), links=links,
                     foreign=dict(self.foreign))  # fmt: skip

    def somebody_computes(self, gpu_id: str) -> None:
        """A process that is not ours begins to compute on a GPU, or ends."""
        if self.foreign.pop(gpu_id, None) is None:
            self.foreign[gpu_id] = [(77, "blender")]
        if self.agent is not None:
            self.agent.sampled(gpu_id)

    def start_agent(self) -> None:
        if self.agent is None and not self.dead:
            if self._moves and self.world.faulty and self.world.rng.random() < 0.3:
                self.cluster = LAB if self.cluster == DEFAULT_CLUSTER else DEFAULT_CLUSTER
            self.agent = Agent(self)
            self.agent.connect()

    def crash_agent(self) -> None:
        if self.agent is not None:
            self.agent.cut()
            self.agent = None
            self.engine.agent_died()

    def reboot(self) -> None:
        self.crash_agent()
        self.boot_id = f"boot-{self.world.rng.getrandbits(32)}"
        self.engine.reboot()
        for mate in self.mates:
            mate.crash_agent()
            mate.boot_id = self.boot_id
            mate.engine.reboot()
            self.world.agenda.after(self.world.down_s(), mate.start_agent)
        self.foreign.clear()
        if self.gpus and self.world.rng.random() < self.world.plan.gpu_falls_off:
            self.gpus = self.gpus[:-1]
        self.world.tell("rebooted", self)

    def join_again(self, number: int, *, installed_again: bool) -> Host:
        """Return a new host that the machine is from now on, with the same GPUs.

        If the machine was installed again, its processes have ended. Otherwise it has joined in another folder: what its earlier
        self runs lives on, and its earlier agent may come back.
        """
        new = Host(self.world, number, self.size)
        new.gpus, new.cluster, new._moves, new.boot_id = self.gpus, self.cluster, False, self.boot_id
        if installed_again:
            new.boot_id = f"boot-{number}-{self.boot_id}"
            for earlier in (self, *self.mates):
                earlier.die()
        else:
            self.crash_agent()
            new.mates = [self, *self.mates]
            for mate in new.mates:
                mate.mates.append(new)
        return new

    def die(self) -> None:
        self.crash_agent()
        if self.world.plan.with_loss:
            self.engine.lose_power()
        self.dead = True
