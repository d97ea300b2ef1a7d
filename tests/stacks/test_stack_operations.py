"""Stack operations from beginning to end: the order of steps, statuses, events and what is left."""

from __future__ import annotations

from typing import Any

from corral.model.stack import STORED_ONLY, StackStatus
from stacks.stack_world import World, refused


def vpc(cidr: str = "10.0.0.0/16", **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": cidr, **more}}


def subnet(cidr: str = "10.0.1.0/24", vpc: str = "Vpc", **more: Any) -> dict[str, Any]:
    return {"Type": "AWS::EC2::Subnet", "Properties": {"VpcId": {"Ref": vpc}, "CidrBlock": cidr, **more}}


def resources(**declared: Any) -> dict[str, Any]:
    return {"Resources": declared}


def test_create_and_delete() -> None:
    world = World()
    template = {
        "Description": "two",
        "Resources": {"Net": subnet(), "Vpc": vpc()},
        "Outputs": {"Id": {"Value": {"Ref": "Net"}, "Export": {"Name": "net"}}},
    }
    stack = world.create(template, tags={"team": "a"})
    assert stack.status is StackStatus.CREATE_COMPLETE and stack.version.description == "two"
    assert world.events(stack) == [
        ("s", "CREATE_IN_PROGRESS", "User Initiated"),
        ("Vpc", "CREATE_IN_PROGRESS", ""),
        ("Vpc", "CREATE_IN_PROGRESS", "Resource creation Initiated"),
        ("Vpc", "CREATE_COMPLETE", ""),
        ("Net", "CREATE_IN_PROGRESS", ""),
        ("Net", "CREATE_IN_PROGRESS", "Resource creation Initiated"),
        ("Net", "CREATE_COMPLETE", ""),
        ("s", "CREATE_COMPLETE", ""),
    ]
    row = world.row("Net")
    assert row.physical_id is not None and row.physical_id.startswith("subnet-")
    assert row.version.attributes["VpcId"] == world.row("Vpc").physical_id
    assert row.version.properties["Tags"] == [{"Key": "team", "Value": "a"}]
    assert [(output.key, output.value) for output in stack.version.outputs] == [("Id", row.physical_id)]
    assert world.store.stacks.exports("us-east-1") == [("net", row.physical_id, stack.id)]
    world.check()
    stack = world.delete()
    assert stack.status is StackStatus.DELETE_COMPLETE
    assert world.events(stack)[8:] == [
        ("s", "DELETE_IN_PROGRESS", "User Initiated"),
        ("Net", "DELETE_IN_PROGRESS", ""),
        ("Net", "DELETE_COMPLETE", ""),
        ("Vpc", "DELETE_IN_PROGRESS", ""),
        ("Vpc", "DELETE_COMPLETE", ""),
        ("s", "DELETE_COMPLETE", ""),
    ]
    world.check()


def test_update() -> None:
    world = World()
    first = resources(Vpc=vpc(), Net=subnet(), Topic={"Type": "AWS::SNS::Topic"}, Old={"Type": "AWS::SQS::Queue"})
    world.create(first)
    before = world.rows(world.stack())
    second = resources(
        Vpc=vpc(EnableDnsHostnames=True),
        Net=subnet("10.0.2.0/24"),
        Topic={"Type": "AWS::SNS::Topic"},
        New={"Type": "AWS::SQS::Queue", "Properties": {"DelaySeconds": "5"}, "DependsOn": "Net"},
    )
    count = len(world.events(world.stack()))
    stack = world.update(second)
    assert stack.status is StackStatus.UPDATE_COMPLETE and stack.stable is None
    assert world.events(stack)[count:] == [
        ("s", "UPDATE_IN_PROGRESS", "User Initiated"),
        ("Vpc", "UPDATE_IN_PROGRESS", ""),
        ("Vpc", "UPDATE_COMPLETE", ""),
        ("Net", "UPDATE_IN_PROGRESS", "Requested update requires the creation of a new physical resource; hence creating one."),
        ("Net", "UPDATE_IN_PROGRESS", "Resource creation Initiated"),
        ("Net", "UPDATE_COMPLETE", ""),
        ("New", "CREATE_IN_PROGRESS", ""),
        ("New", "CREATE_IN_PROGRESS", "Resource creation Initiated"),
        ("New", "CREATE_COMPLETE", ""),
        ("s", "UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", ""),
        ("Old", "DELETE_IN_PROGRESS", ""),
        ("Old", "DELETE_COMPLETE", ""),
        ("Net", "DELETE_IN_PROGRESS", ""),
        ("Net", "DELETE_COMPLETE", ""),
        ("s", "UPDATE_COMPLETE", ""),
    ]
    after = world.rows(stack)
    assert set(after) == {"Vpc", "Net", "Topic", "New"}
    assert after["Topic"] == before["Topic"] and after["Topic"].status_reason == STORED_ONLY
    assert after["Vpc"].physical_id == before["Vpc"].physical_id
    assert after["Net"].physical_id != before["Net"].physical_id
    assert after["New"].physical_id is not None and "s-New-" in after["New"].physical_id
    assert refused(lambda: world.update(second)) == "No updates are to be performed."
    world.check()


def test_a_failed_update_restores_what_was() -> None:
    world = World()
    first = resources(Vpc=vpc(), Net=subnet(), Queue={"Type": "AWS::SQS::Queue", "Properties": {"DelaySeconds": 1}})
    world.create(first)
    before, stored = world.rows(world.stack()), everything(world)
    second = resources(
        Vpc=vpc(EnableDnsHostnames=True),
        Net=subnet("10.0.2.0/24"),
        Queue={"Type": "AWS::SQS::Queue", "Properties": {"DelaySeconds": 2}},
        New={"Type": "AWS::SNS::Topic"},
        Bad={"Type": "AWS::SQS::Queue", "Properties": {"DelaySeconds": 1000}, "DependsOn": ["Queue", "Net", "New"]},
    )
    stack = world.update(second)
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    reasons = [(status, reason) for logical_id, status, reason in world.events(stack) if logical_id == "s"]
    assert reasons[-4:] == [
        ("UPDATE_IN_PROGRESS", "User Initiated"),
        ("UPDATE_ROLLBACK_IN_PROGRESS", "The following resource(s) failed to create: [Bad]. Rollback requested by user."),
        ("UPDATE_ROLLBACK_COMPLETE_CLEANUP_IN_PROGRESS", ""),
        ("UPDATE_ROLLBACK_COMPLETE", ""),
    ]
    after = world.rows(stack)
    assert {key: row.version for key, row in after.items()} == {key: row.version for key, row in before.items()}
    assert everything(world) == stored
    world.check()


def everything(world: World) -> Any:
    """All rows that describe resources, without times."""
    found = world.store.execute("SELECT service, type, region, name, document FROM stored_resource ORDER BY 1, 2, 3, 4").fetchall()
    queues = world.store.execute("SELECT * FROM queue ORDER BY 1").fetchall()
    return found, [row[:3] for row in queues]


def test_a_failed_creation_is_rolled_back_or_left() -> None:
    world = World()
    template = resources(Vpc=vpc(), Net=subnet("192.168.0.0/24"), Queue={"Type": "AWS::SQS::Queue"})
    world.call("ec2", "DescribeVpcs")  # creates the default network
    for how, status in (("ROLLBACK", "ROLLBACK_COMPLETE"), ("DO_NOTHING", "CREATE_FAILED"), ("DELETE", "DELETE_COMPLETE")):
        empty = everything(world)
        stack = world.create(template, how, on_failure=how)
        assert stack.status == status
        assert world.statuses(stack, "Net")[:2] == ["CREATE_IN_PROGRESS", "CREATE_FAILED"]
        if status != "CREATE_FAILED":
            assert everything(world) == empty
        if status != "DELETE_COMPLETE":
            message = refused(lambda: world.create(template, how))
            assert message == f"Stack [{how}] already exists"
            assert world.delete(how).status is StackStatus.DELETE_COMPLETE
        assert everything(world) == empty
        world.check()


def test_resources_of_other_lanes() -> None:
    world = World()
    template = {
        "Resources": {
            "Group": {"Type": "AWS::Logs::LogGroup", "Properties": {"RetentionInDays": 7}},
            "Alarm": {
                "Type": "AWS::CloudWatch::Alarm",
                "Properties": {
                    "AlarmName": {"Fn::Sub": "${Group}-alarm"},
                    "ComparisonOperator": "GreaterThanThreshold",
                    "EvaluationPeriods": 1,
                    "MetricName": "m",
                    "Namespace": "n",
                    "Period": 60,
                    "Statistic": "Sum",
                    "Threshold": 1,
                },
            },
        },
        "Outputs": {"Arn": {"Value": {"Fn::GetAtt": ["Alarm", "Arn"]}}},
    }
    stack = world.create(template)
    assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)
    name = world.row("Group").physical_id
    assert [group["logGroupName"] for group in world.call("logs", "DescribeLogGroups")["logGroups"]] == [name]
    template["Resources"]["Group"]["Properties"]["RetentionInDays"] = 14
    template["Resources"]["Bad"] = {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": name}, "DependsOn": "Group"}
    stack = world.update(template)
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE, world.events(stack)
    (group,) = world.call("logs", "DescribeLogGroups")["logGroups"]
    assert group["retentionInDays"] == 7
    world.check()
    world.delete()
    assert world.call("logs", "DescribeLogGroups")["logGroups"] == []
    assert world.call("cloudwatch", "DescribeAlarms")["MetricAlarms"] == []
    world.check()
