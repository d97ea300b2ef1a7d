"""The part of the fuzzed state that belongs to CloudFormation: stacks, a change set, exports and imports."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[..., Awaitable[Any]]

TEMPLATE = """
Parameters:
  P: {Type: String, Default: a}
  L: {Type: CommaDelimitedList, Default: "a,b"}
  N: {Type: Number, Default: 3, MinValue: 1}
Mappings: {M: {us-east-1: {Size: big}}}
Conditions: {IsA: !Equals [!Ref P, a]}
Resources:
  Queue:
    Type: AWS::SQS::Queue
    Properties: {DelaySeconds: !If [IsA, 1, 2], Tags: [{Key: size, Value: !FindInMap [M, !Ref "AWS::Region", Size]}]}
  Topic: {Type: AWS::SNS::Topic, DependsOn: Queue, Properties: {DisplayName: !Sub "${Queue.Arn} ${P}"}}
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle}
Outputs:
  Arn: {Value: !GetAtt Queue.Arn, Export: {Name: !Sub "${AWS::StackName}:arn"}}
  Zone: {Value: !Select [0, !GetAZs ""]}
"""
LOOP = json.dumps(
    {
        "Transform": "AWS::LanguageExtensions",
        "Resources": {"Fn::ForEach::T": ["N", ["A", "B"], {"T${N}": {"Type": "AWS::SNS::Topic"}}]},
    }
)


async def build_stacks(call: Call, knows: Callable[..., None], mark: str) -> None:
    """`call` calls an operation of CloudFormation; `knows` remembers values for later requests."""
    name, other = f"stack-{mark}", f"importer-{mark}"
    parameters = [{"ParameterKey": "P", "ParameterValue": "a"}]
    stack = await call("CreateStack", StackName=name, TemplateBody=TEMPLATE, Parameters=parameters, DisableRollback=True)
    importer = json.dumps({"Resources": {"T": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": "a"}}}})
    await call("CreateStack", StackName=other, TemplateBody=importer, Tags=[{"Key": "a", "Value": "b"}])
    await call(
        "CreateChangeSet", StackName=f"review-{mark}", ChangeSetName="changes", ChangeSetType="CREATE", TemplateBody=LOOP,
        Capabilities=["CAPABILITY_AUTO_EXPAND"],
    )  # fmt: skip
    for operation, params in {
        "DescribeStacks": {"StackName": name},
        "DescribeStackEvents": {"StackName": name},
        "DescribeStackResource": {"StackName": name, "LogicalResourceId": "Queue"},
        "ListStackResources": {"StackName": name},
        "GetTemplate": {"StackName": name, "TemplateStage": "Processed"},
        "GetTemplateSummary": {"TemplateBody": TEMPLATE},
        "ValidateTemplate": {"TemplateBody": TEMPLATE},
        "DescribeChangeSet": {"StackName": f"review-{mark}", "ChangeSetName": "changes"},
        "ListChangeSets": {"StackName": f"review-{mark}"},
        "ListExports": {},
        "ListStacks": {},
        "UpdateTerminationProtection": {"StackName": other, "EnableTerminationProtection": False},
        "SetStackPolicy": {"StackName": other, "StackPolicyBody": json.dumps({"Statement": []})},
    }.items():
        await call(operation, **params)
    knows(
        "cloudformation", StackName=[name, other, f"review-{mark}", stack["StackId"]], ChangeSetName="changes",
        TemplateBody=[TEMPLATE, LOOP], LogicalResourceId=["Queue", "Topic", "Handle"], ExportName=f"{name}:arn",
        ParameterKey=["P", "L", "N"], ParameterValue=["a", "b,c", "7"], UniqueId="u", ChangeSetType=["CREATE", "UPDATE"],
        ResourcesToSkip="Queue", RetainResources="Queue",
    )  # fmt: skip
