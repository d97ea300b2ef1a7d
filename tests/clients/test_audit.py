"""The audit: `aws cloudtrail lookup-events` and `corral audit` show who changed what, and what was denied."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from eventually import eventually
from harness import Corral


def trail_of(corral: Any, **wanted: str) -> list[dict[str, Any]]:
    """The events with one attribute, the oldest first."""
    attributes = [{"AttributeKey": key, "AttributeValue": value} for key, value in wanted.items()]
    pages = corral.client("cloudtrail").get_paginator("lookup_events").paginate(LookupAttributes=attributes)
    return [each for page in pages for each in page["Events"]][::-1]


def details(event: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(event["CloudTrailEvent"])
    return found


def test_changes_are_recorded_and_reads_and_data_are_not(corral: Any) -> None:
    sqs, s3, ssm = (corral.client(service) for service in ("sqs", "s3", "ssm"))
    url = sqs.create_queue(QueueName="recorded")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="not recorded")
    sqs.get_queue_attributes(QueueUrl=url)
    s3.create_bucket(Bucket="recorded")
    s3.put_object(Bucket="recorded", Key="key", Body=b"not recorded")
    ssm.put_parameter(Name="recorded", Value="hunter2", Type="SecureString")
    with pytest.raises(ClientError):
        sqs.delete_queue(QueueUrl=f"{url}-absent")
    events = trail_of(corral, Username="root")
    assert [each["EventName"] for each in events] == ["CreateQueue", "CreateBucket", "PutParameter", "DeleteQueue"]
    made, _, put, failed = map(details, events)
    assert made["userIdentity"] == {
        "type": "Root", "principalId": "123456789012", "arn": "arn:aws:iam::123456789012:root", "accountId": "123456789012",
        "accessKeyId": corral.keys["access_key"],
    }  # fmt: skip
    assert made["requestParameters"] == {"queueName": "recorded"} and made["responseElements"] == {"queueUrl": url}
    assert (made["sourceIPAddress"], made["eventSource"], made["readOnly"]) == ("127.0.0.1", "sqs.amazonaws.com", False)
    assert "Boto3" in made["userAgent"] and abs(events[0]["EventTime"] - datetime.now(UTC)) < timedelta(hours=1)
    assert put["requestParameters"]["value"] == "HIDDEN_DUE_TO_SECURITY_REASONS" and "errorCode" not in put
    assert failed["errorCode"] and "does not exist" in failed["errorMessage"]
    assert "hunter2" not in "".join(path.read_text() for path in (corral.data / "audit").iterdir())


def test_events_are_looked_up_by_one_attribute_and_a_time(corral: Any) -> None:
    cloudtrail, sns = corral.client("cloudtrail"), corral.client("sns")
    arn = sns.create_topic(Name="looked-up")["TopicArn"]
    [event] = trail_of(corral, ResourceName="looked-up")
    assert {"ResourceType": "AWS::SNS::Topic", "ResourceName": arn} in event["Resources"]
    for wanted in (
        {"EventId": event["EventId"]}, {"ResourceType": "AWS::SNS::Topic"}, {"EventSource": "sns.amazonaws.com"},
        {"EventName": "CreateTopic"}, {"ResourceName": arn},
    ):  # fmt: skip
        assert [each["EventId"] for each in trail_of(corral, **wanted)] == [event["EventId"]], wanted
    assert trail_of(corral, ReadOnly="true") == [] and event in trail_of(corral, AccessKeyId=corral.keys["access_key"])
    assert cloudtrail.lookup_events(StartTime=datetime.now(UTC) + timedelta(hours=1, seconds=-1), EndTime=9e9)["Events"] == []
    for name in range(4):
        sns.create_topic(Name=f"page-{name}")
    pages = [len(page["Events"]) for page in cloudtrail.get_paginator("lookup_events").paginate(MaxResults=2)]
    assert sum(pages) >= 5 and max(pages) == 2
    both = [{"AttributeKey": "EventName", "AttributeValue": "a"}, {"AttributeKey": "Username", "AttributeValue": "b"}]
    for wrong, code in (
        ({"LookupAttributes": both}, "InvalidLookupAttributesException"),
        ({"StartTime": 2e9, "EndTime": 1e9}, "InvalidTimeRangeException"),
        ({"MaxResults": 51}, "InvalidMaxResultsException"),
        ({"NextToken": "nonsense"}, "InvalidNextTokenException"),
        ({"EventCategory": "insight"}, "UnsupportedOperationException"),
    ):
        with pytest.raises(ClientError) as refused:
            cloudtrail.lookup_events(**wrong)
        assert refused.value.response["Error"]["Code"] == code
    with pytest.raises(ClientError, match="Corral does not serve cloudtrail:CreateTrail"):
        cloudtrail.create_trail(Name="t", S3BucketName="b")


def test_denied_calls_of_a_user_are_counted_and_nothing_is_lost_by_kill_9(own_corral: Any, tmp_path: Path) -> None:
    corral: Corral = own_corral().start()
    iam = corral.client("iam")
    iam.create_user(UserName="ann")
    key = iam.create_access_key(UserName="ann")["AccessKey"]
    keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    sqs = boto3.client("sqs", endpoint_url=corral.url, region_name="us-east-1", **keys)
    for _ in range(3):
        with pytest.raises(ClientError, match="not authorized"):
            sqs.create_queue(QueueName="hers")
    corral.kill("corral.server")
    corral.start()
    assert [each["EventName"] for each in trail_of(corral, Username="root")] == ["CreateUser", "CreateAccessKey"]
    [denied] = map(details, trail_of(corral, Username="ann"))
    assert denied["errorCode"].startswith("AccessDenied") and "sqs:createqueue" in denied["errorMessage"].lower()
    assert denied["userIdentity"]["type"] == "IAMUser" and denied["userIdentity"]["userName"] == "ann"
    sqs = boto3.client("sqs", endpoint_url=corral.url, region_name="us-east-1", **keys)
    for _ in range(3):
        with pytest.raises(ClientError, match="not authorized"):
            sqs.create_queue(QueueName="hers")
    corral.stop()
    corral.start()
    [_, first, more] = map(details, trail_of(corral, Username="ann"))
    assert "deniedCalls" not in first["additionalEventData"] and more["additionalEventData"]["deniedCalls"] == 2


def test_the_command_shows_calls_and_denials(cli: Any) -> None:
    cli.client("iam").create_user(UserName="bob")
    key = cli.client("iam").create_access_key(UserName="bob")["AccessKey"]
    cli("run", "--name", "recorded", "--", "true")
    keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    with pytest.raises(ClientError):
        boto3.client("ecs", endpoint_url=cli.client("ecs").meta.endpoint_url, region_name="us-east-1", **keys).list_clusters()
    shown = cli("audit").stdout.splitlines()
    assert shown[0].split() == ["TIME", "USER", "ACTION", "RESOURCE", "ERROR"]  # all of them from this machine
    assert shown[1].split()[2:] == ["root", "iam:CreateUser", "bob"] and "ecs:RunTask" in "".join(shown)
    assert "bob" in shown[-1] and "ecs:ListClusters" in shown[-1] and "AccessDenied" in shown[-1]
    [denied] = json.loads(cli("audit", "--denied", "--json").stdout)
    assert denied["userIdentity"]["userName"] == "bob" and denied["readOnly"] is True
    assert len(json.loads(cli("audit", "--user", "root", "--action", "RunTask", "--since", "1h", "--json").stdout)) == 1
    assert "No calls are recorded that match." in cli("audit", "--resource", "nothing").stdout
    cli("user", "remove", "bob")
    removed = cli("audit", "--resource", "bob").stdout.splitlines()[-1].split()
    assert removed[2:] == ["root", "corral:RemoveUser", "bob"]
    for name in ("older", "newer"):
        cli.client("sqs").create_queue(QueueName=name)
    following = cli.begin("audit", "--follow", "--limit", "1")
    following.until("stdout", "newer")
    cli.client("sqs").create_queue(QueueName="followed")
    assert "older" not in following.until("stdout", "followed"), "it is not new"
    following.interrupt()


def test_what_a_stack_does_is_recorded_with_the_user(corral: Any) -> None:
    iam = corral.client("iam")
    iam.create_user(UserName="ida")
    allow = [{"Effect": "Allow", "Action": ["cloudformation:*", "sqs:*"], "Resource": "*"}]
    policy = json.dumps({"Version": "2012-10-17", "Statement": allow})
    iam.put_user_policy(UserName="ida", PolicyName="stacks", PolicyDocument=policy)
    key = iam.create_access_key(UserName="ida")["AccessKey"]
    keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    stacks = boto3.client("cloudformation", endpoint_url=corral.url, region_name="us-east-1", **keys)
    queue = {"Type": "AWS::SQS::Queue", "Properties": {"QueueName": "of-a-stack", "Tags": [{"Key": "k", "Value": {"Ref": "P"}}]}}
    user = {"Type": "AWS::IAM::User", "DependsOn": "Q", "Properties": {"UserName": "eve"}}
    template = {"Parameters": {"P": {"Type": "String", "NoEcho": True}}, "Resources": {"Q": queue, "U": user}}
    stacks.create_stack(
        StackName="hers",
        TemplateBody=json.dumps(template),
        Parameters=[{"ParameterKey": "P", "ParameterValue": "hunter3"}],
        Capabilities=["CAPABILITY_NAMED_IAM"],
    )

    def recorded() -> list[dict[str, Any]]:
        found = {each["EventName"]: details(each) for each in trail_of(corral, Username="ida")}
        return [found[name] for name in names] if found.keys() >= {*names} else []

    names = "CreateStack", "CreateQueue", "CreateUser", "DeleteQueue"
    stack, made, refused, deleted = found = eventually(recorded)
    assert stack["sourceIPAddress"] == "127.0.0.1"
    assert {each["sourceIPAddress"] for each in (made, refused, deleted)} == {"cloudformation.amazonaws.com"}
    assert {each["userIdentity"]["arn"] for each in found} == {"arn:aws:iam::123456789012:user/ida"}
    assert made["requestParameters"] == {"queueName": "of-a-stack"} and "errorCode" not in made
    assert refused["errorCode"] == "AccessDenied" and "iam:CreateUser" in refused["errorMessage"]
    assert "CreateQueue" in {each["EventName"] for each in trail_of(corral, ResourceName="of-a-stack")}
    assert "hunter3" not in "".join(path.read_text() for path in (corral.data / "audit").iterdir())
