"""Rules of security groups: the operations that authorize, revoke, describe and change them. Each rule is stored in its group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.operations.stored_resources import Document, Params, put
from corral.services.ec2 import errors
from corral.services.ec2.cidr import ipv4, ipv6
from corral.services.ec2.filters import filtered
from corral.services.ec2.resources import EC2, PAGES, every, existing, listed, required
from corral.services.ec2.security_groups import (
    ANY_PROTOCOL,
    SECURITY_GROUP,
    TARGETS,
    default_vpc_id,
    find_group,
    named_group,
    new_rule,
    permissions,
)
from corral.store import Store

RULES_MAX = 1_000
PORT_MAX = 65_535
NAMES = {"6": "tcp", "17": "udp", "1": "icmp", "58": "icmpv6", "all": ANY_PROTOCOL}
SELECTS = filtered({"group-id": "GroupId", "security-group-rule-id": "SecurityGroupRuleId"})
TYPE = "security-group-rule"


def authorize_security_group_ingress(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _authorize(tx, params, caller, egress=False)


def authorize_security_group_egress(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _authorize(tx, params, caller, egress=True)


def revoke_security_group_ingress(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _revoke(tx, params, caller, egress=False)


def revoke_security_group_egress(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _revoke(tx, params, caller, egress=True)


def update_security_group_rule_descriptions_ingress(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _set_descriptions(tx, params, caller, egress=False)


def update_security_group_rule_descriptions_egress(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _set_descriptions(tx, params, caller, egress=True)


def describe_security_group_rules(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    rules = {rule["SecurityGroupRuleId"]: rule for group in every(tx, caller, "security-group") for rule in group["_rules"]}
    found, more = listed(PAGES, params, TYPE, rules, params.get("SecurityGroupRuleIds"), SELECTS(tx, caller, params))
    return {"SecurityGroupRules": found, **more}


def modify_security_group_rules(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = find_group(tx, params, caller)
    for change in params["SecurityGroupRules"]:
        given = change.get("SecurityGroupRule", {})
        rule = _with_id(group, required(change, "SecurityGroupRuleId"))
        permission = {member: given[member] for member in ("IpProtocol", "FromPort", "ToPort") if member in given}
        if "ReferencedGroupId" in given:
            permission["UserIdGroupPairs"] = [{"GroupId": given["ReferencedGroupId"]}]
        for member in ("CidrIpv4", "CidrIpv6", "PrefixListId"):
            if member in given:
                target, name = TARGETS[member]
                permission[target] = [{name: given[member]}]
        made, *others = _rules_of(tx, caller, group, {"IpPermissions": [permission]}, egress=rule["IsEgress"])
        if others:
            raise errors.InvalidParameterValue("A security group rule has exactly one CIDR range, prefix list or security group.")
        if any(_key(made) == _key(other) for other in group["_rules"] if other is not rule):
            raise _duplicate(made)
        if "Description" in given:
            made["Description"] = given["Description"]
        identity = {member: rule[member] for member in ("SecurityGroupRuleId", "SecurityGroupRuleArn", "Tags") if member in rule}
        group = {**group, "_rules": [{**made, **identity} if other is rule else other for other in group["_rules"]]}
    put(tx, caller, SECURITY_GROUP, group)
    return {"Return": True}


def find_rule(tx: Tx[Store], caller: Caller, rule_id: str) -> tuple[Document, Document]:
    for group in every(tx, caller, "security-group"):
        for rule in group["_rules"]:
            if rule["SecurityGroupRuleId"] == rule_id:
                return group, rule
    raise errors.not_found(TYPE, rule_id)


def set_rule(tx: Tx[Store], caller: Caller, group: Document, rule: Document, changed: Document | None) -> None:
    """Replace a rule of a group. If `changed` is None, delete the rule."""
    rules = (changed if other is rule else other for other in group["_rules"])
    put(tx, caller, SECURITY_GROUP, {**group, "_rules": [other for other in rules if other is not None]})


def _authorize(tx: Tx[Store], params: Params, caller: Caller, *, egress: bool) -> dict[str, Any]:
    group = find_group(tx, params, caller)
    tags = EC2.tags.read(EC2.given_tags(TYPE, params))
    rules = list(_rules_of(tx, caller, group, params, egress=egress))
    taken = {_key(rule) for rule in group["_rules"]}
    if len({_key(rule) for rule in rules}) < len(rules):
        raise errors.InvalidParameterValue("The same permission must not appear multiple times")
    for rule in rules:
        if _key(rule) in taken:
            raise _duplicate(rule)
        if tags:
            rule["Tags"] = EC2.tags.to_list(tags)
    if len(group["_rules"]) + len(rules) > RULES_MAX:
        raise errors.RulesPerSecurityGroupLimitExceeded("The maximum number of rules per security group has been reached.")
    put(tx, caller, SECURITY_GROUP, {**group, "_rules": [*group["_rules"], *rules]})
    return {"Return": True, "SecurityGroupRules": rules}


def _revoke(tx: Tx[Store], params: Params, caller: Caller, *, egress: bool) -> dict[str, Any]:
    """Remove rules of a group. As on AWS, rules that a group of the default VPC does not have are listed, and are no error."""
    group = find_group(tx, params, caller)
    revoked, unknown = _requested_rules(tx, caller, group, params, egress=egress)
    if unknown and not existing(tx, caller, "vpc", group["VpcId"])["IsDefault"]:
        raise errors.permission_not_found()
    put(tx, caller, SECURITY_GROUP, {**group, "_rules": [rule for rule in group["_rules"] if rule not in revoked]})
    rest = {"UnknownIpPermissions": permissions(unknown)} if unknown else {}
    return {"Return": True, "RevokedSecurityGroupRules": [_revoked(rule) for rule in revoked], **rest}


def _set_descriptions(tx: Tx[Store], params: Params, caller: Caller, *, egress: bool) -> dict[str, Any]:
    group = find_group(tx, params, caller)
    texts = {
        required(each, "SecurityGroupRuleId"): each.get("Description") for each in params.get("SecurityGroupRuleDescriptions", ())
    }
    for rule_id in texts:
        _with_id(group, rule_id)
    if "IpPermissions" in params:
        by_key = {_key(rule): rule for rule in group["_rules"]}
        for given in _rules_of(tx, caller, group, params, egress=egress):
            if _key(given) not in by_key:
                raise errors.permission_not_found()
            texts[by_key[_key(given)]["SecurityGroupRuleId"]] = given.get("Description")
    rules = [
        {**rule, "Description": texts[rule["SecurityGroupRuleId"]] or ""} if rule["SecurityGroupRuleId"] in texts else rule
        for rule in group["_rules"]
    ]
    put(tx, caller, SECURITY_GROUP, {**group, "_rules": rules})
    return {"Return": True}


def _requested_rules(
    tx: Tx[Store], caller: Caller, group: Document, params: Params, *, egress: bool
) -> tuple[list[Document], list[Document]]:  # fmt: skip
    """Return the rules of a group that a request identifies by id or by content, and those that the group does not have."""
    if ids := params.get("SecurityGroupRuleIds"):
        return [_with_id(group, rule_id) for rule_id in ids], []
    by_key = {_key(rule): rule for rule in group["_rules"]}
    given = list(_rules_of(tx, caller, group, params, egress=egress))
    return [by_key[_key(rule)] for rule in given if _key(rule) in by_key], [rule for rule in given if _key(rule) not in by_key]


def _with_id(group: Document, rule_id: str) -> Document:
    rules: list[Document] = group["_rules"]
    for rule in rules:
        if rule["SecurityGroupRuleId"] == rule_id:
            return rule
    raise errors.not_found(TYPE, rule_id)


def _key(rule: Document) -> tuple[Any, ...]:
    """Return a key that is equal for two rules with the same content."""
    group_id = rule.get("ReferencedGroupInfo", {}).get("GroupId")
    target = rule.get("CidrIpv4"), rule.get("CidrIpv6"), rule.get("PrefixListId"), group_id
    return rule["IsEgress"], rule["IpProtocol"], rule["FromPort"], rule["ToPort"], *target


def _rules_of(tx: Tx[Store], caller: Caller, group: Document, params: Params, *, egress: bool) -> Iterator[Document]:
    """Convert the permissions in a request to rules. Each source or destination of a permission becomes one rule."""
    given = params.get("IpPermissions") or _plain_permission(params)
    for permission in given:
        protocol, low, high = _ports(permission)
        sources = [(member, source) for member, (target, _) in TARGETS.items() for source in permission.get(target, ())]
        if not sources:
            raise errors.MissingParameter(
                "The request must contain a CIDR range, a prefix list or a security group for each permission"
            )
        for member, source in sources:
            value = _source(tx, caller, group, member, source)
            members = {"IsEgress": egress, "IpProtocol": protocol, "FromPort": low, "ToPort": high, member: value}
            if source.get("Description"):
                members["Description"] = source["Description"]
            yield new_rule(tx, caller, group["GroupId"], **members)


def _plain_permission(params: Params) -> list[Document]:
    """Return the permission of a request without IpPermissions. The members of the permission are members of the request."""
    permission: Document = {member: params[member] for member in ("IpProtocol", "FromPort", "ToPort") if member in params}
    if "CidrIp" in params:
        return [{**permission, "IpRanges": [{"CidrIp": params["CidrIp"]}]}]
    if "SourceSecurityGroupName" in params:
        permission = permission or {"IpProtocol": ANY_PROTOCOL}
        return [{**permission, "UserIdGroupPairs": [{"GroupName": params["SourceSecurityGroupName"]}]}]
    raise errors.MissingParameter("The request must contain the parameter ipPermissions")


def _ports(permission: Document) -> tuple[str, int, int]:
    if "IpProtocol" not in permission:
        raise errors.MissingParameter("The request must contain the parameter ipProtocol")
    protocol = NAMES.get(permission["IpProtocol"].lower(), permission["IpProtocol"].lower())
    if protocol not in NAMES.values() and whole_number(protocol, 255) is None:
        raise errors.InvalidParameterValue(f"Invalid value '{permission['IpProtocol']}' for IP protocol. Unknown protocol.")
    low, high = permission.get("FromPort", -1), permission.get("ToPort", -1)
    if protocol not in ("tcp", "udp"):
        return (protocol, low, high) if protocol.startswith("icmp") else (protocol, -1, -1)
    if not (0 <= low <= PORT_MAX and 0 <= high <= PORT_MAX):
        raise errors.InvalidParameterValue(
            f"Invalid value for portRange. Must specify both from and to ports with TCP/UDP: {low}-{high}."
        )
    if low > high:
        raise errors.InvalidParameterValue(f"Invalid TCP/UDP port range ({low}:{high})")
    return protocol, low, high


def _source(tx: Tx[Store], caller: Caller, group: Document, member: str, source: Document) -> Any:
    if member == "CidrIpv4":
        return str(ipv4(required(source, "CidrIp"), "cidrIp"))
    if member == "CidrIpv6":
        return str(ipv6(required(source, "CidrIpv6"), "cidrIpv6"))
    if member == "PrefixListId":
        return required(source, "PrefixListId")
    if "GroupId" in source:
        other = existing(tx, caller, "security-group", source["GroupId"])
    else:
        vpc_id = source.get("VpcId") or group["VpcId"] or default_vpc_id(tx, caller)
        other = named_group(tx, caller, source.get("GroupName", ""), vpc_id)
    return {"GroupId": other["GroupId"], "UserId": caller.account}


def _duplicate(rule: Document) -> ApiError:
    peer = rule.get("CidrIpv4") or rule.get("CidrIpv6") or rule.get("PrefixListId") or rule["ReferencedGroupInfo"]["GroupId"]
    protocol = "ALL" if rule["IpProtocol"] == ANY_PROTOCOL else rule["IpProtocol"].upper()
    ports = f", from port: {rule['FromPort']}, to port: {rule['ToPort']}" if rule["IpProtocol"] in ("tcp", "udp") else ""
    return errors.InvalidPermissionDuplicate(f'the specified rule "peer: {peer}, {protocol}{ports}, ALLOW" already exists')


def _revoked(rule: Document) -> Document:
    hidden = ("GroupOwnerId", "ReferencedGroupInfo", "SecurityGroupRuleArn", "Tags")
    visible = {member: value for member, value in rule.items() if member not in hidden}
    if "ReferencedGroupInfo" in rule:
        visible["ReferencedGroupId"] = rule["ReferencedGroupInfo"]["GroupId"]
    return visible
