"""Runs, and the protocol between the core and a host's agent. A run is one container of a task on a host.

Messages are JSON lines on a stream socket: each is a `ToCore` or a `ToAgent` with one member.

    agent → core    {"hello": Hello}            once per connection; `runs` are all runs that the engine knows
                    {"report": Report}          changes since the last report; at most one is unacknowledged; empty = heartbeat
                    {"measured": Measured}      the response to a measure
                    {"declined": Declined}      the response to an execute that the host cannot do
    core → agent    {"welcome": {}}             hello is committed
                    {"ack": Ack}                the report is committed
                    {"orders": Orders}          runs to start and stop; idempotent; at any time after welcome
                    {"measure": Measure}        a client wants to know what these runs use; nothing else is measured
                    {"execute": Execute}        run a command inside a living run (ExecuteCommand)
                    {"quit": "why"}             the agent must exit and leave its runs alone

The process that runs the command of an `execute` connects to the core's other socket, `sessions.sock`, and sends the line
{"session": its id}. After it, that connection carries the frames of `channel/command_relay.py`. The command ends when it closes.

A host may forget a stopped run that was in an acknowledged report, or in the hello of a connection that was welcomed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from corral.model.blob import Slice

HEARTBEAT_S = 5.0
SILENT_S = 3 * HEARTBEAT_S  # then a host gets no new tasks; it keeps its leases, because its runs may be alive
STOP_GRACE_S = 30.0  # ECS_CONTAINER_STOP_TIMEOUT's default
START_MAX_BYTES = 8 * 1024 * 1024  # of an order to start, as JSON; Linux accepts about 2 MiB of arguments and environment
LOG_EVENT_MAX_BYTES = 262_118  # CloudWatch Logs: 256 KiB less 26 bytes of overhead
assert SILENT_S > 2 * HEARTBEAT_S


class RunState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class Health(StrEnum):
    """The result of a container's health check. Before the first result, and without a check, AWS shows UNKNOWN."""

    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


def attempt_id(run_id: str, restarts: int) -> str:
    """The id that a host uses for a run. It changes with every restart, because a host starts each id only once."""
    return f"{run_id}.{restarts}" if restarts else run_id


def run_of_attempt(name: str) -> str:
    """The id of the run that an attempt belongs to."""
    return name.partition(".")[0]


class HealthCheck(Struct, frozen=True):
    """How a host checks the health of a run."""

    command: list[str]  # complete: a CMD-SHELL check includes the shell
    interval_s: float = 30.0
    timeout_s: float = 5.0
    retries: int = 3
    start_period_s: float = 0.0


class RunSpec(Struct, frozen=True):
    """Everything that a host needs to start one container. `run_id` is the attempt's id, so starting is idempotent."""

    run_id: str
    task_id: str
    container: str
    image: str
    command: list[str]  # entryPoint and command together; never empty for the process engine
    environment: dict[str, str]  # complete except for environment files and for what the host adds (PATH, HOME, GPUs)
    gpu_ids: list[str]
    working_directory: str | None = None  # None: a new folder for the run
    stop_grace_s: float = STOP_GRACE_S
    ships_logs: bool = False  # the output is sent to the log stream that the core opened
    health: HealthCheck | None = None
    settings: dict[str, Any] | None = None  # further members of ECS's `container` and `task`; None: a process
    endpoint_url: str = ""  # Corral's address in `environment`; containers may need another one
    pull_always: bool = False  # pull although the engine has the image: its tag may have moved
    registry_auth: str = ""  # Docker's X-Registry-Auth for the registry of the image
    image_may_ask: bool = False  # the image may set NVIDIA_VISIBLE_DEVICES: then the host reports it before the start
    memory_mib: int | None = None  # the hard limit; None: no limit
    cpu_units: int = 0  # the run's share of busy CPUs
    environment_files: list[tuple[Slice, ...]] = field(default_factory=list)  # their bytes; read before the order is sent


class LogTarget(Struct, frozen=True):
    """The log stream for the output of a run."""

    region: str
    group: str
    stream: str
    create_group: bool
    named_by_container: bool = False  # if the run becomes a container, its runtime id is the name instead; the host reports it


class StartOrder(Struct, frozen=True):
    """An order to start a run, once its log stream is open."""

    spec: RunSpec
    log: LogTarget | None
    fault: str | None = None  # why it cannot start: no order is sent, and the run has failed


class Observed(Struct, frozen=True):
    """What a host knows of a run. The run is alive while `stopped_at_s` is None."""

    run_id: str
    pid: int | None = None
    started_at_s: float | None = None  # None although it has stopped: it never started
    stopped_at_s: float | None = None
    exit_code: int | None = None  # 128 + signal for a killed run; None: no exit code, and `reason` says why
    reason: str | None = None  # before the start: what the run waits for
    health: str | None = None  # None: no result since this agent started; the core keeps the last one
    asks_gpus: str | None = None  # its image sets NVIDIA_VISIBLE_DEVICES to this; it waits for an order with GPUs
    about: dict[str, Any] | None = None  # imageDigest, networkBindings...; None: the core keeps the last values


class GpuDevice(Struct, frozen=True):
    gpu_id: str
    index: int
    model: str
    memory_mib: int
    simulated: bool = False
    excluded: bool = False  # by --exclude-gpus: it is shown, but tasks do not get it


Foreign = tuple[int, str]  # pid and name of a process that uses a GPU and belongs to no run


class Hello(Struct, frozen=True):
    host_id: str
    boot_id: str
    name: str
    gpus_flag: str  # the value of --gpus; an agent with another value than the core's must quit
    cpu_units: int
    memory_mib: int
    gpus: list[GpuDevice]
    runs: list[Observed]
    runtime: str = "process"  # the value of --runtime; the same rule
    docker: str = ""  # the container engine and its version; empty: the host has none
    excluded_gpus: str = ""  # the value of --exclude-gpus; the same rule
    links: list[list[int]] | None = None  # the distance of each GPU to each other, in the order of `gpus`; None: unknown
    foreign: dict[str, list[Foreign]] = field(default_factory=dict)  # by GPU, as in GpuSample; GPUs without any are left out


class LogChunk(Struct, frozen=True):
    """Complete log events from the output of a run, which are its bytes from `start` to `end`.

    The core accepts a chunk only if `start` is the offset that it has stored.
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
    """The core commits the logs before the runs, so that all output of a task can be read once it is STOPPED."""

    runs: list[Observed] = field(default_factory=list)
    logs: list[LogChunk] = field(default_factory=list)
    gpus: list[GpuSample] = field(default_factory=list)
    problem: str = ""  # why runs of this host can neither start nor end now; empty: they can


class Ack(Struct, frozen=True):
    shipped: dict[str, int] = field(default_factory=dict)  # run id → the stored offset, for every run in Report.logs


class Orders(Struct, frozen=True):
    start: list[RunSpec] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)  # run ids: SIGTERM, the run's grace, SIGKILL; unknown ones are ignored
    check: list[RunSpec] = field(default_factory=list)  # living runs whose health must be checked; sent after every hello


class Measure(Struct, frozen=True):
    number: int  # the id of this request
    runs: list[str]


class Usage(Struct, frozen=True):
    """The resources that the processes of a run have used since it started, and use now."""

    at_s: float
    cpu_user_s: float
    cpu_system_s: float
    host_cpu_s: float  # the sum over all cores of the host since its boot, including idle time
    memory_bytes: int
    threads: int
    read_bytes: int
    written_bytes: int


class Measured(Struct, frozen=True):
    """Usage by run, without runs that are not alive. `before` is the previous measurement, at least a second older."""

    number: int
    now: dict[str, Usage] = field(default_factory=dict)
    before: dict[str, Usage] = field(default_factory=dict)


class Execute(Struct, frozen=True):
    """A command to run in the environment, folder and GPUs of a living run. Its session ends with the run."""

    session_id: str
    run: RunSpec
    command: list[str]
    has_terminal: bool  # False: its input and outputs are pipes


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
