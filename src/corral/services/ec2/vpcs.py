"""VPCs. A new VPC gets a main route table, a default security group and a default network ACL. They are deleted with the VPC."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations import stored_resources
from corral.operations.stored_resources import Document, Params, ResourceType, find, put
from corral.services.ec2 import cidr
from corral.services.ec2.errors import InvalidParameterCombination, UnsupportedOperation, in_use
from corral.services.ec2.filters import filtered
from corral.services.ec2.network_acls import NETWORK_ACL
from corral.services.ec2.resources import EC2, NOT_BLOCKED, every, new_id, required
from corral.services.ec2.route_tables import ROUTE_TABLE
from corral.services.ec2.security_groups import DEFAULT, SECURITY_GROUP
from corral.store import Store

# Attribute name in DescribeVpcAttribute → member of requests and responses, and its value in a new VPC.
ATTRIBUTES = {
    "enableDnsSupport": ("EnableDnsSupport", True),
    "enableDnsHostnames": ("EnableDnsHostnames", False),
    "enableNetworkAddressUsageMetrics": ("EnableNetworkAddressUsageMetrics", False),
}


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    if any(member.endswith("IpamPoolId") for member in params):
        raise UnsupportedOperation("Corral has no IPAM pools: specify the CidrBlock.")
    block = str(cidr.vpc_block(required(params, "CidrBlock")))
    vpc_id = new_id(tx, "vpc")
    return {
        "VpcId": vpc_id,
        "CidrBlock": block,
        "State": "available",
        "OwnerId": caller.account,
        "IsDefault": params.get("_default", False),
        "DhcpOptionsId": _shared_dhcp_options(tx, caller),
        "CidrBlockAssociationSet": [
            {"AssociationId": new_id(tx, "vpc-cidr-assoc"), "CidrBlock": block, "CidrBlockState": {"State": "associated"}}
        ],
        "Ipv6CidrBlockAssociationSet": [_ipv6_block(tx, caller)] if params.get("AmazonProvidedIpv6CidrBlock") else [],
        "_attributes": dict(ATTRIBUTES.values()),
    }


def _ipv6_block(tx: Tx[Store], caller: Caller) -> Document:
    digits = tx.ids.hex32()
    return {
        "AssociationId": new_id(tx, "vpc-cidr-assoc"),
        "Ipv6CidrBlock": str(cidr.ipv6(f"2600:1f00:{digits[:4]}:{digits[4:6]}00::/56")),
        "Ipv6CidrBlockState": {"State": "associated"},
        "NetworkBorderGroup": caller.region,
        "Ipv6Pool": "Amazon",
        **cidr.FROM_AMAZON,
    }


def _shared_dhcp_options(tx: Tx[Store], caller: Caller) -> str:
    """Return the id of the DHCP options that every new VPC in the region uses."""
    return next(
        (str(options["DhcpOptionsId"]) for options in every(tx, caller, "dhcp-options") if options.get("_default")), "default"
    )


def _created(tx: Tx[Store], caller: Caller, vpc: Document) -> None:
    owned = {"VpcId": vpc["VpcId"], "_main": True, "_default": True}
    stored_resources.create(tx, caller, ROUTE_TABLE, owned)
    stored_resources.create(tx, caller, NETWORK_ACL, owned)
    group = {"GroupName": DEFAULT, "Description": "default VPC security group"}
    stored_resources.create(tx, caller, SECURITY_GROUP, {**owned, **group})


def _check_delete(tx: Tx[Store], caller: Caller, vpc: Document) -> None:
    vpc_id = vpc["VpcId"]
    attachments = [each for gateway in every(tx, caller, "internet-gateway") for each in gateway["Attachments"]]
    attachments += [each for gateway in every(tx, caller, "vpn-gateway") for each in gateway["VpcAttachments"]]
    dependent = (
        bool(every(tx, caller, "subnet", VpcId=vpc_id))
        or bool(every(tx, caller, "vpc-endpoint", VpcId=vpc_id))
        or any(each["VpcId"] == vpc_id for each in attachments)
        or not all(_goes_with_vpc(resource) for resource in _owned(tx, caller, vpc_id))
    )
    if dependent:
        raise in_use("vpc", vpc_id)


def _owned(tx: Tx[Store], caller: Caller, vpc_id: str) -> list[Document]:
    types = (ROUTE_TABLE, NETWORK_ACL, SECURITY_GROUP)
    return [document for type_ in types for document in every(tx, caller, type_.name, VpcId=vpc_id)]


def _goes_with_vpc(document: Document) -> bool:
    if "RouteTableId" in document:
        return [each["Main"] for each in document["Associations"]] == [True]
    return bool(document.get("IsDefault") or document.get("GroupName") == DEFAULT)


def _deleted(tx: Tx[Store], caller: Caller, vpc: Document) -> None:
    for type_ in (ROUTE_TABLE, NETWORK_ACL, SECURITY_GROUP):
        for document in every(tx, caller, type_.name, VpcId=vpc["VpcId"]):
            tx.store.stored.drop("ec2", type_.name, caller.region, document[type_.id])


def _view(tx: Tx[Store], caller: Caller, vpc: Document) -> Document:
    return {**vpc, "BlockPublicAccessStates": NOT_BLOCKED}


VPC = ResourceType(
    EC2,
    "vpc",
    id="VpcId",
    one="Vpc",
    many="Vpcs",
    new=_new,
    members=("InstanceTenancy",),
    defaults={"InstanceTenancy": "default"},
    ids="VpcIds",
    created=_created,
    check_delete=_check_delete,
    deleted=_deleted,
    view=_view,
    selects=filtered(
        {
            "vpc-id": "VpcId", "cidr": "CidrBlock", "cidr-block": "CidrBlock", "state": "State", "dhcp-options-id": "DhcpOptionsId",
            "is-default": "IsDefault", "isDefault": "IsDefault", "instance-tenancy": "InstanceTenancy",
            "cidr-block-association.cidr-block": "CidrBlockAssociationSet[].CidrBlock",
            "cidr-block-association.association-id": "CidrBlockAssociationSet[].AssociationId",
            "cidr-block-association.state": "CidrBlockAssociationSet[].CidrBlockState.State",
            "ipv6-cidr-block-association.ipv6-cidr-block": "Ipv6CidrBlockAssociationSet[].Ipv6CidrBlock",
            "ipv6-cidr-block-association.association-id": "Ipv6CidrBlockAssociationSet[].AssociationId",
        }
    ),
    create="CreateVpc",
    list="DescribeVpcs",
    delete="DeleteVpc",
)  # fmt: skip


def modify_vpc_attribute(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    vpc = find(tx, caller, VPC, params)
    given = {member: params[member].get("Value", False) for member, _ in ATTRIBUTES.values() if member in params}
    if len(given) != 1:
        raise InvalidParameterCombination("A request must modify exactly one attribute of a VPC.")
    put(tx, caller, VPC, {**vpc, "_attributes": {**vpc["_attributes"], **given}})
    return {}


def describe_vpc_attribute(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    vpc, (member, _) = find(tx, caller, VPC, params), ATTRIBUTES[params["Attribute"]]
    return {"VpcId": vpc["VpcId"], member: {"Value": vpc["_attributes"][member]}}
