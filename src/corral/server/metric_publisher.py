"""Publishes Corral's own metrics: metrics of queues, clusters, services, paused tasks, capacity providers and GPUs.

Values that have changed are published once a second, and at once when a message arrives in an empty queue. Unchanged values are
published again only once a minute, or once in the shortest period of an alarm if this period is shorter than a minute. Each value
is weighted by the number of seconds that it covers. So averages are correct, and an idle machine has little work. If nothing in
state.db has changed, no queue has messages and no GPU has a new sample, no transaction runs in that second.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from corral.core.clock import Clock, until_next
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet import own_metrics
from corral.model.agent_protocol import Measured
from corral.model.gpu_metrics import GpuSample
from corral.model.metric import Point
from corral.reconcile.idle_holders import save_idle
from corral.server.agents.connections import Agents
from corral.server.lanes import Lane
from corral.services.cloudwatch.metric_writes import record
from corral.services.corral.idle import add_reading
from corral.store import Store
from corral.telemetry import MetricStore

SECOND_S = 1.0
EARLY_S = 0.9  # if a value was published less than this time ago, a new value covers only the time since then, not a whole second
MINUTE_S = 60.0
KEPT_S = 2 * MINUTE_S  # a value that was published longer ago is not published again for the time since then
SAMPLED_S = 1.0  # a GPU sample covers this time before it arrives
SAMPLES_AT_ONCE = 100  # in one transaction, which takes a few milliseconds; orders and requests wait for it
POINTS_AT_ONCE = 1000
FIRST_POINTS_AT_ONCE = 100  # if GPUs have no series yet: to store a new series takes as long as many points
MEASURE_EVERY_S = 5.0  # not every second, because a host needs a few milliseconds to measure the processes of its tasks

log = logging.getLogger("corral")
Points = Callable[[float, float], Iterable[Point]]  # (time, number of seconds that the value covers) → points


class Published(Struct, frozen=True):
    """The last published value of a queue, cluster, capacity provider or GPU."""

    value: object
    points: Points | None  # None: `value` is a GpuReading
    at_s: float


class Interval(NamedTuple):
    """A value, and the seconds before `wall_s` for which it is published."""

    published: Published
    wall_s: float
    seconds: float


class MetricPublisher:
    def __init__(self, state: Lane[Store], metrics: Lane[MetricStore], agents: Agents, clock: Clock) -> None:
        self._state = state
        self._metrics = metrics
        self._agents = agents
        self._clock = clock
        self._published: dict[Hashable, Published] = {}
        self._cleaned_s = clock.now_s()  # when old values were last deleted from it
        self._waiting = deque[tuple[str, Sequence[tuple[float, GpuSample]]]]()  # GPUs and their samples that have no points yet
        self._has_new_gpus = False  # whether the points of this second are the first ones of a GPU
        self._measuring: asyncio.Task[list[Measured]] | None = None
        self._measured_s = 0.0
        self._published_s = 0.0
        self._changes = 0  # the value of `Lane.changes` of the state lane before the last publication
        self._has_messages = False
        self._paused = set[tuple[str, str, str]]()  # the keys of the last `own_metrics.paused_tasks`
        self._has_unsaved_use = False  # whether samples of tasks were added since the last `_save_gpu_use`
        self._saved_s = clock.now_s()
        self._repeat_s = MINUTE_S  # unchanged values are published again at multiples of this time

    async def run(self) -> None:
        """Publish once a second. Also publish when a message arrives in an empty queue, but at most once between two seconds.

        So an alarm on a queue does not wait for the next second, and its scaling policy can start the first worker at once.
        """
        woken = asyncio.Event()
        wake = partial(asyncio.get_running_loop().call_soon_threadsafe, woken.set)
        await self._state.submit(partial(_call_on_wake, wake=wake), read_only=True)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._to_next_second()):  # in Python 3.11, `wait_for` can lose a cancellation
                    await woken.wait()
                await self._publish_or_log()
                await asyncio.sleep(self._to_next_second())
            woken.clear()
            await self._publish_or_log()

    def _to_next_second(self) -> float:
        return until_next(self._clock.now_s(), SECOND_S)

    async def _publish_or_log(self) -> None:
        try:
            await self.publish()
        except ApiError as refusal:
            log.warning("metrics of this second are missing: %s", refusal)
        except Exception:
            log.exception("metrics of this second are missing")

    async def publish(self) -> None:
        measured = self._take_measured()
        self._waiting.extend(self._agents.take_new_samples().items())
        is_changed = bool(measured) or not self._is_unchanged()
        if not (is_changed or self._waiting):
            return
        now_s, changes, points = self._clock.now_s(), self._state.changes, list[Point]()
        if is_changed:
            points = await self._state.submit(partial(self.points, measured=measured), read_only=True)
        while self._waiting:  # other commands run in between
            points += await self._state.submit(self._gpu_points, read_only=True)
        if now_s // MINUTE_S != self._published_s // MINUTE_S:
            # All values are published now, so `record` returns the shortest period of all alarms.
            self._repeat_s = MINUTE_S
        self._published_s, self._changes = now_s, changes
        if now_s // MINUTE_S != self._saved_s // MINUTE_S and self._has_unsaved_use:
            self._saved_s, self._has_unsaved_use = now_s, False
            for problem in await self._state.submit(_save_gpu_use):
                log.warning("%s", problem)
        at_once, self._has_new_gpus = FIRST_POINTS_AT_ONCE if self._has_new_gpus else POINTS_AT_ONCE, False
        for at in range(0, len(points), at_once):
            part = points[at : at + at_once]
            shortest_s: int | None = await self._metrics.submit(partial(record, points=part, own=True))
            self._repeat_s = min(self._repeat_s, shortest_s or MINUTE_S)

    def _is_unchanged(self) -> bool:
        """Whether there is nothing to publish, except new samples of GPUs.

        Values change when state.db changes, and when messages grow older. Unchanged values are published again at multiples of
        `_repeat_s`.
        """
        return (
            not self._has_messages
            and self._state.changes == self._changes
            and self._clock.now_s() // self._repeat_s == self._published_s // self._repeat_s
        )

    def _take_measured(self) -> list[Measured]:
        """Return the measurements that have finished since the last call. Start new measurements every MEASURE_EVERY_S.

        A background task measures, because a host may respond slowly.
        """
        done, now_s = self._measuring, self._clock.now_s()
        if done is not None and not done.done():
            return []
        self._measuring = None
        if now_s - self._measured_s >= MEASURE_EVERY_S:
            self._measuring, self._measured_s = asyncio.create_task(self._measure()), now_s
        return done.result() if done is not None else []

    async def _measure(self) -> list[Measured]:
        """Measure the CPU and the memory that the runs on every host use."""
        runs: dict[str, list[str]] = await self._state.submit(_live_runs, read_only=True)
        found = [await self._agents.measure(host_id, names) for host_id, names in runs.items()]
        return [each for each in found if each is not None]

    def points(self, tx: Tx[Store], measured: list[Measured]) -> list[Point]:
        """Return the points to publish now. The thread of the state lane runs this method."""
        found = [*self._queue_points(tx), *self._cluster_points(tx, measured), *self._provider_points(tx), *self._gpu_points(tx)]
        if tx.now_s >= self._cleaned_s + MINUTE_S:  # not every second, because there may be a value for each of thousands of GPUs
            self._cleaned_s = tx.now_s
            self._published = {key: last for key, last in self._published.items() if last.at_s > tx.now_s - KEPT_S}
        return found

    def _queue_points(self, tx: Tx[Store]) -> Iterator[Point]:
        active = tx.store.queues.activity(tx.now_s)
        self._has_messages = any(queue.visible or queue.in_flight or queue.delayed for queue in active)
        for queue in active:
            level = own_metrics.queue_level(queue)
            points = partial(own_metrics.level_points, level)
            changed = [*self._changed_points(("queue", queue.region, queue.name), level, points, tx)]
            if changed or queue != level:
                yield from changed
                yield from own_metrics.event_points(queue, tx.wall_s)

    def _cluster_points(self, tx: Tx[Store], measured: list[Measured]) -> Iterator[Point]:
        for (region, cluster), reserved in own_metrics.reservations(tx).items():
            points = partial(own_metrics.cluster_points, reserved, region, cluster)
            yield from self._changed_points(("cluster", region, cluster), reserved, points, tx)
        yield from self._paused_points(tx)
        used = own_metrics.utilizations(tx, measured)
        for (region, cluster), percentages in used.of_cluster.items():
            yield from own_metrics.cluster_points(percentages, region, cluster, tx.wall_s, MEASURE_EVERY_S)
        for service, of_tasks in used.of_service.items():
            yield from own_metrics.service_points(of_tasks, *service, tx.wall_s, MEASURE_EVERY_S)

    def _paused_points(self, tx: Tx[Store]) -> Iterator[Point]:
        """Return how many tasks are paused, and once more, with the number 0, for those that are not paused any more."""
        paused = own_metrics.paused_tasks(tx)
        for key in sorted(paused.keys() | self._paused):
            number = paused.get(key, 0)
            points = partial(own_metrics.paused_points, number, key)
            yield from self._changed_points(("paused", *key), number, points, tx)
        self._paused = set(paused)

    def _provider_points(self, tx: Tx[Store]) -> Iterator[Point]:
        if not tx.store.stored.has("ecs", "capacity-provider"):
            return
        from corral.services.ecs import managed_scaling  # imported here, because few servers have capacity providers

        for key, percent in managed_scaling.provider_reservations(tx).items():
            points = partial(managed_scaling.reservation_points, percent, key)
            yield from self._changed_points(("capacity provider", *key), percent, points, tx)

    def _gpu_points(self, tx: Tx[Store]) -> list[Point]:
        """Return the points of GPUs that have new samples, about SAMPLES_AT_ONCE. The next call continues.

        A busy GPU is sampled every second, and an idle GPU with every heartbeat. `CollectedSamples` arrive later.
        """
        found = own_metrics.GpuPoints()
        for readings in own_metrics.gpu_readings(tx, self._take_samples()):
            for at_s, gpu in readings:
                self._add_to_tasks(tx, gpu, at_s)
                self._has_unsaved_use |= add_reading(tx, gpu, at_s)
                ago_s = readings[-1][0] - at_s
                key = ("gpu", gpu.sample.gpu_id)
                before = self._published.get(key)
                self._has_new_gpus |= before is None
                is_idle = (
                    gpu.is_idle and before is not None and isinstance(before.value, own_metrics.GpuReading) and before.value.is_idle
                )
                for each in self._intervals(key, gpu, None, tx.now_s - ago_s, tx.wall_s - ago_s, covers_all=is_idle):
                    assert isinstance(each.published.value, own_metrics.GpuReading)
                    wall_s = each.wall_s if len(readings) == 1 else _collected_at_s(each.wall_s, tx.wall_s)
                    found.add(each.published.value, wall_s, each.seconds)
        return found.points()

    def _take_samples(self) -> dict[str, list[tuple[float, GpuSample]]]:
        found: dict[str, list[tuple[float, GpuSample]]] = {}
        count = 0
        while self._waiting and count < SAMPLES_AT_ONCE:
            gpu_id, samples = self._waiting.popleft()
            found.setdefault(gpu_id, []).extend(samples)
            count += len(samples)
        return found

    def _add_to_tasks(self, tx: Tx[Store], gpu: own_metrics.GpuReading, at_s: float) -> None:
        """Add a sample to the GPU use of each task that has the GPU, unless the sample covers time before the task's start.

        A task that shares the GPU gets its own part, or nothing if the part is not known.
        """
        for task in gpu.tasks:
            if task.started_at_s is None or at_s < task.started_at_s + SAMPLED_S or (task.shares and task.part is None):
                continue
            sample, part = gpu.sample, task.part
            if part is not None:
                memory_mib = part.memory_used_mib or 0
                sample = replace(sample, utilization_percent=part.utilization_percent, memory_used_mib=memory_mib)
            tx.store.tasks.history.add_sample(task.task_id, sample)
            self._has_unsaved_use = True

    def _changed_points(self, key: Hashable, value: object, points: Points, tx: Tx[Store]) -> Iterator[Point]:
        """Return the points of a value if the value has changed, or must be published again."""
        for each in self._intervals(key, value, points, tx.now_s, tx.wall_s):
            assert each.published.points is not None
            yield from each.published.points(each.wall_s, each.seconds)

    def _intervals(
        self, key: Hashable, value: object, points: Points | None, now_s: float, wall_s: float, *, covers_all: bool = False
    ) -> Iterator[Interval]:
        """Return what to publish if the value has changed, or must be published again.

        If the value has changed, and the previous value was published more than a second ago, the previous value is returned first.
        It covers the time until a second ago. With `covers_all`, the new value covers all of the time instead.
        """
        before, now = self._published.get(key), Published(value, points, now_s)
        before = None if before is not None and before.at_s <= now_s - KEPT_S else before
        silent_s = now_s - before.at_s if before is not None else SECOND_S
        if before is not None and before.value == value:
            if now_s // self._repeat_s == before.at_s // self._repeat_s:
                return
            yield Interval(now, wall_s, silent_s)
        elif covers_all:
            yield Interval(now, wall_s, silent_s)
        else:
            if before is not None and silent_s >= 1.5 * SECOND_S:
                yield Interval(before, wall_s - SECOND_S, silent_s - SECOND_S)
            yield Interval(now, wall_s, silent_s if silent_s < EARLY_S else SECOND_S)
        self._published[key] = now


def _collected_at_s(sampled_s: float, now_s: float) -> float:
    """Return the time of collected samples in the metrics: now, or the end of their minute, so that a minute has few datapoints."""
    minute_s = sampled_s // MINUTE_S * MINUTE_S
    return now_s if now_s < minute_s + MINUTE_S else minute_s + MINUTE_S - SECOND_S


def _call_on_wake(tx: Tx[Store], wake: Callable[[], object]) -> None:
    tx.store.queues.on_wake = wake


def _save_gpu_use(tx: Tx[Store]) -> list[str]:
    tx.store.tasks.history.save_gpu_use()
    return save_idle(tx)


def _live_runs(tx: Tx[Store]) -> dict[str, list[str]]:
    """Return a dict from the ids of connected hosts to the attempt ids of their runs. The host knows a run by its attempt id.

    Hosts without runs cost nothing here, because most of many hosts can be idle.
    """
    silent, found = tx.store.hosts.silent_ids(), dict[str, list[str]]()
    for instance_id in tx.store.tasks.instances():
        instance = tx.store.instances.get(instance_id)
        if instance is not None and instance.host_id is not None and instance.host_id not in silent:
            names = [run.attempt_id for task in tx.store.tasks.on(instance_id) for run in task.runs]
            if names:
                found.setdefault(instance.host_id, []).extend(names)
    return found
