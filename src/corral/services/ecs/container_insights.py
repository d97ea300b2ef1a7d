"""The performance log events of Container Insights: one for each cluster, service, task and container, once a minute.

The members and their order are those of the events that AWS documents for ECS. The events have the older embedded metric format
(`decide/logs/emf.py`), so Corral reads the metrics of the namespace ECS/ContainerInsights from the log events. Corral does not
measure the network traffic of tasks, so the network members are missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from corral.core.transactions import Tx
from corral.fleet.clusters import slots_of
from corral.fleet.own_metrics import service_of
from corral.model.instance import ec2_id
from corral.model.principal import ROOT
from corral.model.run import RunState, Usage
from corral.model.task import Run, Task, TaskState
from corral.model.units import CPU_UNITS_PER_CORE, MIB
from corral.services.ecs.lookup import split_definition
from corral.services.ecs.task_spec import spec_of
from corral.services.logs.common import now_ms
from corral.services.logs.ingestion import ingest_own
from corral.store import Store
from corral.telemetry import LogStore

NAMESPACE = "ECS/ContainerInsights"
GROUP = "/aws/ecs/containerinsights/{}/performance"
RETENTION_DAYS = 1  # as AWS sets it for these groups
TASKS_MAX = 500  # if a cluster has more tasks, only this many of them get events
PIECE = 10  # the most services or tasks that one transaction handles, so that other requests do not wait long
ENHANCED = "enhanced"

CLUSTER_METRICS = {"TaskCount": "Count", "ContainerInstanceCount": "Count", "ServiceCount": "Count"}
SERVICE_METRICS = {
    "DesiredTaskCount": "Count", "RunningTaskCount": "Count", "PendingTaskCount": "Count", "DeploymentCount": "Count",
    "TaskSetCount": "Count",
}  # fmt: skip
TASK_METRICS = {
    "CpuUtilized": "None", "CpuReserved": "None", "MemoryUtilized": "Megabytes", "MemoryReserved": "Megabytes",
    "StorageReadBytes": "Bytes/Second", "StorageWriteBytes": "Bytes/Second",
}  # fmt: skip
TASK_DIMENSIONS = (("ClusterName",), ("ServiceName", "ClusterName"), ("ClusterName", "TaskDefinitionFamily"))
# With enhanced observability only:
ENHANCED_TASK_METRICS = {"TaskCpuUtilization": "Percent", "TaskMemoryUtilization": "Percent"}
ENHANCED_TASK_DIMENSIONS = (*TASK_DIMENSIONS, ("ClusterName", "TaskDefinitionFamily", "TaskId"))
CONTAINER_METRICS = {
    "ContainerCpuUtilized": "None", "ContainerCpuReserved": "None", "ContainerCpuUtilization": "Percent",
    "ContainerMemoryUtilized": "Megabytes", "ContainerMemoryReserved": "Megabytes", "ContainerMemoryUtilization": "Percent",
}  # fmt: skip
CONTAINER_DIMENSIONS = (
    ("ClusterName", "ServiceName", "ContainerName"),
    ("ClusterName", "TaskDefinitionFamily", "ContainerName"),
    ("ClusterName", "TaskDefinitionFamily", "TaskId", "ContainerName"),
)


class UsedByRun(Struct, frozen=True):
    """The average CPU units of a container since the earlier measurement, its memory now, and its I/O since its start."""

    cpu_units: float
    memory_mib: float
    read_bytes: int
    written_bytes: int


class InsightsCluster(Struct, frozen=True):
    region: str
    name: str
    level: str  # enabled or enhanced


Declared = tuple[Mapping[str, str], Sequence[Sequence[str]]]  # (metric → unit, dimension sets)
PerformanceEvents = dict[str, list[str]]  # log stream → messages


def used_by_runs(now: Mapping[str, Usage], before: Mapping[str, Usage], started_s: Mapping[str, float]) -> dict[str, UsedByRun]:
    """Return the resources that each run uses, by its attempt id.

    The CPU units are the average since the earlier measurement (`before`). Without one, they are the average since the start.
    """
    found = {}
    for attempt, usage in now.items():
        cpu_s, since_s = usage.cpu_user_s + usage.cpu_system_s, started_s.get(attempt, usage.at_s)
        if (earlier := before.get(attempt)) is not None and usage.at_s > earlier.at_s:
            cpu_s, since_s = cpu_s - earlier.cpu_user_s - earlier.cpu_system_s, earlier.at_s
        cores = max(0.0, cpu_s) / (usage.at_s - since_s) if usage.at_s > since_s else 0.0
        found[attempt] = UsedByRun(
            round(cores * CPU_UNITS_PER_CORE, 3), round(usage.memory_bytes / MIB, 3), usage.read_bytes, usage.written_bytes
        )
    return found


def running_task_ids(tx: Tx[Store], cluster: InsightsCluster) -> list[str]:
    listed = tx.store.tasks.listing.listed(cluster.region, cluster.name, desired="RUNNING", after=("", 0), limit=TASKS_MAX)
    return [task_id for _, _, task_id in listed]


def running_tasks(tx: Tx[Store], task_ids: Sequence[str]) -> list[Task]:
    return [task for task in tx.store.tasks.several(task_ids).values() if task.state is TaskState.RUNNING]


def cluster_events(tx: Tx[Store], cluster: InsightsCluster) -> PerformanceEvents:
    return {"ClusterTelemetry": [_json(_cluster_event(tx, cluster, _minute_ms(tx)))]}


def service_events(tx: Tx[Store], cluster: InsightsCluster, after: str) -> tuple[PerformanceEvents, str | None]:
    """Return the events of the next services after the name `after`, at most PIECE, and the name of the last of these services.

    Return None instead of the name if fewer than PIECE services were left.
    """
    names = tx.store.ecs_services.listed(cluster.region, cluster.name, after, PIECE)
    events = [_json(event) for event in _service_events(tx, cluster, names, _minute_ms(tx))]
    return {"ServiceTelemetry": events} if events else {}, names[-1] if len(names) == PIECE else None


def task_events(
    tx: Tx[Store], cluster: InsightsCluster, task_ids: Sequence[str], used: Mapping[str, UsedByRun]
) -> PerformanceEvents:
    """Return the events of tasks and their containers. `used` maps attempt ids to what the containers used."""
    found: PerformanceEvents = {}
    for task in running_tasks(tx, task_ids):
        stream = "FargateTelemetry" if task.launch_type != "EC2" else f"AgentTelemetry-{task.instance_id}"
        found.setdefault(stream, []).extend(_json(event) for event in _task_events(tx, cluster, task, used, _minute_ms(tx)))
    return found


def write_performance_events(tx: Tx[LogStore], cluster: InsightsCluster, events: PerformanceEvents) -> None:
    """Append the events to the log group of the cluster, which is created if it does not exist."""
    name = GROUP.format(cluster.name)
    if tx.store.add_group(cluster.region, name, {}, now_ms(tx), ROOT):
        created = tx.store.group(cluster.region, name)
        assert created is not None
        tx.store.set_retention(created.id, RETENTION_DAYS)
        tx.due("expire:", tx.now_s)
    group = tx.store.group(cluster.region, name)
    assert group is not None
    for stream_name, messages in events.items():
        stream = tx.store.stream_by_id(tx.store.stream_id(group.id, stream_name, now_ms(tx), ROOT))
        assert stream is not None
        ingest_own(tx, stream, [(now_ms(tx), message) for message in messages])


def _cluster_event(tx: Tx[Store], cluster: InsightsCluster, at_ms: int) -> dict[str, Any]:
    region, name = cluster.region, cluster.name
    return {
        "Version": "0",
        "Type": "Cluster",
        "ClusterName": name,
        "Timestamp": at_ms,
        "TaskCount": tx.store.clusters.active_tasks(region, name).get("RUNNING", 0),
        "ContainerInstanceCount": len(list(slots_of(tx, region, name))),
        "ServiceCount": tx.store.ecs_services.count(region, name),
        "CloudWatchMetrics": _metrics((CLUSTER_METRICS, [("ClusterName",)])),
    }


def _service_events(tx: Tx[Store], cluster: InsightsCluster, names: Iterable[str], at_ms: int) -> Iterator[dict[str, Any]]:
    for name in names:
        service = tx.store.ecs_services.get(cluster.region, cluster.name, name)
        assert service is not None
        tasks = tx.store.ecs_services.tasks(service)
        running = sum(task.state == TaskState.RUNNING.value for task in tasks)
        yield {
            "Version": "0",
            "Type": "Service",
            "ServiceName": name,
            "ClusterName": cluster.name,
            "Timestamp": at_ms,
            "DesiredTaskCount": service.desired,
            "RunningTaskCount": running,
            "PendingTaskCount": len(tasks) - running,
            "DeploymentCount": len(service.deployments),
            "TaskSetCount": 0,
            "CloudWatchMetrics": _metrics((SERVICE_METRICS, [("ServiceName", "ClusterName")])),
        }


def _task_events(
    tx: Tx[Store], cluster: InsightsCluster, task: Task, used: Mapping[str, UsedByRun], at_ms: int
) -> Iterator[dict[str, Any]]:
    """Yield the event of a task, and the events of its containers that were measured."""
    family, revision = split_definition(task.definition_arn.rpartition("/")[2])
    about: dict[str, Any] = {"TaskId": task.id, "TaskDefinitionFamily": family, "TaskDefinitionRevision": str(revision)}
    if (service := service_of(task)) is not None:
        about["ServiceName"] = service
    if task.launch_type == "EC2" and task.instance_id is not None:
        about |= {"ContainerInstanceId": task.instance_id, "EC2InstanceId": ec2_id(task.instance_id)}
    about["ClusterName"] = cluster.name
    runs = [(run, used[run.attempt_id]) for run in task.runs if run.attempt_id in used and run.state is RunState.RUNNING]
    sums = UsedByRun(
        round(sum(use.cpu_units for _, use in runs), 3), round(sum(use.memory_mib for _, use in runs), 3),
        sum(use.read_bytes for _, use in runs), sum(use.written_bytes for _, use in runs),
    )  # fmt: skip
    reserved = task.demand.cpu_units, task.demand.memory_mib
    created_s, started_s = (tx.steps.wall_s(at_s) for at_s in (task.created_at_s, task.started_at_s or task.created_at_s))
    event = {
        "Version": "0", "Type": "Task", **about, "AccountID": tx.settings.account, "Region": task.region,
        "KnownStatus": task.state.value, "LaunchType": task.launch_type, "CreatedAt": round(created_s * 1000),
        "StartedAt": round(started_s * 1000), "Timestamp": at_ms, **_amounts(sums, *reserved),
    }  # fmt: skip
    if runs:  # a task whose host did not respond has no measured runs, and gets no event
        declared: list[Declared] = [(TASK_METRICS, TASK_DIMENSIONS)]
        if cluster.level == ENHANCED:
            percentages = _percentages("Task", sums, *reserved)
            event |= percentages
            declared.append(({name: ENHANCED_TASK_METRICS[name] for name in percentages}, ENHANCED_TASK_DIMENSIONS))
        yield {**event, "CloudWatchMetrics": _metrics(*declared)}
    for run, use in runs:
        yield _container_event(tx, cluster, task, run, use, about, at_ms)


def _container_event(
    tx: Tx[Store], cluster: InsightsCluster, task: Task, run: Run, use: UsedByRun, about: dict[str, Any], at_ms: int
) -> dict[str, Any]:
    definition = spec_of(tx, task).containers[run.container].definition
    reserved = definition.get("cpu", 0), definition.get("memoryReservation") or definition.get("memory", 0)
    event = {
        "Version": "0", "Type": "Container", "ContainerName": run.container, **about, "Image": definition.get("image", ""),
        "ContainerKnownStatus": run.state.value, "Timestamp": at_ms, **_amounts(use, *reserved),
    }  # fmt: skip
    if cluster.level != ENHANCED:
        return event
    of_container = {f"Container{name}": event[name] for name in ("CpuUtilized", "CpuReserved", "MemoryUtilized", "MemoryReserved")}
    of_container |= _percentages("Container", use, *reserved)
    metrics = _metrics(({name: CONTAINER_METRICS[name] for name in of_container}, CONTAINER_DIMENSIONS))
    return {**event, **of_container, "CloudWatchMetrics": metrics}


def _amounts(use: UsedByRun, cpu_reserved: int, memory_reserved_mib: int) -> dict[str, Any]:
    return {
        "CpuUtilized": use.cpu_units, "CpuReserved": float(cpu_reserved), "MemoryUtilized": use.memory_mib,
        "MemoryReserved": memory_reserved_mib, "StorageReadBytes": use.read_bytes, "StorageWriteBytes": use.written_bytes,
    }  # fmt: skip


def _percentages(prefix: str, use: UsedByRun, cpu_reserved: int, memory_reserved_mib: int) -> dict[str, float]:
    """Return the used parts of the reserved CPU and memory in percent. Omit a percentage if nothing is reserved."""
    found = {}
    if cpu_reserved:
        found[f"{prefix}CpuUtilization"] = round(100.0 * use.cpu_units / cpu_reserved, 3)
    if memory_reserved_mib:
        found[f"{prefix}MemoryUtilization"] = round(100.0 * use.memory_mib / memory_reserved_mib, 3)
    return found


def _metrics(*declared: Declared) -> list[dict[str, Any]]:
    """Return the directives of the embedded metric format."""
    return [
        {
            "Namespace": NAMESPACE,
            "Metrics": [{"Name": name, "Unit": unit} for name, unit in metrics.items()],
            "Dimensions": [list(names) for names in dimensions],
        }
        for metrics, dimensions in declared
        if metrics
    ]


def _minute_ms(tx: Tx[Store]) -> int:
    return int(tx.wall_s // 60) * 60_000


def _json(event: dict[str, Any]) -> str:
    return orjson.dumps(event).decode()
