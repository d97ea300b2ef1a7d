"""QueueRequests returns what boto3 returns, and uses boto3 where its own requests are not enough."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from corral.worker.feeder import QueueRequests
from corral.worker.queue_lookup import read_environment_again

ATTRIBUTES: dict[str, Any] = {
    "text": {"DataType": "String", "StringValue": "ü"},
    "bytes": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
}


@pytest.fixture
def requests(work) -> QueueRequests:
    read_environment_again()
    return QueueRequests(None, connections=2, read_timeout_s=30)


class Broken:
    """Connections that no request gets through."""

    def __init__(self) -> None:
        self.tries = 0

    def call(self, target: str, body: bytes, credentials: Any) -> bytes | None:
        self.tries += 1
        return None


def test_the_life_of_a_message_without_boto3(work, requests):
    queue = work()
    queue.sqs.send_message(QueueUrl=queue.url, MessageBody='{"a": "ü"}', MessageAttributes=ATTRIBUTES)
    requests._sqs.meta.events.register("before-send", lambda **_: pytest.fail("boto3 sent a request"))
    wanted = {"QueueUrl": queue.url, "MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["ApproximateReceiveCount"]}
    [first] = requests.receive_message(**wanted)["Messages"]
    assert (first["Body"], first["MessageAttributes"]) == ('{"a": "ü"}', ATTRIBUTES)
    entry = {"Id": "0", "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 0}
    assert requests.change_message_visibility_batch(QueueUrl=queue.url, Entries=[entry])["Successful"] == [{"Id": "0"}]
    [second] = requests.receive_message(**wanted)["Messages"]
    assert second["Attributes"] == {"ApproximateReceiveCount": "2"}
    entry = {"Id": "0", "ReceiptHandle": second["ReceiptHandle"]}
    assert requests.delete_message_batch(QueueUrl=queue.url, Entries=[entry])["Successful"] == [{"Id": "0"}]
    assert queue.counts() == (0, 0)


def test_the_error_of_boto3_is_raised_and_later_requests_succeed(work, requests):
    queue = work()
    queue.send(["a"])
    with pytest.raises(ClientError, match=r"QueueDoesNotExist|NonExistentQueue"):
        requests.receive_message(QueueUrl=f"{queue.url}-missing")
    assert requests.receive_message(QueueUrl=queue.url)["Messages"][0]["Body"] == "a"


def test_boto3_sends_all_requests_if_the_first_succeeds_only_with_boto3(work, requests):
    queue, broken = work(), Broken()
    queue.send(["a", "b"])
    requests._http = broken  # type: ignore[assignment]
    assert len({requests.receive_message(QueueUrl=queue.url)["Messages"][0]["Body"] for _ in range(2)}) == 2
    assert broken.tries == 1


def test_an_outage_does_not_change_the_way_of_later_requests(work, requests):
    queue, broken = work(), Broken()
    queue.send(["a", "b"])
    requests.receive_message(QueueUrl=queue.url)
    requests._http = broken  # type: ignore[assignment]
    requests.receive_message(QueueUrl=queue.url)
    assert requests._http is broken
