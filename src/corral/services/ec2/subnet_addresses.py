"""The private addresses of a subnet: which are taken, which can be requested, and which are free.

AWS reserves the first four addresses of a subnet and the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from ipaddress import IPv4Address, IPv4Network

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document
from corral.services.ec2.cidr import RESERVED_ADDRESSES
from corral.services.ec2.errors import InsufficientFreeAddressesInSubnet, InvalidIPAddressInUse, InvalidParameterValue
from corral.services.ec2.resources import every
from corral.store import Store

FIRST_HOST = RESERVED_ADDRESSES - 1  # the index of the first address that is not reserved: the last address is reserved, too


def taken_addresses(tx: Tx[Store], caller: Caller, subnet: Document) -> Set[str]:
    """Return the addresses of the instances and NAT gateways in a subnet."""
    taken: Set[str] = tx.store.instances.addresses(subnet["SubnetId"])
    if gateways := every(tx, caller, "natgateway", SubnetId=subnet["SubnetId"]):
        taken = taken | {each["PrivateIp"] for nat in gateways for each in nat["NatGatewayAddresses"]}
    return taken


def check_address(subnet: Document, taken: Set[str], address: str) -> None:
    """Raise an error unless a caller can request this address."""
    block, name = IPv4Network(subnet["CidrBlock"]), f"subnet {subnet['SubnetId']} ({subnet['CidrBlock']})"
    try:
        at = int(IPv4Address(address)) - int(block.network_address)
    except ValueError:
        raise InvalidParameterValue(f"Address {address} is not a valid IPv4 address.") from None
    if not 0 <= at < block.num_addresses:
        raise InvalidParameterValue(f"Address {address} does not fall within the address range of {name}.")
    if not FIRST_HOST <= at < block.num_addresses - 1:
        raise InvalidParameterValue(f"Address {address} is in the reserved address range of {name}.")
    if address in taken:
        raise InvalidIPAddressInUse(f"Address {address} is in use.")


def free_address(subnet: Document, taken: Set[str], start: int = 0) -> str:
    """Return the first free address after the first `start` ones. After the last address, the search continues with the first."""
    found = next((address for address in _hosts(subnet, start) if address not in taken), None)
    if found is None:
        raise InsufficientFreeAddressesInSubnet(f"The subnet {subnet['SubnetId']} has no free addresses: use another subnet.")
    return found


def _hosts(subnet: Document, start: int) -> Iterator[str]:
    block = IPv4Network(subnet["CidrBlock"])
    count = block.num_addresses - RESERVED_ADDRESSES
    return (str(block[FIRST_HOST + (start + at) % count]) for at in range(count))
