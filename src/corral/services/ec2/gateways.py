"""Internet gateways, VPN gateways and NAT gateways. No traffic passes through them."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, find, put
from corral.services.ec2 import elastic_ips, errors
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, every, existing, new_id, required
from corral.services.ec2.subnet_addresses import check_address, free_address, taken_addresses
from corral.store import Store


def _check_detached(tx: Tx[Store], caller: Caller, gateway: Document) -> None:
    if gateway["Attachments"]:
        raise errors.in_use("internetGateway", gateway["InternetGatewayId"])


INTERNET_GATEWAY = ResourceType(
    EC2,
    "internet-gateway",
    id="InternetGatewayId",
    one="InternetGateway",
    many="InternetGateways",
    new=lambda tx, params, caller: {"InternetGatewayId": new_id(tx, "igw"), "OwnerId": caller.account, "Attachments": []},
    defaults={"Tags": []},
    ids="InternetGatewayIds",
    check_delete=_check_detached,
    selects=filtered(
        {
            "internet-gateway-id": "InternetGatewayId",
            "attachment.vpc-id": "Attachments[].VpcId",
            "attachment.state": "Attachments[].State",
        }
    ),
    create="CreateInternetGateway",
    list="DescribeInternetGateways",
    delete="DeleteInternetGateway",
)


def attach_internet_gateway(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    gateway, vpc_id = find(tx, caller, INTERNET_GATEWAY, params), params["VpcId"]
    existing(tx, caller, "vpc", vpc_id)
    if gateway["Attachments"]:
        attached = gateway["Attachments"][0]["VpcId"]
        raise errors.ResourceAlreadyAssociated(f"resource {gateway['InternetGatewayId']} is already attached to network {attached}")
    if gateway_of(tx, caller, vpc_id) is not None:
        raise errors.InvalidParameterValue(f"Network {vpc_id} already has an internet gateway attached")
    put(tx, caller, INTERNET_GATEWAY, {**gateway, "Attachments": [{"VpcId": vpc_id, "State": "available"}]})
    return {}


def detach_internet_gateway(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    gateway, vpc_id = find(tx, caller, INTERNET_GATEWAY, params), params["VpcId"]
    existing(tx, caller, "vpc", vpc_id)
    if not any(each["VpcId"] == vpc_id for each in gateway["Attachments"]):
        raise errors.GatewayNotAttached(f"resource {gateway['InternetGatewayId']} is not attached to network {vpc_id}")
    if any(nat["ConnectivityType"] == "public" for nat in every(tx, caller, "natgateway", VpcId=vpc_id)):
        raise errors.DependencyViolation(
            f"Network {vpc_id} has some mapped public address(es). Please unmap those public address(es) before detaching the "
            "gateway."
        )
    put(tx, caller, INTERNET_GATEWAY, {**gateway, "Attachments": []})
    return {}


def gateway_of(tx: Tx[Store], caller: Caller, vpc_id: str) -> Document | None:
    for gateway in every(tx, caller, "internet-gateway"):
        if any(each["VpcId"] == vpc_id for each in gateway["Attachments"]):
            return gateway
    return None


def _check_without_vpc(tx: Tx[Store], caller: Caller, gateway: Document) -> None:
    if gateway["VpcAttachments"]:
        raise errors.IncorrectState(
            f"The vpnGateway '{gateway['VpnGatewayId']}' is attached to {gateway['VpcAttachments'][0]['VpcId']}"
        )


VPN_GATEWAY = ResourceType(
    EC2,
    "vpn-gateway",
    id="VpnGatewayId",
    one="VpnGateway",
    many="VpnGateways",
    new=lambda tx, params, caller: {"VpnGatewayId": new_id(tx, "vgw"), "State": "available", "VpcAttachments": []},
    members=("Type", "AvailabilityZone", "AmazonSideAsn"),
    defaults={"Tags": [], "AmazonSideAsn": 64_512},
    ids="VpnGatewayIds",
    check_delete=_check_without_vpc,
    selects=filtered(
        {
            "amazon-side-asn": "AmazonSideAsn",
            "attachment.state": "VpcAttachments[].State",
            "attachment.vpc-id": "VpcAttachments[].VpcId",
            "availability-zone": "AvailabilityZone",
            "state": "State",
            "type": "Type",
            "vpn-gateway-id": "VpnGatewayId",
        }
    ),
    create="CreateVpnGateway",
    list="DescribeVpnGateways",
    delete="DeleteVpnGateway",
)


def attach_vpn_gateway(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    gateway, vpc_id = find(tx, caller, VPN_GATEWAY, params), params["VpcId"]
    existing(tx, caller, "vpc", vpc_id)
    if gateway["VpcAttachments"]:
        attached = gateway["VpcAttachments"][0]["VpcId"]
        raise errors.InvalidParameterValue(f"The vpnGateway '{gateway['VpnGatewayId']}' is already attached to {attached}")
    attachment = {"VpcId": vpc_id, "State": "attached"}
    put(tx, caller, VPN_GATEWAY, {**gateway, "VpcAttachments": [attachment]})
    return {"VpcAttachment": attachment}


def detach_vpn_gateway(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    gateway, vpc_id = find(tx, caller, VPN_GATEWAY, params), params["VpcId"]
    if not any(each["VpcId"] == vpc_id for each in gateway["VpcAttachments"]):
        raise errors.InvalidVpnGatewayAttachment(
            f"The attachment with vpn gateway ID '{gateway['VpnGatewayId']}' and vpc ID '{vpc_id}' does not exist"
        )
    put(tx, caller, VPN_GATEWAY, {**gateway, "VpcAttachments": []})
    return {}


def _new_nat(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    if params.get("AvailabilityMode", "zonal") != "zonal":
        raise errors.UnsupportedOperation("Corral has no regional NAT gateways: omit AvailabilityMode, and specify a SubnetId.")
    subnet = existing(tx, caller, "subnet", required(params, "SubnetId"))
    is_public = params.get("ConnectivityType", "public") == "public"
    address: Document = {
        "NetworkInterfaceId": new_id(tx, "eni"),
        "PrivateIp": _private_ip(tx, caller, subnet, params),
        "IsPrimary": True,
        "Status": "succeeded",
    }
    if is_public:
        required(params, "AllocationId")
        if gateway_of(tx, caller, subnet["VpcId"]) is None:
            raise errors.GatewayNotAttached(f"Network {subnet['VpcId']} has no Internet gateway attached")
        address |= elastic_ips.associate(tx, caller, params["AllocationId"], address)
    return {
        "NatGatewayId": new_id(tx, "nat"),
        "VpcId": subnet["VpcId"],
        "State": "available",
        "CreateTime": tx.now_s,
        "ConnectivityType": "public" if is_public else "private",
        "AvailabilityMode": "zonal",
        "NatGatewayAddresses": [address],
    }


def _private_ip(tx: Tx[Store], caller: Caller, subnet: Document, params: Params) -> str:
    taken, given = taken_addresses(tx, caller, subnet), params.get("PrivateIpAddress")
    if given is None:
        return free_address(subnet, taken)
    check_address(subnet, taken, given)
    return str(given)


NAT_GATEWAY = ResourceType(
    EC2,
    "natgateway",
    id="NatGatewayId",
    one="NatGateway",
    many="NatGateways",
    new=_new_nat,
    members=("SubnetId",),
    ids="NatGatewayIds",
    token="ClientToken",
    deleted=lambda tx, caller, nat: elastic_ips.disassociate(tx, caller, nat["NatGatewayAddresses"]),
    delete_response=lambda nat: {"NatGatewayId": nat["NatGatewayId"]},
    selects=filtered(
        {"nat-gateway-id": "NatGatewayId", "state": "State", "subnet-id": "SubnetId", "vpc-id": "VpcId"}, member="Filter"
    ),
    create="CreateNatGateway",
    list="DescribeNatGateways",
    delete="DeleteNatGateway",
)
