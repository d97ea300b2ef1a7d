"""Values of the account's EC2 resources. The rules of a template read them with Fn::RefAll, Fn::ValueOf and Fn::ValueOfAll."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.templates import TemplateError
from corral.decide.templates.template import is_text
from corral.store import Store
from corral.template_types.api_calls import call

# Parameter type → the operation that lists its resources, the member of the response, and the member with the value.
LISTS = {
    "AWS::EC2::AvailabilityZone::Name": ("DescribeAvailabilityZones", "AvailabilityZones", "ZoneName"),
    "AWS::EC2::Image::Id": ("DescribeImages", "Images", "ImageId"),
    "AWS::EC2::KeyPair::KeyName": ("DescribeKeyPairs", "KeyPairs", "KeyName"),
    "AWS::EC2::SecurityGroup::GroupName": ("DescribeSecurityGroups", "SecurityGroups", "GroupName"),
    "AWS::EC2::SecurityGroup::Id": ("DescribeSecurityGroups", "SecurityGroups", "GroupId"),
    "AWS::EC2::Subnet::Id": ("DescribeSubnets", "Subnets", "SubnetId"),
    "AWS::EC2::VPC::Id": ("DescribeVpcs", "Vpcs", "VpcId"),
}


class AccountValues:
    """Reads the lists of EC2 resources, each list at most once."""

    def __init__(self, tx: Tx[Store], caller: Caller) -> None:
        self.tx, self.caller = tx, caller
        self.found: dict[str, dict[str, dict[str, Any]]] = {}  # parameter type → value → description

    def all_values(self, kind: str) -> list[str]:
        return list(self._described(kind))

    def attribute_of(self, kind: str, value: str, attribute: str) -> Any:
        described = self._described(kind).get(value)
        if described is None:
            raise TemplateError(f"Template error: {value} of the parameter type {kind} does not exist")
        if attribute.startswith("Tags."):
            key = attribute.removeprefix("Tags.")
            return next((tag["Value"] for tag in described.get("Tags", ()) if tag["Key"] == key), None)
        if kind == "AWS::EC2::VPC::Id" and attribute == "DefaultSecurityGroup":
            return next(
                (
                    group_id
                    for group_id, group in self._described("AWS::EC2::SecurityGroup::Id").items()
                    if (group.get("VpcId"), group["GroupName"]) == (value, "default")
                ),
                None,
            )
        if not is_text(described.get(attribute)):
            raise TemplateError(
                f"Template error: Fn::ValueOf does not support the attribute {attribute} of the parameter type {kind}"
            )
        return described[attribute]

    def _described(self, kind: str) -> dict[str, dict[str, Any]]:
        if kind not in LISTS:
            raise TemplateError(f"Template error: Fn::RefAll, Fn::ValueOf and Fn::ValueOfAll do not support the type {kind}")
        if kind not in self.found:
            operation, member, key = LISTS[kind]
            items = call(self.tx, self.caller, "ec2", operation, {})[member]
            self.found[kind] = {item[key]: item for item in items}
        return self.found[kind]
