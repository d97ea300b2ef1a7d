"""Digits of other alphabets, numbers that no column holds, line breaks and deep documents: each is refused with a typed error."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError

from clients.s3_help import new_bucket, refused
from fuzz.composer import serialized
from harness import Corral, container
from raw_aws import Answer, Connection, RawRequest
from raw_registry import Registry, new_repository
from wire.oracle import protocols_of

Client = Callable[..., Any]
BEYOND = "9" * 30  # more than 64 bits
ENDLESS = "9" * 5000  # more digits than Python's int() reads
NUMBERS = ["²", "٣", BEYOND, ENDLESS]
LINES = "a\r\nx-injected: 1"


def token(position: str) -> str:
    """A page token of Corral for a position that it would never name."""
    return urlsafe_b64encode(position.encode()).decode()


@pytest.fixture(scope="module")
def names(corral: Corral) -> dict[str, str]:
    """Resources whose existence is needed to come as far as the number."""
    ecs, ssm, sqs, ec2 = (corral.client(service) for service in ("ecs", "ssm", "sqs", "ec2"))
    ecs.register_task_definition(family="numbers", containerDefinitions=[container(["true"])])
    ssm.put_parameter(Name="/numbers", Value="1", Type="String")
    corral.client("logs").create_log_group(logGroupName="/numbers")
    corral.client("ecr").create_repository(repositoryName="numbers")
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    return {
        "acl": ec2.create_network_acl(VpcId=vpc)["NetworkAcl"]["NetworkAclId"],
        "group": ec2.create_security_group(GroupName="numbers", Description="d", VpcId=vpc)["GroupId"],
        "queue": sqs.create_queue(QueueName="numbers")["QueueUrl"],
        "bucket": new_bucket(corral.client("s3"), versions=True),
    }


Case = Callable[[str, dict[str, str]], tuple[str, str, dict[str, Any], str]]
CASES: dict[str, Case] = {
    "revision": lambda number, _: ("ecs", "DescribeTaskDefinition", {"taskDefinition": f"numbers:{number}"}, "ClientException"),
    "revision in an ARN": lambda number, _: (
        "ecs",
        "DeregisterTaskDefinition",
        {"taskDefinition": f"arn:aws:ecs:us-east-1:000000000000:task-definition/numbers:{number}"},
        "ClientException",
    ),
    "run": lambda number, _: ("ecs", "RunTask", {"taskDefinition": f"numbers:{number}"}, "ClientException"),
    "definitions page": lambda number, _: (
        "ecs",
        "ListTaskDefinitions",
        {"nextToken": token(f"numbers:{number}")},
        "InvalidParameterException",
    ),
    "tasks page": lambda number, _: ("ecs", "ListTasks", {"nextToken": token(f"a {number} b")}, "InvalidParameterException"),
    "GPUs": lambda number, _: (
        "ecs",
        "RegisterTaskDefinition",
        {
            "family": "numbers",
            "containerDefinitions": [container(["true"], resourceRequirements=[{"type": "GPU", "value": number}])],
        },
        "ClientException",
    ),
    "task memory": lambda number, _: (
        "ecs",
        "RegisterTaskDefinition",
        {"family": "numbers", "containerDefinitions": [container(["true"])], "memory": f"{number} TB"},
        "ClientException",
    ),
    "image page": lambda number, _: (
        "ecr",
        "ListImages",
        {"repositoryName": "numbers", "nextToken": token(number)},
        "InvalidParameterException",
    ),
    "history page": lambda number, _: (
        "ssm",
        "GetParameterHistory",
        {"Name": "/numbers", "NextToken": token(number)},
        "InvalidNextToken",
    ),
    "streams page": lambda number, _: (
        "logs",
        "DescribeLogStreams",
        {"logGroupName": "/numbers", "orderBy": "LastEventTime", "nextToken": token(f"{number}:a")},
        "InvalidParameterException",
    ),
    "events page": lambda number, _: (
        "logs",
        "FilterLogEvents",
        {"logGroupName": "/numbers", "nextToken": token(f"f/{number}/1/1")},
        "InvalidParameterException",
    ),
    "alarm history page": lambda number, _: (
        "cloudwatch",
        "DescribeAlarmHistory",
        {"NextToken": token(f"1.0 {number}")},
        "InvalidNextToken",
    ),
    "composite alarm": lambda number, _: (
        "cloudwatch",
        "PutCompositeAlarm",
        {"AlarmName": "c", "AlarmRule": f"AT_LEAST({number}, ALARM, (a, b))"},
        "ValidationException",
    ),
    "metric query": lambda number, _: (
        "cloudwatch",
        "GetMetricData",
        {
            "MetricDataQueries": [{"Id": "q", "Period": 60, "Expression": f"SELECT AVG(m) FROM n LIMIT {number[:300]}"}],
            "StartTime": 0.0,
            "EndTime": 60.0,
        },
        "ValidationException",
    ),
    "receive count": lambda number, _: (
        "sqs",
        "CreateQueue",
        {
            "QueueName": "other",
            "Attributes": {"RedrivePolicy": json.dumps({"deadLetterTargetArn": "arn:aws:sqs:a:1:b", "maxReceiveCount": number})},
        },
        "InvalidParameterValueException",
    ),
    "delay": lambda number, _: (
        "sqs",
        "CreateQueue",
        {"QueueName": "other", "Attributes": {"DelaySeconds": number}},
        "InvalidAttributeValue",
    ),
    "protocol of a rule": lambda number, names: (
        "ec2",
        "AuthorizeSecurityGroupIngress",
        {"GroupId": names["group"], "IpPermissions": [{"IpProtocol": number, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]},
        "InvalidParameterValue",
    ),
    "protocol of an entry": lambda number, names: (
        "ec2",
        "CreateNetworkAclEntry",
        {
            "NetworkAclId": names["acl"],
            "RuleNumber": 1,
            "Protocol": number,
            "RuleAction": "allow",
            "Egress": False,
            "CidrBlock": "0.0.0.0/0",
        },
        "InvalidParameterValue",
    ),
    "version marker": lambda number, names: (
        "s3",
        "ListObjectVersions",
        {"Bucket": names["bucket"], "KeyMarker": "a", "VersionIdMarker": f"null.{number}"},
        "InvalidArgument",
    ),
    "keys of a page": lambda number, names: (
        "s3",
        "ListObjectsV2",
        {"Bucket": names["bucket"], "MaxKeys": number},
        "InvalidArgument",
    ),
    "part": lambda number, names: (
        "s3",
        "UploadPart",
        {"Bucket": names["bucket"], "Key": "a", "UploadId": "u", "PartNumber": number},
        "InvalidArgument",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_number_that_is_none(corral: Corral, names: dict[str, str], case: str) -> None:
    for number in NUMBERS:
        service, operation, params, code = CASES[case](number, names)
        answer = call(corral, service, operation, params)
        assert answer.code == code, f"{number[:40]}: {answer}"
        assert 400 <= answer.status < 500


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_that_name_nothing(corral: Corral, names: dict[str, str], number: str) -> None:
    """A parameter's version, and headers and queries that are ignored or bounded."""
    if number.isascii() and len(number) < 100:
        assert call(corral, "ssm", "GetParameter", {"Name": f"/numbers:{number}"}).code == "ParameterVersionNotFound"
    request = serialized("ecs", "json", "DescribeTasks", {"tasks": ["0" * 32]})
    request.unsigned = {"x-corral-seen": number, "x-corral-wait": number}
    assert sent(corral, request).status == 200
    for header in ("range", "x-amz-copy-source-range", "x-amz-decoded-content-length", "x-amz-mp-object-size"):
        request = serialized("s3", "rest-xml", "GetObject", {"Bucket": names["bucket"], "Key": "none"})
        request.headers[header] = number
        assert sent(corral, request).status in (400, 404)
    registry = Registry(corral)
    quoted = "".join(f"%{byte:02x}" for byte in number.encode()) if not number.isascii() else number
    assert registry("GET", f"/v2/{new_repository(corral)}/tags/list?n={quoted}").status == 200
    assert registry("GET", f"/v2/_catalog?n={quoted}").status == 200


def test_receipt_handles_beyond_64_bits(corral: Corral, names: dict[str, str]) -> None:
    sqs = corral.client("sqs")
    sqs.send_message(QueueUrl=names["queue"], MessageBody="a")
    [message] = sqs.receive_message(QueueUrl=names["queue"])["Messages"]
    handle = message["ReceiptHandle"]
    for altered in (handle[:16] + "f" * 16 + handle[32:], handle[:32] + "f" * 16 + handle[48:], "f" * len(handle)):
        for operation, more in (("DeleteMessage", {}), ("ChangeMessageVisibility", {"VisibilityTimeout": 1})):
            answer = call(corral, "sqs", operation, {"QueueUrl": names["queue"], "ReceiptHandle": altered, **more})
            assert answer.status < 500, answer


@pytest.mark.parametrize("host", ["a:99999999", "[", "a:b", "[::1]:x"])
def test_an_odd_host_header(corral: Corral, names: dict[str, str], host: str) -> None:
    request = serialized("ecr", "json", "DescribeRepositories", {"repositoryNames": ["numbers"]})
    request.headers["host"] = host
    answer = sent(corral, request)
    assert answer.status == 200, answer


DEEP = "[" * 900 + "]" * 900


@pytest.mark.parametrize(
    ("service", "operation", "params", "code"),
    [
        (
            "cloudwatch",
            "SetAlarmState",
            {"AlarmName": "deep", "StateValue": "OK", "StateReason": "r", "StateReasonData": DEEP},
            "InvalidFormatFault",
        ),
        ("cloudwatch", "PutDashboard", {"DashboardName": "d", "DashboardBody": DEEP}, "DashboardInvalidInputError"),
        ("cloudwatch", "ListMetrics", {"NextToken": token(DEEP)}, "InvalidParameterValueException"),
        ("sqs", "CreateQueue", {"QueueName": "deep", "Attributes": {"Policy": f'{{"a":{DEEP}}}'}}, "InvalidAttributeValue"),
        ("iam", "CreatePolicy", {"PolicyName": "deep", "PolicyDocument": f'{{"Statement":{DEEP}}}'}, "MalformedPolicyDocument"),
        ("ssm", "PutParameter", {"Name": "/deep", "Value": "1", "Type": "String", "Policies": DEEP}, "ValidationException"),
    ],
)
def test_deep_documents(corral: Corral, service: str, operation: str, params: dict[str, Any], code: str) -> None:
    if operation == "SetAlarmState":
        corral.client("cloudwatch").put_metric_alarm(
            AlarmName="deep",
            Namespace="n",
            MetricName="m",
            Statistic="Sum",
            Period=60,
            EvaluationPeriods=1,
            Threshold=1.0,
            ComparisonOperator="GreaterThanThreshold",
        )
    answer = call(corral, service, operation, params)
    assert answer.code == code, answer


def test_overrides_of_tasks(corral: Corral, names: dict[str, str]) -> None:
    for override, code in (
        ({"environment": [{"value": "x"}]}, "InvalidParameterException"),
        ({"cpu": -1}, "ClientException"),
        ({"memory": -1}, "ClientException"),
        ({"memoryReservation": 0}, "ClientException"),
    ):
        params = {"taskDefinition": "numbers", "overrides": {"containerOverrides": [{"name": "main", **override}]}}
        assert call(corral, "ecs", "RunTask", params).code == code


# --- values that become headers -----------------------------------------------------------------------------------------


def test_line_breaks_in_what_becomes_a_header(client: Client, names: dict[str, str]) -> None:
    s3, bucket = client("s3"), names["bucket"]
    s3.put_object(Bucket=bucket, Key="a", Body=b"x")
    for method in (s3.get_object, s3.head_object, s3.delete_object, s3.get_object_tagging):
        with pytest.raises(ClientError) as raised:
            method(Bucket=bucket, Key="a", VersionId=LINES)
        assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with refused("InvalidArgument"):
        s3.delete_object(Bucket=bucket, Key="a", VersionId="a\nb")
    for name in ("ContentDisposition", "ContentType", "CacheControl", "ContentEncoding", "ContentLanguage"):
        with refused("InvalidArgument"):
            s3.get_object(Bucket=bucket, Key="a", **{f"Response{name}": LINES})
    rule = {
        "ID": LINES,
        "Filter": {"Prefix": ""},
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    }
    with refused("InvalidArgument"):
        s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    encryption = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": LINES}}
    with refused("InvalidArgument"):
        s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [encryption]})
    cors = {"AllowedMethods": ["GET"], "AllowedOrigins": ["*"], "ExposeHeaders": [LINES]}
    with refused("InvalidArgument"):
        s3.put_bucket_cors(Bucket=bucket, CORSConfiguration={"CORSRules": [cors]})


@pytest.mark.parametrize("header", ["x-amz-meta-a", "x-amz-website-redirect-location"])
def test_line_breaks_in_the_url_of_a_put(corral: Corral, names: dict[str, str], header: str) -> None:
    """A URL can carry headers in its query, and there they can have any character."""
    request = serialized("s3", "rest-xml", "PutObject", {"Bucket": names["bucket"], "Key": "url", "Body": b"x"})
    request.query = f"{header}={quote('/' + LINES, safe='')}"
    assert sent(corral, request).code == "InvalidArgument"
    request.query = f"{header}=%2Ffine"
    assert sent(corral, request).status == 200


@pytest.mark.parametrize("field", ["x-amz-meta-a", "Content-Disposition", "Cache-Control", "x-amz-website-redirect-location"])
def test_line_breaks_in_a_form(client: Client, names: dict[str, str], field: str) -> None:
    fields = {field: LINES}
    post = client("s3").generate_presigned_post(
        names["bucket"], "form", Fields=fields, Conditions=[["starts-with", f"${field}", ""]]
    )
    answer = posted(post)
    assert (answer.code, b"InvalidArgument" in answer.read()) == (400, True)


@pytest.mark.parametrize("redirect", ["http://[", f"http://a/{LINES}", "http://a\nb/"])
def test_a_redirect_that_is_no_address_is_ignored(client: Client, names: dict[str, str], redirect: str) -> None:
    fields = {"success_action_redirect": redirect}
    conditions = [["starts-with", "$success_action_redirect", ""]]
    assert posted(client("s3").generate_presigned_post(names["bucket"], "form", Fields=fields, Conditions=conditions)).status == 204


def test_a_rule_of_millions_of_years(client: Client) -> None:
    s3 = client("s3")
    bucket = new_bucket(s3)
    rule = {"ID": "r", "Filter": {"Prefix": ""}, "Status": "Enabled", "Expiration": {"Days": 2**31 - 1}}
    rule["AbortIncompleteMultipartUpload"] = {"DaysAfterInitiation": 2**31 - 1}
    s3.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [rule]})
    s3.put_object(Bucket=bucket, Key="a", Body=b"x")
    assert "9999" in s3.head_object(Bucket=bucket, Key="a")["Expiration"]
    assert s3.create_multipart_upload(Bucket=bucket, Key="a")["AbortDate"].year == 9999


def call(corral: Corral, service: str, operation: str, params: dict[str, Any]) -> Answer:
    return sent(corral, serialized(service, protocols_of(service)[0], operation, params))


def sent(corral: Corral, request: RawRequest) -> Answer:
    async def send() -> Answer:
        connection = Connection(corral)
        answer = await connection(request)
        await connection.close()
        return answer

    return asyncio.run(send())


def posted(post: dict[str, Any]) -> Any:
    """Send a form as a browser would, with the fields as they are."""
    boundary, parts = "corral-boundary", []
    for name, value in post["fields"].items():
        parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n')
    parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nx\r\n--{boundary}--\r\n')
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    try:
        return urlopen(Request(post["url"], "".join(parts).encode(), headers, method="POST"))
    except HTTPError as error:
        return error
