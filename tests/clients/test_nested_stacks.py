"""Nested stacks, wait conditions and signals, by boto3."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import urlopen

import pytest

from clients.stack_help import CUSTOM, WAITING, described, ended, events, given, handle_of, outputs, put, refused, wait
from eventually import eventually
from harness import Corral


@pytest.fixture
def cloudformation(corral: Corral) -> Any:
    return corral.client("cloudformation")


CHILD = """
Parameters: {Names: {Type: CommaDelimitedList}}
Resources: {P: {Type: AWS::SSM::Parameter, Properties: {Type: String, Value: !Join ["/", !Ref Names]}}}
Outputs: {Name: {Value: !Ref P}}
"""
PARENT = """
Parameters: {Url: {Type: String}, Name: {Type: String, Default: a}}
Resources:
  Child:
    Type: AWS::CloudFormation::Stack
    Properties: {TemplateURL: !Ref Url, Parameters: {Names: !Join [",", [!Ref Name, b]]}}
Outputs: {Name: {Value: !GetAtt Child.Outputs.Name}}
"""


def test_nested_stacks_and_templates_in_s3(cloudformation: Any, corral: Corral) -> None:
    s3, ssm = corral.client("s3"), corral.client("ssm")
    s3.create_bucket(Bucket="templates")
    s3.put_object(Bucket="templates", Key="a/child one.yaml", Body=CHILD)
    s3.put_object(Bucket="templates", Key="parent.yaml", Body=PARENT)
    aws_hosts = ("s3.us-east-1.amazonaws.com/templates", "templates.s3.us-east-1.amazonaws.com")
    hosts = (*(f"https://{host}" for host in aws_hosts), f"{corral.url}/templates")
    urls = [f"{host}/parent.yaml" for host in hosts]
    urls.append(s3.generate_presigned_url("get_object", Params={"Bucket": "templates", "Key": "parent.yaml"}))
    for url in urls:
        assert len(cloudformation.validate_template(TemplateURL=url)["Parameters"]) == 2
    for url, text in (
        ("https://example.com/templates/parent.yaml", "TemplateURL must be a supported URL."),
        ("ftp://s3.amazonaws.com/a/b", "TemplateURL must be a supported URL."),
        (f"{corral.url}/templates/none", "S3 error: The specified key does not exist."),
        (f"{corral.url}/none/none", "S3 error: The specified bucket does not exist"),
    ):
        code, message = refused(lambda url=url: cloudformation.validate_template(TemplateURL=url))
        assert (code, text in message) == ("ValidationError", True), message
    child_url = f"{corral.url}/templates/a/child%20one.yaml"
    cloudformation.create_stack(StackName="parent", TemplateURL=urls[0], Parameters=given(Url=child_url))
    wait(cloudformation, "parent", "create")
    stack = described(cloudformation, "parent")
    [child] = cloudformation.describe_stack_resources(StackName="parent")["StackResources"]
    nested = described(cloudformation, child["PhysicalResourceId"])
    assert (nested["ParentId"], nested["RootId"]) == (stack["StackId"], stack["StackId"])
    assert nested["StackName"].startswith("parent-Child-")
    name = outputs(stack)["Name"]
    assert ssm.get_parameter(Name=name)["Parameter"]["Value"] == "a/b"
    cloudformation.update_stack(StackName="parent", UsePreviousTemplate=True, Parameters=given(Url=child_url, Name="c"))
    wait(cloudformation, "parent", "update")
    assert ssm.get_parameter(Name=name)["Parameter"]["Value"] == "c/b"
    s3.put_object(Bucket="templates", Key="a/child one.yaml", Body=CHILD.replace('"/"', '"+"'))
    same = [{"ParameterKey": key, "UsePreviousValue": True} for key in ("Url", "Name")]
    with_failure = PARENT.replace("Outputs:", "  Failing: {Type: 'Custom::C', DependsOn: Child}\nOutputs:")
    cloudformation.update_stack(StackName="parent", TemplateBody=with_failure, Parameters=same)
    assert ended(cloudformation, "parent")["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert ssm.get_parameter(Name=name)["Parameter"]["Value"] == "c/b", "the rollback restores the template, not the object"
    cloudformation.update_stack(StackName="parent", UsePreviousTemplate=True, Parameters=same)
    wait(cloudformation, "parent", "update")
    assert ssm.get_parameter(Name=name)["Parameter"]["Value"] == "c+b", "the object at the URL has changed"
    assert refused(lambda: cloudformation.update_stack(StackName="parent", UsePreviousTemplate=True, Parameters=same)) == (
        "ValidationError", "No updates are to be performed.",
    )  # fmt: skip
    s3.put_object(Bucket="templates", Key="failing.yaml", Body=CUSTOM + "\nParameters: {Names: {Type: String}}")
    cloudformation.create_stack(
        StackName="unlucky", TemplateURL=urls[2], Parameters=given(Url=f"{corral.url}/templates/failing.yaml")
    )
    assert ended(cloudformation, "unlucky")["StackStatus"] == "ROLLBACK_COMPLETE"
    reasons = [each.get("ResourceStatusReason", "") for each in events(cloudformation, "unlucky")]
    assert any("Embedded stack arn:aws:cloudformation:" in each and "was not successfully created: " in each for each in reasons)
    for stack_name in ("unlucky", "parent"):
        cloudformation.delete_stack(StackName=stack_name)
        wait(cloudformation, stack_name, "delete")
    assert described(cloudformation, child["PhysicalResourceId"])["StackStatus"] == "DELETE_COMPLETE"
    with pytest.raises(ssm.exceptions.ParameterNotFound):
        ssm.get_parameter(Name=name)


def test_a_stack_that_contains_itself_is_refused(cloudformation: Any, corral: Corral) -> None:
    """A small template must not create stacks without end: here each of two templates has two nested stacks of the other."""
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="endless")
    for name, other in (("a", "b"), ("b", "a")):
        nested = {"Type": "AWS::CloudFormation::Stack", "Properties": {"TemplateURL": f"{corral.url}/endless/{other}"}}
        s3.put_object(Bucket="endless", Key=name, Body=json.dumps({"Resources": {"A": nested, "B": nested}}))
    cloudformation.create_stack(StackName="endless", TemplateURL=f"{corral.url}/endless/a")
    assert ended(cloudformation, "endless")["StackStatus"] == "ROLLBACK_COMPLETE"
    found = cloudformation.get_paginator("list_stacks").paginate().build_full_result()["StackSummaries"]
    stacks = [each for each in found if each["StackName"].startswith("endless")]
    assert len(stacks) <= 3, [each["StackName"] for each in stacks]
    reasons = [event.get("ResourceStatusReason", "") for each in stacks for event in events(cloudformation, each["StackId"])]
    assert any("as the stack endless, which contains it" in reason for reason in reasons), reasons


def test_a_nested_update_in_progress_is_cancelled_by_the_rollback_of_its_parent(cloudformation: Any, corral: Corral) -> None:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="cancelled")
    s3.put_object(Bucket="cancelled", Key="before", Body="Resources: {T: {Type: AWS::SNS::Topic}}")
    s3.put_object(Bucket="cancelled", Key="after", Body=WAITING.replace("Outputs:", "  T: {Type: AWS::SNS::Topic}\nOutputs:"))
    parent = "Resources: {{Child: {{Type: AWS::CloudFormation::Stack, Properties: {{TemplateURL: {}/cancelled/{}}}}}{}}}"
    cloudformation.create_stack(StackName="above", TemplateBody=parent.format(corral.url, "before", ""))
    wait(cloudformation, "above", "create")
    [child] = cloudformation.describe_stack_resources(StackName="above")["StackResources"]
    failing = ", Handle: {Type: AWS::CloudFormation::WaitConditionHandle}, Failing: " + (
        "{Type: AWS::CloudFormation::WaitCondition, Properties: {Handle: !Ref Handle, Timeout: '600'}}"
    )
    cloudformation.update_stack(StackName="above", TemplateBody=parent.format(corral.url, "after", failing))
    handle_of(cloudformation, child["PhysicalResourceId"])
    put(handle_of(cloudformation, "above"), Status="FAILURE", UniqueId="a", Reason="no")
    assert ended(cloudformation, "above")["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert ended(cloudformation, child["PhysicalResourceId"])["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    [left] = cloudformation.describe_stack_resources(StackName=child["PhysicalResourceId"])["StackResources"]
    assert left["LogicalResourceId"] == "T"
    cloudformation.delete_stack(StackName="above")
    wait(cloudformation, "above", "delete")


VPC_CHILD = """
Parameters: {Cidr: {Type: String}}
Resources: {Vpc: {Type: AWS::EC2::VPC, Properties: {CidrBlock: !Ref Cidr}}}
Outputs: {Id: {Value: !Ref Vpc}}
"""
VPC_PARENT = """
Parameters: {Url: {Type: String}, Cidr: {Type: String}, Fails: {Type: String}}
Conditions: {Fails: !Equals [!Ref Fails, "yes"]}
Resources:
  Child: {Type: AWS::CloudFormation::Stack, Properties: {TemplateURL: !Ref Url, Parameters: {Cidr: !Ref Cidr}}}
  Net: {Type: AWS::EC2::Subnet, Properties: {VpcId: !GetAtt Child.Outputs.Id, CidrBlock: !Ref Cidr}}
  Failing: {Type: "Custom::C", Condition: Fails, DependsOn: Net}
Outputs: {Id: {Value: !GetAtt Child.Outputs.Id}}
"""


def test_a_nested_stack_keeps_what_it_replaced_until_its_root_is_complete(cloudformation: Any, corral: Corral) -> None:
    s3, ec2 = corral.client("s3"), corral.client("ec2")
    s3.create_bucket(Bucket="kept")
    s3.put_object(Bucket="kept", Key="child", Body=VPC_CHILD)

    def values(cidr: str, fails: str) -> Any:
        return given(Url=f"{corral.url}/kept/child", Cidr=cidr, Fails=fails)

    def vpcs() -> list[tuple[str, str]]:
        return [(vpc["VpcId"], vpc["CidrBlock"]) for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]

    cloudformation.create_stack(StackName="root", TemplateBody=VPC_PARENT, Parameters=values("10.1.0.0/24", "no"))
    wait(cloudformation, "root", "create")
    before, shown = vpcs(), outputs(described(cloudformation, "root"))
    cloudformation.update_stack(StackName="root", UsePreviousTemplate=True, Parameters=values("10.2.0.0/24", "yes"))
    assert ended(cloudformation, "root")["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    assert (vpcs(), outputs(described(cloudformation, "root"))) == (before, shown)
    child = cloudformation.describe_stack_resource(StackName="root", LogicalResourceId="Child")["StackResourceDetail"]
    assert described(cloudformation, child["PhysicalResourceId"])["StackStatus"] == "UPDATE_ROLLBACK_COMPLETE"
    cloudformation.update_stack(StackName="root", UsePreviousTemplate=True, Parameters=values("10.3.0.0/24", "no"))
    wait(cloudformation, "root", "update")
    assert [cidr for _, cidr in vpcs()] == ["10.3.0.0/24"]
    assert described(cloudformation, child["PhysicalResourceId"])["StackStatus"] == "UPDATE_COMPLETE"
    cloudformation.delete_stack(StackName="root")
    wait(cloudformation, "root", "delete")
    assert vpcs() == []


ABOVE = """
Parameters: {Url: {Type: String}, Fails: {Type: String, Default: "no"}}
Conditions: {Fails: !Equals [!Ref Fails, "yes"]}
Resources:
  Child: {Type: AWS::CloudFormation::Stack, Properties: {TemplateURL: !Ref Url}}
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle, Condition: Fails}
  Failing:
    Type: AWS::CloudFormation::WaitCondition
    Condition: Fails
    Properties: {Handle: !If [Fails, !Ref Handle, ""], Timeout: "600"}
"""


def test_a_stack_is_deleted_while_its_nested_stack_is_in_progress(cloudformation: Any, corral: Corral) -> None:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="busy")
    s3.put_object(Bucket="busy", Key="before", Body="Resources: {T: {Type: AWS::SNS::Topic}}")
    s3.put_object(Bucket="busy", Key="after", Body=WAITING.replace("Outputs:", "  T: {Type: AWS::SNS::Topic}\nOutputs:"))
    url = f"{corral.url}/busy"
    cloudformation.create_stack(StackName="busy", TemplateBody=ABOVE, Parameters=given(Url=f"{url}/before"))
    wait(cloudformation, "busy", "create")
    [child] = cloudformation.describe_stack_resources(StackName="busy")["StackResources"]
    cloudformation.update_stack(
        StackName="busy", TemplateBody=ABOVE, Parameters=given(Url=f"{url}/after", Fails="yes"), DisableRollback=True
    )
    handle_of(cloudformation, child["PhysicalResourceId"])
    put(handle_of(cloudformation, "busy"), Status="FAILURE", UniqueId="a", Reason="no")
    arn = ended(cloudformation, "busy")["StackId"]
    assert described(cloudformation, child["PhysicalResourceId"])["StackStatus"] == "UPDATE_IN_PROGRESS"
    cloudformation.delete_stack(StackName="busy")
    assert ended(cloudformation, arn)["StackStatus"] == "DELETE_COMPLETE"
    assert described(cloudformation, child["PhysicalResourceId"])["StackStatus"] == "DELETE_COMPLETE"
    statuses = [each["ResourceStatus"] for each in events(cloudformation, child["PhysicalResourceId"])]
    assert "UPDATE_ROLLBACK_COMPLETE" in statuses


VALUE = """
Resources:
  P: {Type: AWS::SSM::Parameter, Properties: {Name: /nested/value, Type: String, Value: %s}}
"""
WAITS = """
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle}
  Done: {Type: AWS::CloudFormation::WaitCondition, DependsOn: P, Properties: {Handle: !Ref Handle, Timeout: "600"}}
"""


@pytest.mark.parametrize("late", [False, True])
def test_a_rollback_after_two_failed_updates_restores_the_first_template(cloudformation: Any, corral: Corral, late: bool) -> None:
    """`late`: the first update of the nested stack is complete only after the update of its parent has failed."""
    s3, ssm, name = corral.client("s3"), corral.client("ssm"), f"twice-{late}".lower()
    s3.create_bucket(Bucket=name)
    failing = "  Failing: {Type: 'Custom::C', DependsOn: Child}\n"

    def run(value: str, template: str, more: str = "", fails: str = "no", **options: Any) -> None:
        s3.put_object(Bucket=name, Key="child", Body=VALUE % value + more)
        values = given(Url=f"{corral.url}/{name}/child", Fails=fails)
        act = cloudformation.update_stack if value != "one" else cloudformation.create_stack
        act(StackName=name, TemplateBody=template, Parameters=values, **options)

    def now() -> str:
        return str(ssm.get_parameter(Name="/nested/value")["Parameter"]["Value"])

    run("one", ABOVE)
    wait(cloudformation, name, "create")
    [child] = cloudformation.describe_stack_resources(StackName=name)["StackResources"]
    if late:
        run("two", ABOVE, WAITS, "yes", DisableRollback=True)
        url = handle_of(cloudformation, child["PhysicalResourceId"])
        put(handle_of(cloudformation, name), Status="FAILURE", UniqueId="a", Reason="no")
        assert ended(cloudformation, name)["StackStatus"] == "UPDATE_FAILED"
        put(url, Status="SUCCESS", UniqueId="a")
        assert ended(cloudformation, child["PhysicalResourceId"])["StackStatus"] == "UPDATE_COMPLETE"
    else:
        run("two", ABOVE + failing, DisableRollback=True)
        assert ended(cloudformation, name)["StackStatus"] == "UPDATE_FAILED"
    run("three", ABOVE + failing, DisableRollback=True)
    assert (ended(cloudformation, name)["StackStatus"], now()) == ("UPDATE_FAILED", "three")
    cloudformation.rollback_stack(StackName=name)
    assert (ended(cloudformation, name)["StackStatus"], now()) == ("UPDATE_ROLLBACK_COMPLETE", "one")
    run("four", ABOVE)
    assert (ended(cloudformation, name)["StackStatus"], now()) == ("UPDATE_COMPLETE", "four")
    run("five", ABOVE + failing)
    assert (ended(cloudformation, name)["StackStatus"], now()) == ("UPDATE_ROLLBACK_COMPLETE", "four")
    cloudformation.delete_stack(StackName=name)
    wait(cloudformation, name, "delete")


def test_an_update_without_changes_of_a_nested_stack_whose_update_was_rolled_back(cloudformation: Any, corral: Corral) -> None:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="unchanged")
    s3.put_object(Bucket="unchanged", Key="good", Body="Resources: {T: {Type: AWS::SNS::Topic}}")
    s3.put_object(Bucket="unchanged", Key="bad", Body=CUSTOM)
    url = f"{corral.url}/unchanged"
    cloudformation.create_stack(StackName="unchanged", TemplateBody=ABOVE, Parameters=given(Url=f"{url}/good"))
    wait(cloudformation, "unchanged", "create")
    cloudformation.update_stack(StackName="unchanged", TemplateBody=ABOVE, Parameters=given(Url=f"{url}/bad"), DisableRollback=True)
    assert ended(cloudformation, "unchanged")["StackStatus"] == "UPDATE_FAILED"
    cloudformation.update_stack(StackName="unchanged", TemplateBody=ABOVE, Parameters=given(Url=f"{url}/good"))
    wait(cloudformation, "unchanged", "update")
    cloudformation.delete_stack(StackName="unchanged")
    wait(cloudformation, "unchanged", "delete")


def test_wait_conditions_and_signals(cloudformation: Any) -> None:
    cloudformation.create_stack(StackName="waiting", TemplateBody=WAITING)
    url = handle_of(cloudformation, "waiting")
    for wrong in ({}, {"Status": "DONE", "UniqueId": "one"}, {"Status": "SUCCESS"}):
        with pytest.raises(OSError, match="400"):
            put(url, **wrong)
    with pytest.raises(OSError, match="405"):
        urlopen(url, timeout=30)
    assert put(url, Status="SUCCESS", UniqueId="one", Data="first", Reason="r") == 200
    signal = {"StackName": "waiting", "LogicalResourceId": "Signalled", "UniqueId": "u"}
    eventually(
        lambda: cloudformation.describe_stack_resource(StackName="waiting", LogicalResourceId="Signalled"), "the condition exists"
    )
    cloudformation.signal_resource(**signal, Status="SUCCESS")
    assert described(cloudformation, "waiting")["StackStatus"] == "CREATE_IN_PROGRESS"
    assert put(url, Status="SUCCESS", UniqueId="two", Data="second", Reason="r") == 200
    wait(cloudformation, "waiting", "create")
    assert json.loads(outputs(described(cloudformation, "waiting"))["Data"]) == {"one": "first", "two": "second"}
    assert refused(lambda: cloudformation.signal_resource(**signal, Status="SUCCESS"))[0] == "ValidationError"
    cloudformation.delete_stack(StackName="waiting")
    wait(cloudformation, "waiting", "delete")
    with pytest.raises(OSError, match="404"):
        put(url, Status="SUCCESS", UniqueId="three")


JOINING = """
Resources:
  Cluster: {Type: AWS::ECS::Cluster, Properties: {ClusterName: joined}}
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle}
  Machine:
    Type: AWS::EC2::Instance
    DependsOn: Cluster
    Properties:
      ImageId: ami-0123456789abcdef0
      InstanceType: m5.large
      UserData: !Base64
        Fn::Sub: |
          #!/bin/bash
          echo ECS_CLUSTER=joined >> /etc/ecs/ecs.config
          curl -X PUT --data '{"Status": "SUCCESS", "UniqueId": "a"}' ${Handle}
  Done:
    Type: AWS::CloudFormation::WaitCondition
    DependsOn: Machine
    Properties: {Handle: !Ref Handle, Timeout: "600"}
"""


def test_an_instance_that_joined_its_cluster_counts_as_a_signal(cloudformation: Any) -> None:
    cloudformation.create_stack(StackName="joining", TemplateBody=JOINING)
    wait(cloudformation, "joining", "create")
    reasons = [each.get("ResourceStatusReason", "") for each in events(cloudformation, "joining")]
    assert any(reason.startswith("Instance i-") and "It counts as signalled" in reason for reason in reasons)
    cloudformation.delete_stack(StackName="joining")
    wait(cloudformation, "joining", "delete")


def test_a_failure_signal_fails_the_wait_condition(cloudformation: Any) -> None:
    cloudformation.create_stack(StackName="failing", TemplateBody=WAITING, DisableRollback=True)
    put(handle_of(cloudformation, "failing"), Status="FAILURE", UniqueId="one", Reason="no disk")
    assert ended(cloudformation, "failing")["StackStatus"] == "CREATE_FAILED"
    reasons = [each.get("ResourceStatusReason") for each in events(cloudformation, "failing")]
    assert "WaitCondition received failed message: 'no disk' for uniqueId: one" in reasons
    cloudformation.delete_stack(StackName="failing")
    wait(cloudformation, "failing", "delete")
