"""Counts the messages of a worker: for `Totals`, for CloudWatch, and for the progress line of a terminal."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

from .errors import LOG, is_transient
from .queue_lookup import QueueInfo, client
from .settlement import Fate

PROGRESS_S = 0.5
DEPTH_S = 2.0  # the time between two reads of the number of messages in the queue, for the progress line
BAR_CHARACTERS = 24


@dataclass(slots=True)
class ValueRange:
    """A statistic set of CloudWatch."""

    count: int = 0
    total: float = 0.0
    low: float = 0.0
    high: float = 0.0

    def add(self, value: float) -> None:
        self.low = min(self.low, value) if self.count else value
        self.high = max(self.high, value) if self.count else value
        self.count += 1
        self.total += value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def statistic_set(self) -> dict[str, float]:
        return {"SampleCount": self.count, "Sum": self.total, "Minimum": self.low, "Maximum": self.high}


@dataclass(slots=True)
class Totals:
    """How many messages were processed, failed, or were returned unprocessed, how many batches ran, and how long it took."""

    done: int = 0
    failed: int = 0
    returned: int = 0
    batches: int = 0
    seconds: float = 0.0
    predict_seconds: float = 0.0

    @property
    def per_s(self) -> float:
        return self.done / self.seconds if self.seconds else 0.0


class WorkerMetrics:
    """Thread-safe counters, and the threads that publish and show them."""

    def __init__(self, queue: QueueInfo, namespace: str | None, every_s: float, show_progress: bool) -> None:
        self._queue = queue
        self._namespace = namespace
        self._every_s = every_s
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._totals = Totals()
        self._published = Totals()
        self._batch_size, self._wait, self._predict = ValueRange(), ValueRange(), ValueRange()
        self._closing = threading.Event()
        self._show_progress = show_progress
        self._recent = (self._began_s, 0)
        self._threads = []
        if namespace:
            self._cloudwatch = client("cloudwatch", queue.region)
            self._threads.append(threading.Thread(target=self._publish_regularly, name="worker-metrics", daemon=True))
        if show_progress:
            self._sqs = client("sqs", queue.region)
            self._threads.append(threading.Thread(target=self._draw_regularly, name="worker-progress", daemon=True))

    def start(self) -> None:
        self._began_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    def close(self) -> Totals:
        self._closing.set()
        for thread in self._threads:
            thread.join()
        return self.totals()

    def totals(self) -> Totals:
        with self._lock:
            return replace(self._totals, seconds=time.monotonic() - self._began_s)

    def batch_began(self, waits_s: list[float]) -> None:
        with self._lock:
            self._totals.batches += 1
            self._batch_size.add(len(waits_s))
            for wait_s in waits_s:
                self._wait.add(wait_s * 1000)

    def batch_ended(self, seconds: float) -> None:
        with self._lock:
            self._totals.predict_seconds += seconds
            self._predict.add(seconds * 1000)

    def settled(self, fate: Fate, count: int) -> None:
        with self._lock:
            setattr(self._totals, fate.value, getattr(self._totals, fate.value) + count)

    # CloudWatch

    def _publish_regularly(self) -> None:
        is_open = True
        while is_open:
            is_open = not self._closing.wait(self._every_s)
            try:
                self._publish()
            except Exception as error:
                LOG.warning("metrics were not published to CloudWatch: %s", error)
                if not is_transient(error):
                    return  # for example, the worker has no permission: one warning is enough

    def _publish(self) -> None:
        with self._lock:
            done, failed = self._totals.done - self._published.done, self._totals.failed - self._published.failed
            ranges = (
                ("BatchSize", "Count", self._batch_size),
                ("Wait", "Milliseconds", self._wait),
                ("PredictTime", "Milliseconds", self._predict),
            )
            self._batch_size, self._wait, self._predict = ValueRange(), ValueRange(), ValueRange()
            self._published = replace(self._totals)
        if not (done or failed or any(values.count for _, _, values in ranges)):
            return
        dimensions = [{"Name": "QueueName", "Value": self._queue.name}]
        data: list[dict[str, Any]] = [
            {"MetricName": name, "Dimensions": dimensions, "Value": float(value), "Unit": "Count"}
            for name, value in (("Processed", done), ("Failed", failed))
        ]
        data += [
            {"MetricName": name, "Dimensions": dimensions, "StatisticValues": values.statistic_set(), "Unit": unit}
            for name, unit, values in ranges
            if values.count
        ]
        self._cloudwatch.put_metric_data(Namespace=self._namespace, MetricData=data)

    # The progress line

    def _draw_regularly(self) -> None:
        depth, asked_s = None, 0.0
        while not self._closing.wait(PROGRESS_S):
            if time.monotonic() > asked_s + DEPTH_S:
                depth, asked_s = self._depth(), time.monotonic()
            self._draw(depth)
        self._draw(self._depth())
        sys.stderr.write("\n")

    def _depth(self) -> int | None:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        try:
            found = self._sqs.get_queue_attributes(QueueUrl=self._queue.url, AttributeNames=names)["Attributes"]
        except Exception:
            return None  # the line then shows no bar
        return sum(int(found.get(name, 0)) for name in names)

    def _draw(self, depth: int | None) -> None:
        now_s, totals = time.monotonic(), self.totals()
        before_s, before = self._recent
        per_s = (totals.done - before) / max(now_s - before_s, 1e-9)
        self._recent = (now_s, totals.done)
        with self._lock:
            size, wait_ms = self._batch_size.mean, self._wait.mean
        line = progress_line(self._queue.name, totals, depth, per_s, size, wait_ms)
        sys.stderr.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()


def progress_line(name: str, totals: Totals, depth: int | None, per_s: float, batch: float, wait_ms: float) -> str:
    parts = [name]
    if depth is not None:
        whole = totals.done + depth
        filled = round(BAR_CHARACTERS * totals.done / whole) if whole else BAR_CHARACTERS
        parts.append(f"[{'#' * filled}{'.' * (BAR_CHARACTERS - filled)}] {totals.done:,} of {whole:,}")
    else:
        parts.append(f"{totals.done:,} done")
    if totals.failed:
        parts.append(f"{totals.failed:,} failed")
    parts += [f"{per_s:,.0f}/s", f"batch {batch:.1f}", f"wait {wait_ms:,.0f} ms"]
    if totals.seconds:
        parts.append(f"predict {100 * totals.predict_seconds / totals.seconds:.0f}%")
    return "  ".join(parts)
