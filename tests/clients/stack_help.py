"""Helpers for the tests of stacks."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError

from eventually import eventually

QUICKLY = {"Delay": 0.1, "MaxAttempts": 300}
CUSTOM = "Resources: {C: {Type: 'Custom::Thing', Properties: {ServiceToken: 'arn:aws:lambda:x'}}, T: {Type: AWS::SNS::Topic}}"
WAITING = """
Resources:
  Handle: {Type: AWS::CloudFormation::WaitConditionHandle}
  Done: {Type: AWS::CloudFormation::WaitCondition, Properties: {Handle: !Ref Handle, Timeout: "600", Count: 2}}
  Signalled: {Type: AWS::CloudFormation::WaitCondition, CreationPolicy: {ResourceSignal: {Timeout: PT10M, Count: 1}}}
Outputs: {Data: {Value: !GetAtt Done.Data}, Handle: {Value: !Ref Handle}}
"""


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
