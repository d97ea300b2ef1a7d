"""Functions that parse and check the CIDR blocks of VPCs, subnets, routes, and rules of security groups and network ACLs."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network

from corral.services.ec2 import errors

LARGEST_PREFIX, SMALLEST_PREFIX = 16, 28  # the prefix lengths of the largest and the smallest block of a VPC or subnet
FROM_AMAZON = {"Ipv6AddressAttribute": "public", "IpSource": "amazon"}  # members of each IPv6 block: only Amazon provides blocks
RESERVED_ADDRESSES = 5  # addresses that EC2 reserves in each subnet
NOT_A_BLOCK = "This is not a valid CIDR block."


def ipv4(text: str, member: str = "cidrBlock") -> IPv4Network:
    """Parse an IPv4 block. Clear its host bits, as EC2 does: 10.0.0.1/16 becomes 10.0.0.0/16."""
    try:
        address, slash, _ = text.partition("/")
        network = ip_network(text, strict=False)
        if slash and address and isinstance(network, IPv4Network):
            return network
    except ValueError:
        pass
    raise errors.invalid_value(text, member, NOT_A_BLOCK)


def ipv6(text: str, member: str = "ipv6CidrBlock") -> IPv6Network:
    try:
        network = ip_network(text, strict=False)
        if "/" in text and isinstance(network, IPv6Network):
            return network
    except ValueError:
        pass
    raise errors.invalid_value(text, member, NOT_A_BLOCK)


def vpc_block(text: str) -> IPv4Network:
    network = ipv4(text)
    if not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
        raise errors.InvalidVpcRange(f"The CIDR '{text}' is invalid.")
    return network


def subnet_block(text: str, vpc: list[str], siblings: list[str]) -> IPv4Network:
    """Parse the IPv4 block of a new subnet.

    The block must be inside a block of the VPC (`vpc`), and must not overlap with the block of another subnet (`siblings`).
    """
    network = ipv4(text)
    is_inside = any(network.subnet_of(IPv4Network(block)) for block in vpc)
    _check_subnet(
        text,
        is_valid=is_inside and LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX,
        overlaps=any(network.overlaps(IPv4Network(sibling)) for sibling in siblings),
    )
    return network


def ipv6_subnet_block(text: str, vpc: list[str], siblings: list[str]) -> IPv6Network:
    """Parse the IPv6 block of a new subnet.

    The block must be inside a block of the VPC (`vpc`), and must not overlap with the block of another subnet (`siblings`).
    """
    network = ipv6(text)
    _check_subnet(
        text,
        is_valid=any(network.subnet_of(IPv6Network(block)) for block in vpc),
        overlaps=any(network.overlaps(IPv6Network(sibling)) for sibling in siblings),
    )
    return network


def _check_subnet(text: str, *, is_valid: bool, overlaps: bool) -> None:
    if not is_valid:
        raise errors.InvalidSubnetRange(f"The CIDR '{text}' is invalid.")
    if overlaps:
        raise errors.InvalidSubnetConflict(f"The CIDR '{text}' conflicts with another subnet")


def destination(params: dict[str, str]) -> tuple[str, str]:
    """Return the request member that names the destination of a route, and the destination."""
    if sum(name in params for name in ("DestinationCidrBlock", "DestinationIpv6CidrBlock", "DestinationPrefixListId")) != 1:
        raise errors.InvalidParameterValue(
            "A route must have exactly one of destinationCidrBlock, destinationIpv6CidrBlock or destinationPrefixListId."
        )
    if "DestinationCidrBlock" in params:
        return "DestinationCidrBlock", str(ipv4(params["DestinationCidrBlock"], "destinationCidrBlock"))
    if "DestinationIpv6CidrBlock" in params:
        return "DestinationIpv6CidrBlock", str(ipv6(params["DestinationIpv6CidrBlock"], "destinationIpv6CidrBlock"))
    return "DestinationPrefixListId", params["DestinationPrefixListId"]
