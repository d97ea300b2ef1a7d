"""The page `/metrics` for Prometheus: the GPUs, with the names and labels of NVIDIA's dcgm-exporter, and Corral itself.

Prometheus must send a bearer token, which `corral metrics --token` prints. The token allows access to this page only.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

import corral
from corral import aws
from corral.access.caller import Caller
from corral.core.clock import Clock
from corral.core.errors import ApiError, api_error
from corral.core.transactions import Tx
from corral.fleet.own_metrics import service_of
from corral.model.agent_protocol import SAMPLE_MAX_AGE_S
from corral.model.gpu_metrics import GPU_METRICS, GpuSample, gpu_values
from corral.model.histogram import Histogram, RequestTimes
from corral.model.instance import ec2_id, host_instance_id
from corral.model.task import Task
from corral.server.authentication import Authentication
from corral.server.lanes import Lane
from corral.store import Store
from corral.store.hosts import GpuFacts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Labels = Mapping[str, str]
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
QUEUES_MAX = 1_000  # if there are more queues, the queues with the most messages are listed
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Unauthorized = api_error("Unauthorized", 401)
MethodNotAllowed = api_error("MethodNotAllowed", 405)


class MetricFacts(Struct, frozen=True):
    """The data of the state store for one scrape."""

    gpus: list[GpuFacts]
    holders: dict[str, Task | None]  # leased GPU → its task; None: tasks share the GPU
    held: set[str]  # GPUs that a user has reserved
    hosts: list[tuple[str, bool]]  # (name, is connected)
    tasks: dict[str, int]  # state → number
    paused: int  # how many tasks are paused; their state is RUNNING
    claims: list[tuple[str, int]]  # (pool, number of tasks, instance launches and lines of Batch jobs that wait for capacity)
    queues: list[tuple[Labels, int]]
    placements: Histogram


class MetricsPage:
    def __init__(
        self,
        lanes: Mapping[str, Lane[Any]],
        history: Mapping[str, Sequence[tuple[float, GpuSample]]],
        clock: Clock,
        times: RequestTimes,
        started_s: float,
    ) -> None:
        """`history` maps a GPU id to its samples as (time, sample), oldest first."""
        self._lanes = lanes
        self._history = history
        self._clock = clock
        self._started_s = started_s
        self._times = times

    def exchange(self, request: aws.Request, request_id: str) -> MetricsRequest:
        return MetricsRequest(request, request_id, self)

    async def text(self) -> str:
        facts: MetricFacts = await self._lanes["state"].submit(read_facts, read_only=True)
        page = Exposition()
        await asyncio.get_running_loop().run_in_executor(None, self._write_gpus, page, facts)  # there may be thousands of GPUs
        self._write_work(page, facts)
        self._write_server(page)
        return page.text()

    def _write_gpus(self, page: Exposition, facts: MetricFacts) -> None:
        values: dict[str, list[tuple[Labels, float]]] = {metric.name: [] for metric in GPU_METRICS}
        oldest_s = self._clock.now_s() - SAMPLE_MAX_AGE_S
        gpus = [(_gpu_labels(gpu, facts.holders), gpu) for gpu in facts.gpus]
        states = Counter((gpu.host_name, _gpu_state(gpu, facts)) for gpu in facts.gpus)
        for labels, gpu in gpus:
            past = self._history.get(gpu.gpu_id)
            if not past or past[-1][0] < oldest_s:
                continue  # the host is silent, or the driver cannot reach the GPU
            _, sample = past[-1]
            for metric, value in gpu_values(sample, gpu.memory_mib):
                values[metric.name].append((labels, value))
        for metric in GPU_METRICS:
            page.gauge(metric.name, metric.help, values[metric.name])
        page.gauge("corral_gpu_healthy", "1 if the GPU works, 0 if it has failed and gets no tasks.",
                   [(labels, float(not gpu.has_failed)) for labels, gpu in gpus])  # fmt: skip
        page.gauge(
            "corral_gpus",
            "GPUs by state: free, used (by a task), failed, foreign (used by another program), held (by a user) or excluded.",
            [({"Hostname": host, "state": state}, count) for (host, state), count in sorted(states.items())],
        )

    def _write_work(self, page: Exposition, facts: MetricFacts) -> None:
        page.gauge("corral_hosts", "Hosts by connection: 1 if the agent of the host reports.",
                   [({"Hostname": name}, float(connected)) for name, connected in facts.hosts])  # fmt: skip
        page.gauge("corral_tasks", "Tasks by state. Stopped tasks are counted until they are forgotten.",
                   [({"state": state}, count) for state, count in sorted(facts.tasks.items())])  # fmt: skip
        page.gauge("corral_tasks_paused", "Tasks that are paused. Their state is RUNNING.", [({}, facts.paused)])
        page.gauge("corral_claims_waiting", "Tasks, instance launches and lines of Batch jobs that wait for capacity, by pool.",
                   [({"pool": pool}, count) for pool, count in facts.claims])  # fmt: skip
        page.gauge("corral_sqs_messages", "Messages in SQS queues by state: visible, in_flight or delayed.", facts.queues)
        page.histogram("corral_task_placement_seconds", "Time from the request of a task to its placement on an instance.",
                       [({}, facts.placements)])  # fmt: skip

    def _write_server(self, page: Exposition) -> None:
        page.histogram(
            "corral_api_request_duration_seconds",
            "Time from the head of a request to its response. For a long poll, it includes the wait for messages.",
            [(_action_labels(action), durations) for action, durations in sorted(self._times.durations.items())],
        )
        page.counter(
            "corral_api_errors_total",
            "Responses with an error, by HTTP status.",
            [
                ({**_action_labels(action), "code": str(code)}, count)
                for (action, code), count in sorted(self._times.errors.items())
            ],
        )
        lanes = sorted(self._lanes.items())
        page.histogram("corral_lane_batch_commands", "Commands that share one transaction of a database.",
                       [({"lane": name}, lane.transaction_sizes) for name, lane in lanes])  # fmt: skip
        page.histogram("corral_lane_batch_duration_seconds", "Time that one transaction of a database takes.",
                       [({"lane": name}, lane.transaction_seconds) for name, lane in lanes])  # fmt: skip
        page.gauge("corral_build_info", "The version of Corral.", [({"version": corral.__version__}, 1)])
        use = resource.getrusage(resource.RUSAGE_SELF)
        page.counter("process_cpu_seconds_total", "CPU time of the server process.", [({}, use.ru_utime + use.ru_stime)])
        page.gauge("process_resident_memory_bytes", "Resident memory of the server process.", [({}, _resident_bytes())])
        page.gauge("process_start_time_seconds", "When the server process started.", [({}, self._started_s)])


class MetricsRequest(Struct, eq=False):
    request: aws.Request
    request_id: str
    page: MetricsPage
    action: str = "corral:Metrics"

    async def authenticate(self, authentication: Authentication) -> aws.Identity:
        scheme, _, token = self.request.headers.get("authorization", "").partition(" ")
        identity = authentication.metrics_token(token.strip()) if scheme.lower() == "bearer" else None
        if identity is None:
            raise Unauthorized(
                "Send the header `Authorization: Bearer TOKEN`. `corral metrics --token` prints the token, and "
                "`corral metrics --config` prints a configuration for Prometheus that contains it."
            )
        return identity

    def required(self, caller: Caller) -> None:
        """Return None, because the token is the permission."""

    def denied(self, message: str) -> ApiError:
        return Unauthorized(message)

    async def run(self, caller: Caller) -> aws.Response:
        if self.request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(f"{self.request.method} is not served here; use GET.")
        return aws.Response(200, [("content-type", CONTENT_TYPE)], (await self.page.text()).encode())

    def refuse(self, error: ApiError) -> aws.Response:
        headers = [("content-type", "text/plain; charset=utf-8")]
        if error.status == 401:
            headers.append(("www-authenticate", 'Bearer realm="corral"'))
        return aws.Response(error.status, headers, f"{error}\n".encode())


def read_facts(tx: Tx[Store]) -> MetricFacts:
    """Read what the page needs. The state lane waits for this, so labels and states follow in another thread."""
    store = tx.store
    holders, shared = store.hosts.all_holders()
    return MetricFacts(
        gpus=store.hosts.gpu_facts(),
        holders={gpu_id: None if gpu_id in shared else store.tasks.get(task_ids[0]) for gpu_id, task_ids in holders.items()},
        held=store.instances.held_gpus(),
        hosts=[(host["name"], bool(host["connected"])) for host in store.hosts.all()],
        tasks=store.tasks.listing.counts(),
        paused=store.tasks.listing.paused_count(),
        claims=[(pool, store.fleet.pool(pool).waiting()) for pool in store.fleet.pools_with_claims()],
        queues=list(_queues(tx)),
        placements=store.tasks.placements,
    )


def _gpu_state(gpu: GpuFacts, facts: MetricFacts) -> str:
    return (
        "failed" if gpu.has_failed
        else "used" if gpu.gpu_id in facts.holders
        else "excluded" if gpu.is_excluded
        else "held" if gpu.gpu_id in facts.held
        else "foreign" if gpu.is_foreign
        else "free"
    )  # fmt: skip


def _gpu_labels(gpu: GpuFacts, holders: Mapping[str, Task | None]) -> Labels:
    """Return the labels of dcgm-exporter, and labels for the instance, task, cluster, service and container that use the GPU.

    A GPU that tasks share has the label `shared` instead of the labels of a task, because its load belongs to several tasks.

    dcgm-exporter has the label `modelName`. Corral uses `model_name`, because promtool refuses `modelName`. The configuration that
    `corral metrics --config` prints adds `modelName`.
    """
    labels = {
        "gpu": str(gpu.position), "UUID": gpu.gpu_id, "device": f"nvidia{gpu.position}", "model_name": gpu.model,
        "Hostname": gpu.host_name,
    }  # fmt: skip
    if gpu.is_simulated:
        labels["simulated"] = "true"
    if gpu.instance_id != host_instance_id(gpu.host_id):
        labels["instance_id"] = ec2_id(gpu.instance_id)
    task = holders.get(gpu.gpu_id)
    if task is not None:
        containers = [run.container for run in task.runs if gpu.gpu_id in run.gpu_ids]
        labels |= {"container": containers[0] if containers else "", "task": task.id, "family": task.family}
        labels |= {"cluster": task.cluster, "region": task.region}
        if (service := service_of(task)) is not None:
            labels["service"] = service
    elif gpu.gpu_id in holders:
        labels["shared"] = "true"
    return labels


def _queues(tx: Tx[Store]) -> Iterator[tuple[Labels, int]]:
    levels = sorted(tx.store.queues.levels(tx.now_s), key=lambda each: -sum(each[2:]))[:QUEUES_MAX]
    for region, name, visible, in_flight, delayed in sorted(levels):
        for state, count in (("visible", visible), ("in_flight", in_flight), ("delayed", delayed)):
            yield {"region": region, "queue": name, "state": state}, count


def _action_labels(action: str) -> Labels:
    service, _, operation = action.partition(":")
    return {"service": service, "operation": operation}


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE_BYTES


class Exposition:
    """A page in the text format of Prometheus."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def gauge(self, name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> None:
        self._family(name, about, "gauge", samples)

    def counter(self, name: str, about: str, samples: Iterable[tuple[Labels, float]]) -> None:
        self._family(name, about, "counter", samples)

    def histogram(self, name: str, about: str, samples: Iterable[tuple[Labels, Histogram]]) -> None:
        histograms = list(samples)
        if not histograms:
            return
        self._head(name, about, "histogram")
        for labels, histogram in histograms:
            counts, so_far = list(histogram.counts), 0  # a copy, because another thread may add values meanwhile
            for bound, count in zip([*map(_number, histogram.bounds), "+Inf"], counts):
                so_far += count
                self._lines.append(f"{name}_bucket{_labels({**labels, 'le': bound})} {so_far}")
            self._lines.append(f"{name}_sum{_labels(labels)} {_number(histogram.sum)}")
            self._lines.append(f"{name}_count{_labels(labels)} {so_far}")

    def text(self) -> str:
        return "\n".join([*self._lines, ""])

    def _family(self, name: str, about: str, kind: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Write a metric with all its samples. A metric without samples is left out."""
        lines = [f"{name}{_labels(labels)} {_number(value)}" for labels, value in samples]
        if lines:
            self._head(name, about, kind)
            self._lines += lines

    def _head(self, name: str, about: str, kind: str) -> None:
        help_text = about.replace("\\", "\\\\").replace("\n", "\\n")
        self._lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
