"""Subnets. A new subnet gets the default network ACL of its VPC."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, find, put
from corral.services.ec2 import cidr, network_acls, route_tables
from corral.services.ec2.errors import InvalidParameterCombination, UnsupportedOperation, in_use
from corral.services.ec2.filters import filtered
from corral.services.ec2.network_interfaces import interfaces
from corral.services.ec2.resources import EC2, NOT_BLOCKED, arn, every, existing, new_id, required
from corral.services.ec2.subnet_addresses import taken_addresses
from corral.services.ec2.zones import check_zone, zone_id
from corral.store import Store

FLAGS = ("AssignIpv6AddressOnCreation", "MapPublicIpOnLaunch", "MapCustomerOwnedIpOnLaunch", "EnableDns64")
HOSTNAME_OPTIONS = {  # member of ModifySubnetAttribute → member of PrivateDnsNameOptionsOnLaunch
    "PrivateDnsHostnameTypeOnLaunch": "HostnameType",
    "EnableResourceNameDnsARecordOnLaunch": "EnableResourceNameDnsARecord",
    "EnableResourceNameDnsAAAARecordOnLaunch": "EnableResourceNameDnsAAAARecord",
}
HOSTNAMES = {"HostnameType": "ip-name", "EnableResourceNameDnsARecord": False, "EnableResourceNameDnsAAAARecord": False}


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    if "OutpostArn" in params or params.get("Ipv6Native") or any(member.endswith("IpamPoolId") for member in params):
        raise UnsupportedOperation("Corral has no Outposts, no IPAM pools and no IPv6-only subnets: specify VpcId and CidrBlock.")
    vpc, zone = existing(tx, caller, "vpc", params["VpcId"]), check_zone(caller.region, params)
    siblings = every(tx, caller, "subnet", VpcId=vpc["VpcId"])
    blocks = [each["CidrBlock"] for each in vpc["CidrBlockAssociationSet"]]
    block = cidr.subnet_block(required(params, "CidrBlock"), blocks, [sibling["CidrBlock"] for sibling in siblings])
    subnet_id, is_default = new_id(tx, "subnet"), params.get("_default", False)
    return {
        "SubnetId": subnet_id,
        "SubnetArn": arn(caller, f"subnet/{subnet_id}"),
        "OwnerId": caller.account,
        "State": "available",
        "CidrBlock": str(block),
        "AvailableIpAddressCount": block.num_addresses - cidr.RESERVED_ADDRESSES,
        "AvailabilityZone": zone,
        "AvailabilityZoneId": zone_id(zone),
        "DefaultForAz": is_default,
        "MapPublicIpOnLaunch": is_default,
        "Ipv6CidrBlockAssociationSet": _ipv6(tx, params, vpc, siblings),
    }


def _ipv6(tx: Tx[Store], params: Params, vpc: Document, siblings: list[Document]) -> list[Document]:
    if "Ipv6CidrBlock" not in params:
        return []
    owned = [each["Ipv6CidrBlock"] for each in vpc["Ipv6CidrBlockAssociationSet"]]
    taken = [each["Ipv6CidrBlock"] for sibling in siblings for each in sibling["Ipv6CidrBlockAssociationSet"]]
    block = cidr.ipv6_subnet_block(params["Ipv6CidrBlock"], owned, taken)
    association = {"Ipv6CidrBlock": str(block), "Ipv6CidrBlockState": {"State": "associated"}, **cidr.FROM_AMAZON}
    return [{"AssociationId": new_id(tx, "subnet-cidr-assoc"), **association}]


def _check_delete(tx: Tx[Store], caller: Caller, subnet: Document) -> None:
    if any(interface["SubnetId"] == subnet["SubnetId"] for interface in interfaces(tx, caller)):
        raise in_use("subnet", subnet["SubnetId"])


def _deleted(tx: Tx[Store], caller: Caller, subnet: Document) -> None:
    route_tables.forget_subnet(tx, caller, subnet)
    network_acls.forget_subnet(tx, caller, subnet)


def _view(tx: Tx[Store], caller: Caller, subnet: Document) -> Document:
    """Return a subnet for responses: subtract the addresses that are taken from the number of available addresses."""
    used = len(taken_addresses(tx, caller, subnet))
    free = subnet["AvailableIpAddressCount"] - used
    return {**subnet, "AvailableIpAddressCount": free, "BlockPublicAccessStates": NOT_BLOCKED}


SUBNET = ResourceType(
    EC2,
    "subnet",
    id="SubnetId",
    one="Subnet",
    many="Subnets",
    new=_new,
    members=("VpcId",),
    defaults={**dict.fromkeys(FLAGS, False), "Ipv6Native": False, "PrivateDnsNameOptionsOnLaunch": HOSTNAMES},
    ids="SubnetIds",
    created=network_acls.associate_subnet,
    check_delete=_check_delete,
    deleted=_deleted,
    view=_view,
    selects=filtered(
        {
            "subnet-id": "SubnetId", "subnet-arn": "SubnetArn", "vpc-id": "VpcId", "state": "State", "cidr": "CidrBlock",
            "cidr-block": "CidrBlock", "cidrBlock": "CidrBlock", "availability-zone": "AvailabilityZone",
            "availabilityZone": "AvailabilityZone", "availability-zone-id": "AvailabilityZoneId",
            "availabilityZoneId": "AvailabilityZoneId", "available-ip-address-count": "AvailableIpAddressCount",
            "default-for-az": "DefaultForAz", "defaultForAz": "DefaultForAz", "map-public-ip-on-launch": "MapPublicIpOnLaunch",
            "ipv6-native": "Ipv6Native", "enable-dns64": "EnableDns64",
            "ipv6-cidr-block-association.ipv6-cidr-block": "Ipv6CidrBlockAssociationSet[].Ipv6CidrBlock",
        }
    ),
    create="CreateSubnet",
    list="DescribeSubnets",
    delete="DeleteSubnet",
)  # fmt: skip


def modify_subnet_attribute(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    subnet = find(tx, caller, SUBNET, params)
    options = {
        to: params[given].get("Value", False) if isinstance(params[given], dict) else params[given]
        for given, to in HOSTNAME_OPTIONS.items()
        if given in params
    }
    flags = {member: params[member].get("Value", False) for member in FLAGS if member in params}
    if len(options) + len(flags) != 1:
        raise InvalidParameterCombination("A request must modify exactly one attribute of a subnet.")
    hostnames = {**subnet["PrivateDnsNameOptionsOnLaunch"], **options}
    put(tx, caller, SUBNET, {**subnet, **flags, "PrivateDnsNameOptionsOnLaunch": hostnames})
    return {}
