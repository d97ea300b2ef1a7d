"""What the scheduler sees and what it answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from corral.model.task import Ask

Links = tuple[tuple[int, ...], ...]  # how far each GPU of a host is from each other one; less is closer


@dataclass(slots=True)
class Slot:
    """A container instance as the scheduler sees it: its size and what is free of it."""

    id: str
    total: Ask  # without the GPUs that are withheld
    cpu_units: int  # free
    memory_mib: int  # free
    gpus: list[str]  # free, in the order of `positions`
    positions: dict[str, int]  # every GPU of the slot that may be given out, and where it stands in `links`
    connected: bool = True
    links: Links | None = None  # None: unknown, or all are equally close
    withheld: dict[str, str] = field(default_factory=dict)  # GPUs that are kept away, and why

    def free(self) -> Ask:
        return Ask(len(self.gpus), self.cpu_units, self.memory_mib)


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """Whoever waits for room in a pool."""

    since_s: float
    task_id: str
    ask: Ask


@dataclass(frozen=True, slots=True)
class Placement:
    slot_id: str
    gpu_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unplaceable:
    """Why no slot holds the ask. `resource` is the word ECS uses: GPU, MEMORY, CPU; AGENT when every host is silent."""

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


class Pool(Protocol):
    """The free capacity of one set of slots, indexed so that a decision need not look at every slot."""

    free_gpus: int  # of the connected slots
    total_gpus: int
    connected: int  # how many slots are

    def groups(self, min_gpus: int = 0) -> Iterable[Group]:
        """Connected slots by how many GPUs are free; fewest first. With ALL_GPUS: those that have GPUs, all of them free."""
        ...

    def groups_by_held(self) -> Iterable[Group]:
        """Connected slots that have GPUs, by how many of them are held and then by how many there are; fewest first."""
        ...

    def withheld(self) -> Sequence[str]:
        """Why GPUs are kept away: one reason for each such GPU."""
        ...

    def slot(self, slot_id: str) -> Slot: ...

    def totals(self) -> Iterable[Ask]:
        """The distinct sizes of all slots, connected or not."""
        ...

    def heads(self) -> Iterable[Claim]:
        """The oldest claim of each distinct ask, oldest first."""
        ...

    def head(self, ask: Ask) -> Claim | None: ...

    def waiting(self) -> int: ...
