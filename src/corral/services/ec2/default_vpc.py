"""The default network of a region: DHCP options, a VPC with one subnet per zone, an internet gateway and a route to it.

The first EC2 request in a region creates the network, unless the request is a long read (`HEAVY` in `handlers.py`). The ids of the
network depend only on the account and the region, so they are the same in a new data folder. If a caller deletes the default VPC,
only CreateDefaultVpc creates it again.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from random import Random
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import root_user
from corral.operations import stored_resources
from corral.operations.stored_resources import Document, Params
from corral.services.ec2 import errors
from corral.services.ec2.dhcp_options import DHCP_OPTIONS
from corral.services.ec2.gateways import INTERNET_GATEWAY, attach_internet_gateway
from corral.services.ec2.resources import every
from corral.services.ec2.route_tables import create_route
from corral.services.ec2.subnets import SUBNET
from corral.services.ec2.vpcs import VPC
from corral.services.ec2.zones import check_zone, zone_names
from corral.store import Store

CIDR = "172.31.0.0/16"
SUBNET_PREFIX = 20
MARK = ("ec2", "default-network")  # a region has this row if its default network was created once


def ensure(tx: Tx[Store], caller: Caller) -> None:
    """Create the default network of a region, unless it was created before."""
    if tx.store.stored.get(*MARK, caller.region, "") is not None:
        return
    tx.store.stored.add(*MARK, caller.region, "", {}, tx.now_s)
    own = replace(tx, ids=SeededIds(Random(f"{caller.account}/{caller.region}")))
    caller = Caller(caller.account, caller.region, root_user(caller.account))
    options = [
        {"Key": "domain-name", "Values": [domain(caller.region)]},
        {"Key": "domain-name-servers", "Values": ["AmazonProvidedDNS"]},
    ]
    shared = stored_resources.create(own, caller, DHCP_OPTIONS, {"DhcpConfigurations": options})
    stored_resources.put(own, caller, DHCP_OPTIONS, {**shared, "_default": True})
    _create(own, caller)


def _create(tx: Tx[Store], caller: Caller) -> Document:
    vpc = stored_resources.create(tx, caller, VPC, {"CidrBlock": CIDR, "_default": True})
    attributes = {**vpc["_attributes"], "EnableDnsHostnames": True}
    stored_resources.put(tx, caller, VPC, {**vpc, "_attributes": attributes})
    for zone, block in zip(zone_names(caller.region), IPv4Network(CIDR).subnets(new_prefix=SUBNET_PREFIX)):
        wanted = {"VpcId": vpc["VpcId"], "CidrBlock": str(block), "AvailabilityZone": zone, "_default": True}
        stored_resources.create(tx, caller, SUBNET, wanted)
    gateway = stored_resources.create(tx, caller, INTERNET_GATEWAY, {})["InternetGatewayId"]
    attach_internet_gateway(tx, {"InternetGatewayId": gateway, "VpcId": vpc["VpcId"]}, caller)
    (table,) = every(tx, caller, "route-table", VpcId=vpc["VpcId"])
    route = {"RouteTableId": table["RouteTableId"], "DestinationCidrBlock": "0.0.0.0/0", "GatewayId": gateway}
    create_route(tx, route, caller)
    return vpc


def domain(region: str) -> str:
    return "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"


def find_default(tx: Tx[Store], caller: Caller) -> Document | None:
    return next((vpc for vpc in every(tx, caller, "vpc") if vpc["IsDefault"]), None)


def create_default_vpc(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if find_default(tx, caller) is not None:
        raise errors.DefaultVpcAlreadyExists("A Default VPC already exists for this account in this region.")
    return {"Vpc": stored_resources.response_view(tx, caller, VPC, _create(tx, caller))}


def create_default_subnet(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    vpc, zone = find_default(tx, caller), check_zone(caller.region, params)
    if vpc is None:
        raise errors.DefaultVpcDoesNotExist("No default VPC exists for this account in this region.")
    siblings = every(tx, caller, "subnet", VpcId=vpc["VpcId"])
    for sibling in siblings:
        if sibling["DefaultForAz"] and sibling["AvailabilityZone"] == zone:
            raise errors.DefaultSubnetAlreadyExists(f"'{sibling['SubnetId']}' is already the default subnet in {zone}.")
    taken = [IPv4Network(sibling["CidrBlock"]) for sibling in siblings]
    blocks = IPv4Network(vpc["CidrBlock"]).subnets(new_prefix=SUBNET_PREFIX)
    block = next((block for block in blocks if not any(block.overlaps(other) for other in taken)), None)
    if block is None:
        raise errors.InsufficientCidrBlocks("The default VPC has no free block for a default subnet.")
    wanted = {"VpcId": vpc["VpcId"], "CidrBlock": str(block), "AvailabilityZone": zone, "_default": True}
    return {"Subnet": stored_resources.response_view(tx, caller, SUBNET, stored_resources.create(tx, caller, SUBNET, wanted))}


def describe_account_attributes(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    vpc = find_default(tx, caller)
    values = {
        "supported-platforms": "VPC",
        "default-vpc": vpc["VpcId"] if vpc else "none",
        "max-instances": "20",
        "vpc-max-security-groups-per-interface": "5",
        "max-elastic-ips": "5",
        "vpc-max-elastic-ips": "5",
    }
    wanted = params.get("AttributeNames") or values
    return {
        "AccountAttributes": [
            {"AttributeName": name, "AttributeValues": [{"AttributeValue": values[name]}]} for name in wanted if name in values
        ]
    }
