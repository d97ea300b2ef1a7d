"""The permissions that operations of EC2 need, and the facts about its resources that policies can test."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, pass_profile, request_tags
from corral.access.resources import ResourceFacts
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.operations.listings import Listed
from corral.services.ec2.launch_specs import DEFAULT_TYPE, RESOLVE, merged
from corral.services.ec2.launch_templates import LaunchTemplateVersion, template_data
from corral.services.ec2.named_resources import (
    ANY,
    LISTINGS,
    NamedResource,
    document_of,
    launch_network,
    named_resources,
    owner_and_tags,
    owner_of_listed,
    resource_arn,
)
from corral.services.ssm import public_parameters
from corral.store import Store
from corral.store.stored_resources import Document

# Resource type → its condition keys (without `ec2:`), and the members of its document that have their values
KEYS = {
    "dhcp-options": {"dhcpoptionsid": "DhcpOptionsId"},
    "elastic-ip": {"allocationid": "AllocationId", "domain": "Domain", "publicipaddress": "PublicIp"},
    "image": {"imageid": "ImageId", "imagetype": "ImageType", "public": "Public", "rootdevicetype": "RootDeviceType"},
    "instance": {
        "availabilityzone": "Placement.AvailabilityZone", "ebsoptimized": "EbsOptimized", "instanceid": "InstanceId",
        "instancemarkettype": "InstanceMarketType", "instanceprofile": "IamInstanceProfile.Arn", "instancetype": "InstanceType",
        "metadatahttpendpoint": "MetadataOptions.HttpEndpoint", "metadatahttptokens": "MetadataOptions.HttpTokens",
        "metadatahttpputresponsehoplimit": "MetadataOptions.HttpPutResponseHopLimit", "placementgroup": "Placement.GroupName",
        "rootdevicetype": "RootDeviceType", "tenancy": "Placement.Tenancy",
    },
    "internet-gateway": {"internetgatewayid": "InternetGatewayId"},
    "key-pair": {"keypairname": "KeyName", "keypairtype": "KeyType"},
    "network-acl": {"networkaclid": "NetworkAclId"},
    "route-table": {"routetableid": "RouteTableId"},
    "security-group": {"securitygroupid": "GroupId"},
    "subnet": {"availabilityzone": "AvailabilityZone", "subnetid": "SubnetId"},
    "vpc": {"tenancy": "InstanceTenancy", "vpcid": "VpcId"},
    "vpc-endpoint": {"vpceservicename": "ServiceName"},
}  # fmt: skip
IN_VPC = frozenset({"network-acl", "route-table", "security-group", "subnet"})  # types with the condition key ec2:Vpc
# The members of a launch that name a resource, by the type of the resource. ec2:IsLaunchTemplateResource tells whether the launch
# template names it, and not the request.
LAUNCHED_BY = {
    "image": "ImageId", "instance": "InstanceType", "key-pair": "KeyName", "security-group": "SecurityGroupIds",
    "subnet": "SubnetId",
}  # fmt: skip
TAGGED_LATER = ("CreateTags", "DeleteTags")  # operations whose tags are not those of a resource that the request creates


LISTED = {operation: Listed((member,), owner_of_listed(operation)) for operation, (member, _, _) in LISTINGS.items()}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions on the resources of the request, to tag what it creates, and to pass the role of a launch template."""
    if operation == "RunInstances":
        return launch_permissions(tx, caller, params)
    found = named_resources(tx, caller, operation, {**params})
    action, changed = f"ec2:{operation}", _attributes(operation, params)
    if not found:
        return on_resources(action, (), _region(caller))
    needed = [
        Permission(
            action,
            resource_arn(caller, each),
            {**_context_of(tx, caller, each), **_tags(operation, each.type, params), **changed},
        )
        for each in found
    ]
    return needed + _create_tags(caller, operation, params)


def launch_permissions(tx: Tx[Store], caller: Caller, params: Params, template: Params | None = None) -> list[Permission]:
    """The permissions to launch instances as RunInstances does, with a launch template or without one.

    `template` is the LaunchTemplateSpecification, if it is not a member of `params`.
    """
    version = _version(tx, caller, template or params.get("LaunchTemplate"))
    data = merged(version, {**params}) if version is not None else params
    needed = [
        Permission("ec2:RunInstances", resource_arn(caller, each), _launch_context(tx, caller, each, params, data, version))
        for each in _launched(tx, caller, data, version)
    ]
    needed += _create_tags(caller, "RunInstances", data)
    if version is not None and not params.get("IamInstanceProfile"):
        needed += _pass_profile(tx, caller, version)
    return needed


def pass_role_of_template(tx: Tx[Store], caller: Caller, template: Params | None) -> list[Permission]:
    """The permissions to pass the role of a launch template, given as a LaunchTemplateSpecification."""
    version = _version(tx, caller, template)
    return _pass_profile(tx, caller, version) if version is not None else []


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    found = owner_and_tags(tx, caller, permission.resource)
    return ResourceFacts(*found) if found is not None else ResourceFacts()


def _version(tx: Tx[Store], caller: Caller, template: Params | None) -> LaunchTemplateVersion | None:
    with suppress(ApiError):  # the handler raises the same error later, if the caller has the permissions
        return template_data(tx, caller, {**template}) if template else None
    return None


def _pass_profile(tx: Tx[Store], caller: Caller, version: LaunchTemplateVersion) -> list[Permission]:
    profile = version.data.get("IamInstanceProfile") or {}
    return pass_profile(tx, caller, profile.get("Name") or profile.get("Arn") or "")


def _launched(tx: Tx[Store], caller: Caller, data: Params, version: LaunchTemplateVersion | None) -> list[NamedResource]:
    """The resources of a launch: those that it uses, and those that it creates."""
    found = [NamedResource("image", _image(tx, caller, data)), NamedResource("instance", ANY)]
    found += [NamedResource("key-pair", data["KeyName"])] if data.get("KeyName") else []
    found += [NamedResource("launch-template", version.template_id)] if version is not None else []
    found += [NamedResource("network-interface", ANY), *launch_network(tx, caller, {**data}), NamedResource("volume", ANY)]
    return found


def _image(tx: Tx[Store], caller: Caller, data: Params) -> str:
    """The id of the image that the handler will find. `resolve:ssm:NAME` names the parameter that contains the id."""
    given = str(data.get("ImageId") or ANY)
    if not given.startswith(RESOLVE):
        return given
    name = given.removeprefix(RESOLVE)
    found = public_parameters.find(caller.region, name) or tx.store.parameters.latest(caller.region, name)
    return found.value if found is not None else ANY


def _launch_context(
    tx: Tx[Store],
    caller: Caller,
    resource: NamedResource,
    params: Params,
    data: Params,
    version: LaunchTemplateVersion | None,
) -> Context:
    context = dict(_context_of(tx, caller, resource))
    if resource.type == "instance":
        market = (data.get("InstanceMarketOptions") or {}).get("MarketType") or "on-demand"
        launched = {"InstanceType": DEFAULT_TYPE, "EbsOptimized": False, "RootDeviceType": "ebs", **data}
        context |= _values(resource.type, {**launched, "InstanceMarketType": market})
    context |= _tags("RunInstances", resource.type, data)
    if version is not None:
        template = resource_arn(caller, NamedResource("launch-template", version.template_id))
        is_of_template = not params.get(LAUNCHED_BY.get(resource.type, ""))
        context |= {"ec2:launchtemplate": (template,), "ec2:islaunchtemplateresource": (str(is_of_template).lower(),)}
    return context


def _context_of(tx: Tx[Store], caller: Caller, resource: NamedResource) -> Context:
    """The condition keys that say what a resource is. A resource that the request creates has only those of the request."""
    document = document_of(tx, caller, resource) if resource.id != ANY else None
    context = dict(_region(caller))
    if document is not None:
        context |= _values(resource.type, document)
        if resource.type in IN_VPC and "VpcId" in document:
            context["ec2:vpc"] = (resource_arn(caller, NamedResource("vpc", document["VpcId"])),)
    return context


def _values(type_: str, document: Document | Params) -> Context:
    found: dict[str, tuple[str, ...]] = {}
    for key, path in KEYS.get(type_, {}).items():
        value: object = document
        for member in path.split("."):
            value = value.get(member) if isinstance(value, dict) else None
        if value is not None:
            found[f"ec2:{key}"] = (str(value).lower() if isinstance(value, bool) else str(value),)
    return found


def _region(caller: Caller) -> Context:
    return {"ec2:region": (caller.region,)}


def _attributes(operation: str, params: Params) -> Context:
    """The condition key ec2:Attribute: the attribute that a request reads or changes."""
    if "Attribute" not in operation:
        return {}
    named = [params["Attribute"]] if params.get("Attribute") else [member for member in params if not member.endswith("Id")]
    return {"ec2:attribute": tuple(named)} if named else {}


def _tags(operation: str, type_: str, params: Params) -> Context:
    """The tags that a request gives to a resource of this type."""
    if operation in TAGGED_LATER:
        return request_tags(params)
    given = (each.get("Tags") or () for each in _specifications(params) if each.get("ResourceType") == type_)
    return request_tags({"Tags": [tag for tags in given for tag in tags]})


def _create_tags(caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permissions to tag what a request creates. A policy can name the operation in the condition ec2:CreateAction."""
    types = dict.fromkeys(str(each.get("ResourceType") or ANY) for each in _specifications(params))
    tagged = ((type_, tags) for type_ in types if (tags := _tags(operation, type_, params)))
    created = {**_region(caller), "ec2:createaction": (operation,)}
    return [
        Permission("ec2:CreateTags", resource_arn(caller, NamedResource(type_, ANY)), {**created, **tags}) for type_, tags in tagged
    ]


def _specifications(params: Params) -> Iterable[Params]:
    return params.get("TagSpecifications") or ()
