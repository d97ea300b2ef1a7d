"""Operations on the instances of groups: describe, attach, detach, standby, protection, health and termination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import COUNTED, capacity_of
from corral.fleet import instances
from corral.model.group import TERMINATION_STATES, Group, GroupMember, LifecycleState
from corral.model.instance import InstanceState, ec2_id
from corral.operations.stored_resources import Params
from corral.services.autoscaling import activities, group_changes
from corral.services.autoscaling.errors import ScalingActivityInProgressFault, ValidationError, instance_not_in_group
from corral.services.autoscaling.groups import member_view
from corral.services.autoscaling.launch_configurations import find_instance
from corral.services.autoscaling.names import SMALL_PAGES, changeable_group, find_group, find_member
from corral.store import Store

ATTACHED_MAX, PROTECTED_MAX, TERMINATED_MAX, DESCRIBED_MAX = 20, 50, 100, 50


def describe_auto_scaling_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe instances of groups. Ids of instances without a group are ignored."""
    ids = params.get("InstanceIds")
    if ids and len(ids) > DESCRIBED_MAX:
        raise ValidationError(f"The number of instance ids that may be passed in is limited to {DESCRIBED_MAX}")

    def candidates(after: str, limit: int) -> list[tuple[str, GroupMember]]:
        if not ids:
            return [(member.instance_id, member) for member in tx.store.groups.members_in(caller.region, after, limit)]
        named = (tx.store.groups.member_with_ec2_id(caller.region, each) for each in ids)
        found = sorted(
            {member.instance_id: member for member in named if member is not None and member.instance_id > after}.items()
        )
        return found if limit < 0 else found[:limit]

    found, more = SMALL_PAGES.page(params, candidates)
    return {"AutoScalingInstances": [{**member_view(member), "AutoScalingGroupName": member.group} for member in found], **more}


# Attach and detach


def attach_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Add running instances to a group, and raise the desired capacity by their number."""
    group, ids = changeable_group(tx, caller, params["AutoScalingGroupName"]), _ids(params, ATTACHED_MAX)
    if group.desired + len(ids) > group.max_size:
        raise ValidationError(
            f"Cannot attach {len(ids)} instances: the desired capacity would be {group.desired + len(ids)}, but the max size of "
            f"AutoScalingGroup {group.name} is {group.max_size}."
        )
    found = [find_instance(tx, caller, each) for each in ids]
    for instance in found:
        name = ec2_id(instance.id)
        if instance.state is not InstanceState.RUNNING:
            raise ValidationError(f"Instance {name} is not in correct state. Instance(s) must be in 'running' state.")
        if instance.group:
            raise ValidationError(f"Instance {name} is already part of AutoScalingGroup {instance.group}.")
    cause = f"a user request attached {len(found)} instances to AutoScalingGroup"
    group = group_changes.set_desired(tx, group, group.desired + len(found), cause)
    for instance in found:
        text = activities.sentence(tx, "an instance was attached in response to user request.")
        activities.record(tx, group, f"Attaching an existing EC2 instance: {ec2_id(instance.id)}", text)
        zone = instance.details.get("Placement", {}).get("AvailabilityZone") or group.settings["AvailabilityZones"][0]
        instances.set_group(tx, instance, group.name)
        tx.store.groups.put_member(
            GroupMember(
                instance_id=instance.id,
                region=group.region,
                group=group.name,
                state=LifecycleState.IN_SERVICE,
                created_at_s=instance.created_at_s,
                type=instance.type,
                zone=zone,
                protected=group.settings.get("NewInstancesProtectedFromScaleIn", False),
                in_service_at_s=tx.now_s,
            )
        )
    return {}


def detach_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Remove instances from a group. They keep running."""
    group, members = _members(tx, params, caller, ATTACHED_MAX)
    for member in members:
        if member.state not in (LifecycleState.IN_SERVICE, LifecycleState.STANDBY):
            raise _wrong_state(member, "InService or Standby")
    counted = [member for member in members if member.state in COUNTED]
    group, done = _taken_out(
        tx, group, members, counted, params, "Detaching EC2 instance", "was detached in response to a user request"
    )
    for member in members:
        group_changes.release(tx, member)
    tx.mark(group.key)
    return {"Activities": done}


# Standby


def enter_standby(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Move instances to standby. They no longer count towards the desired capacity, and their health is not checked."""
    group, members = _members(tx, params, caller, ATTACHED_MAX)
    for member in members:
        if member.state is not LifecycleState.IN_SERVICE:
            raise _wrong_state(member, "InService")
    group, done = _taken_out(
        tx, group, members, members, params, "Moving EC2 instance to Standby", "was moved to standby in response to a user request"
    )
    for member in members:
        group_changes.move(tx, member, LifecycleState.STANDBY)
    tx.mark(group.key)
    return {"Activities": done}


def exit_standby(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, members = _members(tx, params, caller, ATTACHED_MAX)
    for member in members:
        if member.state is not LifecycleState.STANDBY:
            raise _wrong_state(member, "Standby")
    units = sum(member.weight for member in members)
    before, desired = group.desired, group.desired + units
    if desired > group.max_size:
        raise ValidationError(
            f"AutoScalingGroup {group.name} has max size {group.max_size}: its desired capacity {before} cannot grow by {units}."
        )
    group = group_changes.put(tx, group.but(desired=desired))
    done = []
    for member in members:
        group_changes.move(tx, member, LifecycleState.IN_SERVICE, in_service_at_s=tx.now_s)
        text = f"instance {ec2_id(member.instance_id)} was moved out of standby in response to a user request, "
        text += f"increasing the capacity from {before} to {before + member.weight}."
        before += member.weight
        description = f"Moving EC2 instance out of Standby: {ec2_id(member.instance_id)}"
        done.append(activities.record(tx, group, description, activities.sentence(tx, text)))
    return {"Activities": [activities.activity_view(tx, activity) for activity in done]}


def _taken_out(
    tx: Tx[Store], group: Group, members: Sequence[GroupMember], counted: Sequence[GroupMember], params: Params, what: str, how: str
) -> tuple[Group, list[dict[str, Any]]]:
    """Write the activities of members that leave service. If the request requires it, lower the desired capacity."""
    decrement = params["ShouldDecrementDesiredCapacity"]
    units = sum(member.weight for member in counted)
    if decrement and group.desired - units < group.min_size:
        raise ValidationError(
            f"AutoScalingGroup {group.name} has min size {group.min_size}: its desired capacity {group.desired} cannot shrink by "
            f"{units}."
        )
    before = group.desired
    if decrement:
        group = group_changes.put(tx, group.but(desired=before - units))
    done = []
    for member in members:
        name = ec2_id(member.instance_id)
        text = f"instance {name} {how}"
        if decrement and member in counted:
            text += f", shrinking the capacity from {before} to {before - member.weight}"
            before -= member.weight
        done.append(activities.record(tx, group, f"{what}: {name}", activities.sentence(tx, f"{text}.")))
    return group, [activities.activity_view(tx, activity) for activity in done]


# Protection and health


def set_instance_protection(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    _, members = _members(tx, params, caller, PROTECTED_MAX)
    for member in members:
        if member.state in TERMINATION_STATES:
            raise _wrong_state(member, "InService, Standby or Pending")
        tx.store.groups.put_member(member.but(protected=params["ProtectedFromScaleIn"]))
    if members and not params["ProtectedFromScaleIn"]:
        tx.mark(f"group:{members[0].region}/{members[0].group}")  # a scale-in may have waited for an unprotected instance
    return {}


def set_instance_health(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Set the health of an instance. The group replaces an unhealthy instance.

    During the grace period, the status Unhealthy has no effect, unless ShouldRespectGracePeriod is false.
    """
    status = params["HealthStatus"]
    if status not in ("Healthy", "Unhealthy"):
        raise ValidationError(f"Invalid health status {status}: use Healthy or Unhealthy.")
    member = find_member(tx, caller, params["InstanceId"])
    group = find_group(tx, caller, member.group)
    grace_s = group.settings.get("HealthCheckGracePeriod", 0) if params.get("ShouldRespectGracePeriod", True) else 0
    in_grace = tx.now_s < (member.in_service_at_s or tx.now_s) + grace_s
    if status == "Unhealthy" and (in_grace or member.state in TERMINATION_STATES):
        return {}
    tx.store.groups.put_member(member.but(unhealthy="a user health-check" if status == "Unhealthy" else ""))
    tx.mark(group.key)
    return {}


# Termination


def terminate_instance_in_auto_scaling_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    decrement, one = params["ShouldDecrementDesiredCapacity"], params.get("InstanceId")
    if (one is None) == (not params.get("InstanceIds")):
        raise ValidationError("Specify either InstanceId, or InstanceIds and AutoScalingGroupName.")
    if one is not None:
        members = [find_member(tx, caller, one)]
        group = changeable_group(tx, caller, members[0].group)
    else:
        if "AutoScalingGroupName" not in params:
            raise ValidationError("AutoScalingGroupName is required with InstanceIds.")
        group, members = _members(tx, params, caller, TERMINATED_MAX)
    units = sum(member.weight for member in members if member.state in COUNTED)
    if decrement and group.desired - units < group.min_size:
        raise ValidationError(
            f"Currently, desiredSize equals minSize ({group.min_size}). Terminating instance without replacement will violate "
            "group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower group's min size."
        )
    for member in members:
        if member.state in TERMINATION_STATES and member.task_wait is None:
            raise ScalingActivityInProgressFault(f"Scaling activity {member.activity} is in progress and blocks this action")
    before = capacity_of(tx.store.groups.members(group.region, group.name))
    if decrement:
        group = group_changes.put(tx, group.but(desired=group.desired - units))
    done = []
    for member in members:
        if member.task_wait is not None:  # a termination that a user requests does not wait for tasks
            group_changes.end_task_wait(tx, group, member)
            activity = tx.store.groups.activity(member.activity)
            assert activity is not None
            done.append(activity)
            continue
        text = f"instance {ec2_id(member.instance_id)} was taken out of service in response to a user request"
        if decrement and member.state in COUNTED:
            text += f", shrinking the capacity from {before} to {before - member.weight}"
            before -= member.weight
        done.append(group_changes.terminate(tx, group, member, activities.sentence(tx, f"{text}."))[1])
    tx.mark(group.key)
    views = [activities.activity_view(tx, activity) for activity in done]
    return {"Activity": views[0]} if one is not None else {"Activities": views}


# Look-up


def _ids(params: Params, most: int) -> list[str]:
    ids = list(dict.fromkeys(params.get("InstanceIds") or ()))
    if not ids:
        raise ValidationError("InstanceIds must have at least one instance id.")
    if len(ids) > most:
        raise ValidationError(f"InstanceIds may have at most {most} instance ids: it has {len(ids)}.")
    return ids


def _members(tx: Tx[Store], params: Params, caller: Caller, most: int) -> tuple[Group, list[GroupMember]]:
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    found = []
    for instance_id in _ids(params, most):
        member = tx.store.groups.member_with_ec2_id(caller.region, instance_id)
        if member is None or member.group != group.name:
            raise instance_not_in_group(instance_id, group.name)
        found.append(member)
    return group, found


def _wrong_state(member: GroupMember, needed: str) -> Exception:
    return ValidationError(f"The instance {ec2_id(member.instance_id)} is in {member.state.value}, not in {needed}.")
