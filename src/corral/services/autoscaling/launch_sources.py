"""Makes an instance request from the launch source of a group.

A launch source is a launch configuration, a launch template or a mixed instances policy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import Distribution, on_demand_units
from corral.decide.scaling.instance_mix import TypeOption, next_market, ordered
from corral.decide.scaling.instance_requirements import TypeFacts, meets
from corral.fleet.instance_types import InstanceType, every_type, price_of
from corral.fleet.instances import InstanceRequest, fits_ever
from corral.model.group import CONFIGURATION, ON_DEMAND, SPOT, TEMPLATE, Group, GroupMember, LaunchSource
from corral.model.instance import GROUP_TAG, TypeMapping
from corral.model.numbers import whole_number
from corral.model.principal import ROLE, Principal
from corral.operations.stored_resources import find
from corral.operations.tags import is_reserved
from corral.services.autoscaling.errors import ValidationError
from corral.services.autoscaling.launch_configurations import CONFIGURATION_TYPE
from corral.services.ec2.launch_specs import instance_request, merged, template_data
from corral.store import Store

# The settings of a group that name its launch source.
SOURCES = ("LaunchConfigurationName", "LaunchTemplate", "MixedInstancesPolicy")
WEIGHT_MAX = 999
TYPES_MAX = 40  # how many instance types a launch tries
ON_DEMAND_STRATEGY, SPOT_STRATEGY = "prioritized", "lowest-price"  # the default allocation strategies
SAME_MEMBERS = (  # members that launch configurations and RunInstances both have
    "ImageId", "InstanceType", "KeyName", "UserData", "KernelId", "RamdiskId", "EbsOptimized", "MetadataOptions",
    "BlockDeviceMappings", "_init",
)  # fmt: skip


class LaunchRefused(Exception):
    """The launch cannot succeed. The text contains the reason."""


class GroupLaunch(Struct, frozen=True):
    request: InstanceRequest
    source: LaunchSource
    weight: int  # how many units of the group's capacity the instance provides
    market: str  # ON_DEMAND or SPOT


class _Resolved(Struct, frozen=True):
    data: dict[str, Any]  # parameters of RunInstances
    source: LaunchSource


def group_caller(tx: Tx[Store], region: str, owner: str = "") -> Caller:
    """Return the caller for actions of a group: the service-linked role of Auto Scaling, which acts for the group's owner.

    A caller that creates nothing needs no owner.
    """
    account = tx.settings.account
    role = "aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    return Caller(account, region, Principal(account, ROLE, role, owner=owner))


# Checks of a request


def checked_sources(tx: Tx[Store], caller: Caller, settings: dict[str, Any]) -> dict[str, Any]:
    """Check that the launch source of a request exists. Return it with the id and the name of each launch template."""
    given = [member for member in SOURCES if settings.get(member)]
    if len(given) != 1:
        raise ValidationError(
            "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or MixedInstancesPolicy "
            "parameter."
        )
    if given == ["LaunchConfigurationName"]:
        find(tx, caller, CONFIGURATION_TYPE, settings)
        return {"LaunchConfigurationName": settings["LaunchConfigurationName"]}
    if given == ["LaunchTemplate"]:
        return {"LaunchTemplate": _named_template(tx, caller, settings["LaunchTemplate"])}
    return {"MixedInstancesPolicy": _checked_policy(tx, caller, settings["MixedInstancesPolicy"])}


def _named_template(tx: Tx[Store], caller: Caller, given: dict[str, Any]) -> dict[str, Any]:
    """Return a template specification with id and name.

    The version is stored as given, so $Latest always means the newest version.
    """
    if bool(given.get("LaunchTemplateId")) == bool(given.get("LaunchTemplateName")):
        raise ValidationError("Valid requests must contain either launchTemplateId or LaunchTemplateName.")
    try:
        found = template_data(tx, caller, given)
    except ApiError as error:
        raise ValidationError(f"You must use a valid fully-formed launch template. {error.message}") from None
    named = {"LaunchTemplateId": found.template_id, "LaunchTemplateName": found.name}
    return named | ({"Version": given["Version"]} if "Version" in given else {})


def by_id(template: dict[str, Any]) -> dict[str, Any]:
    """Return a stored template specification without the name, because a request may not contain both id and name."""
    return {
        member: value for member, value in template.items() if member != "LaunchTemplateName" or "LaunchTemplateId" not in template
    }


def _checked_policy(tx: Tx[Store], caller: Caller, policy: dict[str, Any]) -> dict[str, Any]:
    template = policy.get("LaunchTemplate", {})
    specification = template.get("LaunchTemplateSpecification")
    if not specification:
        raise ValidationError("A MixedInstancesPolicy must have a LaunchTemplate with a LaunchTemplateSpecification.")
    overrides = [dict(each) for each in template.get("Overrides", ())]
    weighted = [each for each in overrides if "WeightedCapacity" in each]
    if weighted and len(weighted) != len(overrides):
        raise ValidationError("Either all overrides of a MixedInstancesPolicy must have a WeightedCapacity, or none of them.")
    for each in overrides:
        if "InstanceRequirements" in each and "InstanceType" in each:
            raise ValidationError("An override must not have both an InstanceType and InstanceRequirements.")
        if not 1 <= (whole_number(each.get("WeightedCapacity", "1")) or 0) <= WEIGHT_MAX:
            raise ValidationError(f"WeightedCapacity must be between 1 and {WEIGHT_MAX}: {each['WeightedCapacity']} is not valid.")
        if "LaunchTemplateSpecification" in each:
            each["LaunchTemplateSpecification"] = _named_template(tx, caller, each["LaunchTemplateSpecification"])
    by_attributes = any("InstanceRequirements" in each for each in overrides)
    shares = policy.get("InstancesDistribution", {})
    if by_attributes and shares.get("OnDemandAllocationStrategy", "") == ON_DEMAND_STRATEGY:
        raise ValidationError("The allocation strategy prioritized cannot be used with InstanceRequirements: use lowest-price.")
    if not 0 <= shares.get("OnDemandPercentageAboveBaseCapacity", 100) <= 100 or shares.get("OnDemandBaseCapacity", 0) < 0:
        raise ValidationError(
            "OnDemandPercentageAboveBaseCapacity must be between 0 and 100, and OnDemandBaseCapacity must not be negative."
        )
    named = {"LaunchTemplateSpecification": _named_template(tx, caller, specification)}
    return {
        "LaunchTemplate": named | ({"Overrides": overrides} if overrides else {}),
        "InstancesDistribution": {
            "OnDemandAllocationStrategy": "lowest-price" if by_attributes else ON_DEMAND_STRATEGY,
            "OnDemandBaseCapacity": 0,
            "OnDemandPercentageAboveBaseCapacity": 100,
            "SpotAllocationStrategy": SPOT_STRATEGY,
            **({"SpotInstancePools": 2} if shares.get("SpotAllocationStrategy", SPOT_STRATEGY) == SPOT_STRATEGY else {}),
            **shares,
        },
    }


# Launches


def next_launch(
    tx: Tx[Store], group: Group, settings: dict[str, Any], members: list[GroupMember], zone: str, reason: str
) -> GroupLaunch:
    """Return the request for the next instance of a group. Raise LaunchRefused if the launch cannot succeed.

    `settings` contains the launch source.
    """
    caller = group_caller(tx, group.region, group.owner)
    try:
        if "MixedInstancesPolicy" in settings:
            return _of_policy(tx, caller, group, settings["MixedInstancesPolicy"], members, zone, reason)
        resolved = _resolve(tx, caller, settings)
        request = _request(tx, caller, group, resolved.data, zone, reason)
        market = resolved.data.get("InstanceMarketOptions", {}).get("MarketType", ON_DEMAND)
    except ApiError as error:
        raise LaunchRefused(f"{error.message}{'' if error.message.endswith('.') else '.'}") from None
    refusal = fits_ever(tx, request)
    if refusal is not None:
        raise LaunchRefused(refusal)
    return GroupLaunch(request, resolved.source, 1, market)


def _of_policy(
    tx: Tx[Store], caller: Caller, group: Group, policy: dict[str, Any], members: list[GroupMember], zone: str, reason: str
) -> GroupLaunch:
    """Return a request for the first instance type that fits on this machine when the machine is empty.

    The allocation strategy defines the order of the instance types.
    """
    shares, template = policy["InstancesDistribution"], policy["LaunchTemplate"]
    base, above = shares["OnDemandBaseCapacity"], shares["OnDemandPercentageAboveBaseCapacity"]
    market = next_market(*on_demand_units(members), base, above)
    overrides = template.get("Overrides") or [{}]
    refusals: list[str] = []
    for option in ordered_options(tx, group.settings, policy, market):
        override = overrides[option.at] | ({"InstanceType": option.type} if option.type else {})
        specification = override.get("LaunchTemplateSpecification", template["LaunchTemplateSpecification"])
        resolved = _resolve(tx, caller, {"LaunchTemplate": specification})
        data = {**resolved.data, **{member: override[member] for member in ("InstanceType", "ImageId") if member in override}}
        if market == SPOT:
            data["InstanceMarketOptions"] = {"MarketType": SPOT}
        request = _request(tx, caller, group, data, zone, reason)
        refusal = fits_ever(tx, request)
        if refusal is None:
            return GroupLaunch(request, resolved.source, option.weight, market)
        refusals.append(refusal)
    if not refusals:
        raise LaunchRefused("No instance type meets the InstanceRequirements of the MixedInstancesPolicy.")
    others = f" None of the {len(refusals)} instance types of the MixedInstancesPolicy fits." if len(refusals) > 1 else ""
    raise LaunchRefused(refusals[0] + others)


def ordered_options(tx: Tx[Store], settings: dict[str, Any], policy: dict[str, Any], market: str) -> list[TypeOption]:
    """Return the first TYPES_MAX types of a policy, in the order in which launches try them."""
    overrides = policy["LaunchTemplate"].get("Overrides") or [{}]
    strategy = policy["InstancesDistribution"]["OnDemandAllocationStrategy" if market == ON_DEMAND else "SpotAllocationStrategy"]
    options: list[TypeOption] = []
    for at, each in enumerate(overrides):
        weight = whole_number(each.get("WeightedCapacity", "1")) or 1
        if "InstanceRequirements" not in each:
            options.append(TypeOption(each.get("InstanceType", ""), weight, at))
            continue
        wanted = orjson.dumps(each["InstanceRequirements"], option=orjson.OPT_SORT_KEYS)
        unit = settings.get("DesiredCapacityType", "units")
        for facts in _matching(wanted, tuple(tx.settings.instance_types.items())):
            options.append(TypeOption(facts.name, {"vcpu": facts.vcpus, "memory-mib": facts.memory_mib}.get(unit, weight), at))
    found = {option.type: price_of(option.type) for option in options}
    prices = {
        type_: amount
        for type_, price in found.items()
        if price is not None and (amount := price.on_demand if market == ON_DEMAND else price.spot) is not None
    }
    return ordered(options, strategy, prices)[:TYPES_MAX]


@lru_cache(maxsize=64)  # each launch of a group has the same requirements
def _matching(wanted: bytes, mappings: tuple[tuple[str, TypeMapping], ...]) -> tuple[TypeFacts, ...]:
    """Return the instance types that meet the InstanceRequirements."""
    requirements = orjson.loads(wanted)
    found = map(_facts, every_type(dict(mappings)).values())
    return tuple(facts for facts in found if meets(facts, requirements))


def _facts(type_: InstanceType) -> TypeFacts:
    # Skip Neuron devices here, because AWS lists them a second time as inference accelerators.
    accelerators = [each for each in type_.accelerators or () if each[0] != "neuron"]
    if type_.gpu is not None:
        model, maker, memory_mib = type_.gpu
        accelerators.append(("gpu", model, maker, type_.gpus, memory_mib))
    return TypeFacts(
        name=type_.name,
        vcpus=type_.vcpus,
        memory_mib=type_.memory_mib,
        accelerators=tuple((kind, name.lower(), _maker(maker), count, mib) for kind, name, maker, count, mib in accelerators),
        processor=_maker(type_.processor or ""),
        is_current=bool(type_.current),
        is_metal=bool(type_.metal),
        is_burstable=bool(type_.burstable),
        disk_gb=sum(count * size for count, size, _ in type_.storage or ()),
        disk_kinds=frozenset(kind for _, _, kind in type_.storage or ()),
        interfaces=type_.interfaces,
    )


def _maker(name: str) -> str:
    return "amazon-web-services" if name in ("AWS", "Amazon") else name.lower()


def distribution_of(settings: dict[str, Any]) -> Distribution | None:
    policy = settings.get("MixedInstancesPolicy")
    if policy is None:
        return None
    shares = policy["InstancesDistribution"]
    return Distribution(shares["OnDemandBaseCapacity"], shares["OnDemandPercentageAboveBaseCapacity"])


def current_source(tx: Tx[Store], region: str, settings: dict[str, Any]) -> LaunchSource:
    """Return the launch source that `settings` names, with its present version.

    The result is empty if the launch configuration or the launch template no longer exists.
    """
    if "MixedInstancesPolicy" in settings:
        settings = {"LaunchTemplate": settings["MixedInstancesPolicy"]["LaunchTemplate"]["LaunchTemplateSpecification"]}
    try:
        return _resolve(tx, group_caller(tx, region), settings).source
    except ApiError:
        return LaunchSource()


def type_rank(tx: Tx[Store], settings: dict[str, Any]) -> dict[str, int]:
    """Return the rank of each instance type in the on-demand strategy, for the termination policy AllocationStrategy."""
    policy = settings.get("MixedInstancesPolicy")
    if policy is None:
        return {}
    return {option.type: at for at, option in enumerate(ordered_options(tx, settings, policy, ON_DEMAND))}


def _resolve(tx: Tx[Store], caller: Caller, settings: dict[str, Any]) -> _Resolved:
    if "LaunchConfigurationName" in settings:
        configuration = find(tx, caller, CONFIGURATION_TYPE, settings)
        name = configuration["LaunchConfigurationName"]
        source = LaunchSource(CONFIGURATION, name=name, created_at_s=configuration["CreatedTime"])
        return _Resolved(_data_of_configuration(configuration), source)
    found = template_data(tx, caller, by_id(settings["LaunchTemplate"]))
    source = LaunchSource(TEMPLATE, found.template_id, found.name, str(found.version))
    return _Resolved(merged(found, {}), source)


def _data_of_configuration(configuration: dict[str, Any]) -> dict[str, Any]:
    """Translate a launch configuration into parameters of RunInstances."""
    data = {member: configuration[member] for member in SAME_MEMBERS if configuration.get(member)}
    names = configuration.get("SecurityGroups", ())
    for member, chosen in (
        ("SecurityGroupIds", [name for name in names if name.startswith("sg-")]),
        ("SecurityGroups", [name for name in names if not name.startswith("sg-")]),
    ):
        if chosen:
            data[member] = chosen
    if profile := configuration.get("IamInstanceProfile"):
        data["IamInstanceProfile"] = {"Arn" if profile.startswith("arn:") else "Name": profile}
    if "AssociatePublicIpAddress" in configuration:
        interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": configuration["AssociatePublicIpAddress"]}
        data["NetworkInterfaces"] = [interface | ({"Groups": data.pop("SecurityGroupIds")} if "SecurityGroupIds" in data else {})]
    if "SpotPrice" in configuration:
        data["InstanceMarketOptions"] = {"MarketType": SPOT, "SpotOptions": {"MaxPrice": configuration["SpotPrice"]}}
    if "PlacementTenancy" in configuration:
        data["Placement"] = {"Tenancy": configuration["PlacementTenancy"]}
    return data | {"Monitoring": configuration.get("InstanceMonitoring", {"Enabled": True})}


def _request(tx: Tx[Store], caller: Caller, group: Group, data: dict[str, Any], zone: str, reason: str) -> InstanceRequest:
    data = {**data, "Placement": {**data.get("Placement", {}), "AvailabilityZone": zone}}
    if subnet := subnet_in(tx, group, zone):
        if data.get("NetworkInterfaces"):
            first, *others = data["NetworkInterfaces"]
            data["NetworkInterfaces"] = [{**first, "SubnetId": subnet}, *others]
        else:
            data["SubnetId"] = subnet
    return instance_request(tx, caller, _tagged(group, data), group=group.name, reason=reason)


def subnet_in(tx: Tx[Store], group: Group, zone: str) -> str | None:
    """Return the group's subnet in a zone, or None to use the default subnet of the zone."""
    for subnet_id in group.settings.get("_subnets", ()):
        subnet = tx.store.stored.get("ec2", "subnet", group.region, subnet_id)
        if subnet is not None and subnet["AvailabilityZone"] == zone:
            return str(subnet_id)
    return None


def _tagged(group: Group, data: dict[str, Any]) -> dict[str, Any]:
    """Add the group's tags with PropagateAtLaunch, and the tag with the name of the group, to the tags of the template."""
    own = {tag["Key"]: tag["Value"] for tag in group.settings.get("Tags", ()) if tag["PropagateAtLaunch"]}
    others = []
    for each in data.get("TagSpecifications", ()):
        if each.get("ResourceType") == "instance":
            own = {tag["Key"]: tag.get("Value", "") for tag in each.get("Tags", ())} | own
        else:
            others.append(each)
    free = {key: value for key, value in own.items() if not is_reserved(key)}
    reserved = {key: value for key, value in own.items() if is_reserved(key)} | {GROUP_TAG: group.name}
    return {
        **data,
        "TagSpecifications": [*others, {"ResourceType": "instance", "Tags": _tag_list(free)}],
        "_tags": _tag_list(reserved),
        "_init": data.get("_init") or group.settings.get("_init"),
    }


def _tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
