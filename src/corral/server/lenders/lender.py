"""What Corral needs of a lender. `slurm.py` implements it for Slurm, and `ray.py` for Ray.

Nothing is remembered of earlier calls, so a lost answer, a restart of Corral or of the lender, and a request that arrives twice do
no harm. The label of an allocation says to which instance it belongs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from corral.model.allocation import Found, Phase


class LenderFailed(Exception):
    """The lender did not answer, so nothing is known."""


class LenderRefused(Exception):
    """The lender refuses a request. Another request may succeed."""


class AllocationRequest(Struct, frozen=True):
    """An allocation for an instance, and how its pilot joins (`pilot_script.py`)."""

    label: str  # the name of the allocation
    gpus: int
    cpus: int
    memory_mib: int
    options: Mapping[str, str]  # by name, such as partition
    door: str  # ADDRESS:PORT of the server's door
    token: str


class Lender(Protocol):
    """Threads call these methods, never two of one lender at the same time. Each method may raise LenderFailed."""

    def launch(self, request: AllocationRequest) -> str:
        """Request an allocation, and return the lender's id of it, the handle. Raise LenderRefused if the lender refuses it."""
        ...

    def found(self, label_prefix: str) -> list[Found]:
        """Return all allocations whose label has this prefix, each with its state, the reason of it, and when it will end.

        `Phase.ENDED` needs proof that none of its processes is left.
        """
        ...

    def terminate(self, handles: Sequence[str]) -> None:
        """End allocations. Those that have ended already are no error."""
        ...

    def phase_of_missing(self, handle: str, machine: str) -> Phase:
        """Return the state of an allocation that `found` has not returned for EPILOG_S. `Phase.ENDED` needs proof, as in `found`.

        `machine` is where it ran; empty: it has not run, as far as Corral knows.
        """
        ...

    def advice(self) -> list[str]:
        """Return what the operator of the lender should change, as the last answers show it. Any thread calls this method."""
        ...
