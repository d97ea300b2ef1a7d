"""EC2's network resources and key pairs in CloudFormation templates.

`TEMPLATE_TYPES` has these types, and the types of instances, launch templates and security groups, which other modules define.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, put
from corral.services.ec2 import (
    default_vpc,
    dhcp_options,
    elastic_ips,
    gateways,
    key_pairs,
    network_acls,
    route_tables,
    vpc_endpoints,
)
from corral.services.ec2.cidr import destination
from corral.services.ec2.cloudformation_instances import INSTANCE_TYPES
from corral.services.ec2.cloudformation_security_groups import SECURITY_GROUP_TYPES
from corral.services.ec2.errors import InvalidAssociationNotFound
from corral.services.ec2.network_acls import association_of, default_acl
from corral.services.ec2.resources import NOT_BLOCKED, existing
from corral.services.ec2.security_groups import DEFAULT, named_group
from corral.services.ec2.subnets import FLAGS, SUBNET
from corral.services.ec2.vpcs import VPC
from corral.services.ssm.parameters import delete_parameter, put_parameter
from corral.store import Store
from corral.template_types.api_calls import request_of
from corral.template_types.api_types import api_type, renamed
from corral.template_types.resource_types import (
    Delete,
    Properties,
    TemplateType,
    forgiving,
    never_updated,
    stored_type,
)

MISSING = ("NotFound", "NotAttached")  # the ends of the error codes of operations on a resource that does not exist
DHCP_KEYS = {  # property → key of the DHCP option
    "DomainName": "domain-name",
    "DomainNameServers": "domain-name-servers",
    "NtpServers": "ntp-servers",
    "NetbiosNameServers": "netbios-name-servers",
    "NetbiosNodeType": "netbios-node-type",
    "Ipv6AddressPreferredLeaseTime": "ipv6-address-preferred-lease-time",
}


def tagged(type_: str, properties: Properties) -> Params:
    """Convert properties to a request. Tags become TagSpecifications."""
    request = {name: value for name, value in properties.items() if name != "Tags"}
    tags = properties.get("Tags")
    return {**request, "TagSpecifications": [{"ResourceType": type_, "Tags": tags}]} if tags else request


def _set_vpc_attributes(tx: Tx[Store], caller: Caller, vpc: Document, old: Properties, new: Properties) -> None:
    defaults = {"EnableDnsSupport": True, "EnableDnsHostnames": False}
    given = {name: new.get(name, default) for name, default in defaults.items() if name in new or name in old}
    put(tx, caller, VPC, {**vpc, "_attributes": {**vpc["_attributes"], **given}})


def _attach(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    """Attach an internet gateway.

    If the properties name a VPN gateway (VpnGatewayId), attach nothing: a stack only stores a resource of the type
    AWS::EC2::VPNGateway, so the id of this resource names no gateway.
    """
    if "InternetGatewayId" not in properties:
        return f"VGW|{properties['VpcId']}"
    gateways.attach_internet_gateway(tx, dict(properties), caller)
    return f"IGW|{properties['VpcId']}"


def _attach_another(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    if old.get("InternetGatewayId") != new.get("InternetGatewayId"):
        _detach(tx, caller, identity, old)
        _attach(tx, caller, new)


def _detach(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if "InternetGatewayId" in properties:
        gateways.detach_internet_gateway(tx, dict(properties), caller)


def _association_id(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    route_tables.find_association(tx, caller, identity)
    return {"Id": identity}


def _associate_instance(tx: Tx[Store], caller: Caller, address: Document, old: Properties, new: Properties) -> None:
    """Associate an address with the instance in the new properties. If these name no instance, disassociate the address."""
    if "InstanceId" in new:
        target = {"AllocationId": address["AllocationId"], "InstanceId": new["InstanceId"], "AllowReassociation": True}
        elastic_ips.associate_address(tx, target, caller)
    elif "InstanceId" in old:
        elastic_ips.disassociate_address(tx, {"AllocationId": address["AllocationId"]}, caller)


def _free_instance(tx: Tx[Store], caller: Caller, address: Document, properties: Properties) -> None:
    if "InstanceId" in properties and "AssociationId" in address:
        elastic_ips.disassociate_address(tx, {"AllocationId": address["AllocationId"]}, caller)


def _address_association(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {"Id": elastic_ips.find_association(tx, caller, identity)["AssociationId"]}


def _endpoint_request(properties: Properties) -> Params:
    request = tagged("vpc-endpoint", properties)
    if isinstance(request.get("PolicyDocument"), Mapping):
        request["PolicyDocument"] = orjson.dumps(request["PolicyDocument"]).decode()
    return request


def _modify_endpoint(tx: Tx[Store], caller: Caller, endpoint: Document, old: Properties, new: Properties) -> None:
    if not old:
        return
    request = _endpoint_request(new)
    changes: Params = {"VpcEndpointId": endpoint["VpcEndpointId"]}
    for member in ("RouteTableIds", "SubnetIds", "SecurityGroupIds"):
        changes[f"Add{member}"] = [each for each in new.get(member, ()) if each not in old.get(member, ())]
        changes[f"Remove{member}"] = [each for each in old.get(member, ()) if each not in new.get(member, ())]
    for member in ("PrivateDnsEnabled", "IpAddressType", "DnsOptions", "PolicyDocument"):
        if member in request:
            changes[member] = request[member]
    if "PolicyDocument" in old and "PolicyDocument" not in new:
        changes["ResetPolicy"] = True
    vpc_endpoints.modify_vpc_endpoint(tx, changes, caller)


def _create_key_pair(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    """Create or import a key pair. As on AWS, a generated private key is stored in Parameter Store."""
    request = tagged("key-pair", properties)
    if "PublicKeyMaterial" in properties:
        material = properties["PublicKeyMaterial"].encode()
        key_pairs.import_key_pair(tx, {**request, "PublicKeyMaterial": material}, caller)
    else:
        made = key_pairs.create_key_pair(tx, request, caller)
        secret = {"Name": _key_parameter(made["KeyPairId"]), "Value": made["KeyMaterial"], "Type": "SecureString"}
        put_parameter(tx, secret, caller)
    return str(properties["KeyName"])


def _key_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    document = key_pairs.named_key(tx, caller, identity)
    return {name: document[name] for name in ("KeyPairId", "KeyFingerprint")}


def _delete_key_pair(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    key_id = key_pairs.named_key(tx, caller, identity)["KeyPairId"]
    key_pairs.delete_key_pair(tx, {"KeyPairId": key_id}, caller)
    if "PublicKeyMaterial" not in properties:
        delete_parameter(tx, {"Name": _key_parameter(key_id)}, caller)


def _key_parameter(key_id: str) -> str:
    return f"/ec2/keypair/{key_id}"


def _entry_request(caller: Caller, properties: Properties) -> Params:
    return {"Egress": False, **renamed(properties, {"Icmp": "IcmpTypeCode"})}


def _entry_id(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    way = "egress" if str(properties.get("Egress", False)).lower() == "true" else "ingress"
    return f"{properties['NetworkAclId']}|{int(properties['RuleNumber'])}|{way}"


def _associate_acl(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    _, association = association_of(tx, caller, existing(tx, caller, "subnet", properties["SubnetId"]))
    request = {"AssociationId": association["NetworkAclAssociationId"], "NetworkAclId": properties["NetworkAclId"]}
    return str(network_acls.replace_network_acl_association(tx, request, caller)["NewAssociationId"])


def _acl_association(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {"AssociationId": network_acls.find_association(tx, caller, identity)[1]["NetworkAclAssociationId"]}


def _return_acl(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    """Give a subnet the default ACL of its VPC again.

    If a stack has replaced the association, the new association has already ended the old one. So a missing association is no
    error.
    """
    with suppress(InvalidAssociationNotFound):
        network_acls.return_to_default(tx, caller, identity)


def _dhcp_request(properties: Properties) -> Params:
    given = [(key, properties[name]) for name, key in DHCP_KEYS.items() if name in properties]
    values = [(key, list(map(str, value)) if isinstance(value, list) else [str(value)]) for key, value in given]
    tags = tagged("dhcp-options", {"Tags": properties.get("Tags")})
    return {**tags, "DhcpConfigurations": [{"Key": key, "Values": listed} for key, listed in values]}


def _associate_dhcp(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    dhcp_options.associate_dhcp_options(tx, dict(properties), caller)
    return f"{properties['DhcpOptionsId']}|{properties['VpcId']}"


def _disassociate_dhcp(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    """Make a VPC use no DHCP options, unless it now uses other options than those of this association."""
    options_id, _, vpc_id = identity.partition("|")
    if existing(tx, caller, "vpc", vpc_id)["DhcpOptionsId"] == options_id:
        dhcp_options.associate_dhcp_options(tx, {"DhcpOptionsId": dhcp_options.DEFAULT, "VpcId": vpc_id}, caller)


def _stored(name: str, type_: ResourceType, **more: Any) -> TemplateType:
    return stored_type(name, type_, request=lambda properties: tagged(type_.name, properties), **more)


def _associated(name: str, **more: Any) -> TemplateType:
    return api_type(name, "ec2", missing=MISSING, checks_permissions=False, **more)


def _gone(delete: Delete) -> Delete:
    return forgiving(delete, *MISSING)


def _in_default_network(type_: TemplateType) -> TemplateType:
    """Return a template type whose `create` first creates the default network of the region, unless it was created before."""

    def create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
        default_vpc.ensure(tx, caller)
        return type_.create(tx, caller, properties)

    return replace(type_, create=create)


_NETWORK_TYPES = (
    _stored(
        "AWS::EC2::VPC",
        VPC,
        updates={"InstanceTenancy": "InstanceTenancy"},
        applies=("EnableDnsSupport", "EnableDnsHostnames"),
        apply=_set_vpc_attributes,
        attributes={
            "VpcId": "VpcId",
            "CidrBlock": "CidrBlock",
            "CidrBlockAssociations": lambda tx, caller, vpc: [each["AssociationId"] for each in vpc["CidrBlockAssociationSet"]],
            "Ipv6CidrBlocks": lambda tx, caller, vpc: [each["Ipv6CidrBlock"] for each in vpc["Ipv6CidrBlockAssociationSet"]],
            "DefaultNetworkAcl": lambda tx, caller, vpc: default_acl(tx, caller, vpc["VpcId"])["NetworkAclId"],
            "DefaultSecurityGroup": lambda tx, caller, vpc: named_group(tx, caller, DEFAULT, vpc["VpcId"])["GroupId"],
        },
    ),
    _stored(
        "AWS::EC2::Subnet",
        SUBNET,
        updates={name: name for name in (*FLAGS, "PrivateDnsNameOptionsOnLaunch")},
        attributes={
            "SubnetId": "SubnetId",
            "VpcId": "VpcId",
            "CidrBlock": "CidrBlock",
            "AvailabilityZone": "AvailabilityZone",
            "AvailabilityZoneId": "AvailabilityZoneId",
            "BlockPublicAccessStates": lambda tx, caller, subnet: NOT_BLOCKED,
            "Ipv6CidrBlocks": lambda tx, caller, subnet: [each["Ipv6CidrBlock"] for each in subnet["Ipv6CidrBlockAssociationSet"]],
            "NetworkAclAssociationId": lambda tx, caller, subnet: association_of(tx, caller, subnet)[1]["NetworkAclAssociationId"],
        },
    ),
    _stored(
        "AWS::EC2::InternetGateway",
        gateways.INTERNET_GATEWAY,
        attributes={"InternetGatewayId": "InternetGatewayId"},
    ),
    TemplateType(
        "AWS::EC2::VPCGatewayAttachment",
        _attach,
        lambda tx, caller, identity: {"AttachmentType": identity[:3]},
        _attach_another,
        _gone(_detach),
    ),
    _stored(
        "AWS::EC2::RouteTable",
        route_tables.ROUTE_TABLE,
        attributes={"RouteTableId": "RouteTableId"},
    ),
    _associated(
        "AWS::EC2::Route",
        identity=lambda tx, caller, properties: f"{properties['RouteTableId']}|{destination(dict(properties))[1]}",
        target=lambda identity, properties: request_of("ec2", "DeleteRoute", properties),
        create="CreateRoute",
        update="ReplaceRoute",
        delete="DeleteRoute",
        attributes=lambda tx, caller, identity: {"CidrBlock": identity.partition("|")[2]},
    ),
    _associated(
        "AWS::EC2::SubnetRouteTableAssociation",
        identity_in="AssociationId",
        target="AssociationId",
        create="AssociateRouteTable",
        delete="DisassociateRouteTable",
        attributes=_association_id,
    ),
    _stored(
        "AWS::EC2::EIP",
        elastic_ips.ELASTIC_IP,
        updates={"Domain": "Domain", "PublicIpv4Pool": "PublicIpv4Pool"},
        applies=("InstanceId",),
        apply=_associate_instance,
        before_delete=_free_instance,
        physical_id="PublicIp",
        attributes={"AllocationId": "AllocationId", "PublicIp": "PublicIp"},
    ),
    _associated(  # if a stack replaces an association, the new association ends the old one
        "AWS::EC2::EIPAssociation",
        identity_in="AssociationId",
        target="AssociationId",
        create="AssociateAddress",
        request=lambda caller, properties: renamed(properties, {"EIP": "PublicIp"}),
        delete="DisassociateAddress",
        attributes=_address_association,
    ),
    _stored(
        "AWS::EC2::NatGateway",
        gateways.NAT_GATEWAY,
        updates={"MaxDrainDurationSeconds": "_max_drain_duration_s"},
        attributes={
            "NatGatewayId": "NatGatewayId",
            "EniId": lambda tx, caller, nat: nat["NatGatewayAddresses"][0]["NetworkInterfaceId"],
            "AutoProvisionZones": "AutoProvisionZones",
            "AutoScalingIps": "AutoScalingIps",
            "RouteTableId": "RouteTableId",
        },
    ),
    stored_type(
        "AWS::EC2::VPCEndpoint",
        vpc_endpoints.VPC_ENDPOINT,
        request=_endpoint_request,
        applies=(
            "RouteTableIds",
            "SubnetIds",
            "SecurityGroupIds",
            "PrivateDnsEnabled",
            "IpAddressType",
            "DnsOptions",
            "PolicyDocument",
        ),
        apply=_modify_endpoint,
        attributes={
            "Id": "VpcEndpointId",
            "CreationTimestamp": "CreationTimestamp",
            "NetworkInterfaceIds": "NetworkInterfaceIds",
            "DnsEntries": lambda tx, caller, endpoint: [each["DnsName"] for each in endpoint["DnsEntries"]],
        },
    ),
    TemplateType("AWS::EC2::KeyPair", _create_key_pair, _key_attributes, never_updated, _gone(_delete_key_pair)),
    _stored(
        "AWS::EC2::NetworkAcl",
        network_acls.NETWORK_ACL,
        attributes={"Id": "NetworkAclId"},
    ),
    _associated(
        "AWS::EC2::NetworkAclEntry",
        identity=_entry_id,
        target=lambda identity, properties: {"Egress": False, **request_of("ec2", "DeleteNetworkAclEntry", properties)},
        create="CreateNetworkAclEntry",
        request=_entry_request,
        update="ReplaceNetworkAclEntry",
        delete="DeleteNetworkAclEntry",
        attributes=lambda tx, caller, identity: {"Id": identity},
    ),
    TemplateType("AWS::EC2::SubnetNetworkAclAssociation", _associate_acl, _acl_association, never_updated, _gone(_return_acl)),
    stored_type(
        "AWS::EC2::DHCPOptions",
        dhcp_options.DHCP_OPTIONS,
        request=_dhcp_request,
        attributes={"DhcpOptionsId": "DhcpOptionsId"},
    ),
    TemplateType(
        "AWS::EC2::VPCDHCPOptionsAssociation",
        _associate_dhcp,
        lambda tx, caller, identity: {},
        never_updated,
        _gone(_disassociate_dhcp),
    ),
    *SECURITY_GROUP_TYPES,
)
_STORED_ONLY = (replace(type_, is_stored_only=True) for type_ in _NETWORK_TYPES)
TEMPLATE_TYPES = tuple(map(_in_default_network, (*_STORED_ONLY, *INSTANCE_TYPES)))
