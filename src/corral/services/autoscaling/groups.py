"""Operations on Auto Scaling groups: create, update, describe, delete, and set the desired capacity."""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.scaling.termination_policies import TYPES as TERMINATION_POLICIES
from corral.model.group import DELETING, Group, GroupMember, LifecycleState
from corral.model.instance import ec2_id
from corral.operations import stored_resources
from corral.operations.stored_resources import Params
from corral.services.autoscaling import errors, group_changes
from corral.services.autoscaling.activities import sentence
from corral.services.autoscaling.group_tags import filter_groups, new_tags, tag_views
from corral.services.autoscaling.launch_configurations import CONFIGURATION_TYPE
from corral.services.autoscaling.launch_sources import SOURCES, by_id, checked_sources
from corral.services.autoscaling.lifecycle_hooks import put_hook
from corral.services.autoscaling.names import PAGES, changeable_group, find_group
from corral.services.ec2 import default_vpc
from corral.services.ec2.zones import zone_id, zone_names
from corral.store import Store

GROUPS_MAX = 200
NAME = re.compile(r"[!-9;-~]{1,255}")  # printable ASCII without spaces and colons
NAMES_MAX = 50
CAPACITY_MAX = {"units": 10_000, "vcpu": 1_000_000, "memory-mib": 10_000_000}  # unit of capacity → the maximum size of a group
LIFETIME_MIN_S = 86_400
HEALTH_CHECKS = ("EC2", "EBS", "ELB", "VPC_LATTICE")
STORED = (  # members of requests that are stored as given; docs/auto-scaling.md lists the members without an effect
    "DefaultCooldown",
    "LoadBalancerNames",
    "TargetGroupARNs",
    "HealthCheckType",
    "HealthCheckGracePeriod",
    "PlacementGroup",
    "TerminationPolicies",
    "NewInstancesProtectedFromScaleIn",
    "CapacityRebalance",
    "ServiceLinkedRoleARN",
    "MaxInstanceLifetime",
    "Context",
    "DesiredCapacityType",
    "DefaultInstanceWarmup",
    "TrafficSources",
    "InstanceMaintenancePolicy",
    "DeletionProtection",
    "AvailabilityZoneDistribution",
    "AvailabilityZoneImpairmentPolicy",
    "CapacityReservationSpecification",
    "InstanceLifecyclePolicy",
    "Operator",
)
DEFAULTS = {
    "DefaultCooldown": group_changes.COOLDOWN_S,
    "HealthCheckType": "EC2",
    "HealthCheckGracePeriod": 0,
    "TerminationPolicies": ["Default"],
    "NewInstancesProtectedFromScaleIn": False,
    "CapacityRebalance": False,
    "LoadBalancerNames": [],
    "TargetGroupARNs": [],
    "TrafficSources": [],
    "DeletionProtection": "none",
}


# Create and update


def create_auto_scaling_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name = params["AutoScalingGroupName"]
    if not NAME.fullmatch(name):
        raise errors.ValidationError(
            f"The group name {name} is not valid: use up to 255 ASCII characters without spaces and colons."
        )
    if tx.store.groups.get(caller.region, name) is not None:
        raise errors.AlreadyExistsFault(
            f"AutoScalingGroup by this name already exists - A group with the name {name} already exists"
        )  # fmt: skip
    if tx.store.groups.count(caller.region) >= GROUPS_MAX:
        raise errors.LimitExceededFault(f"A region can have at most {GROUPS_MAX} Auto Scaling groups: delete one first.")
    settings = {**DEFAULTS, **_stored(params)}
    if "InstanceId" in params:
        params = {**params, **_configuration_of(tx, caller, name, params)}
    settings |= checked_sources(tx, caller, {member: params[member] for member in SOURCES if member in params})
    settings |= _zones(tx, caller, params)
    _check_unit(settings)
    settings["Tags"] = new_tags(name, params.get("Tags", []), before=params.get("_tags"))
    settings |= {"_init": params["_init"]} if params.get("_init") else {}
    least: int = params["MinSize"]
    most: int = params["MaxSize"]
    desired: int = params.get("DesiredCapacity", least)
    _check_sizes(least, most, desired, settings.get("DesiredCapacityType", "units"))
    cause = f"a user request created an AutoScalingGroup changing the desired capacity from 0 to {desired}."
    group = Group(
        region=caller.region,
        name=name,
        uid=tx.ids.uuid(),
        created_at_s=tx.now_s,
        min_size=least,
        max_size=most,
        desired=desired,
        settings=settings,
        owner=caller.owner,
        cause=sentence(tx, cause) if desired else "",
    )
    tx.store.groups.add(group)
    for hook in params.get("LifecycleHookSpecificationList", ()):
        put_hook(tx, group, hook)
    tx.mark(group.key)
    return {}


def update_auto_scaling_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Update a group. New settings apply to later launches. A desired capacity outside the new limits becomes the nearest limit."""
    group = changeable_group(tx, caller, params["AutoScalingGroupName"])
    settings = {**group.settings, **_stored(params)}
    if "_init" in params:  # the metadata for cfn-init, from a stack
        settings["_init"] = params["_init"]
    given = {member: params[member] for member in SOURCES if member in params}
    if given:
        settings = {member: value for member, value in settings.items() if member not in SOURCES}
        settings |= checked_sources(tx, caller, _merged_policy(group, given))
    if any(member in params for member in ("AvailabilityZones", "AvailabilityZoneIds", "VPCZoneIdentifier")):
        settings = {member: value for member, value in settings.items() if member != "VPCZoneIdentifier"}
        settings |= _zones(tx, caller, params)
    _check_unit(settings)
    least, most = params.get("MinSize", group.min_size), params.get("MaxSize", group.max_size)
    if "DesiredCapacity" in params:
        desired = params["DesiredCapacity"]
    else:
        desired = max(least, min(most, group.desired))
    _check_sizes(least, most, desired, settings.get("DesiredCapacityType", "units"))
    cause = f"a user request update of AutoScalingGroup constraints to min: {least}, max: {most}, desired: {desired}"
    changes = {"min_size": least, "max_size": most, "settings": settings, "failures": 0, "retry_at_s": None}
    group_changes.set_desired(tx, group, desired, cause, **changes)
    return {}


def _merged_policy(group: Group, given: dict[str, Any]) -> dict[str, Any]:
    """Complete the mixed instances policy of an update: take missing parts from the stored policy."""
    before, new = group.settings.get("MixedInstancesPolicy"), given.get("MixedInstancesPolicy")
    if before is None or new is None:
        return given
    template = {**_unnamed(before["LaunchTemplate"]), **new.get("LaunchTemplate", {})}
    shares = {**before["InstancesDistribution"], **new.get("InstancesDistribution", {})}
    return {**given, "MixedInstancesPolicy": {"LaunchTemplate": template, "InstancesDistribution": shares}}


def _unnamed(template: dict[str, Any]) -> dict[str, Any]:
    """Return the stored LaunchTemplate of a policy in the form of requests, which name a template only by its id."""
    member = "LaunchTemplateSpecification"
    overrides = [{**each, **({member: by_id(each[member])} if member in each else {})} for each in template.get("Overrides", ())]
    return {member: by_id(template[member]), **({"Overrides": overrides} if overrides else {})}


def _configuration_of(tx: Tx[Store], caller: Caller, name: str, params: Params) -> dict[str, Any]:
    """Create the launch configuration of a group that is created from an instance. The configuration has the name of the group."""
    made = {"LaunchConfigurationName": name, "InstanceId": params["InstanceId"]}
    stored_resources.create(tx, caller, CONFIGURATION_TYPE, made)
    return {"LaunchConfigurationName": name}


def _stored(params: Params) -> dict[str, Any]:
    given = {member: params[member] for member in STORED if member in params}
    for policy in given.get("TerminationPolicies", ()):
        if policy not in TERMINATION_POLICIES and ":lambda:" not in policy:
            raise errors.ValidationError(f"{policy} is not a termination policy: use {', '.join(TERMINATION_POLICIES)}.")
    for check in given.get("HealthCheckType", "EC2").split(","):
        if check.strip() not in HEALTH_CHECKS:
            raise errors.ValidationError(f"{check} is not a health check type: use {', '.join(HEALTH_CHECKS)}.")
    if given.get("MaxInstanceLifetime") and given["MaxInstanceLifetime"] < LIFETIME_MIN_S:
        raise errors.ValidationError(f"MaxInstanceLifetime must be 0 or at least {LIFETIME_MIN_S} seconds.")
    if given.get("DesiredCapacityType", "units") not in CAPACITY_MAX:
        raise errors.ValidationError(f"DesiredCapacityType must be one of {', '.join(CAPACITY_MAX)}.")
    for member, least in (("DefaultCooldown", 0), ("HealthCheckGracePeriod", 0), ("DefaultInstanceWarmup", -1)):
        if given.get(member, 0) < least:
            raise errors.ValidationError(f"{member} must be at least {least}: {given[member]} is not valid.")
    return given


def _check_unit(settings: dict[str, Any]) -> None:
    """Refuse capacity in vCPUs or MiB unless InstanceRequirements choose the instance types."""
    overrides = settings.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {}).get("Overrides", ())
    if settings.get("DesiredCapacityType", "units") != "units" and not any("InstanceRequirements" in each for each in overrides):
        raise errors.ValidationError(f"DesiredCapacityType {settings['DesiredCapacityType']} requires InstanceRequirements.")


def _check_sizes(least: int, most: int, desired: int, unit: str) -> None:
    for name, value in (("Min", least), ("Max", most), ("Desired", desired)):
        if not 0 <= value <= CAPACITY_MAX[unit]:
            raise errors.ValidationError(f"{name} capacity must be between 0 and {CAPACITY_MAX[unit]}: {value} is not valid.")
    if least > most:
        raise errors.ValidationError(f"Max bound, {most}, must be greater than or equal to min bound, {least}")
    if desired < least:
        raise errors.ValidationError(
            f"Desired capacity:{desired} must be between the specified min size:{least} and max size:{most}"
        )
    if desired > most:
        raise errors.ValidationError(
            f"Desired capacity:{desired} must be between the specified min size:{least} and max size:{most}"
        )


def _zones(tx: Tx[Store], caller: Caller, params: Params) -> dict[str, Any]:
    """Return the zones and the subnets of a group. If the request names subnets, the group has the zones of these subnets."""
    default_vpc.ensure(tx, caller)
    known = zone_names(caller.region)
    by_id = {zone_id(zone): zone for zone in known}
    zones = list(dict.fromkeys(params.get("AvailabilityZones") or ()))
    for given in params.get("AvailabilityZoneIds") or ():
        if given not in by_id:
            raise errors.ValidationError(f"Invalid availability zone id [{given}]: use {', '.join(by_id)}.")
        zones.append(by_id[given])
    for zone in zones:
        if zone not in known:
            raise errors.ValidationError(f"Invalid availability zones [{zone}]: use {', '.join(known)}.")
    subnet_ids = [part.strip() for part in params.get("VPCZoneIdentifier", "").split(",") if part.strip()]
    of_subnets: list[str] = []
    for subnet_id in subnet_ids:
        subnet = tx.store.stored.get("ec2", "subnet", caller.region, subnet_id)
        if subnet is None:
            raise errors.ValidationError(f"The subnet ID '{subnet_id}' does not exist")
        of_subnets.append(subnet["AvailabilityZone"])
    if zones and set(of_subnets) - set(zones):
        raise errors.ValidationError("The availability zones of the specified subnets and the Auto Scaling group do not match")
    zones = list(dict.fromkeys(of_subnets)) or zones
    if not zones:
        raise errors.ValidationError("At least one Availability Zone or VPC Subnet is required.")
    found: dict[str, Any] = {"AvailabilityZones": zones, "_subnets": subnet_ids}
    return found | ({"VPCZoneIdentifier": ",".join(subnet_ids)} if subnet_ids else {})


# Delete


def delete_auto_scaling_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Delete a group. With ForceDelete, first terminate its instances, without lifecycle hooks."""
    group, force = find_group(tx, caller, params["AutoScalingGroupName"]), params.get("ForceDelete", False)
    protection = group.settings.get("DeletionProtection", "none")
    if protection == "prevent-all-deletion" or (force and protection == "prevent-force-deletion"):
        raise errors.ResourceInUseFault(
            f"AutoScalingGroup {group.name} has the deletion protection {protection}: set DeletionProtection to none first."
        )
    members = tx.store.groups.members(group.region, group.name)
    if members and not force:
        if all(member.activity for member in members):
            raise errors.ScalingActivityInProgressFault(
                f"You cannot delete an AutoScalingGroup while there are scaling activities in progress for that group: "
                f"{group.name}."
            )
        raise errors.ResourceInUseFault(
            "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) still in the "
            "group."
        )
    cause = "a user request force deleted AutoScalingGroup" if force else "a user request deleted AutoScalingGroup"
    group = group_changes.set_desired(tx, group, 0, cause, min_size=0, status=DELETING)
    why = sentence(tx, "an instance was taken out of service in response to the deletion of its AutoScalingGroup.")
    for member in members:
        _end(tx, group, member, f"{group.cause}  {why}" if group.cause else why)
    if not members:
        group_changes.delete(tx, group)
    return {}


def _end(tx: Tx[Store], group: Group, member: GroupMember, cause: str) -> None:
    if member.state is LifecycleState.TERMINATING_WAIT:
        group_changes.proceed(tx, group, member)
    elif not member.state.value.startswith("Terminating"):
        group_changes.terminate(tx, group, member, cause, hooks=False)


# Desired capacity


def set_desired_capacity(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, desired = changeable_group(tx, caller, params["AutoScalingGroupName"]), params["DesiredCapacity"]
    if desired > group.max_size:
        raise errors.ValidationError(
            f"New SetDesiredCapacity value {desired} is above max value {group.max_size} for the AutoScalingGroup."
        )
    if desired < group.min_size:
        raise errors.ValidationError(
            f"New SetDesiredCapacity value {desired} is below min value {group.min_size} for the AutoScalingGroup."
        )
    if params.get("HonorCooldown"):
        group_changes.check_cooldown(tx, group)
    group_changes.set_desired(tx, group, desired, "a user request explicitly set group desired capacity")
    return {}


# Describe


def describe_auto_scaling_groups(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    names = params.get("AutoScalingGroupNames")
    if names and len(names) > params.get("MaxRecords", NAMES_MAX):
        raise errors.ValidationError(
            f"The number of group names that may be passed in is limited to {params.get('MaxRecords', NAMES_MAX)}"
        )
    chosen = filter_groups(params.get("Filters", []))

    def candidates(after: str, limit: int) -> list[tuple[str, Group]]:
        if names:
            found = [group for name in names if (group := _known(tx, caller, name)) is not None]
            found = sorted({group.name: group for group in found if group.name > after}.values(), key=lambda group: group.name)
        else:
            found = tx.store.groups.listed(caller.region, after)
        return [(group.name, group) for group in found if chosen(group)][: None if limit < 0 else limit]

    found, more = PAGES.page(params, candidates)
    with_instances = params.get("IncludeInstances", True)
    return {"AutoScalingGroups": [group_view(tx, group, with_instances=with_instances) for group in found], **more}


def _known(tx: Tx[Store], caller: Caller, name: str) -> Group | None:
    """Find a group by its name or ARN. Return None for an unknown name, which DescribeAutoScalingGroups ignores."""
    try:
        return find_group(tx, caller, name)
    except ApiError:
        return None


def group_view(tx: Tx[Store], group: Group, *, with_instances: bool = True) -> dict[str, Any]:
    settings = {member: value for member, value in group.settings.items() if member[0] != "_"}
    members = tx.store.groups.members(group.region, group.name) if with_instances else []
    role = f"arn:aws:iam::{tx.settings.account}:role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    view: dict[str, Any] = {
        "ServiceLinkedRoleARN": role,
        "VPCZoneIdentifier": "",
        **settings,
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": group.arn(tx.settings.account),
        "AvailabilityZoneIds": [zone_id(zone) for zone in group.settings["AvailabilityZones"]],
        "MinSize": group.min_size,
        "MaxSize": group.max_size,
        "DesiredCapacity": group.desired,
        "CreatedTime": group.created_at_s,
        "Instances": [member_view(member) for member in members],
        "SuspendedProcesses": [
            {"ProcessName": process, "SuspensionReason": reason} for process, reason in sorted(group.suspended.items())
        ],
        "EnabledMetrics": settings.get("EnabledMetrics", []),
        "Tags": tag_views(group),
    }
    return view | ({"Status": group.status} if group.status else {})


def member_view(member: GroupMember) -> dict[str, Any]:
    source = member.source
    view: dict[str, Any] = {
        "InstanceId": ec2_id(member.instance_id),
        "InstanceType": member.type,
        "AvailabilityZone": member.zone,
        "AvailabilityZoneId": zone_id(member.zone),
        "LifecycleState": member.state.value,
        "HealthStatus": "Unhealthy" if member.unhealthy else "Healthy",
        "ProtectedFromScaleIn": member.protected,
    }
    if source.kind == "configuration":
        view["LaunchConfigurationName"] = source.name
    elif source.kind == "template":
        view["LaunchTemplate"] = {
            "LaunchTemplateId": source.id,
            "LaunchTemplateName": source.name,
            "Version": source.version,
        }
    if member.weight != 1:
        view["WeightedCapacity"] = str(member.weight)
    return view
