"""The metrics that Corral itself publishes: queues, clusters and GPUs. GPU metrics have the names that NVIDIA's DCGM uses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from corral.core import Tx
from corral.model.instance import HOST_POOL
from corral.model.metric import Dimensions, Metric, Point, Sample
from corral.model.placement import Slot
from corral.model.queue import QueueActivity
from corral.model.run import GpuSample, Measured, Usage, run_of_attempt
from corral.model.units import CPU_UNITS_PER_CORE, MIB
from corral.services.ecs.lookup import slots_of
from corral.store import Store

GPU_NAMESPACE = "Corral/GPU"


class GpuReading(Struct, frozen=True):
    """A sample of a GPU, and the metric dimensions for it: for the GPU, for its clusters, and for its task."""

    sample: GpuSample
    memory_mib: int
    targets: tuple[tuple[str, Dimensions], ...]  # (region, dimensions)


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
    """Datapoints for the events of a queue since the last call."""
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
    clusters = {(region, tx.settings.cluster) for region in tx.store.clusters.regions()} | tx.store.instances.joined_clusters()
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


def utilizations(tx: Tx[Store], measured: Sequence[Measured]) -> dict[tuple[str, str], dict[str, float]]:
    """The percentages of CPU and memory that tasks used between two measurements, by (region, cluster)."""
    capacities: dict[tuple[str, str], tuple[float, int]] = {}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for attempt, now, before in _pairs(measured):
        task = tx.store.tasks.of_run(run_of_attempt(attempt))
        if task is None:
            continue
        cluster = task.region, task.cluster
        if cluster not in capacities:
            capacities[cluster] = _capacity(tx, *cluster)
        cores, memory_bytes = capacities[cluster]
        if not cores or not memory_bytes:
            continue
        cpu_s = now.cpu_user_s + now.cpu_system_s - before.cpu_user_s - before.cpu_system_s
        used = found.setdefault(cluster, {"CPUUtilization": 0.0, "MemoryUtilization": 0.0})
        used["CPUUtilization"] += 100.0 * max(0.0, cpu_s) / (now.at_s - before.at_s) / cores
        used["MemoryUtilization"] += 100.0 * now.memory_bytes / memory_bytes
    return found


def _capacity(tx: Tx[Store], region: str, cluster: str) -> tuple[float, int]:
    """CPU cores and bytes of memory of a cluster's connected instances.

    If the cluster has no instances, the result is the capacity of all hosts, because Fargate tasks run there.
    """
    slots = slots_of(tx, region, cluster) or tx.store.fleet.pool(HOST_POOL).slots()
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


def gpu_readings(tx: Tx[Store], samples: Mapping[str, GpuSample]) -> Iterator[GpuReading]:
    """Yield one reading per GPU. The metrics of a GPU and of a host's cluster are published in every region in use."""
    regions = tx.store.clusters.regions() if samples else []
    for host in tx.store.hosts.all() if regions else ():
        holders, owners = tx.store.hosts.holders(host["id"]), tx.store.hosts.gpu_owners(host["id"])
        for device in tx.store.hosts.gpus(host["id"]):
            if device.gpu_id not in samples:
                continue
            named: Dimensions = (("Hostname", host["name"]), ("UUID", device.gpu_id))
            owner = tx.store.instances.get(owners[device.gpu_id])
            assert owner is not None
            clusters = [(region, owner.cluster) for region in regions] if owner.is_host else [(owner.region, owner.cluster)]
            targets: list[tuple[str, Dimensions]] = [(region, named) for region in regions]
            targets += [(region, (("ClusterName", cluster),)) for region, cluster in clusters if cluster]
            task = tx.store.tasks.get(holders[device.gpu_id]) if device.gpu_id in holders else None
            if task is not None:
                targets.append((task.region, (("ClusterName", task.cluster), ("TaskId", task.id))))
                if (task.region, task.cluster) not in clusters:
                    targets.append((task.region, (("ClusterName", task.cluster),)))
            yield GpuReading(samples[device.gpu_id], device.memory_mib, tuple(targets))


def gpu_points(gpu: GpuReading, at_s: float, seconds: float) -> Iterator[Point]:
    values = _dcgm_values(gpu.sample, gpu.memory_mib)
    for region, dimensions in gpu.targets:
        for name, (value, unit) in values.items():
            yield Point(Metric(region, GPU_NAMESPACE, name, dimensions), at_s, _weighted(value, seconds), unit, 1)


def _dcgm_values(sample: GpuSample, memory_mib: int) -> Mapping[str, tuple[float, str]]:
    known = {
        "DCGM_FI_DEV_GPU_UTIL": (sample.utilization_percent, "Percent"),
        "DCGM_FI_DEV_FB_USED": (sample.memory_used_mib, "Megabytes"),
        "DCGM_FI_DEV_FB_FREE": (memory_mib - sample.memory_used_mib, "Megabytes"),
        "DCGM_FI_DEV_POWER_USAGE": (sample.power_w, "None"),
        "DCGM_FI_DEV_GPU_TEMP": (sample.temperature_c, "None"),
    }
    return {name: (value, unit) for name, (value, unit) in known.items() if value is not None}


def _weighted(value: float, seconds: float) -> Sample:
    """A sample in which the value counts once for each second that it covers."""
    return float(value) if seconds < 1.5 else [(float(value), float(round(seconds)))]
