"""A queue worker in this process, against a real Corral."""

from __future__ import annotations

import json
import logging
import sys
import threading
from typing import Any

import pytest

from corral.worker import Batch, Item, QueueWorker, WorkerError
from corral.worker.feeder import SMALL_BYTES
from corral.worker.object_reader import ObjectReader
from eventually import eventually
from harness import Corral
from worker.queue_setup import event_of

KEYS = ["plain.jpg", "with space.jpg", "100%+more.jpg", "ordner/größe 漢字.jpg"]


def quiet(queue: Any, predict: Any, **options: Any) -> QueueWorker:
    """A worker that ends when the queue is empty and publishes no metrics."""
    return QueueWorker(queue.name, predict, once=True, **{"metrics": None, **options})


def test_objects_are_fetched_and_the_test_event_is_skipped(work):
    queue = work()
    bucket = queue.bucket()
    for key in KEYS:
        queue.s3.put_object(Bucket=bucket, Key=key, Body=f"bytes of {key}".encode())
    seen: dict[str, bytes] = {}

    def predict(batch: Batch) -> None:
        for item in batch:
            [each] = item.objects
            assert each.bucket == bucket and each.event == "ObjectCreated:Put" and each.size == len(each.data or b"")
            seen[each.key] = each.data or b""

    totals = quiet(queue, predict, batch_max=3).run()
    assert seen == {key: f"bytes of {key}".encode() for key in KEYS}
    assert (totals.done, totals.failed, totals.returned) == (4, 0, 0)
    assert queue.counts() == (0, 0) and queue.dead_letters() == []


def test_small_objects_are_fetched_together(work, monkeypatch):
    queue = work()
    bucket = queue.bucket()
    sizes = {"large": SMALL_BYTES + 1} | {f"small{number}": number + 1 for number in range(12)}
    for key, size in sizes.items():
        queue.s3.put_object(Bucket=bucket, Key=key, Body=bytes(size))
    alone: list[str] = []
    together: list[str] = []
    read, read_several = ObjectReader.read, ObjectReader.read_several

    def noted_read(reader: ObjectReader, bucket: str, key: str) -> bytes:
        alone.append(key)
        return read(reader, bucket, key)

    def noted_read_several(reader: ObjectReader, names: Any) -> list[bytes | None]:
        together.extend(key for _, key in names)
        return read_several(reader, names)

    monkeypatch.setattr(ObjectReader, "read", noted_read)
    monkeypatch.setattr(ObjectReader, "read_several", noted_read_several)
    seen: dict[str, int] = {}
    quiet(queue, lambda batch: seen.update({each.key: len(each.data) for item in batch for each in item.objects})).run()
    assert seen == sizes
    assert "large" in alone and sorted(together) == sorted(sizes.keys() - {"large"})


def test_a_large_object_does_not_wait_for_small_objects_after_it(work):
    """The large object exceeds the budget, so it waits until no other object holds bytes."""
    queue = work()
    bucket = queue.bucket()
    sizes = {"small0": 1, "large0": SMALL_BYTES + 1, "small1": 1, "large1": SMALL_BYTES + 1, "small2": 1}
    for key, size in sizes.items():
        queue.s3.put_object(Bucket=bucket, Key=key, Body=bytes(size))
    seen: dict[str, int] = {}
    predict = lambda batch: seen.update({each.key: len(each.data) for item in batch for each in item.objects})  # noqa: E731
    worker = quiet(queue, predict, batch_max=1, prefetch_bytes=1000)
    limit = threading.Timer(10, worker.stop)
    limit.start()
    worker.run()
    limit.cancel()
    assert seen == sizes


def test_events_with_several_objects_and_through_sns_and_eventbridge(work):
    queue = work()
    bucket = queue.name
    queue.s3.create_bucket(Bucket=bucket)
    for key in ("a b", "c", "d"):
        queue.s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    several = event_of((bucket, "a+b"), (bucket, "c"))
    through_sns = {"Type": "Notification", "Message": json.dumps(event_of((bucket, "d")))}
    test_through_sns = {"Type": "Notification", "Message": json.dumps({"Event": "s3:TestEvent"})}
    detail = {"bucket": {"name": bucket}, "object": {"key": "a b", "size": 3}}
    through_bridge = {"source": "aws.s3", "detail-type": "Object Created", "detail": detail}
    removed = event_of((bucket, "gone"), event="ObjectRemoved:Delete")
    plain = ["text", '{"Records": [{"no": "event"}]}', "{broken", "[1]"]
    queue.send([*map(json.dumps, (several, through_sns, test_through_sns, through_bridge, removed)), *plain])
    seen: list[list[bytes | None]] = []
    totals = quiet(queue, lambda batch: seen.extend([each.data for each in item.objects] for item in batch)).run()
    assert sorted(seen, key=str) == sorted([[b"a b", b"c"], [b"d"], [b"a b"], [None], [], [], [], []], key=str)
    assert totals.done == 8 and queue.counts() == (0, 0)


def test_batches_have_at_most_the_given_size(work):
    queue = work()
    queue.send(map(str, range(25)))
    sizes, bodies = [], []

    def predict(batch: Batch) -> None:
        sizes.append(len(batch))
        bodies.extend(item.body for item in batch)

    totals = quiet(queue, predict, batch_max=4).run()
    assert max(sizes) <= 4 and sorted(map(int, bodies)) == list(range(25))
    assert totals.batches == len(sizes) and totals.done == 25


def test_a_failed_item_goes_to_the_dead_letter_queue_and_its_neighbours_do_not(work, caplog):
    queue = work()
    queue.send(["good", "bad", "better"])
    attempts = []

    def predict(batch: Batch) -> None:
        for item in batch:
            if item.body == "bad":
                attempts.append(item.receive_count)
                item.fail("not an image")

    with caplog.at_level(logging.WARNING):
        totals = quiet(queue, predict).run()
    assert attempts == [1, 2] and queue.dead_letters() == ["bad"] and queue.counts() == (0, 0)
    assert (totals.done, totals.failed) == (2, 2)
    assert "failed (receive 1 of 2): not an image" in caplog.text


def test_after_an_exception_items_are_tried_one_by_one(work):
    queue = work()
    queue.send(["1", "2", "bad", "4", "5"])
    alone = []

    def predict(batch: Batch) -> list[int]:
        if len(batch) == 1:
            alone.append(batch[0].body)
        return [int(item.body) for item in batch]

    totals = quiet(queue, predict, batch_max=5, wait_max_s=1.0).run()
    assert queue.dead_letters() == ["bad"] and totals.done == 4
    assert "bad" in alone and set(alone) <= {"1", "2", "bad", "4", "5"}


def test_missing_objects_and_decode_errors_fail_their_message_only(work):
    queue = work()
    bucket = queue.bucket()
    for key in ("good", "broken"):
        queue.s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    queue.send([json.dumps(event_of((bucket, "missing")))])

    def decode(item: Item) -> str:
        if item.objects[0].data == b"broken":
            raise ValueError("not an image")
        return (item.objects[0].data or b"").decode().upper()

    seen = []
    quiet(queue, lambda batch: seen.extend((item.data, item.objects[0].data) for item in batch), decode=decode).run()
    assert seen == [("GOOD", None)]
    dead = [json.loads(body)["Records"][0]["s3"]["object"]["key"] for body in queue.dead_letters()]
    assert sorted(dead) == ["broken", "missing"]


def test_messages_stay_invisible_while_they_are_held(work):
    """Another consumer waits for longer than the visibility timeout and receives nothing."""
    queue = work(receives_max=1)
    queue.send(["one", "two", "three"])
    others = []

    def predict(batch: Batch) -> None:
        if not others:
            answer = queue.sqs.receive_message(QueueUrl=queue.url, WaitTimeSeconds=5, MaxNumberOfMessages=10)
            others.append(answer.get("Messages", []))

    totals = quiet(queue, predict, batch_max=1, prefetch=3, visibility_s=3).run()
    assert others == [[]] and totals.done == 3
    assert queue.counts() == (0, 0) and queue.dead_letters() == []


def test_results_to_s3(work):
    queue = work()
    bucket = queue.bucket()
    queue.s3.put_object(Bucket=bucket, Key="a dog.jpg", Body=b"x")
    queue.send(["text", "bytes", "none", "impossible"])
    values: dict[str, Any] = {"text": "ein Hund", "bytes": b"\0\1", "none": None, "impossible": object()}
    ids = {}

    def predict(batch: Batch) -> list[Any]:
        ids.update({item.body: item.message_id for item in batch})
        return [{"label": "dog"} if item.objects else values[item.body] for item in batch]

    results = f"{queue.name}-results"
    queue.s3.create_bucket(Bucket=results)
    totals = quiet(queue, predict, results=f"s3://{results}/v1/").run()
    listed = queue.s3.list_objects_v2(Bucket=results)["Contents"]
    found = {each["Key"]: queue.s3.get_object(Bucket=results, Key=each["Key"])["Body"].read() for each in listed}
    assert found == {
        "v1/a dog.jpg.json": b'{"label": "dog"}',
        f"v1/{ids['text']}.txt": b"ein Hund",
        f"v1/{ids['bytes']}.bin": b"\0\1",
    }
    assert totals.done == 4 and queue.dead_letters() == ["impossible"]


def test_keys_of_results_are_the_users_choice(work):
    queue = work()
    queue.s3.create_bucket(Bucket=queue.name)
    queue.send(["a"])
    key = lambda item: f"{item.body}/out"  # noqa: E731
    quiet(queue, lambda batch: ["x"], results=f"s3://{queue.name}", result_key=key).run()
    assert [each["Key"] for each in queue.s3.list_objects_v2(Bucket=queue.name)["Contents"]] == ["a/out"]


@pytest.mark.parametrize("fifo", [False, True])
def test_results_to_a_queue(work, fifo):
    queue, target = work(), work(fifo=fifo)
    queue.send(map(str, range(12)))

    def predict(batch: Batch) -> None:
        for item in batch:
            item.result = [int(item.body) ** 2, "x" * 200_000]  # ten of them are more than a batch may have

    quiet(queue, predict, batch_max=12, results=target.name).run()
    found = []
    while messages := target.sqs.receive_message(QueueUrl=target.url, MaxNumberOfMessages=10).get("Messages"):
        found += [json.loads(message["Body"]) for message in messages]
        for message in messages:
            target.sqs.delete_message(QueueUrl=target.url, ReceiptHandle=message["ReceiptHandle"])
    assert sorted(each["result"][0] for each in found) == [number**2 for number in range(12)]
    assert found[0].keys() == {"messageId", "objects", "result"} and queue.counts() == (0, 0)


def test_a_message_is_not_deleted_if_its_result_was_not_written(work):
    """A fault that every message would have stops the worker, and the messages do not become dead letters."""
    queue = work(receives_max=5)
    with pytest.raises(WorkerError, match=r"Bucket no-such-bucket for results does not exist: create it"):
        quiet(queue, print, results="s3://no-such-bucket/").run()
    bucket = queue.bucket()
    queue.send(["precious"])

    def predict(batch: Batch) -> list[str]:
        queue.s3.delete_bucket(Bucket=bucket)
        return ["result"]

    with pytest.raises(WorkerError, match=r"Results cannot be written: .*NoSuchBucket"):
        quiet(queue, predict, results=f"s3://{bucket}/").run()
    assert queue.counts() == (1, 0) and queue.dead_letters() == []


def test_a_result_that_is_refused_fails_its_message(work):
    queue = work()
    queue.s3.create_bucket(Bucket=queue.name)
    queue.send(["a", "too long"])
    key = lambda item: "x" * 2000 if item.body == "too long" else "a"  # noqa: E731
    totals = quiet(queue, lambda batch: ["result"] * len(batch), results=f"s3://{queue.name}", result_key=key).run()
    assert totals.done == 1 and totals.failed == 2 and queue.dead_letters() == ["too long"]


def test_a_batch_is_prepared_while_predict_works(work):
    queue = work()
    queue.send(map(str, range(4)))
    prepared: list[list[str]] = []
    second = threading.Event()

    def prepare(batch: Batch) -> str:
        prepared.append([item.body for item in batch])
        if len(prepared) == 2:
            second.set()
        return "/".join(prepared[-1])

    def predict(batch: Batch) -> None:
        assert batch.prepared == "/".join(item.body for item in batch)
        assert second.wait(30)

    assert quiet(queue, predict, prepare=prepare, batch_max=2, wait_max_s=30).run().done == 4
    assert list(map(len, prepared)) == [2, 2]


def test_an_exception_in_prepare_fails_one_item(work):
    queue = work()
    queue.send(["1", "x", "3"])

    def prepare(batch: Batch) -> list[int]:
        return [int(item.body) for item in batch]

    seen = []
    quiet(queue, lambda batch: seen.extend(batch.prepared), prepare=prepare, batch_max=3, wait_max_s=1.0).run()
    assert sorted(seen) == [1, 3] and queue.dead_letters() == ["x"]


def test_the_worker_holds_no_more_messages_than_it_may(work):
    queue = work()
    queue.send(map(str, range(20)))
    seen = []

    def predict(batch: Batch) -> None:
        _, in_flight = eventually(lambda: (found := queue.counts())[1] >= min(5, sum(found)) and found)
        seen.append(in_flight)

    quiet(queue, predict, batch_max=1, prefetch=5).run()
    assert max(seen) == 5 and len(seen) == 20


def test_stop_returns_messages_at_once_and_run_can_be_called_again(work):
    queue = work(receives_max=5)
    queue.send(map(str, range(6)))

    def predict(batch: Batch) -> None:
        eventually(lambda: queue.counts() == (0, 6), "all are prefetched")
        worker.stop()
        eventually(lambda: queue.counts() == (5, 1), "the others are visible while this batch is in predict")

    worker = QueueWorker(queue.name, predict, batch_max=1, prefetch=6, poll_s=1, metrics=None)
    totals = worker.run()
    assert (totals.done, totals.returned) == (1, 5) and queue.counts() == (5, 0)
    assert quiet(queue, lambda batch: None).run().done == 5


def test_metrics_reach_cloudwatch(work, corral: Corral):
    queue = work()
    queue.send(map(str, range(10)))
    QueueWorker(queue.name, lambda batch: batch[0].fail("no"), batch_max=5, wait_max_s=1.0, once=True).run()
    cloudwatch = corral.client("cloudwatch")
    dimensions = [{"Name": "QueueName", "Value": queue.name}]
    listed = cloudwatch.list_metrics(Namespace="QueueWorker", Dimensions=dimensions)["Metrics"]
    assert {each["MetricName"] for each in listed} == {"Processed", "Failed", "BatchSize", "Wait", "PredictTime"}


def test_progress_is_drawn_on_a_terminal(work, capsys):
    queue = work()
    queue.send(map(str, range(10)))
    quiet(queue, lambda batch: None, progress=True).run()
    assert f"{queue.name}  [########################] 10 of 10" in capsys.readouterr().err


def test_a_missing_queue_says_what_to_do(work):
    work()
    with pytest.raises(WorkerError, match=r"Queue nowhere does not exist in region us-east-1 at http://.*create-queue"):
        QueueWorker("nowhere", print).run()
    with pytest.raises(WorkerError, match="is not the ARN of a queue"):
        QueueWorker("arn:aws:s3:::bucket", print).run()


def test_a_queue_can_be_given_by_url_and_arn(work):
    queue = work()
    arn = queue.sqs.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    for name in (queue.url, arn):
        queue.send([name])
        assert QueueWorker(name, lambda batch: None, once=True, metrics=None).run().done == 1


@pytest.mark.parametrize(
    "options, said",
    [
        ({"batch_max": 0}, "batch_max=0 is not valid: pass a number from 1 to 10000."),
        ({"failures_max": 0}, "failures_max=0 is not valid: pass a number of at least 1."),
        ({"poll_s": 21}, "poll_s=21 is not valid"),
        ({"start_method": "thread"}, "start_method='thread' is not valid"),
    ],
)
def test_bad_options_are_refused(options, said):
    with pytest.raises(WorkerError) as refused:
        QueueWorker("any", print, **options)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "returned, said",
    [
        ([1], "predict returned 1 results for a batch of 2 items"),
        ("ab", "predict returned a value of type str"),
        (3, "predict returned a value of type int"),
    ],
)
def test_wrong_results_stop_the_worker_and_lose_nothing(work, returned, said):
    queue = work(receives_max=5)
    queue.send(["a", "b"])
    with pytest.raises(WorkerError, match=said):
        quiet(queue, lambda batch: returned, batch_max=2, wait_max_s=5.0).run()
    assert queue.counts() == (2, 0)


def test_a_broken_model_does_not_empty_the_queue_into_the_dead_letter_queue(work):
    queue = work(receives_max=1)
    queue.send(map(str, range(20)))

    def predict(batch: Batch) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(WorkerError, match=r"3 messages in a row could not be .*CUDA error"):
        quiet(queue, predict, batch_max=5, prefetch=5, failures_max=3).run()
    assert queue.counts() == (20, 0)

    def decode(item: Item) -> None:
        raise ImportError("libjpeg.so")

    with pytest.raises(WorkerError, match=r"3 messages in a row could not be .*libjpeg"):
        quiet(queue, print, decode=decode, prefetch=5, failures_max=3).run()


def test_a_deleted_queue_ends_the_worker(work):
    queue = work()
    queue.send(["a"])

    def delete(batch: Batch) -> None:
        queue.sqs.delete_queue(QueueUrl=queue.url)

    with pytest.raises(WorkerError, match="cannot be received from"):
        QueueWorker(queue.name, delete, metrics=None, poll_s=1).run()


def test_an_exit_in_predict_returns_the_batch(work):
    queue = work(receives_max=5)
    queue.send(["a", "b"])
    with pytest.raises(SystemExit):
        quiet(queue, lambda batch: sys.exit(3), batch_max=2, wait_max_s=5.0).run()
    assert queue.counts() == (2, 0)


def test_a_queue_without_redrive_policy_delays_failed_messages(work, caplog):
    queue = work(receives_max=None)
    queue.send(["bad"])
    with caplog.at_level(logging.WARNING):
        quiet(queue, lambda batch: [item.fail("no") for item in batch] and None, poll_s=0).run()
    assert "has no redrive policy" in caplog.text
    quiet(queue, lambda batch: None, retry_delay_s=0).run()
