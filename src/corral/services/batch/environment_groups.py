"""The Auto Scaling groups of a compute environment: their instance types, launch templates, launches and terminations.

An environment has one group for each instance type that its jobs use. The group is created when the environment launches the first
instance of this type. A generation is a set of groups with the same settings. An infrastructure update begins a new generation. The
reconciler `environment` terminates the instances of the old generation when their jobs have ended.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from contextlib import suppress
from functools import lru_cache
from typing import Any

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import COUNTED
from corral.decide.scaling.instance_choice import FAMILIES, TypeShape
from corral.fleet.instance_types import CPU_UNITS, InstanceType, find_type, price_of, types_of_family
from corral.fleet.instances import InstanceRequest, fits_ever
from corral.fleet.lenders import lending_of
from corral.model.compute_environment import SPOT, ComputeEnvironment
from corral.model.group import DELETING, ENVIRONMENT, Group, GroupMember
from corral.model.instance import TypeMapping
from corral.model.principal import ROLE, Principal
from corral.services.autoscaling import activities, group_changes
from corral.services.autoscaling.groups import create_auto_scaling_group
from corral.services.batch.environments import SERVICE, TYPE
from corral.services.batch.errors import ClientException
from corral.services.ec2 import default_vpc, launch_templates
from corral.services.ec2.launch_specs import instance_profile
from corral.services.ec2.resources import every
from corral.services.ssm import public_parameters
from corral.store import Store

STATE = "environment-state"  # the type of the stored documents with an EnvironmentState
HEALTHY = "ComputeEnvironment Healthy"
SIZE_MAX = 10_000
IMAGES = {"": "amazon-linux-2023", "gpu": "amazon-linux-2023/gpu", "arm64": "amazon-linux-2023/arm64"}
BOUNDARY = "==corral-batch=="


class OldGroup(Struct, frozen=True):
    """A group of an old generation. Its instances are terminated when their jobs have ended, and at the latest at the deadline."""

    name: str
    template: str  # the id of the group's launch template
    deadline_s: float


class EnvironmentState(Struct, frozen=True):
    """The data that the reconciler of an environment stores for its next call."""

    groups: dict[str, str] = field(default_factory=dict)  # instance type → name of its group
    templates: dict[str, str] = field(default_factory=dict)  # instance type → id of the group's launch template
    old: tuple[OldGroup, ...] = ()
    idle: dict[str, float] = field(default_factory=dict)  # id of an instance that is not needed → since when
    asked: int = 0  # the desiredvCpus that a request has set, while the environment has not reached this number
    is_full: bool = False  # jobs wait, and the environment cannot grow further
    refusal: str = ""  # why the last launch, or the last creation of a group, was refused
    unfit: str = ""  # the demands of waiting jobs that fit on no instance type of the environment
    paced_at_s: float | None = None  # when a transaction reached its limit of terminations; a later transaction continues


def state_of(tx: Tx[Store], region: str, name: str) -> EnvironmentState:
    document = tx.store.stored.get(SERVICE, STATE, region, name)
    return convert(document, EnvironmentState) if document is not None else EnvironmentState()


def put_state(tx: Tx[Store], region: str, name: str, before: EnvironmentState, state: EnvironmentState) -> None:
    if state != before:
        tx.store.stored.put(SERVICE, STATE, region, name, to_builtins(state), tx.now_s)


def batch_caller(tx: Tx[Store], region: str, owner: str = "") -> Caller:
    """Return the caller for actions of an environment: the service-linked role of Batch, which acts for the environment's owner.

    A caller that creates nothing needs no owner.
    """
    return Caller(tx.settings.account, region, service_linked_role(tx.settings.account, owner))


def service_linked_role(account: str, owner: str = "") -> Principal:
    return Principal(account, ROLE, "aws-service-role/batch.amazonaws.com/AWSServiceRoleForBatch", owner=owner)


# Instance types


def types_of(tx: Tx[Store], environment: ComputeEnvironment) -> tuple[TypeShape, ...]:
    """Return the instance types that an environment may launch, with their sizes on this machine and their prices."""
    resources = environment.document["computeResources"]
    mappings = tuple(tx.settings.instance_types.items())
    return _shapes(tuple(resources["instanceTypes"]), mappings, environment.kind == SPOT)


@lru_cache(maxsize=128)  # each call of a reconciler needs the same types
def _shapes(given: tuple[str, ...], mappings: tuple[tuple[str, TypeMapping], ...], is_spot: bool) -> tuple[TypeShape, ...]:
    found: dict[str, TypeShape] = {}
    for at, name in enumerate(given):
        for each in _named(name, dict(mappings)):
            price = price_of(each.name)
            amount = None if price is None else price.spot if is_spot else price.on_demand
            shape = TypeShape(each.name, each.gpus, each.vcpus * CPU_UNITS, each.memory_mib, amount, at)
            found.setdefault(each.name, shape)
    return tuple(found.values())


def _named(name: str, mappings: dict[str, TypeMapping]) -> list[InstanceType]:
    if "." in name:
        found = find_type(mappings, name)
        return [found] if found is not None else []
    return [each for family in FAMILIES.get(name, (name,)) for each in types_of_family(mappings, family)]


def check_types(tx: Tx[Store], given: list[str]) -> None:
    """Raise an error if an element of instanceTypes is neither a type nor a family."""
    for name in given:
        if not _named(name, tx.settings.instance_types):
            raise ClientException(
                f"computeResources.instanceTypes {name!r} is not valid: EC2 has no such instance type or family. Use a type such "
                "as g5.xlarge, a family such as g5, optimal, default_x86_64 or default_arm64."
            )


def have_gpus(tx: Tx[Store], given: list[str]) -> bool:
    """Whether all types that the elements of instanceTypes name have GPUs."""
    return all(each.gpus for name in given for each in _named(name, tx.settings.instance_types))


def launchable(tx: Tx[Store], environment: ComputeEnvironment) -> tuple[list[TypeShape], str]:
    """Return the instance types that fit on this machine if nothing else runs on it. If there are none, the text says why."""
    found: list[TypeShape] = []
    why = ""
    for each in types_of(tx, environment):
        refusal = why_never(tx, environment, each)
        if refusal is None:
            found.append(each)
        why = why or refusal or ""
    return found, "" if found else why


def is_lent(tx: Tx[Store], environment: ComputeEnvironment) -> bool:
    """Whether a lender gives the machines of an environment, so that the GPUs of the hosts do not limit it."""
    return bool(tx.settings.lenders) and any(
        not lending_of(tx, each.name, _tagged(tx, environment)).is_local for each in types_of(tx, environment)
    )


def why_never(tx: Tx[Store], environment: ComputeEnvironment, type_: TypeShape) -> str | None:
    """Return why this machine can never hold an instance of a type, or None if it can."""
    return fits_ever(tx, _request(tx, environment, type_)) if type_.gpus else None


def _tagged(tx: Tx[Store], environment: ComputeEnvironment) -> dict[str, Any]:
    """Return the details of an instance of an environment as far as its lenders need them: the tags."""
    if not tx.settings.lenders:
        return {}
    resources = environment.document["computeResources"]
    tags = dict(resources.get("tags", {}))
    for template in _templates(resources):
        with suppress(ApiError):  # `problem_of` reports it
            data = _template_data(tx, batch_caller(tx, environment.region), template)
            for each in data.get("TagSpecifications", ()):
                if each.get("ResourceType") == "instance":
                    tags = {tag["Key"]: tag.get("Value", "") for tag in each.get("Tags", ())} | tags
    return {"Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def _request(tx: Tx[Store], environment: ComputeEnvironment, type_: TypeShape) -> InstanceRequest:
    return InstanceRequest(
        owner="",
        region=environment.region,
        cluster=environment.cluster,
        type=type_.name,
        gpus=type_.gpus,
        cpu_units=type_.cpu_units,
        memory_mib=type_.memory_mib,
        details=_tagged(tx, environment),
    )


# Resources that an environment names


def problem_of(tx: Tx[Store], environment: ComputeEnvironment) -> str:
    """Return why an environment is INVALID: a resource that it names does not exist, or none of its instance types fits on this
    machine. Return "" if there is no problem.
    """
    if not environment.kind:
        return ""
    caller, resources = batch_caller(tx, environment.region), environment.document["computeResources"]
    default_vpc.ensure(tx, caller)
    for type_, member, title in (("subnet", "subnets", "subnet ID"), ("security-group", "securityGroupIds", "security group")):
        for each in resources.get(member) or ():
            if tx.store.stored.get("ec2", type_, environment.region, each) is None:
                return f"CLIENT_ERROR - The {title} '{each}' does not exist"
    if not environment.scales:
        return ""
    try:
        role = resources["instanceRole"]
        instance_profile(tx, caller, {"Arn" if role.startswith("arn:") else "Name": role})
        for template in _templates(resources):
            _template_data(tx, caller, template)
    except ApiError as error:
        return f"CLIENT_ERROR - {error.message}"
    if resources.get("ec2KeyPair") and not every(tx, caller, "key-pair", KeyName=resources["ec2KeyPair"]):
        return f"CLIENT_ERROR - The key pair '{resources['ec2KeyPair']}' does not exist"
    _, why = launchable(tx, environment)
    return f"CLIENT_ERROR - None of the instance types fits on this machine: {why}" if why else ""


def _templates(resources: dict[str, Any]) -> list[dict[str, Any]]:
    given = resources.get("launchTemplate")
    return [given, *(given.get("overrides") or ())] if given else []


def _template_data(tx: Tx[Store], caller: Caller, given: dict[str, Any]) -> dict[str, Any]:
    names = {"launchTemplateId": "LaunchTemplateId", "launchTemplateName": "LaunchTemplateName", "version": "Version"}
    asked = {there: given[here] for here, there in names.items() if given.get(here)}
    return launch_templates.template_data(tx, caller, asked).data


# Groups


def launch(
    tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState, type_: TypeShape, count: int, cause: str
) -> EnvironmentState:
    """Raise the desired capacity of the group of an instance type. Create the group if it does not exist. Can raise ApiError."""
    group = tx.store.groups.get(environment.region, state.groups.get(type_.name, ""))
    if group is not None and group.status == DELETING:
        raise ClientException(f"The Auto Scaling group {group.name} is being deleted.")
    if group is not None:
        group_changes.set_desired(tx, group, group.desired + count, cause)
        return state
    if type_.name in state.templates:  # a user has deleted the group
        drop_group(tx, environment.region, state.groups[type_.name], state.templates[type_.name])
    owner = tx.store.stored.owner(SERVICE, TYPE, environment.region, environment.name)
    caller, suffix = batch_caller(tx, environment.region, owner), tx.ids.hex32()[:8]
    name = f"Batch-{environment.name}-{type_.name}-{suffix}"
    template = launch_templates.create_launch_template(
        tx,
        {
            "LaunchTemplateName": f"Batch-lt-{environment.uuid[:8]}-{type_.name}-{suffix}",
            "LaunchTemplateData": launch_data(tx, environment, type_),
        },
        caller,
    )["LaunchTemplate"]["LaunchTemplateId"]
    tags = {"AWSBatchServiceTag": "batch", **environment.document["computeResources"].get("tags", {})}
    create_auto_scaling_group(
        tx,
        {
            "AutoScalingGroupName": name,
            "MinSize": 0,
            "MaxSize": SIZE_MAX,
            "DesiredCapacity": 0,
            "LaunchTemplate": {"LaunchTemplateId": template, "Version": "1"},
            "VPCZoneIdentifier": ",".join(environment.document["computeResources"]["subnets"]),
            "Tags": [{"Key": key, "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()],
        },
        caller,
    )
    group = tx.store.groups.get(environment.region, name)
    assert group is not None, "the group was created"
    group_changes.set_desired(tx, group, count, cause, settings={**group.settings, ENVIRONMENT: environment.name})
    groups, templates = {**state.groups, type_.name: name}, {**state.templates, type_.name: template}
    return replace(state, groups=groups, templates=templates)


def launch_data(tx: Tx[Store], environment: ComputeEnvironment, type_: TypeShape) -> dict[str, Any]:
    """Return the launch template data for instances of a type: the user's template, changed by the settings of the environment."""
    resources, caller = environment.document["computeResources"], batch_caller(tx, environment.region)
    given = _template_data(tx, caller, template) if (template := _template_for(resources, type_.name)) else {}
    role = resources["instanceRole"]
    data: dict[str, Any] = {
        **{member: value for member, value in given.items() if member[0] != "_"},
        "InstanceType": type_.name,
        "ImageId": _image(environment, type_, given),
        "UserData": _user_data(given.get("UserData", ""), environment.cluster),
        "IamInstanceProfile": {"Arn" if role.startswith("arn:") else "Name": role},
    }
    data.pop("InstanceRequirements", None)
    if resources.get("securityGroupIds"):
        data["SecurityGroupIds"] = resources["securityGroupIds"]
        data.pop("SecurityGroups", None)
        interfaces = [{member: value for member, value in each.items() if member not in ("Groups", "SubnetId")}
                      for each in data.get("NetworkInterfaces", ())]  # fmt: skip
        if interfaces:
            data["NetworkInterfaces"] = [{**interfaces[0], "Groups": data.pop("SecurityGroupIds")}, *interfaces[1:]]
    if resources.get("ec2KeyPair"):
        data["KeyName"] = resources["ec2KeyPair"]
    if resources.get("placementGroup"):
        data["Placement"] = {**data.get("Placement", {}), "GroupName": resources["placementGroup"]}
    data.pop("InstanceMarketOptions", None)
    if environment.kind == SPOT:
        data["InstanceMarketOptions"] = {"MarketType": "spot"}
    return data


def _template_for(resources: dict[str, Any], type_: str) -> dict[str, Any] | None:
    """Return the launch template of a type: an override for the type, an override for its family, or the default template."""
    given: dict[str, Any] | None = resources.get("launchTemplate")
    overrides = (given or {}).get("overrides") or ()
    for target in (type_, type_.partition(".")[0]):
        for each in overrides:
            if target in each["targetInstanceTypes"]:
                return {**each}
    return given


def _image(environment: ComputeEnvironment, type_: TypeShape, template: dict[str, Any]) -> str:
    """Return the image of an instance. As on AWS, imageIdOverride comes first, then imageId, then the launch template."""
    resources = environment.document["computeResources"]
    configurations = resources.get("ec2Configuration") or []
    with_gpu = [each for each in configurations if ("NVIDIA" in each["imageType"]) == bool(type_.gpus)] or configurations
    override = next((each["imageIdOverride"] for each in with_gpu if each.get("imageIdOverride")), "")
    if found := override or resources.get("imageId") or template.get("ImageId"):
        return str(found)
    kind = "gpu" if type_.gpus else "arm64" if type_.name.partition(".")[0] in FAMILIES["default_arm64"] else ""
    parameter = public_parameters.find(environment.region, f"{public_parameters.ECS}{IMAGES[kind]}/recommended/image_id")
    assert parameter is not None, "the parameter is built in"
    return parameter.value


def _user_data(given: str, cluster: str) -> str:
    """Return the user's user data with one more part: a script that joins the environment's cluster. The result is in base64."""
    script = f"#!/bin/bash\necho ECS_CLUSTER={cluster} >> /etc/ecs/ecs.config\n"
    if not given:
        return b64encode(script.encode()).decode()
    try:
        own = b64decode(given).decode()
    except ValueError:  # compressed or binary user data cannot be combined with a text, so it is omitted
        return b64encode(script.encode()).decode()
    is_archive = own.lstrip().lower().startswith(("mime-version:", "content-type:"))
    part = own.lstrip() if is_archive else f'Content-Type: text/x-shellscript; charset="utf-8"\n\n{own}'
    text = (
        f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{BOUNDARY}"\n\n'
        f"--{BOUNDARY}\n{part}\n"
        f'--{BOUNDARY}\nContent-Type: text/x-shellscript; charset="utf-8"\n\n{script}\n--{BOUNDARY}--\n'
    )
    return b64encode(text.encode()).decode()


def counted(tx: Tx[Store], region: str, group: str) -> list[GroupMember]:
    """Return the members of a group that run or start."""
    return [member for member in tx.store.groups.members(region, group) if member.state in COUNTED]


def end_member(tx: Tx[Store], group: Group, member: GroupMember, why: str) -> Group:
    """Terminate an instance of a group, and lower the desired capacity, so that the group does not replace the instance."""
    group = tx.store.groups.get(group.region, group.name) or group
    if member.state in COUNTED:
        group = group_changes.put(tx, group.but(desired=max(group.min_size, group.desired - member.weight)))
        group_changes.terminate(tx, group, member, activities.sentence(tx, f"an instance was taken out of service because {why}."))
    return group


def drop_group(tx: Tx[Store], region: str, name: str, template: str) -> bool:
    """Delete a group without members, and its launch template. Return False if the group still has members."""
    if tx.store.groups.members(region, name):
        return False
    group = tx.store.groups.get(region, name)
    if group is not None:
        group_changes.delete(tx, group)
    caller = batch_caller(tx, region)
    if tx.store.stored.get("ec2", "launch-template", region, template) is not None:
        launch_templates.delete_launch_template(tx, {"LaunchTemplateId": template}, caller)
    return True
