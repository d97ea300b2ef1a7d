"""Network ACLs, their entries, and their associations with subnets."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.operations.stored_resources import Document, Params, ResourceType, find, put
from corral.services.ec2 import errors
from corral.services.ec2.cidr import ipv4, ipv6
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, every, existing, new_id, required
from corral.store import Store

RULE_NUMBER_MAX = 32_766
LAST_RULE_NUMBER = 32_767  # the number of the last entry, which denies everything that no other entry matches
TCP, UDP, ICMP, ICMPV6 = "6", "17", "1", "58"
PROTOCOLS = {"tcp": TCP, "udp": UDP, "icmp": ICMP, "icmpv6": ICMPV6, "all": "-1"}


def _entry(number: int, action: str, *, egress: bool) -> Document:
    return {"RuleNumber": number, "Protocol": "-1", "RuleAction": action, "Egress": egress, "CidrBlock": "0.0.0.0/0"}


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    existing(tx, caller, "vpc", params["VpcId"])
    is_default = params.get("_default", False)
    allowed = [_entry(100, "allow", egress=egress) for egress in (True, False)] if is_default else []
    return {
        "NetworkAclId": new_id(tx, "acl"),
        "OwnerId": caller.account,
        "IsDefault": is_default,
        "Associations": [],
        "Entries": _ordered([*allowed, *(_entry(LAST_RULE_NUMBER, "deny", egress=egress) for egress in (True, False))]),
    }


def _ordered(entries: list[Document]) -> list[Document]:
    return sorted(entries, key=lambda entry: (not entry["Egress"], entry["RuleNumber"]))


def _check_delete(tx: Tx[Store], caller: Caller, acl: Document) -> None:
    if acl["IsDefault"]:
        raise errors.InvalidParameterValue(f"cannot delete default network ACL {acl['NetworkAclId']}")
    if acl["Associations"]:
        raise errors.in_use("networkAcl", acl["NetworkAclId"])


NETWORK_ACL = ResourceType(
    EC2,
    "network-acl",
    id="NetworkAclId",
    one="NetworkAcl",
    many="NetworkAcls",
    new=_new,
    members=("VpcId",),
    defaults={"Tags": []},
    ids="NetworkAclIds",
    token="ClientToken",
    check_delete=_check_delete,
    selects=filtered(
        {
            "network-acl-id": "NetworkAclId", "vpc-id": "VpcId", "default": "IsDefault",
            "association.association-id": "Associations[].NetworkAclAssociationId",
            "association.network-acl-id": "Associations[].NetworkAclId", "association.subnet-id": "Associations[].SubnetId",
            "entry.cidr": "Entries[].CidrBlock", "entry.ipv6-cidr": "Entries[].Ipv6CidrBlock", "entry.egress": "Entries[].Egress",
            "entry.protocol": "Entries[].Protocol", "entry.rule-action": "Entries[].RuleAction",
            "entry.rule-number": "Entries[].RuleNumber", "entry.port-range.from": "Entries[].PortRange.From",
            "entry.port-range.to": "Entries[].PortRange.To", "entry.icmp.code": "Entries[].IcmpTypeCode.Code",
            "entry.icmp.type": "Entries[].IcmpTypeCode.Type",
        }
    ),
    create="CreateNetworkAcl",
    list="DescribeNetworkAcls",
    delete="DeleteNetworkAcl",
)  # fmt: skip


# Entries


def create_network_acl_entry(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    acl, entry = find(tx, caller, NETWORK_ACL, params), _checked_entry(params)
    if any(_is(other, params) for other in acl["Entries"]):
        raise errors.NetworkAclEntryAlreadyExists(f"The network acl entry identified by {params['RuleNumber']} already exists.")
    put(tx, caller, NETWORK_ACL, {**acl, "Entries": _ordered([*acl["Entries"], entry])})
    return {}


def replace_network_acl_entry(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    acl, entry = _with_entry(tx, params, caller), _checked_entry(params)
    others = [other for other in acl["Entries"] if not _is(other, params)]
    put(tx, caller, NETWORK_ACL, {**acl, "Entries": _ordered([*others, entry])})
    return {}


def delete_network_acl_entry(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    acl = _with_entry(tx, params, caller)
    put(tx, caller, NETWORK_ACL, {**acl, "Entries": [other for other in acl["Entries"] if not _is(other, params)]})
    return {}


def _is(entry: Document, params: Params) -> bool:
    return bool(entry["RuleNumber"] == params["RuleNumber"] and entry["Egress"] == params["Egress"])


def _with_entry(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    acl = find(tx, caller, NETWORK_ACL, params)
    if params["RuleNumber"] > RULE_NUMBER_MAX or not any(_is(entry, params) for entry in acl["Entries"]):
        raise errors.InvalidNetworkAclEntryNotFound(f"The network acl entry identified by {params['RuleNumber']} does not exist.")
    return acl


def _checked_entry(params: Params) -> Document:
    if not 1 <= params["RuleNumber"] <= RULE_NUMBER_MAX:
        raise errors.invalid_value(params["RuleNumber"], "ruleNumber", f"It must be between 1 and {RULE_NUMBER_MAX}.")
    given: str = params["Protocol"]
    protocol = PROTOCOLS.get(given.lower(), given)
    if protocol != "-1" and whole_number(protocol, 255) is None:
        raise errors.invalid_value(given, "protocol", "Unknown protocol.")
    entry: Document = {
        "RuleNumber": params["RuleNumber"],
        "Protocol": protocol,
        "RuleAction": params["RuleAction"],
        "Egress": params["Egress"],
    }
    if "CidrBlock" in params:
        entry["CidrBlock"] = str(ipv4(params["CidrBlock"]))
    elif "Ipv6CidrBlock" in params:
        entry["Ipv6CidrBlock"] = str(ipv6(params["Ipv6CidrBlock"]))
    else:
        raise errors.MissingParameter("The request must contain the parameter cidrBlock or ipv6CidrBlock")
    if protocol in (TCP, UDP):
        required(params, "PortRange")
        entry["PortRange"] = {end: required(params["PortRange"], end) for end in ("From", "To")}
    if protocol in (ICMP, ICMPV6):
        required(params, "IcmpTypeCode")
        entry["IcmpTypeCode"] = {part: required(params["IcmpTypeCode"], part) for part in ("Code", "Type")}
    return entry


# Associations


def replace_network_acl_association(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    acl, association = find_association(tx, caller, params["AssociationId"])
    target = find(tx, caller, NETWORK_ACL, params)
    if target["VpcId"] != acl["VpcId"]:
        raise errors.InvalidParameterValue(f"{target['NetworkAclId']} and {acl['NetworkAclId']} belong to different networks")
    return {"NewAssociationId": _move(tx, caller, acl, association, target["NetworkAclId"])}


def find_association(tx: Tx[Store], caller: Caller, association_id: str) -> tuple[Document, Document]:
    for acl in every(tx, caller, "network-acl"):
        for association in acl["Associations"]:
            if association["NetworkAclAssociationId"] == association_id:
                return acl, association
    raise errors.not_found("association", association_id)


def association_of(tx: Tx[Store], caller: Caller, subnet: Document) -> tuple[Document, Document]:
    """Return the ACL of a subnet, and the association between them. Every subnet has exactly one association."""
    return next(
        (acl, association)
        for acl in every(tx, caller, "network-acl", VpcId=subnet["VpcId"])
        for association in acl["Associations"]
        if association["SubnetId"] == subnet["SubnetId"]
    )


def default_acl(tx: Tx[Store], caller: Caller, vpc_id: str) -> Document:
    return next(acl for acl in every(tx, caller, "network-acl", VpcId=vpc_id) if acl["IsDefault"])


def associate_subnet(tx: Tx[Store], caller: Caller, subnet: Document) -> None:
    """Give a new subnet the default ACL of its VPC."""
    _add(tx, caller, default_acl(tx, caller, subnet["VpcId"]), subnet["SubnetId"])


def forget_subnet(tx: Tx[Store], caller: Caller, subnet: Document) -> None:
    """Delete the association of a subnet when the subnet is deleted."""
    _drop(tx, caller, *association_of(tx, caller, subnet))


def return_to_default(tx: Tx[Store], caller: Caller, association_id: str) -> None:
    """Give the subnet of an association the default ACL of its VPC again."""
    acl, association = find_association(tx, caller, association_id)
    _move(tx, caller, acl, association, default_acl(tx, caller, acl["VpcId"])["NetworkAclId"])


def _move(tx: Tx[Store], caller: Caller, acl: Document, association: Document, target_id: str) -> str:
    _drop(tx, caller, acl, association)
    return _add(tx, caller, existing(tx, caller, "network-acl", target_id), association["SubnetId"])


def _add(tx: Tx[Store], caller: Caller, acl: Document, subnet_id: str) -> str:
    association_id = new_id(tx, "aclassoc")
    association = {"NetworkAclAssociationId": association_id, "NetworkAclId": acl["NetworkAclId"], "SubnetId": subnet_id}
    put(tx, caller, NETWORK_ACL, {**acl, "Associations": [*acl["Associations"], association]})
    return association_id


def _drop(tx: Tx[Store], caller: Caller, acl: Document, association: Document) -> None:
    put(tx, caller, NETWORK_ACL, {**acl, "Associations": [other for other in acl["Associations"] if other is not association]})
