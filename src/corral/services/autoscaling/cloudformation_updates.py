"""Steps of Auto Scaling groups in stacks: they wait for signals (CreationPolicy), and replace groups or instances (UpdatePolicy).

On AWS, the user data of an instance sends the signals. Corral does not execute user data, so an instance counts as signalled when
it runs and has joined the cluster that its user data names. If its user data names no cluster, it only has to run.
"""

from __future__ import annotations

from typing import Any

import msgspec

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import COUNTED
from corral.decide.scaling.rolling_update import Rollout, RolloutStep, rolling_policy, start_rollout, step_rollout
from corral.fleet import instances
from corral.model.group import DRAINED, TERMINATION_STATES, Group, GroupMember, LifecycleState
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.services.autoscaling import activities, group_changes
from corral.services.autoscaling.instance_refreshes import matches_source
from corral.services.autoscaling.launch_sources import SOURCES, current_source
from corral.services.autoscaling.names import find_group
from corral.services.ec2.cloudformation_instances import signals_of, signals_wanted
from corral.store import Store
from corral.template_types.api_calls import call
from corral.template_types.resource_types import Properties, ResourceStep, ValidationError, Waiting

REPLACING = (*SOURCES, "VPCZoneIdentifier")  # if one of these changes, the UpdatePolicy can replace the group or its instances
ROLLING = "_rolling"  # a member of a group's settings: the sizes before a rolling update, and the processes that it suspends
SUCCESS = "SUCCESS"


def _update(tx: Tx[Store], caller: Caller, group: Group, **params: Any) -> None:
    call(tx, caller, "autoscaling", "UpdateAutoScalingGroup", {"AutoScalingGroupName": group.name, **params})


def _put_own(tx: Tx[Store], group: Group, member: str, value: Any) -> Group:
    """Store one of Corral's own members of the settings, which begin with "_". If the value is None, remove the member."""
    settings = {name: old for name, old in group.settings.items() if name != member}
    changed = group.but(settings=settings | ({member: value} if value is not None else {}))
    tx.store.groups.put(changed)
    return changed


def _members(tx: Tx[Store], group: Group) -> list[tuple[GroupMember, Instance]]:
    found = ((member, tx.store.instances.get(member.instance_id)) for member in tx.store.groups.members(group.region, group.name))
    return [(member, instance) for member, instance in found if instance is not None]


# Replacement


def replaces_group(old: Properties, new: Properties) -> list[str]:
    """Return the changed properties that force a replacement. The list is empty unless the UpdatePolicy has WillReplace."""
    policy = new.get("_update_policy", {}).get("AutoScalingReplacingUpdate", {})
    if str(policy.get("WillReplace", False)).lower() != "true":
        return []
    return [name for name in REPLACING if old.get(name) != new.get(name)]


def drain(tx: Tx[Store], caller: Caller, group: Group, **sizes: int) -> None:
    """Set the minimum size and the desired capacity of a group to 0, so that it terminates all its instances.

    The maximum size changes only if `max_size` is given.
    """
    members = tx.store.groups.members(group.region, group.name)
    protected = [ec2_id(each.instance_id) for each in members if each.protected and each.state not in TERMINATION_STATES]
    for at in range(0, len(protected), 50):
        request = {"AutoScalingGroupName": group.name, "InstanceIds": protected[at : at + 50], "ProtectedFromScaleIn": False}
        call(tx, caller, "autoscaling", "SetInstanceProtection", request)
    for each in members:
        if each.state is LifecycleState.STANDBY:  # a scale-in does not terminate instances in standby
            request = {"InstanceId": ec2_id(each.instance_id), "ShouldDecrementDesiredCapacity": False}
            call(tx, caller, "autoscaling", "TerminateInstanceInAutoScalingGroup", request)
    more = {"MaxSize": sizes["max_size"]} if "max_size" in sizes else {}
    _update(tx, caller, group, MinSize=0, DesiredCapacity=0, **more)


def restore_group(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    """Restore the sizes of a group that was drained because a new group replaced it."""
    group = tx.store.groups.get(caller.region, identity)
    if group is not None and DRAINED in group.settings:
        sizes = group.settings[DRAINED]
        group = _put_own(tx, group, DRAINED, None)
        _update(tx, caller, group, MinSize=sizes["min"], DesiredCapacity=sizes["desired"])


def _make_room(tx: Tx[Store], caller: Caller, step: ResourceStep, group: Group) -> None:
    """Drain the replaced group if an instance of the new group waits for GPUs that the old instances hold."""
    old = tx.store.groups.get(caller.region, step.replaced_id) if step.replaced_id else None
    if old is None or DRAINED in old.settings or old.desired == 0:
        return
    waits = [instance for _, instance in _members(tx, group) if instance.state is InstanceState.PENDING]
    held = sum(instance.gpus for _, instance in _members(tx, old) if instance.state is not InstanceState.TERMINATED)
    if waits and held:
        old = _put_own(tx, old, DRAINED, {"min": old.min_size, "desired": old.desired})
        drain(tx, caller, old)
        step.notes.append(
            f"This machine has no room for the old and the new group at once: {instances.reason_of_wait(tx, waits[0])}. "
            f"The old group {old.name} is drained first."
        )


# Signals


def group_signals(tx: Tx[Store], caller: Caller, step: ResourceStep) -> dict[str, str]:
    group = tx.store.groups.get(caller.region, step.physical_id)
    if group is None:
        return {}
    return signals_of(step, [instance for member, instance in _members(tx, group) if member.state in COUNTED])


def group_settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Wait for the signals of a new group with a CreationPolicy, and for the end of a rolling update."""
    group = tx.store.groups.get(caller.region, step.physical_id)
    if group is None:
        raise ValidationError(f"AutoScalingGroup {step.physical_id} was deleted.")
    if step.action == "CREATE" or step.replaced_id is not None:
        return _await_creation(tx, caller, step, group)
    if "AutoScalingRollingUpdate" in step.update_policy:
        return _roll(tx, caller, step, group)
    return None


def _await_creation(tx: Tx[Store], caller: Caller, step: ResourceStep, group: Group) -> Waiting | None:
    wanted = signals_wanted(step)
    received = {**group_signals(tx, caller, step), **step.received}
    if sum(status == SUCCESS for status in received.values()) >= wanted:
        return None
    _refuse_failed_launch(tx, group)
    _make_room(tx, caller, step, group)
    return Waiting((group.key,), _why_not(tx, group))


def _refuse_failed_launch(tx: Tx[Store], group: Group) -> None:
    """Raise an error with the reason if a launch of the group has failed. Otherwise the step would wait until its timeout."""
    if not group.failures:
        return
    ended = tx.store.groups.activities(group.region, group.name, ended=True, limit=1)
    why = ended[0][1].message if ended else "the launch failed."
    raise ValidationError(f"AutoScalingGroup {group.name} cannot launch an instance: {why}")


def _why_not(tx: Tx[Store], group: Group) -> str:
    """Return why instances of a group have not signalled yet."""
    for _, instance in _members(tx, group):
        if instance.state is InstanceState.PENDING:
            return f"Instance {ec2_id(instance.id)} waits for capacity: {instances.reason_of_wait(tx, instance)}."
        if instance.state is InstanceState.RUNNING and instance.joins and not instance.cluster:
            return f"Instance {ec2_id(instance.id)} waits for the cluster {instance.joins}, which does not exist."
    return f"AutoScalingGroup {group.name} launches its instances."


# Rolling updates


def _roll(tx: Tx[Store], caller: Caller, step: ResourceStep, group: Group) -> Waiting | None:
    policy = rolling_policy(step.update_policy["AutoScalingRollingUpdate"])
    if "rollout" not in step.memory:
        obsolete = _obsolete(tx, group)
        if not obsolete:
            return None
        begin = start_rollout(policy, obsolete, group.desired, group.max_size, tx.now_s)
        group = _put_own(tx, group, ROLLING, {"min": group.min_size, "desired": group.desired, "suspends": list(policy.suspends)})
        if policy.suspends:
            request = {"AutoScalingGroupName": group.name, "ScalingProcesses": list(policy.suspends)}
            call(tx, caller, "autoscaling", "SuspendProcesses", request)
        _apply(tx, caller, step, group, begin)
        return Waiting((group.key,), "The rolling update begins.", tx.now_s)
    if policy.waits_on_signals:
        _refuse_failed_launch(tx, group)
    found = _members(tx, group)
    waiting = frozenset(instance.id for _, instance in found if instance.state is InstanceState.PENDING)
    received = {**group_signals(tx, caller, step), **step.received}
    by_id = {instance.id: received[ec2_id(instance.id)] for _, instance in found if ec2_id(instance.id) in received}
    rollout = msgspec.convert(step.memory["rollout"], Rollout)
    next_step = step_rollout(policy, rollout, [member for member, _ in found], waiting, by_id, tx.now_s)
    _apply(tx, caller, step, group, next_step)
    if not next_step.is_done:
        return Waiting((group.key,), _why_not(tx, group), next_step.again_s)
    end_rolling_update(tx, caller, find_group(tx, caller, group.name))
    return None


def _obsolete(tx: Tx[Store], group: Group) -> list[str]:
    """Return the ids of the instances that do not have the present launch source of the group, or are in none of its subnets."""
    own = {member: group.settings[member] for member in SOURCES if member in group.settings}
    source, subnets = current_source(tx, group.region, own), group.settings.get("_subnets") or ()
    return [
        member.instance_id
        for member, instance in _members(tx, group)
        if member.state in COUNTED
        and (not matches_source(member, source, own) or (subnets and instance.details.get("SubnetId") not in subnets))
    ]


def _apply(tx: Tx[Store], caller: Caller, step: ResourceStep, group: Group, planned: RolloutStep) -> None:
    if planned.error:
        raise ValidationError(planned.error)
    step.notes.extend(planned.notes)
    step.memory["rollout"] = msgspec.to_builtins(planned.rollout)
    for instance_id in planned.terminate:
        member = tx.store.groups.member(instance_id)
        if member is not None and member.state not in TERMINATION_STATES:
            text = f"instance {ec2_id(instance_id)} was taken out of service in response to a rolling update of its stack."
            group_changes.terminate_when_idle(tx, group, member, activities.sentence(tx, text))
    if planned.terminate:
        tx.mark(group.key)
    if planned.size is not None:
        _update(tx, caller, group, MinSize=planned.size, DesiredCapacity=planned.size)


def end_rolling_update(tx: Tx[Store], caller: Caller, group: Group) -> None:
    """Restore the sizes and the processes that a group had before a rolling update.

    A later update and a rollback also call this function, because a rolling update that fails does not restore them itself.
    """
    before = group.settings.get(ROLLING)
    if before is None:
        return
    group = _put_own(tx, group, ROLLING, None)
    if before["suspends"]:
        request = {"AutoScalingGroupName": group.name, "ScalingProcesses": before["suspends"]}
        call(tx, caller, "autoscaling", "ResumeProcesses", request)
    _update(tx, caller, group, MinSize=before["min"], DesiredCapacity=before["desired"])
