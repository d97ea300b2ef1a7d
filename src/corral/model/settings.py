"""The settings of a Corral process that affect handlers and reconcilers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any

from msgspec import Struct, field

from corral.model.agent_protocol import HostOptions, UpgradeOrder
from corral.model.gpu_metrics import GpuSample
from corral.model.instance import TypeMapping
from corral.model.lender_settings import LenderSettings
from corral.model.session import ConsoleIdentity, SessionValidity


class ScalingTimes(Struct, frozen=True):
    """The table [scaling] of corral.toml. All values are seconds."""

    busy_wait_s: float = 900.0  # how long a scale-in or rollout waits for a busy task (`fleet/leaving_tasks.py`); 0: not at all
    target_tracking_out_s: float = 2.0  # how long a metric is above its target before a policy scales out; AWS: 3 minutes
    target_tracking_in_s: float = 900.0  # how long a metric is low before a policy scales in
    capacity_provider_in_s: float = 900.0  # how long instances are idle before a capacity provider scales its group in
    environment_in_s: float = 60.0  # how long an instance of a compute environment is idle before it is terminated
    provisioning_wait_s: float = 0.0  # how long a task waits for an instance before it is stopped; 0: without a limit


class HistorySettings(Struct, frozen=True):
    """The table [history] of corral.toml: how long `corral history` shows stopped tasks."""

    days: float = 30.0
    tasks: int = 1_000_000  # the oldest tasks above this number are deleted earlier; a task needs about 400 bytes


class OutputSettings(Struct, frozen=True):
    """The table [outputs] of corral.toml: the files in which the output of runs is kept."""

    file_mib: int = 256  # of a longer output, only the newest part is kept; 0: no files
    total_mib: int = 8_192  # the oldest files above this size are deleted earlier
    days: float = 30.0


class UsageSettings(Struct, frozen=True):
    """The table [usage] of corral.toml: when GPUs that do nothing are shown, and the topic of notifications about them."""

    idle_after_s: float = 3_600.0  # 0: never
    notify: str = ""  # the ARN of a topic of SNS; empty: none


class Launches(Struct, eq=False):
    """Whether tasks may start. `services/ecs/stop_all.py` pauses launches, and a restart of the server ends the pause."""

    paused_until_s: float = 0.0


class StoredSecrets:
    """Secrets that are created when they are first needed: members of secrets.json. Simulations keep them in memory."""

    def __init__(
        self, stored: Mapping[str, str] | None = None, save: Callable[[dict[str, Any]], None] = lambda members: None
    ) -> None:
        self._stored = dict(stored or {})
        self._save = save
        self._lock = Lock()

    def has(self, name: str) -> bool:
        return name in self._stored

    def members(self, names: Iterable[str], create: Callable[[], dict[str, str]]) -> Mapping[str, str]:
        """Return all secrets. If one of these names is missing, create and save them first. Any thread may call this."""
        with self._lock:
            if not self._stored.keys() >= set(names):
                created = create()
                self._save(created)
                self._stored |= created
            return self._stored


SIMULATED_SECRETS = StoredSecrets()


class ConsoleAccess(Struct, eq=False):
    """The links and the sessions of the console. The process of the server replaces these functions; any thread may call them."""

    port: int = 0
    create_link: Callable[[ConsoleIdentity], tuple[str, float]] = lambda identity: ("", 0.0)  # its code, and when it expires
    end_sessions: Callable[[str], int] = lambda owner: 0  # ends the sessions of an owner, and returns their number


class ServerFacts(Struct, eq=False):
    """What only the process of the server knows. It fills this in at its start. Simulations leave it empty.

    Any thread may call these functions.
    """

    about: dict[str, Any] = {}  # the address, the data folder and the options of the server
    samples: Mapping[str, GpuSample] = {}  # GPU id → the last sample
    samples_before: Mapping[
        str, Iterable[tuple[float, GpuSample]]
    ] = {}  # GPU id → (time, sample) of the last minutes, oldest first
    read_samples: Callable[[], None] = lambda: None  # somebody reads samples of GPUs, and needs them at once for some seconds
    problems: Callable[[], list[dict[str, Any]]] = list  # agents and spawners that do not respond
    failing_handovers: Callable[[], list[dict[str, Any]]] = list  # messages between databases that will be sent again
    quarantine: Callable[[], list[dict[str, Any]]] = list  # by date: the number of blobs without a row that will be erased later
    output_files: Callable[[str], list[dict[str, Any]]] = lambda task_id: []  # the files with the output of a task
    is_connected: Callable[[str], bool] = lambda host_id: True  # whether the agent of a host is connected
    save_sessions: Callable[[dict[str, Any]], None] = lambda members: None  # write members into sessions.json
    secrets: StoredSecrets = SIMULATED_SECRETS
    upgrade_order: Callable[[], UpgradeOrder] = lambda: UpgradeOrder("", [])  # the order to upgrade a host to this version
    upgrade_file: Callable[[str], bytes | None] = lambda digest: None  # a wheel of this order, by its SHA-256
    lender_advice: Callable[[], Mapping[str, list[str]]] = dict  # lender → what its operator should change
    lender_problems: Callable[[], Mapping[str, str]] = dict  # lender → why it does not answer
    tls_bundle: str = ""  # the certificate that clients with TLS need to verify this server; empty: none
    # (lane, read) → the result of a read of a few rows in the database of another lane. None: the process has no other lanes.
    read_lane: Callable[[str, Callable[[Any], Any]], Any] = lambda lane, read: None
    # (caller, service and operation, parameters, result or error): records in the audit what a service has called for a caller
    record_call: Callable[[Any, tuple[str, str], Mapping[str, Any], Mapping[str, Any] | Exception], None] = (
        lambda caller, call, params, outcome: None
    )
    console: ConsoleAccess = field(default_factory=ConsoleAccess)
    open_door: Callable[[], dict[str, str]] = dict  # opens the door for other machines; returns its `address` and its `pin`


class Settings(Struct, frozen=True):
    """The settings. `repr` does not show the keys."""

    account: str = "123456789012"
    host: HostOptions = HostOptions()  # of this machine; they count only until the first host has reported its own
    endpoint_url: str = "http://127.0.0.1:4566"  # the address of Corral for tasks on this machine
    session_key: bytes = b"for simulations, which no stranger can reach"  # used by access/sessions.py
    sessions: SessionValidity = field(default_factory=SessionValidity)
    isolate: bool = False  # --isolate: tasks get no access to the host
    alarm_timing: str = "fast"  # "fast", or "aws": an alarm is evaluated only when a period has ended
    secrets_key: bytes = bytes(32)  # used by operations/encryption.py
    instance_types: dict[str, TypeMapping] = field(default_factory=dict)  # from corral.toml
    lenders: dict[str, LenderSettings] = field(default_factory=dict)  # from corral.toml
    scaling: ScalingTimes = field(default_factory=ScalingTimes)  # from corral.toml
    gpu_ids: str = "uuid"  # from corral.toml: CUDA_VISIBLE_DEVICES of a task without the tag corral:gpu-ids; "uuid" or "index"
    history: HistorySettings = field(default_factory=HistorySettings)  # from corral.toml
    outputs: OutputSettings = field(default_factory=OutputSettings)  # from corral.toml
    usage: UsageSettings = field(default_factory=UsageSettings)  # from corral.toml
    turns_max: int = 4  # from corral.toml: so many tasks at most take turns on one GPU
    half_life_s: float = 7 * 86_400.0  # from corral.toml: use of GPUs this long ago counts half in the line
    gpu_hour_price: float = 0.0  # from corral.toml: the price of a GPU-hour of this machine in US dollars; 0: it has no price
    lost_after: dict[str, float] = field(default_factory=dict)  # from corral.toml: cluster → when a silent host of it is lost
    launches: Launches = field(default_factory=Launches)
    server: ServerFacts = field(default_factory=ServerFacts)
    audit_folder: str = ""  # the files of the audit; empty in simulations
    blobs_folder: str = ""  # a nested stack reads its template from this folder; empty in simulations, which have no blobs

    def __repr__(self) -> str:
        return f"Settings({self.account!r}, {self.host.cluster!r}, {self.endpoint_url!r})"
