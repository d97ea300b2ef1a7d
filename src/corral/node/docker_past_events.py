"""Finds out how removed containers ended, from the past events of the Docker engine.

`docker system prune` removes ended containers and their exit codes. If no agent runs at that time, only the events still have the
exit codes: Docker keeps the last 256 events in memory and returns them on request. The events also show whether a container ran at
all. If there is a `create` event without a `start` event, the container never ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.core.clock import Clock
from corral.model.stop_reasons import OUT_OF_MEMORY
from corral.node.docker_api import DockerApi
from corral.node.docker_images import decode_json_lines
from corral.node.docker_logs import since_epoch
from corral.node.docker_options import LABEL_HOST, LABEL_RUN
from corral.node.docker_runs import CONTAINER_LOST, DockerRun, DockerRuns

ACTIONS = ("create", "start", "oom", "die")
EARLIER_S = 60.0  # the events of this many seconds before the order are read, too


class PastContainer(Struct):
    id: str
    is_new: bool = False  # its `create` event was found, so all its events are known
    started_at_s: float | None = None
    ended_at_s: float | None = None
    exit_code: int | None = None
    out_of_memory: bool = False

    @property
    def never_ran(self) -> bool:
        return self.is_new and self.started_at_s is None and self.ended_at_s is None


async def resolve_missing(
    missing: Iterable[DockerRun], runs: DockerRuns, api: DockerApi, host_id: str, clock: Clock, *, may_order_again: bool
) -> None:
    """Report the end of runs whose container does not exist in the engine.

    A run that never started is dropped instead if `may_order_again` is true: this agent has not connected to the server yet, and
    the server orders the run again when the agent connects.
    """
    missing = list(missing)
    past = await read_past_containers(api, host_id, min(runs.ordered_at_s(run.run_id) for run in missing), clock)
    for run in missing:
        container = past.get(run.run_id)
        may_have_run = runs.start_requested_at_s(run.run_id) is not None and not (container and container.never_ran)
        if container is not None and container.ended_at_s is not None:
            started_at_s = container.started_at_s or runs.start_requested_at_s(run.run_id) or container.ended_at_s
            _report_end(runs, run, container, started_at_s)
        elif may_have_run or not may_order_again:
            runs.end(run, CONTAINER_LOST)
        else:
            runs.drop(run)


def _report_end(runs: DockerRuns, run: DockerRun, container: PastContainer, started_at_s: float) -> None:
    before = run.known.observed
    ended = replace(
        before,
        started_at_s=before.started_at_s or started_at_s,
        stopped_at_s=container.ended_at_s,
        exit_code=container.exit_code,
        reason=OUT_OF_MEMORY if container.out_of_memory else None,
        about={**(before.about or {}), "runtimeId": container.id},
    )
    runs.update(run, ended)


async def read_past_containers(api: DockerApi, host_id: str, ordered_at_s: float, clock: Clock) -> dict[str, PastContainer]:
    """Return the container of each run of this data folder that was ordered at `ordered_at_s` or later, by run id."""
    engine_time = (await api.get("/info")).get("SystemTime")  # the engine's clock is used, because the engine may run elsewhere
    now_s = clock.now_s()
    until_s = datetime.fromisoformat(engine_time).timestamp() if engine_time else now_s
    filters = {"type": ["container"], "event": [*ACTIONS], "label": [f"{LABEL_HOST}={host_id}"]}
    since_s = max(1.0, until_s - max(0.0, now_s - ordered_at_s) - EARLIER_S)
    until = since_epoch(engine_time) if engine_time else f"{until_s:.6f}"
    async with api.stream("GET", "/events", since=f"{since_s:.6f}", until=until, filters=filters) as parts:
        return past_containers([event async for event in decode_json_lines(parts)])


def past_containers(events: Iterable[Mapping[str, Any]]) -> dict[str, PastContainer]:
    """Return the container of each run, by run id. `events` must be in the order in which they happened.

    If a run had several containers, return the first container that started. If none started, return the last container.
    """
    found: dict[str, PastContainer] = {}
    for event in events:
        actor, action = event.get("Actor", {}), event.get("Action", "")
        attributes, at_s = actor.get("Attributes", {}), event.get("timeNano", 0) / 1e9
        run_id, container_id = attributes.get(LABEL_RUN), actor.get("ID", "")
        if run_id is None or action not in ACTIONS:
            continue
        container = found.get(run_id)
        if container is None or (container.id != container_id and container.never_ran):
            container = found[run_id] = PastContainer(container_id, is_new=action == "create")
        if container.id != container_id:
            continue
        if action == "start":
            container.started_at_s = at_s
        elif action == "oom":
            container.out_of_memory = True
        elif action == "die":
            container.ended_at_s, container.exit_code = at_s, int(attributes.get("exitCode") or 0)
    return found
