"""What the scheduler sees and what it answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from corral.model.task import Ask


@dataclass(slots=True)
class Slot:
    """A container instance as the scheduler sees it: its size and what is free of it."""

    id: str
    total: Ask
    cpu_units: int  # free
    memory_mib: int  # free
    gpus: list[str]  # free, in the order of their index
    connected: bool = True


@dataclass(frozen=True, slots=True)
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
    """Why no slot holds the ask. `resource` is the word ECS uses: GPU, MEMORY, CPU, or AGENT when all are silent."""

    resource: str
    detail: str


@dataclass(frozen=True, slots=True)
class Reservation:
    """What is free on `slot_id` is kept for an older claim that needs more than is free now."""

    slot_id: str
    claim: Claim


class Pool(Protocol):
    """The free capacity of one set of slots, indexed so that a decision does not look at every slot."""

    def shapes(self, min_gpus: int) -> Iterable[tuple[int, int, int, str]]:
        """(free GPUs, memory, cpu, first slot) of each distinct shape of a connected slot, fewest free GPUs first."""
        ...

    def slot(self, slot_id: str) -> Slot: ...

    def slots(self) -> Iterable[Slot]: ...

    def heads(self) -> Iterable[Claim]:
        """The oldest claim of each distinct ask, oldest first."""
        ...

    def largest(self) -> Ask:
        """The most of each resource that any slot has in total."""
        ...
