"""CIDR blocks of VPCs, subnets, routes and rules."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

from corral.errors import api_error
from corral.services.ec2.style import InvalidParameterValue

InvalidSubnetConflict = api_error("InvalidSubnet.Conflict")
InvalidSubnetRange = api_error("InvalidSubnet.Range")
InvalidVpcRange = api_error("InvalidVpc.Range")

LARGEST_PREFIX, SMALLEST_PREFIX = 16, 28  # of a VPC and of a subnet
RESERVED_ADDRESSES = 5  # of each subnet


def ipv4(text: str, member: str = "cidrBlock") -> IPv4Network:
    """An IPv4 block; host bits are cleared, as EC2 does."""
    try:
        address, slash, _ = text.partition("/")
        network = ip_network(text, strict=False)
        if slash and address and isinstance(network, IPv4Network):
            return network
    except ValueError:
        pass
    raise InvalidParameterValue(f"Value ({text}) for parameter {member} is invalid. This is not a valid CIDR block.")


def ipv6(text: str, member: str = "ipv6CidrBlock") -> IPv6Network:
    try:
        network = ip_network(text, strict=False)
        if "/" in text and isinstance(network, IPv6Network):
            return network
    except ValueError:
        pass
    raise InvalidParameterValue(f"Value ({text}) for parameter {member} is invalid. This is not a valid CIDR block.")


def vpc_block(text: str) -> IPv4Network:
    network = ipv4(text)
    if not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
        raise InvalidVpcRange(f"The CIDR '{text}' is invalid.")
    return network


def subnet_block(text: str, vpc: list[str], siblings: list[str]) -> IPv4Network:
    """The block of a new subnet: inside the VPC, and without overlap with the subnets that exist."""
    network = ipv4(text)
    inside = any(network.subnet_of(IPv4Network(block)) for block in vpc)
    if not inside or not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
        raise InvalidSubnetRange(f"The CIDR '{text}' is invalid.")
    if any(network.overlaps(IPv4Network(sibling)) for sibling in siblings):
        raise InvalidSubnetConflict(f"The CIDR '{text}' conflicts with another subnet")
    return network


def destination(params: dict[str, str]) -> tuple[str, str]:
    """The member and the value that identify the destination of a route."""
    if "DestinationCidrBlock" in params:
        return "DestinationCidrBlock", str(ipv4(params["DestinationCidrBlock"], "destinationCidrBlock"))
    if "DestinationIpv6CidrBlock" in params:
        return "DestinationIpv6CidrBlock", str(ipv6(params["DestinationIpv6CidrBlock"], "destinationIpv6CidrBlock"))
    if "DestinationPrefixListId" in params:
        return "DestinationPrefixListId", params["DestinationPrefixListId"]
    raise InvalidParameterValue(
        "A route must have exactly one of destinationCidrBlock, destinationIpv6CidrBlock or destinationPrefixListId."
    )
