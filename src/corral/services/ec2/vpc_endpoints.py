"""VPC endpoints. Corral only stores them, because programs need no endpoint to connect to the address of Corral."""

from __future__ import annotations

import re
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.json_documents import read_json
from corral.operations.stored_resources import Document, Params, ResourceType, delete, find, put
from corral.services.ec2.errors import InvalidParameterValue, InvalidPolicyDocument, InvalidServiceName, UnsupportedOperation
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, existing, new_id, required
from corral.services.ec2.security_groups import DEFAULT, named_group
from corral.store import Store

SERVICE_NAME = re.compile(r"(com\.amazonaws|aws)\.[a-z0-9.-]+")
EVERYTHING = {"Version": "2008-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}]}
LISTS = {"RouteTableIds": "route-table", "SubnetIds": "subnet"}  # member that lists resources → resource type


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    vpc, kind = existing(tx, caller, "vpc", params["VpcId"]), params.get("VpcEndpointType", "Gateway")
    if kind not in ("Gateway", "Interface"):
        raise UnsupportedOperation(f"Corral does not serve VPC endpoints of type {kind}: use Gateway or Interface.")
    service = required(params, "ServiceName")
    if not SERVICE_NAME.fullmatch(service):
        raise InvalidServiceName(f"The Vpc Endpoint Service '{service}' does not exist")
    _check_lists(tx, caller, vpc["VpcId"], params)
    endpoint_id, is_interface = new_id(tx, "vpce"), kind == "Interface"
    subnet_ids = params.get("SubnetIds", []) if is_interface else []
    host = f"{endpoint_id}.{service.rpartition('.')[2]}.{caller.region}.vpce.amazonaws.com"
    return {
        "VpcEndpointId": endpoint_id,
        "VpcEndpointType": kind,
        "OwnerId": caller.account,
        "State": "available",
        "CreationTimestamp": tx.now_s,
        "RequesterManaged": False,
        "PolicyDocument": _policy(params),
        "RouteTableIds": [] if is_interface else params.get("RouteTableIds", []),
        "SubnetIds": subnet_ids,
        "Groups": _groups(tx, caller, vpc["VpcId"], params) if is_interface else [],
        "PrivateDnsEnabled": params.get("PrivateDnsEnabled", is_interface),
        "NetworkInterfaceIds": [new_id(tx, "eni") for _ in subnet_ids],
        "DnsEntries": [{"DnsName": host}] if is_interface else [],
    }


def _policy(params: Params) -> str:
    text: str = params.get("PolicyDocument") or orjson.dumps(EVERYTHING).decode()
    try:
        read_json(text)
    except ValueError:
        raise InvalidPolicyDocument("This policy contains invalid Json") from None
    return text


def _check_lists(tx: Tx[Store], caller: Caller, vpc_id: str, params: Params) -> None:
    for member, type_ in LISTS.items():
        for name in params.get(member, ()):
            if existing(tx, caller, type_, name)["VpcId"] != vpc_id:
                raise InvalidParameterValue(f"{name} does not belong to VPC {vpc_id}.")


def _groups(tx: Tx[Store], caller: Caller, vpc_id: str, params: Params) -> list[Document]:
    ids = params.get("SecurityGroupIds") or [named_group(tx, caller, DEFAULT, vpc_id)["GroupId"]]
    groups = [existing(tx, caller, "security-group", group_id) for group_id in ids]
    return [{"GroupId": group["GroupId"], "GroupName": group["GroupName"]} for group in groups]


VPC_ENDPOINT = ResourceType(
    EC2,
    "vpc-endpoint",
    id="VpcEndpointId",
    one="VpcEndpoint",
    many="VpcEndpoints",
    new=_new,
    view=lambda tx, caller, endpoint: {"ServiceRegion": caller.region, **endpoint},
    members=("VpcId", "ServiceName", "IpAddressType", "DnsOptions", "ServiceRegion"),
    defaults={"IpAddressType": "ipv4", "Tags": []},
    ids="VpcEndpointIds",
    token="ClientToken",
    selects=filtered(
        {
            "vpc-endpoint-id": "VpcEndpointId", "vpc-endpoint-type": "VpcEndpointType", "vpc-endpoint-state": "State",
            "vpc-id": "VpcId", "service-name": "ServiceName", "ip-address-type": "IpAddressType",
        }
    ),
    create="CreateVpcEndpoint",
    list="DescribeVpcEndpoints",
)  # fmt: skip


def delete_vpc_endpoints(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    failed = list[Document]()
    for endpoint_id in params["VpcEndpointIds"]:
        try:
            delete(tx, caller, VPC_ENDPOINT, find(tx, caller, VPC_ENDPOINT, {"VpcEndpointId": endpoint_id}))
        except ApiError as error:
            failed.append({"ResourceId": endpoint_id, "Error": {"Code": error.code, "Message": error.message}})
    return {"Unsuccessful": failed}


def modify_vpc_endpoint(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    endpoint = find(tx, caller, VPC_ENDPOINT, params)
    added = {member: params.get(f"Add{member}", []) for member in LISTS}
    _check_lists(tx, caller, endpoint["VpcId"], added)
    changed: Document = {
        member: list(dict.fromkeys([*(each for each in endpoint[member] if each not in params.get(f"Remove{member}", ())), *new]))
        for member, new in added.items()
    }
    groups = [group for group in endpoint["Groups"] if group["GroupId"] not in params.get("RemoveSecurityGroupIds", ())]
    if params.get("AddSecurityGroupIds"):
        added_groups = _groups(tx, caller, endpoint["VpcId"], {"SecurityGroupIds": params["AddSecurityGroupIds"]})
        groups += [group for group in added_groups if group not in groups]
    for member in ("PrivateDnsEnabled", "IpAddressType", "DnsOptions"):
        if member in params:
            changed[member] = params[member]
    if params.get("ResetPolicy") or "PolicyDocument" in params:
        changed["PolicyDocument"] = _policy({} if params.get("ResetPolicy") else params)
    put(tx, caller, VPC_ENDPOINT, {**endpoint, **changed, "Groups": groups})
    return {"Return": True}
