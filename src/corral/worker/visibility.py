"""Keeps messages invisible to other workers while this worker holds them."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from .errors import LOG

ENTRIES_MAX = 10  # messages of one ChangeMessageVisibilityBatch


class VisibilityKeeper:
    """Extends the visibility timeout of every held message when half of the timeout has passed.

    All messages have the same timeout, so the oldest entry is always due first.
    """

    def __init__(self, sqs: Any, queue_url: str, timeout_s: int) -> None:
        self._sqs = sqs
        self._queue_url = queue_url
        self._timeout_s = timeout_s
        self._due_s: OrderedDict[str, float] = OrderedDict()  # receipt handle → when to extend
        self._changed = threading.Condition()
        self._extending = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="worker-visibility", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hold(self, handles: Iterable[str]) -> None:
        due_s = time.monotonic() + self._timeout_s / 2
        with self._changed:
            for handle in handles:
                self._due_s[handle] = due_s
            self._changed.notify()

    def release(self, handles: Iterable[str]) -> None:
        """Stop extending the timeouts of messages, and wait until no request for them is pending.

        Otherwise, an extension could arrive after a message was returned, and hide it again.
        """
        with self._extending, self._changed:
            for handle in handles:
                self._due_s.pop(handle, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._wait():
            with self._extending:
                if due := self._take_due():
                    self._extend(due)

    def _wait(self) -> bool:
        """Wait until a message is due. Return False after `close`."""
        with self._changed:
            while not self._closed:
                pause_s = next(iter(self._due_s.values())) - time.monotonic() if self._due_s else None
                if pause_s is not None and pause_s <= 0:
                    return True
                self._changed.wait(pause_s)
            return False

    def _take_due(self) -> list[str]:
        """Take up to ten messages. Messages that are due soon are included, to save requests."""
        now_s = time.monotonic()
        with self._changed:
            due = [handle for handle, due_s in self._first() if due_s <= now_s + self._timeout_s / 8]
            for handle in due:
                self._due_s[handle] = now_s + self._timeout_s / 2
                self._due_s.move_to_end(handle)
        return due

    def _first(self) -> list[tuple[str, float]]:
        return [pair for pair, _ in zip(self._due_s.items(), range(ENTRIES_MAX))]

    def _extend(self, handles: list[str]) -> None:
        entries = [
            {"Id": str(at), "ReceiptHandle": handle, "VisibilityTimeout": self._timeout_s} for at, handle in enumerate(handles)
        ]
        try:
            answer = self._sqs.change_message_visibility_batch(QueueUrl=self._queue_url, Entries=entries)
        except Exception as error:
            LOG.warning("could not extend the visibility of %d messages, will try again: %s", len(handles), error)
            self._try_soon(handles)
            return
        lost = answer.get("Failed", [])
        if lost:
            LOG.warning("%d messages are no longer held, so another worker may process them: %s", len(lost), lost[0].get("Message"))
            with self._changed:
                for entry in lost:
                    self._due_s.pop(handles[int(entry["Id"])], None)

    def _try_soon(self, handles: list[str]) -> None:
        due_s = time.monotonic() + self._timeout_s / 10
        with self._changed:
            for handle in reversed(handles):
                self._due_s[handle] = due_s
                self._due_s.move_to_end(handle, last=False)
