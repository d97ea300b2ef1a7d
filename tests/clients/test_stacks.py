"""Stacks, by boto3 and the aws command: lifecycle, refused templates, exports, pages."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from botocore.exceptions import WaiterError

from clients.stack_help import CUSTOM, described, ended, events, given, outputs, refused, wait
from harness import Corral

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


def test_no_event_shows_a_value_with_no_echo(cloudformation: Any, corral: Corral) -> None:
    """The values are in the errors of resources, in base64, as items of a list, and come from SSM parameters."""
    secrets = {"Plain": "hush/hush/hush", "List": "first!!x,second!!x", "Named": "/stacks/no-echo"}
    corral.client("ssm").put_parameter(Name="/stacks/no-echo", Type="String", Value="value!of!ssm")
    corral.client("ssm").put_parameter(Name="/stacks/secure", Type="SecureString", Value="secure!value")
    types = {"Plain": "String", "List": "CommaDelimitedList", "Named": "AWS::SSM::Parameter::Value<String>"}
    custom = {"Type": "AWS::CloudFormation::CustomResource"}  # its error names the wrong ServiceToken
    resources: dict[str, dict[str, Any]] = {
        "OfText": custom | {"Properties": {"ServiceToken": {"Ref": "Plain"}}},
        "OfList": custom | {"Properties": {"ServiceToken": {"Fn::Select": [1, {"Ref": "List"}]}}},
        "OfSsm": custom | {"Properties": {"ServiceToken": {"Ref": "Named"}}},
        "Secure": custom | {"Properties": {"ServiceToken": "{{resolve:ssm-secure:/stacks/secure}}"}},
        "Topic": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Fn::Base64": {"Fn::Sub": "x ${Plain} y"}}}},
    }
    for logical_id, resource in resources.items():
        template: dict[str, Any] = {
            "Parameters": {name: {"Type": type_, "NoEcho": True} for name, type_ in types.items()},
            "Mappings": {"Map": {"a": {"b": "c"}}},
            "Resources": {logical_id: resource},
        }
        name, values = f"no-echo-{logical_id}", given(**secrets)
        arn = cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template), Parameters=values)["StackId"]
        failed = ended(cloudformation, arn)
        found = cloudformation.describe_stack_resources(StackName=arn)["StackResources"], events(cloudformation, arn)
        reasons = [each.get("ResourceStatusReason", "") for each in found[1]]
        assert logical_id == "Topic" or any("****" in reason for reason in reasons), reasons
        text = json.dumps([failed, found], default=str)
        for secret in ("hush/", "second!!x", "value!of!ssm", "secure!value", b64encode(b"x hush/hush/hush y").decode()):
            assert secret not in text, (logical_id, secret)
        cloudformation.delete_stack(StackName=arn)
        wait(cloudformation, arn, "delete")
    template["Conditions"] = {"Is": {"Fn::Equals": [{"Fn::FindInMap": ["Map", {"Ref": "Plain"}, "b"]}, "c"]}}
    body = json.dumps(template)
    told = refused(lambda: cloudformation.create_stack(StackName="no-echo", TemplateBody=body, Parameters=given(**secrets)))
    assert "****" in told[1] and "hush" not in told[1]
