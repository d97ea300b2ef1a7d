"""Faults of Auto Scaling groups that test_planted_faults.py plants."""

from __future__ import annotations

from dataclasses import replace

from corral.core.transactions import Tx
from corral.model.group import GroupMember, LifecycleState, ScalingActivity
from corral.reconcile import STATE
from corral.store import Store
from corral.store.groups import Groups
from simulation.lanes import with_part
from simulation.plan import Plan
from simulation.world import Parts


def grants_tell_no_group(tx: Tx[Store], pool_name: str) -> None:
    """A group does not hear that an instance that waited for GPUs runs."""
    STATE["pool"](tx, pool_name)
    _forget_groups(tx)


def ends_tell_no_group(tx: Tx[Store], instance_id: str) -> None:
    """A group does not hear that an instance has ended."""
    STATE["instance"](tx, instance_id)
    _forget_groups(tx)


def _forget_groups(tx: Tx[Store]) -> None:
    for marks in (tx._marks, tx._late_marks):
        for key in [key for key in marks if key.startswith("group:")]:
            del marks[key]


class ForgetsLaunchesThatWait(Groups):
    """A launch that waits for GPUs does not count: the group launches another one."""

    def members(self, region: str, name: str) -> list[GroupMember]:
        return [member for member in super().members(region, name) if member.state is not LifecycleState.PENDING]


class LeavesCancelledActivitiesOpen(Groups):
    def put_activity(self, activity: ScalingActivity) -> None:
        if activity.status != "Cancelled":
            super().put_activity(activity)


class IgnoresProtection(Groups):
    """The reconciler sees no protection. The rows keep it."""

    def put_member(self, member: GroupMember) -> None:
        before = self.member(member.instance_id)
        super().put_member(member if before is None else member.but(protected=before.protected or member.protected))

    def members(self, region: str, name: str) -> list[GroupMember]:
        return [member.but(protected=False) for member in super().members(region, name)]


class ForgetsMembersThatEnd(Groups):
    """A member is forgotten when its termination begins, and not when its instance has ended."""

    def put_member(self, member: GroupMember) -> None:
        super().put_member(member)
        if member.state is LifecycleState.TERMINATING:
            self.drop_member(member.instance_id)


def many_groups(plan: Plan) -> Plan:
    return replace(plan, with_groups=0.6, with_instances=0.1)


def with_alarms(plan: Plan) -> Plan:
    return replace(many_groups(plan), with_alarms=True)


GROUP_FAULTS: dict[str, Parts] = {
    "a group does not hear of a launch": Parts(reconcilers={**STATE, "pool": grants_tell_no_group}, tune=many_groups),
    "a group does not hear of an end": Parts(reconcilers={**STATE, "instance": ends_tell_no_group}, tune=many_groups),
    "a group ignores launches that wait": Parts(store=with_part("groups", ForgetsLaunchesThatWait), tune=many_groups),
    "a cancelled activity stays open": Parts(store=with_part("groups", LeavesCancelledActivitiesOpen), tune=many_groups),
    "a protected instance is terminated": Parts(store=with_part("groups", IgnoresProtection), tune=many_groups),
    "a group forgets members that end": Parts(store=with_part("groups", ForgetsMembersThatEnd), tune=many_groups),
    "no policy is applied": Parts(reconcilers={**STATE, "scaling": lambda tx, group: None}, tune=with_alarms),
}
