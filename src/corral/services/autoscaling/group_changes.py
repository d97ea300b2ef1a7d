"""Changes a group or its members, and writes the scaling activity of each change.

The operations and the reconciler `group`, which launches and terminates instances, call these functions. If a change needs a next
step, the function marks the group, which means that the reconciler `group` runs for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.transactions import Tx
from corral.decide.scaling.alarm_scaling import Block
from corral.decide.scaling.group_capacity import Why, capacity_of, next_zone
from corral.decide.scaling.policies import limited
from corral.fleet import instances
from corral.fleet.leaving_tasks import choose, still_awaited, withdraw
from corral.model.group import (
    LAUNCH_STATES,
    LAUNCHING,
    MEMBER_MOVES,
    TERMINATING_HOOK,
    Group,
    GroupMember,
    LifecycleState,
    ScalingActivity,
    TaskWait,
    scaling_key,
)
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.services.autoscaling import activities
from corral.services.autoscaling.errors import ScalingActivityInProgressFault
from corral.services.autoscaling.launch_sources import LaunchRefused, next_launch
from corral.services.autoscaling.lifecycle_hooks import start_actions
from corral.services.autoscaling.names import POLICY, documents_of, drop_documents
from corral.services.cloudwatch import target_tracking
from corral.services.ecs.managed_scaling import tasks_to_drain
from corral.store import Store

RETRY_S, RETRY_MAX_S = 15.0, 600.0  # the delay after a failed launch, doubled by each further failure up to the maximum
COOLDOWN_S = 300
INSTANT_S = 1e-6  # added to the time of each launch in a transaction, so that members have an order
STARTED = (
    "an instance was started in response to a difference between desired and actual capacity, "
    "increasing the capacity from {} to {}."
)
REPLACEMENT = "an instance was launched in response to an unhealthy instance needing to be replaced."
REFRESHED = "an instance was launched in response to an instance refresh."
RENEWED = "an instance was launched to replace one that has reached its maximum instance lifetime."
TAKEN_OUT = {
    Why.REFRESH: "an instance was taken out of service in response to an instance refresh.",
    Why.LIFETIME: "an instance was taken out of service because it has reached its maximum instance lifetime.",
    Why.SURPLUS: "an instance was taken out of service in response to a difference between desired and actual capacity, "
    "shrinking the capacity from {} to {}.",
}
REPLACED_BY = {Why.UNHEALTHY: REPLACEMENT, Why.REFRESH: REFRESHED, Why.LIFETIME: RENEWED}
TERMINATING = "Terminating EC2 instance"  # the beginning of the description of an activity
TERMINATED_EARLY = "an EC2 health check indicating it has been terminated or stopped"


# Desired capacity


def set_desired(tx: Tx[Store], group: Group, desired: int, cause: str, **changes: Any) -> Group:
    """Set the desired capacity. `cause` is stored, and the activities that follow from the change contain it."""
    if desired == group.desired and not changes:
        return group
    if desired != group.desired:
        cause = activities.sentence(tx, f"{cause} changing the desired capacity from {group.desired} to {desired}.")
        changes = {"cause": cause, "failures": 0, "retry_at_s": None, **changes}
    return put(tx, group.but(desired=desired, **changes))


def put(tx: Tx[Store], group: Group) -> Group:
    """Store a changed group and mark it, so that its reconcilers run."""
    tx.store.groups.put(group)
    tx.mark(group.key)
    tx.mark(scaling_key(group.region, group.name))
    return group


def check_cooldown(tx: Tx[Store], group: Group) -> None:
    """Refuse a request while an activity or the cooldown is in progress."""
    if (block := cooldown_block(tx, group)) is not None:
        raise ScalingActivityInProgressFault(block.reason)


def cooldown_block(tx: Tx[Store], group: Group) -> Block | None:
    """Return the activity or the cooldown that is in progress, or None.

    Launches that wait for GPUs and terminations that wait for tasks can take long, so they do not block other actions.
    """
    waits = {member.activity for member in tx.store.groups.members(group.region, group.name) if member.task_wait is not None}
    for _, activity in tx.store.groups.activities(group.region, group.name, ended=False):
        if activity.status != activities.WAITING and activity.id not in waits:
            return Block(f"Scaling activity {activity.id} is in progress and blocks this action")
    cooldown_s = group.cooldown_s if group.cooldown_s is not None else group.settings.get("DefaultCooldown", COOLDOWN_S)
    if group.scaled_at_s is None or tx.now_s >= group.scaled_at_s + cooldown_s:
        return None
    until_s = group.scaled_at_s + cooldown_s
    return Block(
        f"The cooldown of AutoScalingGroup {group.name} lasts until {activities.stamp(tx.steps.wall_s(until_s))}.", until_s
    )


def waiting_block(tx: Tx[Store], group: Group) -> Block | None:
    """Return a launch that waits for GPUs, or None. While a launch waits, a simple policy must not add further launches."""
    for _, activity in tx.store.groups.activities(group.region, group.name, ended=False):
        if activity.status == activities.WAITING:
            return Block(f"The launch of scaling activity {activity.id} waits for GPUs and blocks this action", out_only=True)
    return None


def within_limits(group: Group, desired: int) -> int:
    return limited(desired, group.min_size, group.max_size)


# Launches


def launch_one(
    tx: Tx[Store], group: Group, settings: Mapping[str, Any], members: list[GroupMember], cause: str
) -> GroupMember | None:
    """Launch an instance. If the launch fails, write a failed activity, schedule a retry and return None.

    `settings` contains the launch source. `members` is sorted by age, the oldest first.
    """
    zone = next_zone(group.settings["AvailabilityZones"], members)
    cause = activities.sentence(tx, cause)
    if group.cause:
        cause = f"{group.cause}  {cause}"
    try:
        launch = next_launch(tx, group, dict(settings), members, zone, f"Auto Scaling group {group.name}: {cause}")
    except LaunchRefused as refusal:
        _launch_failed(tx, group, str(refusal), cause)
        return None
    instance = instances.launch(tx, launch.request)
    details = {"Subnet ID": instance.details.get("SubnetId", ""), "Availability Zone": zone}
    status = activities.WAITING if instance.state is InstanceState.PENDING else activities.PRE_IN_SERVICE
    activity = activities.begin(
        tx,
        group,
        f"Launching a new EC2 instance: {ec2_id(instance.id)}",
        cause,
        instance_id=instance.id,
        status=status,
        details=details,
    )
    member = GroupMember(
        instance_id=instance.id,
        region=group.region,
        group=group.name,
        state=LifecycleState.PENDING,
        created_at_s=max(tx.now_s, members[-1].created_at_s + INSTANT_S if members else 0.0),
        type=instance.type,
        zone=zone,
        activity=activity.id,
        weight=launch.weight,
        market=launch.market,
        source=launch.source,
        protected=group.settings.get("NewInstancesProtectedFromScaleIn", False),
    )
    tx.store.groups.put_member(member)
    return member


def _launch_failed(tx: Tx[Store], group: Group, why: str, cause: str) -> None:
    description = f"Launching a new EC2 instance.  Status Reason: {why} Launching EC2 instance failed."
    activities.record(tx, group, description, cause, activities.FAILED, f"{why} Launching EC2 instance failed.")
    retry_at_s = tx.now_s + min(RETRY_MAX_S, RETRY_S * 2 ** min(group.failures, 10))
    tx.store.groups.put(group.but(failures=group.failures + 1, retry_at_s=retry_at_s))
    tx.due(group.key, retry_at_s)


# Members


def move(tx: Tx[Store], member: GroupMember, state: LifecycleState, **changes: Any) -> GroupMember:
    assert state in MEMBER_MOVES[member.state], f"member {member.instance_id}: {member.state} → {state}"
    moved = member.but(state=state, **changes)
    tx.store.groups.put_member(moved)
    return moved


def started(tx: Tx[Store], group: Group, member: GroupMember) -> GroupMember:
    """Start the launch hooks of a pending member whose instance runs. If the group has no such hooks, put the member in service."""
    actions = start_actions(tx, group, member, LAUNCHING)
    if not actions:
        return enter_service(tx, group, member)
    activities.advance(tx, member.activity, activities.MID_HOOK)
    return move(tx, member, LifecycleState.PENDING_WAIT, actions=actions)


def enter_service(tx: Tx[Store], group: Group, member: GroupMember) -> GroupMember:
    activities.finish(tx, member.activity)
    _scaled(tx, group)
    return move(tx, member, LifecycleState.IN_SERVICE, actions={}, activity="", in_service_at_s=tx.now_s)


def terminate_for(tx: Tx[Store], group: Group, member: GroupMember, why: Why, members: list[GroupMember]) -> GroupMember:
    """Terminate an instance that the group itself has chosen. The text of the activity contains the reason, `why`."""
    if why is Why.UNHEALTHY:
        text = f"an instance was taken out of service in response to {member.unhealthy}."
    else:
        before = capacity_of(members)
        text = TAKEN_OUT[why].format(before, before - member.weight)
    cause = activities.sentence(tx, text)
    if why is Why.SURPLUS:
        cause = f"{group.cause}  {cause}" if group.cause else cause
        cause += "  " + activities.sentence(tx, f"instance {ec2_id(member.instance_id)} was selected for termination.")
    return terminate_when_idle(tx, group, member, cause, is_surplus=why is Why.SURPLUS)


def terminate_when_idle(tx: Tx[Store], group: Group, member: GroupMember, cause: str, *, is_surplus: bool = False) -> GroupMember:
    """Terminate an instance without a request of a user. The termination waits first for busy tasks, then for lifecycle hooks.

    With managed draining, which is a setting of a capacity provider of ECS, the termination waits for all tasks. During the wait,
    the tasks of the instance receive no messages, and the instance gets no new tasks. `is_surplus` is set for a scale-in: if the
    group needs the capacity again during the wait, the group cancels the termination (`take_back`).
    """
    instance = tx.store.instances.get(member.instance_id)
    runs = instance is not None and instance.state is InstanceState.RUNNING
    tasks = [task.id for task in tx.store.tasks.on(member.instance_id)] if runs else []
    drains = bool(tasks_to_drain(tx, instance)) if instance is not None and tasks else False
    if drains or still_awaited(tx, dict.fromkeys(tasks, tx.now_s))[0]:
        activity = _begin_termination(tx, group, member, cause)
        is_surplus = is_surplus and member.state is LifecycleState.IN_SERVICE
        wait = TaskWait(tx.now_s, is_surplus, drained=_take_no_work(tx, group, member, tasks), drains=drains)
        tx.mark(group.key)  # its reconciler schedules the end of the wait
        return move(tx, member, LifecycleState.TERMINATING_WAIT, activity=activity.id, task_wait=wait)
    ending, _ = terminate(tx, group, member, cause)
    if ending.state is LifecycleState.TERMINATING_WAIT:
        _take_no_work(tx, group, member, tasks)
    return ending


def _take_no_work(tx: Tx[Store], group: Group, member: GroupMember, tasks: list[str]) -> bool:
    """Give no messages to the tasks of an instance, and no new tasks to the instance. Return True if it was set to DRAINING."""
    choose(tx, tasks, group.key)
    instance = tx.store.instances.get(member.instance_id)
    if instance is None or instance.status != "ACTIVE" or not instance.cluster:
        return False
    instances.set_status(tx, instance, "DRAINING")
    return True


def end_task_wait(tx: Tx[Store], group: Group, member: GroupMember, still_busy: str = "") -> GroupMember:
    """Continue a termination that waited for tasks. `still_busy` names the tasks that are stopped although they are busy."""
    activity = tx.store.groups.activity(member.activity)
    assert activity is not None, "a member that waits has an activity"
    if still_busy:
        waited_s = round(tx.now_s - member.task_wait.since_s if member.task_wait is not None else 0)
        activity = activity.but(message=f"Stopped after a wait of {waited_s} s: {still_busy}.")
        tx.store.groups.put_activity(activity)
    return _end(tx, group, member, activity, hooks=True)


def take_back(tx: Tx[Store], group: Group, member: GroupMember) -> GroupMember:
    """Cancel a termination that waits for tasks, because the group needs the instance again."""
    assert member.task_wait is not None
    activities.finish(tx, member.activity, activities.CANCELLED, "The group needs the instance again, so it stays in service.")
    withdraw(tx, [task.id for task in tx.store.tasks.on(member.instance_id)], group.key)
    instance = tx.store.instances.get(member.instance_id)
    if member.task_wait.drained and instance is not None and instance.status == "DRAINING":
        instances.set_status(tx, instance, "ACTIVE")
    return move(tx, member, LifecycleState.IN_SERVICE, activity="", task_wait=None)


def terminate(
    tx: Tx[Store], group: Group, member: GroupMember, cause: str, *, hooks: bool = True
) -> tuple[GroupMember, ScalingActivity]:
    """Terminate an instance of a group, after its lifecycle hooks. `cause` is the complete text of the activity's cause."""
    activity = _begin_termination(tx, group, member, cause)
    return _end(tx, group, member, activity, hooks=hooks), activity


def _begin_termination(tx: Tx[Store], group: Group, member: GroupMember, cause: str) -> ScalingActivity:
    if member.state in LAUNCH_STATES:
        activities.finish(tx, member.activity, activities.CANCELLED, "The instance was terminated before it entered service.")
    description = f"{TERMINATING}: {ec2_id(member.instance_id)}"
    details = {"Availability Zone": member.zone}
    return activities.begin(tx, group, description, cause, instance_id=member.instance_id, details=details)


def _end(tx: Tx[Store], group: Group, member: GroupMember, activity: ScalingActivity, *, hooks: bool) -> GroupMember:
    instance = tx.store.instances.get(member.instance_id)
    served = member.state not in LAUNCH_STATES
    runs = instance is not None and instance.state is InstanceState.RUNNING
    actions = start_actions(tx, group, member, TERMINATING_HOOK) if hooks and served and runs else {}
    if actions:
        activities.advance(tx, activity.id, activities.MID_HOOK)
        tx.due(group.key, min(action.deadline_s for action in actions.values()))
        return move(tx, member, LifecycleState.TERMINATING_WAIT, actions=actions, activity=activity.id, task_wait=None)
    ending = move(tx, member, LifecycleState.TERMINATING, actions={}, activity=activity.id, task_wait=None)
    _shut_down(tx, group, instance, activity.cause)
    return ending


def proceed(tx: Tx[Store], group: Group, member: GroupMember) -> GroupMember:
    """Shut down an instance without a further wait, for example after the lifecycle hooks of its termination."""
    activity = tx.store.groups.activity(member.activity)
    activities.advance(tx, member.activity, activities.IN_PROGRESS)
    ending = move(tx, member, LifecycleState.TERMINATING_PROCEED, actions={}, task_wait=None)
    _shut_down(tx, group, tx.store.instances.get(member.instance_id), activity.cause if activity is not None else "")
    return ending


def _shut_down(tx: Tx[Store], group: Group, instance: Instance | None, cause: str) -> None:
    if instance is not None and instance.state is not InstanceState.TERMINATED:
        instances.terminate(tx, instance, f"Auto Scaling group {group.name}: {cause}")
    tx.mark(group.key)


def drop(tx: Tx[Store], group: Group, member: GroupMember) -> None:
    """Remove a member whose instance has ended, and finish its activity."""
    if member.state in LAUNCH_STATES:
        message = "The instance was terminated before it entered service."
        activities.finish(tx, member.activity, activities.CANCELLED, message)
    else:
        activities.finish(tx, member.activity)
    tx.store.groups.drop_member(member)
    _scaled(tx, group)


def release(tx: Tx[Store], member: GroupMember) -> None:
    """Remove a member from its group. The instance keeps running."""
    tx.store.groups.drop_member(member)
    instance = tx.store.instances.get(member.instance_id)
    if instance is not None and instance.state is not InstanceState.TERMINATED:
        instances.set_group(tx, instance, "")


def _scaled(tx: Tx[Store], group: Group) -> None:
    """Store the time when an activity has ended, because a cooldown begins then. Then run the scaling policies that waited."""
    current = tx.store.groups.get(group.region, group.name)
    if current is not None:
        tx.store.groups.put(current.but(scaled_at_s=tx.now_s))
        tx.mark(scaling_key(group.region, group.name))


# Deletion


def delete(tx: Tx[Store], group: Group) -> None:
    """Delete a group that has no members, and its hooks, policies and scheduled actions."""
    for policy in documents_of(tx, group.region, POLICY, group.name):
        target_tracking.delete_alarms(tx, group.region, policy)
    drop_documents(tx, group.region, group.name)
    tx.store.groups.drop(group)
    tx.changed(f"group:{group.region}/{group.name}")
