"""EC2 instances. An instance is a part of the capacity of one host.

The scheduler places tasks on slots.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.principal import ROOT
from corral.model.task import Demand

_HOST_POOL = "hosts:"  # the beginning of the names of the pools of hosts; the names of other pools contain a slash
GROUP_TAG = "aws:autoscaling:groupName"
ARCHITECTURE = "ecs.cpu-architecture"  # an attribute of container instances and of tasks
ARCHITECTURES = {"x86_64": "x86_64", "aarch64": "arm64"}  # the kernel's name → that of ECS and EC2
INTERRUPTED_AT = "_interrupted_at"  # a member of `Instance.details`: the time at which Corral terminates a spot instance
INTERRUPTED_WHY = "_interrupted_why"  # a member of `Instance.details`: why a lender ends it at that time


class InstanceState(StrEnum):
    PENDING = "pending"  # waits for GPUs and has no host yet
    RUNNING = "running"
    STOPPING = "stopping"  # gets no new tasks, and keeps its GPUs until its last task has ended
    STOPPED = "stopped"  # has no host, no GPUs and no slot; StartInstances makes it pending again
    SHUTTING_DOWN = "shutting-down"  # like STOPPING, but TERMINATED follows
    TERMINATED = "terminated"


MOVES: dict[InstanceState, frozenset[InstanceState]] = {
    InstanceState.PENDING: frozenset({InstanceState.RUNNING, InstanceState.TERMINATED}),
    InstanceState.RUNNING: frozenset({InstanceState.STOPPING, InstanceState.SHUTTING_DOWN}),
    InstanceState.STOPPING: frozenset({InstanceState.STOPPED, InstanceState.SHUTTING_DOWN}),
    InstanceState.STOPPED: frozenset({InstanceState.PENDING, InstanceState.TERMINATED}),
    InstanceState.SHUTTING_DOWN: frozenset({InstanceState.TERMINATED}),
    InstanceState.TERMINATED: frozenset(),
}


class TypeMapping(Struct, frozen=True):
    """The size of an instance type on this machine, from `[instance-types]` in corral.toml. None means the size on AWS."""

    gpus: int | None = None
    vcpus: int | None = None
    memory_gib: float | None = None
    lenders: tuple[str, ...] = ()  # which lenders are asked, in this order; none: the hosts that have joined by themselves

    def line(self, type_: str) -> str:
        """Return the line of corral.toml, for example `p3.16xlarge = {gpus = 2}`."""
        sizes = (("gpus", self.gpus), ("vcpus", self.vcpus), ("memory_gib", self.memory_gib))
        return f"{type_} = {{{', '.join(f'{name} = {size:g}' for name, size in sizes if size is not None)}}}"


class Instance(Struct, frozen=True):
    """A part of a host's capacity. It owns whole GPUs. Its instance type determines its CPU and memory.

    Each host also has one instance of its own, which exists without a launch. It owns every GPU of the host that no other instance
    owns. It has no region, because it joins its cluster in every region.
    """

    id: str  # 32 hexadecimal digits; also the id of the container instance, if it joins a cluster
    region: str  # empty for a host's own instance
    cluster: str  # the ECS cluster that the instance joined; empty: none
    type: str
    state: InstanceState
    gpus: int
    cpu_units: int
    memory_mib: int
    created_at_s: float
    host_id: str | None = None  # None: it waits for capacity
    status: str = "ACTIVE"  # as a container instance: ACTIVE, DRAINING, or INACTIVE (deregistered)
    terminated_at_s: float | None = None
    # From the request, in the shape in which DescribeInstances returns it: Tags, ImageId, SubnetId and so on. Members that begin
    # with "_" are not shown.
    details: dict[str, Any] = field(default_factory=dict)
    group: str = ""  # the name of its Auto Scaling group; empty: none
    # The ECS cluster in its user data: the instance joins it when it runs and the cluster exists. Of a host's own instance: that
    # in the options of the host, to which the instance moves when its last task has ended.
    joins: str = ""
    launched_at_s: float | None = None  # when it last became running
    launch_reason: str = ""  # why it was launched, as a text for people
    end_reason: str = ""  # why it was stopped or terminated; empty: it was not
    owner: str = ROOT  # a host's own instance belongs to the root user

    @property
    def is_host(self) -> bool:
        return not self.region

    @property
    def demand(self) -> Demand:
        """The resources that a launch takes from a host's own slot. These are only GPUs, so CPU and memory can be overcommitted."""
        return Demand(self.gpus)

    @property
    def pool(self) -> str | None:
        """The pool of the instance's slot. None if the instance joined no cluster, so that no task can be placed on it.

        The own instance of a forgotten host is INACTIVE, and in no pool.
        """
        if self.is_host:
            return host_pool(self.cluster) if self.status != "INACTIVE" else None
        return cluster_pool(self.region, self.cluster) if self.cluster else None

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def cluster_pool(region: str, cluster: str) -> str:
    """Return the name of the pool of the EC2 instances that joined a cluster."""
    return f"{region}/{cluster}"


def host_pool(cluster: str) -> str:
    """Return the name of the pool of the hosts' own instances in a cluster. Hosts belong to their cluster in every region.

    Tasks of the cluster, Fargate tasks and launches of EC2 instances are placed there.
    """
    return f"{_HOST_POOL}{cluster}"


def is_host_pool(pool: str) -> bool:
    return pool.startswith(_HOST_POOL)


def cluster_of_pool(pool: str) -> str:
    return pool.removeprefix(_HOST_POOL) if is_host_pool(pool) else pool.partition("/")[2]


def host_instance_id(host_id: str) -> str:
    """Return the id of a host's own instance.

    This id differs from the id of the host, so that code that confuses the two ids fails.
    """
    return blake2b(host_id.encode(), digest_size=16, person=b"instance").hexdigest()


def ec2_id(instance_id: str) -> str:
    """Return the id of an instance in EC2's format, `i-` and 17 hexadecimal digits."""
    return f"i-{instance_id[:17]}"
