"""ECS tasks: their states, the allowed transitions between states, and the resources that they need."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.pause import Pause, PausePhase
from corral.model.run import RunState, attempt_id

INDEX_VARIABLE = "CORRAL_INDEX"  # contains the index of a member of an array
PASSED_FROM = "passedFrom"  # the member of `Task.details` for programs of a removed user (`removed_owner` in model/principal.py)
NAME_TAG = "corral:name"  # the tag with the name that the user has chosen for a task
HOST_IMAGE = "corral/host"


def is_host_image(image: str) -> bool:
    """Whether the image name requests a plain process on this machine, even if Docker is available."""
    return image == HOST_IMAGE or image.startswith(f"{HOST_IMAGE}:")


def ecs_arn(account: str, region: str, resource: str) -> str:
    return f"arn:aws:ecs:{region}:{account}:{resource}"


class TaskState(StrEnum):
    PROVISIONING = "PROVISIONING"  # waits for capacity
    PENDING = "PENDING"  # placed on an instance, where the GPUs that it needs are reserved
    RUNNING = "RUNNING"
    STOPPED = "STOPPED"


MOVES: dict[TaskState, frozenset[TaskState]] = {
    TaskState.PROVISIONING: frozenset({TaskState.PENDING, TaskState.STOPPED}),
    TaskState.PENDING: frozenset({TaskState.RUNNING, TaskState.STOPPED}),
    TaskState.RUNNING: frozenset({TaskState.STOPPED}),  # a task whose host is lost also becomes STOPPED
    TaskState.STOPPED: frozenset(),
}


class StopCode(StrEnum):
    FAILED_TO_START = "TaskFailedToStart"
    ESSENTIAL_EXITED = "EssentialContainerExited"
    USER = "UserInitiated"
    TERMINATION = "TerminationNotice"
    SERVICE = "ServiceSchedulerInitiated"


# Special values for a number of GPUs:
ALL_GPUS = -1  # every GPU of a host; if a task has this value, one of its runs has it too, and the other runs need no GPUs
FREE_GPUS = -2  # all GPUs that are free at placement, maybe none; for a run that is privileged or sets NVIDIA_VISIBLE_DEVICES


RANDOM, SPREAD, BINPACK = STRATEGIES = ("random", "spread", "binpack")  # the placement strategies
UNKNOWN_STRATEGY = f"The placement strategy '{{value}}' is not supported; use {', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}."


class PlacementRules(Struct, frozen=True):
    scope: str  # region/cluster; `task:group` in an expression refers to tasks of this cluster
    member_of: tuple[str, ...] = ()  # expressions of the cluster query language; all must be true
    distinct: bool = False  # True: each task of `group` must run on a different container instance
    # The steps of the strategy, such as (SPREAD, "instanceId"), (BINPACK, "memory"), (RANDOM, ""). The first step is the most
    # important.
    strategy: tuple[tuple[str, str], ...] = ()
    group: str = ""  # region/cluster/group of the tasks to which `distinct` and `spread` apply; empty if neither is used
    depends_on_tasks: bool = False  # True: the start or stop of another task can change which container instances are allowed
    instance_group: str = ""  # only the instances of this Auto Scaling group are allowed; empty: all instances are allowed
    account: str = ""  # only hosts with this Unix account are allowed; empty: all hosts are allowed
    # A paused task that waits to continue needs exactly these GPUs of this slot, and nothing else.
    slot_id: str = ""
    gpu_ids: tuple[str, ...] = ()


class Demand(Struct, frozen=True):
    """The resources that a task or an instance launch needs on one instance.

    The total and the free resources of an instance are also described by a Demand (`Slot` in `model/placement.py`).
    """

    gpus: int = 0
    cpu_units: int = 0
    memory_mib: int = 0
    rules: PlacementRules | None = None  # None: any container instance is allowed, and the best fit is chosen
    # Only for a multi-node job: what each kind of node needs, and the number of such nodes. All nodes start at the same time. The
    # other fields then have the largest amounts that one node needs.
    nodes: tuple[tuple[Demand, int], ...] = ()
    # 0: whole GPUs. Otherwise the task shares one GPU with other tasks, `gpus` is 1, and this is the memory that it needs on the
    # GPU. In the total of an instance, this is the memory of the largest GPU.
    gpu_memory_mib: int = 0

    @property
    def idle_gpus(self) -> int:
        """The number of idle GPUs that an instance must have, or ALL_GPUS. A demand that shares a GPU needs no idle GPU."""
        return 0 if self.gpu_memory_mib else self.gpus

    @property
    def own_gpus(self) -> tuple[str, ...]:
        """The GPUs of a paused task that waits to continue. Empty: the demand is not that of a paused task."""
        return self.rules.gpu_ids if self.rules is not None else ()

    @property
    def least_gpus(self) -> int:
        """The minimum number of GPUs that an instance must have in total."""
        return 1 if self.gpus == ALL_GPUS else self.gpus


class Changeable(Struct, frozen=True):
    """The base class of records such as Task, Run and Job.

    Every change of a task copies its records. Copying a Struct is ten times as fast as copying a dataclass.
    """

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class Run(Changeable, frozen=True):
    """One container of a task."""

    id: str
    task_id: str
    container: str
    position: int
    essential: bool
    gpus: int  # number of GPUs, or ALL_GPUS or FREE_GPUS
    state: RunState
    gpu_ids: tuple[str, ...] = ()
    pid: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    started_at_s: float | None = None
    stopped_at_s: float | None = None
    waits: bool = False  # True: the run waits for containers that it depends on, and was not ordered to start
    restarts: int = 0
    health: str | None = None  # the last result of the health check
    about: dict[str, Any] | None = None  # facts about the container (see `Observed.about`); None: the run is a process
    gpu_memory_mib: int = 0  # 0: the run has its GPUs alone; otherwise it shares one GPU, and this is its memory on the GPU

    @property
    def attempt_id(self) -> str:
        """The id that the host uses for the run. Each restart has a new one."""
        return attempt_id(self.id, self.restarts) if self.restarts else self.id


class RestartPolicy(Struct, frozen=True):
    period_s: float  # a container that ran for a shorter time is not restarted
    ignored_exit_codes: frozenset[int] = frozenset()


class ContainerRules(Struct, frozen=True):
    """When a container starts and restarts, according to its definition."""

    depends_on: tuple[tuple[str, str], ...] = ()  # (container, condition)
    start_timeout_s: float | None = None  # how long dependent containers wait for this container
    restart: RestartPolicy | None = None


def demand_to_return(scope: str, slot_id: str, gpu_ids: tuple[str, ...]) -> Demand:
    return Demand(len(gpu_ids), rules=PlacementRules(scope, slot_id=slot_id, gpu_ids=gpu_ids))


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
    details: dict[str, Any] = field(default_factory=dict)  # members of the request that DescribeTasks returns: overrides, tags...
    runs: tuple[Run, ...] = ()
    plain: bool = True  # True: the task has no container dependencies, restarts, health checks or time limit
    time_limit_s: float | None = None  # maximum time from its start to its stop
    launch_type: str = "EC2"
    owner: str = ""  # see `model/principal.py`
    pause: Pause | None = None  # None: it was never paused, and lends its GPUs to no other claim

    @property
    def is_paused(self) -> bool:
        """Whether the task holds no GPUs, because it is paused."""
        return self.pause is not None and self.pause.phase is PausePhase.PAUSED

    @property
    def demand_to_return(self) -> Demand:
        """What a paused task needs to continue. It has kept its CPU units and its memory."""
        assert self.pause is not None and self.instance_id is not None
        return demand_to_return(f"{self.region}/{self.cluster}", self.instance_id, self.pause.gpu_ids)

    @property
    def program_owner(self) -> str:
        """Whose rights the programs of the task have: those of the owner, or none if a removed user has left them to the owner."""
        return str(self.details.get(PASSED_FROM, self.owner))

    @property
    def limit_s(self) -> float | None:
        """The time limit of the task, or of the attempt of a Batch job. Both count from the start of the task."""
        return self.time_limit_s if self.time_limit_s is not None else self.details.get("attemptTimeout")

    @property
    def group_key(self) -> str:
        """A name of the task's group that is unique across all clusters and regions."""
        return f"{self.region}/{self.cluster}/{self.group}"

    @property
    def name(self) -> str:
        """The name that the user has chosen (NAME_TAG). Without such a tag, the family of the task definition."""
        for tag in self.details.get("tags", ()):
            if tag["key"] == NAME_TAG and tag.get("value"):
                return str(tag["value"])
        return self.family

    @property
    def label(self) -> str:
        """The name by which commands print and find the task: its name, and for a member of an array also its index."""
        return self.name if self.array_index is None else f"{self.name}:{self.array_index}"

    @property
    def array_index(self) -> int | None:
        """The index of a member of an array (`model/queue_options.py`). None for other tasks."""
        index = self.details.get("jobEnvironment", {}).get(INDEX_VARIABLE)
        return int(index) if index is not None else None
