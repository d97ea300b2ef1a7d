"""What the scheduler sees and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from corral.model.instance import ec2_id
from corral.model.task import Demand, PlacementRules

Links = tuple[tuple[int, ...], ...]  # how far each GPU of a host is from each other one; less is closer


@dataclass(slots=True)
class Slot:
    """A container instance as the scheduler sees it: its size and what is free of it."""

    id: str  # of the instance
    total: Demand  # without the GPUs that are withheld
    cpu_units: int  # free
    memory_mib: int  # free
    gpus: list[str]  # free, in the order of `positions`
    positions: dict[str, int]  # every GPU of the slot that may be given out, and where it stands in `links`
    connected: bool = True
    links: Links | None = None  # None: unknown, or all are equally close
    withheld: dict[str, str] = field(default_factory=dict)  # GPUs that are kept away, and why
    draining: bool = False  # a person said that nothing new may come
    attributes: dict[str, str] = field(default_factory=dict)  # what the host and its callers say of it
    tasks: dict[str, int] = field(default_factory=dict)  # that should run here, by group (`Task.group_key`)
    running: int = 0  # tasks by their state
    pending: int = 0
    registered_at_s: float = 0.0

    @property
    def takes_tasks(self) -> bool:
        return self.connected and not self.draining

    def free(self) -> Demand:
        return Demand(len(self.gpus), self.cpu_units, self.memory_mib)


TASK, INSTANCE = "task", "instance"  # kinds of claims
Rank = tuple[float, ...]


class Claim(NamedTuple):
    """A request that waits for capacity in a pool: a task, or the launch of an instance. A tuple, because queues compare many."""

    rank: Rank  # its place in the queue, by `claim_rank` in decide/placement.py: the smallest is served first
    kind: str
    id: str
    demand: Demand

    @property
    def name(self) -> str:
        """What a reason calls it."""
        return f"{self.kind} {ec2_id(self.id) if self.kind == INSTANCE else self.id}"


@dataclass(frozen=True, slots=True)
class Placement:
    slot_id: str
    gpu_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why no slot holds the ask. `resource` is the word ECS uses: GPU, MEMORY, CPU; AGENT when every host is silent.

    Three more words: DRAINING when none takes new tasks, memberOf and distinctInstance when a rule leaves none.
    """

    resource: str
    detail: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is free on `slot_id` is kept for an older claim that needs more than is free now."""

    slot_id: str
    claim: Claim


class Group(Protocol):
    """Slots with equally many free GPUs, by what else is free of them."""

    gpus: int

    def fitting(self, memory_mib: int, cpu_units: int) -> Iterable[Sequence[str]]:
        """Ids of the slots of each shape that has so much free; least memory first."""
        ...

    def roomiest(self) -> Iterable[str]:
        """All of them, most free memory first."""
        ...


class Room(Protocol):
    """Slots that take new tasks, arranged by what is free of them."""

    def groups(self, min_gpus: int = 0) -> Iterable[Group]:
        """By how many GPUs are free; fewest first. A pool, with ALL_GPUS: those that have GPUs, all of them free."""
        ...


class Part(Room, Protocol):
    """Slots with the same values, where tasks are spread over values."""

    def __len__(self) -> int: ...

    def sample(self, number: int) -> str:
        """One of them, by its number."""
        ...


@dataclass(frozen=True, slots=True)
class Sorting:
    """How rules see slots."""

    allows: Callable[[Slot], bool]
    spreads: tuple[Callable[[Slot], str] | None, ...] = ()  # over values of slots; None: over the slots themselves
    group: str = ""  # whose tasks are spread
    by_cpu: bool = False  # in a part the least free CPU comes first, else the least free memory
    drawn: bool = False  # parts are asked for samples


class Selection(Room, Protocol):
    """The slots that some rules allow, kept up to date."""

    allowed: int  # how many

    def in_order(self) -> Iterable[Sequence[Part]]:
        """All of them, in parts: those with the fewest tasks of the group first, and those with equally many together."""
        ...


class Pool(Room, Protocol):
    """The free capacity of one set of slots, indexed so that a decision need not look at every slot."""

    free_gpus: int  # of the slots that take tasks
    total_gpus: int
    connected: int  # how many slots take tasks
    lines_depending_on_tasks: int  # how many lines wait for a task to come or go, not only for room

    def groups_by_held(self) -> Iterable[Group]:
        """Slots that have GPUs, by how many of them are held and then by how many there are; fewest first."""
        ...

    def withheld(self) -> Sequence[str]:
        """Why GPUs are kept away: one reason for each such GPU."""
        ...

    def selection(self, rules: PlacementRules, sorting: Callable[[], Sorting]) -> Selection:
        """What the rules allow, as of now. `sorting` is asked for when these rules are new."""
        ...

    def slot(self, slot_id: str) -> Slot: ...

    def slots(self) -> Iterable[Slot]: ...

    def totals(self) -> Iterable[Demand]:
        """The distinct sizes of all slots, connected or not."""
        ...

    def has_line(self) -> bool:
        """Does anybody wait?"""
        ...

    def heads(self) -> Iterable[Claim]:
        """The oldest claim of each distinct ask, oldest first."""
        ...

    def head(self, demand: Demand) -> Claim | None: ...

    def waiting(self) -> int: ...
