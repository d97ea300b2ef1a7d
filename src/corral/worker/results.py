"""Results of `predict`. The worker writes the result of an item to S3 or to a queue before it deletes the message."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from .errors import LOG, WorkerError, code_of
from .items import Item
from .queue_lookup import QueueInfo, client, find_queue

ENTRIES_MAX = 10
BODIES_MAX_BYTES = 1024 * 1024  # the limit of one SendMessageBatch, and of one message


@dataclass(frozen=True, slots=True)
class ResultTarget:
    """A bucket with a prefix, or a queue."""

    bucket: str = ""
    prefix: str = ""
    queue: QueueInfo | None = None


@dataclass(frozen=True, slots=True)
class ItemResult:
    """A serialized result. `place` is a key in S3, or the message group of a FIFO queue."""

    place: str
    body: bytes
    content_type: str
    message_id: str


def target_of(results: str | None) -> ResultTarget | None:
    """Parse `s3://bucket/prefix/`, or the name, URL or ARN of a queue. Raise WorkerError if the bucket or queue does not exist."""
    if results is None:
        return None
    if not results.startswith("s3://"):
        return ResultTarget(queue=find_queue(results))
    bucket, _, prefix = results.removeprefix("s3://").partition("/")
    if not bucket:
        raise WorkerError(f"results={results!r} has no bucket: pass s3://BUCKET/PREFIX/ or the name of a queue.")
    try:
        client("s3", None).head_bucket(Bucket=bucket)
    except Exception as error:
        if code_of(error) in ("404", "NoSuchBucket"):
            raise WorkerError(f"Bucket {bucket} for results does not exist: create it (aws s3 mb s3://{bucket}).") from error
        # Continue, because a worker that may not read the bucket can still write to it.
        LOG.warning("bucket %s for results was not checked: %s", bucket, error)
    return ResultTarget(bucket=bucket, prefix=prefix)


def result_of(item: Item, target: ResultTarget, key_of: Callable[[Item], str] | None) -> ItemResult | None:
    """Serialize what `predict` returned for an item. Return None if there is no result. Raise ValueError if it is not valid."""
    if item.result is None:
        return None
    if target.queue is not None:
        return _for_queue(item)
    body, content_type, extension = _serialized(item.result)
    name = key_of(item) if key_of else f"{item.objects[0].key if len(item.objects) == 1 else item.message_id}{extension}"
    return ItemResult(target.prefix + name, body, content_type, item.message_id)


def _for_queue(item: Item) -> ItemResult:
    if isinstance(item.result, bytes | bytearray | memoryview):
        raise ValueError("a result of bytes cannot be sent to a queue: write results to S3, or return text")
    document = {"messageId": item.message_id, "objects": [each.url for each in item.objects], "result": item.result}
    body = json.dumps(document, default=_listed).encode()
    if len(body) > BODIES_MAX_BYTES:
        raise ValueError(
            f"a result of {len(body):,} bytes is too large for a queue ({BODIES_MAX_BYTES:,} bytes): write results to S3"
        )
    return ItemResult(item.group or item.message_id, body, "application/json", item.message_id)


def _serialized(result: Any) -> tuple[bytes, str, str]:
    if isinstance(result, bytes | bytearray | memoryview):
        return bytes(result), "application/octet-stream", ".bin"
    if isinstance(result, str):
        return result.encode(), "text/plain; charset=utf-8", ".txt"
    return json.dumps(result, default=_listed).encode(), "application/json", ".json"


def _listed(value: Any) -> Any:
    """Convert arrays and tensors to lists, and their scalars to numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise ValueError(
        f"a result of type {type(value).__name__} cannot be written as JSON: return numbers, text, lists, dicts or bytes"
    )


class ResultWriter:
    """Writes results. `write` returns errors: position of a result that was not written → error."""

    def __init__(self, target: ResultTarget, threads: int) -> None:
        self._target = target
        self._pool = ThreadPoolExecutor(threads, "worker-results") if target.queue is None else None
        region = target.queue.region if target.queue else None
        self._client = client("sqs" if target.queue else "s3", region, connections=threads)

    def write(self, results: list[ItemResult]) -> dict[int, Exception]:
        if self._pool is None:
            return self._send(results)
        errors = self._pool.map(self._put, results)
        return {at: error for at, error in enumerate(errors) if error is not None}

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def _put(self, result: ItemResult) -> Exception | None:
        try:
            self._client.put_object(Bucket=self._target.bucket, Key=result.place, Body=result.body, ContentType=result.content_type)
        except Exception as error:
            return error
        return None

    def _send(self, results: list[ItemResult]) -> dict[int, Exception]:
        """Send the results in batches of at most ten messages and 1 MiB, as SQS requires."""
        failed: dict[int, Exception] = {}
        batch: list[int] = []
        for at, result in enumerate(results):
            size = sum(len(results[each].body) for each in batch) + len(result.body)
            if batch and (len(batch) == ENTRIES_MAX or size > BODIES_MAX_BYTES):
                failed |= self._send_batch(batch, results)
                batch = []
            batch.append(at)
        return failed | self._send_batch(batch, results) if batch else failed

    def _send_batch(self, batch: list[int], results: list[ItemResult]) -> dict[int, Exception]:
        assert self._target.queue is not None
        entries = []
        for at in batch:
            entry = {"Id": str(at), "MessageBody": results[at].body.decode()}
            if self._target.queue.is_fifo:
                entry |= {"MessageGroupId": results[at].place, "MessageDeduplicationId": results[at].message_id}
            entries.append(entry)
        try:
            answer = self._client.send_message_batch(QueueUrl=self._target.queue.url, Entries=entries)
        except Exception as error:
            return dict.fromkeys(batch, error)
        return {int(entry["Id"]): RuntimeError(entry.get("Message", entry["Code"])) for entry in answer.get("Failed", [])}
