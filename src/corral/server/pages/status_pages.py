"""Corral's own pages, which the commands of `corral` read.

`/_corral/health` is public. `/_corral/status` is for `corral status` and `corral top`. `/_corral/runs` is for `corral ps`
(`runs_page.py`). `/_corral/instances` is for `corral instances` (`instance_pages.py`). `/_corral/fleet` is for `corral fleet`
(`fleet_page.py`). `/_corral/cost` is for `corral cost`. `/_corral/metrics-token` is for `corral metrics`. `/_corral/gpu` is for
`corral gpu` (`gpu_page.py`). `/_corral/spot` is for `corral spot` (`spot_page.py`). `/_corral/revoke` is for `corral revoke`
(`session_revocation.py`). `/_corral/stop-tasks` is for `corral down` (`stop_tasks_page.py`). `/_corral/signal` is for Ctrl-C in
`corral run` (`signal_page.py`). `/_corral/history` is for `corral history`, `show`, `rerun` and `logs` (`history_page.py`).
`/_corral/logs` says which logs are not complete, for `corral logs` and `run`. `/_corral/outputs` lists the files with the output of
a task, for `corral show` (both: `log_page.py`). `/_corral/set` is for `corral set` (`set_page.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from msgspec import Struct
from msgspec.structs import asdict

import corral
from corral import aws
from corral.access.caller import Caller
from corral.access.sessions import metrics_token
from corral.core.errors import ApiError, api_error
from corral.core.ids import Ids
from corral.core.transactions import Tx
from corral.decide.placement.place import standing_reservation
from corral.decide.placement.start_estimates import estimates
from corral.model.agent_protocol import HEARTBEAT_S
from corral.model.gpu_metrics import GpuSample
from corral.model.instance import HOST_POOL, ec2_id, host_instance_id
from corral.model.numbers import whole_number
from corral.model.placement import INSTANCE, JOB, TASK, Claim
from corral.model.settings import Settings
from corral.model.task import Task
from corral.server.agents.connections import Agents
from corral.server.authentication import ANONYMOUS, Authentication
from corral.server.lanes import Lane
from corral.server.pages.fleet_page import fleet_page
from corral.server.pages.gpu_page import GpuPage, GpuRequest
from corral.server.pages.history_page import history_content
from corral.server.pages.instance_pages import instances_page, instances_status
from corral.server.pages.log_page import log_states, output_files
from corral.server.pages.runs_page import WAITING_DEFAULT, needs_of, runs_page
from corral.server.pages.set_page import SetRequest
from corral.server.pages.signal_page import SignalPage, TaskSignalRequest
from corral.server.pages.spot_page import SpotRequest
from corral.server.pages.stop_tasks_page import StopTasksRequest
from corral.server.session_revocation import RevokeRequest, SessionRevocation
from corral.server.task_permissions import RequiredOperation
from corral.services.ecs.queue_reasons import why_queued
from corral.services.ecs.task_description import WaitReasons
from corral.store import Store
from corral.telemetry import LogStore

FLEET_TASKS_MAX = 100  # at most this many tasks can be named in a request for the page of a fleet
TASKS_SHOWN = 20  # the default of the query parameter `tasks` of the status page (`shown` in `status_of`)
TASKS_SHOWN_MAX = 200
HISTORY_STEP_S = 2
HISTORY_POINTS = 60
SAMPLE_STALE_S = 2 * HEARTBEAT_S  # a sample older than this is not used; an idle GPU is sampled once per heartbeat
GpuHistory = Mapping[str, Iterable[tuple[float, GpuSample]]]  # GPU id → (time, sample), oldest first
PageContent = Callable[[], Awaitable[dict[str, Any]]]
PageNotFound = api_error("NotFound", 404)
PageDenied = api_error("AccessDenied", 403)
InvalidQuery = api_error("InvalidQuery", 400)
PAGES = (
    "health", "status", "runs", "instances", "fleet", "cost", "metrics-token", "gpu", "spot", "revoke", "history", "logs",
    "outputs", "set", "signal", "stop-tasks", "objects",
)  # fmt: skip


class StatusPages:
    def __init__(
        self, state: Lane[Store], logs: Lane[LogStore], settings: Settings, ids: Ids,
        status: Callable[[Tx[Store], int], dict[str, Any]], revocation: SessionRevocation, agents: Agents, outputs: Path,
    ) -> None:  # fmt: skip
        self._state = state
        self._logs = logs
        self._outputs = outputs
        self._settings = settings
        self._ids = ids
        self._status_of = status
        self._revocation = revocation
        self._gpu_page = GpuPage(state, agents)
        self._signal_page = SignalPage(state, agents)

    def exchange(
        self, request: aws.Request, request_id: str
    ) -> PageRequest | RevokeRequest | GpuRequest | SpotRequest | StopTasksRequest | TaskSignalRequest | SetRequest:
        if request.path == "/_corral/health":
            return PageRequest("corral:Health", request, request_id, _health)
        if request.path == "/_corral/status":
            return PageRequest("corral:Status", request, request_id, partial(self._status, request))
        if request.path == "/_corral/runs":
            return PageRequest("corral:Runs", request, request_id, partial(self._runs, request))
        if request.path == "/_corral/instances":
            return PageRequest("corral:Instances", request, request_id, partial(self._instances, request))
        if request.path == "/_corral/fleet":
            return PageRequest("corral:Fleet", request, request_id, partial(self._fleet, request))
        if request.path == "/_corral/cost":
            return PageRequest("corral:Cost", request, request_id, partial(self._cost, request))
        if request.path == "/_corral/history":
            return PageRequest("corral:History", request, request_id, partial(self._history, request))
        if request.path == "/_corral/logs":
            return PageRequest("corral:Logs", request, request_id, partial(self._log_states, request))
        if request.path == "/_corral/outputs":
            return PageRequest("corral:Outputs", request, request_id, partial(self._output_files, request))
        if request.path == "/_corral/metrics-token":
            return PageRequest("corral:MetricsToken", request, request_id, self._metrics_token)
        if request.path == "/_corral/gpu":
            return self._gpu_page.exchange(request, request_id)
        if request.path == "/_corral/spot":
            return SpotRequest(request, request_id, self._state)
        if request.path == "/_corral/stop-tasks":
            return StopTasksRequest(request, request_id, self._state)
        if request.path == "/_corral/revoke":
            return self._revocation.exchange(request, request_id)
        if request.path == "/_corral/signal":
            return self._signal_page.exchange(request, request_id)
        if request.path == "/_corral/set":
            return SetRequest(request, request_id, self._state)
        pages = ", ".join(f"/_corral/{name}" for name in PAGES)
        raise PageNotFound(f"Corral has no page {request.path}: its pages are {pages}.")

    async def _status(self, request: aws.Request) -> dict[str, Any]:
        tasks = _whole_number(request, "tasks", "/_corral/status?tasks=20")
        shown = TASKS_SHOWN if tasks is None else min(tasks, TASKS_SHOWN_MAX)
        status: dict[str, Any] = await self._state.submit(lambda tx: self._status_of(tx, shown))
        return status

    async def _runs(self, request: aws.Request) -> dict[str, Any]:
        region, cluster = _query(request, "region"), _query(request, "cluster")
        example = "/_corral/runs?region=us-east-1&cluster=default&limit=100"
        if not region or not cluster:
            raise InvalidQuery(f"region or cluster is missing: name both, as in {example}.")
        limit = _whole_number(request, "limit", example)
        limit = WAITING_DEFAULT if limit is None else limit
        return await runs_page(self._state, self._settings, self._ids, region, cluster, limit)

    async def _metrics_token(self) -> dict[str, Any]:
        return {"token": metrics_token(self._settings.session_key, self._settings.sessions.of_root)}

    async def _instances(self, request: aws.Request) -> dict[str, Any]:
        region, after = _query(request, "region"), _query(request, "after") or ""
        if not region:
            raise InvalidQuery("region is missing: name the region of the instances, as in /_corral/instances?region=us-east-1.")
        page: dict[str, Any] = await self._state.submit(lambda tx: instances_page(tx, region, after))
        return page

    async def _fleet(self, request: aws.Request) -> dict[str, Any]:
        query = parse_qs(request.query)
        region, queue, tasks = query.get("region"), query.get("queue"), query.get("task", [])[:FLEET_TASKS_MAX]
        if not region or not queue:
            raise InvalidQuery("region or queue is missing: name both, as in /_corral/fleet?region=us-east-1&queue=work.")
        page: dict[str, Any] = await self._state.submit(lambda tx: fleet_page(tx, region[0], queue[0], tasks))
        return page

    async def _cost(self, request: aws.Request) -> dict[str, Any]:
        """Report the instance-hours and the GPU-hours of tasks since a time (`since`), of the last seconds (`last`), or all.

        With `tasks=no`, the report has no GPU-hours of tasks.

        There may be many rows, so a reader thread reads them.
        """
        since_s, last_s = (_whole_number(request, name, "/_corral/cost?last=86400") for name in ("since", "last"))
        reads_tasks = _query(request, "tasks") != "no"

        def read(tx: Tx[Store]) -> dict[str, Any]:
            from corral.fleet.instance_cost import cost_report  # imported here, because it loads EC2's modules

            from_s = max(0.0, tx.now_s - last_s) if last_s is not None else since_s
            return cost_report(tx, from_s, reads_tasks=reads_tasks)

        return await self._state.read(read, self._settings, self._ids)

    async def _history(self, request: aws.Request) -> dict[str, Any]:
        """Return recorded tasks. A filter may read many rows, so a reader thread does this."""
        return await self._state.read(history_content(request.query), self._settings, self._ids)

    async def _log_states(self, request: aws.Request) -> dict[str, Any]:
        return self._logs.read_now(log_states(request.body), self._settings, self._ids)

    async def _output_files(self, request: aws.Request) -> dict[str, Any]:
        return await asyncio.to_thread(output_files, self._outputs, _query(request, "task"))


class PageRequest(Struct, eq=False):
    action: str
    request: aws.Request
    request_id: str
    content: PageContent

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        return ANONYMOUS if self.content is _health else authentication.signature(self.request)

    def required(self, caller: Caller) -> RequiredOperation:
        return RequiredOperation("corral", self.action.partition(":")[2], dict)

    def denied(self, message: str) -> ApiError:
        return PageDenied(message)

    async def run(self, caller: Caller) -> aws.Response:
        return aws.Response(200, [("content-type", "application/json")], orjson.dumps(await self.content()))

    def refuse(self, error: ApiError) -> aws.Response:
        return aws.serialize_refusal(self.request, error, self.request_id)


def _query(request: aws.Request, name: str) -> str | None:
    """Return the first value of a parameter in the query. Return None if the query does not have the parameter."""
    return next(iter(parse_qs(request.query, keep_blank_values=True).get(name, ())), None)


def _whole_number(request: aws.Request, name: str, example: str) -> int | None:
    text = _query(request, name)
    number = whole_number(text) if text is not None else None
    if text is not None and number is None:
        raise InvalidQuery(f"{name} '{text}' is not valid: pass a whole number, as in {example}.")
    return number


async def _health() -> dict[str, Any]:
    return {"status": "ok", "version": corral.__version__}


def status_of(
    tx: Tx[Store], samples: dict[str, GpuSample], about: dict[str, Any], history: GpuHistory | None = None,
    failing: Sequence[dict[str, Any]] = (), problems: Sequence[dict[str, Any]] = (), quarantine: Sequence[dict[str, Any]] = (),
    shown: int = TASKS_SHOWN,
) -> dict[str, Any]:  # fmt: skip
    """Return the content of the status page: hosts, their GPUs, running tasks, and what waits for capacity.

    The page has at most `shown` running tasks, the first `shown` claims of each pool, and at most `shown` tasks that their tags
    hold back. A claim is a task, an instance launch or a line of Batch jobs that waits for capacity in a pool, which is a set of
    instances. `failing` lists the hand-overs (messages between two databases) that have failed and will be retried. `problems`
    lists the agents and spawners that do not respond. `quarantine` counts, by date, the blobs without a row that will be erased
    later.
    """
    hosts, reserved = [], _reserved_gpus(tx)
    for host in tx.store.hosts.all():
        slot = tx.store.fleet.pool(HOST_POOL).slot(host_instance_id(host["id"]))
        hosts.append(
            {
                "id": host["id"],
                "name": host["name"],
                "connected": bool(host["connected"]),
                "docker": host["docker"],
                "cpuUnits": {"total": slot.total.cpu_units, "free": slot.cpu_units},
                "memoryMiB": {"total": slot.total.memory_mib, "free": slot.memory_mib},
                "gpus": _gpus(tx, host["id"], samples, history or {}, reserved),
                "links": tx.store.hosts.links(host["id"]),
            }
        )
    running = [_running(tx.store.tasks.get(task_id)) for task_id in tx.store.tasks.oldest_placed(shown)]
    waiting = [row for pool in tx.store.fleet.pools_with_claims() for row in _line(tx, pool, shown)]
    waiting += [_behind(tx, tx.store.tasks.get(task_id)) for task_id in tx.store.task_queue.first_not_admitted(shown)]
    counts = tx.store.tasks.counts()
    types = [mapping.line(name) for name, mapping in sorted(tx.settings.instance_types.items())]
    return {
        "version": corral.__version__, **about, "tasks": counts, "hosts": hosts, **instances_status(tx), "running": running,
        "waiting": waiting, "failingHandovers": list(failing), "problems": list(problems), "quarantine": list(quarantine),
        "instanceTypes": types,
    }  # fmt: skip


def _line(tx: Tx[Store], pool_name: str, shown: int) -> list[dict[str, Any]]:
    """Describe the first `shown` claims of a pool, with their places. Also describe other instance launches without a place.

    The place of a claim is its position in the waiting list of the pool. Of the other launches with equal demands, only the first
    is described, and at most `shown` of them.
    """
    pool = tx.store.fleet.pool(pool_name)
    first = list(enumerate(islice(pool.in_order(), shown), 1))
    listed = {claim.id for _, claim in first}
    launches = [(None, claim) for claim in pool.heads() if claim.kind == INSTANCE and claim.id not in listed]
    reasons, starts_s = WaitReasons(tx), estimates(pool, tx.now_s)
    return [
        {
            **_claimant(tx, claim),
            "place": place,
            "needs": needs_of(claim.demand),
            "startsAtS": starts_s.get(claim.id),
            "reason": reasons.reason(pool_name, claim),
        }
        for place, claim in [*first, *launches[:shown]]
    ]


def _behind(tx: Tx[Store], task: Task | None) -> dict[str, Any]:
    """Describe a task that its tags hold back. Such a task has no claim, so it has no place."""
    assert task is not None
    needs, reason = needs_of(task.demand), why_queued(tx, task)
    return {**_task(task), "sinceS": task.created_at_s, "place": None, "needs": needs, "startsAtS": None, "reason": reason}


def _reserved_gpus(tx: Tx[Store]) -> dict[str, dict[str, Any]]:
    """Return the free GPUs that the scheduler keeps for a claim which needs more than is free, each with this claim."""
    found: dict[str, dict[str, Any]] = {}
    for name in tx.store.fleet.pools_with_claims():
        pool = tx.store.fleet.pool(name)
        reservation = standing_reservation(pool)
        if reservation is not None and reservation.claim.demand.gpus:
            claimant = _claimant(tx, reservation.claim)
            found |= {gpu_id: claimant for slot_id in reservation.wanted for gpu_id in pool.slot(slot_id).gpus}
    return found


def _gpus(
    tx: Tx[Store], host_id: str, samples: dict[str, GpuSample], history: GpuHistory, reserved: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Describe every GPU of a host.

    The description says which task has the GPU, which fault it has, and whether it is excluded, held by a user, reserved for a
    claim, or used by other processes. If several tasks share a GPU, `task` is the first of them, and `sharedBy` lists all of them.
    """
    holders = {
        gpu_id: [task for task_id in task_ids if (task := tx.store.tasks.get(task_id)) is not None]
        for gpu_id, task_ids in tx.store.hosts.holders(host_id).items()
    }
    allocated_mib = tx.store.hosts.allocated_mib(host_id)
    owners, foreign = tx.store.hosts.gpu_owners(host_id), tx.store.hosts.foreign(host_id)
    faults = tx.store.hosts.faults(host_id)
    own_id, holds = host_instance_id(host_id), tx.store.instances.holds_on_host(host_id)
    devices = sorted([*tx.store.hosts.gpus(host_id), *tx.store.hosts.gpus(host_id, excluded=True)], key=lambda gpu: gpu.index)
    return [
        {
            **_gpu(asdict(gpu), next(iter(holders.get(gpu.gpu_id, ())), None), samples.get(gpu.gpu_id)),
            "allocatedMiB": allocated_mib.get(gpu.gpu_id),
            "sharedBy": [_task(task) for task in holders[gpu.gpu_id]] if gpu.gpu_id in allocated_mib else [],
            "excluded": gpu.excluded,
            "instance": ec2_id(owners[gpu.gpu_id]) if owners[gpu.gpu_id] != own_id else None,
            "held": holds.get(gpu.gpu_id),
            "fault": faults[gpu.gpu_id].text if gpu.gpu_id in faults else None,
            "reservedFor": reserved.get(gpu.gpu_id),
            "foreign": [{"pid": pid, "name": name} for pid, name in foreign.get(gpu.gpu_id, ())],
            "history": _history(list(history.get(gpu.gpu_id, ())), tx.now_s),
        }
        for gpu in devices
    ]


def _gpu(device: dict[str, Any], holder: Task | None, sample: GpuSample | None) -> dict[str, Any]:
    return {
        "id": device["gpu_id"],
        "index": device["index"],
        "model": device["model"],
        "memoryMiB": device["memory_mib"],
        "simulated": device["simulated"],
        "task": holder.id if holder else None,
        "taskDefinition": _definition(holder) if holder else None,
        "taskName": holder.name if holder else None,
        "arrayIndex": holder.array_index if holder else None,
        "utilizationPercent": sample.utilization_percent if sample else None,
        "memoryUsedMiB": sample.memory_used_mib if sample else None,
        "powerW": sample.power_w if sample else None,
        "temperatureC": sample.temperature_c if sample else None,
    }


def _claimant(tx: Tx[Store], claim: Claim) -> dict[str, Any]:
    if claim.kind == TASK:
        task = tx.store.tasks.get(claim.id)
        assert task is not None
        return {**_task(task), "sinceS": task.created_at_s}
    if claim.kind == JOB:
        line, _ = tx.store.job_lines.line_of(claim)
        return {"job": line.head, "jobQueue": line.queue, "jobs": line.count, "sinceS": line.since_s}
    instance = tx.store.instances.get(claim.id)
    assert instance is not None
    return {"instance": ec2_id(instance.id), "instanceType": instance.type, "sinceS": instance.created_at_s}


def _task(task: Task | None) -> dict[str, Any]:
    assert task is not None, "the same transaction has listed the task"
    place = {"region": task.region, "cluster": task.cluster}
    return {"task": task.id, "taskDefinition": _definition(task), "taskName": task.name, "arrayIndex": task.array_index, **place}


def _running(task: Task | None) -> dict[str, Any]:
    assert task is not None
    state = "STOPPING" if task.desired.value == "STOPPED" else task.state.value
    gpu_ids = list(dict.fromkeys(gpu_id for run in task.runs for gpu_id in run.gpu_ids))
    since_s, gpu_memory_mib = task.started_at_s or task.created_at_s, task.demand.gpu_memory_mib
    return {**_task(task), "state": state, "sinceS": since_s, "gpuIds": gpu_ids, "gpuMemoryMiB": gpu_memory_mib}


def _definition(task: Task) -> str:
    return task.definition_arn.rpartition("/")[2]


def _history(past: list[tuple[float, GpuSample]], now_s: float) -> dict[str, Any]:
    """Return the values at HISTORY_POINTS times, HISTORY_STEP_S apart, oldest first.

    The value at a time is the last sample before this time. It is None if this sample is older than SAMPLE_STALE_S.
    """
    busy: list[float | None] = []
    memory: list[int | None] = []
    at = 0
    for point in range(HISTORY_POINTS):
        until_s = now_s - (HISTORY_POINTS - 1 - point) * HISTORY_STEP_S
        while at < len(past) and past[at][0] <= until_s:
            at += 1
        known = at > 0 and past[at - 1][0] > until_s - SAMPLE_STALE_S
        busy.append(past[at - 1][1].utilization_percent if known else None)
        memory.append(past[at - 1][1].memory_used_mib if known else None)
    return {"stepS": HISTORY_STEP_S, "utilizationPercent": busy, "memoryUsedMiB": memory}
