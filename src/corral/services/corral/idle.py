"""Tasks and EC2 instances that hold GPUs which do nothing. `reconcile/idle_holders.py` notifies about them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corral.core.transactions import Tx
from corral.fleet.own_metrics import GpuReading
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.model.task import Task, TaskState
from corral.store import Store
from corral.store.owner_use import WHOLE

SHOWN_MAX = 50
BUSY_PERCENT = 100.0


def add_reading(tx: Tx[Store], gpu: GpuReading, at_s: float) -> bool:
    """Note whether a GPU does nothing for those who hold it. Return whether it is so.

    An EC2 instance holds those of its GPUs that no task has, and is idle only if no task has any. If tasks share a GPU and their
    parts are not known, each of them has its load.
    """
    holders, sample, was_idle = tx.store.idle_holders, gpu.sample, False
    if gpu.instance_id:
        percent = BUSY_PERCENT if gpu.tasks else sample.utilization_percent
        seconds = holders.add_sample(sample.gpu_id, gpu.instance_id, percent, at_s)
        if seconds and (instance := tx.store.instances.get(gpu.instance_id)) is not None:
            holders.add_idle(instance.owner, seconds, at_s)
            was_idle = True
    for reading in gpu.tasks:
        percent = sample.utilization_percent if reading.part is None else reading.part.utilization_percent
        seconds = holders.add_sample(sample.gpu_id, reading.task_id, percent, at_s)
        if seconds and (task := tx.store.tasks.get(reading.task_id)) is not None:
            shared_mib = task.demand.gpu_memory_mib
            part = min(1.0, shared_mib / gpu.memory_mib) if shared_mib and gpu.memory_mib else 1.0
            holders.add_idle(task.owner, seconds * part, at_s)
            was_idle = True
    return was_idle


def idle_rows(tx: Tx[Store]) -> list[dict[str, Any]]:
    """Describe the tasks and instances whose GPUs have done nothing for as long as `[usage] idle_after_s` says."""
    return [describe(tx, holder, since_s) for holder, since_s, _ in long_idle(tx, SHOWN_MAX)]


def long_idle(tx: Tx[Store], limit: int, *, unnoted: bool = False) -> Iterator[tuple[Task | Instance, float, str]]:
    """Yield the tasks and instances that are idle for long, each with the time since when, and its id."""
    after_s = tx.settings.usage.idle_after_s
    if not after_s:
        return
    for holder, time in tx.store.idle_holders.since(tx.now_s - after_s).items():
        found = find_holder(tx, holder)
        if found is not None and not (unnoted and time.noted_at_s is not None) and limit > 0:
            limit -= 1
            yield found, time.since_s, holder


def find_holder(tx: Tx[Store], holder: str) -> Task | Instance | None:
    """Return the task or the instance, if it still holds GPUs."""
    task = tx.store.tasks.get(holder)
    if task is not None:
        return task if task.instance_id is not None and task.state is not TaskState.STOPPED else None
    instance = tx.store.instances.get(holder)
    if instance is None or instance.host_id is None or instance.state is InstanceState.TERMINATED:
        return None
    return instance


def describe(tx: Tx[Store], holder: Task | Instance, since_s: float) -> dict[str, Any]:
    row: dict[str, Any] = {"owner": holder.owner, "sinceS": since_s, "region": holder.region, "cluster": holder.cluster or None}
    if isinstance(holder, Instance):
        return {**row, "instance": ec2_id(holder.id), "gpus": float(holder.gpus)}
    gpus = tx.store.owner_uses.leased_by_task(holder.id) / WHOLE
    return {**row, "task": holder.id, "taskName": holder.name, "arrayIndex": holder.array_index, "gpus": gpus}
