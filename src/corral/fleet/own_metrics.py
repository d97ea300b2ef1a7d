"""The metrics that Corral itself publishes: queues, clusters, services, paused tasks and GPUs.

GPU metrics have the names that NVIDIA's DCGM uses. They are published in two namespaces: `Corral/GPU` and COLLECTOR_NAMESPACE. On
ECS, the CloudWatch agent reads metrics from NVIDIA's exporter and writes them to COLLECTOR_NAMESPACE.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.fleet.clusters import fargate_pool, slots_of
from corral.fleet.host_options import host_clusters
from corral.model.agent_protocol import Measured
from corral.model.ecs_service import STARTED_BY
from corral.model.gpu_metrics import CLOUDWATCH_METRICS, GpuMetric, GpuPart, GpuSample, gpu_values
from corral.model.metric import COLLECTOR_NAMESPACE, GPU_NAMESPACE, GPU_NAMESPACES, Dimensions, Metric, Point, Sample
from corral.model.placement import Slot
from corral.model.queue import QueueActivity
from corral.model.run import RunState, Usage, run_of_attempt
from corral.model.task import Task, TaskState
from corral.model.units import CPU_UNITS_PER_CORE, MIB
from corral.store import Store

# A task that has run for less than this time gets no series of its own in COLLECTOR_NAMESPACE. Series are kept for 15 months, and
# many short tasks would create very many series.
SERIES_OF_TASK_AFTER_S = 10.0
SERIES_CACHED_MAX = 20_000  # GPUs, clusters and tasks whose series are cached

Target = tuple[str, str, Dimensions]  # (region, namespace, dimensions)


class TaskReading(Struct, frozen=True):
    """The load of a GPU that a task has, and the metric series that get it: those of the task, its service and its family."""

    task_id: str
    started_at_s: float | None
    targets: tuple[Target, ...]
    # The load that the task causes, if it shares the GPU. Without a part, a task that shares the GPU has no load of its own.
    shares: bool = False
    part: GpuPart | None = None


class GpuReading(Struct, frozen=True):
    """A sample of a GPU, and the metric series that get this sample: those of the GPU and its clusters.

    If one task has the GPU, its series get the same sample. If tasks share the GPU, the series of each task get the load that this
    task causes. Otherwise a scaling policy on such a metric would add tasks up to its maximum: the load of the whole GPU does not
    fall when further tasks share the GPU.
    """

    sample: GpuSample
    memory_mib: int
    of_gpu: tuple[Target, ...]
    of_clusters: tuple[Target, ...]  # other GPUs of these clusters have the same ones
    tasks: tuple[TaskReading, ...] = ()
    instance_id: str = ""  # the EC2 instance that owns the GPU; empty: none

    @property
    def is_idle(self) -> bool:
        """Whether no task has the GPU, and nothing else uses it. The load of such a GPU does not change between two samples."""
        return not self.tasks and not self.sample.utilization_percent


class Utilization(Struct, frozen=True):
    """The percentages of CPU and memory that were used between two measurements."""

    of_cluster: dict[tuple[str, str], dict[str, float]]  # (region, cluster) → metric name → percentage
    # (region, cluster, service) → metric name → one percentage for each task
    of_service: dict[tuple[str, str, str], dict[str, list[float]]]


def service_of(task: Task) -> str | None:
    of_service = task.started_by is not None and task.started_by.startswith(STARTED_BY)
    return task.group.removeprefix("service:") if of_service else None


# Queues


def queue_level(queue: QueueActivity) -> QueueActivity:
    """The activity of a queue without its event counts. Only the levels are left, such as the number of visible messages."""
    return replace(queue, sent=0, sent_bytes=0, received=0, deleted=0, empty_receives=0)


def level_points(queue: QueueActivity, at_s: float, seconds: float) -> Iterator[Point]:
    """Datapoints for the levels of a queue. The levels did not change for `seconds`."""
    levels = {
        "ApproximateNumberOfMessagesVisible": (queue.visible, "Count"),
        "ApproximateNumberOfMessagesNotVisible": (queue.in_flight, "Count"),
        "ApproximateNumberOfMessagesDelayed": (queue.delayed, "Count"),
        "ApproximateAgeOfOldestMessage": (queue.oldest_age_s, "Seconds"),
    }
    for name, (level, unit) in levels.items():
        yield Point(_queue_metric(queue, name), at_s, _weighted(level, seconds), unit, 1)


def event_points(queue: QueueActivity, at_s: float) -> Iterator[Point]:
    """Datapoints for the events that `queue` counts."""
    events = {
        "NumberOfMessagesSent": queue.sent,
        "NumberOfMessagesReceived": queue.received,
        "NumberOfMessagesDeleted": queue.deleted,
        "NumberOfEmptyReceives": queue.empty_receives,
    }
    for name, count in events.items():
        yield Point(_queue_metric(queue, name), at_s, float(count), "Count", 1)
    if queue.sent:  # each sent message counts with the average size
        sizes = [(queue.sent_bytes / queue.sent, float(queue.sent))]
        yield Point(_queue_metric(queue, "SentMessageSize"), at_s, sizes, "Bytes", 1)


def _queue_metric(queue: QueueActivity, name: str) -> Metric:
    return Metric(queue.region, "AWS/SQS", name, (("QueueName", queue.name),))


# Clusters


def reservations(tx: Tx[Store]) -> dict[tuple[str, str], dict[str, float]]:
    """The percentages of CPU, memory and GPUs that tasks have reserved, by (region, cluster)."""
    of_hosts = {(region, cluster) for region in tx.store.clusters.measured_regions() for cluster in host_clusters(tx)}
    clusters = of_hosts | tx.store.instances.joined_clusters()
    return {key: _reserved_percent(slots_of(tx, *key)) for key in sorted(clusters)}


def _reserved_percent(slots: Iterable[Slot]) -> dict[str, float]:
    slots = [slot for slot in slots if slot.connected]
    totals = {
        "CPUReservation": (sum(slot.cpu_units for slot in slots), sum(slot.total.cpu_units for slot in slots)),
        "MemoryReservation": (sum(slot.memory_mib for slot in slots), sum(slot.total.memory_mib for slot in slots)),
        "GPUReservation": (sum(len(slot.gpus) for slot in slots), sum(len(slot.positions) for slot in slots)),
    }
    return {name: 100.0 - 100.0 * free / total for name, (free, total) in totals.items() if total}


def cluster_points(percentages: Mapping[str, float], region: str, cluster: str, at_s: float, seconds: float) -> Iterator[Point]:
    for name, percent in percentages.items():
        metric = Metric(region, "AWS/ECS", name, (("ClusterName", cluster),))
        yield Point(metric, at_s, _weighted(percent, seconds), "Percent", 1)


# Paused tasks


def paused_tasks(tx: Tx[Store]) -> dict[tuple[str, str, str], int]:
    """Return how many tasks are paused in each cluster: (region, cluster, "") → number, and (region, cluster, task id) → 1."""
    found: dict[tuple[str, str, str], int] = {}
    for task_id in tx.store.tasks.with_pause:
        task = tx.store.tasks.get(task_id)
        if task is not None and task.pause is not None and task.pause.is_active:
            of_cluster = task.region, task.cluster, ""
            found[of_cluster] = found.get(of_cluster, 0) + 1
            found[task.region, task.cluster, task.id] = 1
    return found


def paused_points(number: int, key: tuple[str, str, str], at_s: float, seconds: float) -> Iterator[Point]:
    """Yield the datapoint of `paused_tasks`. Its sum is the time in seconds that the tasks were paused."""
    region, cluster, task_id = key
    dimensions: Dimensions = (("ClusterName", cluster), *((("TaskId", task_id),) if task_id else ()))
    yield Point(Metric(region, GPU_NAMESPACE, "PausedSeconds", dimensions), at_s, _weighted(number, seconds), "Seconds", 1)


# Use of clusters and services


def utilizations(tx: Tx[Store], measured: Sequence[Measured]) -> Utilization:
    """The percentages of CPU and memory that tasks used between two measurements.

    The use of a cluster is relative to the capacity of its instances. The use of a service's task is relative to the CPU and the
    memory that its task definition specifies.
    """
    capacities: dict[tuple[str, str], tuple[float, int]] = {}
    found = Utilization({}, {})
    for task, cores, memory_bytes in _used_by_tasks(tx, measured):
        cluster = task.region, task.cluster
        if cluster not in capacities:
            capacities[cluster] = _capacity(tx, *cluster)
        of_all = _percentages(cores, memory_bytes, *capacities[cluster])
        if of_all:
            sums = found.of_cluster.setdefault(cluster, dict.fromkeys(of_all, 0.0))
            for name, percent in of_all.items():
                sums[name] += percent
        service = service_of(task)
        if service is not None and task.state is TaskState.RUNNING:
            specified = _specified(task, *capacities[cluster])
            lists = found.of_service.setdefault((*cluster, service), {})
            for name, percent in _percentages(cores, memory_bytes, *specified).items():
                lists.setdefault(name, []).append(percent)
    return found


def service_points(
    used: Mapping[str, Sequence[float]], region: str, cluster: str, service: str, at_s: float, seconds: float
) -> Iterator[Point]:
    """Return the datapoints of a service. Each task is one sample, so the minimum and the maximum are values of single tasks."""
    for name, percentages in used.items():
        metric = Metric(region, "AWS/ECS", name, (("ClusterName", cluster), ("ServiceName", service)))
        yield Point(metric, at_s, [(percent, float(round(seconds))) for percent in percentages], "Percent", 1)


def _percentages(cores: float, memory_bytes: float, all_cores: float, all_memory_bytes: int) -> dict[str, float]:
    if not all_cores or not all_memory_bytes:
        return {}
    return {"CPUUtilization": 100.0 * cores / all_cores, "MemoryUtilization": 100.0 * memory_bytes / all_memory_bytes}


def _specified(task: Task, cluster_cores: float, cluster_memory_bytes: int) -> tuple[float, int]:
    """CPU cores and bytes of memory in the task definition. The capacity of the cluster replaces a value that is not specified."""
    return (
        task.demand.cpu_units / CPU_UNITS_PER_CORE or cluster_cores,
        task.demand.memory_mib * MIB or cluster_memory_bytes,
    )


def _used_by_tasks(tx: Tx[Store], measured: Sequence[Measured]) -> list[tuple[Task, float, int]]:
    """Return (task, CPU cores, bytes of memory) for each task with a container that was measured twice."""
    found: dict[str, tuple[Task, float, int]] = {}
    for attempt, now, before in _pairs(measured):
        task = tx.store.tasks.of_run(run_of_attempt(attempt))
        if task is None:
            continue
        cpu_s = now.cpu_user_s + now.cpu_system_s - before.cpu_user_s - before.cpu_system_s
        _, cores, memory_bytes = found.get(task.id, (task, 0.0, 0))
        cores += max(0.0, cpu_s) / (now.at_s - before.at_s)
        found[task.id] = task, cores, memory_bytes + now.memory_bytes
    return list(found.values())


def _capacity(tx: Tx[Store], region: str, cluster: str) -> tuple[float, int]:
    """CPU cores and bytes of memory of a cluster's connected instances.

    If the cluster has no instances, the result is the capacity of the hosts on which its Fargate tasks run.
    """
    slots = slots_of(tx, region, cluster) or tx.store.fleet.pool(fargate_pool(tx, cluster)).slots()
    connected = [slot.total for slot in slots if slot.connected]
    cores = sum(total.cpu_units for total in connected) / CPU_UNITS_PER_CORE
    return cores, sum(total.memory_mib for total in connected) * MIB


def _pairs(measured: Sequence[Measured]) -> Iterator[tuple[str, Usage, Usage]]:
    """Yield (attempt id, usage now, usage before) for each run that was measured twice."""
    for each in measured:
        for attempt, now in each.now.items():
            before = each.before.get(attempt)
            if before is not None and now.at_s > before.at_s:
                yield attempt, now, before


# GPUs


def gpu_readings(
    tx: Tx[Store], samples: Mapping[str, Sequence[tuple[float, GpuSample]]]
) -> Iterator[list[tuple[float, GpuReading]]]:
    """Yield (time, reading) for each sample of a GPU. `samples` maps a GPU id to (time, sample), oldest first.

    The metrics of a GPU and of a host's cluster are published in the regions in use.
    """
    regions = tx.store.clusters.measured_regions() if samples else []
    if not regions:
        return
    holders = tx.store.hosts.holders_of(samples)
    known: dict[tuple[tuple[str, str], ...], tuple[Target, ...]] = {}
    for gpu in tx.store.hosts.named_gpus(samples):
        named: Dimensions = (("Hostname", gpu.host_name), ("UUID", gpu.gpu_id))
        owner = tx.store.instances.get(gpu.instance_id)
        assert owner is not None
        clusters = [(region, owner.cluster) for region in regions] if owner.is_host else [(owner.region, owner.cluster)]
        holding = [task for task_id in holders.get(gpu.gpu_id, ()) if (task := tx.store.tasks.get(task_id)) is not None]
        clusters += [(task.region, task.cluster) for task in holding]
        key = tuple(clusters)
        if key not in known:
            known[key] = _cluster_targets(key)
        of_gpu = tuple([(region, GPU_NAMESPACE, named) for region in regions])
        of_tasks = [(task, tuple(dict.fromkeys(_task_targets(tx, task, gpu.gpu_id)))) for task in holding]
        instance_id = "" if owner.is_host else owner.id
        yield [
            (at_s, GpuReading(sample, gpu.memory_mib, of_gpu, known[key], _task_readings(sample, of_tasks), instance_id))
            for at_s, sample in samples[gpu.gpu_id]
        ]


def _cluster_targets(clusters: Iterable[tuple[str, str]]) -> tuple[Target, ...]:
    named = [(region, cluster) for region, cluster in dict.fromkeys(clusters) if cluster]
    return tuple([(region, namespace, (("ClusterName", cluster),)) for namespace in GPU_NAMESPACES for region, cluster in named])


def _task_readings(sample: GpuSample, tasks: Sequence[tuple[Task, tuple[Target, ...]]]) -> tuple[TaskReading, ...]:
    return tuple([_task_reading(task, targets, sample, shares=len(tasks) > 1) for task, targets in tasks]) if tasks else ()


def _task_reading(task: Task, targets: tuple[Target, ...], sample: GpuSample, *, shares: bool) -> TaskReading:
    parts = [part for run in task.runs if (part := (sample.parts or {}).get(run.attempt_id)) is not None]
    if not shares or not parts:
        return TaskReading(task.id, task.started_at_s, targets, shares)
    memory = [part.memory_used_mib for part in parts if part.memory_used_mib is not None]
    whole = GpuPart(sum(part.utilization_percent for part in parts), sum(memory) if memory else None)
    return TaskReading(task.id, task.started_at_s, targets, shares, whole)


def _task_targets(tx: Tx[Store], task: Task, gpu_id: str) -> Iterator[Target]:
    """Yield the series for the GPU of a task: of its service, family, task and container."""
    yield task.region, GPU_NAMESPACE, (("ClusterName", task.cluster), ("TaskId", task.id))
    cluster = ("ClusterName", task.cluster)
    sets: list[Dimensions] = [(cluster, ("TaskDefinitionFamily", task.family))]
    service = service_of(task)
    if service is not None:
        sets.append((cluster, ("ServiceName", service)))
    if task.started_at_s is not None and tx.now_s - task.started_at_s >= SERIES_OF_TASK_AFTER_S:
        sets.append((cluster, ("TaskId", task.id)))
        names = [run.container for run in task.runs if gpu_id in run.gpu_ids and run.state is not RunState.STOPPED]
        sets += [(cluster, ("ContainerName", name), ("TaskId", task.id)) for name in names]
    for dimensions in sets:
        yield task.region, COLLECTOR_NAMESPACE, dimensions


class GpuPoints:
    """Collects values of GPU metrics. The values of a series within a second become one datapoint.

    Each GPU of a cluster gives values to the series of the cluster.
    """

    def __init__(self) -> None:
        # By series without their names, which have the same values, and by second.
        self._found: dict[tuple[tuple[Target, ...], int], list[_Values]] = {}

    def add(self, gpu: GpuReading, at_s: float, seconds: float) -> None:
        """Add a reading, which covers the seconds before `at_s`."""
        values = gpu_values(gpu.sample, gpu.memory_mib, CLOUDWATCH_METRICS)
        found = _Values(at_s, 1.0 if seconds < 1.5 else float(round(seconds)), values)
        self._add(gpu.of_gpu, found)
        self._add(gpu.of_clusters, found)
        for task in gpu.tasks:
            own = found
            if task.shares:
                of_task = [(metric, _value_of_task(metric, value, task)) for metric, value in values]
                own = found._replace(values=[(metric, value) for metric, value in of_task if value is not None])
            for target in task.targets:  # tasks have some of them in common
                self._add((target,), own)

    def _add(self, targets: tuple[Target, ...], found: _Values) -> None:
        self._found.setdefault((targets, int(found.at_s)), []).append(found)

    def points(self) -> list[Point]:
        points = []
        for (targets, _), found in self._found.items():
            at_s, samples = found[-1].at_s, _samples(found)
            for target in targets:
                series = _series(target)
                points += [Point(series[metric.name], at_s, sample, metric.unit, 1) for metric, sample in samples]
        return points


@lru_cache(maxsize=SERIES_CACHED_MAX)
def _series(target: Target) -> dict[str, Metric]:
    region, namespace, dimensions = target
    return {metric.name: Metric(region, namespace, metric.name, dimensions) for metric in CLOUDWATCH_METRICS}


class _Values(NamedTuple):
    at_s: float
    weight: float  # the number of seconds
    values: list[tuple[GpuMetric, float]]


def _samples(found: Sequence[_Values]) -> list[tuple[GpuMetric, Sample]]:
    """Return one sample of each metric."""
    if len(found) == 1:
        _, weight, values = found[0]
        if weight == 1.0:
            return [(metric, float(value)) for metric, value in values]
        return [(metric, [(float(value), weight)]) for metric, value in values]
    weights: dict[str, tuple[GpuMetric, dict[float, float]]] = {}
    for _, weight, values in found:
        for metric, value in values:
            known = weights.get(metric.name)
            if known is None:
                known = weights[metric.name] = metric, {}
            known[1][value] = known[1].get(value, 0.0) + weight
    return [(metric, _sample(of_metric)) for metric, of_metric in weights.values()]


def _sample(weights: Mapping[float, float]) -> Sample:
    pairs = [(float(value), weight) for value, weight in weights.items()]
    return pairs[0][0] if len(pairs) == 1 and pairs[0][1] == 1.0 else pairs


def _value_of_task(metric: GpuMetric, value: float, task: TaskReading) -> float | None:
    """Return the value of a GPU for one of its tasks: if the task shares the GPU, its own part, or None if that is not known."""
    if not task.shares or metric.of_part is None:
        return value
    return None if task.part is None else metric.of_part(task.part)


def _weighted(value: float, seconds: float) -> Sample:
    """A sample in which the value counts once for each second that it covers."""
    return float(value) if seconds < 1.5 else [(float(value), float(round(seconds)))]
