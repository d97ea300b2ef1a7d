"""Stacks, by boto3 and the aws command: lifecycle, refused templates, exports, nested stacks, wait conditions, signals."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError, WaiterError

from eventually import eventually
from harness import Corral

QUICKLY = {"Delay": 0.1, "MaxAttempts": 300}
QUEUES = """
Description: two queues
Parameters:
  Suffix: {Type: String, Default: a, AllowedPattern: "[a-z]+"}
  Secret: {Type: String, NoEcho: true, Default: hush}
  Zones: {Type: CommaDelimitedList, Default: "x, y"}
  Image: {Type: "AWS::SSM::Parameter::Value<String>", Default: /stacks/image}
Resources:
  First:
    Type: AWS::SQS::Queue
    Properties: {QueueName: !Sub "${AWS::StackName}-${Suffix}"}
  Second:
    Type: AWS::SQS::Queue
    Properties:
      VisibilityTimeout: "45"
      RedrivePolicy: {deadLetterTargetArn: !GetAtt First.Arn, maxReceiveCount: 3}
Outputs:
  Url: {Value: !Ref Second, Description: the second queue}
  Zone: {Value: !Select [1, !Ref Zones]}
  Image: {Value: !Ref Image}
"""


@pytest.fixture(scope="module", autouse=True)
def parameters(corral: Corral) -> None:
    corral.client("ssm").put_parameter(Name="/stacks/image", Type="String", Value="ami-1")


@pytest.fixture
def cloudformation(corral: Corral) -> Any:
    return corral.client("cloudformation")


def wait(cloudformation: Any, name: str, for_: str) -> None:
    cloudformation.get_waiter(f"stack_{for_}_complete").wait(StackName=name, WaiterConfig=QUICKLY)


def described(cloudformation: Any, name: str) -> dict[str, Any]:
    [found] = cloudformation.describe_stacks(StackName=name)["Stacks"]
    return found


def ended(cloudformation: Any, name: str) -> dict[str, Any]:
    """Wait until no operation of the stack is in progress."""

    def settled() -> Any:
        found = described(cloudformation, name)
        return None if found["StackStatus"].endswith("_IN_PROGRESS") else found

    return eventually(settled, f"the operation of {name} ends")


def outputs(stack: dict[str, Any]) -> dict[str, str]:
    return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def events(cloudformation: Any, name: str) -> list[dict[str, Any]]:
    """All events, oldest first."""
    pages = cloudformation.get_paginator("describe_stack_events").paginate(StackName=name)
    return [event for page in pages for event in page["StackEvents"]][::-1]


def refused(call: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def given(**values: str) -> list[dict[str, str]]:
    return [{"ParameterKey": key, "ParameterValue": value} for key, value in values.items()]


def test_create_update_delete(cloudformation: Any, corral: Corral) -> None:
    sqs = corral.client("sqs")
    arn = cloudformation.create_stack(
        StackName="queues", TemplateBody=QUEUES, Parameters=given(Suffix="b"), Tags=[{"Key": "team", "Value": "red"}]
    )["StackId"]
    wait(cloudformation, "queues", "create")
    stack = described(cloudformation, "queues")
    assert (stack["StackId"], stack["StackStatus"], stack["Description"]) == (arn, "CREATE_COMPLETE", "two queues")
    assert stack["Tags"] == [{"Key": "team", "Value": "red"}] and stack["EnableTerminationProtection"] is False
    assert {each["ParameterKey"]: each for each in stack["Parameters"]} == {
        "Suffix": {"ParameterKey": "Suffix", "ParameterValue": "b"},
        "Secret": {"ParameterKey": "Secret", "ParameterValue": "****"},
        "Zones": {"ParameterKey": "Zones", "ParameterValue": "x, y"},
        "Image": {"ParameterKey": "Image", "ParameterValue": "/stacks/image", "ResolvedValue": "ami-1"},
    }
    shown = outputs(stack)
    assert (shown["Zone"], shown["Image"]) == ("y", "ami-1")
    second = shown["Url"]
    assert sqs.get_queue_attributes(QueueUrl=second, AttributeNames=["All"])["Attributes"]["VisibilityTimeout"] == "45"
    resources = cloudformation.describe_stack_resources(StackName="queues")["StackResources"]
    assert [(each["LogicalResourceId"], each["ResourceStatus"]) for each in resources] == [
        ("First", "CREATE_COMPLETE"), ("Second", "CREATE_COMPLETE"),
    ]  # fmt: skip
    assert cloudformation.describe_stack_resources(PhysicalResourceId=second)["StackResources"][0]["StackId"] == arn
    detail = cloudformation.describe_stack_resource(StackName=arn, LogicalResourceId="Second")["StackResourceDetail"]
    assert (detail["PhysicalResourceId"], detail["ResourceType"]) == (second, "AWS::SQS::Queue")
    listed = cloudformation.list_stack_resources(StackName="queues")["StackResourceSummaries"]
    assert [each["PhysicalResourceId"] for each in listed] == [each["PhysicalResourceId"] for each in resources]
    happened = [(each["LogicalResourceId"], each["ResourceStatus"]) for each in events(cloudformation, "queues")]
    assert happened[0] == ("queues", "CREATE_IN_PROGRESS") and happened[-1] == ("queues", "CREATE_COMPLETE")
    assert happened.index(("First", "CREATE_COMPLETE")) < happened.index(("Second", "CREATE_IN_PROGRESS"))
    previous = [{"ParameterKey": "Suffix", "UsePreviousValue": True}]
    assert refused(
        lambda: cloudformation.update_stack(StackName="queues", UsePreviousTemplate=True, Parameters=previous)
    ) == ("ValidationError", "No updates are to be performed.")  # fmt: skip
    before = len(events(cloudformation, "queues"))
    changed = QUEUES.replace('"45"', '"50"')
    cloudformation.update_stack(StackName="queues", TemplateBody=changed, Parameters=previous)
    wait(cloudformation, "queues", "update")
    assert sqs.get_queue_attributes(QueueUrl=second, AttributeNames=["All"])["Attributes"]["VisibilityTimeout"] == "50"
    touched = {each["LogicalResourceId"] for each in events(cloudformation, "queues")[before:]}
    assert touched == {"queues", "Second"}
    assert described(cloudformation, "queues")["LastUpdatedTime"]
    cloudformation.delete_stack(StackName="queues")
    wait(cloudformation, arn, "delete")
    assert refused(lambda: cloudformation.describe_stacks(StackName="queues")) == (
        "ValidationError", "Stack with id queues does not exist",
    )  # fmt: skip
    assert described(cloudformation, arn)["StackStatus"] == "DELETE_COMPLETE"
    gone = cloudformation.list_stacks(StackStatusFilter=["DELETE_COMPLETE"])["StackSummaries"]
    assert [each["StackId"] for each in gone].count(arn) == 1 and all("DeletionTime" in each for each in gone)
    assert all(each["StackId"] != arn for each in cloudformation.describe_stacks()["Stacks"])
    assert not sqs.list_queues(QueueNamePrefix="queues").get("QueueUrls")
    cloudformation.delete_stack(StackName="queues")  # no error, as on AWS


TOPIC = "{T: {Type: AWS::SNS::Topic}}"
WRONG = {
    "cycle": (
        "Resources: {A: {Type: AWS::SNS::Topic, DependsOn: B}, B: {Type: AWS::SNS::Topic, DependsOn: A}}",
        "Circular dependency between resources: [A, B]",
    ),
    "unknown Ref": (
        "Resources: {A: {Type: AWS::SNS::Topic, Properties: {TopicName: !Ref Nothing}}}",
        "Template format error: Unresolved resource dependencies [Nothing] in the Resources block of the template",
    ),
    "unknown type": (
        "Resources: {A: {Type: AWS::SNS::Tropic}}",
        "Template format error: Unrecognized resource types: [AWS::SNS::Tropic]",
    ),
    "unknown function": (
        "Resources: {A: {Type: AWS::SNS::Topic, Properties: {TopicName: {'Fn::Nothing': a}}}}",
        "Template error: Encountered unsupported function: Fn::Nothing",
    ),
    "missing parameter": (
        f"Parameters: {{P: {{Type: String}}}}\nResources: {TOPIC}",
        "Parameters: [P] must have values",
    ),
    "no resources": ("Description: a", "Template format error: At least one Resources member must be defined."),
    "not a template": ("just text", "Template format error: unsupported structure."),
    "bad yaml": ("Resources: [", "Template format error: YAML not well-formed."),
    "bomb": (
        "\n".join(["a: &a [x, x]", *(f"{b}: &{b} [*{a}, *{a}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True))]),
        "YAML aliases are not allowed in CloudFormation templates",
    ),
    "transform": (f"Transform: AWS::Serverless-2016-10-31\nResources: {TOPIC}", "AWS::Serverless-2016-10-31"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_template_is_refused_and_creates_nothing(cloudformation: Any, case: str) -> None:
    template, text = WRONG[case]
    code, message = refused(lambda: cloudformation.create_stack(StackName="wrong", TemplateBody=template))
    assert (code, text in message) == ("ValidationError", True), message
    code, message = refused(
        lambda: cloudformation.create_change_set(
            StackName="wrong", ChangeSetName="c", ChangeSetType="CREATE", TemplateBody=template
        )
    )
    assert (code, text in message) == ("ValidationError", True), message
    assert refused(lambda: cloudformation.describe_stacks(StackName="wrong"))[0] == "ValidationError"


def test_large_templates_are_refused(cloudformation: Any, corral: Corral) -> None:
    body = json.dumps({"Description": "d" * 2_000_000, "Resources": {"T": {"Type": "AWS::SNS::Topic"}}})
    code, message = refused(lambda: cloudformation.create_stack(StackName="large", TemplateBody=body))
    assert code == "ValidationError"
    assert message.endswith("at 'templateBody' failed to satisfy constraint: Member must have length less than or equal to 51200")
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="large")
    s3.put_object(Bucket="large", Key="t", Body=body)
    url = f"{corral.url}/large/t"
    assert refused(lambda: cloudformation.create_stack(StackName="large", TemplateURL=url)) == (
        "ValidationError", "Template may not exceed 1000000 bytes in size.",
    )  # fmt: skip


def test_capabilities(cloudformation: Any) -> None:
    trust = {"Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}
    role = {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": trust}}
    named = {**role, "Properties": {**role["Properties"], "RoleName": "chosen"}}
    body, named_body = (json.dumps({"Resources": {"R": each}}) for each in (role, named))
    assert refused(lambda: cloudformation.create_stack(StackName="iam", TemplateBody=body)) == (
        "InsufficientCapabilitiesException", "Requires capabilities : [CAPABILITY_IAM]",
    )  # fmt: skip
    assert refused(
        lambda: cloudformation.create_stack(StackName="iam", TemplateBody=named_body, Capabilities=["CAPABILITY_IAM"])
    ) == ("InsufficientCapabilitiesException", "Requires capabilities : [CAPABILITY_NAMED_IAM]")
    found = cloudformation.validate_template(TemplateBody=named_body)
    assert found["Capabilities"] == ["CAPABILITY_NAMED_IAM"]
    assert found["CapabilitiesReason"] == "The following resource(s) require capabilities: [AWS::IAM::Role]"
    cloudformation.create_stack(StackName="iam", TemplateBody=body, Capabilities=["CAPABILITY_NAMED_IAM"])
    wait(cloudformation, "iam", "create")
    cloudformation.delete_stack(StackName="iam")
    wait(cloudformation, "iam", "delete")


def test_exports_in_use_cannot_be_removed(cloudformation: Any) -> None:
    exporter = f"Resources: {TOPIC}\nOutputs: {{O: {{Value: !Ref T, Export: {{Name: 'net:topic'}}}}}}"
    importer = "Resources: {P: {Type: AWS::SSM::Parameter, Properties: {Type: String, Value: {'Fn::ImportValue': 'net:topic'}}}}"
    assert "No export named net:topic found" in refused(
        lambda: cloudformation.create_stack(StackName="importer", TemplateBody=importer)
    )[1]  # fmt: skip
    arn = cloudformation.create_stack(StackName="exporter", TemplateBody=exporter)["StackId"]
    wait(cloudformation, "exporter", "create")
    [export] = cloudformation.list_exports()["Exports"]
    assert (export["Name"], export["ExportingStackId"]) == ("net:topic", arn)
    assert refused(lambda: cloudformation.list_imports(ExportName="net:topic")) == (
        "ValidationError", "Export 'net:topic' is not imported by any stack.",
    )  # fmt: skip
    cloudformation.create_stack(StackName="importer", TemplateBody=importer)
    wait(cloudformation, "importer", "create")
    assert cloudformation.list_imports(ExportName="net:topic")["Imports"] == ["importer"]
    in_use = "Export net:topic cannot be deleted as it is in use by importer"
    code, message = refused(lambda: cloudformation.delete_stack(StackName="exporter"))
    assert (code, message) == ("ValidationError", in_use)
    for name in ("importer", "exporter"):
        cloudformation.delete_stack(StackName=name)
        wait(cloudformation, name, "delete")


CUSTOM = "Resources: {C: {Type: 'Custom::Thing', Properties: {ServiceToken: 'arn:aws:lambda:x'}}, T: {Type: AWS::SNS::Topic}}"


@pytest.mark.parametrize(
    ("options", "status"),
    [({}, "ROLLBACK_COMPLETE"), ({"DisableRollback": True}, "CREATE_FAILED"), ({"OnFailure": "DELETE"}, "DELETE_COMPLETE")],
)
def test_a_failed_creation(cloudformation: Any, options: dict[str, Any], status: str) -> None:
    arn = cloudformation.create_stack(StackName="custom", TemplateBody=CUSTOM, **options)["StackId"]
    with pytest.raises(WaiterError):
        wait(cloudformation, arn, "create")
    assert ended(cloudformation, arn)["StackStatus"] == status
    failed = [each for each in events(cloudformation, arn) if each["ResourceStatus"] == "CREATE_FAILED"]
    [failed] = [each for each in failed if each["LogicalResourceId"] == "C"]
    assert "Lambda" in failed["ResourceStatusReason"]
    if status == "CREATE_FAILED":
        cloudformation.rollback_stack(StackName="custom")
        assert ended(cloudformation, arn)["StackStatus"] == "ROLLBACK_COMPLETE"
    if status == "ROLLBACK_COMPLETE":
        template = CUSTOM.replace("arn:aws:lambda:x", "y")
        message = refused(lambda: cloudformation.update_stack(StackName="custom", TemplateBody=template))[1]
        assert message == f"Stack:{arn} is in ROLLBACK_COMPLETE state and can not be updated."
    if status != "DELETE_COMPLETE":
        cloudformation.delete_stack(StackName="custom")
    wait(cloudformation, arn, "delete")


def test_names_tokens_protection_and_policies(cloudformation: Any) -> None:
    def create(name: str = "guarded", **more: Any) -> Any:
        return cloudformation.create_stack(StackName=name, TemplateBody=f"Resources: {TOPIC}", **more)["StackId"]

    arn = create(EnableTerminationProtection=True, ClientRequestToken="once")
    assert create(EnableTerminationProtection=True, ClientRequestToken="once") == arn
    assert refused(lambda: create("other", ClientRequestToken="once"))[0] == "TokenAlreadyExistsException"
    assert refused(create) == ("AlreadyExistsException", "Stack [guarded] already exists")
    assert "failed to satisfy constraint: Member must satisfy regular expression pattern" in refused(lambda: create("1"))[1]
    wait(cloudformation, "guarded", "create")
    assert events(cloudformation, "guarded")[0]["ClientRequestToken"] == "once"
    assert refused(lambda: cloudformation.delete_stack(StackName="guarded")) == (
        "ValidationError", "Stack [guarded] cannot be deleted while TerminationProtection is enabled",
    )  # fmt: skip
    assert cloudformation.update_termination_protection(StackName="guarded", EnableTerminationProtection=False)["StackId"] == arn
    assert "StackPolicyBody" not in cloudformation.get_stack_policy(StackName="guarded")
    policy = json.dumps({"Statement": [{"Effect": "Allow", "Action": "Update:*", "Principal": "*", "Resource": "*"}]})
    cloudformation.set_stack_policy(StackName="guarded", StackPolicyBody=policy)
    assert cloudformation.get_stack_policy(StackName="guarded")["StackPolicyBody"] == policy
    limits = {each["Name"]: each["Value"] for each in cloudformation.describe_account_limits()["AccountLimits"]}
    assert limits["StackLimit"] >= 1
    cloudformation.delete_stack(StackName="guarded")
    wait(cloudformation, arn, "delete")


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
        ("https://example.com/templates/parent.yaml", "is not a valid S3 domain"),
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


WAITING = """
Resources:
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle}
  Done: {Type: AWS::CloudFormation::WaitCondition, Properties: {Handle: !Ref Handle, Timeout: "600", Count: 2}}
  Signalled: {Type: AWS::CloudFormation::WaitCondition, CreationPolicy: {ResourceSignal: {Timeout: PT10M, Count: 1}}}
Outputs: {Data: {Value: !GetAtt Done.Data}, Handle: {Value: !Ref Handle}}
"""


def put(url: str, **signal: str) -> int:
    with urlopen(Request(url, json.dumps(signal).encode(), method="PUT"), timeout=30) as response:
        return int(response.status)


def handle_of(cloudformation: Any, name: str) -> str:
    def found() -> Any:
        return [
            each["PhysicalResourceId"]
            for each in cloudformation.describe_stack_resources(StackName=name)["StackResources"]
            if each["LogicalResourceId"] == "Handle" and each["ResourceStatus"] == "CREATE_COMPLETE"
        ]

    return str(eventually(found, "the handle exists")[0])


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
    assert any(reason.startswith("Instance i-") and "counts it as signalled" in reason for reason in reasons)
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


def test_templates_are_described(cloudformation: Any) -> None:
    cloudformation.create_stack(StackName="shown", TemplateBody=QUEUES)
    wait(cloudformation, "shown", "create")
    assert cloudformation.get_template(StackName="shown")["TemplateBody"] == QUEUES
    processed = cloudformation.get_template(StackName="shown", TemplateStage="Processed")
    assert (processed["TemplateBody"], processed["StagesAvailable"]) == (QUEUES, ["Original", "Processed"])
    for asked in ({"TemplateBody": QUEUES}, {"StackName": "shown"}):
        summary = cloudformation.get_template_summary(**asked)
        assert (summary["Description"], summary["ResourceTypes"]) == ("two queues", ["AWS::SQS::Queue"])
        declared = {each["ParameterKey"]: each for each in summary["Parameters"]}
        assert declared["Secret"]["NoEcho"] is True and declared["Zones"]["ParameterType"] == "CommaDelimitedList"
        assert declared["Suffix"]["DefaultValue"] == "a"
    assert refused(lambda: cloudformation.get_template_summary()) == (
        "ValidationError", "Either Template URL or Template Body must be specified.",
    )  # fmt: skip
    cloudformation.delete_stack(StackName="shown")
    wait(cloudformation, "shown", "delete")


def test_pages_and_language_extensions(cloudformation: Any) -> None:
    """A loop makes more resources and more events than a page has."""
    loop = {
        "Transform": "AWS::LanguageExtensions",
        "Parameters": {"Names": {"Type": "CommaDelimitedList"}},
        "Resources": {"Fn::ForEach::Topics": ["N", {"Ref": "Names"}, {"T${N}": {"Type": "AWS::SNS::Topic"}}]},
    }
    names = ",".join(f"{number:03}" for number in range(101))
    body, values = json.dumps(loop), [{"ParameterKey": "Names", "ParameterValue": names}]
    assert refused(lambda: cloudformation.create_stack(StackName="loop", TemplateBody=body, Parameters=values)) == (
        "InsufficientCapabilitiesException", "Requires capabilities : [CAPABILITY_AUTO_EXPAND]",
    )  # fmt: skip
    cloudformation.create_stack(StackName="loop", TemplateBody=body, Parameters=values, Capabilities=["CAPABILITY_AUTO_EXPAND"])
    wait(cloudformation, "loop", "create")
    pages = list(cloudformation.get_paginator("list_stack_resources").paginate(StackName="loop"))
    assert [len(page["StackResourceSummaries"]) for page in pages] == [100, 1]
    assert len(events(cloudformation, "loop")) > 200
    assert len(cloudformation.get_template(StackName="loop", TemplateStage="Processed")["TemplateBody"]["Resources"]) == 101
    cloudformation.delete_stack(StackName="loop")
    wait(cloudformation, "loop", "delete")


def test_pages_of_stacks(cloudformation: Any) -> None:
    names = [f"page-{number}" for number in range(101)]
    for name in names:
        cloudformation.create_change_set(
            StackName=name, ChangeSetName="c", ChangeSetType="CREATE", TemplateBody=f"Resources: {TOPIC}"
        )
    for operation, key in (("describe_stacks", "Stacks"), ("list_stacks", "StackSummaries")):
        pages = list(cloudformation.get_paginator(operation).paginate())
        assert len(pages) >= 2 and len(pages[0][key]) == 100
        found = [each["StackName"] for page in pages for each in page[key] if each["StackName"].startswith("page-")]
        assert found == names[::-1], "newest first"
    reviewed = cloudformation.get_paginator("list_stacks").paginate(StackStatusFilter=["REVIEW_IN_PROGRESS"])
    assert len(reviewed.build_full_result()["StackSummaries"]) == 101
    for name in names:
        cloudformation.delete_stack(StackName=name)


def test_force_delete(cloudformation: Any, corral: Corral) -> None:
    """A bucket that is not empty cannot be deleted. The stack can be deleted without it, or when it is empty."""
    s3 = corral.client("s3")
    body = "Resources: {B: {Type: AWS::S3::Bucket, Properties: {BucketName: full-bucket}}}"
    arn = cloudformation.create_stack(StackName="full", TemplateBody=body)["StackId"]
    wait(cloudformation, "full", "create")
    s3.put_object(Bucket="full-bucket", Key="k", Body=b"1")
    cloudformation.delete_stack(StackName="full")
    assert ended(cloudformation, arn)["StackStatus"] == "DELETE_FAILED"
    cloudformation.delete_stack(StackName="full", DeletionMode="FORCE_DELETE_STACK")
    wait(cloudformation, arn, "delete")
    assert s3.get_object(Bucket="full-bucket", Key="k")["Body"].read() == b"1"
    [kept] = [each for each in events(cloudformation, arn) if each["ResourceStatus"] == "DELETE_SKIPPED"]
    assert kept["LogicalResourceId"] == "B"
