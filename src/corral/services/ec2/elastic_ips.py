"""Elastic IP addresses. They are in 198.18.0.0/15, a block that the internet does not route, so no traffic reaches them."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, delete, find, list_resources, put
from corral.services.ec2 import errors
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, every, new_id
from corral.store import Store

BLOCK = IPv4Network("198.18.0.0/15")
# The members that name what an address is associated with (TARGET), and all members that an association adds (ASSOCIATION).
TARGET = ("InstanceId", "NetworkInterfaceId", "PrivateIpAddress")
ASSOCIATION = ("AssociationId", "NetworkInterfaceOwnerId", *TARGET)


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    allocation_id = new_id(tx, "eipalloc")
    taken = {address["PublicIp"] for address in every(tx, caller, "elastic-ip")}
    if len(taken) >= BLOCK.num_addresses // 2:
        raise errors.AddressLimitExceeded("The maximum number of addresses has been reached.")
    at = int(allocation_id[-8:], 16) % BLOCK.num_addresses
    while str(BLOCK[at]) in taken:
        at = (at + 1) % BLOCK.num_addresses
    return {
        "AllocationId": allocation_id,
        "PublicIp": str(BLOCK[at]),
        "NetworkBorderGroup": params.get("NetworkBorderGroup", caller.region),
    }


def _check_delete(tx: Tx[Store], caller: Caller, address: Document) -> None:
    if "AssociationId" in address:
        raise errors.InvalidIPAddressInUse(f"Address {address['PublicIp']} is in use: disassociate it first.")


ELASTIC_IP = ResourceType(
    EC2,
    "elastic-ip",
    id="AllocationId",
    one="Address",
    many="Addresses",
    new=_new,
    defaults={"Domain": "vpc", "PublicIpv4Pool": "amazon"},
    ids="AllocationIds",
    check_delete=_check_delete,
    selects=filtered(
        {
            "allocation-id": "AllocationId", "association-id": "AssociationId", "domain": "Domain", "instance-id": "InstanceId",
            "network-border-group": "NetworkBorderGroup", "network-interface-id": "NetworkInterfaceId",
            "private-ip-address": "PrivateIpAddress", "public-ip": "PublicIp",
        }
    ),
    create="AllocateAddress",
    create_response=lambda address: {
        member: address[member] for member in ("AllocationId", "PublicIp", "Domain", "PublicIpv4Pool", "NetworkBorderGroup")
    },
)  # fmt: skip


def describe_addresses(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if given := params.get("PublicIps"):
        ids = [_by_public_ip(tx, caller, public_ip)["AllocationId"] for public_ip in given]
        params = {**params, "AllocationIds": [*params.get("AllocationIds", ()), *ids]}
    return list_resources(tx, params, caller, ELASTIC_IP)


def describe_addresses_attribute(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe addresses without their DNS names, because an address has none."""
    reply = list_resources(tx, params, caller, ELASTIC_IP)
    attributes = [{member: address[member] for member in ("PublicIp", "AllocationId")} for address in reply.pop("Addresses")]
    return {"Addresses": attributes, **reply}


def release_address(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    delete(tx, caller, ELASTIC_IP, requested_address(tx, caller, params))
    return {}


def associate_address(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Store the association with an instance or a network interface. Corral does not check whether the target exists."""
    address = requested_address(tx, caller, params)
    target: Document = {member: params[member] for member in TARGET if member in params}
    if not target.keys() & {"InstanceId", "NetworkInterfaceId"}:
        raise errors.MissingParameter("Either instance ID or network interface id must be specified")
    if "AssociationId" in address:
        if all(address.get(member) == value for member, value in target.items()):
            return {"AssociationId": address["AssociationId"]}
        if not params.get("AllowReassociation", True):
            raise _already_associated(address)
    association_id = new_id(tx, "eipassoc")
    put(tx, caller, ELASTIC_IP, {**_without_association(address), "AssociationId": association_id, **target})
    return {"AssociationId": association_id}


def disassociate_address(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if "AssociationId" in params:
        address = find_association(tx, caller, params["AssociationId"])
    else:
        address = requested_address(tx, caller, params)
    put(tx, caller, ELASTIC_IP, _without_association(address))
    return {}


def find_association(tx: Tx[Store], caller: Caller, association_id: str) -> Document:
    for address in every(tx, caller, "elastic-ip", AssociationId=association_id):
        return address
    raise errors.not_found("association", association_id)


def associate(tx: Tx[Store], caller: Caller, allocation_id: str, interface: Document) -> Document:
    """Associate an address with the network interface of a NAT gateway. Return what the gateway stores about the address."""
    address = find(tx, caller, ELASTIC_IP, {"AllocationId": allocation_id})
    if "AssociationId" in address:
        raise _already_associated(address)
    association_id = new_id(tx, "eipassoc")
    target = {"NetworkInterfaceId": interface["NetworkInterfaceId"], "PrivateIpAddress": interface["PrivateIp"]}
    put(tx, caller, ELASTIC_IP, {**address, "AssociationId": association_id, "NetworkInterfaceOwnerId": caller.account, **target})
    return {"AllocationId": allocation_id, "PublicIp": address["PublicIp"], "AssociationId": association_id}


def disassociate(tx: Tx[Store], caller: Caller, interfaces: list[Document]) -> None:
    """Disassociate the addresses of a deleted NAT gateway."""
    for interface in interfaces:
        if "AllocationId" in interface:
            put(tx, caller, ELASTIC_IP, _without_association(find(tx, caller, ELASTIC_IP, interface)))


def requested_address(tx: Tx[Store], caller: Caller, params: Params) -> Document:
    if "AllocationId" in params and "PublicIp" in params:
        raise errors.InvalidParameterCombination("You may specify public IP or allocation id, but not both in the same call")
    if "PublicIp" in params:
        return _by_public_ip(tx, caller, params["PublicIp"])
    if "AllocationId" in params:
        return find(tx, caller, ELASTIC_IP, params)
    raise errors.MissingParameter("Either public IP or allocation id must be specified")


def _by_public_ip(tx: Tx[Store], caller: Caller, public_ip: str) -> Document:
    for address in every(tx, caller, "elastic-ip", PublicIp=public_ip):
        return address
    raise errors.InvalidAddressNotFound(f"Address '{public_ip}' not found.")


def _without_association(address: Document) -> Document:
    return {member: value for member, value in address.items() if member not in ASSOCIATION}


def _already_associated(address: Document) -> Exception:
    return errors.ResourceAlreadyAssociated(
        f"resource {address['AllocationId']} is already associated with associate-id {address['AssociationId']}"
    )
