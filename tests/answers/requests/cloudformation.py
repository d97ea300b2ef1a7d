"""Requests of CloudFormation."""

from __future__ import annotations

import json
from typing import Any

from answers.calls import SAME, Calls
from harness import eventually

CAPABLE = {"Capabilities": ["CAPABILITY_IAM"]}
INVALID = "ValidationError"


def template(name: str = "a", **more: Any) -> str:
    topic = {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": name}}
    return json.dumps({"Resources": {"T": topic}, **more})


def requests(calls: Calls) -> None:
    stack = {"StackName": "answers"}
    exported = {"O": {"Value": {"Ref": "T"}, "Export": {"Name": "answers"}, "Description": "d"}}
    parameters = {"P": {"Type": "String", "Default": "a", "Description": "d", "AllowedValues": ["a", "b"]}}
    full = template(Outputs=exported, Parameters=parameters, Description="d")
    given = {"Tags": [{"Key": "a", "Value": "b"}], "Parameters": [{"ParameterKey": "P", "ParameterValue": "b"}]}
    calls("ValidateTemplate", TemplateBody=full)
    calls("GetTemplateSummary", TemplateBody=full)
    calls.twice("CreateStack", "AlreadyExistsException", **stack, TemplateBody=full, **given)
    complete(calls, "answers")
    for operation in ("DescribeStacks", "DescribeStackResources", "ListStackResources", "DescribeStackEvents", "GetTemplate"):
        calls(operation, **stack)
    calls("DescribeStackResource", **stack, LogicalResourceId="T")
    calls("ListStacks")
    calls("ListExports")
    calls("DescribeAccountLimits")
    calls.twice(
        "SetStackPolicy",
        SAME,
        **stack,
        StackPolicyBody='{"Statement":[{"Effect":"Allow","Action":"Update:*","Principal":"*","Resource":"*"}]}',
    )
    calls("GetStackPolicy", **stack)
    calls.twice("UpdateTerminationProtection", SAME, **stack, EnableTerminationProtection=True)
    calls("UpdateTerminationProtection", **stack, EnableTerminationProtection=False)
    importing = template(Outputs={"I": {"Value": {"Fn::ImportValue": "answers"}}})
    calls("CreateStack", StackName="importing", TemplateBody=importing)
    complete(calls, "importing")
    calls("ListImports", ExportName="answers")
    changes(calls)
    calls.twice("UpdateStack", INVALID, lambda: complete(calls, "answers"), **stack, TemplateBody=template("b", Outputs=exported))
    for operation in ("CancelUpdateStack", "ContinueUpdateRollback", "RollbackStack"):
        calls.twice_refused(operation, INVALID, **stack)
    signal = {"LogicalResourceId": "T", "UniqueId": "u", "Status": "SUCCESS"}
    calls.twice_refused("SignalResource", INVALID, **stack, **signal)
    refusals(calls)
    all_members(calls)
    eventually(lambda: complete(calls, "answers"), "the stack is complete")
    calls("DeleteStack", StackName="importing")
    eventually(lambda: absent(calls, "importing"), "the stack is deleted")
    calls.twice("DeleteStack", SAME, lambda: absent(calls, "answers"), **stack)


def changes(calls: Calls) -> None:
    change = {"StackName": "answers", "ChangeSetName": "c"}
    calls.twice("CreateChangeSet", SAME, **change, TemplateBody=template("c"))
    eventually(
        lambda: calls.of("cloudformation").describe_change_set(**change)["Status"] == "FAILED" or ready(calls, change),
        "a change set",
    )
    calls("DescribeChangeSet", **change)
    calls("DescribeChangeSet", **change, IncludePropertyValues=True)
    calls.refused("CreateChangeSet", "AlreadyExistsException", **change, TemplateBody=template("e"))
    calls("ListChangeSets", StackName="answers")
    calls.twice("DeleteChangeSet", SAME, **change)
    body = template("d", Outputs={"O": {"Value": {"Ref": "T"}, "Export": {"Name": "answers"}}})
    calls("CreateChangeSet", **change, TemplateBody=body)
    eventually(lambda: ready(calls, change), "the change set is complete")
    calls.twice("ExecuteChangeSet", "InvalidChangeSetStatusException", lambda: complete(calls, "answers"), **change)


def all_members(calls: Calls) -> None:
    """Members that only some stacks and change sets have."""
    topic = {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Ref": "P"}}, "Metadata": {"a": "b"}}
    parameters = {"P": {"Type": "String", "Default": "a"}}
    body = json.dumps({"AWSTemplateFormatVersion": "2010-09-09", "Parameters": parameters, "Resources": {"T": topic}})
    stack = {"StackName": "members"}
    triggers = {"RollbackTriggers": [], "MonitoringTimeInMinutes": 1}
    calls("GetTemplateSummary", TemplateBody=body)
    more: dict[str, Any] = {"TimeoutInMinutes": 5, "RetainExceptOnCreate": True, **CAPABLE}
    calls("CreateStack", **stack, TemplateBody=body, **more)
    complete(calls, "members")
    calls("DescribeStacks", **stack)
    calls("DescribeStackResource", **stack, LogicalResourceId="T")
    change = {**stack, "ChangeSetName": "full"}
    given = {"Parameters": [{"ParameterKey": "P", "UsePreviousValue": True}], "RollbackConfiguration": triggers, **CAPABLE}
    other = body.replace('{"a": "b"}', '{"a": "c"}')
    calls("CreateChangeSet", **change, TemplateBody=other, Description="d", OnStackFailure="ROLLBACK", **given)
    described = lambda: calls.of("cloudformation").describe_change_set(**change)["Status"]  # noqa: E731
    eventually(lambda: described() in ("FAILED", "CREATE_COMPLETE"), "the change set is complete")
    calls("DescribeChangeSet", **change)
    calls("ListChangeSets", **stack)
    calls("DeleteChangeSet", **change)
    calls("DeleteStack", **stack)


def refusals(calls: Calls) -> None:
    role = {
        "Resources": {
            "R": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": {"Version": "2012-10-17", "Statement": []}}}
        }
    }
    body = {"TemplateBody": json.dumps(role)}
    calls.refused("CreateStack", "InsufficientCapabilitiesException", StackName="role", **body)
    calls.refused("UpdateStack", "InsufficientCapabilitiesException", StackName="answers", **body)
    calls.refused("CreateChangeSet", "InsufficientCapabilitiesException", StackName="answers", ChangeSetName="role", **body)
    none = {"StackName": "answers", "ChangeSetName": "none"}
    for operation in ("DescribeChangeSet", "ExecuteChangeSet", "GetTemplate"):
        calls.refused(operation, "ChangeSetNotFoundException", **none)
    body = calls.of("cloudformation").get_template(StackName="answers")["TemplateBody"]
    calls("CreateChangeSet", StackName="answers", ChangeSetName="empty", TemplateBody=json.dumps(body))
    empty = {"StackName": "answers", "ChangeSetName": "empty"}
    eventually(
        lambda: calls.of("cloudformation").describe_change_set(**empty)["Status"] == "FAILED", "the change set has no changes"
    )
    calls("ListChangeSets", StackName="answers")
    calls.refused("ExecuteChangeSet", "InvalidChangeSetStatusException", **empty)
    calls.refused("GetTemplateSummary", INVALID, StackName="none")


def ready(calls: Calls, change: dict[str, str]) -> bool:
    return bool(calls.of("cloudformation").describe_change_set(**change)["Status"] == "CREATE_COMPLETE")


def complete(calls: Calls, name: str) -> Any:
    status = lambda: calls.of("cloudformation").describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]  # noqa: E731
    return eventually(lambda: status().endswith("_COMPLETE") and "CLEANUP" not in status(), f"the stack {name} is complete")


def absent(calls: Calls, name: str) -> bool:
    kept = calls.of("cloudformation").describe_stacks()["Stacks"]
    return name not in [stack["StackName"] for stack in kept]
