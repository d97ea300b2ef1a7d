"""Runs. A run is one container of a task on a host; it is a Docker container or a process."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from msgspec import Struct, field

from corral.model.blob import Slice
from corral.model.principal import ROOT

STOP_GRACE_S = 30.0  # the default of ECS_CONTAINER_STOP_TIMEOUT
LOG_EVENT_MAX_BYTES = 262_118  # limit of CloudWatch Logs: 256 KiB minus 26 bytes of overhead


class RunState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


class Health(StrEnum):
    """The result of a container's health check. AWS shows UNKNOWN before the first result, and for containers without a check."""

    HEALTHY = "HEALTHY"
    UNHEALTHY = "UNHEALTHY"


def attempt_id(run_id: str, restarts: int) -> str:
    """Return the id that a host uses for a run. It changes with every restart, because a host starts each id only once."""
    return f"{run_id}.{restarts}" if restarts else run_id


def run_of_attempt(name: str) -> str:
    """Return the id of the run, given an id that `attempt_id` returned."""
    return name.partition(".")[0]


class HealthCheck(Struct, frozen=True):
    command: list[str]  # the complete command; for a CMD-SHELL check it includes the shell
    interval_s: float = 30.0
    timeout_s: float = 5.0
    retries: int = 3
    start_period_s: float = 0.0


class RunSpec(Struct, frozen=True):
    """Everything that a host needs to start one container.

    `run_id` is the id from `attempt_id`, so a repeated order has no effect.
    """

    run_id: str
    task_id: str
    container: str
    image: str
    command: list[str]  # entryPoint and command together; never empty for a run that becomes a process
    environment: dict[str, str]  # all variables, except those of environment files and those that the host adds (PATH, HOME, GPUs)
    gpu_ids: list[str]
    # The indexes of these GPUs on the host, if CUDA_VISIBLE_DEVICES must have indexes. Empty: CUDA_VISIBLE_DEVICES has the ids.
    gpu_indexes: list[int] = field(default_factory=list)
    working_directory: str | None = None  # None: the host creates a new folder for the run
    stop_grace_s: float = STOP_GRACE_S
    ships_logs: bool = False  # True: the host sends the output to the core, which stores it in a log stream
    health: HealthCheck | None = None
    # The other members of the container definition and the task definition. None means that the run becomes a process.
    settings: dict[str, Any] | None = None
    endpoint_url: str = ""  # Corral's URL in `environment`; the host replaces it if a container needs another address
    pull_always: bool = False  # pull even if the engine has the image, because its tag may refer to a newer image
    registry_auth: str = ""  # the value of Docker's header X-Registry-Auth for the registry of the image
    # True: if the image sets NVIDIA_VISIBLE_DEVICES, the host must request GPUs from the core before the start.
    image_may_ask: bool = False
    memory_mib: int | None = None  # the hard limit; None: no limit
    cpu_units: int = 0  # the run's share of the CPUs, when all CPUs are busy
    # The content of each environment file. The server reads the content before it sends the order.
    environment_files: list[tuple[Slice, ...]] = field(default_factory=list)
    # The environment files with the variables of `corral run`. They replace variables in `environment`, except `fixed_variables`.
    private_files: list[tuple[Slice, ...]] = field(default_factory=list)
    fixed_variables: list[str] = field(default_factory=list)
    fence_s: float | None = None  # end the run if the server has not answered the host for so long (`node/fences.py`)
    output_file: str = ""  # the name of the file in which the host keeps the output after the run; empty: it is not kept
    # The Unix account as which a process acts, or a container reads and writes its host paths. Empty: Corral's own account.
    account: str = ""


# The log groups of `corral run` (cli/runs/run.py repeats the name) and of Batch. Tasks of all owners write to them, so they belong
# to the root user. Each stream belongs to the owner of its task.
RUN_LOG_GROUP, BATCH_LOG_GROUP = "/corral/run", "/aws/batch/job"


class LogTarget(Struct, frozen=True):
    """The log stream for the output of a run."""

    region: str
    group: str
    stream: str
    create_group: bool
    # True: if the run becomes a container, its runtime id is the name of the stream. The host reports the id.
    named_by_container: bool = False
    owner: str = ROOT  # of the task

    @property
    def group_owner(self) -> str:
        """The owner of the log group, if the run creates it."""
        return ROOT if self.group in (RUN_LOG_GROUP, BATCH_LOG_GROUP) else self.owner


class RunPause(Struct, frozen=True):
    """The answer of a host to a `PauseOrder`: whether the run is paused after it.

    If the order has failed, the run is as it was before, and `why_not` says why. A paused run has no memory on a GPU, except the
    little that the driver leaves there, so other runs can have its GPUs.
    """

    number: int  # of the order
    paused: bool
    why_not: str = ""  # why the order has failed; empty: it is carried out
    moved_bytes: int = 0  # the memory of GPUs that is in the memory of the host now, or was there until now
    took_s: float = 0.0  # how long it took


class Observed(Struct, frozen=True):
    """The state of a run, as its host reports it. The run is alive while `stopped_at_s` is None."""

    run_id: str
    pid: int | None = None
    started_at_s: float | None = None  # a stopped run without this time never started
    stopped_at_s: float | None = None
    exit_code: int | None = None  # 128 + signal for a killed run; if a stopped run has no exit code, `reason` says why
    reason: str | None = None  # why the run ended; before the start, what the run waits for
    health: str | None = None  # None: no result since this agent started, so the core does not change the stored result
    # The value of NVIDIA_VISIBLE_DEVICES in the image. The run waits until the core sends an order with GPUs.
    asks_gpus: str | None = None
    about: dict[str, Any] | None = None  # imageDigest, networkBindings...; None: the core does not change the stored values
    pause: RunPause | None = None  # the answer to the last order to pause or continue the run; None: there is none since its start


class Usage(Struct, frozen=True):
    """The resources that the processes of a run use now, and their CPU time and I/O since the run started."""

    at_s: float
    cpu_user_s: float
    cpu_system_s: float
    host_cpu_s: float  # CPU time of all cores of the host since its boot, including idle time
    memory_bytes: int
    threads: int
    read_bytes: int
    written_bytes: int
