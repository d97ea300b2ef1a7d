"""Records of stopped tasks, which `corral history` shows after ECS has forgotten the tasks.

A record has no environment variables, because they may contain passwords and tokens. The use of GPUs is computed from the samples
that the agent takes once a second.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.model.gpu_metrics import GpuSample
from corral.model.instance import is_host_pool
from corral.model.principal import ROOT
from corral.model.task import Run, StopCode, Task

ENVIRONMENT = ("environment", "environmentFiles")  # members of a container override that are not recorded
STOPPED_BY_REQUEST = (StopCode.USER, StopCode.SERVICE)


class GpuUse(Struct, frozen=True, array_like=True):
    """The load of a task's GPUs since the start of the task. Each GPU has one sample per second."""

    samples: int
    utilization_sum: float  # the sum of all samples, in percent
    utilization_max: float
    memory_max_mib: int  # the highest memory use of one GPU, including processes outside Corral

    @property
    def utilization_mean(self) -> float:
        return self.utilization_sum / self.samples


def with_sample(use: GpuUse | None, sample: GpuSample) -> GpuUse:
    percent, memory_mib = sample.utilization_percent, sample.memory_used_mib
    if use is None:
        return GpuUse(1, percent, percent, memory_mib)
    return GpuUse(
        use.samples + 1,
        use.utilization_sum + percent,
        max(use.utilization_max, percent),
        max(use.memory_max_mib, memory_mib),
    )


class ContainerRecord(Struct, frozen=True, array_like=True):
    name: str
    essential: bool
    exit_code: int | None
    reason: str | None
    gpu_ids: tuple[str, ...]
    runtime_id: str | None  # None: the container has not started


class TaskRecord(Struct, frozen=True, array_like=True):
    """A stopped task. It is stored as a JSON array, so new fields are appended and have defaults."""

    definition: str  # FAMILY:REVISION
    group: str
    started_by: str | None
    launch_type: str
    gpus: int  # as in Demand
    cpu_units: int
    memory_mib: int
    created_at_s: float
    placed_at_s: float | None
    started_at_s: float | None
    stopping_at_s: float | None
    stopped_at_s: float
    stop_code: str | None
    stopped_reason: str | None
    containers: tuple[ContainerRecord, ...]
    tags: list[dict[str, str]]
    overrides: dict[str, Any]  # without environment variables
    had_environment: bool  # True: the overrides of the task had environment variables
    job_index: str | None  # of a child of a Batch array
    job_attempt: str | None  # of a Batch job; the first attempt is 1
    gpu_use: GpuUse | None  # None: the GPUs of the task have no samples
    gpu_memory_mib: int = 0  # as in Demand
    on_host: bool = True  # False: the task ran on an EC2 instance
    instance_id: str | None = None
    owner: str = ROOT
    paused_s: float = 0.0  # how long the task was paused


def task_record(task: Task, gpu_use: GpuUse | None) -> TaskRecord:
    assert task.stopped_at_s is not None
    details, demand = task.details, task.demand
    overrides, had_environment = _without_environment(details.get("overrides") or {})
    job = details.get("jobEnvironment") or {}
    return TaskRecord(
        task.definition_arn.rpartition("/")[2], task.group, task.started_by, task.launch_type, demand.gpus, demand.cpu_units,
        demand.memory_mib, task.created_at_s, task.placed_at_s, task.started_at_s, task.stopping_at_s, task.stopped_at_s,
        task.stop_code, task.stopped_reason, tuple([_container(run) for run in task.runs]), details.get("tags") or [], overrides,
        had_environment, job.get("AWS_BATCH_JOB_ARRAY_INDEX"), job.get("AWS_BATCH_JOB_ATTEMPT"), gpu_use,
        demand.gpu_memory_mib, is_host_pool(task.pool), task.instance_id, task.owner,
        task.pause.lost_s(task.stopped_at_s) if task.pause is not None else 0.0,
    )  # fmt: skip


def is_failure(task: Task) -> bool:
    """Whether a stopped task has failed. A task that was stopped by a request or by its service has not failed.

    A task that reached its time limit has failed.
    """
    if task.stop_code in STOPPED_BY_REQUEST and not _reached_limit(task):
        return False
    codes = [run.exit_code for run in task.runs if run.essential]
    return codes.count(0) < len(codes)


def _reached_limit(task: Task) -> bool:
    if task.time_limit_s is None or task.started_at_s is None or task.stopping_at_s is None:
        return False
    paused_s = task.pause.lost_s(task.stopping_at_s) if task.pause is not None else 0.0
    return task.stop_code == StopCode.USER and task.stopping_at_s >= task.started_at_s + task.time_limit_s + paused_s


def _container(run: Run) -> ContainerRecord:
    has_started = run.started_at_s is not None or bool(run.restarts)
    runtime_id = ((run.about or {}).get("runtimeId", run.id)) if has_started else None
    return ContainerRecord(run.container, run.essential, run.exit_code, run.reason, run.gpu_ids, runtime_id)


def _without_environment(overrides: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return the overrides without environment variables, and whether they had any."""
    containers = overrides.get("containerOverrides", ())
    if not containers or not any(name in each for each in containers for name in ENVIRONMENT):
        return overrides, False
    kept = [{name: value for name, value in each.items() if name not in ENVIRONMENT} for each in containers]
    return {**overrides, "containerOverrides": kept}, True
