"""A feeder receives messages, fetches and decodes their objects, and settles the messages when the worker has processed them.

To settle a message is to delete it, or to return it to the queue. A feeder holds a message from its receive to its settlement.
"""

from __future__ import annotations

import json
import queue
import secrets
import threading
import time
import traceback
from base64 import b64decode
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol

from .errors import LOG, explained, is_transient, retried
from .items import Item, S3Object, item_of
from .object_reader import ObjectReader
from .queue_lookup import QueueInfo, client, credentials
from .results import ResultTarget, ResultWriter
from .settlement import REQUESTS_MAX, Fate, HeldMessage, Settlement, Settler, delay_s
from .signed_http import CannotConnect, SignedHttp, can_send
from .visibility import VisibilityKeeper

RECEIVE_MAX = 10
# The maximum time of a long poll with the option `once`. A long poll reads from every server of SQS, so an empty response means
# that the queue is empty.
ONCE_POLL_S = 1
FETCH_MAX_S = 60.0
SMALL_BYTES = 128 * 1024  # an item whose objects have more bytes together is fetched alone
FOREVER_S = 1e9
SYSTEM_ATTRIBUTES = ["ApproximateReceiveCount", "MessageGroupId"]


@dataclass(frozen=True, slots=True)
class FeederOptions:
    queue: QueueInfo
    fetch: bool
    decode: Callable[[Item], Any] | None
    threads: int
    receivers: int
    prefetch: int
    prefetch_bytes: int
    visibility_s: int | None
    poll_s: int
    retry_delay_s: int | None
    results: ResultTarget | None
    once: bool


class FeederEvents(Protocol):
    """The events that a feeder reports. Its threads call these methods."""

    def ready(self, items: list[Item]) -> None:
        """Items are ready: their objects are fetched and decoded, or `failure` says why not."""

    def holds(self, feeder: int, count: int) -> None:
        """The feeder has begun to hold messages, or holds none any more (`count` is 0)."""

    def settled(self, fate: Fate, count: int) -> None: ...

    def broken(self, feeder: int, error: Exception) -> None: ...

    def empty(self, feeder: int) -> None:
        """The queue is empty, the feeder holds no messages, and it does not receive again. Only with the option `once`."""


class Prefetch:
    """Slots for messages and a budget of bytes. A thread that receives messages waits here while the feeder holds enough."""

    def __init__(self, slots_max: int, bytes_max: int) -> None:
        self.slots_max = slots_max
        self._slots = slots_max
        self._bytes_max = bytes_max
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def take_slots(self, count: int) -> int:
        """Wait until `count` slots are free, take them, and return `count`. Return 0 after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._slots >= count)
            if self._closed:
                return 0
            self._slots -= count
            return count

    def take_bytes(self, size: int) -> None:
        """Wait until `size` bytes are free and take them. If `size` exceeds the limit, wait until no bytes are taken."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._bytes == 0 or self._bytes + size <= self._bytes_max)
            self._bytes += size

    def add_bytes(self, more: int) -> None:
        """Correct an estimate without waiting, for example if decoded data is larger than its object."""
        with self._changed:
            self._bytes += more
            self._changed.notify_all()

    def give(self, slots: int, size: int = 0) -> None:
        with self._changed:
            self._slots += slots
            self._bytes -= size
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Feeder:
    def __init__(self, number: int, options: FeederOptions, events: FeederEvents) -> None:
        self.number = number
        self._options = options
        self._events = events
        queue_info = options.queue
        connections = options.receivers + REQUESTS_MAX + 1
        self._sqs = QueueRequests(queue_info.region, connections=connections, read_timeout_s=options.poll_s + 30)
        self._reader = ObjectReader(options.threads) if options.fetch else None
        self._prefetch = Prefetch(options.prefetch, options.prefetch_bytes)
        self._keeper = VisibilityKeeper(self._sqs, queue_info.url, options.visibility_s or queue_info.visibility_s)
        writer = ResultWriter(options.results, options.threads) if options.results else None
        delays = delay_s(options.retry_delay_s, queue_info.receives_max)
        self._settler = Settler(
            self._sqs,
            queue_info.url,
            self._keeper,
            writer,
            delays,
            self._settled,
            partial(events.broken, number),
            self._is_processing,
        )
        self._pool = ThreadPoolExecutor(options.threads, "worker-fetch")
        self._in_order: queue.SimpleQueue[Future[Item | None] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._flowing = threading.Event()  # set while messages arrive: then all receivers run, and not only the first one
        self._changed = threading.Condition()
        self._held: dict[int, HeldMessage] = {}
        self._processing = 0  # the number of held messages that are not being settled
        self._receiving = 0
        self._returns = 0  # the number of messages that this feeder made visible again
        self._numbers = self._receives = 0
        self._threads = [threading.Thread(target=self._receive, args=(at == 0,), daemon=True) for at in range(options.receivers)]
        if queue_info.is_fifo:
            self._threads.append(threading.Thread(target=self._hand_over_in_order, name="worker-order", daemon=True))

    def start(self) -> None:
        self._keeper.start()
        self._settler.start()
        for thread in self._threads:
            thread.start()

    def settle(self, settlements: list[Settlement]) -> None:
        with self._changed:
            for settlement in settlements:
                message = self._held.get(settlement.number)
                if message is not None and not message.is_settling:
                    message.is_settling = True
                    self._processing -= 1
                    self._settler.add(message, settlement)

    def stop(self) -> None:
        """Stop receiving, and return the messages whose objects are not fetched yet. This method does not wait."""
        self._stopping.set()
        self._flowing.set()
        self._prefetch.close()
        with self._changed:
            self._changed.notify_all()

    def return_all(self) -> None:
        """Return every message that is not being settled, because the worker has ended."""
        with self._changed:
            numbers = list(self._held)
        self.settle([Settlement(number, Fate.RETURNED) for number in numbers])

    def close(self, within_s: float) -> None:
        """Stop, and wait up to `within_s` until all receives have returned and all messages are settled."""
        self.stop()
        until_s = time.monotonic() + within_s
        for thread in self._threads[: self._options.receivers]:
            thread.join(max(0.0, until_s - time.monotonic()))
        with self._changed:
            settled = self._changed.wait_for(lambda: not self._held, max(0.0, until_s - time.monotonic()))
        if not settled:
            LOG.warning("%d messages return to the queue only when their visibility timeout ends", len(self._held))
        self._pool.shutdown(wait=False)
        self._in_order.put(None)
        self._settler.close()
        self._keeper.close()

    # Receiving

    def _receive(self, is_first: bool) -> None:
        try:
            while not self._stopping.is_set():
                if not is_first:
                    self._flowing.wait()
                wanted = self._prefetch.take_slots(min(RECEIVE_MAX, self._prefetch.slots_max))
                with self._changed:
                    was_idle, returns = not self._held, self._returns
                if wanted and not self._receive_once(wanted) and is_first and self._options.once:
                    self._end_if_empty(was_idle, returns)
        except Exception as error:
            if not self._stopping.is_set():
                self._events.broken(self.number, explained(f"Queue {self._options.queue.name} cannot be received from", error))

    def _receive_once(self, wanted: int) -> int:
        with self._changed:
            self._receiving += 1
        messages: list[dict[str, Any]] = []
        try:
            attempt = secrets.token_hex(16)
            messages = retried("ReceiveMessage", lambda: self._messages(wanted, attempt), self._stopping, FOREVER_S)
        finally:
            self._prefetch.give(wanted - len(messages))
            with self._changed:
                self._receiving -= 1
                self._receives += 1
                receive = self._receives
                was_idle = not self._held
                held = [self._hold(message) for message in messages]
                if was_idle and held:
                    self._events.holds(self.number, len(held))
        if messages or self._stopping.is_set():
            self._flowing.set()
        else:
            self._flowing.clear()
        self._keeper.hold([message.handle for message in held])
        items = [item_of(message, feeder=self.number, number=each.number, receive=receive) for message, each in zip(messages, held)]
        # Take the items in their order. If the small items after a large item were charged before it, the large item could wait
        # forever: it would wait for their bytes, and they would wait until it is taken.
        for is_large, group in groupby(zip(held, items), key=lambda pair: _object_bytes(pair[1]) > SMALL_BYTES):
            pairs = list(group)
            if not is_large and self._reader is not None and self._reader.can_read_several and not self._stopping.is_set():
                self._fetch_small(self._reader, pairs)
            for each, item in pairs:
                self._take(each, item)
        return len(messages)

    def _messages(self, wanted: int, attempt: str) -> list[dict[str, Any]]:
        """Receive messages. If a response of a FIFO queue was lost, the next attempt gets the same messages."""
        options = self._options
        params: dict[str, Any] = {"VisibilityTimeout": options.visibility_s} if options.visibility_s else {}
        params |= {"ReceiveRequestAttemptId": attempt} if options.queue.is_fifo else {}
        answer = self._sqs.receive_message(
            QueueUrl=options.queue.url,
            MaxNumberOfMessages=wanted,
            WaitTimeSeconds=min(options.poll_s, ONCE_POLL_S) if options.once else options.poll_s,
            MessageSystemAttributeNames=SYSTEM_ATTRIBUTES,
            MessageAttributeNames=["All"],
            **params,
        )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def _hold(self, message: dict[str, Any]) -> HeldMessage:
        self._numbers += 1
        count = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))
        held = HeldMessage(self._numbers, message["ReceiptHandle"], count)
        self._held[held.number] = held
        self._processing += 1
        return held

    def _end_if_empty(self, was_idle: bool, returns: int) -> None:
        """Stop after an empty receive, if this feeder held no message before the receive, and received or returned none during it.

        Otherwise the queue may have messages although a receive is empty: a FIFO queue returns no message of a group while another
        message of the group is held.
        """
        with self._changed:
            is_empty = was_idle and not self._held and not self._receiving and self._returns == returns
            if not is_empty:
                self._changed.wait_for(lambda: not self._held or self._stopping.is_set())
        if is_empty and not self._stopping.is_set():
            self.stop()
            self._events.empty(self.number)

    # Fetching and decoding

    def _fetch_small(self, reader: ObjectReader, pairs: list[tuple[HeldMessage, Item | None]]) -> None:
        """Fetch the objects of small items with one request. Wait while this feeder holds too many bytes."""
        objects: list[S3Object] = []
        for message, item in pairs:
            message.charged_bytes = _object_bytes(item)
            if item is not None and message.charged_bytes:
                objects += [each for each in item.objects if each.exists]
        if not objects:
            return
        self._prefetch.take_bytes(sum(message.charged_bytes for message, _ in pairs))
        for each, data in zip(objects, reader.read_several([(each.bucket, each.key) for each in objects])):
            each.data = data

    def _take(self, held: HeldMessage, item: Item | None) -> None:
        """Begin to fetch and decode a received message. Wait while this feeder holds too many bytes."""
        if item is None:
            held.is_test = True
            self.settle([Settlement(held.number, Fate.DONE)])
            return
        if self._options.fetch and not held.charged_bytes:
            held.charged_bytes = _object_bytes(item)
            self._prefetch.take_bytes(held.charged_bytes)
        work = self._pool.submit(self._prepare, held, item)
        if self._options.queue.is_fifo:
            self._in_order.put(work)
        else:
            work.add_done_callback(self._hand_over)

    def _prepare(self, held: HeldMessage, item: Item) -> Item | None:
        """Fetch and decode the objects of a message. Return None if the message was returned because the worker stops."""
        if self._stopping.is_set():
            self.settle([Settlement(held.number, Fate.RETURNED)])
            return None
        try:
            if self._reader is not None:
                for each in item.objects:
                    if each.exists and each.data is None:
                        each.data = self._fetched(self._reader, each.bucket, each.key)
            if self._options.decode is not None:
                item.data = self._options.decode(item)
                for each in item.objects:
                    each.data = None
        except BaseException as error:  # `sys.exit` in `decode` fails the message too
            item.fail(_reason(error))
        size = sum(len(each.data) for each in item.objects if each.data) + _bytes_of(item.data)
        self._prefetch.add_bytes(size - held.charged_bytes)
        held.charged_bytes = size
        return item

    def _fetched(self, reader: ObjectReader, bucket: str, key: str) -> bytes:
        return retried(f"GetObject of s3://{bucket}/{key}", partial(reader.read, bucket, key), self._stopping, FETCH_MAX_S)

    def _hand_over_in_order(self) -> None:
        """Hand over the items of a FIFO queue in the order in which they were received."""
        while (work := self._in_order.get()) is not None:
            self._hand_over(work)

    def _hand_over(self, work: Future[Item | None]) -> None:
        item = work.result()
        if item is not None:
            self._events.ready([item])

    # Settling

    def _is_processing(self) -> bool:
        """Whether further messages will be settled soon, so that the settler may wait for them.

        The settler must not wait if the queue is FIFO, because only the delete of a message makes the next message of its group
        visible. It must not wait if there are results, because a result is written only when its message is deleted.
        """
        options = self._options
        return self._processing > 0 and not (options.queue.is_fifo or options.results or self._stopping.is_set())

    def _settled(self, messages: list[HeldMessage], fate: Fate) -> None:
        with self._changed:
            gone = [message for message in messages if self._held.pop(message.number, None)]
            self._events.settled(fate, sum(not message.is_test for message in gone))
            if fate is not Fate.DONE:
                self._returns += len(gone)
            if gone and not self._held:
                self._events.holds(self.number, 0)
            self._changed.notify_all()
        self._prefetch.give(len(gone), sum(message.charged_bytes for message in gone))


def _object_bytes(item: Item | None) -> int:
    return sum(each.size for each in item.objects if each.exists) if item is not None else 0


def _bytes_of(data: Any) -> int:
    """Return the size of an array, a tensor or bytes, and 0 for other values."""
    if isinstance(data, bytes | bytearray | str):
        return len(data)
    size = getattr(data, "nbytes", 0)
    return size if isinstance(size, int) else 0


def _reason(error: BaseException) -> str:
    """Return the text of the error, and the line that raised it. A transient error has no line, because no code is wrong."""
    if is_transient(error):
        return f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


class QueueRequests:
    """Sends the frequent requests to SQS. The methods have the parameters and results of boto3, and threads may share an object.

    `signed_http.py` sends requests to Corral, with a fifth of the CPU time of boto3, which sends requests to AWS.
    If a request to Corral fails, boto3 sends it again, because boto3 retries and raises the right error.
    """

    def __init__(self, region: str | None, *, connections: int, read_timeout_s: int) -> None:
        self._sqs: Any = client("sqs", region, connections=connections, read_timeout_s=read_timeout_s)
        self._credentials: Any = credentials(region)
        self._has_succeeded = False
        meta = self._sqs.meta
        is_direct = self._credentials is not None and can_send(meta.endpoint_url)
        # None: only boto3 can send the requests
        self._http = SignedHttp(meta.endpoint_url, meta.region_name, "sqs", read_timeout_s) if is_direct else None

    def receive_message(self, **params: Any) -> dict[str, Any]:
        answer = self._call("ReceiveMessage", self._sqs.receive_message, params)
        for message in answer.get("Messages", ()):
            for attribute in message.get("MessageAttributes", {}).values():
                if isinstance(attribute.get("BinaryValue"), str):
                    attribute["BinaryValue"] = b64decode(attribute["BinaryValue"])
        return answer

    def delete_message_batch(self, **params: Any) -> dict[str, Any]:
        return self._call("DeleteMessageBatch", self._sqs.delete_message_batch, params)

    def change_message_visibility_batch(self, **params: Any) -> dict[str, Any]:
        return self._call("ChangeMessageVisibilityBatch", self._sqs.change_message_visibility_batch, params)

    def _call(self, operation: str, with_boto3: Callable[..., dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
        if self._http is not None:
            try:
                keys = self._credentials.get_frozen_credentials()
                body = self._http.call(f"AmazonSQS.{operation}", json.dumps(params).encode(), keys)
                answer = json.loads(body) if body is not None else None
                if isinstance(answer, dict):
                    self._has_succeeded = True
                    return answer
            except (CannotConnect, OSError, ValueError):
                pass
        answer = with_boto3(**params)
        if not self._has_succeeded:
            self._http = None  # boto3 can send requests to this endpoint, but SignedHttp cannot
        return answer
