"""Values in templates that types and rows cannot take, secrets, imports, and permissions of a stack's caller."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.model.principal import ROOT, role_session
from corral.model.stack import StackStatus
from corral.services.cloudformation import stack_operations, wait_conditions
from corral.template_types.lookup import template_type
from stacks.stack_world import CALLER, REGION, World, refused, spec_of
from stacks.test_stack_operations import queue, resources, waiting
from virtual_clock.group_world import GPUS_4

TASK = Caller(CALLER.account, REGION, role_session(CALLER.account, "train", "me", ROOT), confined=True)
TRUST = {"Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}
PART = "Template format error: [/Resources/Q/{}] {} must be an object."
POLICY = "Invalid CreationPolicy: "


def failures(world: World, stack: Any, logical_id: str = "Q") -> list[str]:
    return [reason for _, status, reason in world.events(stack, logical_id) if status == "CREATE_FAILED"]


@pytest.mark.parametrize("part", ["Metadata", "CreationPolicy", "UpdatePolicy", "Properties"])
def test_a_part_of_a_resource_must_be_an_object(part: str) -> None:
    world = World()
    template = {"Conditions": {"C": {"Fn::Equals": ["a", "a"]}}, **resources(Q=queue())}
    template["Resources"]["Q"][part] = {"Fn::If": ["C", "x", {"Ref": "AWS::NoValue"}]}
    stack = world.create(template)
    assert stack.status is StackStatus.ROLLBACK_COMPLETE
    assert failures(world, stack) == [PART.format(part, part)]
    template["Resources"]["Q"][part]["Fn::If"] = ["C", {"Ref": "AWS::NoValue"}, "x"]
    assert world.create(template, "other").status is StackStatus.CREATE_COMPLETE
    template["Resources"]["Q"][part]["Fn::If"] = ["C", "x", "x"]
    spec = spec_of("other", template)
    world.run(lambda tx: stack_operations.planned_changes(tx, CALLER, world.stack("other"), spec))
    world.check()


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"ResourceSignal": "x"}, f"{POLICY}ResourceSignal must be an object."),
        ({"ResourceSignal": {"Count": "abc"}}, f"{POLICY}the Count of ResourceSignal must be a whole number: abc"),
        ({"ResourceSignal": {"Timeout": "5m"}},
         f"{POLICY}the Timeout of ResourceSignal must be an ISO 8601 duration such as PT15M: 5m"),
        ({"ResourceSignal": {}, "AutoScalingCreationPolicy": {"MinSuccessfulInstancesPercent": 101}},
         f"{POLICY}MinSuccessfulInstancesPercent must be a number from 0 to 100: 101"),
    ],
)  # fmt: skip
def test_a_creation_policy_is_checked(policy: Any, reason: str) -> None:
    world = World()
    stack = world.create(resources(Q={**queue(), "CreationPolicy": policy}))
    assert stack.status is StackStatus.ROLLBACK_COMPLETE and failures(world, stack) == [reason]
    world.check()


def test_an_update_policy_is_checked() -> None:
    world = World()
    world.create(resources(Q=queue()))
    stack = world.update(resources(Q={**queue(DelaySeconds=1), "UpdatePolicy": {"AutoScalingReplacingUpdate": "x"}}))
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert any("AutoScalingReplacingUpdate must be an object" in reason for _, _, reason in world.events(stack, "Q"))


@pytest.mark.parametrize("number", [1e40, "1e40", -1e40])
def test_a_number_with_more_than_64_bits_is_refused(number: Any) -> None:
    world = World()
    stack = world.create(resources(Q=queue(DelaySeconds=number)))
    assert stack.status is StackStatus.ROLLBACK_COMPLETE
    (reason,) = failures(world, stack)
    assert reason.startswith("Properties validation failed for resource Q with message:\n#/DelaySeconds: expected type: Number")


def test_a_secure_value_is_given_to_the_type_only() -> None:
    world = World()
    world.call("ssm", "PutParameter", Name="/secret", Type="SecureString", Value="hush-hush")
    reference = "{{resolve:ssm-secure:/secret:1}}"
    secret = {"Type": "AWS::SSM::Parameter", "Properties": {"Name": "/copy", "Type": "String", "Value": f"<{reference}>"}}
    template = {**resources(Copy=secret, Q=queue()), "Outputs": {"O": {"Value": reference}}}
    stack = world.create(template)
    assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)
    assert world.call("ssm", "GetParameter", Name="/copy")["Parameter"]["Value"] == "<hush-hush>"
    assert world.row("Copy").version.properties["Value"] == f"<{reference}>"
    assert stack.version.outputs[0].value == reference
    texts = [str(row) for row in world.store.execute("SELECT * FROM stack_event").fetchall()]
    assert texts and not any("hush-hush" in text for text in texts)
    secret["Properties"]["Value"] = "{{resolve:ssm-secure:/none}}"
    stack = world.update(template)
    assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE
    assert any("ssm-secure:/none" in reason for _, _, reason in world.events(stack, "Copy"))
    template["Resources"] = {**resources(G={"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": reference}})["Resources"]}
    stack = world.create({"Resources": template["Resources"]}, "logs")
    assert failures(world, stack, "G") == ["SSM Secure reference is not supported in: [AWS::Logs::LogGroup/Properties]"]
    world.call("ssm", "DeleteParameter", Name="/secret")
    assert world.delete().status is StackStatus.DELETE_COMPLETE
    world.check()


@pytest.mark.parametrize("place", ["UpdatePolicy", "CreationPolicy", "Export"])
def test_imports_are_found_everywhere(place: str) -> None:
    world = World()
    exported = {**resources(Q=queue()), "Outputs": {"O": {"Value": "2", "Export": {"Name": "shared"}}}}
    world.create(exported, "owner")
    imported, template = {"Fn::ImportValue": "shared"}, resources(Q=queue())
    if place == "UpdatePolicy":
        template["Resources"]["Q"]["UpdatePolicy"] = {"AutoScalingRollingUpdate": {"MaxBatchSize": imported}}
    elif place == "CreationPolicy":
        template["Resources"]["Q"]["CreationPolicy"] = {"AutoScalingCreationPolicy": {"MinSuccessfulInstancesPercent": imported}}
    else:
        template["Outputs"] = {"O": {"Value": "x", "Export": {"Name": {"Fn::Join": ["-", ["name", imported]]}}}}
    assert world.create(template, "user").status is StackStatus.CREATE_COMPLETE
    assert refused(lambda: world.delete("owner")) == "Export shared cannot be deleted as it is in use by user"


def test_a_wait_condition_sees_a_group_that_is_created_after_it() -> None:
    world = World()
    script = {"Fn::Base64": {"Fn::Sub": "curl -X PUT ${Handle}"}}
    configuration = {"ImageId": "ami-1", "InstanceType": GPUS_4, "UserData": script}
    group = {"LaunchConfigurationName": {"Ref": "Launch"}, "AvailabilityZones": {"Fn::GetAZs": ""}, "MinSize": "1", "MaxSize": "1"}
    template = resources(
        Handle={"Type": "AWS::CloudFormation::WaitConditionHandle"},
        Done={"Type": "AWS::CloudFormation::WaitCondition", "Properties": {"Handle": {"Ref": "Handle"}, "Timeout": "600"}},
        Before=waiting(3600),
        Launch={"Type": "AWS::AutoScaling::LaunchConfiguration", "Properties": configuration, "DependsOn": "Before"},
        Group={"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": group},
    )
    world.create(template)
    world.wait(60)
    world.run(lambda tx: stack_operations.signal(tx, world.stack(), "Before", "a", "SUCCESS"))
    world.wait(60)
    stack = world.stack()
    assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)
    world.check()


@pytest.mark.parametrize("member", ["UniqueId", "Data"])
def test_a_signal_is_limited(member: str) -> None:
    world = World()
    url = world.run(lambda tx: wait_conditions.create_handle(tx, CALLER, {}))
    secret = url.rpartition("/")[2]
    signal = {"Status": "SUCCESS", "UniqueId": "a", "Data": "b"}
    world.run(lambda tx: wait_conditions.receive_signal(tx, REGION, secret, {**signal, member: "x" * 4096}))
    assert refused(
        lambda: world.run(lambda tx: wait_conditions.receive_signal(tx, REGION, secret, {**signal, member: "x" * 4097}))
    ) == (f"{member} must have at most 4096 characters, but has 4097.")


@pytest.mark.parametrize("allowed", [False, True])
def test_another_instance_profile_needs_the_permission_to_pass_its_role(allowed: bool) -> None:
    world = World()
    statement = {"Effect": "Allow", "Action": ["ec2:*", *(["iam:PassRole"] if allowed else [])], "Resource": "*"}
    for name, document in (("train", {"Statement": [{**statement}]}), ("strong", None)):
        world.call("iam", "CreateRole", RoleName=name, AssumeRolePolicyDocument=orjson.dumps(TRUST).decode())
        if document is not None:
            text = orjson.dumps({"Version": "2012-10-17", **document}).decode()
            world.call("iam", "PutRolePolicy", RoleName=name, PolicyName="p", PolicyDocument=text)
    world.call("iam", "CreateInstanceProfile", InstanceProfileName="p")
    world.call("iam", "AddRoleToInstanceProfile", InstanceProfileName="p", RoleName="strong")
    type_ = template_type("AWS::EC2::Instance")
    assert type_ is not None
    plain = {"ImageId": "ami-1", "InstanceType": "c5.large", "_tags": {}}
    identity = world.run(lambda tx: type_.create(tx, TASK, plain))

    def update(tx: Any) -> None:
        type_.update(tx, TASK, identity, plain, {**plain, "IamInstanceProfile": "p"})

    def launch(tx: Any) -> str:
        return type_.create(tx, TASK, {**plain, "IamInstanceProfile": "p"})

    for act in (update, launch):
        if allowed:
            world.run(act)
            continue
        with pytest.raises(ApiError, match=r"not authorized to perform: iam:PassRole on resource: .*:role/strong"):
            world.run(act)
