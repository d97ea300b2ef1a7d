"""Events of a bucket as messages of a queue, through real clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from botocore.exceptions import ClientError

from harness import Corral

ACCOUNT = "123456789012"
NUMBERS = count()
CREATED, REMOVED = "s3:ObjectCreated:*", "s3:ObjectRemoved:*"


def policy_for(bucket: str, arn: str, **members: Any) -> str:
    """As S3's documentation has it."""
    condition = {"ArnLike": {"aws:SourceArn": f"arn:aws:s3:*:*:{bucket}"}, "StringEquals": {"aws:SourceAccount": ACCOUNT}}
    statement = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "SQS:SendMessage", "Resource": arn}
    return json.dumps({"Version": "2012-10-17", "Statement": [{**statement, "Condition": condition, **members}]})


class Told:
    """A bucket and a queue that may be told of its events."""

    def __init__(self, corral: Corral) -> None:
        self.name = f"told-{next(NUMBERS)}"
        self.s3, self.sqs = corral.client("s3"), corral.client("sqs")
        self.s3.create_bucket(Bucket=self.name)
        self.url = self.sqs.create_queue(QueueName=self.name)["QueueUrl"]
        self.arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{self.name}"
        self.allow()

    def allow(self, **members: Any) -> None:
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes={"Policy": policy_for(self.name, self.arn, **members)})

    def configure(self, *events: str, **filters: str) -> None:
        """And take the test message away."""
        part: dict[str, Any] = {"QueueArn": self.arn, "Events": list(events or (CREATED,)), "Id": "all"}
        if filters:
            part["Filter"] = {"Key": {"FilterRules": [{"Name": name, "Value": value} for name, value in filters.items()]}}
        self.put({"QueueConfigurations": [part]})
        assert [message["Event"] for message in self.messages()] == ["s3:TestEvent"]

    def put(self, configuration: dict[str, Any], **params: Any) -> None:
        self.s3.put_bucket_notification_configuration(Bucket=self.name, NotificationConfiguration=configuration, **params)

    def messages(self) -> list[dict[str, Any]]:
        """All that are in the queue now: a message is there when the call that caused it has returned."""
        found: list[dict[str, Any]] = []
        while batch := self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages", []):
            found += [json.loads(message["Body"]) for message in batch]
            entries = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(batch)]
            self.sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return found

    def records(self) -> list[dict[str, Any]]:
        return [record for message in self.messages() for record in message["Records"]]

    def events(self) -> list[tuple[str, str]]:
        return [(record["eventName"], unquote_plus(record["s3"]["object"]["key"])) for record in self.records()]


@pytest.fixture
def told(corral: Corral) -> Iterator[Told]:
    yield Told(corral)


def test_a_record_says_all_that_s3_says(told: Told) -> None:
    told.configure()
    etag = told.s3.put_object(Bucket=told.name, Key="a folder/ü+1.txt", Body=b"hello")["ETag"]
    (record,) = told.records()
    about = record["s3"].pop("object")
    assert about.pop("sequencer")
    assert about == {"key": "a+folder/%C3%BC%2B1.txt", "size": 5, "eTag": etag.strip('"')}
    owner = told.s3.list_buckets()["Owner"]["ID"]
    assert record["s3"] == {
        "s3SchemaVersion": "1.0",
        "configurationId": "all",
        "bucket": {"name": told.name, "ownerIdentity": {"principalId": owner}, "arn": f"arn:aws:s3:::{told.name}"},
    }
    assert record["eventVersion"] == "2.1"
    assert record["eventSource"] == "aws:s3"
    assert record["awsRegion"] == "us-east-1"
    assert record["eventName"] == "ObjectCreated:Put"
    assert record["eventTime"].endswith("Z")
    assert record["requestParameters"]["sourceIPAddress"] == "127.0.0.1"
    assert record["responseElements"]["x-amz-request-id"]
    assert record["userIdentity"]["principalId"]


def test_the_test_message(told: Told) -> None:
    told.put({"QueueConfigurations": [{"QueueArn": told.arn, "Events": [CREATED]}]})
    (message,) = told.messages()
    assert message["Service"] == "Amazon S3"
    assert message["Event"] == "s3:TestEvent"
    assert message["Bucket"] == told.name
    assert message["Time"].endswith("Z")
    assert message["RequestId"]


def test_every_way_to_make_and_remove_an_object(told: Told) -> None:
    told.configure(CREATED, REMOVED)
    s3, bucket = told.s3, told.name
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    s3.copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": "a"})
    upload = s3.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="c", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="c", UploadId=upload, MultipartUpload=parts)
    s3.delete_object(Bucket=bucket, Key="a")
    s3.delete_object(Bucket=bucket, Key="never was")
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "b"}, {"Key": "c"}]})
    found = told.records()
    assert sorted((record["eventName"], record["s3"]["object"]["key"]) for record in found) == [
        ("ObjectCreated:CompleteMultipartUpload", "c"),
        ("ObjectCreated:Copy", "b"),
        ("ObjectCreated:Put", "a"),
        ("ObjectRemoved:Delete", "a"),
        ("ObjectRemoved:Delete", "b"),
        ("ObjectRemoved:Delete", "c"),
    ]
    of_a = [record["s3"]["object"]["sequencer"] for record in found if record["s3"]["object"]["key"] == "a"]
    made, removed = sorted(of_a)
    assert made < removed
    assert len(made) == len(removed)


def test_versions(told: Told) -> None:
    told.configure(CREATED, REMOVED)
    s3, bucket = told.s3, told.name
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    made = s3.put_object(Bucket=bucket, Key="a", Body=b"1")["VersionId"]
    marker = s3.delete_object(Bucket=bucket, Key="a")["VersionId"]
    s3.delete_object(Bucket=bucket, Key="a", VersionId=made)
    found = {record["eventName"]: record["s3"]["object"]["versionId"] for record in told.records()}
    assert found == {"ObjectCreated:Put": made, "ObjectRemoved:DeleteMarkerCreated": marker, "ObjectRemoved:Delete": made}


def test_a_large_file_of_the_aws_command_is_no_put(told: Told, corral: Corral, tmp_path: Path) -> None:
    """The command uploads it in parts, so whoever listens for Put alone hears nothing: people are surprised by it on AWS too."""
    told.configure("s3:ObjectCreated:Put")
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(9 * 1024 * 1024))
    small.write_bytes(b"small")
    corral.aws("s3", "cp", "--quiet", str(large), f"s3://{told.name}/large")
    corral.aws("s3", "cp", "--quiet", str(small), f"s3://{told.name}/small")
    assert told.events() == [("ObjectCreated:Put", "small")]


def test_prefix_and_suffix(told: Told) -> None:
    told.configure(prefix="images/", Suffix=".jpg")
    for key in ("images/a.jpg", "images/a.png", "a.jpg", "images/b c.jpg"):
        told.s3.put_object(Bucket=told.name, Key=key, Body=b"")
    assert sorted(told.events()) == [("ObjectCreated:Put", "images/a.jpg"), ("ObjectCreated:Put", "images/b c.jpg")]


def test_tags(told: Told) -> None:
    told.configure("s3:ObjectTagging:*")
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"")
    told.s3.put_object_tagging(Bucket=told.name, Key="a", Tagging={"TagSet": [{"Key": "x", "Value": "y"}]})
    told.s3.delete_object_tagging(Bucket=told.name, Key="a")
    assert sorted(told.events()) == [("ObjectTagging:Delete", "a"), ("ObjectTagging:Put", "a")]


def test_what_did_not_happen_is_not_told(told: Told) -> None:
    told.configure(CREATED, REMOVED)
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"1")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        told.s3.put_object(Bucket=told.name, Key="a", Body=b"2", IfNoneMatch="*")
    assert told.events() == [("ObjectCreated:Put", "a")]


def test_a_waiting_reader_hears_at_once(told: Told) -> None:
    told.configure()
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"1")
    answer = told.sqs.receive_message(QueueUrl=told.url, WaitTimeSeconds=20)
    assert len(answer["Messages"]) == 1


# What is refused


def refused(told: Told, configuration: dict[str, Any], words: str) -> dict[str, Any]:
    with pytest.raises(ClientError) as error:
        told.put(configuration)
    assert error.value.response["Error"]["Code"] == "InvalidArgument"
    assert words in json.dumps(error.value.response["Error"])
    return error.value.response["Error"]


def queues(*parts: dict[str, Any], arn: str) -> dict[str, Any]:
    return {"QueueConfigurations": [{"QueueArn": arn, "Events": [CREATED], **part} for part in parts]}


@pytest.mark.parametrize(
    "members",
    [
        {"Effect": "Deny"},
        {"Principal": {"Service": "sns.amazonaws.com"}},
        {"Action": "SQS:ReceiveMessage"},
        {"Resource": f"arn:aws:sqs:us-east-1:{ACCOUNT}:other"},
        {"Condition": {"ArnLike": {"aws:SourceArn": "arn:aws:s3:*:*:other"}}},
        {"Condition": {"StringEquals": {"aws:SourceAccount": "999999999999"}}},
    ],
)
def test_a_queue_must_allow_it_when_it_is_configured(told: Told, members: dict[str, Any]) -> None:
    told.allow(**members)
    error = refused(told, queues({}, arn=told.arn), "Unable to validate the following destination configurations")
    assert "Permissions on the destination queue do not allow S3" in json.dumps(error)
    assert told.arn in json.dumps(error)
    assert told.messages() == []
    assert "QueueConfigurations" not in told.s3.get_bucket_notification_configuration(Bucket=told.name)


def test_a_queue_may_allow_everyone_with_a_condition(told: Told) -> None:
    told.allow(Principal="*", Action="sqs:*")
    told.configure()


def test_a_queue_must_still_allow_it_when_it_happens(told: Told) -> None:
    told.configure()
    told.allow(Effect="Deny")
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"")
    assert told.messages() == []
    told.allow()
    told.s3.put_object(Bucket=told.name, Key="b", Body=b"")
    assert told.events() == [("ObjectCreated:Put", "b")]


def test_a_queue_that_is_gone_does_not_keep_anybody_from_writing(told: Told) -> None:
    told.configure()
    told.sqs.delete_queue(QueueUrl=told.url)
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"")
    assert told.s3.get_object(Bucket=told.name, Key="a")["Body"].read() == b""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([{"QueueArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:none-such"}], "The destination queue does not exist"),
        ([{"QueueArn": "images"}], "The ARN could not be parsed"),
        ([{"Events": ["s3:ObjectCreated:Teleport"]}], "The event is not supported for notifications"),
        ([{"Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "a"}, {"Name": "Prefix", "Value": "b"}]}}}],
         "more than one prefix rule"),
        ([{}, {}], "Configuration is ambiguously defined"),
        ([{}, {"Events": ["s3:ObjectCreated:Put"], "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": "g"}]}}}],
         "Configuration is ambiguously defined"),
    ],
)  # fmt: skip
def test_refused(told: Told, parts: list[dict[str, Any]], words: str) -> None:
    refused(told, queues(*parts, arn=told.arn), words)


def test_fifo_queues_and_other_regions_are_refused(told: Told, client: Callable[..., Any]) -> None:
    told.sqs.create_queue(QueueName=f"{told.name}.fifo", Attributes={"FifoQueue": "true"})
    refused(told, queues({}, arn=f"{told.arn}.fifo"), "FIFO SQS queues are not supported")
    client("sqs", "eu-west-1").create_queue(QueueName=told.name)
    refused(told, queues({}, arn=told.arn.replace("us-east-1", "eu-west-1")), "region is not valid")


def test_topics_and_functions_are_not_here(told: Told) -> None:
    topic = {"TopicConfigurations": [{"Id": "t", "TopicArn": f"arn:aws:sns:us-east-1:{ACCOUNT}:t", "Events": [CREATED]}]}
    function = {"Id": "f", "LambdaFunctionArn": f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:f", "Events": [REMOVED]}
    refused(told, topic, "Corral has no SNS topics")
    refused(told, {"LambdaFunctionConfigurations": [function]}, "Corral has no Lambda functions")
    both = {**topic, "LambdaFunctionConfigurations": [function], "EventBridgeConfiguration": {}}
    told.put(both, SkipDestinationValidation=True)
    shown = told.s3.get_bucket_notification_configuration(Bucket=told.name)
    del shown["ResponseMetadata"]
    assert shown == both
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"")


def test_who_is_told_later_is_not_tried_now(told: Told) -> None:
    told.allow(Effect="Deny")
    told.put(queues({}, arn=told.arn), SkipDestinationValidation=True)
    assert told.messages() == []
    told.allow()
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"")
    assert told.events() == [("ObjectCreated:Put", "a")]


def test_an_empty_configuration_ends_it(told: Told) -> None:
    told.configure()
    told.put({})
    told.s3.put_object(Bucket=told.name, Key="a", Body=b"")
    assert told.messages() == []


def test_from_the_aws_command(told: Told, aws: Callable[..., Any]) -> None:
    configuration = json.dumps(queues({"Id": "x"}, arn=told.arn))
    aws("s3api", "put-bucket-notification-configuration", "--bucket", told.name, "--notification-configuration", configuration)
    shown = aws("s3api", "get-bucket-notification-configuration", "--bucket", told.name)
    assert shown == queues({"Id": "x"}, arn=told.arn)
