"""Allocations: what a lender, such as a Slurm cluster, gives to one EC2 instance.

A lender runs a program of Corral, the pilot, in each allocation. The pilot joins the server as a host, and the instance gets the
GPUs of this host.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

LENDER_TAG = "corral:lender"  # of an instance: the names of lenders, in the order in which they are asked
LOCAL = "local"  # the lender whose instances are parts of the hosts that have joined by themselves
_CLUSTER = "allocation/"
TOKEN_S = 600.0  # how long a pilot can join after its allocation has begun to run
JOIN_MAX_S = TOKEN_S + 60.0  # an allocation whose host does not serve its instance after this time is ended
NOT_YET = "does not run yet"  # in the refusal of a pilot that should try again


class AllocationState(StrEnum):
    WANTED = "wanted"  # the lender does not have the request yet
    WAITING = "waiting"  # the lender has it in its line
    RUNNING = "running"
    ENDING = "ending"  # Corral needs it no more, and the lender has not proved its end yet


class Allocation(Struct, frozen=True):
    """The record of an allocation. It is deleted when the lender has proved that the allocation has ended."""

    instance_id: str
    lender: str
    others: tuple[str, ...] = ()  # the lenders that are asked next if this one refuses
    state: AllocationState = AllocationState.WANTED
    handle: str = ""  # the lender's id of it, such as the id of a job; empty: not known yet
    reason: str = ""  # what the lender says, for people
    digest: str = ""  # SHA-256 of the secret with which its pilot joins; empty: none
    host_id: str = ""  # the host that its pilot is; empty: it has not joined
    running_at_s: float | None = None  # when the lender first said that it runs
    options: dict[str, str] = field(default_factory=dict)  # such as slurm-partition: those of the tags corral:slurm-partition
    created_at_s: float = 0.0
    machine: str = ""  # the lender's name of its machine; empty: not known yet
    said: str = ""  # why its last pilot could not join, in its own words


class Phase(StrEnum):
    """The state of an allocation as its lender reports it."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDING = "ending"  # the lender ends it, and its processes may still run
    UNKNOWN = "unknown"  # the lender has lost sight of its machine, so its processes may run
    BROKEN = "broken"  # it serves no host any more, but the lender still has it, and its processes may run
    OVER = "over"  # the lender has ended it, but this does not prove that none of its processes is left
    ENDED = "ended"  # the lender has proved that none of its processes is left

    @property
    def needs_end(self) -> bool:
        """Whether a request to terminate the allocation makes sense."""
        return self in (Phase.WAITING, Phase.RUNNING, Phase.UNKNOWN, Phase.BROKEN)

    @property
    def is_useless(self) -> bool:
        """Whether the allocation cannot serve its instance any more."""
        return self in (Phase.BROKEN, Phase.OVER, Phase.ENDED)


class Found(Struct, frozen=True):
    """An allocation as its lender reports it."""

    label: str  # the name that Corral gave it
    handle: str
    phase: Phase
    reason: str = ""
    ends_at_s: float | None = None  # wall time at which the lender will end it; None: not known
    machine: str = ""  # the lender's name of the machine; empty: none yet
    digest: str = ""  # SHA-256 of a secret that its pilot has made by itself; empty: the pilot has the secret of the request
    ends_why: str = ""  # why the lender will end it at `ends_at_s`, for people


def allocation_cluster(instance_id: str) -> str:
    """Return the cluster of the host that a lender gives to an instance. No ECS cluster can have this name.

    Clusters have pools of hosts. So only this instance is placed on the host.
    """
    return f"{_CLUSTER}{instance_id}"


def is_allocation_cluster(cluster: str) -> bool:
    return cluster.startswith(_CLUSTER)
