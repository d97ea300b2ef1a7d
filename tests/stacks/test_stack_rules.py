"""Rules that read resources of the account, and properties that an update cannot change."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.stack import StackStatus
from stacks.stack_world import World, refused

SUBNET, VPC = "AWS::EC2::Subnet::Id", "AWS::EC2::VPC::Id"
NETWORK = {
    "Resources": {
        "One": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16", "Tags": [{"Key": "Team", "Value": "a"}]}},
        "Two": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.1.0.0/16"}},
        "Net": {"Type": "AWS::EC2::Subnet", "Properties": {"CidrBlock": "10.0.1.0/24", "VpcId": {"Ref": "One"}}},
        "Key": {"Type": "AWS::EC2::KeyPair", "Properties": {"KeyName": "k"}},
    }
}


def ruled(assertion: Any) -> dict[str, Any]:
    return {
        "Parameters": {"Net": {"Type": SUBNET}, "Vpc": {"Type": VPC}, "Many": {"Type": f"List<{SUBNET}>"}},
        "Rules": {"R": {"Assertions": [{"Assert": assertion, "AssertDescription": "not true"}]}},
        "Resources": {"Q": {"Type": "AWS::SQS::Queue"}},
    }


def equals(first: Any, second: Any) -> dict[str, Any]:
    return {"Fn::Equals": [first, second]}


@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        ({"Fn::Contains": [{"Fn::RefAll": VPC}, {"Ref": "Vpc"}]}, None),
        ({"Fn::Contains": [{"Fn::RefAll": "AWS::EC2::KeyPair::KeyName"}, "k"]}, None),
        ({"Fn::Contains": [{"Fn::RefAll": SUBNET}, "subnet-0"]}, "Template validation error: Rule R failed: not true"),
        (equals({"Fn::ValueOf": ["Net", "VpcId"]}, {"Ref": "Vpc"}), None),
        ({"Fn::EachMemberEquals": [{"Fn::ValueOf": ["Many", "VpcId"]}, {"Ref": "Vpc"}]}, None),
        (equals({"Fn::ValueOf": ["Vpc", "Tags.Team"]}, "a"), None),
        (equals({"Fn::ValueOf": ["Net", "Tags.Team"]}, ""), None),
        ({"Fn::EachMemberEquals": [{"Fn::ValueOfAll": [VPC, "Tags.Team"]}, "a"]}, None),
        (equals({"Fn::ValueOf": ["Vpc", "Colour"]}, "a"),
         f"Template error: Fn::ValueOf does not support the attribute Colour of the parameter type {VPC}"),
        ({"Fn::Contains": [{"Fn::RefAll": "String"}, "a"]},
         "Template error: Fn::RefAll, Fn::ValueOf and Fn::ValueOfAll do not support the type String"),
    ],
)  # fmt: skip
def test_rules_read_the_resources_of_the_account(assertion: Any, message: str | None) -> None:
    world = World()
    world.create(NETWORK, "network")
    ids = {name: world.row(name, "network").physical_id or "" for name in ("One", "Net")}
    given = {"Net": ids["Net"], "Vpc": ids["One"], "Many": ids["Net"]}
    if message is not None:
        assert refused(lambda: world.create(ruled(assertion), parameters=given)) == message
    else:
        assert world.create(ruled(assertion), parameters=given).status is StackStatus.CREATE_COMPLETE


def test_rules_are_checked_only_when_an_operation_begins(tmp_path: Any) -> None:
    world = World(tmp_path)
    world.create(NETWORK, "network")
    rule = {"Fn::Contains": [{"Fn::RefAll": SUBNET}, {"Ref": "Net"}]}
    net = world.row("Net", "network").physical_id or ""
    given = {"Net": net, "Vpc": "vpc-0", "Many": net}
    world.create(ruled(rule), parameters=given, settle=False)
    world.delete("network", settle=False)
    world.restart()
    world.settle()
    assert world.stack().status is StackStatus.CREATE_COMPLETE


def test_a_wait_condition_cannot_be_updated() -> None:
    world = World()

    def template(**properties: Any) -> dict[str, Any]:
        policy = {"ResourceSignal": {"Count": 0}}
        return {
            "Resources": {"W": {"Type": "AWS::CloudFormation::WaitCondition", "CreationPolicy": policy, "Properties": properties}}
        }

    world.create(template(Timeout="10"))
    stack = world.update(template(Timeout="20"))
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    reasons = [reason for _, status, reason in world.events(stack, "W") if status == "UPDATE_FAILED"]
    assert len(reasons) == 1 and reasons[0].startswith(
        "Update to resource type AWS::CloudFormation::WaitCondition is not supported."
    )
