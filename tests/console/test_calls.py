"""The calls, the downloads and the uploads of the page: they do what the API does, for the identity of the session."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from console.page import Page, new_user, opened, opened_by, own_client
from harness import Corral

LARGE = 3_000_000


@pytest.fixture(scope="module")
def page(corral: Corral) -> Page:
    return opened(corral)


def plain(value: Any) -> Any:
    """Return what boto3 has returned as the console returns it."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items() if name != "ResponseMetadata"}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def same_times(value: Any) -> Any:
    """Return a result in which times without milliseconds have them, too."""
    if isinstance(value, dict):
        return {name: same_times(each) for name, each in value.items() if each is not None}
    if isinstance(value, list):
        return [same_times(each) for each in value]
    if isinstance(value, str) and len(value) == 20 and value.endswith("Z") and value[10] == "T":
        return value.replace("Z", ".000Z")
    return value


def test_results_are_those_of_boto3(corral: Corral, page: Page) -> None:
    sqs, s3, ecs = (corral.client(service) for service in ("sqs", "s3", "ecs"))
    url = sqs.create_queue(QueueName="same")["QueueUrl"]
    s3.create_bucket(Bucket="same")
    s3.put_object(Bucket="same", Key="a key", Body=b"x", Metadata={"made-by": "test"})
    container = {"name": "main", "image": "corral/host", "memory": 16, "command": ["true"]}
    ecs.register_task_definition(family="same", containerDefinitions=[container])
    corral.client("batch").register_job_definition(
        jobDefinitionName="same", type="container",
        containerProperties={"image": "corral/host", "command": ["true"], "resourceRequirements": [
            {"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}]},
    )  # fmt: skip
    corral.group("same")
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("ecs", "describe_clusters", {}),
        ("ecs", "describe_task_definition", {"taskDefinition": "same"}),
        ("batch", "describe_job_definitions", {"jobDefinitionName": "same"}),
        ("sqs", "get_queue_attributes", {"QueueUrl": url, "AttributeNames": ["QueueArn", "CreatedTimestamp"]}),
        ("s3", "list_buckets", {}),
        ("s3", "list_objects_v2", {"Bucket": "same", "EncodingType": "url"}),
        ("s3", "head_object", {"Bucket": "same", "Key": "a key"}),
        ("autoscaling", "describe_auto_scaling_groups", {"AutoScalingGroupNames": ["same"]}),
        ("ec2", "describe_vpcs", {}),
        ("iam", "list_groups", {}),
        ("cloudformation", "describe_stacks", {}),
        ("cloudwatch", "describe_alarms", {}),
        ("logs", "describe_log_groups", {}),
        ("lambda", "list_functions", {}),
        ("sts", "get_caller_identity", {}),
        ("corral", "list_lenders", {}),
    ]
    for service, operation, params in calls:
        name = "".join(word.capitalize() for word in operation.split("_")).replace("V2", "V2")
        expected = plain(getattr(corral.client(service), operation)(**params))
        assert same_times(page.call(service, name, **params)) == expected, (service, operation)


def test_parameters_are_those_of_boto3(corral: Corral, page: Page) -> None:
    now = datetime.now(UTC)
    point = {"MetricName": "m", "Value": 3.5, "Timestamp": now.isoformat()}
    page.call("cloudwatch", "PutMetricData", Namespace="Of/Page", MetricData=[point])
    asked = {"Namespace": "Of/Page", "MetricName": "m", "Period": 60, "Statistics": ["Sum"]}
    before, after = now - timedelta(minutes=5), now + timedelta(minutes=5)
    for start, end in ((before.isoformat(), after.isoformat()), (before.timestamp(), int(after.timestamp()))):
        found = page.call("cloudwatch", "GetMetricStatistics", **asked, StartTime=start, EndTime=end)["Datapoints"]
        assert [each["Sum"] for each in found] == [3.5]
    page.call("sqs", "CreateQueue", QueueName="of-page")
    blob = {"DataType": "Binary", "BinaryValue": "AAH/"}
    page.call("sqs", "SendMessage", QueueUrl="of-page", MessageBody="m", MessageAttributes={"blob": blob})
    [message] = corral.client("sqs").receive_message(QueueUrl="of-page", MessageAttributeNames=["All"])["Messages"]
    assert message["MessageAttributes"]["blob"]["BinaryValue"] == b"\x00\x01\xff"


@pytest.mark.parametrize(
    "service, operation, params, status, code",
    [
        ("ecs", "DescribeServices", {"cluster": "none", "services": ["x"]}, 400, "ClusterNotFoundException"),
        ("ecs", "RunTask", {}, 400, "InvalidParameterException"),
        ("sqs", "GetQueueUrl", {"QueueName": "none"}, 400, "QueueDoesNotExist"),
        ("s3", "ListObjectsV2", {"Bucket": "none"}, 404, "NoSuchBucket"),
        ("s3", "GetObject", {"Bucket": "none", "Key": "x"}, 400, "NotInConsole"),
        ("s3", "PutObject", {"Bucket": "none", "Key": "x"}, 400, "NotInConsole"),
        ("corral", "PeekMessages", {"queue": "none"}, 404, "QueueNotFoundException"),
        ("corral", "PeekMessages", {"queue": "none", "maxMessages": 11}, 400, "InvalidRequestException"),
        ("dynamodb", "ListTables", {}, 400, "UnknownOperationException"),
        ("ecs", "Nothing", {}, 400, "UnknownOperationException"),
        ("nothing", "ListTasks", {}, 400, "UnknownOperationException"),
        ("ecs", "", {}, 400, "UnknownOperationException"),
        ("ecs", "ListTasks", [], 400, "SerializationException"),
        ("ecs", "ListTasks", b"{", 400, "SerializationException"),
        ("batch", "SubmitJob", {"parameters": [[]]}, 400, "SerializationException"),
    ],
)
def test_errors_have_aws_codes_and_statuses(page: Page, service: str, operation: str, params: Any, status: int, code: str) -> None:
    answer = page.send("POST", f"/call/{service}/{operation}", params)
    assert (answer.status, answer.code) == (status, code), answer
    assert answer.json["error"]["message"]


def test_calls_are_in_the_audit_with_the_identity_and_its_key(corral: Corral, page: Page) -> None:
    key = new_user(corral, "audited", {"Effect": "Allow", "Action": "sqs:*", "Resource": "*"})
    mine = opened_by(corral, key)
    mine.send("POST", "/call/sqs/CreateQueue", {"QueueName": "audited"}, user_agent="Browser/1.0")
    assert "AccessDenied" in mine.refused("iam", "CreateUser", UserName="x").code
    found = corral.client("cloudtrail").lookup_events(LookupAttributes=[{"AttributeKey": "Username", "AttributeValue": "audited"}])
    events = {each["EventName"]: json.loads(each["CloudTrailEvent"]) for each in found["Events"]}
    assert events.keys() == {"CreateConsoleLink", "CreateQueue", "CreateUser"}
    made = events["CreateQueue"]
    assert made["userIdentity"]["accessKeyId"] == key["AccessKeyId"] and made["userIdentity"]["userName"] == "audited"
    assert (made["userAgent"], made["sourceIPAddress"]) == ("Browser/1.0", "127.0.0.1")
    assert "code" not in (events["CreateConsoleLink"]["responseElements"] or {})
    assert events["CreateUser"]["errorCode"] == "AccessDenied"


def test_the_limit_of_requests_of_a_user_holds(corral: Corral, page: Page) -> None:
    mine = opened_by(corral, new_user(corral, "fast", {"Effect": "Allow", "Action": "*", "Resource": "*"}))
    corral.own("SetLimits", subject="user/fast", limits={"requestsPerSecond": 0.1})
    mine.call("ecs", "ListTasks")
    assert mine.refused("ecs", "ListTasks").code == "ThrottlingException"
    assert mine.refused("sqs", "ListQueues").code == "RequestThrottled"


def test_objects_go_up_and_down(corral: Corral, page: Page) -> None:
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="bytes")
    s3.put_bucket_versioning(Bucket="bytes", VersioningConfiguration={"Status": "Enabled"})
    content = bytes(range(256)) * (LARGE // 256)
    for key, path in (("plain", "plain"), ("a b/ü+%.txt", "a%20b/%C3%BC%2B%25.txt")):
        answer = page.send("PUT", f"/object/bytes/{path}", content, content_type="text/plain")
        assert answer.status == 200, answer
        found = s3.get_object(Bucket="bytes", Key=key)
        assert found["Body"].read() == content and found["ContentType"] == "text/plain"
        assert page.send("GET", f"/object/bytes/{path}").body == content
        part = page.send("GET", f"/object/bytes/{path}", range="bytes=2-5")
        assert (part.status, part.body, part.headers["content-range"]) == (206, b"\2\3\4\5", f"bytes 2-5/{len(content)}")
        ticket = page.send("POST", "/ticket", {"bucket": "bytes", "key": key}).json["url"]
        assert page.send("GET", ticket, x_corral_console=None).body == content
    assert page.send("GET", ticket).headers["content-type"] == "application/json"  # the error of a used ticket
    version = page.send("GET", "/object/bytes/plain").headers["x-amz-version-id"]
    page.send("PUT", "/object/bytes/plain", b"newer")
    assert page.send("GET", f"/object/bytes/plain?versionId={version}", range="bytes=0-0").body == content[:1]
    ticket = page.send("POST", "/ticket", {"bucket": "bytes", "key": "plain", "versionId": version}).json["url"]
    assert page.send("GET", ticket).body == content
    assert page.send("GET", "/object/bytes/none").code == "NoSuchKey"
    assert page.send("GET", "/object/no-bucket/none").code == "NoSuchBucket"
    for wanted in ({}, {"bucket": "bytes"}, {"bucket": 1, "key": "x"}, {"bucket": "bytes", "key": ""}):
        assert page.send("POST", "/ticket", wanted).code == "InvalidRequest"


def test_a_peek_changes_nothing(corral: Corral, page: Page) -> None:
    sqs = corral.client("sqs")
    url = sqs.create_queue(QueueName="peek", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    assert page.call("corral", "PeekMessages", queue="peek") == {"messages": []}
    text = {"kind": {"DataType": "String", "StringValue": "small"}, "raw": {"DataType": "Binary", "BinaryValue": b"12345"}}
    sqs.send_message(QueueUrl=url, MessageBody="first", MessageAttributes=text)
    sqs.send_message(QueueUrl=url, MessageBody="late", DelaySeconds=600)
    sqs.send_message(QueueUrl=url, MessageBody="third")
    [received] = sqs.receive_message(QueueUrl=url)["Messages"]
    began_s = time.time()
    for _ in range(3):
        first, late, third = page.call("corral", "PeekMessages", queue=url)["messages"]
    assert [each["body"] for each in (first, late, third)] == ["first", "late", "third"]
    assert [each["state"] for each in (first, late, third)] == ["inFlight", "delayed", "visible"]
    assert [each["receives"] for each in (first, late, third)] == [1, 0, 0]
    assert first["messageId"] == received["MessageId"] and abs(first["visibleAtS"] - began_s - 600) < 60
    assert third["visibleAtS"] is None and abs(third["sentAtS"] - began_s) < 60
    assert first["attributes"] == {"kind": {"type": "String", "text": "small"}, "raw": {"type": "Binary", "bytes": 5}}
    assert len(page.call("corral", "PeekMessages", queue="peek", maxMessages=2)["messages"]) == 2
    [again] = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["ApproximateReceiveCount"])["Messages"]
    assert (again["Body"], again["Attributes"]) == ("third", {"ApproximateReceiveCount": "1"})
    sqs.create_queue(QueueName="peek.fifo", Attributes={"FifoQueue": "true", "ContentBasedDeduplication": "true"})
    sqs.send_message(QueueUrl="peek.fifo", MessageBody="a", MessageGroupId="g")
    [only] = page.call("corral", "PeekMessages", queue="peek.fifo")["messages"]
    assert (only["messageGroupId"], only["state"]) == ("g", "visible")


def test_long_parts_of_responses_can_be_left_out(corral: Corral, page: Page) -> None:
    def gpus(**params: Any) -> list[dict[str, Any]]:
        [host] = page.call("corral", "DescribeHosts", **params)["hosts"]
        return list(host["gpus"])

    whole, short = gpus(), gpus(history=False)
    assert all(len(each["history"]["utilizationPercent"]) == 60 for each in [*whole, *gpus(history=True)])
    assert [each["id"] for each in short] == [each["id"] for each in whole] and not any(each["history"] for each in short)
    status, without = page.call("corral", "GetStatus"), page.call("corral", "GetStatus", hosts=False)
    assert len(status["hosts"]) == 1 and without["hosts"] == [] and without["version"] == status["version"]


def test_the_page_and_its_session_are_described(corral: Corral, page: Page) -> None:
    index = page.send("GET", "/", cookie=None, x_corral_console=None)
    assert index.status == 200 and index.headers["content-type"] == "text/html; charset=utf-8"
    unchanged = page.send("GET", "/", if_none_match=index.headers["etag"])
    assert (unchanged.status, unchanged.body) == (304, b"")
    zipped = page.send("GET", "/", accept_encoding="gzip")
    assert zipped.headers["content-encoding"] == "gzip" and zipped.body[:2] == b"\x1f\x8b"
    found = page.send("GET", "/session").json
    assert found["identity"] == page.about["identity"] == {
        "account": "123456789012", "arn": "arn:aws:iam::123456789012:root", "name": "root", "kind": "root",
    }  # fmt: skip
    assert (found["region"], found["endpoint_url"]) == ("us-east-1", corral.url) and "secret" not in found
    assert found["expires_at"] == page.about["expires_at"]


def test_sessions_and_streams_go_on_after_a_crash(own_corral: Any) -> None:
    corral = own_corral().start()
    page = opened(corral)
    stream = page.begin("POST", "/changes", {"topics": ["queues", "stacks"]}).getresponse()
    first = int(stream.readline().removeprefix(b"id: "))
    corral.kill("corral.server")
    corral.start()
    assert page.send("GET", "/session").status == 200
    page.call("sqs", "CreateQueue", QueueName="after")
    again = page.begin("POST", "/changes", {"topics": ["queues", "stacks"], "after": first}).getresponse()
    assert int(again.readline().removeprefix(b"id: ")) > first
    assert json.loads(again.readline().removeprefix(b"data: ")) == {"topics": ["queues", "stacks"]}
    ended = own_client(corral, {"AccessKeyId": corral.keys["access_key"], "SecretAccessKey": corral.keys["secret_key"]})
    assert ended.end_console_sessions()["sessions"] == 1
    assert page.refused("ecs", "ListTasks").code == "SessionEnded"
    corral.stop()  # ends, although a page has a stream
