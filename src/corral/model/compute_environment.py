"""AWS Batch compute environments: where the jobs of a queue run.

A managed environment of the kind EC2 or SPOT has its own ECS cluster, and one Auto Scaling group for each instance type that its
jobs use. Corral launches and terminates these instances. The jobs of a Fargate environment run on this machine, as Fargate tasks
do. An unmanaged environment has a cluster too, but users add the instances.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

MANAGED, UNMANAGED = "MANAGED", "UNMANAGED"
ENABLED, DISABLED = "ENABLED", "DISABLED"
EC2, SPOT, FARGATE, FARGATE_SPOT = "EC2", "SPOT", "FARGATE", "FARGATE_SPOT"
CREATING, VALID, INVALID, UPDATING, DELETING = "CREATING", "VALID", "INVALID", "UPDATING", "DELETING"  # values of `status`
CLUSTER_TAG = "corral:cluster"  # the tag of an unmanaged environment that names the ECS cluster to use


class ComputeEnvironment(Struct, frozen=True):
    """A compute environment. The sizes are in vCPUs; they are 0 for an unmanaged environment."""

    region: str
    name: str
    arn: str
    uuid: str
    type: str  # MANAGED or UNMANAGED
    state: str  # ENABLED or DISABLED, as the user has set it
    status: str  # CREATING, VALID, INVALID, UPDATING or DELETING
    status_reason: str
    cluster: str  # the name of its ECS cluster
    min_vcpus: int
    max_vcpus: int
    desired_vcpus: int  # the vCPUs of the instances that run or start
    kind: str  # EC2, SPOT, FARGATE, FARGATE_SPOT, or empty for an unmanaged environment
    # The environment in the form of DescribeComputeEnvironments, and members that begin with "_". Do not change this object: all
    # readers of the environment get the same object.
    document: dict[str, Any]

    @property
    def key(self) -> str:
        return environment_key(self.region, self.name)

    @property
    def takes_jobs(self) -> bool:
        """Whether the scheduler may place jobs in the environment: it is ENABLED, and its status is VALID or UPDATING."""
        return self.state == ENABLED and self.status in (VALID, UPDATING)

    @property
    def is_fargate(self) -> bool:
        return self.kind in (FARGATE, FARGATE_SPOT)

    @property
    def scales(self) -> bool:
        """Whether Corral launches and terminates the instances of the environment."""
        return self.kind in (EC2, SPOT)


def environment_key(region: str, name: str) -> str:
    return f"environment:{region}/{name}"
