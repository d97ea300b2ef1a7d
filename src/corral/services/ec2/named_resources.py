"""The resources that a request to EC2 names or creates, as the Service Authorization Reference of AWS lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.operations.listings import OwnerOf
from corral.operations.stored_resources import Document, Params
from corral.services.ec2 import network_acls, route_tables
from corral.services.ec2.elastic_ips import find_association, requested_address
from corral.services.ec2.key_pairs import KEY_PAIR
from corral.services.ec2.launch_specs import chosen_security_groups, chosen_subnet
from corral.services.ec2.launch_templates import find_template
from corral.services.ec2.resources import every
from corral.services.ec2.security_group_rules import TYPE as RULE
from corral.services.ec2.security_groups import find_group
from corral.services.ec2.tags import TYPES
from corral.store import Store

ANY = "*"  # the id of a resource that the request creates, or that does not exist
WITHOUT_ACCOUNT = frozenset({"image", "snapshot"})  # types whose ARN contains no account
STORED = frozenset(type_.name for type_ in TYPES.values())
GATEWAYS = {"igw": "internet-gateway", "vgw": "vpn-gateway"}  # prefix of an id → type


class NamedResource(NamedTuple):
    type: str
    id: str  # of a key pair: its name


# Operation → its resources. TYPE=MEMBER is the resource whose id is this member of the request, or each of its elements. `[]` is
# each element of a list. TYPE=* is a new resource. @NAME is a function in RESOLVERS. An operation without a row has no resource.
ROWS = {
    "AllocateAddress": "elastic-ip=*",
    "AssociateAddress": "@address instance=InstanceId network-interface=NetworkInterfaceId",
    "AssociateDhcpOptions": "dhcp-options=DhcpOptionsId vpc=VpcId",
    "AssociateRouteTable": "route-table=RouteTableId subnet=SubnetId @gateway",
    "AttachInternetGateway": "internet-gateway=InternetGatewayId vpc=VpcId",
    "AttachVpnGateway": "vpc=VpcId vpn-gateway=VpnGatewayId",
    **dict.fromkeys(("AuthorizeSecurityGroupEgress", "AuthorizeSecurityGroupIngress"), f"@group {RULE}=*"),
    "CreateDhcpOptions": "dhcp-options=*",
    "CreateImage": "image=* instance=InstanceId snapshot=*",
    "CreateInternetGateway": "internet-gateway=*",
    **dict.fromkeys(("CreateKeyPair", "ImportKeyPair"), "key-pair=KeyName"),
    "CreateLaunchTemplate": "launch-template=*",
    **dict.fromkeys(
        ("CreateLaunchTemplateVersion", "DeleteLaunchTemplate", "DeleteLaunchTemplateVersions", "ModifyLaunchTemplate"), "@template"
    ),
    "CreateNatGateway": "elastic-ip=AllocationId natgateway=* subnet=SubnetId vpc=VpcId",
    "CreateNetworkAcl": "network-acl=* vpc=VpcId",
    **dict.fromkeys(
        ("CreateNetworkAclEntry", "DeleteNetworkAcl", "DeleteNetworkAclEntry", "ReplaceNetworkAclEntry"),
        "network-acl=NetworkAclId",
    ),
    **dict.fromkeys(("CreateRoute", "DeleteRoute", "DeleteRouteTable", "ReplaceRoute"), "route-table=RouteTableId"),
    "CreateRouteTable": "route-table=* vpc=VpcId",
    "CreateSecurityGroup": "security-group=* vpc=VpcId",
    "CreateSubnet": "subnet=* vpc=VpcId",
    **dict.fromkeys(("CreateTags", "DeleteTags"), "@tagged"),
    "CreateVpc": "vpc=*",
    "CreateVpcEndpoint": "vpc=VpcId vpc-endpoint=* route-table=RouteTableIds subnet=SubnetIds security-group=SecurityGroupIds",
    "CreateVpnGateway": "vpn-gateway=*",
    "DeleteDhcpOptions": "dhcp-options=DhcpOptionsId",
    "DeleteInternetGateway": "internet-gateway=InternetGatewayId",
    "DeleteKeyPair": "@key",
    "DeleteNatGateway": "natgateway=NatGatewayId",
    **dict.fromkeys(
        ("DeleteSecurityGroup", "RevokeSecurityGroupEgress", "RevokeSecurityGroupIngress",
         "UpdateSecurityGroupRuleDescriptionsEgress", "UpdateSecurityGroupRuleDescriptionsIngress"),
        "@group",
    ),
    **dict.fromkeys(("DeleteSubnet", "ModifySubnetAttribute"), "subnet=SubnetId"),
    **dict.fromkeys(("DeleteVpc", "DescribeVpcAttribute", "ModifyVpcAttribute"), "vpc=VpcId"),
    "DeleteVpcEndpoints": "vpc-endpoint=VpcEndpointIds",
    "DeleteVpnGateway": "vpn-gateway=VpnGatewayId",
    "DeregisterImage": "image=ImageId",
    **dict.fromkeys(("DescribeInstanceAttribute", "GetConsoleOutput", "ModifyInstanceMetadataOptions"), "instance=InstanceId"),
    "DetachInternetGateway": "internet-gateway=InternetGatewayId vpc=VpcId",
    "DetachVpnGateway": "vpc=VpcId vpn-gateway=VpnGatewayId",
    **dict.fromkeys(("DisassociateAddress", "ReleaseAddress"), "@address"),
    "DisassociateRouteTable": "@route-association",
    "GetManagedPrefixListEntries": "prefix-list=PrefixListId",
    "ModifyInstanceAttribute": "instance=InstanceId security-group=Groups",
    "ModifySecurityGroupRules": f"@group {RULE}=SecurityGroupRules.[].SecurityGroupRuleId",
    "ModifyVpcEndpoint": "vpc-endpoint=VpcEndpointId route-table=AddRouteTableIds route-table=RemoveRouteTableIds "
    "subnet=AddSubnetIds subnet=RemoveSubnetIds security-group=AddSecurityGroupIds security-group=RemoveSecurityGroupIds",
    **dict.fromkeys(
        ("MonitorInstances", "RebootInstances", "StartInstances", "StopInstances", "TerminateInstances", "UnmonitorInstances"),
        "instance=InstanceIds",
    ),
    "RegisterImage": "image=* snapshot=BlockDeviceMappings.[].Ebs.SnapshotId",
    "ReplaceNetworkAclAssociation": "network-acl=NetworkAclId @acl-association",
    "ReplaceRouteTableAssociation": "route-table=RouteTableId @route-association",
}  # fmt: skip


# Operation → the list in its response, and the type and the member with the id of each element
LISTINGS = {
    "DescribeAddresses": ("Addresses", "elastic-ip", "AllocationId"),
    "DescribeAddressesAttribute": ("Addresses", "elastic-ip", "AllocationId"),
    "DescribeDhcpOptions": ("DhcpOptions", "dhcp-options", "DhcpOptionsId"),
    "DescribeImages": ("Images", "image", "ImageId"),
    "DescribeInstanceCreditSpecifications": ("InstanceCreditSpecifications", "instance", "InstanceId"),
    "DescribeInstanceStatus": ("InstanceStatuses", "instance", "InstanceId"),
    "DescribeInstances": ("Reservations", "instance", "Instances"),
    "DescribeInternetGateways": ("InternetGateways", "internet-gateway", "InternetGatewayId"),
    "DescribeKeyPairs": ("KeyPairs", KEY_PAIR.name, "KeyName"),
    "DescribeLaunchTemplateVersions": ("LaunchTemplateVersions", "launch-template", "LaunchTemplateId"),
    "DescribeLaunchTemplates": ("LaunchTemplates", "launch-template", "LaunchTemplateId"),
    "DescribeNatGateways": ("NatGateways", "natgateway", "NatGatewayId"),
    "DescribeNetworkAcls": ("NetworkAcls", "network-acl", "NetworkAclId"),
    "DescribeNetworkInterfaces": ("NetworkInterfaces", "network-interface", "NetworkInterfaceId"),
    "DescribeRouteTables": ("RouteTables", "route-table", "RouteTableId"),
    "DescribeSecurityGroupRules": ("SecurityGroupRules", "security-group", "GroupId"),
    "DescribeSecurityGroups": ("SecurityGroups", "security-group", "GroupId"),
    "DescribeSubnets": ("Subnets", "subnet", "SubnetId"),
    "DescribeTags": ("Tags", "", "ResourceId"),
    "DescribeVpcEndpoints": ("VpcEndpoints", "vpc-endpoint", "VpcEndpointId"),
    "DescribeVpcs": ("Vpcs", "vpc", "VpcId"),
    "DescribeVpnGateways": ("VpnGateways", "vpn-gateway", "VpnGatewayId"),
}


def owner_of_listed(operation: str) -> OwnerOf:
    """The function that returns the owner of an element of a listing."""
    _, type_, member = LISTINGS[operation]

    def owner(tx: Tx[Store], caller: Caller, params: Mapping[str, Any], element: Any) -> str | None:
        if type_ == "network-interface":
            return _owner_of_interface(tx, caller, element)
        given = element["Instances"][0]["InstanceId"] if member == "Instances" else element[member]
        kind = type_ or element["ResourceType"]
        if kind == KEY_PAIR.name and not type_:
            return tx.store.stored.owner("ec2", kind, caller.region, given)
        found = _stored(tx, caller.region, NamedResource(kind, given))
        if found is None and kind == "image":  # an image of Amazon
            return None
        return found[1] if found is not None else ""

    return owner


def _owner_of_interface(tx: Tx[Store], caller: Caller, interface: Document) -> str:
    """The owner of what the network interface belongs to: an instance, a task, a NAT gateway or an endpoint."""
    attachment = interface.get("Attachment", {})
    task = attachment.get("AttachmentId", "").removeprefix("eni-attach-")
    for each in tx.store.tasks.placed() if "attachment/" in interface.get("Description", "") else ():
        if each.id.startswith(task):
            return each.owner
    if "InstanceId" in attachment:
        found = _stored(tx, caller.region, NamedResource("instance", attachment["InstanceId"]))
        return found[1] if found is not None else ""
    last = interface.get("Description", "").rpartition(" ")[2]
    kind = {"nat": "natgateway", "vpce": "vpc-endpoint"}.get(last.partition("-")[0], "")
    return tx.store.stored.owner("ec2", kind, caller.region, last)


def named_resources(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[NamedResource]:
    """The resources of a request. A resource that a function looks for, and that does not exist, has the id ANY."""
    found: dict[NamedResource, None] = {}
    for part in ROWS.get(operation, "").split():
        if part[0] == "@":
            type_, resolve = RESOLVERS[part]
            resolved = [NamedResource(type_, ANY)]
            with suppress(ApiError):  # the handler raises the same error later, if the caller has the permissions
                resolved = list(resolve(tx, caller, params))
            found |= dict.fromkeys(resolved)
        else:
            type_, _, path = part.partition("=")
            ids = [ANY] if path == ANY else _ids(params, path)
            found |= dict.fromkeys(NamedResource(type_, each) for each in ids)
    return list(found)


def resource_arn(caller: Caller, resource: NamedResource) -> str:
    account = "" if resource.type in WITHOUT_ACCOUNT else caller.account
    return f"arn:aws:ec2:{caller.region}:{account}:{resource.type}/{resource.id}"


def launch_network(tx: Tx[Store], caller: Caller, data: Params) -> list[NamedResource]:
    """The subnet and the security groups of a launch, also those that it does not name."""
    interface = (data.get("NetworkInterfaces") or [{}])[0]
    with suppress(ApiError):  # the handler raises the same error later, if the caller has the permissions
        subnet = chosen_subnet(tx, caller, data, interface)
        groups = chosen_security_groups(tx, caller, data, interface, subnet)
        return [
            *(NamedResource("security-group", group["GroupId"]) for group in groups),
            NamedResource("subnet", subnet["SubnetId"]),
        ]
    return [NamedResource("security-group", ANY), NamedResource("subnet", ANY)]


def document_of(tx: Tx[Store], caller: Caller, resource: NamedResource) -> Document | None:
    """What is stored about a resource, in the form of the operation that describes it."""
    found = _stored(tx, caller.region, resource)
    return found[0] if found is not None else None


def owner_and_tags(tx: Tx[Store], caller: Caller, arn: str) -> tuple[str, dict[str, str]] | None:
    """The owner and the tags of the resource with an ARN; None if it does not exist."""
    parts = arn.split(":", 5)
    if len(parts) != 6 or parts[2] != "ec2":
        return None
    type_, _, id_ = parts[5].partition("/")
    found = _stored(tx, parts[3], NamedResource(type_, id_))
    if found is None:
        return None
    document, owner = found
    return owner, {tag["Key"]: tag["Value"] for tag in document.get("Tags", ())}


def _stored(tx: Tx[Store], region: str, resource: NamedResource) -> tuple[Document, str] | None:
    """The document and the owner of a resource."""
    type_, id_ = resource
    if type_ == "instance":
        instance = tx.store.instances.by_ec2_id(id_)
        if instance is None:
            return None
        market = {"InstanceMarketType": instance.details.get("InstanceLifecycle", "on-demand")}
        about = {"InstanceId": id_, "InstanceType": instance.type, "RootDeviceType": "ebs", "EbsOptimized": False, **market}
        return {**about, **instance.details}, instance.owner
    if type_ == "network-interface":
        live = (each for each in tx.store.instances.live(region) if each.details.get("_eni") == id_)
        return next((({}, each.owner) for each in live), None)
    if type_ == RULE:
        rules = ((group, rule) for group in _every(tx, region, "security-group") for rule in group["_rules"])
        found = next(((group, rule) for group, rule in rules if rule["SecurityGroupRuleId"] == id_), None)
        return (found[1], tx.store.stored.owner("ec2", "security-group", region, found[0]["GroupId"])) if found else None
    if type_ == KEY_PAIR.name:
        id_ = next((each["KeyPairId"] for each in _every(tx, region, type_) if each["KeyName"] == id_), "")
    document = tx.store.stored.get("ec2", type_, region, id_) if type_ in STORED else None
    return (document, tx.store.stored.owner("ec2", type_, region, id_)) if document is not None else None


def _every(tx: Tx[Store], region: str, type_: str) -> Iterable[Document]:
    return (document for _, document in tx.store.stored.listed("ec2", type_, region))


def _ids(params: Params, path: str) -> list[str]:
    found: list[Any] = [params]
    for member in path.split("."):
        if member == "[]":
            found = [element for each in found if isinstance(each, list) for element in each]
        else:
            found = [each[member] for each in found if isinstance(each, Mapping) and each.get(member)]
    return [str(each) for given in found for each in (given if isinstance(given, list) else [given])]


# Resources that a request does not name by their ids


def _address(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    if "AssociationId" in params:
        address = find_association(tx, caller, params["AssociationId"])
    else:
        address = requested_address(tx, caller, params)
    yield NamedResource("elastic-ip", address["AllocationId"])


def _association_of_acl(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    _, association = network_acls.find_association(tx, caller, params.get("AssociationId", ""))
    yield NamedResource("subnet", association["SubnetId"])


def _association_of_table(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    table, association = route_tables.find_association(tx, caller, params.get("AssociationId", ""))
    yield NamedResource("route-table", table["RouteTableId"])
    if "SubnetId" in association:
        yield NamedResource("subnet", association["SubnetId"])
    yield from _gateway(tx, caller, association)


def _gateway(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    given = str(params.get("GatewayId") or "")
    type_ = GATEWAYS.get(given.partition("-")[0])
    if type_ is not None:
        yield NamedResource(type_, given)


def _group(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    yield NamedResource("security-group", find_group(tx, params, caller)["GroupId"])


def _key(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    wanted = {member: params[member] for member in ("KeyName", "KeyPairId") if member in params}
    names = [each["KeyName"] for each in every(tx, caller, KEY_PAIR.name, **wanted)] if wanted else []
    yield NamedResource(KEY_PAIR.name, names[0] if names else params.get("KeyName", ANY))


def _tagged(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    for given in params.get("Resources") or ():
        prefix = str(given).partition("-")[0]
        if prefix == "key":
            yield from _key(tx, caller, {"KeyPairId": given})
        elif prefix in TYPES:
            yield NamedResource(TYPES[prefix].name, given)
        else:
            yield NamedResource({"i": "instance", "sgr": RULE}.get(prefix, ANY), given)


def _template(tx: Tx[Store], caller: Caller, params: Params) -> Iterable[NamedResource]:
    yield NamedResource("launch-template", find_template(tx, caller, params)["LaunchTemplateId"])


Resolver = Callable[[Tx[Store], Caller, Params], Iterable[NamedResource]]
RESOLVERS: Mapping[str, tuple[str, Resolver]] = {  # name → the type of its resources, and the function
    "@acl-association": ("subnet", _association_of_acl),
    "@address": ("elastic-ip", _address),
    "@gateway": ("internet-gateway", _gateway),
    "@group": ("security-group", _group),
    "@key": (KEY_PAIR.name, _key),
    "@route-association": ("route-table", _association_of_table),
    "@tagged": (ANY, _tagged),
    "@template": ("launch-template", _template),
}
