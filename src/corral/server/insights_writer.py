"""Writes performance log events once a minute, for the clusters that have Container Insights."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from corral.core.clock import Clock
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.run import Usage
from corral.server.agents.connections import Agents
from corral.server.lanes import Lane
from corral.services.ecs.container_insights import (
    PIECE,
    InsightsCluster,
    PerformanceEvents,
    UsedByRun,
    cluster_events,
    running_task_ids,
    running_tasks,
    service_events,
    task_events,
    used_by_runs,
    write_performance_events,
)
from corral.store import Store
from corral.telemetry import LogStore

MINUTE_S = 60.0

log = logging.getLogger("corral")


class InsightsWriter:
    def __init__(self, state: Lane[Store], logs: Lane[LogStore], agents: Agents, clock: Clock) -> None:
        self._state = state
        self._logs = logs
        self._agents = agents
        self._clock = clock
        self._before: dict[str, Usage] = {}  # attempt id (the id of a run on its host) → the measurement of the last minute

    async def run(self) -> None:
        while True:
            await asyncio.sleep(MINUTE_S - self._clock.wall_s() % MINUTE_S)
            try:
                await self.write()
            except ApiError as refusal:
                log.warning("the Container Insights events of this minute are missing: %s", refusal)
            except Exception:
                log.exception("the Container Insights events of this minute are missing")

    async def write(self) -> None:
        """Write the events of this minute. If no cluster has Container Insights, this method makes only one query."""
        clusters: list[InsightsCluster] = await self._state.submit(_clusters, read_only=True)
        pieces: list[tuple[InsightsCluster, list[str]]] = []  # the ids of running tasks, at most PIECE in each list
        for cluster in clusters:
            ids: list[str] = await self._state.submit(partial(running_task_ids, cluster=cluster), read_only=True)
            pieces += [(cluster, ids[at : at + PIECE]) for at in range(0, len(ids), PIECE)]
        used = await self._measure([ids for _, ids in pieces])
        for cluster in clusters:
            await self._append(cluster, await self._state.submit(partial(cluster_events, cluster=cluster), read_only=True))
            after: str | None = ""
            while after is not None:
                read = partial(service_events, cluster=cluster, after=after)
                events, after = await self._state.submit(read, read_only=True)
                await self._append(cluster, events)
        for cluster, ids in pieces:
            of_tasks = partial(task_events, cluster=cluster, task_ids=ids, used=used)
            await self._append(cluster, await self._state.submit(of_tasks, read_only=True))

    async def _measure(self, pieces: list[list[str]]) -> dict[str, UsedByRun]:
        """Return the resources that the containers of these tasks have used since the last call, by attempt id."""
        runs: dict[str, dict[str, float]] = {}
        for ids in pieces:
            found: dict[str, dict[str, float]] = await self._state.submit(partial(_runs, task_ids=ids), read_only=True)
            for host_id, started_s in found.items():
                runs.setdefault(host_id, {}).update(started_s)
        now: dict[str, Usage] = {}
        for host_id, started_s in runs.items():
            measured = await self._agents.measure(host_id, list(started_s))
            now |= measured.now if measured is not None else {}
        before, self._before = self._before, now
        return used_by_runs(now, before, {attempt: at_s for started_s in runs.values() for attempt, at_s in started_s.items()})

    async def _append(self, cluster: InsightsCluster, events: PerformanceEvents) -> None:
        if events:
            await self._logs.submit(partial(write_performance_events, cluster=cluster, events=events))


def _clusters(tx: Tx[Store]) -> list[InsightsCluster]:
    return [InsightsCluster(*found) for found in tx.store.clusters.with_insights()]


def _runs(tx: Tx[Store], task_ids: list[str]) -> dict[str, dict[str, float]]:
    """Return host id → attempt id → start of the run, for the running tasks among these tasks."""
    found: dict[str, dict[str, float]] = {}
    for task in running_tasks(tx, task_ids):
        instance = tx.store.instances.get(task.instance_id) if task.instance_id is not None else None
        if instance is None or instance.host_id is None:
            continue
        for run in task.runs:
            if run.started_at_s is not None and run.stopped_at_s is None:
                found.setdefault(instance.host_id, {})[run.attempt_id] = run.started_at_s
    return found
