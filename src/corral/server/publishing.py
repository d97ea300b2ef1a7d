"""Corral publishes itself, once a second: queues, clusters and GPUs, as metrics. The one ticker; where nothing is, it says nothing.

What is as it was is said again once a minute only, and then counts for all the seconds in between: so averages are true, and an
idle machine stays idle. Where the state has not changed and no message waits, nothing is looked at either.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from corral.clock import Clock
from corral.core import Tx
from corral.errors import ApiError
from corral.model.metric import Point
from corral.model.run import Measured
from corral.server.agents import Agents
from corral.server.lanes import Lane
from corral.services import measuring
from corral.services.cloudwatch.recording import record
from corral.store import Store
from corral.telemetry import MetricStore

SECOND_S = 1.0
MINUTE_S = 60.0
MEASURE_EVERY_S = 5.0  # the processes of tasks are looked at: that costs a host some milliseconds

log = logging.getLogger("corral")
Points = Callable[[float, float], Iterable[Point]]  # at which second, for how many


@dataclass(frozen=True, slots=True)
class Said:
    """What was said of somebody last, how to say it again, and when it was."""

    what: object
    points: Points
    at_s: float


class Publisher:
    def __init__(self, state: Lane[Store], metrics: Lane[MetricStore], agents: Agents, clock: Clock) -> None:
        self._state = state
        self._metrics = metrics
        self._agents = agents
        self._clock = clock
        self._said: dict[Hashable, Said] = {}
        self._sampled_s: dict[str, float] = {}  # GPU → when its last sample came
        self._measuring: asyncio.Task[list[Measured]] | None = None
        self._measured_s = 0.0
        self._published_s = 0.0
        self._changes = 0  # of the state, before the last look
        self._has_messages = False

    async def run(self) -> None:
        while True:
            await asyncio.sleep(SECOND_S - self._clock.now_s() % SECOND_S)
            try:
                await self.publish()
            except ApiError as refusal:
                log.warning("metrics of this second are missing: %s", refusal)
            except Exception:
                log.exception("metrics of this second are missing")

    async def publish(self) -> None:
        """Say what there is to say of this second."""
        measured = self._take_measured()
        if not measured and self._is_as_it_was():
            return
        now_s, changes = self._clock.now_s(), self._state.changes
        points = await self._state.submit(partial(self.points, measured=measured), read_only=True)
        self._published_s, self._changes = now_s, changes
        if points:
            await self._metrics.submit(partial(record, points=points, own=True))

    def _is_as_it_was(self) -> bool:
        """Whether a look would find nothing to say: levels change with the state, by samples, and while messages grow older."""
        return (
            not self._has_messages
            and self._state.changes == self._changes
            and self._clock.now_s() // MINUTE_S == self._published_s // MINUTE_S
            and all(past[-1][0] <= self._sampled_s.get(gpu_id, 0.0) for gpu_id, past in self._agents.history.items())
        )

    def _take_measured(self) -> list[Measured]:
        """What was measured since the last time. Hosts are asked beside us: one may take its time."""
        done, now_s = self._measuring, self._clock.now_s()
        if done is not None and not done.done():
            return []
        self._measuring = None
        if now_s - self._measured_s >= MEASURE_EVERY_S:
            self._measuring, self._measured_s = asyncio.create_task(self._measure()), now_s
        return done.result() if done is not None else []

    async def _measure(self) -> list[Measured]:
        """What the runs of every host use."""
        runs: dict[str, list[str]] = await self._state.submit(_live_runs, read_only=True)
        found = [await self._agents.measure(host_id, names) for host_id, names in runs.items()]
        return [each for each in found if each is not None]

    def points(self, tx: Tx[Store], measured: list[Measured]) -> list[Point]:
        """What is worth saying now. It runs in the state's lane."""
        found = [*self._of_queues(tx), *self._of_clusters(tx, measured), *self._of_gpus(tx)]
        self._said = {whom: said for whom, said in self._said.items() if said.at_s > tx.now_s - 2 * MINUTE_S}
        return found

    def _of_queues(self, tx: Tx[Store]) -> Iterator[Point]:
        active = tx.store.queues.activity(tx.now_s)
        self._has_messages = any(queue.visible or queue.in_flight or queue.delayed for queue in active)
        for queue in active:
            level = measuring.level_of(queue)
            news = [*self._news(("queue", queue.region, queue.name), level, partial(measuring.level_points, level), tx.now_s)]
            if news or queue != level:
                yield from news
                yield from measuring.event_points(queue, tx.now_s)

    def _of_clusters(self, tx: Tx[Store], measured: list[Measured]) -> Iterator[Point]:
        for (region, cluster), reserved in measuring.reservations(tx).items():
            points = partial(measuring.cluster_points, reserved, region, cluster)
            yield from self._news(("cluster", region, cluster), reserved, points, tx.now_s)
        for (region, cluster), used in measuring.utilizations(tx, measured).items():
            yield from measuring.cluster_points(used, region, cluster, tx.now_s, MEASURE_EVERY_S)

    def _of_gpus(self, tx: Tx[Store]) -> Iterator[Point]:
        """Those of which there are new samples: a busy GPU every second, an idle one with every heartbeat."""
        latest = {gpu_id: past[-1] for gpu_id, past in list(self._agents.history.items())}
        fresh = {gpu_id: sample for gpu_id, (at_s, sample) in latest.items() if at_s > self._sampled_s.get(gpu_id, 0.0)}
        self._sampled_s = {gpu_id: at_s for gpu_id, (at_s, _) in latest.items()}
        for gpu in measuring.seen_gpus(tx, fresh):
            yield from self._news(("gpu", gpu.sample.gpu_id), gpu, partial(measuring.gpu_points, gpu), tx.now_s)

    def _news(self, whom: Hashable, what: object, points: Points, now_s: float) -> Iterator[Point]:
        """What is to be said of somebody now. A level that has changed held until a second ago."""
        before = self._said.get(whom)
        silent_s = now_s - before.at_s if before is not None else SECOND_S
        if before is not None and before.what == what:
            if now_s // MINUTE_S == before.at_s // MINUTE_S:
                return
            yield from points(now_s, silent_s)
        else:
            if before is not None and silent_s >= 1.5 * SECOND_S:
                yield from before.points(now_s - SECOND_S, silent_s - SECOND_S)
            yield from points(now_s, SECOND_S)
        self._said[whom] = Said(what, points, now_s)


def _live_runs(tx: Tx[Store]) -> dict[str, list[str]]:
    """Host → its runs, by the names it has for them."""
    return {
        host["id"]: names
        for host in tx.store.hosts.all()
        if host["connected"] and (names := [run.attempt_id for task in tx.store.tasks.on_host(host["id"]) for run in task.runs])
    }
