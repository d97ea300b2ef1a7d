"""ECS services: a number of equal tasks that Corral keeps running."""

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

STARTED_BY = "ecs-svc/"  # the prefix of `startedBy` of a service's tasks; the number of their deployment follows
REPLICA, DAEMON = "REPLICA", "DAEMON"  # scheduling strategies
ACTIVE, DRAINING, INACTIVE = "ACTIVE", "DRAINING", "INACTIVE"  # states of a service


class Deployment(Struct, frozen=True):
    """A version of a service. Its tasks share one task definition and one configuration."""

    id: str  # ecs-svc/NUMBER: the `startedBy` of its tasks
    definition_arn: str
    created_at_s: float
    updated_at_s: float
    # In ECS's shape, for launches: launchType, capacityProviderStrategy, platformVersion, networkConfiguration
    settings: dict[str, Any] = field(default_factory=dict)
    rollout: str = "IN_PROGRESS"  # or COMPLETED


class EcsService(Struct, frozen=True):
    """A service. `deployments` begins with the one that new tasks belong to; older ones follow until their last task stops."""

    region: str
    cluster: str
    name: str
    status: str  # ACTIVE; DRAINING: it was deleted, and its tasks stop; INACTIVE: they have stopped
    strategy: str  # REPLICA or DAEMON
    desired: int  # of a DAEMON: the number of its container instances when it was last reconciled
    created_at_s: float
    deployments: tuple[Deployment, ...]
    details: dict[str, Any]  # members of the requests that DescribeServices returns, in ECS's shape
    is_steady: bool = False  # the event about its steady state was written, and nothing changed since
    problem: str = ""  # the last problem that an event reported; empty once the service is steady
    deleted_at_s: float | None = None
    paced_at_s: float | None = None  # it did as much as one transaction may; the rest follows in a later one

    @property
    def primary(self) -> Deployment:
        return self.deployments[0]

    @property
    def key(self) -> str:
        """The name of its reconciler key."""
        return service_key(self.region, self.cluster, self.name)

    @property
    def group(self) -> str:
        """The group of its tasks."""
        return f"service:{self.name}"

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def service_key(region: str, cluster: str, name: str) -> str:
    return f"{region}/{cluster}/{name}"


class TaskCount(Struct, frozen=True):
    """How many tasks of a deployment should run."""

    total: int = 0
    running: int = 0  # RUNNING
    waiting: int = 0  # PROVISIONING


class ServiceTask(Struct, frozen=True):
    """A task of a service that should run."""

    id: str
    deployment: str
    state: str  # PROVISIONING, PENDING or RUNNING
    instance_id: str | None
    pool: str
    created_at_s: float


class StoppedTask(Struct, frozen=True):
    """A task of a deployment that ended or was stopped, for the delay before the next start."""

    stop_code: str | None
    created_at_s: float
    started_at_s: float | None
    stopped_at_s: float | None
