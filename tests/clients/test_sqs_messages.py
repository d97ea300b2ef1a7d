"""Messages through boto3, the aws command and the query protocol: send, receive, delete, move."""

from __future__ import annotations

import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from typing import Any

import boto3
import pytest
from botocore.httpsession import URLLib3Session

from harness import REGION, Corral, container, eventually, wait_stopped
from sqs_calls import ACCOUNT, arn, counts, name_for, refusal, signed

GROUP = {"MessageGroupId": "g"}


@pytest.fixture
def sqs(client):
    return client("sqs")


@pytest.fixture
def queue(sqs, request) -> str:
    return sqs.create_queue(QueueName=name_for(request))["QueueUrl"]


@pytest.fixture
def fifo(sqs, request) -> str:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    return sqs.create_queue(QueueName=f"{name_for(request)}.fifo", Attributes=attributes)["QueueUrl"]


def test_a_message_is_sent_received_and_deleted(sqs, queue):
    attributes = {
        "word": {"DataType": "String", "StringValue": "ä ☃"},
        "number": {"DataType": "Number.int", "StringValue": "-1.5e3"},
        "bytes": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff\x1e"},
    }
    trace = {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1-5759e988-bd862e3fe1be46a994272793;Sampled=1"}}
    began_ms = time.time() * 1000
    sent = sqs.send_message(
        QueueUrl=queue, MessageBody="grüße \U0001f600", MessageAttributes=attributes, MessageSystemAttributes=trace
    )
    assert sent["MD5OfMessageBody"] == md5("grüße \U0001f600".encode()).hexdigest()
    [message] = sqs.receive_message(QueueUrl=queue, MessageSystemAttributeNames=["All"], MessageAttributeNames=["All"])["Messages"]
    assert (message["Body"], message["MessageId"]) == ("grüße \U0001f600", sent["MessageId"])
    assert message["MessageAttributes"] == attributes
    assert message["MD5OfMessageAttributes"] == sent["MD5OfMessageAttributes"] == digest_of(attributes)
    assert sent["MD5OfMessageSystemAttributes"] == digest_of(trace)
    shown = message["Attributes"]
    assert shown["AWSTraceHeader"] == trace["AWSTraceHeader"]["StringValue"]
    assert (shown["SenderId"], shown["ApproximateReceiveCount"]) == (ACCOUNT, "1")
    assert began_ms - 1 <= int(shown["SentTimestamp"]) <= int(shown["ApproximateFirstReceiveTimestamp"]) <= time.time() * 1000 + 1
    assert counts(sqs, queue) == (0, 1, 0)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    assert counts(sqs, queue) == (0, 0, 0)


def digest_of(attributes: dict[str, Any]) -> str:
    """A second implementation of AWS's digest of message attributes."""
    text = b""
    for name in sorted(attributes):
        attribute = attributes[name]
        binary = "BinaryValue" in attribute
        value = attribute["BinaryValue"] if binary else attribute["StringValue"].encode()
        for part in (name.encode(), attribute["DataType"].encode()):
            text += len(part).to_bytes(4, "big") + part
        text += (b"\2" if binary else b"\1") + len(value).to_bytes(4, "big") + value
    return md5(text).hexdigest()


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], set()),
        (["All"], {"General", "Hello", "Help.Me"}),
        ([".*"], {"General", "Hello", "Help.Me"}),
        (["Hel.*"], {"Hello", "Help.Me"}),
        (["Hello", "Nothing"], {"Hello"}),
        (["Nothing"], set()),
    ],
)
def test_a_receiver_chooses_attributes(sqs, queue, names, shown):
    """The expected digests were computed by AWS for these attributes."""
    attributes = {
        name: {"DataType": "String", "StringValue": value}
        for name, value in (("General", "Kenobi"), ("Hello", "There"), ("Help.Me", "Me"))
    }
    sent = sqs.send_message(QueueUrl=queue, MessageBody="msg", MessageAttributes=attributes)
    assert sent["MD5OfMessageAttributes"] == "4c360f3fdafd970e05fae2f149d997f5"
    [message] = sqs.receive_message(QueueUrl=queue, MessageAttributeNames=names)["Messages"]
    assert set(message.get("MessageAttributes", {})) == shown
    known = {3: "4c360f3fdafd970e05fae2f149d997f5", 2: "83fee93c1bcd8b9a5a923ffacdc636c7", 1: "a311262e065454b75da111d535b8dacd"}
    assert message.get("MD5OfMessageAttributes") == known.get(len(shown))
    assert "Attributes" not in message


# Sending


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ({"MessageBody": ""}, "MissingParameter", "MessageBody"),
        ({"MessageBody": "a\x00b"}, "InvalidMessageContents", "Valid unicode characters"),
        ({"MessageBody": "￾"}, "InvalidMessageContents", "Valid unicode characters"),
        ({"MessageBody": "m", "DelaySeconds": 901}, "InvalidParameterValue", "DelaySeconds must be >= 0 and <= 900."),
        ({"MessageBody": "m", "DelaySeconds": -1}, "InvalidParameterValue", "DelaySeconds"),
        ({"MessageBody": "m", "MessageDeduplicationId": "d"}, "InvalidParameterValue", "not valid for this queue type"),
        ({"MessageBody": "m", "MessageAttributes": {"a": {"DataType": "Text", "StringValue": "x"}}}, "InvalidParameterValue",
         "Binary, Number, String"),
        ({"MessageBody": "m", "MessageAttributes": {"a": {"DataType": "String"}}}, "InvalidParameterValue", "non-empty value"),
        ({"MessageBody": "m", "MessageAttributes": {"a": {"DataType": "Number", "StringValue": "x"}}}, "InvalidParameterValue",
         "number"),
        ({"MessageBody": "m", "MessageAttributes": {"AWS.a": {"DataType": "String", "StringValue": "x"}}},
         "InvalidParameterValue", "reserved"),
        ({"MessageBody": "m", "MessageAttributes": {"a b": {"DataType": "String", "StringValue": "x"}}}, "InvalidParameterValue",
         "letters, digits"),
        ({"MessageBody": "m", "MessageAttributes": {f"a{at}": {"DataType": "String", "StringValue": "x"} for at in range(11)}},
         "InvalidParameterValue", "[11] exceeds the allowed maximum [10]"),
        ({"MessageBody": "m", "MessageSystemAttributes": {"Other": {"DataType": "String", "StringValue": "x"}}},
         "InvalidParameterValue", "Other"),
    ],
)  # fmt: skip
def test_an_invalid_message(sqs, params, code, words):
    queue = sqs.create_queue(QueueName="refuses-messages")["QueueUrl"]
    refused = refusal(sqs.send_message, QueueUrl=queue, **params)
    assert refused[0] == code and words in refused[1]
    answer = sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": "bad", **params}, {"Id": "good", "MessageBody": "m"}])
    assert [(entry["Id"], entry["Code"], entry["SenderFault"]) for entry in answer["Failed"]] == [("bad", code, True)]
    assert [entry["Id"] for entry in answer["Successful"]] == ["good"]


def test_how_large_a_message_may_be(sqs, queue):
    largest = 1_048_576
    sqs.send_message(QueueUrl=queue, MessageBody="x" * largest)
    assert len(sqs.receive_message(QueueUrl=queue)["Messages"][0]["Body"]) == largest
    code, words = refusal(sqs.send_message, QueueUrl=queue, MessageBody="x" * (largest + 1))
    assert (code, "Message must be shorter than 1048576 bytes." in words) == ("InvalidParameterValue", True)
    attribute = {"a": {"DataType": "String", "StringValue": "b"}}
    assert refusal(sqs.send_message, QueueUrl=queue, MessageBody="x" * largest, MessageAttributes=attribute)[0] == code
    entries = [{"Id": str(at), "MessageBody": "x" * (largest // 2 + at)} for at in range(2)]
    with pytest.raises(sqs.exceptions.BatchRequestTooLong, match="You have sent 1048577 bytes"):
        sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "1024"})
    assert "1024 bytes" in refusal(sqs.send_message, QueueUrl=queue, MessageBody="ä" * 513)[1]
    for body in ("x" * 600_000, "y" * 600_000):
        sqs.set_queue_attributes(QueueUrl=queue, Attributes={"MaximumMessageSize": "1048576"})
        sqs.send_message(QueueUrl=queue, MessageBody=body)
    assert len(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]) == 1  # a response has a maximum size too


def test_batches_and_their_failures(sqs, queue):
    entries = [{"Id": str(at), "MessageBody": f"m{at}", "DelaySeconds": 0} for at in range(10)]
    sent = sqs.send_message_batch(QueueUrl=queue, Entries=entries)
    assert [entry["Id"] for entry in sent["Successful"]] == [entry["Id"] for entry in entries]
    received = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in received] == [entry["MessageBody"] for entry in entries]
    handles = [{"Id": f"h{at}", "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(received)]
    wrong = {"Id": "wrong", "ReceiptHandle": "x"}
    changes = [{**entry, "VisibilityTimeout": timeout} for entry, timeout in zip([*handles[:3], wrong], (0, 10, 43_201, 0))]
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=changes)
    assert [entry["Id"] for entry in answer["Successful"]] == ["h0", "h1"]
    assert [(entry["Id"], entry["Code"]) for entry in answer["Failed"]] == [
        ("h2", "InvalidParameterValue"), ("wrong", "ReceiptHandleIsInvalid"),
    ]  # fmt: skip
    assert counts(sqs, queue) == (1, 9, 0)
    answer = sqs.delete_message_batch(QueueUrl=queue, Entries=[*handles[:9], wrong])
    assert (len(answer["Successful"]), [entry["Code"] for entry in answer["Failed"]]) == (9, ["ReceiptHandleIsInvalid"])
    assert counts(sqs, queue) == (0, 1, 0)

    one = {"MessageBody": "m", "ReceiptHandle": handles[9]["ReceiptHandle"], "VisibilityTimeout": 1}
    for call, members in (
        (sqs.send_message_batch, ("Id", "MessageBody")),
        (sqs.delete_message_batch, ("Id", "ReceiptHandle")),
        (sqs.change_message_visibility_batch, ("Id", "ReceiptHandle", "VisibilityTimeout")),
    ):
        for ids, exception, words in (
            ([], "EmptyBatchRequest", "at least one"),
            (range(11), "TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10. You have sent 11."),
            ("aba", "BatchEntryIdsNotDistinct", "Id a repeated."),
            (["a b"], "InvalidBatchEntryId", "alphanumeric characters, hyphens and underscores"),
            (["a" * 81], "InvalidBatchEntryId", "at most 80 letters long"),
        ):
            made = [{name: str(id) if name == "Id" else one[name] for name in members} for id in ids]
            with pytest.raises(getattr(sqs.exceptions, exception), match=words) as refused:
                call(QueueUrl=queue, Entries=made)
            assert refused.value.response["Error"]["Code"] == f"AWS.SimpleQueueService.{exception}"


def test_a_receipt_handle_of_another_queue(sqs, queue):
    other = sqs.create_queue(QueueName="other-handles")["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    handle = sqs.receive_message(QueueUrl=queue)["Messages"][0]["ReceiptHandle"]
    for bad in (handle, "x", "AAAA", ""):
        with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
            sqs.delete_message(QueueUrl=other, ReceiptHandle=bad)
        with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
            sqs.change_message_visibility(QueueUrl=other, ReceiptHandle=bad, VisibilityTimeout=1)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)
    sqs.delete_message(QueueUrl=queue, ReceiptHandle=handle)
    code, words = refusal(sqs.change_message_visibility, QueueUrl=queue, ReceiptHandle=handle, VisibilityTimeout=1)
    assert (code, "Message does not exist" in words) == ("InvalidParameterValue", True)


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ({"MaxNumberOfMessages": 11}, "InvalidParameterValue",
         "Value 11 for parameter MaxNumberOfMessages is invalid. Reason: Must be between 1 and 10, if provided."),
        ({"MaxNumberOfMessages": 0}, "InvalidParameterValue", "MaxNumberOfMessages"),
        ({"WaitTimeSeconds": 21}, "InvalidParameterValue",
         "Value 21 for parameter WaitTimeSeconds is invalid. Reason: Must be >= 0 and <= 20, if provided."),
        ({"VisibilityTimeout": 43_201}, "InvalidParameterValue", "VisibilityTimeout"),
        ({"AttributeNames": ["Color"]}, "InvalidAttributeName", "Unknown Attribute Color."),
    ],
)  # fmt: skip
def test_an_invalid_receive(sqs, params, code, words):
    queue = sqs.create_queue(QueueName="refuses-receives")["QueueUrl"]
    refused = refusal(sqs.receive_message, QueueUrl=queue, **params)
    assert refused[0] == code and words in refused[1]


# FIFO


def test_fifo_order_and_identity(sqs, fifo):
    sent = [sqs.send_message(QueueUrl=fifo, MessageBody=f"m{at}", **GROUP) for at in range(12)]
    numbers = [int(message["SequenceNumber"]) for message in sent]
    assert numbers == sorted(set(numbers)) and {len(message["SequenceNumber"]) for message in sent} == {20}
    again = sqs.send_message(QueueUrl=fifo, MessageBody="m3", **GROUP)
    assert (again["MessageId"], again["SequenceNumber"]) == (sent[3]["MessageId"], sent[3]["SequenceNumber"])
    first = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10, AttributeNames=["All"])["Messages"]
    assert [message["Body"] for message in first] == [f"m{at}" for at in range(10)]
    shown = first[0]["Attributes"]
    assert (shown["SequenceNumber"], shown["MessageGroupId"]) == (sent[0]["SequenceNumber"], "g")
    assert len(shown["MessageDeduplicationId"]) == 64
    assert "Messages" not in sqs.receive_message(QueueUrl=fifo)
    entries = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(first)]
    assert len(sqs.delete_message_batch(QueueUrl=fifo, Entries=entries)["Successful"]) == 10
    rest = sqs.receive_message(QueueUrl=fifo, MaxNumberOfMessages=10)["Messages"]
    assert [message["Body"] for message in rest] == ["m10", "m11"]


def test_a_fifo_queue_requires_a_group_and_a_deduplication_id(sqs, fifo):
    send = {"QueueUrl": fifo, "MessageBody": "m"}
    assert refusal(sqs.send_message, **send)[0] == "MissingParameter"
    code, words = refusal(sqs.send_message, **send, **GROUP, DelaySeconds=2)
    reason = "The request include parameter that is not valid for this queue type."
    assert words == f"Value 2 for parameter DelaySeconds is invalid. Reason: {reason}"
    assert refusal(sqs.send_message, **send, MessageGroupId="a b")[0] == code
    assert refusal(sqs.send_message, **send, **GROUP, MessageDeduplicationId="x" * 129)[0] == code
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={"ContentBasedDeduplication": "false"})
    assert "ContentBasedDeduplication enabled or MessageDeduplicationId" in refusal(sqs.send_message, **send, **GROUP)[1]
    sqs.send_message(**send, **GROUP, MessageDeduplicationId="!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


def test_a_standard_queue_returns_the_group_of_a_message(sqs, queue):
    sqs.send_message(QueueUrl=queue, MessageBody="m", MessageGroupId="tenant")
    [message] = sqs.receive_message(QueueUrl=queue, AttributeNames=["MessageGroupId"])["Messages"]
    assert message["Attributes"] == {"MessageGroupId": "tenant"}


# Waiting


def test_a_long_poll_wakes_at_once(sqs, queue):
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        poll = pool.submit(sqs.receive_message, QueueUrl=queue, WaitTimeSeconds=20)
        sqs.send_message(QueueUrl=queue, MessageBody="m", DelaySeconds=1)
        assert [message["Body"] for message in poll.result()["Messages"]] == ["m"]
    assert 1.0 <= time.monotonic() - began < 10


def test_the_wait_time_of_a_queue(sqs, queue):
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"ReceiveMessageWaitTimeSeconds": "1"})
    began = time.monotonic()
    assert "Messages" not in sqs.receive_message(QueueUrl=queue)
    assert 1.0 <= time.monotonic() - began < 10
    assert "Messages" not in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=0)


def test_a_client_that_disconnects_while_it_waits_takes_no_message(corral: Corral, sqs, queue):
    """The client closes the connection while its poll waits."""
    body = json.dumps({"QueueUrl": queue, "WaitTimeSeconds": 20}).encode()
    headers = {"X-Amz-Target": "AmazonSQS.ReceiveMessage", "Content-Type": "application/x-amz-json-1.0"}
    request = signed(corral, corral.url, headers, body)
    host, port = corral.url.removeprefix("http://").split(":")
    for _ in range(3):
        with socket.create_connection((host, int(port))) as wire:
            lines = [f"{name}: {value}" for name, value in request.headers.items()]
            head = ["POST / HTTP/1.1", f"Host: {host}:{port}", f"Content-Length: {len(body)}", *lines]
            wire.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            wire.settimeout(0.2)
            with pytest.raises(TimeoutError):
                wire.recv(1)  # the receive waits
    poll = ThreadPoolExecutor(1).submit(sqs.receive_message, QueueUrl=queue, WaitTimeSeconds=20)
    eventually(lambda: poll.running())
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    assert [message["Body"] for message in poll.result(20)["Messages"]] == ["m"]
    assert "Traceback" not in corral.log() and "ERROR" not in corral.log()


# Dead letters and moves


def test_dead_letters_are_moved_there_and_back(sqs, queue):
    grave = sqs.create_queue(QueueName="grave")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn(grave), "maxReceiveCount": "1"})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"RedrivePolicy": policy, "VisibilityTimeout": "0"})
    sent = {sqs.send_message(QueueUrl=queue, MessageBody=f"m{at}")["MessageId"] for at in range(3)}
    assert len(sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]) == 3
    assert "Messages" not in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)
    dead = sqs.receive_message(QueueUrl=grave, MaxNumberOfMessages=10, VisibilityTimeout=0, AttributeNames=["All"])["Messages"]
    assert {message["MessageId"] for message in dead} == sent
    assert {message["Attributes"]["DeadLetterQueueSourceArn"] for message in dead} == {arn(queue)}
    started = sqs.start_message_move_task(SourceArn=arn(grave))
    [task] = eventually(
        lambda: [task for task in sqs.list_message_move_tasks(SourceArn=arn(grave))["Results"] if task["Status"] == "COMPLETED"],
        "moved",
    )
    assert (task["ApproximateNumberOfMessagesMoved"], "TaskHandle" in task, task["SourceArn"]) == (3, False, arn(grave))
    assert (counts(sqs, queue), counts(sqs, grave)) == ((3, 0, 0), (0, 0, 0))
    with pytest.raises(sqs.exceptions.UnsupportedOperation):
        sqs.cancel_message_move_task(TaskHandle=started["TaskHandle"])


def test_invalid_message_move_tasks(sqs, queue):
    assert (
        refusal(sqs.start_message_move_task, SourceArn=arn(queue))[1] == "Source queue must be configured as a Dead Letter Queue."
    )
    for params, words in (({"SourceArn": arn("x/none")}, "SourceArn"), ({"SourceArn": arn(queue)}, "DestinationArn")):
        if words == "DestinationArn":
            policy = json.dumps({"deadLetterTargetArn": arn(queue), "maxReceiveCount": 1})
            sqs.create_queue(QueueName="moves-from", Attributes={"RedrivePolicy": policy})
            params = {**params, "DestinationArn": arn("x/none")}
        with pytest.raises(sqs.exceptions.ResourceNotFoundException, match=f"{words} parameter doesn't exist") as refused:
            sqs.start_message_move_task(**params)
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 404
    assert refusal(sqs.start_message_move_task, SourceArn="queue")[0] == "InvalidParameterValue"
    assert refusal(sqs.cancel_message_move_task, TaskHandle="x")[1] == "Value for parameter TaskHandle is invalid."
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    sqs.send_message(QueueUrl=queue, MessageBody="m")
    handle = sqs.start_message_move_task(SourceArn=arn(queue), DestinationArn=arn("x/moves-from"), MaxNumberOfMessagesPerSecond=1)[
        "TaskHandle"
    ]
    [task] = sqs.list_message_move_tasks(SourceArn=arn(queue), MaxResults=10)["Results"]
    assert (task["Status"], task["TaskHandle"], task["MaxNumberOfMessagesPerSecond"]) == ("RUNNING", handle, 1)
    assert "already a task running" in refusal(sqs.start_message_move_task, SourceArn=arn(queue))[1]
    assert sqs.cancel_message_move_task(TaskHandle=handle)["ApproximateNumberOfMessagesMoved"] <= 2
    assert refusal(sqs.list_message_move_tasks, SourceArn=arn(queue), MaxResults=11)[0] == "InvalidParameterValue"


# Other clients


def test_the_query_protocol(corral: Corral, sqs, queue):
    """The protocol of boto3 before 1.29 and many other clients; boto2 also sent requests to the URL of the queue."""

    def ask(url: str, form: str) -> tuple[int, str]:
        headers = {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}
        answer = URLLib3Session().send(signed(corral, url, headers, f"{form}&Version=2012-11-05".encode()).prepare())
        return answer.status_code, answer.text

    attributes = "MessageAttribute.1.Name=a&MessageAttribute.1.Value.DataType=String&MessageAttribute.1.Value.StringValue=b"
    status, text = ask(queue, f"Action=SendMessage&MessageBody=hello%20%26%20bye&{attributes}")
    assert status == 200 and "<MD5OfMessageAttributes>" in text and md5(b"hello & bye").hexdigest() in text
    url = f"QueueUrl={queue}"
    status, text = ask(corral.url, f"Action=ReceiveMessage&{url}&AttributeName.1=All&MessageAttributeName.1=All")
    assert status == 200 and "<Body>hello &amp; bye</Body>" in text and "<Name>a</Name>" in text
    handle = text.partition("<ReceiptHandle>")[2].partition("<")[0]
    entry = f"DeleteMessageBatchRequestEntry.1.Id=x&DeleteMessageBatchRequestEntry.1.ReceiptHandle={handle}"
    status, text = ask(corral.url, f"Action=DeleteMessageBatch&{url}&{entry}")
    assert status == 200 and "<DeleteMessageBatchResultEntry><Id>x</Id></DeleteMessageBatchResultEntry>" in text
    assert counts(sqs, queue) == (0, 0, 0)
    status, text = ask(corral.url, "Action=GetQueueUrl&QueueName=nothing")
    assert status == 400 and "<Code>AWS.SimpleQueueService.NonExistentQueue</Code>" in text and "<Type>Sender</Type>" in text


def test_the_aws_command(corral: Corral, aws, queue):
    endpoint = ("--endpoint-url", corral.url)
    sent = aws("sqs", "send-message", "--queue-url", queue, "--message-body", "hello", *endpoint)
    [message] = aws("sqs", "receive-message", "--queue-url", queue, *endpoint)["Messages"]
    assert (message["Body"], message["MessageId"]) == ("hello", sent["MessageId"])


def test_boto3_resources(corral: Corral):
    keys = corral.keys
    sqs = boto3.session.Session().resource(
        "sqs", region_name=REGION, endpoint_url=corral.url, aws_access_key_id=keys["access_key"],
        aws_secret_access_key=keys["secret_key"],
    )  # fmt: skip
    sqs.create_queue(QueueName="resource")
    queue = sqs.get_queue_by_name(QueueName="resource")
    queue.send_message(MessageBody="hello")
    [message] = queue.receive_messages(VisibilityTimeout=8000, MaxNumberOfMessages=10)
    assert message.body == "hello"
    message.delete()
    assert queue.receive_messages() == []


def test_the_messages_of_a_task_are_recorded(corral: Corral, sqs, queue, client):
    """A task sends with its own credentials, and Corral records which task received a message."""
    sqs.send_message(QueueUrl=queue, MessageBody="work")
    program = (
        f"import boto3; q = boto3.resource('sqs').Queue({queue!r}); "
        "[m] = q.receive_messages(); q.send_message(MessageBody='done ' + m.body)"
    )
    ecs = client("ecs")
    ecs.register_task_definition(family="worker", containerDefinitions=[container([sys.executable, "-c", program], memory=128)])
    task = ecs.run_task(taskDefinition="worker")["tasks"][0]["taskArn"]
    [stopped] = wait_stopped(ecs, [task])
    assert stopped["containers"][0]["exitCode"] == 0
    [message] = sqs.receive_message(QueueUrl=queue, AttributeNames=["SenderId"])["Messages"]
    assert message["Body"] == "done work"
    assert task.rpartition("/")[2] in message["Attributes"]["SenderId"]
    assert counts(sqs, queue) == (0, 2, 0)
