"""Settles messages: writes their results and deletes them, or returns them to the queue, in batches of up to ten."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from .errors import LOG, code_of, explained, retried
from .results import ItemResult, ResultWriter
from .visibility import VisibilityKeeper

ENTRIES_MAX = 10  # messages of one DeleteMessageBatch or ChangeMessageVisibilityBatch
LINGER_S = 0.02  # how long an incomplete batch waits for more messages
# How long an incomplete batch of deletes waits while other messages are processed: `predict` processes many messages at once, so
# many deletes follow at the same time.
DELETE_LINGER_S = 0.25
REQUESTS_MAX = 4
TRY_MAX_S = 60.0
DELAY_MAX_S = 300
# With these errors, every result would be refused. So the worker stops, and its messages do not count as failed.
REFUSALS = {"AccessDenied", "AccessDeniedException", "NoSuchBucket", "QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue"}


class Fate(Enum):
    DONE = "done"  # processed: the message is deleted
    FAILED = "failed"  # the message becomes visible again after the retry delay
    RETURNED = "returned"  # not processed: the message becomes visible again at once


@dataclass(slots=True)
class HeldMessage:
    """A message between its receive and its settlement."""

    number: int
    handle: str
    receive_count: int
    charged_bytes: int = 0
    is_settling: bool = False
    is_test: bool = False  # S3's test event


@dataclass(frozen=True, slots=True)
class Settlement:
    """The decision about a message. `number` identifies the message in the feeder that received it (`feeder.py`)."""

    number: int
    fate: Fate
    result: ItemResult | None = None


class Settler:
    """Collects settlements into batches and sends them. It calls `settled` with the messages after SQS has responded.

    `expects_more` says whether other messages are being processed, so that an incomplete batch of deletes can wait for them.
    """

    def __init__(
        self,
        sqs: Any,
        queue_url: str,
        keeper: VisibilityKeeper,
        writer: ResultWriter | None,
        retry_delay_s: Callable[[int], int],
        settled: Callable[[list[HeldMessage], Fate], None],
        broken: Callable[[Exception], None],
        expects_more: Callable[[], bool],
    ) -> None:
        self._sqs = sqs
        self._queue_url = queue_url
        self._keeper = keeper
        self._writer = writer
        self._retry_delay_s = retry_delay_s
        self._settled = settled
        self._broken = broken
        self._expects_more = expects_more
        self._waiting: queue.SimpleQueue[tuple[HeldMessage, Settlement] | None] = queue.SimpleQueue()
        self._pool = ThreadPoolExecutor(REQUESTS_MAX, "worker-settle")
        self._never = threading.Event()
        self._thread = threading.Thread(target=self._collect, name="worker-settler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, message: HeldMessage, settlement: Settlement) -> None:
        self._waiting.put((message, settlement))

    def close(self) -> None:
        """Send the remaining settlements, and wait for the responses."""
        self._waiting.put(None)
        self._thread.join()
        self._pool.shutdown()
        if self._writer is not None:
            self._writer.close()

    def _collect(self) -> None:
        """Collect messages with the same fate. Send a batch when it has ten messages, or when no message arrives for LINGER_S.

        A batch of deletes waits for DELETE_LINGER_S if more are expected.
        """
        batches: dict[Fate, list[tuple[HeldMessage, Settlement]]] = {fate: [] for fate in Fate}
        last_s = 0.0
        while True:
            try:
                pair = self._waiting.get(timeout=LINGER_S) if any(batches.values()) else self._waiting.get()
            except queue.Empty:
                lingers = self._expects_more() and time.monotonic() < last_s + DELETE_LINGER_S
                self._submit(batches, [fate for fate in Fate if not (lingers and fate is Fate.DONE)])
                continue
            if pair is None:
                break
            last_s = time.monotonic()
            fate = pair[1].fate
            batches[fate].append(pair)
            if len(batches[fate]) == ENTRIES_MAX:
                self._submit(batches, [fate])
        self._submit(batches, Fate)

    def _submit(self, batches: dict[Fate, list[tuple[HeldMessage, Settlement]]], fates: Iterable[Fate]) -> None:
        for fate in fates:
            if pairs := batches[fate]:
                self._pool.submit(self._send, fate, pairs)
                batches[fate] = []

    def _send(self, fate: Fate, pairs: list[tuple[HeldMessage, Settlement]]) -> None:
        try:
            if fate is Fate.DONE:
                self._finish(pairs)
            else:
                self._give_back(fate, [message for message, _ in pairs])
        except Exception:
            LOG.exception("%d messages were not settled: they return to the queue when their visibility timeout ends", len(pairs))
            self._keeper.release([message.handle for message, _ in pairs])
            self._settled([message for message, _ in pairs], Fate.FAILED)

    def _finish(self, pairs: list[tuple[HeldMessage, Settlement]]) -> None:
        """Write the results, then delete the messages. A message whose result was not written has failed.

        If a result was refused with one of the errors REFUSALS, the messages are returned instead, and the worker stops.
        """
        written = [message for message, settlement in pairs if settlement.result is None]
        with_result = [(message, settlement.result) for message, settlement in pairs if settlement.result is not None]
        if with_result:
            assert self._writer is not None
            errors = self._writer.write([result for _, result in with_result])
            refusals = [error for error in errors.values() if code_of(error) in REFUSALS]
            if refusals:
                self._broken(explained("Results cannot be written", refusals[0]))
            for at, error in errors.items():
                LOG.warning("message %s failed: its result was not written: %s", with_result[at][1].message_id, error)
            written += [message for at, (message, _) in enumerate(with_result) if at not in errors]
            if errors:
                self._give_back(Fate.RETURNED if refusals else Fate.FAILED, [with_result[at][0] for at in errors])
        if not written:
            return
        entries = [{"Id": str(at), "ReceiptHandle": message.handle} for at, message in enumerate(written)]
        self._keeper.release([message.handle for message in written])
        try:
            answer = self._retried("DeleteMessageBatch", self._sqs.delete_message_batch, entries)
            for entry in answer.get("Failed", []):
                LOG.warning(
                    "a processed message was not deleted and may be processed again: %s", entry.get("Message", entry["Code"])
                )
        except Exception as error:
            LOG.warning("%d processed messages were not deleted and may be processed again: %s", len(written), error)
        self._settled(written, Fate.DONE)

    def _give_back(self, fate: Fate, messages: list[HeldMessage]) -> None:
        """Make messages visible again: unprocessed messages at once, and failed messages after the retry delay."""
        entries = []
        for at, message in enumerate(messages):
            delay_s = self._retry_delay_s(message.receive_count) if fate is Fate.FAILED else 0
            entries.append({"Id": str(at), "ReceiptHandle": message.handle, "VisibilityTimeout": delay_s})
        self._keeper.release([message.handle for message in messages])
        try:
            answer = self._retried("ChangeMessageVisibilityBatch", self._sqs.change_message_visibility_batch, entries)
            for entry in answer.get("Failed", []):
                LOG.warning("a message was not returned to the queue: %s", entry.get("Message", entry["Code"]))
        except Exception as error:
            LOG.warning("%d messages return to the queue only when their visibility timeout ends: %s", len(messages), error)
        self._settled(messages, fate)

    def _retried(self, what: str, call: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
        return retried(what, lambda: call(QueueUrl=self._queue_url, Entries=entries), self._never, TRY_MAX_S)


def delay_s(retry_delay_s: int | None, receives_max: int | None) -> Callable[[int], int]:
    """Return a function that maps the receive count of a failed message to the seconds that the message stays invisible.

    `retry_delay_s` is the user's option. If it is None and the queue has a redrive policy, the delay is 0, because the policy ends
    the retries of a bad message. Without such a policy, the message would be received again and again for days, so the delay
    doubles with each receive.
    """
    if retry_delay_s is not None:
        return lambda count: retry_delay_s
    if receives_max is not None:
        return lambda count: 0
    return lambda count: min(2 ** min(count - 1, 10), DELAY_MAX_S)
