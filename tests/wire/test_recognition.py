"""Recognition of the service, operation and protocol of a request."""

from __future__ import annotations

import time

import pytest
from botocore import xform_name
from botocore.model import ServiceModel

from corral.aws import Request, Response, catalogue, not_served, recognise, recognise_unless_form, verify
from corral.core.errors import ApiError, api_error
from wire.oracle import LOADER, client, lookup, sent_by_botocore

FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


@pytest.mark.parametrize("service", catalogue.SERVICES, ids=lambda service: service.name)
def test_the_catalogue_agrees_with_botocore(service: catalogue.AwsService) -> None:
    model = ServiceModel(LOADER.load_service_model(service.name, "service-2"), service.name)
    assert service.signing_name == model.signing_name
    assert service.api_version == model.api_version
    assert service.protocols[0] == model.resolved_protocol
    assert service.target_prefix == model.metadata.get("targetPrefix")
    modelled = set(model.metadata["protocols"]) | ({"query"} if "awsQueryCompatible" in model.metadata else set())
    assert set(service.protocols) == modelled


@pytest.mark.parametrize("service", [s for s in catalogue.SERVICES if s.protocols[0] != "rest-xml"], ids=lambda s: s.name)
def test_every_known_service_is_named(service: catalogue.AwsService) -> None:
    """Requests of a real client, for the first operation without a path."""
    found: list[tuple[str, str]] = []

    def answer(request: Request) -> Response:
        call = recognise(request)
        found.append((call.service, call.operation))
        assert verify(request, lookup, time.time(), signing_name=call.signing_name).service == service.signing_name
        return call.serialize_error(not_served(call), "request-1")

    made = client(service.name, answer)
    for operation in made.meta.service_model.operation_names:
        model = made.meta.service_model.operation_model(operation)
        if "{" not in model.http["requestUri"] and model.endpoint is None and model.auth_type != "none":
            break
    with pytest.raises(made.exceptions.ClientError):
        getattr(made, xform_name(operation))()
    assert found == [(service.name, operation)]


@pytest.mark.parametrize(
    "method, path, query, headers, operation",
    [
        ("GET", "/", "", {}, "ListBuckets"),
        ("GET", "/bucket", "list-type=2&prefix=a", {}, "ListObjectsV2"),
        ("GET", "/bucket/a/b/c.txt", "", {}, "GetObject"),
        ("PUT", "/bucket/a/b/c.txt", "", {}, "PutObject"),
        ("PUT", "/bucket/a/b/c.txt", "partNumber=1&uploadId=x", {}, "UploadPart"),
        ("PUT", "/bucket/a", "", {"x-amz-copy-source": "/b/k"}, "CopyObject"),
        ("PUT", "/bucket/a", "tagging", {}, "PutObjectTagging"),
        ("PUT", "/bucket", "notification", {}, "PutBucketNotificationConfiguration"),
        ("POST", "/bucket", "delete", {}, "DeleteObjects"),
        ("POST", "/bucket/a", "uploads", {}, "CreateMultipartUpload"),
        ("HEAD", "/bucket", "", {}, "HeadBucket"),
    ],
)
def test_s3_operations_are_named(method: str, path: str, query: str, headers: dict[str, str], operation: str) -> None:
    scope = {"authorization": "AWS4-HMAC-SHA256 Credential=AK/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host"}
    call = recognise(Request(method, path, query, scope | headers, b""))
    assert (call.service, call.operation, call.protocol) == ("s3", operation, "rest-xml")


def test_an_old_presigned_url_means_s3() -> None:
    call = recognise(Request("GET", "/b/k", "AWSAccessKeyId=AK&Signature=x&Expires=1", {}, b""))
    assert (call.service, call.operation) == ("s3", "GetObject")


def test_rpc_v2_is_recognised_by_its_path() -> None:
    path = "/service/GraniteServiceVersion20100801/operation/DescribeAlarms"
    call = recognise(Request("POST", path, "", {"smithy-protocol": "rpc-v2-cbor"}, b"\xa0"))
    assert (call.service, call.operation, call.protocol) == ("cloudwatch", "DescribeAlarms", "smithy-rpc-v2-cbor")
    assert call.params() == {}


def test_a_form_of_ec2() -> None:
    body = (
        b"Action=DescribeInstances&Version=2016-11-15&Filter.1.Name=tag%3Aa&Filter.1.Value.1=b&Filter.1.Value.2=c&MaxResults=5"
        b"&InstanceId.2=i-2&InstanceId.1=i-1"
    )
    call = recognise(Request("POST", "/", "", FORM, body))
    assert (call.service, call.operation, call.protocol) == ("ec2", "DescribeInstances", "ec2")
    filters = [{"Name": "tag:a", "Values": ["b", "c"]}]
    assert call.params() == {"Filters": filters, "MaxResults": 5, "InstanceIds": ["i-1", "i-2"]}
    result = {"Reservations": [{"ReservationId": "r-1", "Instances": [{"InstanceId": "i-1", "State": {"Code": 16}}]}]}
    assert call.serialize(result, "request-1").body.decode().split("\n", 1)[1] == (
        '<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>request-1</requestId>'
        "<reservationSet><item><reservationId>r-1</reservationId><instancesSet><item><instanceId>i-1</instanceId>"
        "<instanceState><code>16</code></instanceState></item></instancesSet></item></reservationSet></DescribeInstancesResponse>"
    )
    refused = call.serialize_error(api_error("InvalidInstanceID.NotFound")("no"), "request-1")
    assert refused.body.decode().split("\n", 1)[1] == (
        "<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code><Message>no</Message></Error></Errors>"
        "<RequestID>request-1</RequestID></Response>"
    )


def test_a_query_may_come_in_the_query_string() -> None:
    call = recognise(Request("GET", "/", "Action=GetCallerIdentity&Version=2011-06-15", {}, b""))
    assert (call.service, call.operation, call.params()) == ("sts", "GetCallerIdentity", {})


@pytest.mark.parametrize(
    "request_, code, said",
    [
        (Request("POST", "/", "", {"x-amz-target": "Unknown.Target"}, b"{}"), "UnknownOperationException", "Unknown.Target"),
        (Request("POST", "/", "", {"x-amz-target": ""}, b"{}"), "UnknownOperationException", "''"),
        (
            Request("POST", "/", "", {"x-amz-target": "AmazonEC2ContainerServiceV20141113.Fly"}, b"{}"),
            "UnknownOperationException",
            "ecs has no operation 'Fly'",
        ),
        (Request("POST", "/", "", FORM, b"Action=Fly&Version=2011-06-15"), "InvalidAction", "sts has no operation 'Fly'"),
        (Request("POST", "/", "", FORM, b"Action=Fly&Version=1984"), "InvalidAction", "'Fly' in Version '1984'"),
        (Request("POST", "/v1/nothing", "", {}, b"{}"), "UnknownOperationException", "POST /v1/nothing"),
        (
            Request("GET", "/x", "X-Amz-Credential=AK%2F20260101%2Feu-west-1%2Fglue%2Faws4_request", {}, b""),
            "UnknownOperationException",
            "service 'glue'",
        ),
        (
            Request("GET", "/", "X-Amz-Credential=AK%2F20260101%2Feu-west-1%2Fecs%2Faws4_request", {}, b""),
            "UnknownOperationException",
            "X-Amz-Target",
        ),
    ],
)
def test_the_error_names_what_is_not_recognised(request_: Request, code: str, said: str) -> None:
    with pytest.raises(ApiError) as caught:
        recognise(request_)
    assert (caught.value.code, caught.value.status) == (code, 400)
    assert said in caught.value.message


SCOPE = "AWS4-HMAC-SHA256 Credential=AK/20260101/eu-west-1/{}/aws4_request, SignedHeaders=host, Signature=0"


@pytest.mark.parametrize(
    "head, operation",
    [
        (Request("POST", "/", "", {"x-amz-target": "AmazonSQS.ListQueues"}, b""), "ListQueues"),
        (Request("POST", "/v1/describejobs", "", {"authorization": SCOPE.format("batch")}, b""), "DescribeJobs"),
        (Request("POST", "/v1/describejobs", "", {}, b""), "DescribeJobs"),
        (
            Request("POST", "/service/GraniteServiceVersion20100801/operation/DescribeAlarms", "",
                    {"smithy-protocol": "rpc-v2-cbor", "authorization": SCOPE.format("monitoring")}, b""),
            "DescribeAlarms",
        ),
        (Request("POST", "/", "", FORM, b""), None),
        (Request("GET", "/", "Action=GetCallerIdentity&Version=2011-06-15", {}, b""), None),
        (Request("POST", "/", "", {"authorization": SCOPE.format("sts")}, b""), None),
        (Request("POST", "/", "", {"authorization": SCOPE.format("ec2")}, b""), None),
        (Request("POST", "/", "", {"authorization": SCOPE.format("monitoring")}, b""), None),
    ],
)  # fmt: skip
def test_all_but_forms_are_recognised_by_their_heads(head: Request, operation: str | None) -> None:
    call = recognise_unless_form(head)
    assert (call.operation if call is not None else None) == operation


def test_unknown_targets_are_not_cached() -> None:
    from corral.aws.recognition import _from_target, _operation

    before = _from_target.cache_info().currsize, _operation.cache_info().currsize
    for number in range(100):
        with pytest.raises(ApiError):
            recognise(Request("POST", "/", "", {"x-amz-target": f"AmazonSQS.Fly{number}"}, b"{}"))
    assert (_from_target.cache_info().currsize, _operation.cache_info().currsize) == before


# --- SQS requests of old clients. No model has their names any more, so they are written out here ---------------------


def old_sqs(body: bytes, path: str = "/") -> Request:
    return Request("POST", path, "", FORM | {"host": "127.0.0.1:4566"}, body + b"&Version=2012-11-05")


@pytest.mark.parametrize(
    "body, params",
    [
        (
            b"Action=CreateQueue&QueueName=q&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=30&Tag.1.Key=a&Tag.1.Value=b",
            {"QueueName": "q", "Attributes": {"VisibilityTimeout": "30"}, "tags": {"a": "b"}},
        ),
        (
            b"Action=SendMessageBatch&QueueUrl=u&SendMessageBatchRequestEntry.1.Id=1"
            b"&SendMessageBatchRequestEntry.1.MessageBody=a&SendMessageBatchRequestEntry.2.Id=2"
            b"&SendMessageBatchRequestEntry.2.MessageBody=b&SendMessageBatchRequestEntry.2.MessageAttribute.1.Name=n"
            b"&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.StringValue=v"
            b"&SendMessageBatchRequestEntry.2.MessageAttribute.1.Value.DataType=String",
            {
                "QueueUrl": "u",
                "Entries": [
                    {"Id": "1", "MessageBody": "a"},
                    {
                        "Id": "2",
                        "MessageBody": "b",
                        "MessageAttributes": {"n": {"StringValue": "v", "DataType": "String"}},
                    },
                ],
            },
        ),
        (
            b"Action=ReceiveMessage&QueueUrl=u&AttributeName.1=All&MessageAttributeName.1=a&MaxNumberOfMessages=10",
            {"QueueUrl": "u", "AttributeNames": ["All"], "MessageAttributeNames": ["a"], "MaxNumberOfMessages": 10},
        ),
        (b"Action=UntagQueue&QueueUrl=u&TagKey.1=a&TagKey.2=b", {"QueueUrl": "u", "TagKeys": ["a", "b"]}),
    ],
)
def test_old_sqs_requests_are_read(body: bytes, params: dict[str, object]) -> None:
    call = recognise(old_sqs(body))
    assert (call.service, call.protocol, call.params()) == ("sqs", "query", params)


def test_old_sqs_may_name_the_queue_by_posting_to_it() -> None:
    call = recognise(old_sqs(b"Action=PurgeQueue", "/000000000000/q"))
    assert call.params() == {"QueueUrl": "http://127.0.0.1:4566/000000000000/q"}


def test_old_sqs_answers_have_their_old_names() -> None:
    call = recognise(old_sqs(b"Action=ReceiveMessage&QueueUrl=u"))
    message = {"MessageId": "1", "Body": "a<b", "Attributes": {"SentTimestamp": "5"}}
    body = call.serialize({"Messages": [message]}, "r").body.decode()
    assert (
        "<ReceiveMessageResult><Message><MessageId>1</MessageId><Body>a&lt;b</Body>"
        "<Attribute><Name>SentTimestamp</Name><Value>5</Value></Attribute></Message></ReceiveMessageResult>"
    ) in body


def test_gzip_bodies_of_botocore_are_read() -> None:
    """botocore compresses PutMetricData above 10 KiB."""
    data = [{"MetricName": f"metric-{n}", "Value": float(n), "Unit": "Percent"} for n in range(400)]
    read: list[dict[str, object]] = []

    def answer(request: Request) -> Response:
        assert request.headers["content-encoding"] == "gzip"
        call = recognise(request)
        verify(request, lookup, time.time())
        read.append(call.params())
        return call.serialize({}, "request-1")

    client("cloudwatch", answer).put_metric_data(Namespace="x", MetricData=data)
    assert read == [{"Namespace": "x", "MetricData": data}]


def test_rest_json_binds_every_location() -> None:
    """Batch uses few locations; Lambda also has headers, payloads and constants in the query string."""
    call = recognise(
        sent_by_botocore(
            "lambda",
            "rest-json",
            "Invoke",
            {
                "FunctionName": "arn:aws:lambda:eu-west-1:000000000000:function:f",
                "InvocationType": "Event",
                "Qualifier": "$LATEST",
                "Payload": b"\x00\xff",
            },
        )
    )
    assert call.params() == {
        "FunctionName": "arn:aws:lambda:eu-west-1:000000000000:function:f",
        "InvocationType": "Event",
        "Qualifier": "$LATEST",
        "Payload": b"\x00\xff",
    }
    result = {"StatusCode": 202, "Payload": b"{}", "ExecutedVersion": "1", "FunctionError": None}
    response = call.serialize(result, "r")
    assert (response.status, response.body) == (202, b"{}")
    assert ("X-Amz-Executed-Version", "1") in response.headers
    for operation in ("ListLayers", "GetLayerVersionByArn", "ListFunctions", "DeleteFunction"):
        params = {"Arn": "arn:x"} if operation == "GetLayerVersionByArn" else {}
        params |= {"FunctionName": "f"} if operation == "DeleteFunction" else {}
        assert recognise(sent_by_botocore("lambda", "rest-json", operation, params)).operation == operation
