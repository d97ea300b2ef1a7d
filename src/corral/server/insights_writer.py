"""Writes the performance log events of Container Insights once a minute, for the clusters that have this setting."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from corral.clock import Clock
from corral.core import Tx
from corral.errors import ApiError
from corral.model.run import Usage
from corral.server.agents import Agents
from corral.server.lanes import Lane
from corral.services.ecs.container_insights import (
    InsightsCluster,
    performance_events,
    running_tasks,
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
        self._before: dict[str, Usage] = {}  # attempt id → the measurement of the last minute

    async def run(self) -> None:
        while True:
            await asyncio.sleep(MINUTE_S - self._clock.now_s() % MINUTE_S)
            try:
                await self.write()
            except ApiError as refusal:
                log.warning("the Container Insights events of this minute are missing: %s", refusal)
            except Exception:
                log.exception("the Container Insights events of this minute are missing")

    async def write(self) -> None:
        """Write the events of this minute. If no cluster has this setting, this is only one query."""
        clusters: list[InsightsCluster] = await self._state.submit(_clusters, read_only=True)
        if not clusters:
            self._before = {}
            return
        runs: dict[str, dict[str, float]] = await self._state.submit(partial(_runs, clusters=clusters), read_only=True)
        measured = [(await self._agents.measure(host_id, list(started_s)), started_s) for host_id, started_s in runs.items()]
        now: dict[str, Usage] = {}
        started: dict[str, float] = {}
        for found, started_s in measured:
            now |= found.now if found is not None else {}
            started |= started_s
        used = used_by_runs(now, self._before, started)
        self._before = now
        for cluster in clusters:
            events = await self._state.submit(partial(performance_events, cluster=cluster, used=used), read_only=True)
            await self._logs.submit(partial(write_performance_events, cluster=cluster, events=events))


def _clusters(tx: Tx[Store]) -> list[InsightsCluster]:
    return [InsightsCluster(*found) for found in tx.store.clusters.with_insights()]


def _runs(tx: Tx[Store], clusters: list[InsightsCluster]) -> dict[str, dict[str, float]]:
    """Return host id → attempt id → start of the run, for the running tasks of these clusters."""
    found: dict[str, dict[str, float]] = {}
    for cluster in clusters:
        for task in running_tasks(tx, cluster):
            instance = tx.store.instances.get(task.instance_id) if task.instance_id is not None else None
            if instance is None or instance.host_id is None:
                continue
            for run in task.runs:
                if run.started_at_s is not None and run.stopped_at_s is None:
                    found.setdefault(instance.host_id, {})[run.attempt_id] = run.started_at_s
    return found
