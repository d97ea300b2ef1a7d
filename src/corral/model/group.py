"""Auto Scaling groups, their members (the instances of a group), their activities and their instance refreshes."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self

from msgspec import Struct, field
from msgspec.structs import replace

LAUNCHING = "autoscaling:EC2_INSTANCE_LAUNCHING"
TERMINATING_HOOK = "autoscaling:EC2_INSTANCE_TERMINATING"
CONTINUE, ABANDON = "CONTINUE", "ABANDON"
ON_DEMAND, SPOT = "on-demand", "spot"
CONFIGURATION, TEMPLATE = "configuration", "template"
DELETING = "Delete in progress"
# A member of a group's settings: the sizes that the group had before a CloudFormation stack drained the group to replace it.
DRAINED = "_drained"
ENVIRONMENT = "_environment"  # a member of a group's settings: the name of the Batch compute environment that owns the group
PROCESSES = (
    "Launch",
    "Terminate",
    "AddToLoadBalancer",
    "AlarmNotification",
    "AZRebalance",
    "HealthCheck",
    "InstanceRefresh",
    "ReplaceUnhealthy",
    "ScheduledActions",
)


class LifecycleState(StrEnum):
    """The lifecycle states of AWS that last for some time. Corral passes through the other states at once, so they are left out."""

    PENDING = "Pending"  # the launch waits for GPUs, or the instance has just started
    PENDING_WAIT = "Pending:Wait"  # the instance waits for lifecycle hooks
    IN_SERVICE = "InService"
    STANDBY = "Standby"
    TERMINATING_WAIT = "Terminating:Wait"  # the instance waits for busy tasks (`TaskWait`), and then for lifecycle hooks
    TERMINATING = "Terminating"  # the instance shuts down
    TERMINATING_PROCEED = "Terminating:Proceed"  # the instance shuts down, and its lifecycle hooks have ended


LAUNCH_STATES = frozenset({LifecycleState.PENDING, LifecycleState.PENDING_WAIT})
TERMINATION_STATES = frozenset({LifecycleState.TERMINATING_WAIT, LifecycleState.TERMINATING, LifecycleState.TERMINATING_PROCEED})
_ENDS = frozenset({LifecycleState.TERMINATING_WAIT, LifecycleState.TERMINATING})
MEMBER_MOVES: dict[LifecycleState, frozenset[LifecycleState]] = {
    LifecycleState.PENDING: _ENDS | {LifecycleState.PENDING_WAIT, LifecycleState.IN_SERVICE},
    LifecycleState.PENDING_WAIT: _ENDS | {LifecycleState.IN_SERVICE},
    LifecycleState.IN_SERVICE: _ENDS | {LifecycleState.STANDBY},
    LifecycleState.STANDBY: _ENDS | {LifecycleState.IN_SERVICE},
    LifecycleState.TERMINATING_WAIT: _ENDS | {LifecycleState.TERMINATING_PROCEED, LifecycleState.IN_SERVICE},
    LifecycleState.TERMINATING: frozenset(),
    LifecycleState.TERMINATING_PROCEED: frozenset(),
}


class LaunchSource(Struct, frozen=True):
    """The launch configuration or the launch template version that an instance was launched from."""

    kind: str = ""  # CONFIGURATION, TEMPLATE, or empty for an instance that was attached
    id: str = ""  # the id of the template
    name: str = ""
    version: str = ""
    created_at_s: float = 0.0  # when the configuration was created


class LifecycleAction(Struct, frozen=True):
    """A lifecycle action: one hook delays the launch or the termination of one instance."""

    token: str
    heartbeat_s: float
    deadline_s: float
    last_deadline_s: float  # heartbeats cannot extend the deadline beyond this time
    default_result: str
    result: str = ""  # CONTINUE, ABANDON, or empty while the action waits


class TaskWait(Struct, frozen=True):
    """An instance that its group has chosen to terminate waits for its tasks (`fleet/leaving_tasks.py`)."""

    since_s: float
    is_surplus: bool  # the group chose the instance in a scale-in, and keeps it if the group needs the capacity again
    drained: bool  # the group has set the container instance to DRAINING
    drains: bool = False  # managed draining: the instance waits until all its tasks have ended, except daemon tasks


def group_arn(account: str, region: str, uid: str, name: str) -> str:
    return f"arn:aws:autoscaling:{region}:{account}:autoScalingGroup:{uid}:autoScalingGroupName/{name}"


class Group(Struct, frozen=True):
    region: str
    name: str
    uid: str  # a UUID, which is part of the ARN
    created_at_s: float
    min_size: int
    max_size: int
    desired: int
    settings: dict[str, Any]  # all other members of the create and update requests, as AWS names them
    owner: str  # see `model/principal.py`
    suspended: dict[str, str] = field(default_factory=dict)  # suspended process → why it was suspended
    status: str = ""  # DELETING, or empty
    cause: str = ""  # why `desired` changed; empty when the group has that capacity
    replacement_causes: tuple[str, ...] = ()  # one cause for each instance that the next launches replace
    failures: int = 0  # failed launches in a row
    retry_at_s: float | None = None  # no launch before this time
    paced_at_s: float | None = None  # when a transaction reached its limit of changes; a later transaction continues
    scaled_at_s: float | None = None  # when the last scaling activity ended, which is when a cooldown begins
    cooldown_s: float | None = None  # the cooldown of the last applied policy; None means the group's default
    policy_desired: int | None = None  # the desired capacity after the last decision on scaling policies; None if there was none
    policies_wait_until_s: float = 0.0  # no policy is applied again before this time, because something else set `desired`

    @property
    def key(self) -> str:
        return group_key(self.region, self.name)

    def arn(self, account: str) -> str:
        return group_arn(account, self.region, self.uid, self.name)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class GroupMember(Struct, frozen=True):
    instance_id: str  # 32 hexadecimal digits
    region: str
    group: str
    state: LifecycleState
    created_at_s: float
    type: str
    zone: str
    activity: str = ""  # the id of the activity in progress
    weight: int = 1  # how many units of capacity the instance counts for
    market: str = ON_DEMAND
    source: LaunchSource = LaunchSource()
    protected: bool = False  # the instance is protected from scale-in
    unhealthy: str = ""  # why the instance is unhealthy, as scaling activities word it; empty if it is healthy
    in_service_at_s: float | None = None
    impaired_since_s: float | None = None  # the host of the instance has not reported since then
    actions: dict[str, LifecycleAction] = field(default_factory=dict)  # name of the hook → its action
    task_wait: TaskWait | None = None  # only in the state Terminating:Wait

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class ScalingActivity(Struct, frozen=True):
    id: str
    region: str
    group: str
    group_uid: str
    started_at_s: float
    description: str
    cause: str
    status: str
    instance_id: str = ""
    ended_at_s: float | None = None
    message: str = ""
    progress: int = 0
    details: str = "{}"  # JSON

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class InstanceRefresh(Struct, frozen=True):
    id: str
    region: str
    group: str
    status: str
    started_at_s: float
    total: int  # instances to replace
    remaining: tuple[str, ...]  # instances that are not replaced yet
    preferences: dict[str, Any]
    configuration: dict[str, Any] = field(default_factory=dict)  # DesiredConfiguration
    previous: dict[str, Any] = field(default_factory=dict)  # the group's previous launch source, for a rollback
    reason: str = ""
    ended_at_s: float | None = None
    checkpoints_passed: int = 0
    resumes_at_s: float | None = None  # when the wait after a checkpoint, or the bake time, ends
    blocked_since_s: float | None = None  # since when only protected or standby instances are left to replace
    rollback: dict[str, Any] = field(default_factory=dict)  # RollbackDetails

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def scaling_key(region: str, target: str) -> str:
    """Return the key of the reconciler that applies scaling policies. `target` is what the policies scale, for example a group."""
    return f"scaling:{region}/{target}"


def provider_key(region: str, group: str) -> str:
    """Return the key of the reconciler that scales a group for its capacity provider. Without a provider, it does nothing."""
    return f"capacity-provider:{region}/{group}"


def group_key(region: str, name: str) -> str:
    """Return the reconciler key of a group. `tx.mark` and `tx.due` use it to call the reconciler `group`."""
    return f"group:{region}/{name}"
