"""Makes an `InstanceRequest` from the parameters of a launch.

The parameters have the members of EC2's structure RequestLaunchTemplateData. RunInstances and launch templates use these members,
and Auto Scaling translates launch configurations into them. Corral itself adds members that begin with "_": `_tags` contains tags
that callers may not set (aws:…), `_init` the metadata with AWS::CloudFormation::Init, and `_template` the launch template.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from contextlib import suppress
from functools import lru_cache

import orjson

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.user_data import AgentSettings, read_user_data
from corral.fleet.instances import InstanceRequest
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.operations.stored_resources import Document, Params
from corral.operations.stored_resources import get as get_resource
from corral.operations.tags import Tags
from corral.services.ec2 import default_vpc, errors
from corral.services.ec2.images import is_ecs_optimized
from corral.services.ec2.instance_types import architecture_of, size_of
from corral.services.ec2.launch_templates import LaunchTemplateVersion as LaunchTemplateVersion
from corral.services.ec2.launch_templates import template_data as template_data
from corral.services.ec2.resources import TAGS, every, existing, new_id
from corral.services.ec2.subnet_addresses import check_address, free_address, taken_addresses
from corral.services.ec2.zones import check_zone
from corral.services.iam.instance_profiles import INSTANCE_PROFILE
from corral.services.ssm import public_parameters
from corral.store import Store

DEFAULT_TYPE = "m1.small"  # the type if RunInstances names none
USER_DATA_MAX_BYTES = 16 * 1024
RESOLVE = "resolve:ssm:"
TAGGED_TYPES = {  # resource types in TagSpecifications; only tags of instances are stored
    "instance", "volume", "network-interface", "spot-instances-request", "elastic-gpu", "capacity-reservation",
}  # fmt: skip
STORED = (  # members that DescribeInstances returns unchanged
    "KernelId", "RamdiskId", "EbsOptimized", "CpuOptions", "HibernationOptions", "EnclaveOptions", "MaintenanceOptions",
    "PrivateDnsNameOptions", "NetworkPerformanceOptions", "CapacityReservationSpecification",
)  # fmt: skip
METADATA_OPTIONS = {  # the default metadata options
    "State": "applied", "HttpTokens": "optional", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled",
    "HttpProtocolIpv6": "disabled", "InstanceMetadataTags": "disabled",
}  # fmt: skip


def instance_request(tx: Tx[Store], caller: Caller, data: Params, *, group: str = "", reason: str) -> InstanceRequest:
    """Check the members of a launch, read its user data, and choose its subnet and its address."""
    default_vpc.ensure(tx, caller)
    if data.get("InstanceRequirements") and not data.get("InstanceType"):
        raise errors.UnsupportedOperation("Corral does not choose types by InstanceRequirements: name an InstanceType.")
    type_ = data.get("InstanceType") or DEFAULT_TYPE
    size = size_of(tx, type_)
    settings = agent_settings(data)
    interface = (data.get("NetworkInterfaces") or [{}])[0]
    subnet = chosen_subnet(tx, caller, data, interface)
    placement = {**data.get("Placement", {}), "AvailabilityZone": subnet["AvailabilityZone"]}
    image_id = _image_id(tx, caller, data)
    details: Document = {
        "ImageId": image_id,
        "SubnetId": subnet["SubnetId"],
        "VpcId": subnet["VpcId"],
        "SecurityGroups": chosen_security_groups(tx, caller, data, interface, subnet),
        "Placement": {"GroupName": "", "Tenancy": "default", **placement},
        "Monitoring": {"State": "enabled" if data.get("Monitoring", {}).get("Enabled") else "disabled"},
        "MetadataOptions": {**METADATA_OPTIONS, **data.get("MetadataOptions", {})},
        "Architecture": architecture_of(tx, type_),
        "Tags": TAGS.to_list(_tags(data)),
        **{member: data[member] for member in STORED if member in data},
        "_reservation": new_id(tx, "r"),
        **_address(tx, caller, subnet, data.get("PrivateIpAddress") or interface.get("PrivateIpAddress")),
        **_attributes(data),
    }
    if data.get("KeyName"):
        if not every(tx, caller, "key-pair", KeyName=data["KeyName"]):
            raise errors.name_not_found("key-pair", data["KeyName"])
        details["KeyName"] = data["KeyName"]
    if data.get("IamInstanceProfile"):
        details["IamInstanceProfile"] = instance_profile(tx, caller, data["IamInstanceProfile"])
    if data.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
        details["InstanceLifecycle"] = "spot"
    return InstanceRequest(
        owner=caller.owner,
        region=caller.region,
        cluster=cluster_to_join(caller.region, image_id, settings),
        type=type_,
        gpus=size.gpus,
        cpu_units=size.cpu_units,
        memory_mib=size.memory_mib,
        attributes=settings.attributes,
        group=group,
        reason=reason,
        details=details,
    )


def with_next_address(tx: Tx[Store], caller: Caller, request: InstanceRequest) -> Document:
    """Return the details of a further instance of the same request, with another address."""
    subnet = existing(tx, caller, "subnet", request.details["SubnetId"])
    return {**request.details, **_address(tx, caller, subnet, None)}


def cluster_to_join(region: str, image_id: str, settings: AgentSettings) -> str:
    """Return the ECS cluster that an instance joins, or an empty text if it joins none.

    If the user data names no cluster, an instance of an ECS-optimized image joins the cluster `default`.
    """
    return settings.cluster or (DEFAULT_CLUSTER if is_ecs_optimized(region, image_id) else "")


def agent_settings(data: Params) -> AgentSettings:
    """Read the settings of the ECS agent from the user data of a launch (in base64) and from its metadata for cfn-init."""
    text = data.get("UserData") or ""
    try:
        raw = b64decode(text, validate=False)
    except (NotBase64, ValueError):
        raise errors.InvalidUserData("Invalid BASE64 encoding of user data.") from None
    if len(raw) > USER_DATA_MAX_BYTES:
        raise errors.InvalidParameterValue(f"User data is limited to {USER_DATA_MAX_BYTES} bytes: this user data has {len(raw)}.")
    return _read(raw, orjson.dumps(data["_init"]) if data.get("_init") else b"")


def read_user_data_early(params: Params) -> Params:
    """Read the user data of a request in another thread, because that takes long if it is a long script.

    The handler then finds the settings in the cache. If the user data is not valid, the handler refuses it.
    """
    with suppress(ApiError):
        agent_settings(params.get("LaunchTemplateData", params))
    return params


@lru_cache(maxsize=64)  # the instances of a group have the same user data
def _read(raw: bytes, init: bytes) -> AgentSettings:
    return read_user_data(raw, orjson.loads(init) if init else None)


def merged(template: LaunchTemplateVersion, given: Params) -> Params:
    """Merge a launch template with a request.

    A member of the request replaces the same member of the template. Only tags are merged, for each type of resource.
    """
    specifications: dict[str, Tags] = {}
    for each in (*template.data.get("TagSpecifications", ()), *given.get("TagSpecifications", ())):
        tags = {tag.get("Key", ""): tag.get("Value", "") for tag in each.get("Tags", ())}
        specifications[each.get("ResourceType", "")] = {**specifications.get(each.get("ResourceType", ""), {}), **tags}
    tagged = [{"ResourceType": type_, "Tags": TAGS.to_list(tags)} for type_, tags in specifications.items()]
    about = {"LaunchTemplateId": template.template_id, "LaunchTemplateName": template.name, "Version": str(template.version)}
    return {**template.data, **given, "TagSpecifications": tagged, "_template": about}


def instance_profile(tx: Tx[Store], caller: Caller, given: Params) -> Document:
    """Return the instance profile of a launch, as DescribeInstances shows it. Its role has no effect: tasks use their task role."""
    arn, name = given.get("Arn"), given.get("Name")
    if bool(arn) == bool(name):
        raise errors.InvalidParameterCombination("IamInstanceProfile must have either Arn or Name, but not both.")
    found = get_resource(tx, caller, INSTANCE_PROFILE, name or str(arn).rpartition("/")[2])
    if found is None or (arn and found["Arn"] != arn):
        member = "arn" if arn else "name"
        raise errors.invalid_value(arn or name, f"iamInstanceProfile.{member}", f"Invalid IAM Instance Profile {member}")
    return {"Arn": found["Arn"], "Id": found["InstanceProfileId"]}


# Network


def chosen_subnet(tx: Tx[Store], caller: Caller, data: Params, interface: Params) -> Document:
    """Return the subnet that a launch names, or else the default subnet of its zone."""
    if given := data.get("SubnetId") or interface.get("SubnetId"):
        return existing(tx, caller, "subnet", given)
    vpc = default_vpc.find_default(tx, caller)
    if vpc is None:
        raise errors.VPCIdNotSpecified(
            "No default VPC for this user: name a SubnetId, or create a default VPC with CreateDefaultVpc."
        )
    zone = data.get("Placement", {}).get("AvailabilityZone") or None  # Terraform sends an empty text
    if zone:
        check_zone(caller.region, {"AvailabilityZone": zone})
    subnets = sorted(every(tx, caller, "subnet", VpcId=vpc["VpcId"]), key=lambda each: str(each["AvailabilityZone"]))
    found = next((each for each in subnets if each["DefaultForAz"] and zone in (None, each["AvailabilityZone"])), None)
    if found is None:
        place = f"the zone {zone}" if zone else f"the default VPC {vpc['VpcId']}"
        raise errors.MissingParameter(
            f"No default subnet in {place}: name a SubnetId, or create a default one with CreateDefaultSubnet."
        )
    return found


def chosen_security_groups(tx: Tx[Store], caller: Caller, data: Params, interface: Params, subnet: Document) -> list[Document]:
    given = [*(interface.get("Groups") or ()), *data.get("SecurityGroupIds", ()), *data.get("SecurityGroups", ())] or ["default"]
    in_vpc = every(tx, caller, "security-group", VpcId=subnet["VpcId"])
    by_id, by_name = {each["GroupId"]: each for each in in_vpc}, {each["GroupName"]: each for each in in_vpc}
    found: dict[str, Document] = {}
    for each in given:
        group = by_id.get(each) or by_name.get(each)
        if group is None:
            if each.startswith("sg-"):
                existing(tx, caller, "security-group", each)
                raise errors.InvalidParameterValue(
                    f"Security group {each} and subnet {subnet['SubnetId']} belong to different networks: "
                    f"use a group of {subnet['VpcId']}."
                )
            raise errors.name_not_found("security-group", each, where=f" in VPC '{subnet['VpcId']}'")
        found[group["GroupId"]] = {"GroupId": group["GroupId"], "GroupName": group["GroupName"]}
    return list(found.values())


def _address(tx: Tx[Store], caller: Caller, subnet: Document, wanted: str | None) -> Document:
    """Return the private address `wanted`, or else a free address of the subnet, with the ids of a new network interface."""
    taken = taken_addresses(tx, caller, subnet)
    if wanted is None:
        address = free_address(subnet, taken, start=int(tx.ids.hex32()[:8], 16))
    else:
        check_address(subnet, taken, wanted)
        address = wanted
    return {
        "PrivateIpAddress": address,
        "PrivateDnsName": f"ip-{address.replace('.', '-')}.{default_vpc.domain(caller.region)}",
        "_eni": new_id(tx, "eni"),
        "_attachment": new_id(tx, "eni-attach"),
    }


# Other members


def _image_id(tx: Tx[Store], caller: Caller, data: Params) -> str:
    """Return the image id of a launch. Any id with the prefix of images is accepted, because Corral starts no image."""
    given = data.get("ImageId")
    if not given:
        raise errors.MissingParameter("The request must contain the parameter ImageId")
    if not given.startswith(RESOLVE):
        if not given.startswith("ami-"):
            raise errors.not_found("image", given)
        return str(given)
    name = given.removeprefix(RESOLVE)
    found = public_parameters.find(caller.region, name) or tx.store.parameters.latest(caller.region, name)
    if found is None:
        raise errors.InvalidParameterValue(f"The parameter {name} of ImageId {given} does not exist in Parameter Store.")
    return found.value


def _tags(data: Params) -> Tags:
    tags: Tags = {}
    for specification in data.get("TagSpecifications", ()):
        type_ = specification.get("ResourceType")
        if type_ not in TAGGED_TYPES:
            raise errors.InvalidParameterValue(f"'{type_}' is not a valid taggable resource type for this operation.")
        if type_ == "instance":
            tags |= TAGS.read(specification.get("Tags", ()))
    tags |= {tag["Key"]: tag["Value"] for tag in data.get("_tags", ())}
    if template := data.get("_template"):
        tags |= {
            "aws:ec2launchtemplate:id": template["LaunchTemplateId"],
            "aws:ec2launchtemplate:version": template["Version"],
        }
    return tags


def _attributes(data: Params) -> Document:
    """Return the members that DescribeInstances does not show, for example the user data and the termination protection."""
    members = {
        "_user_data": data.get("UserData"),
        "_init": data.get("_init"),
        "_disable_api_termination": data.get("DisableApiTermination"),
        "_disable_api_stop": data.get("DisableApiStop"),
        "_shutdown_behavior": data.get("InstanceInitiatedShutdownBehavior"),
        "_block_devices": data.get("BlockDeviceMappings"),
        "_template": data.get("_template"),
        "_credits": data.get("CreditSpecification"),
    }
    return {name: value for name, value in members.items() if value}
