"""Descriptions of recorded tasks, for Corral's operation GetHistory.

A description has the members of ECS's DescribeTasks, so that commands can treat recorded tasks as ECS's tasks. It also has the
command, the folder and the name of the task, its times in seconds, and the use of its GPUs. The command and the folder come from
the task definition. If the definition was deleted, the description does not have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corral.core.transactions import Tx
from corral.fleet.hosts import HostNames
from corral.model.job import STARTED_BY as STARTED_BY_BATCH
from corral.model.task import ecs_arn, is_host_image
from corral.model.task_record import ContainerRecord, GpuUse, TaskRecord
from corral.store import Store
from corral.store.task_history import HistoryFilter, StoredTask, is_glob

PAGE_MAX = 1_000  # tasks in one response
GIT_TAG = "corral:git"  # the tag with the commit of the folder when the task was created


def history_page(tx: Tx[Store], wanted: HistoryFilter, limit: int, *, latest: bool = False) -> dict[str, Any]:
    """Return the newest matching tasks. With `latest`, return only the newest task of each name.

    With `latest` and a name that is not a glob, the task has the member `sameName`: the number of matching tasks with this name.
    """
    history, hosts = tx.store.tasks.history, HostNames(tx)
    if latest:
        tasks = [_description(tx, each, hosts) for each in history.latest(wanted)[:limit]]
        if tasks and not is_glob(wanted.name):
            tasks[0]["sameName"] = history.count(wanted)
        following = None
    else:
        found = history.listed(wanted, limit + 1)
        tasks = [_description(tx, each, hosts) for each in found[:limit]]
        following = found[limit - 1].number if len(found) > limit else None
    return {"tasks": tasks, "before": following, "days": tx.settings.history.days, "nowS": tx.now_s}


def _description(tx: Tx[Store], stored: StoredTask, hosts: HostNames) -> dict[str, Any]:
    account, record = tx.settings.account, stored.record
    task_arn = ecs_arn(account, stored.region, f"task/{stored.cluster}/{stored.id}")
    description = {
        "taskArn": task_arn,
        "clusterArn": ecs_arn(account, stored.region, f"cluster/{stored.cluster}"),
        "taskDefinitionArn": ecs_arn(account, stored.region, f"task-definition/{record.definition}"),
        "lastStatus": "STOPPED",
        "desiredStatus": "STOPPED",
        "group": record.group,
        "startedBy": record.started_by,
        "launchType": record.launch_type,
        "cpu": str(record.cpu_units),
        "memory": str(record.memory_mib),
        "containers": [_container(each) for each in record.containers],
        "overrides": record.overrides,
        "tags": record.tags,
        "createdAt": record.created_at_s,
        "startedAt": record.started_at_s,
        "stoppingAt": record.stopping_at_s,
        "stoppedAt": record.stopped_at_s,
        "stopCode": record.stop_code,
        "stoppedReason": record.stopped_reason,
        "name": stored.name,
        "failed": stored.failed,
        "host": hosts.of(record.instance_id),
        "exitCode": exit_code(record.containers),
        "gpus": len({gpu_id for each in record.containers for gpu_id in each.gpu_ids}),
        "gpusNeeded": record.gpus or None,
        "gpuMemoryMiB": record.gpu_memory_mib or None,
        "gpuUse": gpu_use_description(record.gpu_use),
        "waitingSeconds": _seconds(record.created_at_s, record.placed_at_s or record.stopped_at_s),
        "wallSeconds": _seconds(record.started_at_s, record.stopped_at_s),
        "pausedSeconds": round(record.paused_s, 3) or None,
        "git": next((tag["value"] for tag in record.tags if tag["key"] == GIT_TAG), None),
        "hadEnvironment": record.had_environment,
        "owner": record.owner,
        **_program(tx, stored.region, record),
        **_job(record),
    }
    return {name: value for name, value in description.items() if value is not None}


def exit_code(containers: Iterable[ContainerRecord]) -> int | None:
    """Return the exit code of a task: the first exit code of an essential container that is not 0, otherwise 0.

    Return None if no essential container has an exit code.
    """
    codes = [each.exit_code for each in containers if each.essential and each.exit_code is not None]
    return next((code for code in codes if code), 0) if codes else None


def gpu_use_description(use: GpuUse | None) -> dict[str, Any] | None:
    if use is None:
        return None
    return {
        "samples": use.samples,
        "meanUtilizationPercent": round(use.utilization_mean, 1),
        "maxUtilizationPercent": use.utilization_max,
        "peakMemoryMiB": use.memory_max_mib,
    }


def _container(record: ContainerRecord) -> dict[str, Any]:
    members = {
        "name": record.name,
        "lastStatus": "STOPPED",
        "exitCode": record.exit_code,
        "reason": record.reason,
        "gpuIds": list(record.gpu_ids) or None,
        "runtimeId": record.runtime_id,
    }
    return {name: value for name, value in members.items() if value is not None}


def _program(tx: Tx[Store], region: str, record: TaskRecord) -> dict[str, Any]:
    """Return the command of the first essential container, its folder and its image."""
    family, _, revision = record.definition.rpartition(":")
    found = tx.store.definitions.get(region, family, int(revision))
    if found is None:
        return {}
    main = next(each.name for each in record.containers if each.essential)
    container = next(each for each in found[2]["containerDefinitions"] if each["name"] == main)
    for override in record.overrides.get("containerOverrides", ()):
        if override["name"] == main:
            container = {**container, **override}
    return {
        "command": [*container.get("entryPoint", ()), *container.get("command", ())],
        "folder": container.get("workingDirectory"),
        "image": None if is_host_image(container["image"]) else container["image"],
    }


def _job(record: TaskRecord) -> dict[str, Any]:
    """Return the Batch job of a task, its index in an array, and the number of the attempt."""
    if record.started_by is None or not record.started_by.startswith(STARTED_BY_BATCH):
        return {}
    return {
        "jobId": record.started_by.removeprefix(STARTED_BY_BATCH),
        "arrayIndex": record.job_index,
        "attempt": record.job_attempt,
    }


def _seconds(begin_s: float | None, end_s: float) -> float | None:
    return None if begin_s is None else round(max(0.0, end_s - begin_s), 3)
