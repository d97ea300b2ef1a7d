"""Input and output of the scheduler: slots, pools, claims, placements and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from corral.model.instance import ec2_id
from corral.model.task import Demand, PlacementRules

Links = tuple[tuple[int, ...], ...]  # the distance of each GPU of a host to each other GPU; smaller is closer


class Slot(Struct):
    """A container instance as the scheduler sees it: its total and its free resources."""

    id: str  # of the instance
    total: Demand  # without withheld GPUs
    cpu_units: int  # free
    memory_mib: int  # free
    gpus: list[str]  # free, in the order of `positions`
    positions: dict[str, int]  # GPU that tasks may get → its index in `links`
    connected: bool = True
    links: Links | None = None  # None: unknown, or all distances are equal
    withheld: dict[str, str] = field(default_factory=dict)  # GPU that tasks may not get → the reason
    draining: bool = False  # DRAINING: no new tasks
    attributes: dict[str, str] = field(default_factory=dict)  # built-in and custom attributes
    tasks: dict[str, int] = field(default_factory=dict)  # number of tasks that should run here, by group (`Task.group_key`)
    running: int = 0  # number of tasks in this state
    pending: int = 0  # number of tasks in this state
    registered_at_s: float = 0.0
    lent: int = 0  # GPUs of a host that other instances own now

    @property
    def whole(self) -> Demand:
        """Its total resources if no other instance had GPUs of its host."""
        return Demand(self.total.gpus + self.lent, self.total.cpu_units, self.total.memory_mib) if self.lent else self.total

    @property
    def takes_tasks(self) -> bool:
        return self.connected and not self.draining

    def free(self) -> Demand:
        return Demand(len(self.gpus), self.cpu_units, self.memory_mib)


TASK, INSTANCE = "task", "instance"  # kinds of claims
Rank = tuple[float, ...]


class Claim(NamedTuple):
    """A task or an instance launch that waits for capacity in a pool. It is a tuple because queues compare claims often."""

    rank: Rank  # its position in the queue (`decide/claim_order.py`): the smallest is served first
    kind: str
    id: str
    demand: Demand

    @property
    def name(self) -> str:
        """Its name in reasons."""
        return f"{self.kind} {ec2_id(self.id) if self.kind == INSTANCE else self.id}"


class Placement(Struct, frozen=True):
    slot_id: str
    gpu_ids: tuple[str, ...]


class Unplaceable(Struct, frozen=True):
    """Why no slot can hold the ask. `resource` is ECS's name for the reason.

    GPU, MEMORY or CPU: too little is free. AGENT: no host is connected. DRAINING: no slot takes new tasks. memberOf or
    distinctInstance: the placement constraint excludes all slots.
    """

    resource: str
    detail: str


class Reservation(Struct, frozen=True):
    """The free resources of a slot are reserved for an older claim that needs more than is free now."""

    slot_id: str
    claim: Claim


class SlotGroup(Protocol):
    """Slots with the same number of free GPUs, sorted by free memory and CPU."""

    gpus: int

    def fitting(self, memory_mib: int, cpu_units: int) -> Iterable[Sequence[str]]:
        """Ids of the slots that have this much free, in batches of equal free memory and CPU; least memory first."""
        ...

    def roomiest(self) -> Iterable[str]:
        """Ids of all slots, most free memory first."""
        ...


class FreeSlots(Protocol):
    """Slots that take new tasks, indexed by their free resources."""

    def groups(self, min_gpus: int = 0) -> Iterable[SlotGroup]:
        """Slots by number of free GPUs, fewest first. `ALL_GPUS` (pools only): slots that have GPUs, all of them free."""
        ...


class SpreadPart(FreeSlots, Protocol):
    """Slots with equal values of the attributes over which tasks are spread."""

    def __len__(self) -> int: ...

    def sample(self, number: int) -> str:
        """The id of one of them, by its number."""
        ...


class CompiledRules(Struct, frozen=True):
    """Placement rules as functions of a slot."""

    allows: Callable[[Slot], bool]
    spreads: tuple[Callable[[Slot], str] | None, ...] = ()  # the values to spread over; None: over instances
    group: str = ""  # the group whose tasks are spread
    by_cpu: bool = False  # slots of a part are sorted by free CPU, else by free memory; least first
    drawn: bool = False  # parts support `sample`


class Selection(FreeSlots, Protocol):
    """The slots that placement rules allow, kept up to date."""

    allowed: int  # number of slots

    def in_order(self) -> Iterable[Sequence[SpreadPart]]:
        """All slots, in parts. Each sequence has the parts with equally many tasks of the group; fewest first."""
        ...


class Pool(FreeSlots, Protocol):
    """The free capacity of a set of slots, indexed so that a decision need not read every slot."""

    free_gpus: int  # of the slots that take tasks
    total_gpus: int
    connected: int  # how many slots take tasks
    lines_depending_on_tasks: int  # how many lines wait for a task to come or go, not only for room

    def groups_by_held(self) -> Iterable[SlotGroup]:
        """Slots that have GPUs, by number of held GPUs and then by number of GPUs; fewest first."""
        ...

    def withheld(self) -> Sequence[str]:
        """The reason for each withheld GPU."""
        ...

    def selection(self, rules: PlacementRules, compile_rules: Callable[[], CompiledRules]) -> Selection:
        """The slots that the rules allow now. `compile_rules` is called if these rules are new."""
        ...

    def slot(self, slot_id: str) -> Slot: ...

    def slots(self) -> Iterable[Slot]: ...

    def totals(self) -> Iterable[Demand]:
        """The distinct sizes of all slots, connected or not, with the GPUs that instances have taken from a host."""
        ...

    def has_line(self) -> bool:
        """Whether a claim waits."""
        ...

    def heads(self) -> Iterable[Claim]:
        """The first claim of each distinct ask, oldest first."""
        ...

    def head(self, demand: Demand) -> Claim | None: ...

    def waiting(self) -> int: ...
