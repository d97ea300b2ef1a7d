"""A run: one container of a task on a host, and what the core and a host's agent say to each other about it.

The conversation is JSON lines over a stream socket: each is a `ToCore` or a `ToAgent` with one member.

    agent → core    {"hello": Hello}            once per connection; `runs` is everything the engine knows
                    {"report": Report}          what happened since the last one; at most one is unanswered; empty = heartbeat
                    {"measured": Measured}      the answer to a measure
                    {"declined": Declined}      the answer to an execute that cannot be obeyed
    core → agent    {"welcome": {}}             hello is committed
                    {"ack": Ack}                the report is committed
                    {"orders": Orders}          what should run; idempotent, may come at any time after welcome
                    {"measure": Measure}        somebody asks what these runs use; nothing is measured unasked
                    {"execute": Execute}        a person runs a command beside a living run
                    {"quit": "why"}             this agent is not wanted: end, leave the runs alone

Whoever runs the command of an `execute` calls at the core's other socket, `sessions.sock`, with the line {"session": its id}. What
follows on that connection are the frames of `channel/terminal.py`. When it closes, the command is to end.

A stopped run that was in an acknowledged report (or in hello, once welcomed) may be forgotten by the host.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from corral.model.blob import Slice

CPU_UNITS_PER_CORE = 1024
MIB = 2**20
HEARTBEAT_S = 5.0
SILENT_S = 3 * HEARTBEAT_S  # then nothing new is placed there; its leases stay, for its runs may well be alive
STOP_GRACE_S = 30.0  # ECS_CONTAINER_STOP_TIMEOUT's default
LOG_EVENT_MAX_BYTES = 262_118  # CloudWatch Logs: 256 KiB less 26 bytes of overhead
assert SILENT_S > 2 * HEARTBEAT_S


class RunState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class Health(StrEnum):
    """What a container's health check says. Before its first verdict, and without a check, there is none: UNKNOWN."""

    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


def attempt_id(run_id: str, restarts: int) -> str:
    """What a host calls a run: a container that is started again is another thing to start there, which starts once."""
    return f"{run_id}.{restarts}" if restarts else run_id


def run_of_attempt(name: str) -> str:
    """The run that a host's name for it belongs to."""
    return name.partition(".")[0]


class HealthCheck(Struct, frozen=True):
    """How a host finds out whether a run is well."""

    command: list[str]  # complete: a shell's command comes with its shell
    interval_s: float = 30.0
    timeout_s: float = 5.0
    retries: int = 3
    start_period_s: float = 0.0


class RunSpec(Struct, frozen=True):
    """Everything a host needs to start one container. `run_id` is the attempt's name: starting twice is once."""

    run_id: str
    task_id: str
    container: str
    image: str
    command: list[str]  # entryPoint and command together; never empty for the process engine
    environment: dict[str, str]  # complete but for its files, and for what the host adds (PATH, HOME, GPU visibility)
    gpu_ids: list[str]
    working_directory: str | None = None  # None: a folder of the run's own
    stop_grace_s: float = STOP_GRACE_S
    ships_logs: bool = False  # output goes to the log stream that the core opened for this run
    health: HealthCheck | None = None
    settings: dict[str, Any] | None = None  # what else a container is to be: ECS's `container` and `task`; None: a plain process
    endpoint_url: str = ""  # Corral's, as `environment` has it: a container may have to go another way
    pull_always: bool = False  # ask the registry although the engine has the image: its tag may have moved
    registry_auth: str = ""  # as Docker takes it, for the registry of the image
    image_may_ask: bool = False  # for GPUs, in the old way: then the host asks the core before it starts
    environment_files: list[tuple[Slice, ...]] = field(default_factory=list)  # where their bytes lie; read before a host is told


class LogTarget(Struct, frozen=True):
    """The stream that a run's output goes to."""

    region: str
    group: str
    stream: str
    create_group: bool


class StartOrder(Struct, frozen=True):
    """A run that should start, once its log stream is open."""

    spec: RunSpec
    log: LogTarget | None
    fault: str | None = None  # why it cannot start: then no host is told, and it has failed


class Observed(Struct, frozen=True):
    """What a host knows of a run. Alive while `stopped_at_s` is None."""

    run_id: str
    pid: int | None = None
    started_at_s: float | None = None  # None with a stop time: it never started
    stopped_at_s: float | None = None
    exit_code: int | None = None  # 128 + signal for a run ended by one; None: it has none, and `reason` says why
    reason: str | None = None  # of one that has not started yet: what it waits for
    health: str | None = None  # None: no verdict of this agent's yet; what was heard before stays
    asks_gpus: str | None = None  # its image sets NVIDIA_VISIBLE_DEVICES to this: it waits for another order that says what it gets
    about: dict[str, Any] | None = None  # what a container shows: imageDigest, networkBindings...; what was heard before stays


class GpuDevice(Struct, frozen=True):
    gpu_id: str
    index: int
    model: str
    memory_mib: int
    simulated: bool = False
    excluded: bool = False  # --exclude-gpus: it is shown, and never offered


Foreign = tuple[int, str]  # pid and name of a process that computes on a GPU and is not of a run of ours


class Hello(Struct, frozen=True):
    host_id: str
    boot_id: str
    name: str
    gpus_flag: str  # as given to --gpus: an agent started with another one is told to quit
    cpu_units: int
    memory_mib: int
    gpus: list[GpuDevice]
    runs: list[Observed]
    runtime: str = "process"  # as given to --runtime; here too
    docker: str = ""  # the engine that runs containers here, and its version; empty: there is none
    excluded_gpus: str = ""  # as given to --exclude-gpus, by name; here too the core must have been told the same
    links: list[list[int]] | None = None  # how far the GPUs are from each other, in the order of `gpus`; None: unknown
    foreign: dict[str, list[Foreign]] = field(default_factory=dict)  # as in GpuSample, of those GPUs that have any


class LogChunk(Struct, frozen=True):
    """Whole log events cut from a run's output. `start` and `end` are byte offsets in it.

    The core's offset is the truth: it takes a chunk only where `start` is what it has stored.
    """

    run_id: str
    start: int
    end: int
    events: list[tuple[int, str]]  # (milliseconds since the epoch, text without its newline)


class GpuSample(Struct, frozen=True):
    gpu_id: str
    utilization_percent: float
    memory_used_mib: int
    power_w: float | None = None
    temperature_c: float | None = None
    foreign: list[Foreign] = field(default_factory=list)


class Report(Struct, frozen=True):
    """The core commits the logs before the runs: whoever sees a task stopped can read all it wrote."""

    runs: list[Observed] = field(default_factory=list)
    logs: list[LogChunk] = field(default_factory=list)
    gpus: list[GpuSample] = field(default_factory=list)


class Ack(Struct, frozen=True):
    shipped: dict[str, int] = field(default_factory=dict)  # run id → the core's offset, for every run in Report.logs


class Orders(Struct, frozen=True):
    start: list[RunSpec] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)  # run ids: SIGTERM, the run's grace, SIGKILL; unknown ones are ignored
    check: list[RunSpec] = field(default_factory=list)  # living runs whose health is to be looked at, after every hello


class Measure(Struct, frozen=True):
    number: int  # names the question
    runs: list[str]


class Usage(Struct, frozen=True):
    """What the processes of a run have used since it started, and use now."""

    at_s: float
    cpu_user_s: float
    cpu_system_s: float
    host_cpu_s: float  # of all cores of the host since its boot, idle time too
    memory_bytes: int
    threads: int
    read_bytes: int
    written_bytes: int


class Measured(Struct, frozen=True):
    """By run. `before` is what was measured when somebody last asked, at least a second earlier; runs not alive are left out."""

    number: int
    now: dict[str, Usage] = field(default_factory=dict)
    before: dict[str, Usage] = field(default_factory=dict)


class Execute(Struct, frozen=True):
    """A command to run where a run lives, with its environment, folder and GPUs, in a session of its own that ends with the run."""

    session_id: str
    run: RunSpec
    command: list[str]
    has_terminal: bool  # else its input and outputs are pipes


class Declined(Struct, frozen=True):
    session_id: str
    reason: str


class ToCore(Struct, frozen=True):
    """A message from an agent."""

    hello: Hello | None = None
    report: Report | None = None
    measured: Measured | None = None
    declined: Declined | None = None


class ToAgent(Struct, frozen=True):
    """A message from the core."""

    welcome: dict[str, Any] | None = None
    ack: Ack | None = None
    orders: Orders | None = None
    measure: Measure | None = None
    execute: Execute | None = None
    quit: str | None = None
