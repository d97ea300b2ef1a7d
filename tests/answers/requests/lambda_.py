"""Requests of Lambda."""

from __future__ import annotations

import io
import json
import zipfile

from answers.calls import ACCOUNT, NOW, OTHER, SAME, Calls
from harness import eventually

TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
    }
)
ROLE = f"arn:aws:iam::{ACCOUNT}:role/a"


def archive(source: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("index.py", source)
    return file.getvalue()


def requests(calls: Calls) -> None:
    name = {"FunctionName": "answers"}
    code = archive("def handler(event, context):\n    if event == 1:\n        raise ValueError('a')\n    return event\n")
    given = {"Runtime": "python3.12", "Role": ROLE, "Handler": "index.handler", "Code": {"ZipFile": code}, "Description": "d"}
    given |= {"Environment": {"Variables": {"AB": "b"}}, "Tags": {"a": "b"}, "TracingConfig": {"Mode": "Active"}, "Timeout": 5}
    made = calls.twice("CreateFunction", "ResourceConflictException", **name, **given)
    resource = {"Resource": made["FunctionArn"]}
    eventually(lambda: calls("GetFunctionConfiguration", **name)["State"] == "Active", "the function is active")
    calls.twice("GetFunction", NOW, **name)
    calls("ListFunctions")
    calls("Invoke", **name, Payload=b"1", LogType="Tail")
    calls.twice("Invoke", SAME, **name, Payload=b"{}")
    calls.twice("UpdateFunctionConfiguration", OTHER, **name, Timeout=6)
    calls.twice("UpdateFunctionCode", OTHER, **name, ZipFile=code)
    calls.twice("TagResource", SAME, **resource, Tags={"c": "d"})
    calls("ListTags", **resource)
    calls.twice("UntagResource", SAME, **resource, TagKeys=["c"])
    statement = {"StatementId": "s", "Action": "lambda:InvokeFunction", "Principal": "sns.amazonaws.com"}
    calls.twice("AddPermission", "ResourceConflictException", **name, **statement)
    calls("GetPolicy", **name)
    calls.refused("AddPermission", "PreconditionFailedException", **name, **statement | {"StatementId": "t"}, RevisionId="none")
    calls.refused("RemovePermission", "PreconditionFailedException", **name, StatementId="s", RevisionId="none")
    calls.twice("RemovePermission", "ResourceNotFoundException", **name, StatementId="s")
    mappings(calls)
    refusals(calls, code)
    calls.twice("DeleteFunction", "ResourceNotFoundException", **name)


def mappings(calls: Calls) -> None:
    sqs, iam = calls.of("sqs"), calls.of("iam")
    iam.create_role(RoleName="a", AssumeRolePolicyDocument=TRUST)
    iam.attach_role_policy(RoleName="a", PolicyArn="arn:aws:iam::aws:policy/service-role/AWSLambdaSQSQueueExecutionRole")
    source = {"EventSourceArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:mapped", "FunctionName": "answers"}
    sqs.create_queue(QueueName="mapped")
    filtered = {
        "FilterCriteria": {"Filters": [{"Pattern": '{"body":["a"]}'}]},
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
    }
    more = {"ScalingConfig": {"MaximumConcurrency": 2}, "MaximumBatchingWindowInSeconds": 1, "BatchSize": 5, "Tags": {"a": "b"}}
    made = calls.twice("CreateEventSourceMapping", "ResourceConflictException", **source, **filtered, **more)
    one = {"UUID": made["UUID"]}
    calls.twice("GetEventSourceMapping", NOW, **one)
    sqs.create_queue(QueueName="mapped-2")
    other = calls("CreateEventSourceMapping", **source | {"EventSourceArn": f"{source['EventSourceArn']}-2"}, Enabled=False)
    calls.twice("ListEventSourceMappings", NOW, MaxItems=1)
    awslambda = calls.of("lambda")
    steady = lambda: awslambda.get_event_source_mapping(**one)["State"] in ("Enabled", "Disabled")  # noqa: E731
    eventually(steady, "the mapping is enabled")
    calls.twice("UpdateEventSourceMapping", OTHER, steady, **one, BatchSize=6)
    eventually(steady, "the mapping is updated")
    calls("DeleteEventSourceMapping", UUID=other["UUID"])
    gone = lambda: not awslambda.list_event_source_mappings()["EventSourceMappings"]  # noqa: E731
    calls.twice("DeleteEventSourceMapping", "ResourceNotFoundException", gone, **one)


def refusals(calls: Calls, code: bytes) -> None:
    none = {"FunctionName": "none", "Resource": f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:none", "ZipFile": code}
    calls.all_refused(
        "ResourceNotFoundException",
        "*",
        "CreateFunction CreateEvent* ListEvent*",
        **none,
        UUID="00000000-0000-0000-0000-000000000000",
        Tags={"a": "b"},
        TagKeys=["a"],
    )
    wrong = {"FunctionName": "answers", "RevisionId": "none"}
    calls.refused("UpdateFunctionConfiguration", "PreconditionFailedException", **wrong, Timeout=1)
    calls.refused("UpdateFunctionCode", "PreconditionFailedException", **wrong, ZipFile=code)
    large = {"InvocationType": "Event", "Payload": b'"' + b"a" * 1_100_000 + b'"'}
    calls.refused("Invoke", "RequestTooLargeException", FunctionName="answers", **large)
    calls.refused("Invoke", "InvalidRequestContentException", FunctionName="answers", Payload=b"{")
    calls.refused("UpdateFunctionCode", "InvalidParameterValueException", FunctionName="answers", ZipFile=b"none")
    long = {"Action": "lambda:InvokeFunction", "Principal": "sns.amazonaws.com", "SourceArn": f"arn:aws:sns:::{'a' * 900}"}
    for number in range(17):
        calls("AddPermission", FunctionName="answers", StatementId=f"long{number}", **long)
    calls.refused("AddPermission", "PolicyLengthExceededException", FunctionName="answers", StatementId="s" * 100, **long)
