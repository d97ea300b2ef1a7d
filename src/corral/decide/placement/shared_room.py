"""Shared room: when the GPUs of a slot become free, if tasks share some of them.

Tasks that share a GPU each have some of its memory. The GPU is idle again when the last of them has ended. A time limit says when a
task has ended at the latest.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.model.placement import Ending, Slot
from corral.model.task import ALL_GPUS, Demand


class SharedRoom:
    """The free resources of a slot. `end` adds the resources of a task that ends."""

    def __init__(self, slot: Slot, endings: Sequence[Ending] | None = None) -> None:
        """Start with what is free now. With `endings`, start with what would be free if only the tasks of these endings ran."""
        self._slot = slot
        self.cpu_units, self.memory_mib = slot.cpu_units, slot.memory_mib
        self._idle = set(slot.gpus)
        self._left = dict(slot.shared)  # shared GPU → its memory that is not allocated
        # The number of leased GPUs that processes outside Corral use, too. With `endings`, they count as idle, because these
        # processes can end at any time.
        self._maybe_idle = 0
        if endings is not None:
            self.cpu_units = slot.total.cpu_units - sum([ending.cpu_units for ending in endings])
            self.memory_mib = slot.total.memory_mib - sum([ending.memory_mib for ending in endings])
            alone = {gpu_id for ending in endings for gpu_id in ending.gpu_ids}
            self._left = {}
            for gpu_id, allocated_mib in [share for ending in endings for share in ending.shares]:
                if gpu_id in slot.positions:
                    self._left[gpu_id] = self._left.get(gpu_id, slot.gpu_memory[gpu_id]) - allocated_mib
            self._idle = slot.positions.keys() - alone - self._left.keys()
            self._maybe_idle = slot.total.gpus - len(slot.positions)

    def end(self, ending: Ending) -> None:
        """Add what is free again when a task ends. A GPU that tasks may no longer use does not count."""
        self.cpu_units += ending.cpu_units
        self.memory_mib += ending.memory_mib
        self._idle.update(gpu_id for gpu_id in ending.gpu_ids if gpu_id in self._slot.positions)
        for gpu_id, allocated_mib in ending.shares:
            if gpu_id in self._left:
                self._left[gpu_id] += allocated_mib
                if self._left[gpu_id] == self._slot.gpu_memory[gpu_id]:
                    del self._left[gpu_id]
                    self._idle.add(gpu_id)

    @property
    def idle_gpus(self) -> int:
        return len(self._idle) + self._maybe_idle

    def has(self, demand: Demand) -> bool:
        if self.cpu_units < demand.cpu_units or self.memory_mib < demand.memory_mib:
            return False
        if demand.gpu_memory_mib:
            return self._large_gpus(demand) > 0 or any(left >= demand.gpu_memory_mib for left in self._left.values())
        return self.idle_gpus >= self._needed(demand)

    def spare(self, demand: Demand) -> tuple[int, int, int]:
        """Return how many GPUs, CPU units and MiB of memory other tasks may take, so that the demand still fits afterwards.

        If such a task shares a GPU, it counts as a task that takes the whole GPU, because the GPU is not idle until the task ends.
        """
        gpus = max(0, self._large_gpus(demand) - 1) if demand.gpu_memory_mib else self.idle_gpus - self._needed(demand)
        return gpus, self.cpu_units - demand.cpu_units, self.memory_mib - demand.memory_mib

    def _large_gpus(self, demand: Demand) -> int:
        """Return the number of idle GPUs that have enough memory for a demand that shares a GPU."""
        return self._maybe_idle + sum([self._slot.gpu_memory.get(gpu_id, 0) >= demand.gpu_memory_mib for gpu_id in self._idle])

    def _needed(self, demand: Demand) -> int:
        return (self._slot.total.gpus or 1) if demand.gpus == ALL_GPUS else demand.gpus
