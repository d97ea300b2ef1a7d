"""ECS services and their deployments. A service keeps a number of tasks running."""

from __future__ import annotations

from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

STARTED_BY = "ecs-svc/"  # `startedBy` of a service's tasks is this prefix and the number of the deployment
REPLICA, DAEMON = "REPLICA", "DAEMON"  # scheduling strategies
ACTIVE, DRAINING, INACTIVE = "ACTIVE", "DRAINING", "INACTIVE"  # states of a service


class Deployment(Struct, frozen=True):
    """A version of a service. Its tasks share one task definition and one configuration."""

    id: str  # ecs-svc/NUMBER, which is also `startedBy` of its tasks
    definition_arn: str
    created_at_s: float
    updated_at_s: float
    # launchType, capacityProviderStrategy, platformVersion and networkConfiguration, as in ECS's requests
    settings: dict[str, Any] = field(default_factory=dict)
    rollout: str = "IN_PROGRESS"  # IN_PROGRESS or COMPLETED


class EcsService(Struct, frozen=True):
    """A service. New tasks belong to the first deployment. Older deployments are dropped when their last task has stopped."""

    region: str
    cluster: str
    name: str
    status: str  # ACTIVE, DRAINING (deleted, its tasks stop) or INACTIVE (deleted, all its tasks have stopped)
    strategy: str  # REPLICA or DAEMON
    desired: int  # for DAEMON: the number of eligible instances, updated by the reconciler
    created_at_s: float
    deployments: tuple[Deployment, ...]
    details: dict[str, Any]  # request members that DescribeServices returns unchanged
    is_steady: bool = False  # the event "has reached a steady state" was written after the last change
    problem: str = ""  # the last problem that an event reported; empty when the service is steady
    deleted_at_s: float | None = None
    paced_at_s: float | None = None  # when a transaction reached its limit of changes; a later one continues

    @property
    def primary(self) -> Deployment:
        return self.deployments[0]

    @property
    def key(self) -> str:
        """REGION/CLUSTER/NAME: the key of the reconciler `service`."""
        return service_key(self.region, self.cluster, self.name)

    @property
    def group(self) -> str:
        """`group` of the service's tasks in DescribeTasks."""
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
    """A task of a service that waits, starts or runs."""

    id: str
    deployment: str
    state: str  # PROVISIONING, PENDING or RUNNING
    instance_id: str | None
    pool: str
    created_at_s: float


class StoppedTask(Struct, frozen=True):
    """A task that is stopping or has stopped. Failed tasks delay the next start."""

    stop_code: str | None
    created_at_s: float
    started_at_s: float | None
    stopped_at_s: float | None
