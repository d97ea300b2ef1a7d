"""Security groups and their rules in CloudFormation templates."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params
from corral.services.ec2 import security_group_rules as rules
from corral.services.ec2.security_groups import SECURITY_GROUP, find_group
from corral.store import Store
from corral.template_types.resource_types import Properties, TemplateType, forgiving, stored_type

SOURCES = {  # property of a rule → the list in an IpPermission, and the member in the elements of this list
    "CidrIp": ("IpRanges", "CidrIp"),
    "CidrIpv6": ("Ipv6Ranges", "CidrIpv6"),
    "SourcePrefixListId": ("PrefixListIds", "PrefixListId"),
    "DestinationPrefixListId": ("PrefixListIds", "PrefixListId"),
    "SourceSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
    "DestinationSecurityGroupId": ("UserIdGroupPairs", "GroupId"),
    "SourceSecurityGroupName": ("UserIdGroupPairs", "GroupName"),
}
EVERYTHING = {"IpProtocol": "-1", "CidrIp": "0.0.0.0/0"}  # a new group has this egress rule
# Whether a rule is an egress rule → the function that adds the rule (AUTHORIZE), and the function that removes it (REVOKE).
AUTHORIZE = {False: rules.authorize_security_group_ingress, True: rules.authorize_security_group_egress}
REVOKE = {False: rules.revoke_security_group_ingress, True: rules.revoke_security_group_egress}
EMBEDDED = {"SecurityGroupIngress": False, "SecurityGroupEgress": True}  # property of a group → whether it contains egress rules


def _permission(properties: Properties) -> Document:
    """Convert the properties of a rule to an IpPermission. In a template, the ports can be numbers or text."""
    permission: Document = {"IpProtocol": str(properties["IpProtocol"])}
    permission |= {name: int(properties[name]) for name in ("FromPort", "ToPort") if name in properties}
    for name, (target, member) in SOURCES.items():
        if name in properties:
            source = {member: properties[name]}
            if properties.get("Description"):
                source["Description"] = properties["Description"]
            permission[target] = [source]
    return permission


def _request(properties: Properties) -> Params:
    request: Params = {"Description": properties["GroupDescription"], "GroupName": properties["GroupName"]}
    if "VpcId" in properties:
        request["VpcId"] = properties["VpcId"]
    if properties.get("Tags"):
        request["TagSpecifications"] = [{"ResourceType": SECURITY_GROUP.name, "Tags": properties["Tags"]}]
    return request


def _set_rules(tx: Tx[Store], caller: Caller, group: Document, old: Properties, new: Properties) -> None:
    """Revoke the removed rules, and authorize the new rules. A group without egress rules in the template allows all egress."""
    for name, egress in EMBEDDED.items():
        before = old.get(name) or ([EVERYTHING] if egress else [])
        after = new.get(name) or ([EVERYTHING] if egress else [])
        removed = [_permission(rule) for rule in before if rule not in after]
        added = [_permission(rule) for rule in after if rule not in before]
        if removed:
            REVOKE[egress](tx, {"GroupId": group["GroupId"], "IpPermissions": removed}, caller)
        if added:
            AUTHORIZE[egress](tx, {"GroupId": group["GroupId"], "IpPermissions": added}, caller)


def _rule_type(name: str, *, egress: bool) -> TemplateType:
    def create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
        given = {member: properties[member] for member in ("GroupId", "GroupName") if member in properties}
        request = {"GroupId": find_group(tx, given, caller)["GroupId"], "IpPermissions": [_permission(properties)]}
        return str(AUTHORIZE[egress](tx, request, caller)["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    def attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
        return {"Id": rules.find_rule(tx, caller, identity)[1]["SecurityGroupRuleId"]}

    def update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
        group, rule = rules.find_rule(tx, caller, identity)
        rules.set_rule(tx, caller, group, rule, {**rule, "Description": new.get("Description", "")})

    def delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
        group, rule = rules.find_rule(tx, caller, identity)
        rules.set_rule(tx, caller, group, rule, None)

    return TemplateType(name, create, attributes, update, forgiving(delete, ".NotFound"))


SECURITY_GROUP_TYPES = (
    stored_type(
        "AWS::EC2::SecurityGroup",
        SECURITY_GROUP,
        request=_request,
        applies=tuple(EMBEDDED),
        apply=_set_rules,
        attributes={"GroupId": "GroupId", "Id": "GroupId", "VpcId": "VpcId"},
        name_property="GroupName",
        name_scope=("VpcId",),
    ),
    _rule_type("AWS::EC2::SecurityGroupIngress", egress=False),
    _rule_type("AWS::EC2::SecurityGroupEgress", egress=True),
)
