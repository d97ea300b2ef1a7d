"""Calls `predict` for a batch, and decides for each item whether its message is deleted or returned to the queue.

`predict` is a function of the user. To settle an item is to delete its message, or to return the message to the queue. A feeder
(`feeder.py`) receives messages and settles them.
"""

from __future__ import annotations

import traceback
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .errors import LOG, WorkerError
from .items import Batch, Item
from .results import ItemResult, ResultTarget, result_of
from .settlement import Fate, Settlement

Predict = Callable[[Batch], Any]
Settle = Callable[[int, list[Settlement]], None]  # called with the number of a feeder, and the settlements of its items
GROUPS_MAX = 10_000
TRACEBACKS_MAX = 100


class BatchRun:
    """Runs batches one after the other.

    If an item of a FIFO queue fails, the later items of its group are returned too, so that the group stays in order. But if the
    failed message was received `receives_max` times, SQS moves it to the dead-letter queue. Then the later items are processed.
    """

    def __init__(
        self,
        predict: Predict,
        prepare: Predict | None,
        results: ResultTarget | None,
        result_key: Callable[[Item], str] | None,
        receives_max: int | None,
        failures_max: int,
        settle: Settle,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._predict = predict
        self._prepare = prepare
        self._results = results
        self._result_key = result_key
        self._receives_max = receives_max
        self._failures_max = failures_max
        self._settle = settle
        self._is_stopping = is_stopping
        # Messages in a row that could not be fetched, decoded or predicted. Calls of `fail` in `predict` do not count.
        self._failures = 0
        # Group → the fields `feeder` and `receive` of its last failed item.
        self._failed_groups: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._seen: set[str] = set()  # the type and the line of each exception that was logged with a traceback

    def prepare(self, batch: Batch) -> None:
        if self._prepare is not None:
            batch.prepared = self._prepare(batch)

    def run(self, batch: Batch) -> None:
        """Call `predict`, and settle the items. Raise WorkerError if the worker must stop."""
        left = Batch(item for item in batch if self._keep(item))
        if not left:
            return
        left.prepared = batch.prepared if len(left) == len(batch) else None
        try:
            self._call(left)
        except WorkerError:
            raise
        except Exception as error:
            self._log_exception(left, error)
            if len(left) == 1:
                self._failed(left[0], error)
            else:
                self._one_by_one(left)
            return
        self._succeeded(left)

    def _keep(self, item: Item) -> bool:
        """Return True if `predict` must process the item. Otherwise settle the item, and return False."""
        if self._is_behind_failure(item):
            self._give([(item, Fate.RETURNED, None)])
        elif item.failure is not None:  # its object could not be fetched or decoded
            self._fail(item)
            self._count_failure(item, None)
        else:
            return True
        return False

    def _one_by_one(self, batch: Batch) -> None:
        """Call `predict` for each item alone after an exception, so that only the items that cause the exception fail."""
        for item in batch:
            if self._is_stopping() or self._is_behind_failure(item):
                self._give([(item, Fate.RETURNED, None)])
                continue
            item.failure = item.result = None
            try:
                self._call(Batch([item]))
            except WorkerError:
                raise
            except Exception as error:
                self._log_exception([item], error)
                self._failed(item, error)
            else:
                self._succeeded([item])

    def _call(self, batch: Batch) -> None:
        if self._prepare is not None and batch.prepared is None:
            self.prepare(batch)
        returned = self._predict(batch)
        if returned is None:
            return
        if isinstance(returned, str | bytes | dict) or not hasattr(returned, "__len__"):
            raise WorkerError(
                f"predict returned a value of type {type(returned).__name__}: return a list with one result per item, or None."
            )
        if len(returned) != len(batch):
            raise WorkerError(
                f"predict returned {len(returned)} results for a batch of {len(batch)} items: return one result per item, "
                "or None and set item.result."
            )
        for item, result in zip(batch, returned):
            if result is not None:
                item.result = result

    def _succeeded(self, items: Iterable[Item]) -> None:
        """Settle the items after `predict` has returned. Items for which `predict` called `fail` have failed."""
        self._failures = 0
        settled: list[tuple[Item, Fate, ItemResult | None]] = []
        for item in items:
            if self._is_behind_failure(item):
                settled.append((item, Fate.RETURNED, None))
                continue
            result = None
            if item.failure is None and self._results is not None:
                try:
                    result = result_of(item, self._results, self._result_key)
                except Exception as error:
                    item.fail(str(error))
            if item.failure is None:
                settled.append((item, Fate.DONE, result))
            else:
                self._fail(item)
        self._give(settled)

    def _failed(self, item: Item, error: Exception) -> None:
        item.fail(f"{type(error).__name__}: {error}")
        self._fail(item)
        self._count_failure(item, error)

    def _count_failure(self, item: Item, error: Exception | None) -> None:
        self._failures += 1
        if self._failures >= self._failures_max:
            raise WorkerError(
                f"{self._failures} messages in a row could not be fetched, decoded or predicted, so the worker stops: the cause "
                "may be the GPU, the model or a permission, and the remaining messages would fail too. "
                f"The last failure: {item.failure}"
            ) from error

    def _fail(self, item: Item) -> None:
        of = f" of {self._receives_max}" if self._receives_max else ""
        LOG.warning("message %s failed (receive %d%s): %s", item.message_id, item.receive_count, of, item.failure)
        if item.group is not None and (self._receives_max is None or item.receive_count < self._receives_max):
            self._failed_groups[item.group] = (item.feeder, item.receive)
            self._failed_groups.move_to_end(item.group)
            if len(self._failed_groups) > GROUPS_MAX:
                self._failed_groups.popitem(last=False)
        self._give([(item, Fate.FAILED, None)])

    def _is_behind_failure(self, item: Item) -> bool:
        return item.group is not None and self._failed_groups.get(item.group) == (item.feeder, item.receive)

    def _give(self, settled: list[tuple[Item, Fate, ItemResult | None]]) -> None:
        feeders: dict[int, list[Settlement]] = defaultdict(list)
        for item, fate, result in settled:
            feeders[item.feeder].append(Settlement(item.number, fate, result))
        for feeder, settlements in feeders.items():
            self._settle(feeder, settlements)

    def _log_exception(self, batch: list[Item], error: Exception) -> None:
        """Log an exception, with the traceback if it is new.

        A known exception of a single item is not logged here, because `_fail` logs it.
        """
        frames = traceback.extract_tb(error.__traceback__)
        text = f"{type(error).__name__} {frames[-1].filename}:{frames[-1].lineno}"
        is_new = text not in self._seen and len(self._seen) < TRACEBACKS_MAX
        self._seen.add(text) if is_new else None
        if len(batch) > 1:
            LOG.warning(
                "predict failed for a batch of %d items, so they are tried one by one: %s", len(batch), error, exc_info=is_new
            )
        elif is_new:
            LOG.warning("predict failed", exc_info=error)
