"""Parts of the worker that need no server: batches, bounds, events, frames, metrics."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from corral.worker import Item, Totals
from corral.worker.batches import Batches, NextBatch
from corral.worker.errors import is_transient, retried
from corral.worker.feeder import Prefetch
from corral.worker.feeder_process import receive_frame, send_frame
from corral.worker.items import objects_of
from corral.worker.results import ResultTarget, result_of
from corral.worker.settlement import Fate, HeldMessage, Settlement, Settler, delay_s
from corral.worker.visibility import VisibilityKeeper
from corral.worker.worker_metrics import progress_line
from eventually import eventually

FOREVER_S = 1000.0


def items(*names: str) -> list[Item]:
    return [Item(name, name) for name in names]


def names_of(taken: object) -> list[str]:
    assert isinstance(taken, tuple)
    return [item.message_id for item in taken[0]]


def test_a_full_batch_is_taken_at_once_and_a_small_one_after_the_wait():
    full = Batches(2, FOREVER_S)
    full.add(items("a", "b", "c"))
    assert names_of(full.take()) == ["a", "b"]  # predict is busy: a full batch can be prepared
    small = Batches(2, 0.0)
    small.add(items("a"))
    small.want(True)
    assert names_of(small.take()) == ["a"]


def test_a_small_batch_grows_while_predict_works():
    batches = Batches(3, 0.0)
    batches.add(items("a"))
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(batches.take)
        batches.add(items("b"))
        assert not taken.done()
        batches.want(True)
        assert names_of(taken.result(30)) == ["a", "b"]


def test_closed_batches_give_back_what_they_have():
    batches = Batches(8, FOREVER_S)
    batches.add(items("a", "b"))
    assert [item.message_id for item in batches.close()] == ["a", "b"]
    assert batches.take() is None and batches.add(items("c")) is False
    following = NextBatch()
    assert following.put(([*items("a")], [0.0])) and following  # type: ignore[arg-type]
    assert [item.message_id for item in following.close()] == ["a"]
    assert following.take() is None and not following.put(([], []))  # type: ignore[arg-type]


def test_bytes_are_bounded_and_one_large_object_is_admitted_alone():
    prefetch = Prefetch(10, 100)
    prefetch.take_bytes(500)  # nothing else is held
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(prefetch.take_bytes, 60)
        assert not waits.done()
        prefetch.give(0, 500)
        waits.result(30)
        waits = pool.submit(prefetch.take_bytes, 60)
        assert not waits.done()
        prefetch.add_bytes(-30)
        waits.result(30)
        prefetch.add_bytes(1000)
        waits = pool.submit(prefetch.take_bytes, 1)
        assert not waits.done()
        prefetch.close()
        waits.result(30)
    assert prefetch.take_slots(1) == 0


def test_slots_are_bounded():
    prefetch = Prefetch(3, 100)
    assert prefetch.take_slots(3) == 3
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(prefetch.take_slots, 2)
        prefetch.give(1)
        assert not waits.done()
        prefetch.give(1)
        assert waits.result(30) == 2


@pytest.mark.parametrize(
    "body, found",
    [
        ("", []),
        ("{", []),
        ("[]", []),
        ('{"Records": 1}', []),
        ('{"Records": [1, {}, {"s3": 1}, {"s3": {"bucket": {}, "object": {}}}]}', []),
        ('{"Type": "Notification", "Message": "hello"}', []),
        ('{"source": "aws.s3", "detail": {"object": {"key": "a"}}}', []),
        ('{"source": "aws.s3", "detail": 1}', []),
        ('{"a":' * 100_000, []),
        ('{"Event": "s3:TestEvent"}', None),
    ],
)
def test_bodies_that_are_no_events(body, found):
    assert objects_of(body) == found


def test_keys_are_decoded_and_members_kept():
    about = {"key": "a+b%2Bc%C3%A9", "size": 7, "eTag": "x", "versionId": "v"}
    record = {"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": "images"}, "object": about}}
    [found] = objects_of(json.dumps({"Records": [record]})) or []
    assert (found.bucket, found.key, found.size, found.etag, found.version_id) == ("images", "a b+cé", 7, "x", "v")
    assert found.url == "s3://images/a b+cé" and found.exists


def test_frames_carry_buffers_out_of_band():
    ours, theirs = socket.socketpair()
    large = bytearray(range(256)) * 10_000
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(send_frame, ours, ["small", pickle.PickleBuffer(large), pickle.PickleBuffer(b"")])
        small, first, second = receive_frame(theirs)
        sent.result(30)
    assert small == "small" and bytes(first) == bytes(large) and bytes(second) == b""
    ours.close()
    assert receive_frame(theirs) is None
    theirs.close()


def test_transient_errors_are_tried_again():
    attempts = []

    def call() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise EndpointConnectionError(endpoint_url="http://nowhere")
        return "answer"

    assert retried("a test", call, threading.Event(), 30.0) == "answer" and len(attempts) == 3
    stopped = threading.Event()
    stopped.set()
    attempts.clear()
    with pytest.raises(EndpointConnectionError):
        retried("a test", call, stopped, 30.0)
    assert len(attempts) == 1


@pytest.mark.parametrize(
    "code, status, transient",
    [("InternalError", 500, True), ("SlowDown", 503, True), ("Throttling", 400, True), ("NoSuchKey", 404, False), ("X", 502, True)],
)
def test_which_errors_are_transient(code, status, transient):
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    assert is_transient(ClientError(response, "GetObject")) is transient  # type: ignore[arg-type]
    assert not is_transient(ValueError())


def test_delays_of_failed_messages():
    assert [delay_s(None, None)(count) for count in (1, 2, 3, 20)] == [1, 2, 4, 300]
    assert delay_s(None, 3)(2) == 0 and delay_s(7, 3)(1) == delay_s(7, None)(9) == 7


class RecordingSqs:
    """Records the batches of messages that are deleted and returned."""

    def __init__(self) -> None:
        self.deleted: list[list[str]] = []
        self.returned: list[list[str]] = []

    def delete_message_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.deleted.append([entry["ReceiptHandle"] for entry in Entries])
        return {}

    def change_message_visibility_batch(self, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.returned.append([entry["ReceiptHandle"] for entry in Entries])
        return {}


def test_an_incomplete_batch_of_deletes_waits_while_other_messages_are_processed(monkeypatch):
    monkeypatch.setattr("corral.worker.settlement.DELETE_LINGER_S", FOREVER_S)
    sqs, settled, processing = RecordingSqs(), list[Fate](), threading.Event()
    processing.set()
    keeper = VisibilityKeeper(sqs, "url", 30)
    settler = Settler(
        sqs,
        "url",
        keeper,
        None,
        delay_s(0, None),
        lambda messages, fate: settled.extend([fate] * len(messages)),
        print,
        processing.is_set,
    )
    settler.start()
    for number in range(13):
        settler.add(HeldMessage(number, f"h{number}", 1), Settlement(number, Fate.DONE))
    settler.add(HeldMessage(13, "h13", 1), Settlement(13, Fate.RETURNED))
    eventually(lambda: len(settled) == 11)  # ten are deleted, and the returned message does not wait
    assert sqs.returned == [["h13"]] and [len(batch) for batch in sqs.deleted] == [10]
    for number in range(14, 21):
        settler.add(HeldMessage(number, f"h{number}", 1), Settlement(number, Fate.DONE))
    eventually(lambda: len(settled) == 21)
    assert [len(batch) for batch in sqs.deleted] == [10, 10]
    settler.add(HeldMessage(21, "h21", 1), Settlement(21, Fate.DONE))
    processing.clear()
    eventually(lambda: sqs.deleted[2:] == [["h21"]])
    settler.close()


class Array:
    def tolist(self) -> list[int]:
        return [1, 2]


def test_results_are_serialized():
    [item] = items("a")
    target = ResultTarget(bucket="b", prefix="out/")
    assert result_of(item, target, None) is None
    item.result = {"found": Array()}
    found = result_of(item, target, None)
    assert found is not None and (found.place, found.body) == ("out/a.json", b'{"found": [1, 2]}')
    item.result = {1, 2}
    with pytest.raises(ValueError, match="a result of type set cannot be written as JSON"):
        result_of(item, target, None)


def test_the_progress_line():
    totals = Totals(done=300, failed=2, seconds=10.0, predict_seconds=9.0)
    assert progress_line("q", totals, 100, 29.6, 12.5, 7.4) == (
        "q  [##################......] 300 of 400  2 failed  30/s  batch 12.5  wait 7 ms  predict 90%"
    )
    assert progress_line("q", Totals(done=3), None, 0, 0, 0).startswith("q  3 done  0/s")
