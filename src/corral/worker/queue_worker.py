"""QueueWorker: feeds the messages of an SQS queue to a function, in batches."""

from __future__ import annotations

import math
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .batch_run import BatchRun, Predict
from .batches import Batches, NextBatch, Taken
from .errors import LOG, WorkerError
from .feeder import Feeder, FeederOptions
from .feeder_process import FeederProcess
from .items import Item
from .queue_lookup import client, find_queue, read_environment_again
from .results import target_of
from .settlement import Fate, Settlement
from .stop_signals import StopSignals
from .task_protection import WorkerProtection
from .worker_metrics import Totals, WorkerMetrics

MIB = 1024 * 1024
CLOSE_MAX_S = 60.0  # how long to wait, after all receives have returned, until all messages are deleted or returned to the queue
LIMITS: dict[str, tuple[float, float]] = {
    "batch_max": (1, 10_000),
    "wait_max_s": (0, 3600),
    "threads": (1, 1000),
    "processes": (0, 1000),
    "receivers": (1, 100),
    "prefetch": (1, 100_000),
    "prefetch_bytes": (1, math.inf),
    "visibility_s": (1, 43_200),
    "poll_s": (0, 20),
    "retry_delay_s": (0, 43_200),
    "failures_max": (1, math.inf),
    "metrics_every_s": (1, math.inf),
}


class QueueWorker:
    """Receives messages, fetches their S3 objects, and calls `predict` with batches of items until it is stopped.

    `docs/queue-worker.md` describes every option.
    """

    def __init__(
        self,
        queue: str,
        predict: Predict,
        *,
        batch_max: int = 32,
        wait_max_s: float = 0.05,
        decode: Callable[[Item], Any] | None = None,
        prepare: Predict | None = None,
        fetch: bool = True,
        threads: int = 8,
        processes: int = 0,
        start_method: str = "fork",
        receivers: int = 2,
        prefetch: int | None = None,
        prefetch_bytes: int = 256 * MIB,
        visibility_s: int | None = None,
        poll_s: int = 3,
        retry_delay_s: int | None = None,
        failures_max: int = 100,
        results: str | None = None,
        result_key: Callable[[Item], str] | None = None,
        metrics: str | None = "QueueWorker",
        metrics_every_s: float = 60.0,
        progress: bool | None = None,
        once: bool | None = None,
    ) -> None:
        given = locals()
        for name, (low, high) in LIMITS.items():
            value = given[name]
            if value is not None and not low <= value <= high:
                wanted = f"from {low} to {high}" if high < math.inf else f"of at least {low}"
                raise WorkerError(f"{name}={value!r} is not valid: pass a number {wanted}.")
        if start_method not in multiprocessing.get_all_start_methods():
            raise WorkerError(f"start_method={start_method!r} is not valid: pass fork, forkserver or spawn.")
        self._queue = queue
        self._predict = predict
        self._prepare = prepare
        self._decode = decode
        self._fetch = fetch
        self._batch_max = batch_max
        self._wait_max_s = wait_max_s
        self._threads = threads
        self._processes = processes
        self._start_method = start_method
        self._receivers = receivers
        self._prefetch = prefetch or 3 * batch_max + 20 * processes
        self._prefetch_bytes = prefetch_bytes
        self._visibility_s = visibility_s
        self._poll_s = poll_s
        self._retry_delay_s = retry_delay_s
        self._failures_max = failures_max
        self._results = results
        self._result_key = result_key
        self._metrics = metrics
        self._metrics_every_s = metrics_every_s
        self._progress = sys.stderr.isatty() if progress is None else progress
        self._once = "--once" in sys.argv[1:] if once is None else once
        self._stopping = threading.Event()
        self._run: _Run | None = None

    def run(self) -> Totals:
        """Process messages until SIGTERM, SIGINT or `stop`. With `once`, also end when the queue is empty. Return the totals."""
        read_environment_again()
        queue, results = find_queue(self._queue), target_of(self._results)
        if queue.receives_max is None:
            LOG.warning(
                "queue %s has no redrive policy: a message that fails is tried again until its retention period ends", queue.name
            )
        feeders = max(1, self._processes)
        options = FeederOptions(
            queue=queue,
            fetch=self._fetch,
            decode=self._decode,
            threads=self._threads,
            receivers=self._receivers,
            prefetch=math.ceil(self._prefetch / feeders),
            prefetch_bytes=math.ceil(self._prefetch_bytes / feeders),
            visibility_s=self._visibility_s,
            poll_s=self._poll_s,
            retry_delay_s=self._retry_delay_s,
            results=results,
            once=self._once,
        )
        metrics = WorkerMetrics(queue, self._metrics, self._metrics_every_s, self._progress)
        run = _Run(Batches(self._batch_max, self._wait_max_s), metrics, self._stopping)
        batch_run = BatchRun(
            self._predict,
            self._prepare,
            results,
            self._result_key,
            queue.receives_max,
            self._failures_max,
            run.settle,
            self._stopping.is_set,
        )
        signals = StopSignals(self.stop)
        signals.install()
        try:
            run.feed(options, self._processes, self._start_method)
            self._run = run
            signals.watch()
            return run.work(batch_run, with_prepare=self._prepare is not None, close_s=self._poll_s + CLOSE_MAX_S)
        finally:
            self._run = None
            self._stopping = threading.Event()
            signals.restore()

    def stop(self) -> None:
        """Return all messages to the queue, except those of the batch in `predict`. `run` returns after this batch.

        Any thread may call this method.
        """
        self._stopping.set()
        if self._run is not None:
            self._run.stop()


class _Run:
    """The state of one call of `QueueWorker.run`. It handles the events of the feeders, which receive messages (`feeder.py`)."""

    def __init__(self, batches: Batches, metrics: WorkerMetrics, stopping: threading.Event) -> None:
        self._batches = batches
        self._metrics = metrics
        self._stopping = stopping
        self._next = NextBatch()
        self._feeders: list[Feeder | FeederProcess] = []
        self._protection = WorkerProtection()
        self._lock = threading.Lock()
        self._holding: set[int] = set()
        self._empty: set[int] = set()
        self._error: Exception | None = None

    def feed(self, options: FeederOptions, processes: int, start_method: str) -> None:
        """Create the feeders. Their processes are forked here, before this worker starts its first thread."""
        if not processes:
            self._feeders = [Feeder(0, options, self)]
            return
        context = multiprocessing.get_context(start_method)
        if options.fetch:
            client("s3", None)  # load the models of S3 once, and not in every process
        feeders = [FeederProcess(number, options, self, context) for number in range(processes)]
        for at, feeder in enumerate(feeders):
            try:
                feeder.fork()
            except BaseException:
                for started in feeders[:at]:
                    started.abandon()
                raise
        self._feeders = [*feeders]

    def work(self, batch_run: BatchRun, *, with_prepare: bool, close_s: float) -> Totals:
        self._metrics.start()
        self._protection.start()
        for feeder in self._feeders:
            feeder.start()
        if self._stopping.is_set():
            self.stop()
        preparing = threading.Thread(target=self._prepare, args=(batch_run,), name="worker-prepare", daemon=True)
        if with_prepare:
            preparing.start()
        try:
            while (taken := self._take(with_prepare)) is not None:
                batch, waits_s = taken
                self._metrics.batch_began(waits_s)
                began_s = time.monotonic()
                batch_run.run(batch)
                self._metrics.batch_ended(time.monotonic() - began_s)
        finally:
            self.stop()
            if with_prepare:
                preparing.join()
            self._close(close_s)
            totals = self._metrics.close()
        if self._error is not None:
            raise self._error
        return totals

    def stop(self) -> None:
        self._stopping.set()
        self._return(self._batches.close() + self._next.close())
        for feeder in self._feeders:
            feeder.stop()

    def settle(self, feeder: int, settlements: list[Settlement]) -> None:
        self._feeders[feeder].settle(settlements)

    def _take(self, with_prepare: bool) -> Taken | None:
        if not with_prepare or not self._next:
            self._batches.want(True)
        taken = self._next.take() if with_prepare else self._batches.take()
        self._batches.want(False)
        return taken

    def _prepare(self, batch_run: BatchRun) -> None:
        """Prepare the next batch while `predict` works. If this fails, the batch is prepared again when it is processed."""
        while (taken := self._batches.take()) is not None:
            try:
                batch_run.prepare(taken[0])
            except Exception:
                taken[0].prepared = None
            if not self._next.put(taken):
                self._return(list(taken[0]))
        self._return(self._next.close())

    def _return(self, items: list[Item]) -> None:
        for feeder in {item.feeder for item in items}:
            mine = [Settlement(item.number, Fate.RETURNED) for item in items if item.feeder == feeder]
            self.settle(feeder, mine)

    def _close(self, within_s: float) -> None:
        """Return the remaining items to the queue, and wait for all feeders at the same time."""
        for feeder in self._feeders:
            feeder.return_all()
        closing = [threading.Thread(target=feeder.close, args=(within_s,), daemon=True) for feeder in self._feeders]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._protection.close()

    # Events of feeders

    def ready(self, items: list[Item]) -> None:
        if not self._batches.add(items):
            self._return(items)

    def holds(self, feeder: int, count: int) -> None:
        with self._lock:
            self._holding = self._holding | {feeder} if count else self._holding - {feeder}
            self._protection.set_busy(bool(self._holding))

    def settled(self, fate: Fate, count: int) -> None:
        self._metrics.settled(fate, count)

    def broken(self, feeder: int, error: Exception) -> None:
        with self._lock:
            self._error = self._error or error
        self.stop()

    def empty(self, feeder: int) -> None:
        with self._lock:
            self._empty.add(feeder)
            is_over = len(self._empty) == len(self._feeders)
        if is_over:
            self._batches.close()
