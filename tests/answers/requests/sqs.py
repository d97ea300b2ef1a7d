"""Requests of SQS."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from typing import Any

from answers.calls import ACCOUNT, OTHER, SAME, Calls


def requests(calls: Calls) -> None:
    url = calls.twice("CreateQueue", SAME, QueueName="answers", Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    dead = calls("CreateQueue", QueueName="answers-dead")["QueueUrl"]
    redrive = {"RedrivePolicy": json.dumps({"deadLetterTargetArn": calls.arn("answers-dead"), "maxReceiveCount": 1})}
    calls.twice("SetQueueAttributes", SAME, QueueUrl=url, Attributes=redrive)
    calls.twice("TagQueue", SAME, QueueUrl=url, Tags={"a": "b"})
    calls("ListQueueTags", QueueUrl=url)
    calls.twice("UntagQueue", SAME, QueueUrl=url, TagKeys=["a"])
    calls("GetQueueUrl", QueueName="answers")
    calls("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    calls("ListQueues", QueueNamePrefix="answers")
    calls("ListDeadLetterSourceQueues", QueueUrl=dead)
    label = {"Label": "l", "AWSAccountIds": [ACCOUNT], "Actions": ["SendMessage"]}
    calls.twice("AddPermission", "InvalidParameterValue", QueueUrl=url, **label)
    calls.twice("RemovePermission", "InvalidParameterValue", QueueUrl=url, Label="l")
    messages(calls, url)
    moves(calls, url, dead)
    calls.twice("PurgeQueue", "PurgeQueueInProgress", QueueUrl=url)
    refusals(calls, url)
    calls.twice("DeleteQueue", "QueueDoesNotExist", QueueUrl=url)


def messages(calls: Calls, url: str) -> None:
    calls.twice("SendMessage", OTHER, QueueUrl=url, MessageBody="a")
    calls.twice("SendMessageBatch", OTHER, QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "b"}])
    queue = calls("CreateQueue", QueueName="answers.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    typed = {"DataType": "String", "StringValue": "v"}
    entry = {"Id": "1", "MessageBody": "b", "MessageGroupId": "g", "MessageDeduplicationId": "d", "MessageAttributes": {"a": typed}}
    entry["MessageSystemAttributes"] = {"AWSTraceHeader": typed}
    calls("SendMessageBatch", QueueUrl=queue, Entries=[entry])
    received = [received_one(calls, url) for _ in range(2)]
    calls.twice("ReceiveMessage", OTHER, QueueUrl=url)
    calls.twice("ChangeMessageVisibility", SAME, QueueUrl=url, ReceiptHandle=received[0], VisibilityTimeout=60)
    longer = [{"Id": "1", "ReceiptHandle": received[0], "VisibilityTimeout": 60}]
    calls.twice("ChangeMessageVisibilityBatch", SAME, QueueUrl=url, Entries=longer)
    calls.twice("DeleteMessage", SAME, QueueUrl=url, ReceiptHandle=received[0])
    calls.twice("DeleteMessageBatch", SAME, QueueUrl=url, Entries=[{"Id": "1", "ReceiptHandle": received[1]}])


def received_one(calls: Calls, url: str) -> Any:
    [message] = calls("ReceiveMessage", QueueUrl=url)["Messages"]
    return message["ReceiptHandle"]


def moves(calls: Calls, url: str, dead: str) -> None:
    for _ in range(2):
        calls("SendMessage", QueueUrl=dead, MessageBody="a")
    slowly = {"SourceArn": calls.arn("answers-dead"), "DestinationArn": calls.arn("answers"), "MaxNumberOfMessagesPerSecond": 1}
    handle = calls.twice("StartMessageMoveTask", "InvalidParameterValue", **slowly)["TaskHandle"]
    calls("ListMessageMoveTasks", SourceArn=calls.arn("answers-dead"))
    calls.twice("CancelMessageMoveTask", "UnsupportedOperation", TaskHandle=handle)


def refusals(calls: Calls, url: str) -> None:
    nowhere = url.replace("answers", "nowhere")
    unknown = urlsafe_b64encode(json.dumps({"taskId": "none", "sourceArn": calls.arn("nowhere")}).encode()).decode()
    calls.all_refused("QueueDoesNotExist", QueueUrl=nowhere, QueueName="nowhere")
    calls.all_refused("ResourceNotFoundException", SourceArn=calls.arn("nowhere"), TaskHandle=unknown)
