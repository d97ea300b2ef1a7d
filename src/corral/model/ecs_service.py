"""ECS services and their deployments. A service keeps a number of tasks running."""

from __future__ import annotations

from math import ceil
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.task import Task

SERVICE_TASKS_MAX = 5_000  # ECS's quota of tasks of one service
STARTED_BY = "ecs-svc/"  # `startedBy` of a service's tasks is this prefix and the number of the deployment
REPLICA, DAEMON = "REPLICA", "DAEMON"  # scheduling strategies
ACTIVE, DRAINING, INACTIVE = "ACTIVE", "DRAINING", "INACTIVE"  # states of a service
IN_PROGRESS, COMPLETED, FAILED = "IN_PROGRESS", "COMPLETED", "FAILED"  # rollout states of a deployment
HEALTHY, UNHEALTHY, UNKNOWN = "HEALTHY", "UNHEALTHY", "UNKNOWN"  # health of a task
FAILED_CHECKS = "Task failed container health checks"  # `stoppedReason` of a task that a service replaces


class Deployment(Struct, frozen=True):
    """A version of a service. Its tasks share one task definition and one configuration."""

    id: str  # ecs-svc/NUMBER, which is also `startedBy` of its tasks
    definition_arn: str
    created_at_s: float
    updated_at_s: float
    # launchType, capacityProviderStrategy, platformVersion and networkConfiguration, as in ECS's requests
    settings: dict[str, Any] = field(default_factory=dict)
    rollout: str = IN_PROGRESS  # IN_PROGRESS, COMPLETED or FAILED
    reason: str = ""  # rolloutStateReason; empty: the text of ECS for the rollout state
    only_in_docker: bool = False  # a caller that may not run on the host has made the deployment
    as_account: bool = False  # also if `only_in_docker`, processes may run as the Unix account of the service's owner
    passed_from: str = ""  # `removed_owner`, if a user made it who was removed since: its programs have no rights of the new owner

    @property
    def uses_account(self) -> bool:
        return self.as_account or not self.only_in_docker

    @property
    def revision(self) -> str:
        """The number in the ARN of the service revision."""
        return self.id.removeprefix(STARTED_BY)


class PauseHook(Struct, frozen=True):
    """A pause of a rollout, until ContinueServiceDeployment is called or the time is over."""

    id: str
    stage: str  # PRE_SCALE_UP or POST_SCALE_UP
    expires_at_s: float
    timeout_action: str  # ROLLBACK or CONTINUE
    status: str = "AWAITING_ACTION"  # or SUCCEEDED, FAILED, TIMED_OUT


class ServiceRollout(Struct, frozen=True):
    """The move of a service to the service revision `target`. ECS calls it a service deployment.

    If it fails, the service can return to an earlier revision, `rollback_to`.
    """

    id: str
    target: str  # the number of a service revision
    sources: tuple[str, ...]
    created_at_s: float
    updated_at_s: float
    configuration: dict[str, Any]  # deploymentConfiguration
    revision: dict[str, Any]  # the members of the new service revision in DescribeServiceRevisions
    status: str = "PENDING"
    reason: str = ""
    started_at_s: float | None = None
    finished_at_s: float | None = None
    stopped_at_s: float | None = None
    stage: str = ""  # lifecycleStage
    failures: int = 0  # failed tasks that count for the circuit breaker
    forgiven: int = 0  # failed tasks of the deployment that do not count any more
    healthy: int = 0  # healthy tasks when this record was last written; when the number grows, failures are counted from 0 again
    ignored_alarms: tuple[str, ...] | None = None  # alarms that were in ALARM at the start; None: not known yet
    triggered_alarms: tuple[str, ...] = ()
    alarm_window_s: float = 0.0  # the longest window of the alarms; it is the bake time if the configuration sets none
    bake_until_s: float | None = None
    hooks: tuple[PauseHook, ...] = ()
    rollback_reason: str = ""
    rollback_at_s: float | None = None
    rollback_to: str = ""  # the number of a service revision
    counts: dict[str, int] = field(default_factory=dict)  # tasks of the target when the rollout ended: requested, running

    @property
    def is_ongoing(self) -> bool:
        return self.status in ONGOING

    @property
    def is_rollback(self) -> bool:
        return self.rollback_at_s is not None

    @property
    def paused(self) -> PauseHook | None:
        return next((hook for hook in self.hooks if hook.status == "AWAITING_ACTION"), None)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


ONGOING = ("PENDING", "IN_PROGRESS", "STOP_REQUESTED", "ROLLBACK_REQUESTED", "ROLLBACK_IN_PROGRESS")


# A service with the deployment controller EXTERNAL and without task sets has this deployment.
NO_DEPLOYMENT = Deployment("", "", 0.0, 0.0, rollout=COMPLETED)


class TaskSet(Struct, frozen=True):
    """A task set of a service with the deployment controller EXTERNAL. The deployment with the same id has its configuration."""

    id: str
    scale: float  # percent of the desired count of the service
    created_at_s: float
    updated_at_s: float
    details: dict[str, Any]  # request members that DescribeTaskSets returns unchanged
    status: str = ACTIVE  # PRIMARY, ACTIVE or DRAINING (deleted, its tasks stop)
    is_steady: bool = False
    stability_at_s: float = 0.0

    def desired(self, of_service: int) -> int:
        """Return the desired count of the task set, given that of the service. As in ECS, it is rounded up."""
        return ceil(of_service * self.scale / 100)


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
    paced_at_s: float | None = None  # when a transaction reached its limit of changes; a later transaction continues
    rollout: str = ""  # the id of the newest ServiceRollout
    completed: Deployment | None = None  # the last deployment that was completed: a failed rollout returns to it
    task_sets: tuple[TaskSet, ...] = ()
    owner: str = ""  # see `model/principal.py`

    @property
    def primary(self) -> Deployment:
        return self.deployments[0] if self.deployments else NO_DEPLOYMENT

    @property
    def is_external(self) -> bool:
        """Whether another program manages the deployments of the service by task sets."""
        return bool(self.details.get("deploymentController", {}).get("type") == "EXTERNAL")

    def deployment(self, deployment_id: str) -> Deployment:
        return next(each for each in self.deployments if each.id == deployment_id)

    @property
    def key(self) -> str:
        """REGION/CLUSTER/NAME, which follows `service:` in the key of the reconciler."""
        return service_key(self.region, self.cluster, self.name)

    @property
    def scaling_target(self) -> str:
        """What the scaling policies of the service scale, as `store/scaling_requests.py` names it."""
        return f"ecs:service/{self.cluster}/{self.name}"

    @property
    def group(self) -> str:
        """`group` of the service's tasks in DescribeTasks."""
        return f"service:{self.name}"

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def service_key(region: str, cluster: str, name: str) -> str:
    return f"{region}/{cluster}/{name}"


def service_of_task(task: Task) -> str | None:
    if task.started_by is None or not task.started_by.startswith(STARTED_BY):
        return None
    return service_key(task.region, task.cluster, task.group.removeprefix("service:"))


class TaskCount(Struct, frozen=True):
    """How many tasks of a deployment have the desired status RUNNING, in total and by their last status."""

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
    started_at_s: float | None = None
    health: str = HEALTHY  # UNKNOWN does not count as healthy

    @property
    def is_up(self) -> bool:
        """Whether the task counts for minimumHealthyPercent."""
        return self.state == "RUNNING" and self.health == HEALTHY


class StoppedTask(Struct, frozen=True):
    """A task that is stopping or has stopped. After several failed tasks, the service delays its next start."""

    stop_code: str | None
    created_at_s: float
    started_at_s: float | None
    stopped_at_s: float | None
    reason: str | None = None

    @property
    def failed_checks(self) -> bool:
        return self.reason == FAILED_CHECKS
