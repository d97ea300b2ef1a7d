"""ECS tasks: their states, the allowed moves between them, and what they require."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.run import RunState, attempt_id


class TaskState(StrEnum):
    PROVISIONING = "PROVISIONING"  # waits for capacity, as a claim
    PENDING = "PENDING"  # placed on an instance; its GPUs are leased
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


MOVES: dict[TaskState, frozenset[TaskState]] = {
    TaskState.PROVISIONING: frozenset({TaskState.PENDING, TaskState.STOPPED}),
    TaskState.PENDING: frozenset({TaskState.RUNNING, TaskState.STOPPED}),
    TaskState.RUNNING: frozenset({TaskState.STOPPED}),  # a lost task is STOPPED with a reason
    TaskState.STOPPED: frozenset(),
}


class StopCode(StrEnum):
    FAILED_TO_START = "TaskFailedToStart"
    ESSENTIAL_EXITED = "EssentialContainerExited"
    USER = "UserInitiated"
    TERMINATION = "TerminationNotice"
    SERVICE = "ServiceSchedulerInitiated"


# Special values of a number of GPUs:
ALL_GPUS = -1  # every GPU of the slot; for a task, and for its only run that requires GPUs
FREE_GPUS = -2  # for a run that is privileged or sets NVIDIA_VISIBLE_DEVICES: the GPUs that are free when it is placed, if any


class PlacementRules(Struct, frozen=True):
    """The placement constraints and strategies of a task."""

    scope: str  # region/cluster of the tasks that `task:group` means
    member_of: tuple[str, ...] = ()  # expressions of the cluster query language; all must be true
    distinct: bool = False  # no two tasks of `group` on one host
    strategy: tuple[tuple[str, str], ...] = ()  # (spread, instanceId), (binpack, memory), (random, ""); the first counts most
    group: str = ""  # region/cluster/group of the tasks that `distinct` separates and `spread` counts; empty without both
    depends_on_tasks: bool = False  # the start or stop of a task can change which slots are allowed, without freeing capacity


class Demand(Struct, frozen=True):
    """What a task or an instance launch needs of one host. Claims with equal demands wait in one line."""

    gpus: int = 0
    cpu_units: int = 0
    memory_mib: int = 0
    rules: PlacementRules | None = None  # None: any slot, by best fit

    @property
    def least_gpus(self) -> int:
        """The least number of GPUs that a host must have."""
        return 1 if self.gpus == ALL_GPUS else self.gpus


class Changeable(Struct, frozen=True):
    """The base of Task and Run, which are copied at every step of a task: copying a Struct is ten times as fast as a dataclass."""

    def but(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        return replace(self, **changes)


class Run(Changeable, frozen=True):
    """One container of a task."""

    id: str
    task_id: str
    container: str
    position: int
    essential: bool
    gpus: int  # a number, ALL_GPUS or FREE_GPUS
    state: RunState
    gpu_ids: tuple[str, ...] = ()
    pid: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    started_at_s: float | None = None
    stopped_at_s: float | None = None
    waits: bool = False  # for containers that it depends on: it was never ordered to start
    restarts: int = 0
    health: str | None = None  # the last result of its health check
    about: dict[str, Any] | None = None  # facts about its container (`Observed.about`); None: it is a process

    @property
    def attempt_id(self) -> str:
        """The id that its host uses for it."""
        return attempt_id(self.id, self.restarts) if self.restarts else self.id


class RestartPolicy(Struct, frozen=True):
    period_s: float  # a container that ran for less is not restarted
    ignored_exit_codes: frozenset[int] = frozenset()


class ContainerRules(Struct, frozen=True):
    """When a container starts and restarts, according to its definition."""

    depends_on: tuple[tuple[str, str], ...] = ()  # (container, condition)
    start_timeout_s: float | None = None  # how long its dependents wait for it
    restart: RestartPolicy | None = None


class Task(Changeable, frozen=True):
    id: str
    region: str
    cluster: str
    definition_arn: str
    pool: str
    state: TaskState
    desired: TaskState  # RUNNING or STOPPED
    demand: Demand
    created_at_s: float
    version: int = 1
    instance_id: str | None = None  # None: the task waits for capacity
    placed_at_s: float | None = None
    started_at_s: float | None = None
    stopping_at_s: float | None = None
    stopped_at_s: float | None = None
    stop_code: str | None = None
    stopped_reason: str | None = None
    family: str = ""
    group: str = ""
    started_by: str | None = None
    details: dict[str, Any] = field(default_factory=dict)  # from the request, for DescribeTasks: overrides, tags...
    runs: tuple[Run, ...] = ()
    plain: bool = True  # no container dependencies, no restarts, no health checks and no time limit
    time_limit_s: float | None = None  # since it started
    launch_type: str = "EC2"

    @property
    def group_key(self) -> str:
        """A name for its group that is unique over all clusters and regions."""
        return f"{self.region}/{self.cluster}/{self.group}"
