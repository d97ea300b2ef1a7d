"""Stack operations from beginning to end: the order of steps, statuses, events and what is left."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.stack import StackStatus
from corral.services.cloudformation import stack_operations, step_execution
from corral.template_types.lookup import stored_only_reason
from stacks.stack_world import CALLER, World, refused, spec_of


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
        ("Vpc", "CREATE_COMPLETE", stored_only_reason("AWS::EC2::VPC")),
        ("Net", "CREATE_IN_PROGRESS", ""),
        ("Net", "CREATE_IN_PROGRESS", "Resource creation Initiated"),
        ("Net", "CREATE_COMPLETE", stored_only_reason("AWS::EC2::Subnet")),
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
    first = resources(Vpc=vpc(), Net=subnet(), Topic={"Type": "AWS::KMS::Key"}, Old={"Type": "AWS::SQS::Queue"})
    world.create(first)
    before = world.rows(world.stack())
    second = resources(
        Vpc=vpc(EnableDnsHostnames=True),
        Net=subnet("10.0.2.0/24"),
        Topic={"Type": "AWS::KMS::Key"},
        New={"Type": "AWS::SQS::Queue", "Properties": {"DelaySeconds": "5"}, "DependsOn": "Net"},
    )
    count = len(world.events(world.stack()))
    stack = world.update(second)
    assert stack.status is StackStatus.UPDATE_COMPLETE and stack.stable is None
    assert world.events(stack)[count:] == [
        ("s", "UPDATE_IN_PROGRESS", "User Initiated"),
        ("Vpc", "UPDATE_IN_PROGRESS", ""),
        ("Vpc", "UPDATE_COMPLETE", stored_only_reason("AWS::EC2::VPC")),
        ("Net", "UPDATE_IN_PROGRESS", "Requested update requires the creation of a new physical resource; hence creating one."),
        ("Net", "UPDATE_IN_PROGRESS", "Resource creation Initiated"),
        ("Net", "UPDATE_COMPLETE", stored_only_reason("AWS::EC2::Subnet")),
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
    assert after["Topic"] == before["Topic"] and after["Topic"].status_reason == stored_only_reason("AWS::KMS::Key")
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


@pytest.mark.parametrize(
    "how, status", [("ROLLBACK", "ROLLBACK_COMPLETE"), ("DO_NOTHING", "CREATE_FAILED"), ("DELETE", "DELETE_COMPLETE")]
)
def test_a_failed_creation_is_rolled_back_or_left(how: str, status: str) -> None:
    world = World()
    template = resources(Vpc=vpc(), Net=subnet("192.168.0.0/24"), Queue={"Type": "AWS::SQS::Queue"})
    world.call("ec2", "DescribeVpcs")  # creates the default network
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


def queue(**properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::SQS::Queue", "Properties": properties}


def waiting(seconds: int = 600, **more: Any) -> dict[str, Any]:
    """A stored-only resource that waits for a signal, so that an operation stays in progress."""
    signal = {"ResourceSignal": {"Timeout": f"PT{seconds}S"}}
    return {"Type": "AWS::SNS::Topic", "CreationPolicy": signal, **more}


def send(world: World, logical_id: str, unique_id: str, status: str) -> None:
    world.run(lambda tx: stack_operations.signal(tx, world.stack(), logical_id, unique_id, status))
    world.settle()


def test_signals() -> None:
    world = World()
    template = resources(Wait=waiting(), After={**queue(), "DependsOn": "Wait"})
    template["Resources"]["Wait"]["CreationPolicy"]["ResourceSignal"]["Count"] = 2
    stack = world.create(template)
    assert stack.status is StackStatus.CREATE_IN_PROGRESS and "After" not in world.rows(stack)
    assert refused(lambda: send(world, "None", "a", "SUCCESS")) == "Resource None does not exist for stack s"
    send(world, "Wait", "a", "SUCCESS")
    assert refused(lambda: send(world, "Wait", "a", "SUCCESS")) == (
        "Signal with ID a for resource Wait already exists. Signals may only be updated with a FAILURE status."
    )
    (shown,) = world.call("cloudformation", "ListStackResources", StackName="s")["StackResourceSummaries"]
    assert (shown["ResourceStatus"], shown["ResourceStatusReason"]) == ("CREATE_IN_PROGRESS", "Received 1 of 2 resource signal(s).")
    send(world, "Wait", "b", "SUCCESS")
    stack = world.stack()
    assert stack.status is StackStatus.CREATE_COMPLETE
    shown = world.call("cloudformation", "DescribeStackResource", StackName="s", LogicalResourceId="Wait")["StackResourceDetail"]
    assert "ResourceStatusReason" not in shown
    assert [reason for _, _, reason in world.events(stack, "Wait")][2:4] == [
        "Received SUCCESS signal with UniqueId a",
        "Received SUCCESS signal with UniqueId b",
    ]
    assert refused(lambda: send(world, "Wait", "c", "SUCCESS")) == (
        "Resource Wait is in CREATE_COMPLETE state and can not be signaled."
    )
    world.check()


def test_a_failure_signal_or_none_at_all_fails_the_creation() -> None:
    for ends, reason in (
        (lambda world: send(world, "Wait", "a", "FAILURE"), "Received 1 FAILURE signal(s) out of 1."),
        (lambda world: world.wait(601), "Failed to receive 1 resource signal(s) within the specified duration"),
    ):
        world = World()
        stack = world.create(resources(Wait=waiting(), Other=queue()))
        world.wait(599)
        assert world.stack().status is StackStatus.CREATE_IN_PROGRESS
        ends(world)
        stack = world.stack()
        assert stack.status is StackStatus.ROLLBACK_COMPLETE
        failed = [text for _, status, text in world.events(stack, "Wait") if status == "CREATE_FAILED"]
        assert len(failed) == 1 and failed[0].startswith(reason)
        world.check()


def test_a_creation_with_a_timeout() -> None:
    world = World()
    world.create(resources(Wait=waiting(3600), Other=queue()), timeout_minutes=2)
    world.wait(119)
    assert world.stack().status is StackStatus.CREATE_IN_PROGRESS
    world.wait(2)
    stack = world.stack()
    assert stack.status is StackStatus.ROLLBACK_COMPLETE
    assert ("Wait", "CREATE_FAILED", "Resource creation cancelled") in world.events(stack)
    text = "Stack creation time exceeded the specified timeout. Rollback requested by user."
    assert ("s", "ROLLBACK_IN_PROGRESS", text) in world.events(stack)
    world.check()


def test_an_operation_in_progress_refuses_others() -> None:
    world = World()
    template = resources(Wait=waiting())
    stack = world.create(template)
    assert refused(lambda: world.update(resources(Q=queue()))) == (
        f"Stack:{stack.id} is in CREATE_IN_PROGRESS state and can not be updated."
    )
    assert refused(lambda: cancel(world)) == "CancelUpdateStack cannot be called from current stack status"
    stack = world.delete()
    assert stack.status is StackStatus.DELETE_COMPLETE
    assert ("Wait", "CREATE_FAILED", "Resource creation cancelled") in world.events(stack)
    world.create(resources(Q=queue()))
    world.update(resources(Q=queue(), Wait=waiting()))
    stack = world.stack()
    assert refused(world.delete) == f"Stack [{stack.id}] cannot be deleted while in status UPDATE_IN_PROGRESS"
    assert refused(lambda: world.update(resources(Q=queue()))) == (
        f"Stack:{stack.id} is in UPDATE_IN_PROGRESS state and can not be updated."
    )


def cancel(world: World) -> None:
    world.run(lambda tx: stack_operations.cancel_update(tx, world.stack()))
    world.settle()


def test_a_cancelled_update_is_rolled_back() -> None:
    world = World()
    first = resources(Q=queue(DelaySeconds=1))
    world.create(first)
    before = world.row("Q").version
    world.update(resources(Q=queue(DelaySeconds=2), Wait={**waiting(), "DependsOn": "Q"}))
    assert world.row("Q").version.properties["DelaySeconds"] == 2
    cancel(world)
    stack = world.stack()
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert world.row("Q").version == before and set(world.rows(stack)) == {"Q"}
    assert ("s", "UPDATE_ROLLBACK_IN_PROGRESS", "User Initiated") in world.events(stack)
    assert ("Wait", "CREATE_FAILED", "Resource creation cancelled") in world.events(stack)
    world.check()


@pytest.mark.parametrize("skip", [(), ("Q",)])
def test_a_failed_rollback_can_be_continued(skip: tuple[str, ...]) -> None:
    world = World()
    world.create(resources(Q=queue(QueueName="q", DelaySeconds=1)))
    before = world.row("Q").version
    world.update(resources(Q=queue(QueueName="q", DelaySeconds=2), Wait={**waiting(), "DependsOn": "Q"}))
    world.call("sqs", "DeleteQueue", QueueUrl=before.physical_id)
    cancel(world)
    stack = world.stack()
    assert stack.status is StackStatus.UPDATE_ROLLBACK_FAILED, world.events(stack)
    assert stack.status_reason == "The following resource(s) failed to update: [Q]. "
    assert refused(lambda: world.update(resources(Q=queue()))) == (
        f"Stack:{world.stack().id} is in UPDATE_ROLLBACK_FAILED state and can not be updated."
    )
    if not skip:
        world.wait(61)  # a deleted queue's name can be used again
        world.call("sqs", "CreateQueue", QueueName="q")
    world.run(lambda tx: stack_operations.continue_rollback(tx, CALLER, world.stack(), skip))
    world.settle()
    stack = world.stack()
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE, world.events(stack)
    assert world.row("Q").version == before
    world.check()


def test_rollback_can_be_disabled() -> None:
    world = World()
    first = resources(Q=queue(DelaySeconds=1))
    world.create(first)
    before = world.row("Q").version
    bad = resources(Q=queue(DelaySeconds=2), Net=subnet(vpc="Vpc"), Vpc=vpc(), Bad={**queue(DelaySeconds=5000), "DependsOn": "Net"})
    stack = world.update(bad, disable_rollback=True)
    assert stack.status is StackStatus.UPDATE_FAILED
    assert stack.status_reason == "The following resource(s) failed to create: [Bad]. "
    world.check()
    bad["Resources"]["Bad"]["Properties"]["DelaySeconds"] = 3
    bad["Resources"]["Net"]["Properties"]["CidrBlock"] = "10.0.7.0/24"
    bad["Resources"]["Worse"] = {**queue(DelaySeconds=5000), "DependsOn": "Bad"}
    assert world.update(bad, disable_rollback=True).status is StackStatus.UPDATE_FAILED
    world.run(lambda tx: stack_operations.rollback_stack(tx, CALLER, world.stack()))
    world.settle()
    stack = world.stack()
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert {key: row.version for key, row in world.rows(stack).items()} == {"Q": before}
    assert world.call("ec2", "DescribeSubnets")["Subnets"] == [
        subnet for subnet in world.call("ec2", "DescribeSubnets")["Subnets"] if subnet["DefaultForAz"]
    ]
    world.check()


def test_a_stack_whose_resource_cannot_be_deleted() -> None:
    world = World()
    template = resources(Vpc=vpc(), Q=queue(), Net=subnet())
    world.create(template)
    other = world.call("ec2", "CreateSubnet", VpcId=world.row("Vpc").physical_id, CidrBlock="10.0.9.0/24")["Subnet"]["SubnetId"]
    assert "Specify resources to retain only" in refused(lambda: world.delete(retain=("Vpc",)))
    stack = world.delete()
    assert stack.status is StackStatus.DELETE_FAILED
    assert stack.status_reason == "The following resource(s) failed to delete: [Vpc]. "
    assert world.statuses(stack, "Q")[-1] == "DELETE_COMPLETE"
    world.check()
    assert world.delete().status is StackStatus.DELETE_FAILED
    assert "valid state" in refused(lambda: world.delete(retain=("Q",)))
    stack = world.delete(retain=("Vpc",))
    assert stack.status is StackStatus.DELETE_COMPLETE
    assert world.statuses(stack, "Vpc")[-1] == "DELETE_SKIPPED"
    assert world.call("ec2", "DescribeSubnets", SubnetIds=[other])["Subnets"]
    world.check()


def test_policies_retain_resources() -> None:
    world = World()
    template = resources(
        Kept={**queue(QueueName="kept"), "DeletionPolicy": "Retain"},
        Replaced={**queue(QueueName="replaced"), "UpdateReplacePolicy": "Retain"},
        Later={**queue(QueueName="later"), "DeletionPolicy": "RetainExceptOnCreate"},
    )
    world.create(template)
    template["Resources"]["Replaced"]["Properties"]["QueueName"] = "new"
    del template["Resources"]["Kept"]
    stack = world.update(template)
    assert stack.status is StackStatus.UPDATE_COMPLETE
    assert world.statuses(stack, "Kept")[-1] == "DELETE_SKIPPED" and world.statuses(stack, "Replaced")[-1] == "DELETE_SKIPPED"
    assert world.statuses(world.delete(), "Later")[-1] == "DELETE_SKIPPED"
    urls = world.call("sqs", "ListQueues")["QueueUrls"]
    assert sorted(url.rpartition("/")[2] for url in urls) == ["kept", "later", "replaced"]
    bad = resources(Later={**queue(QueueName="l2"), "DeletionPolicy": "RetainExceptOnCreate"}, Bad=queue(DelaySeconds=5000))
    assert world.create(bad).status is StackStatus.ROLLBACK_COMPLETE
    assert len(world.call("sqs", "ListQueues")["QueueUrls"]) == 3
    bad = resources(Kept={**queue(QueueName="k2"), "DeletionPolicy": "Retain"}, Bad=queue(DelaySeconds=5000))
    assert world.create(bad, "excepted", retain_except_on_create=True).status is StackStatus.ROLLBACK_COMPLETE
    assert len(world.call("sqs", "ListQueues")["QueueUrls"]) == 3
    assert world.create(bad, "kept").status is StackStatus.ROLLBACK_COMPLETE
    assert len(world.call("sqs", "ListQueues")["QueueUrls"]) == 4
    world.check()


def test_exports_and_imports() -> None:
    world = World()

    def exporter(value: Any, name: str = "shared") -> dict[str, Any]:
        return {**resources(Q=queue(QueueName="q")), "Outputs": {"O": {"Value": value, "Export": {"Name": name}}}}

    def importer(name: str = "shared") -> dict[str, Any]:
        return resources(P=queue(Tags=[{"Key": "k", "Value": {"Fn::ImportValue": {"Fn::Sub": name}}}]))

    assert refused(lambda: world.create(importer(), "user")) == "No export named shared found."
    assert world.store.stacks.named("us-east-1", "user") is None
    world.create(exporter("one"), "owner")
    assert world.create(importer(), "user").status is StackStatus.CREATE_COMPLETE
    assert world.row("P", "user").version.properties["Tags"] == [{"Key": "k", "Value": "one"}]
    assert refused(lambda: world.delete("owner")) == "Export shared cannot be deleted as it is in use by user"
    for value, name, verb in (("two", "shared", "updated"), ("one", "other", "deleted")):
        stack = world.update(exporter(value, name), "owner")
        assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
        text = f"Export shared cannot be {verb} as it is in use by user"
        assert ("owner", "UPDATE_ROLLBACK_IN_PROGRESS", text) in world.events(stack)
        assert [(each.value, each.export_name) for each in stack.version.outputs] == [("one", "shared")]
    second = {**resources(T={"Type": "AWS::SNS::Topic"}), "Outputs": {"O": {"Value": "x", "Export": {"Name": "shared"}}}}
    stack = world.create(second, "second")
    assert stack.status is StackStatus.ROLLBACK_COMPLETE
    assert "Export with name shared is already exported by stack owner" in stack_reasons(world, stack)
    world.update(resources(P=queue()), "user")
    assert world.delete("owner").status is StackStatus.DELETE_COMPLETE
    assert world.store.stacks.exports("us-east-1") == []
    world.check()


def stack_reasons(world: World, stack: Any) -> list[str]:
    return [reason for _, _, reason in world.events(stack, stack.name)]


def test_replacing_a_named_resource_and_changing_a_type_is_refused() -> None:
    world = World()
    world.create(resources(Q=queue(QueueName="q.fifo", FifoQueue=True), T={"Type": "AWS::SNS::Topic"}))
    stack = world.update(resources(Q=queue(QueueName="q.fifo", FifoQueue=False), T=queue()))
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    reasons = [reason for _, status, reason in world.events(stack) if status == "UPDATE_FAILED"]
    assert any("custom-named resource requires replacing" in reason for reason in reasons) or (
        "Update to resource type is not supported." in reasons
    )
    assert {row.status.value for row in world.rows(stack).values()} <= {"CREATE_COMPLETE", "UPDATE_COMPLETE"}
    world.check()


def test_a_bug_of_a_type_fails_the_step_only() -> None:
    world = World()

    def handler(tx: Any) -> tuple[Any, str]:
        return step_execution.attempt(tx, "Q", lambda: tx.store.clusters.put("r", "c", "ACTIVE", {}) or 1 / 0)

    assert world.run(handler) == (None, "Internal Failure")
    assert world.store.clusters.get("r", "c") is None


def test_deleted_stacks_expire_after_90_days() -> None:
    world = World()
    world.create(resources(Q=queue()))
    stack = world.delete()
    world.wait(89 * 86_400)
    assert world.store.stacks.get(stack.id) is not None
    world.wait(2 * 86_400)
    assert world.store.stacks.get(stack.id) is None
    assert world.store.execute("SELECT count(*) FROM stack_event").fetchone() == (0,)


def test_a_large_template_takes_small_steps_and_an_update_touches_one() -> None:
    world = World()
    template = resources(**{f"Topic{at}": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": "a"}} for at in range(500)})
    stack = world.create(template)
    assert stack.status is StackStatus.CREATE_COMPLETE and world.batches >= 500 / 5
    before, count = world.rows(stack), len(world.events(stack))
    template["Resources"]["Topic77"]["Properties"]["DisplayName"] = "b"
    stack = world.update(template)
    after = world.rows(stack)
    assert {key for key in after if after[key] != before[key]} == {"Topic77"}
    assert len(world.events(stack)) == count + 5
    world.check()


def test_planned_changes() -> None:
    world = World()
    first = {
        "Parameters": {"Delay": {"Type": "Number"}},
        **resources(
            Q=queue(DelaySeconds={"Ref": "Delay"}),
            Vpc=vpc(),
            Net=subnet(),
            Copy=queue(Tags=[{"Key": "k", "Value": {"Fn::GetAtt": ["Q", "Arn"]}}]),
            Name=queue(Tags=[{"Key": "k", "Value": {"Fn::Sub": "${Q}"}}]),
            Gone=queue(),
        ),
    }
    second = {**first, "Resources": {**first["Resources"], "Vpc": vpc("10.1.0.0/16"), "New": queue()}}
    del second["Resources"]["Gone"]
    world.create(first, parameters={"Delay": "1"})
    spec = spec_of("s", second, {"Delay": "2"})
    changes = world.run(lambda tx: stack_operations.planned_changes(tx, CALLER, world.stack(), spec))
    seen = {
        each.logical_id: (
            each.action,
            each.replacement,
            [
                (at.name, at.requires_recreation, at.evaluation, at.change_source, at.causing_entity)
                for at in each.details
                if not at.is_with_values
            ],
        )
        for each in changes
    }
    assert seen == {
        "Copy": ("Modify", "False", [("Tags", "Never", "Dynamic", "ResourceAttribute", "Q.Arn")]),
        "Gone": ("Remove", "", []),
        "Net": ("Modify", "True", [("VpcId", "Always", "Static", "ResourceReference", "Vpc")]),
        "New": ("Add", "", []),
        "Q": (
            "Modify",
            "False",
            [
                ("DelaySeconds", "Never", "Static", "ParameterReference", "Delay"),
                ("DelaySeconds", "Never", "Dynamic", "DirectModification", ""),
            ],
        ),
        "Vpc": ("Modify", "True", [("CidrBlock", "Always", "Static", "DirectModification", "")]),
    }
    planned = world.run(lambda tx: stack_operations.planned_changes(tx, CALLER, None, spec))
    assert {each.action for each in planned} == {"Add"} and len(planned) == 6
