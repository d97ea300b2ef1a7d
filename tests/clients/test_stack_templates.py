"""Descriptions of templates with transforms, pseudo parameters in loops, and tokens of pages."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest
from botocore.exceptions import ClientError

from harness import Corral

TOPIC, QUEUE = {"Type": "AWS::SNS::Topic"}, {"Type": "AWS::SQS::Queue"}
EXPANDS = {"Capabilities": ["CAPABILITY_AUTO_EXPAND"]}


@pytest.fixture
def cloudformation(corral: Corral) -> Any:
    return corral.client("cloudformation")


def create(cloudformation: Any, name: str, template: dict[str, Any], **more: Any) -> None:
    cloudformation.create_stack(StackName=name, TemplateBody=json.dumps(template), **more)
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})


def delete(cloudformation: Any, name: str) -> None:
    cloudformation.delete_stack(StackName=name)
    cloudformation.get_waiter("stack_delete_complete").wait(StackName=name, WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})


def looped(collection: list[Any], fragment: dict[str, Any], **resources: Any) -> dict[str, Any]:
    return {
        "Transform": "AWS::LanguageExtensions",
        "Metadata": {"a": 1},
        "Resources": {**resources, "Fn::ForEach::Loop": ["N", collection, fragment]},
    }


def test_a_template_is_described_without_its_transforms(cloudformation: Any) -> None:
    role = {"Type": "AWS::IAM::Role", "Properties": {"RoleName": {"Fn::Sub": "r-${N}"}, "AssumeRolePolicyDocument": {}}}
    fragment = {"R${N}": role, "Fn::ForEach::Inner": ["M", ["c"], {"Q${M}": QUEUE}]}
    body = json.dumps(looped(["a", "b"], fragment, T=TOPIC))
    summary = cloudformation.get_template_summary(TemplateBody=body)
    assert summary["ResourceTypes"] == ["AWS::SNS::Topic", "AWS::IAM::Role", "AWS::SQS::Queue"]
    assert summary["Capabilities"] == ["CAPABILITY_NAMED_IAM", "CAPABILITY_AUTO_EXPAND"]
    assert json.loads(summary["Metadata"]) == {"a": 1}
    assert cloudformation.validate_template(TemplateBody=body)["Capabilities"] == summary["Capabilities"]


def test_transforms_know_the_pseudo_parameters(cloudformation: Any) -> None:
    names = [{"Ref": "AWS::Partition"}, {"Ref": "AWS::URLSuffix"}, {"Ref": "AWS::NotificationARNs"}]
    template = looped(names, {"T&{N}": TOPIC})
    create(cloudformation, "pseudo", template, NotificationARNs=["arn:one", "arn:two"], **EXPANDS)
    made = [each["LogicalResourceId"] for each in cloudformation.describe_stack_resources(StackName="pseudo")["StackResources"]]
    assert made == ["Tamazonawscom", "Tarnone", "Tarntwo", "Taws"]
    names.append({"Ref": "AWS::StackId"})  # an existing stack has an id
    cloudformation.update_stack(StackName="pseudo", TemplateBody=json.dumps(template), **EXPANDS)
    cloudformation.get_waiter("stack_update_complete").wait(StackName="pseudo", WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})
    made = [each["LogicalResourceId"] for each in cloudformation.describe_stack_resources(StackName="pseudo")["StackResources"]]
    assert sum("stackpseudo" in name for name in made) == 1
    delete(cloudformation, "pseudo")


def test_a_float_keeps_its_form(cloudformation: Any, corral: Corral) -> None:
    body = "Resources: {P: {Type: AWS::SSM::Parameter, Properties: {Name: /float, Type: String, Value: 8.0}}}"
    cloudformation.create_stack(StackName="float", TemplateBody=body)
    cloudformation.get_waiter("stack_create_complete").wait(StackName="float", WaiterConfig={"Delay": 0.05, "MaxAttempts": 400})
    assert corral.client("ssm").get_parameter(Name="/float")["Parameter"]["Value"] == "8.0"
    delete(cloudformation, "float")


@pytest.mark.parametrize("number", ["-1", "²", "9" * 20, "1.5", " 1"])
def test_a_token_that_is_no_position_is_refused(cloudformation: Any, number: str) -> None:
    cloudformation.create_change_set(
        StackName="paged", ChangeSetName="c", ChangeSetType="CREATE", TemplateBody=json.dumps({"Resources": {"T": TOPIC}})
    )
    token = b64encode(number.encode()).decode()
    with pytest.raises(ClientError) as refused:
        cloudformation.describe_stack_events(StackName="paged", NextToken=token)
    assert refused.value.response["Error"]["Message"] == (
        "NextToken is not valid: pass the NextToken of the previous response unchanged."
    )
    cloudformation.delete_stack(StackName="paged")
