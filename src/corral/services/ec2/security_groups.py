"""Security groups. Responses contain the rules of a group as IpPermissions.

The module `security_group_rules.py` changes the rules.
"""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, delete, find, list_resources
from corral.services.ec2 import errors
from corral.services.ec2.filters import filtered
from corral.services.ec2.network_interfaces import interfaces
from corral.services.ec2.resources import EC2, arn, every, existing, new_id
from corral.store import Store

DEFAULT = "default"
TEXT = re.compile(r"[a-zA-Z0-9 ._\-:/()#,@\[\]+=&;{}!$*]*")
TEXT_MAX_CHARACTERS = 255
ANY_PROTOCOL = "-1"
# Member of a rule → the list in an IpPermission, and the member in the elements of this list.
TARGETS = {
    "CidrIpv4": ("IpRanges", "CidrIp"),
    "CidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
    "PrefixListId": ("PrefixListIds", "PrefixListId"),
    "ReferencedGroupInfo": ("UserIdGroupPairs", "GroupId"),
}


def new_rule(tx: Tx[Store], caller: Caller, group_id: str, **members: Any) -> Document:
    rule_id = new_id(tx, "sgr")
    return {
        "SecurityGroupRuleId": rule_id,
        "GroupId": group_id,
        "GroupOwnerId": caller.account,
        **members,
        "SecurityGroupRuleArn": arn(caller, f"security-group-rule/{rule_id}"),
    }


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    vpc_id, name, is_default = _vpc_id(tx, params, caller), params["GroupName"], params.get("_default", False)
    if not is_default:
        _check_texts(params)
        if any(group["GroupName"] == name for group in every(tx, caller, "security-group", VpcId=vpc_id)):
            raise errors.InvalidGroupDuplicate(f"The security group '{name}' already exists for VPC '{vpc_id}'")
    group_id = new_id(tx, "sg")
    everything = {"IpProtocol": ANY_PROTOCOL, "FromPort": -1, "ToPort": -1}
    rules = [new_rule(tx, caller, group_id, IsEgress=True, CidrIpv4="0.0.0.0/0", **everything)]
    if is_default:
        itself = {"GroupId": group_id, "UserId": caller.account}
        rules.append(new_rule(tx, caller, group_id, IsEgress=False, ReferencedGroupInfo=itself, **everything))
    return {
        "GroupId": group_id,
        "SecurityGroupArn": arn(caller, f"security-group/{group_id}"),
        "VpcId": vpc_id,
        "OwnerId": caller.account,
        "_rules": rules,
    }


def _vpc_id(tx: Tx[Store], params: Params, caller: Caller) -> str:
    if "VpcId" in params:
        return str(existing(tx, caller, "vpc", params["VpcId"])["VpcId"])
    return default_vpc_id(tx, caller)


def default_vpc_id(tx: Tx[Store], caller: Caller) -> str:
    vpc = next((vpc for vpc in every(tx, caller, "vpc") if vpc["IsDefault"]), None)
    if vpc is None:
        raise errors.VPCIdNotSpecified("No default VPC for this user")
    return str(vpc["VpcId"])


def _check_texts(params: Params) -> None:
    for member in ("GroupName", "Description"):
        text = params[member]
        if not 1 <= len(text) <= TEXT_MAX_CHARACTERS or not TEXT.fullmatch(text):
            rule = f"It must have 1 to {TEXT_MAX_CHARACTERS} characters from a-zA-Z0-9. _-:/()#,@[]+=&;{{}}!$*"
            raise errors.invalid_value(text, member, rule)
    if params["GroupName"].lower() == DEFAULT:
        raise errors.InvalidParameterValue(f"Cannot use reserved security group name: {params['GroupName']}")
    if params["GroupName"].startswith("sg-"):
        raise errors.InvalidParameterValue(
            f"invalid value for parameter groupName: {params['GroupName']}. Group names may not be in the format sg-*"
        )


def _check_delete(tx: Tx[Store], caller: Caller, group: Document) -> None:
    group_id = group["GroupId"]
    if group["GroupName"] == DEFAULT:
        raise errors.CannotDelete(f'the specified group: "{group_id}" name: "{DEFAULT}" cannot be deleted by a user')
    referring = (
        rule.get("ReferencedGroupInfo", {}).get("GroupId") == group_id
        for other in every(tx, caller, "security-group")
        if other["GroupId"] != group_id
        for rule in other["_rules"]
    )
    used = (group_id in [each["GroupId"] for each in interface["Groups"]] for interface in interfaces(tx, caller))
    endpoints = (group_id in [each["GroupId"] for each in endpoint["Groups"]] for endpoint in every(tx, caller, "vpc-endpoint"))
    if any(referring) or any(used) or any(endpoints):
        raise errors.DependencyViolation(f"resource {group_id} has a dependent object")


def _view(tx: Tx[Store], caller: Caller, group: Document) -> Document:
    rules = group["_rules"]
    return {
        **group,
        "IpPermissions": permissions([rule for rule in rules if not rule["IsEgress"]]),
        "IpPermissionsEgress": permissions([rule for rule in rules if rule["IsEgress"]]),
    }


def permissions(rules: list[Document]) -> list[Document]:
    """Convert rules to IpPermissions. Rules with the same protocol and port range become one permission."""
    found: dict[tuple[Any, ...], Document] = {}
    for rule in rules:
        protocol, low, high = rule["IpProtocol"], rule["FromPort"], rule["ToPort"]
        ports = {} if protocol == ANY_PROTOCOL else {"FromPort": low, "ToPort": high}
        empty: Document = {target: [] for target, _ in TARGETS.values()}
        permission = found.setdefault((protocol, low, high), {"IpProtocol": protocol, **ports, **empty})
        description = {"Description": rule["Description"]} if rule.get("Description") else {}
        for member, (target, name) in TARGETS.items():
            if member in rule:
                source = rule[member] if member == "ReferencedGroupInfo" else {name: rule[member]}
                permission[target].append({**source, **description})
    return list(found.values())


def _permission_filters(prefix: str, member: str) -> dict[str, str]:
    paths = {
        "cidr": "IpRanges[].CidrIp", "ipv6-cidr": "Ipv6Ranges[].CidrIpv6", "prefix-list-id": "PrefixListIds[].PrefixListId",
        "group-id": "UserIdGroupPairs[].GroupId", "user-id": "UserIdGroupPairs[].UserId", "from-port": "FromPort",
        "to-port": "ToPort", "protocol": "IpProtocol",
    }  # fmt: skip
    return {f"{prefix}{name}": f"{member}[].{path}" for name, path in paths.items()}


SECURITY_GROUP = ResourceType(
    EC2,
    "security-group",
    id="GroupId",
    one="SecurityGroup",
    many="SecurityGroups",
    new=_new,
    members=("GroupName", "Description"),
    ids="GroupIds",
    check_delete=_check_delete,
    view=_view,
    selects=filtered(
        {
            "group-id": "GroupId", "group-name": "GroupName", "description": "Description", "vpc-id": "VpcId",
            **_permission_filters("ip-permission.", "IpPermissions"),
            **_permission_filters("egress.ip-permission.", "IpPermissionsEgress"),
        }
    ),
    create="CreateSecurityGroup",
    create_response=lambda group: {
        member: group[member] for member in ("GroupId", "SecurityGroupArn", "Tags") if member in group
    },
)  # fmt: skip


def find_group(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    """Return the group that a request identifies by id, or by its name in the default VPC."""
    if "GroupId" in params:
        return find(tx, caller, SECURITY_GROUP, params)
    if "GroupName" not in params:
        raise errors.MissingParameter("The request must contain the parameter groupName or groupId")
    return named_group(tx, caller, params["GroupName"], default_vpc_id(tx, caller))


def named_group(tx: Tx[Store], caller: Caller, name: str, vpc_id: str) -> Document:
    for group in every(tx, caller, "security-group", VpcId=vpc_id):
        if group["GroupName"] == name:
            return group
    is_default = any(vpc["IsDefault"] for vpc in every(tx, caller, "vpc", VpcId=vpc_id))
    raise errors.name_not_found("security-group", name, where=f" in {'default ' * is_default}VPC '{vpc_id}'")


def delete_security_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = find_group(tx, params, caller)
    delete(tx, caller, SECURITY_GROUP, group)
    return {"Return": True, "GroupId": group["GroupId"]}


def describe_security_groups(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe groups. The request may contain ids, and names of groups in the default VPC."""
    if names := params.get("GroupNames"):
        vpc_id = default_vpc_id(tx, caller)
        ids = [named_group(tx, caller, name, vpc_id)["GroupId"] for name in names]
        params = {**params, "GroupIds": [*params.get("GroupIds", ()), *ids]}
    return list_resources(tx, params, caller, SECURITY_GROUP)
