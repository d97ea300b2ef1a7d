"""Auto Scaling groups, their members, activities and instance refreshes."""

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
    """AWS's names. States that last only for a moment on AWS are not used: no caller could see them here."""

    PENDING = "Pending"  # the launch waits for GPUs, or the instance has just started
    PENDING_WAIT = "Pending:Wait"  # lifecycle hooks are under way
    IN_SERVICE = "InService"
    STANDBY = "Standby"
    TERMINATING_WAIT = "Terminating:Wait"
    TERMINATING = "Terminating"  # the instance shuts down
    TERMINATING_PROCEED = "Terminating:Proceed"  # it shuts down after lifecycle hooks


LAUNCH_STATES = frozenset({LifecycleState.PENDING, LifecycleState.PENDING_WAIT})
TERMINATION_STATES = frozenset({LifecycleState.TERMINATING_WAIT, LifecycleState.TERMINATING, LifecycleState.TERMINATING_PROCEED})
_ENDS = frozenset({LifecycleState.TERMINATING_WAIT, LifecycleState.TERMINATING})
MEMBER_MOVES: dict[LifecycleState, frozenset[LifecycleState]] = {
    LifecycleState.PENDING: _ENDS | {LifecycleState.PENDING_WAIT, LifecycleState.IN_SERVICE},
    LifecycleState.PENDING_WAIT: _ENDS | {LifecycleState.IN_SERVICE},
    LifecycleState.IN_SERVICE: _ENDS | {LifecycleState.STANDBY},
    LifecycleState.STANDBY: _ENDS | {LifecycleState.IN_SERVICE},
    LifecycleState.TERMINATING_WAIT: frozenset({LifecycleState.TERMINATING_PROCEED}),
    LifecycleState.TERMINATING: frozenset(),
    LifecycleState.TERMINATING_PROCEED: frozenset(),
}


class LaunchSource(Struct, frozen=True):
    """The launch configuration or the launch template version that an instance was launched from."""

    kind: str = ""  # CONFIGURATION or TEMPLATE; empty: the instance was attached
    id: str = ""  # of the template
    name: str = ""
    version: str = ""
    created_at_s: float = 0.0  # of the configuration


class LifecycleAction(Struct, frozen=True):
    """A lifecycle hook that waits for an instance."""

    token: str
    heartbeat_s: float
    deadline_s: float
    last_deadline_s: float  # heartbeats do not extend it further
    default_result: str
    result: str = ""  # CONTINUE or ABANDON; empty: under way


class Group(Struct, frozen=True):
    region: str
    name: str
    uid: str  # a UUID; part of the ARN
    created_at_s: float
    min_size: int
    max_size: int
    desired: int
    settings: dict[str, Any]  # other members of the create and update requests, in AWS's shape
    suspended: dict[str, str] = field(default_factory=dict)  # process → reason
    status: str = ""  # DELETING, or empty
    cause: str = ""  # why `desired` changed, until it is reached
    replacement_causes: tuple[str, ...] = ()  # of the next launches that replace an instance
    failures: int = 0  # failed launches in a row
    retry_at_s: float | None = None  # no launch before this time
    paced_at_s: float | None = None  # it did as much as one transaction may; the rest follows in a later one
    scaled_at_s: float | None = None  # when the last scaling activity ended: cooldowns begin then
    cooldown_s: float | None = None  # of the policy that scaled last; None: the group's default

    @property
    def key(self) -> str:
        return group_key(self.region, self.name)

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


class Member(Struct, frozen=True):
    """An instance of a group."""

    instance_id: str  # 32 hexadecimal digits
    region: str
    group: str
    state: LifecycleState
    created_at_s: float
    type: str
    zone: str
    activity: str = ""  # the id of the activity that is under way
    weight: int = 1  # capacity units
    market: str = ON_DEMAND
    source: LaunchSource = LaunchSource()
    protected: bool = False  # from scale-in
    unhealthy: str = ""  # why it is unhealthy, as the cause of its termination says it; empty: healthy
    in_service_at_s: float | None = None
    impaired_since_s: float | None = None  # its host has not reported since then
    actions: dict[str, LifecycleAction] = field(default_factory=dict)  # hook → the action that waits

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
    previous: dict[str, Any] = field(default_factory=dict)  # the group's launch source before, for a rollback
    reason: str = ""
    ended_at_s: float | None = None
    checkpoints_passed: int = 0
    resumes_at_s: float | None = None  # after a checkpoint, or the end of the bake time
    blocked_since_s: float | None = None  # protected or standby instances have been in the way since then
    rollback: dict[str, Any] = field(default_factory=dict)  # RollbackDetails

    def but(self, **changes: Any) -> Self:
        return replace(self, **changes)


def group_key(region: str, name: str) -> str:
    """The reconciler's key."""
    return f"group:{region}/{name}"
