"""What Corral publishes of itself: queues, the reservations of clusters, and GPUs under the names of DCGM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from corral.core import Tx
from corral.model.instance import HOST_POOL
from corral.model.metric import Dimensions, Metric, Point, Sample
from corral.model.placement import Slot
from corral.model.queue import QueueActivity
from corral.model.run import CPU_UNITS_PER_CORE, MIB, GpuSample, Measured, Usage, run_of_attempt
from corral.services.ecs.naming import slots_of
from corral.store import Store

GPU_NAMESPACE = "Corral/GPU"


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """What a GPU shows, and where it is told: for itself, for clusters, for the task that has it."""

    sample: GpuSample
    memory_mib: int
    places: tuple[tuple[str, Dimensions], ...]  # region, dimensions


# Queues


def level_of(queue: QueueActivity) -> QueueActivity:
    """How full it is, without what happened."""
    return replace(queue, sent=0, sent_bytes=0, received=0, deleted=0, empty_receives=0)


def level_points(queue: QueueActivity, at_s: float, seconds: float) -> Iterator[Point]:
    """How full a queue was, for so many seconds."""
    levels = {
        "ApproximateNumberOfMessagesVisible": (queue.visible, "Count"),
        "ApproximateNumberOfMessagesNotVisible": (queue.in_flight, "Count"),
        "ApproximateNumberOfMessagesDelayed": (queue.delayed, "Count"),
        "ApproximateAgeOfOldestMessage": (queue.oldest_age_s, "Seconds"),
    }
    for name, (level, unit) in levels.items():
        yield Point(_of_queue(queue, name), at_s, _for(level, seconds), unit, 1)


def event_points(queue: QueueActivity, at_s: float) -> Iterator[Point]:
    """What happened to a queue since it was last looked at."""
    events = {
        "NumberOfMessagesSent": queue.sent,
        "NumberOfMessagesReceived": queue.received,
        "NumberOfMessagesDeleted": queue.deleted,
        "NumberOfEmptyReceives": queue.empty_receives,
    }
    for name, count in events.items():
        yield Point(_of_queue(queue, name), at_s, float(count), "Count", 1)
    if queue.sent:  # the average, as often as there were messages
        sizes = [(queue.sent_bytes / queue.sent, float(queue.sent))]
        yield Point(_of_queue(queue, "SentMessageSize"), at_s, sizes, "Bytes", 1)


def _of_queue(queue: QueueActivity, name: str) -> Metric:
    return Metric(queue.region, "AWS/SQS", name, (("QueueName", queue.name),))


# Clusters


def reservations(tx: Tx[Store]) -> dict[tuple[str, str], dict[str, float]]:
    """How much of each cluster (region, name) tasks have reserved, in percent."""
    clusters = {(region, tx.settings.cluster) for region in tx.store.clusters.regions()} | tx.store.instances.joined_clusters()
    return {key: _reserved(slots_of(tx, *key)) for key in sorted(clusters)}


def _reserved(slots: Iterable[Slot]) -> dict[str, float]:
    slots = [slot for slot in slots if slot.connected]
    totals = {
        "CPUReservation": (sum(slot.cpu_units for slot in slots), sum(slot.total.cpu_units for slot in slots)),
        "MemoryReservation": (sum(slot.memory_mib for slot in slots), sum(slot.total.memory_mib for slot in slots)),
        "GPUReservation": (sum(len(slot.gpus) for slot in slots), sum(len(slot.positions) for slot in slots)),
    }
    return {name: 100.0 - 100.0 * free / total for name, (free, total) in totals.items() if total}


def cluster_points(taken: Mapping[str, float], region: str, cluster: str, at_s: float, seconds: float) -> Iterator[Point]:
    for name, percent in taken.items():
        metric = Metric(region, "AWS/ECS", name, (("ClusterName", cluster),))
        yield Point(metric, at_s, _for(percent, seconds), "Percent", 1)


def utilizations(tx: Tx[Store], measured: Sequence[Measured]) -> dict[tuple[str, str], dict[str, float]]:
    """What the tasks of each cluster (region, name) used of its capacity between two measurements, in percent."""
    sizes: dict[tuple[str, str], tuple[float, int]] = {}
    found: dict[tuple[str, str], dict[str, float]] = {}
    for attempt, now, before in _pairs(measured):
        task = tx.store.tasks.of_run(run_of_attempt(attempt))
        if task is None:
            continue
        cluster = task.region, task.cluster
        if cluster not in sizes:
            sizes[cluster] = _size(tx, *cluster)
        cores, memory_bytes = sizes[cluster]
        if not cores or not memory_bytes:
            continue
        cpu_s = now.cpu_user_s + now.cpu_system_s - before.cpu_user_s - before.cpu_system_s
        used = found.setdefault(cluster, {"CPUUtilization": 0.0, "MemoryUtilization": 0.0})
        used["CPUUtilization"] += 100.0 * max(0.0, cpu_s) / (now.at_s - before.at_s) / cores
        used["MemoryUtilization"] += 100.0 * now.memory_bytes / memory_bytes
    return found


def _size(tx: Tx[Store], region: str, cluster: str) -> tuple[float, int]:
    """Cores and bytes of a cluster's connected instances; of the hosts, where it has only Fargate tasks."""
    slots = slots_of(tx, region, cluster) or tx.store.fleet.pool(HOST_POOL).slots()
    connected = [slot.total for slot in slots if slot.connected]
    cores = sum(total.cpu_units for total in connected) / CPU_UNITS_PER_CORE
    return cores, sum(total.memory_mib for total in connected) * MIB


def _pairs(measured: Sequence[Measured]) -> Iterator[tuple[str, Usage, Usage]]:
    """Runs that were measured twice: now and before."""
    for each in measured:
        for attempt, now in each.now.items():
            before = each.before.get(attempt)
            if before is not None and now.at_s > before.at_s:
                yield attempt, now, before


# GPUs


def seen_gpus(tx: Tx[Store], samples: Mapping[str, GpuSample]) -> Iterator[SeenGpu]:
    """Per GPU and per cluster in every region that is used, per task in the task's own."""
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
            places: list[tuple[str, Dimensions]] = [(region, named) for region in regions]
            places += [(region, (("ClusterName", cluster),)) for region, cluster in clusters if cluster]
            task = tx.store.tasks.get(holders[device.gpu_id]) if device.gpu_id in holders else None
            if task is not None:
                places.append((task.region, (("ClusterName", task.cluster), ("TaskId", task.id))))
                if (task.region, task.cluster) not in clusters:
                    places.append((task.region, (("ClusterName", task.cluster),)))
            yield SeenGpu(samples[device.gpu_id], device.memory_mib, tuple(places))


def gpu_points(gpu: SeenGpu, at_s: float, seconds: float) -> Iterator[Point]:
    told = _dcgm(gpu.sample, gpu.memory_mib)
    for region, dimensions in gpu.places:
        for name, (value, unit) in told.items():
            yield Point(Metric(region, GPU_NAMESPACE, name, dimensions), at_s, _for(value, seconds), unit, 1)


def _dcgm(sample: GpuSample, memory_mib: int) -> Mapping[str, tuple[float, str]]:
    known = {
        "DCGM_FI_DEV_GPU_UTIL": (sample.utilization_percent, "Percent"),
        "DCGM_FI_DEV_FB_USED": (sample.memory_used_mib, "Megabytes"),
        "DCGM_FI_DEV_FB_FREE": (memory_mib - sample.memory_used_mib, "Megabytes"),
        "DCGM_FI_DEV_POWER_USAGE": (sample.power_w, "None"),
        "DCGM_FI_DEV_GPU_TEMP": (sample.temperature_c, "None"),
    }
    return {name: (value, unit) for name, (value, unit) in known.items() if value is not None}


def _for(value: float, seconds: float) -> Sample:
    """A level that lasted: it counts as often as it would have been published."""
    return float(value) if seconds < 1.5 else [(float(value), float(round(seconds)))]
