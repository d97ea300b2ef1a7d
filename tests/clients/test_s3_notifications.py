"""Event notifications to queues, through real clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from botocore.exceptions import ClientError

from clients.function_help import create
from clients.stack_help import ended
from eventually import eventually
from harness import Corral

ACCOUNT = "123456789012"
NUMBERS = count()
CREATED, REMOVED = "s3:ObjectCreated:*", "s3:ObjectRemoved:*"
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"


def policy_for(bucket: str, arn: str, **members: Any) -> str:
    """A queue policy as in S3's documentation."""
    condition = {"ArnLike": {"aws:SourceArn": f"arn:aws:s3:*:*:{bucket}"}, "StringEquals": {"aws:SourceAccount": ACCOUNT}}
    statement = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "SQS:SendMessage", "Resource": arn}
    return json.dumps({"Version": "2012-10-17", "Statement": [{**statement, "Condition": condition, **members}]})


class NotifiedQueue:
    """A bucket and a queue whose policy allows the bucket's events."""

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
        """Configure notifications, and remove the test message from the queue."""
        part: dict[str, Any] = {"QueueArn": self.arn, "Events": list(events or (CREATED,)), "Id": "all"}
        if filters:
            part["Filter"] = {"Key": {"FilterRules": [{"Name": name, "Value": value} for name, value in filters.items()]}}
        self.put({"QueueConfigurations": [part]})
        assert [message["Event"] for message in self.messages()] == ["s3:TestEvent"]

    def put(self, configuration: dict[str, Any], **params: Any) -> None:
        self.s3.put_bucket_notification_configuration(Bucket=self.name, NotificationConfiguration=configuration, **params)

    def messages(self) -> list[dict[str, Any]]:
        """All messages in the queue. A message is there when the call that caused it has returned."""
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
def notified(corral: Corral) -> Iterator[NotifiedQueue]:
    yield NotifiedQueue(corral)


def test_a_record_has_all_members_of_s3s(notified: NotifiedQueue) -> None:
    notified.configure()
    etag = notified.s3.put_object(Bucket=notified.name, Key="a folder/ü+1.txt", Body=b"hello")["ETag"]
    (record,) = notified.records()
    about = record["s3"].pop("object")
    assert about.pop("sequencer")
    assert about == {"key": "a+folder/%C3%BC%2B1.txt", "size": 5, "eTag": etag.strip('"')}
    owner = notified.s3.list_buckets()["Owner"]["ID"]
    assert record["s3"] == {
        "s3SchemaVersion": "1.0",
        "configurationId": "all",
        "bucket": {"name": notified.name, "ownerIdentity": {"principalId": owner}, "arn": f"arn:aws:s3:::{notified.name}"},
    }
    assert record["eventVersion"] == "2.1"
    assert record["eventSource"] == "aws:s3"
    assert record["awsRegion"] == "us-east-1"
    assert record["eventName"] == "ObjectCreated:Put"
    assert record["eventTime"].endswith("Z")
    assert record["requestParameters"]["sourceIPAddress"] == "127.0.0.1"
    assert record["responseElements"]["x-amz-request-id"]
    assert record["userIdentity"]["principalId"]


def test_the_test_message(notified: NotifiedQueue) -> None:
    notified.put({"QueueConfigurations": [{"QueueArn": notified.arn, "Events": [CREATED]}]})
    (message,) = notified.messages()
    assert message["Service"] == "Amazon S3"
    assert message["Event"] == "s3:TestEvent"
    assert message["Bucket"] == notified.name
    assert message["Time"].endswith("Z")
    assert message["RequestId"]


def test_every_way_to_create_and_remove_an_object(notified: NotifiedQueue) -> None:
    notified.configure(CREATED, REMOVED)
    s3, bucket = notified.s3, notified.name
    s3.put_object(Bucket=bucket, Key="a", Body=b"1")
    s3.copy_object(Bucket=bucket, Key="b", CopySource={"Bucket": bucket, "Key": "a"})
    upload = s3.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="c", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    s3.complete_multipart_upload(Bucket=bucket, Key="c", UploadId=upload, MultipartUpload=parts)
    s3.delete_object(Bucket=bucket, Key="a")
    s3.delete_object(Bucket=bucket, Key="never was")
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "b"}, {"Key": "c"}]})
    found = notified.records()
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


def test_versions(notified: NotifiedQueue) -> None:
    notified.configure(CREATED, REMOVED)
    s3, bucket = notified.s3, notified.name
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    made = s3.put_object(Bucket=bucket, Key="a", Body=b"1")["VersionId"]
    marker = s3.delete_object(Bucket=bucket, Key="a")["VersionId"]
    s3.delete_object(Bucket=bucket, Key="a", VersionId=made)
    found = {record["eventName"]: record["s3"]["object"]["versionId"] for record in notified.records()}
    assert found == {"ObjectCreated:Put": made, "ObjectRemoved:DeleteMarkerCreated": marker, "ObjectRemoved:Delete": made}


def test_a_large_file_of_the_aws_command_is_not_a_put(notified: NotifiedQueue, corral: Corral, tmp_path: Path) -> None:
    """The command uploads a large file in parts, so a notification for Put alone does not match, as on AWS."""
    notified.configure("s3:ObjectCreated:Put")
    large, small = tmp_path / "large", tmp_path / "small"
    large.write_bytes(bytes(9 * 1024 * 1024))
    small.write_bytes(b"small")
    corral.aws("s3", "cp", "--quiet", str(large), f"s3://{notified.name}/large")
    corral.aws("s3", "cp", "--quiet", str(small), f"s3://{notified.name}/small")
    assert notified.events() == [("ObjectCreated:Put", "small")]


def test_prefix_and_suffix(notified: NotifiedQueue) -> None:
    notified.configure(prEFIX="images/", Suffix=".jpg")  # a request can write the names in any case
    stored = notified.s3.get_bucket_notification_configuration(Bucket=notified.name)["QueueConfigurations"][0]
    assert [rule["Name"] for rule in stored["Filter"]["Key"]["FilterRules"]] == ["Prefix", "Suffix"]
    for key in ("images/a.jpg", "images/a.png", "a.jpg", "images/b c.jpg"):
        notified.s3.put_object(Bucket=notified.name, Key=key, Body=b"")
    assert sorted(notified.events()) == [("ObjectCreated:Put", "images/a.jpg"), ("ObjectCreated:Put", "images/b c.jpg")]


def test_tags(notified: NotifiedQueue) -> None:
    notified.configure("s3:ObjectTagging:*")
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")
    notified.s3.put_object_tagging(Bucket=notified.name, Key="a", Tagging={"TagSet": [{"Key": "x", "Value": "y"}]})
    notified.s3.delete_object_tagging(Bucket=notified.name, Key="a")
    records = notified.records()
    assert sorted(record["eventName"] for record in records) == ["ObjectTagging:Delete", "ObjectTagging:Put"]
    for record in records:
        assert (record["eventVersion"], record["s3"]["object"]) == ("2.3", {"key": "a", "eTag": EMPTY_MD5})


def test_access_control_lists(notified: NotifiedQueue) -> None:
    notified.configure("s3:ObjectAcl:Put")
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")
    for acl in ("public-read", "public-read", "private"):  # the second request changes nothing, so it sends nothing
        notified.s3.put_object_acl(Bucket=notified.name, Key="a", ACL=acl)
    records = notified.records()
    assert [record["eventName"] for record in records] == ["ObjectAcl:Put"] * 2
    assert (records[0]["eventVersion"], records[0]["s3"]["object"]) == ("2.3", {"key": "a", "eTag": EMPTY_MD5})


def test_keys_that_do_not_exist(notified: NotifiedQueue) -> None:
    notified.configure("s3:ObjectRemoved:*")
    notified.s3.delete_object(Bucket=notified.name, Key="absent")  # sends nothing
    notified.s3.delete_objects(Bucket=notified.name, Delete={"Objects": [{"Key": "absent too"}]})
    [record] = notified.records()
    assert record["eventName"] == "ObjectRemoved:Delete"
    assert {"key": "absent+too"}.items() <= record["s3"]["object"].items() and record["s3"]["object"].keys() == {"key", "sequencer"}


def test_failed_requests_send_no_message(notified: NotifiedQueue) -> None:
    notified.configure(CREATED, REMOVED)
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"1")
    with pytest.raises(ClientError, match="PreconditionFailed"):
        notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"2", IfNoneMatch="*")
    assert notified.events() == [("ObjectCreated:Put", "a")]


def test_a_long_poll_returns_at_once(notified: NotifiedQueue) -> None:
    notified.configure()
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"1")
    answer = notified.sqs.receive_message(QueueUrl=notified.url, WaitTimeSeconds=20)
    assert len(answer["Messages"]) == 1


# Refused configurations


def refused(notified: NotifiedQueue, configuration: dict[str, Any], words: str) -> dict[str, Any]:
    with pytest.raises(ClientError) as error:
        notified.put(configuration)
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
def test_the_queue_policy_must_allow_s3_at_configuration(notified: NotifiedQueue, members: dict[str, Any]) -> None:
    notified.allow(**members)
    error = refused(notified, queues({}, arn=notified.arn), "Unable to validate the following destination configurations")
    assert "Permissions on the destination queue do not allow S3" in json.dumps(error)
    assert notified.arn in json.dumps(error)
    assert notified.messages() == []
    assert "QueueConfigurations" not in notified.s3.get_bucket_notification_configuration(Bucket=notified.name)


def test_the_queue_policy_may_allow_everyone_with_a_condition(notified: NotifiedQueue) -> None:
    notified.allow(Principal="*", Action="sqs:*")
    notified.configure()


def test_the_queue_policy_must_allow_s3_at_each_event(notified: NotifiedQueue) -> None:
    notified.configure()
    notified.allow(Effect="Deny")
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")
    assert notified.messages() == []
    notified.allow()
    notified.s3.put_object(Bucket=notified.name, Key="b", Body=b"")
    assert notified.events() == [("ObjectCreated:Put", "b")]


def test_writes_succeed_when_the_queue_is_deleted(notified: NotifiedQueue) -> None:
    notified.configure()
    notified.sqs.delete_queue(QueueUrl=notified.url)
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")
    assert notified.s3.get_object(Bucket=notified.name, Key="a")["Body"].read() == b""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([{"QueueArn": f"arn:aws:sqs:us-east-1:{ACCOUNT}:none-such"}], "The destination queue does not exist"),
        ([{"QueueArn": "images"}], "The ARN could not be parsed"),
        ([{"Filter": {"Key": {"FilterRules": [{"Name": "middle", "Value": "a"}]}}}], "must be either prefix or suffix"),
        ([{"Events": ["s3:ObjectCreated:Teleport"]}], "The event is not supported for notifications"),
        ([{"Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "a"}, {"Name": "Prefix", "Value": "b"}]}}}],
         "more than one prefix rule"),
        ([{}, {}], "Configuration is ambiguously defined"),
        ([{}, {"Events": ["s3:ObjectCreated:Put"], "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": "g"}]}}}],
         "Configuration is ambiguously defined"),
    ],
)  # fmt: skip
def test_invalid_configurations(notified: NotifiedQueue, parts: list[dict[str, Any]], words: str) -> None:
    refused(notified, queues(*parts, arn=notified.arn), words)


def test_fifo_queues_and_other_regions_are_refused(notified: NotifiedQueue, client: Callable[..., Any]) -> None:
    notified.sqs.create_queue(QueueName=f"{notified.name}.fifo", Attributes={"FifoQueue": "true"})
    refused(notified, queues({}, arn=f"{notified.arn}.fifo"), "FIFO SQS queues are not supported")
    client("sqs", "eu-west-1").create_queue(QueueName=notified.name)
    refused(notified, queues({}, arn=notified.arn.replace("us-east-1", "eu-west-1")), "region is not valid")


def test_topics(notified: NotifiedQueue, client: Callable[..., Any]) -> None:
    sns = client("sns")
    arn = sns.create_topic(Name=notified.name)["TopicArn"]
    configuration = {"TopicConfigurations": [{"TopicArn": arn, "Events": [CREATED], "Id": "t"}]}
    refused(notified, configuration, "Permissions on the destination topic do not allow S3")
    statement = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "SNS:Publish", "Resource": arn}
    condition = {"ArnLike": {"aws:SourceArn": f"arn:aws:s3:*:*:{notified.name}"}, "StringEquals": {"aws:SourceAccount": ACCOUNT}}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{**statement, "Condition": condition}]})
    sns.set_topic_attributes(TopicArn=arn, AttributeName="Policy", AttributeValue=policy)
    sns.subscribe(TopicArn=arn, Protocol="sqs", Endpoint=notified.arn)
    notified.allow(Principal={"Service": "sns.amazonaws.com"}, Condition={"ArnEquals": {"aws:SourceArn": arn}})
    notified.put(configuration)
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")
    messages = notified.messages()
    assert {each["Subject"] for each in messages} == {"Amazon S3 Notification"}
    test, event = (json.loads(each["Message"]) for each in messages)
    assert (test["Event"], test["Bucket"]) == ("s3:TestEvent", notified.name)
    assert [(each["eventName"], each["s3"]["object"]["key"]) for each in event["Records"]] == [("ObjectCreated:Put", "a")]
    sns.delete_topic(TopicArn=arn)
    notified.s3.put_object(Bucket=notified.name, Key="b", Body=b"")
    assert notified.messages() == []


def test_functions(notified: NotifiedQueue, corral: Corral, client: Callable[..., Any], tmp_path: Path) -> None:
    functions, results = client("lambda"), tmp_path / "results"
    source = f"""
import json
def handler(event, context):
    with open({str(results)!r}, "a") as file:
        file.write(json.dumps(event) + "\\n")
    if open({str(results)!r}).read().count("again") == 1:
        raise ValueError("once")
"""
    arn = create(functions, notified.name, source)
    part = {"LambdaFunctionArn": arn, "Events": [CREATED], "Id": "f"}
    rules = [{"Name": "Suffix", "Value": ".png"}]
    configuration = {"LambdaFunctionConfigurations": [{**part, "Filter": {"Key": {"FilterRules": rules}}}]}
    assert refused(notified, configuration, f"Not authorized to invoke function [{arn}]")["ArgumentName1"] == f"{arn}, null"
    given = {"FunctionName": arn, "StatementId": "s3", "Action": "lambda:InvokeFunction", "Principal": "s3.amazonaws.com"}
    functions.add_permission(**given, SourceArn=f"arn:aws:s3:::{notified.name}", SourceAccount=ACCOUNT)
    notified.put(configuration)
    notified.s3.put_object(Bucket=notified.name, Key="a.txt", Body=b"")
    notified.s3.put_object(Bucket=notified.name, Key="again/a b.png", Body=b"1")

    def records() -> list[dict[str, Any]]:
        events = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        return [record for event in events for record in event["Records"]]

    eventually(lambda: len(records()) == 2, "the function fails, and is invoked again")
    [first, second] = records()
    assert first == second and first["s3"]["object"]["key"] == "again/a+b.png" and first["s3"]["configurationId"] == "f"
    assert (first["eventSource"], first["eventName"], first["s3"]["object"]["size"]) == ("aws:s3", "ObjectCreated:Put", 1)
    functions.remove_permission(FunctionName=arn, StatementId="s3")
    notified.s3.put_object(Bucket=notified.name, Key="denied.png", Body=b"")
    template = """
Parameters: {Permission: {Type: String}}
Conditions: {Allowed: !Equals [!Ref Permission, "true"]}
Resources:
  Allowed:
    Type: AWS::Lambda::Permission
    Condition: Allowed
    Properties: {FunctionName: FUNCTION, Action: "lambda:InvokeFunction", Principal: s3.amazonaws.com}
  Done: {Type: AWS::CloudFormation::WaitConditionHandle, Metadata: {After: !If [Allowed, !Ref Allowed, ""]}}
  Bucket:
    Type: AWS::S3::Bucket
    DependsOn: Done
    Properties:
      BucketName: BUCKET
      NotificationConfiguration: {LambdaConfigurations: [{Event: "s3:ObjectCreated:*", Function: FUNCTION}]}
""".replace("FUNCTION", arn).replace("BUCKET", f"{notified.name}-stack")
    stacks = client("cloudformation")
    for name, permission, status in (("without", "false", "ROLLBACK_COMPLETE"), ("with", "true", "CREATE_COMPLETE")):
        parameters = [{"ParameterKey": "Permission", "ParameterValue": permission}]
        stacks.create_stack(StackName=f"{notified.name}-{name}", TemplateBody=template, Parameters=parameters)
        assert ended(stacks, f"{notified.name}-{name}")["StackStatus"] == status
    notified.s3.put_object(Bucket=f"{notified.name}-stack", Key="of-the-stack", Body=b"")
    eventually(
        lambda: [each["s3"]["object"]["key"] for each in records()[2:]] == ["of-the-stack"], "the event of the stack's bucket"
    )


def test_missing_topics_and_functions_are_refused(notified: NotifiedQueue) -> None:
    topic = {"TopicConfigurations": [{"Id": "t", "TopicArn": f"arn:aws:sns:us-east-1:{ACCOUNT}:t", "Events": [CREATED]}]}
    function = {"Id": "f", "LambdaFunctionArn": f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:f", "Events": [REMOVED]}
    refused(notified, topic, "The destination topic does not exist")
    refused(notified, {"LambdaFunctionConfigurations": [function]}, "The destination Lambda does not exist")
    both = {**topic, "LambdaFunctionConfigurations": [function], "EventBridgeConfiguration": {}}
    notified.put(both, SkipDestinationValidation=True)
    shown = notified.s3.get_bucket_notification_configuration(Bucket=notified.name)
    del shown["ResponseMetadata"]
    assert shown == both
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")


def test_skipped_destination_validation(notified: NotifiedQueue) -> None:
    notified.allow(Effect="Deny")
    notified.put(queues({}, arn=notified.arn), SkipDestinationValidation=True)
    assert notified.messages() == []
    notified.allow()
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")
    assert notified.events() == [("ObjectCreated:Put", "a")]


def test_an_empty_configuration_stops_notifications(notified: NotifiedQueue) -> None:
    notified.configure()
    notified.put({})
    notified.s3.put_object(Bucket=notified.name, Key="a", Body=b"")
    assert notified.messages() == []


def test_from_the_aws_command(notified: NotifiedQueue, aws: Callable[..., Any]) -> None:
    configuration = json.dumps(queues({"Id": "x"}, arn=notified.arn))
    aws("s3api", "put-bucket-notification-configuration", "--bucket", notified.name, "--notification-configuration", configuration)
    shown = aws("s3api", "get-bucket-notification-configuration", "--bucket", notified.name)
    assert shown == queues({"Id": "x"}, arn=notified.arn)
