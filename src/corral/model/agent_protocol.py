"""The protocol between the core and the agent of a host.

The agent is a process on the host that starts and stops runs for the core.

Messages are JSON on a link (`node/link.py`). Each message is a `ToCore` or a `ToAgent` with exactly one member:

    agent → core    {"hello": Hello}            the first message of a connection; contains all runs of the host
                    {"report": Report}          changes since the last report; sent after the ack of the last one; may be empty
                    {"measured": Measured}      the response to `measure`
                    {"declined": Declined}      the response to `execute` if the host cannot run the command
                    {"accounts": {name: uid}}   the response to `accounts`, sent again when it changes
                    {"not_upgraded": "why"}     the response to `upgrade` if the agent stays as it is
                    {"session": "id"}           the first message of a link for a session
    core → agent    {"welcome": {"outputs": OutputLimits, "server": ServerPlace, "accounts": [names]}}  the core has committed the
                                                hello; `accounts` is as below, and may be left out
                    {"ack": Ack}                the core has committed the report
                    {"orders": Orders}          runs to start and to stop, and more; may be repeated; sent only after `welcome`
                    {"measure": Measure}        measure the resource usage of these runs; sent when a client requests it
                    {"execute": Execute}        run a command inside a living run (ExecuteCommand)
                    {"signal": SignalOrder}     send a signal to the processes of living runs
                    {"gpu_fault": GpuFaultOrder}  a fault of a simulated GPU, or the end of a fault
                    {"pause": PauseOrder}       pause a living run, or continue it; sent again after each `welcome` until a report
                                                has the number of the order (`Observed.pause`)
                    {"samples_at_once": bool}   send samples of GPUs at once, or collect them (`CollectedSamples`)
                    {"accounts": [names]}       the Unix accounts of all users: answer with those that this host has, and that runs
                                                may use there; sent when the set changes
                    {"upgrade": UpgradeOrder}   upgrade the agent of a joined host, which then connects anew
                    {"quit": "why"}             the agent must exit; its runs continue

On `execute`, the agent opens another link, whose first message is {"session": the id of the session}. So the data of a session
never delays orders and reports, and a slow session does not fill the memory. From then on, this link carries the frames of
`channel/command_relay.py` between the core and the relay, a process on the host that runs the command.

After the core has acknowledged the stop of a run, the host may delete its data about the run. The core acknowledges a report with
`ack`, and a hello with `welcome`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from corral.model.gpu import Foreign, GpuDevice
from corral.model.gpu_metrics import GpuSample
from corral.model.run import LogTarget, Observed, RunSpec, Usage

DEFAULT_CLUSTER = "default"
HOST_TYPE = "corral.host"
PROTOCOL = 1  # of this version; an agent says its number in its hello
PROTOCOLS = frozenset({PROTOCOL, PROTOCOL - 1} - {0})  # that the server serves: this one, and the one before it; the first is 1
# The longest time between two reports of a host with runs. Without runs, a host has nothing to report for most of the time, and
# reports less often, because many idle hosts would else cost the server much.
HEARTBEAT_S, IDLE_HEARTBEAT_S = 5.0, 7.0
# A host that is silent for this time gets no new tasks. Its runs keep their GPUs, because the runs may be alive.
SILENT_S = 15.0
# The maximum size of an order to start, as JSON. It is larger than the arguments and environment that Linux accepts (2 MiB).
START_MAX_BYTES = 8 * 1024 * 1024
# If no alarm and no reader needs samples of GPUs at once, a joined host collects those of its busy GPUs until the next heartbeat,
# and sends those of idle GPUs once in this time. They wait for the next heartbeat, and still arrive in every minute.
IDLE_SAMPLES_S = 45.0
SAMPLE_MAX_AGE_S = IDLE_SAMPLES_S + SILENT_S  # after this time without a sample, the load of a GPU is not known
assert SILENT_S > 2 * IDLE_HEARTBEAT_S
# What a message of a host can contain. The core stores it, so that a host cannot fill its memory and its database.
RUNS_MAX, GPUS_MAX, SOURCES_MAX, ACCOUNTS_MAX = 20_000, 1024, 16, 10_000
Text = Annotated[str, Meta(max_length=4096)]


class StartOrder(Struct, frozen=True):
    """An order to start a run. It is sent when the log stream of the run is open. An order with a `fault` is not sent."""

    spec: RunSpec
    log: LogTarget | None
    fault: str | None = None  # the reason why the run cannot start; the run fails with this reason


class ImagePush(Struct, frozen=True):
    """An image that a client has just pushed to Corral's registry. Runs that wait for it pull it at once."""

    image: str  # the name that hosts pull, without tag and digest
    references: list[str]  # the digest, and the tag if the push has set one


class GpuFaultOrder(Struct, frozen=True):
    """Simulate an error of a simulated GPU, or forget the errors of a GPU (`xid` is None) because it works again."""

    gpu_id: str
    xid: int | None = None


class SignalOrder(Struct, frozen=True):
    """Send a signal to the process group of each run, or to the first process of its container.

    The order is not repeated. Runs that have not started or have ended ignore it.
    """

    runs: list[str]
    signal: str  # one of `model/run_signals.py`


class PauseOrder(Struct, frozen=True):
    """Pause a living run, or continue it. The host answers each order once it is carried out or has failed (`RunPause`).

    To pause a run is to move the state of its processes on GPUs to the memory of the host, and to stop its processes. The number of
    an order is greater than those of earlier orders for the run. The host ignores an order with a smaller number than the last one,
    and answers a repeated one again.
    """

    run_id: str  # of the attempt
    number: int
    paused: bool


class AccountsOrder(Struct, frozen=True):
    """The Unix accounts of all users: the host answers with those that it has, and that runs may use there."""

    names: list[str]


class Wheel(Struct, frozen=True):
    name: str
    sha256: str


class UpgradeOrder(Struct, frozen=True):
    """Upgrade the agent of a joined host. The first file is the wheel of Corral, the others are of its dependencies."""

    version: str  # of Corral in the wheel
    files: list[Wheel]


# A StartOrder starts a run, the id of a run stops it, a RunSpec asks for health checks of a run, a ImagePush ends the wait of runs
# for this image, and None discards earlier orders.
Order = StartOrder | str | RunSpec | ImagePush | SignalOrder | GpuFaultOrder | PauseOrder | AccountsOrder | UpgradeOrder | None


class HostOrders(Struct):
    """The orders of one transaction for one host."""

    start: list[StartOrder] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)  # the ids of the runs to stop
    check: list[RunSpec] = field(default_factory=list)
    pushed: list[ImagePush] = field(default_factory=list)
    once: list[SignalOrder | GpuFaultOrder | PauseOrder | AccountsOrder | UpgradeOrder] = field(
        default_factory=list
    )  # orders that are sent once, if the agent is connected
    replaces_earlier: bool = False  # True: do not send earlier orders that are still queued (see `Tx.reset_orders`)


def orders_by_host(orders: Iterable[tuple[str, Order]]) -> dict[str, HostOrders]:
    found: dict[str, HostOrders] = {}
    for host_id, order in orders:
        if order is None:
            found[host_id] = HostOrders(replaces_earlier=True)
            continue
        of_host = found.setdefault(host_id, HostOrders())
        if isinstance(order, StartOrder):
            of_host.start.append(order)
        elif isinstance(order, RunSpec):
            of_host.check.append(order)
        elif isinstance(order, ImagePush):
            of_host.pushed.append(order)
        elif isinstance(order, str):
            of_host.stop.append(order)
        else:
            of_host.once.append(order)
    return found


class HostOptions(Struct, frozen=True, rename="kebab"):
    """The options of a host. They are the host's own: the core stores them."""

    gpus: Text = "auto"  # auto, none, sim:8 or sim:2xH200
    exclude_gpus: Text = ""  # ids of GPUs that tasks never get, separated by commas
    runtime: Literal["auto", "process", "docker"] = "auto"
    cluster: Text = DEFAULT_CLUSTER  # that the host joins, in every region; empty: the cluster of the server
    instance_type: Text = HOST_TYPE  # the instance type of the host in responses
    rack: Text = ""  # the place of the host
    labels: Text = ""  # attributes for placement constraints: NAME=VALUE, separated by commas
    # The IPv4 address of the host for tasks on other hosts, and the network interface that has it. The agent finds what is empty.
    address: Text = ""
    interface: Text = ""


class Hello(Struct, frozen=True):
    host_id: str
    boot_id: Text
    name: Text
    cpu_units: int
    memory_mib: int
    gpus: Annotated[list[GpuDevice], Meta(max_length=GPUS_MAX)]
    runs: Annotated[list[Observed], Meta(max_length=RUNS_MAX)]
    options: HostOptions = HostOptions()
    docker: Text = ""  # name and version of the container engine; empty: the host has none
    links: list[list[int]] | None = None  # the distance between every two GPUs, in the order of `gpus`; None: unknown
    # GPU id → the foreign processes on the GPU. GPUs without foreign processes are left out.
    foreign: dict[str, list[Foreign]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)  # GPU id → why no task should get the GPU
    protocol: int = PROTOCOL
    version: Text = ""  # of the agent
    machine: Annotated[
        dict[Text, Text], Meta(max_length=SOURCES_MAX)
    ] = {}  # the fingerprint of the machine of a joined host (`node/fingerprint.py`)
    folder: Text = ""  # identifies the folder of the agent on its machine
    leaves: bool = False  # the allocation of the host is over, so the host ends all runs and takes no more
    architecture: Text = ""  # of the CPU, as the kernel calls it


class OutputLimits(Struct, frozen=True):
    """The limits of the files in which a host keeps the output of runs. The core sends them with `welcome`."""

    file_bytes: int = 256 * 1024 * 1024  # of a longer output, only the newest part is kept
    total_bytes: int = 8 * 1024 * 1024 * 1024
    max_age_s: float = 30 * 86_400.0


class ServerPlace(Struct, frozen=True):
    """Where the server is. The gateway of a host listens on the server's port (`node/gateway.py`), and a host on the same machine
    needs none. The core sends it with `welcome`."""

    port: int = 0
    machine: str = ""  # `machine_id` of `node/host.py`


class LogChunk(Struct, frozen=True):
    """Log events from the output of a run. `start` and `end` are the range of bytes in the output that contains the events.

    The core stores how many bytes it has accepted. It accepts a chunk only if `start` equals that number.
    """

    run_id: str
    start: int
    end: int
    events: list[tuple[int, str]]  # (milliseconds since the epoch, text without its newline)
    size: int = 0  # the number of bytes that the run has printed, if more chunks follow at once; otherwise not more than `end`
    dropped: int = 0  # how many bytes from `start` on are not in the events, because they were dropped


class CollectedSamples(Struct, frozen=True):
    """Samples that a host has taken before the last ones of a report."""

    age_s: float  # the time between these samples and the report
    gpus: list[GpuSample]


class Report(Struct, frozen=True, omit_defaults=True):
    """Changes on a host. The core commits `logs` before `runs`, so that the whole log of a task can be read once it is STOPPED."""

    runs: Annotated[list[Observed], Meta(max_length=RUNS_MAX)] = field(default_factory=list)
    logs: Annotated[list[LogChunk], Meta(max_length=RUNS_MAX)] = field(default_factory=list)
    gpus: list[GpuSample] = field(default_factory=list)
    problem: str = ""  # why the host can currently neither start nor stop runs; empty: there is no problem
    faults: dict[str, str] | None = None  # as in Hello; None: not changed since the last report
    earlier: list[CollectedSamples] = field(default_factory=list)  # the oldest first
    leaves: bool = False  # as in Hello


class Ack(Struct, frozen=True, omit_defaults=True):
    # Run id → number of bytes that the core has stored, for every run in Report.logs.
    shipped: dict[str, int] = field(default_factory=dict)
    is_busy: bool = False  # other commands needed the lanes of the core while it stored Report.logs


class Orders(Struct, frozen=True):
    start: list[RunSpec] = field(default_factory=list)
    # The ids of runs to stop: send SIGTERM, wait for the run's grace period, then send SIGKILL. Unknown ids are ignored.
    stop: list[str] = field(default_factory=list)
    # Living runs whose health the host must check. The core sends them after every hello.
    check: list[RunSpec] = field(default_factory=list)
    pushed: list[ImagePush] = field(default_factory=list)


class Measure(Struct, frozen=True):
    number: int  # the id of this request
    runs: list[str]


class Measured(Struct, frozen=True):
    """The usage of each requested run that is alive. `before` is the previous measurement, at least one second older."""

    number: int
    now: dict[str, Usage] = field(default_factory=dict)
    before: dict[str, Usage] = field(default_factory=dict)


class Execute(Struct, frozen=True):
    """A command that the host runs with the environment, folder and GPUs of a living run. The command ends when the run ends."""

    session_id: str
    run: RunSpec
    command: list[str]
    has_terminal: bool  # False: the input and the outputs of the command are pipes


class Declined(Struct, frozen=True):
    session_id: str
    reason: str


class ToCore(Struct, frozen=True):
    hello: Hello | None = None
    report: Report | None = None
    measured: Measured | None = None
    declined: Declined | None = None
    accounts: Annotated[dict[Text, int], Meta(max_length=ACCOUNTS_MAX)] | None = None
    not_upgraded: str | None = None
    session: str | None = None


class ToAgent(Struct, frozen=True):
    welcome: dict[str, Any] | None = None
    ack: Ack | None = None
    orders: Orders | None = None
    measure: Measure | None = None
    execute: Execute | None = None
    signal: SignalOrder | None = None
    gpu_fault: GpuFaultOrder | None = None
    pause: PauseOrder | None = None
    upgrade: UpgradeOrder | None = None
    samples_at_once: bool | None = None
    accounts: list[str] | None = None
    quit: str | None = None
