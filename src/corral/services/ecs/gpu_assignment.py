"""GPU assignment: decides which GPUs each container of a placed task gets.

A placement is the slot and the GPUs that the scheduler has chosen for a task. A run with `gpus=FREE_GPUS` requires no GPU, but gets
free GPUs (`gpu_requirements.py`).
"""

from __future__ import annotations

from collections.abc import Collection

from corral.core.transactions import Tx
from corral.decide.placement.gpu_choice import split_gpus
from corral.decide.placement.place import spare_gpus
from corral.fleet.newcomers import taking_capacity
from corral.fleet.shares import most_spare_gpus
from corral.model.placement import Claim, Placement, Slot
from corral.model.run import RunState
from corral.model.task import ALL_GPUS, FREE_GPUS, Run, Task, TaskState
from corral.services.ecs.task_spec import TaskSpec
from corral.store import Store


def assign_gpus(
    tx: Tx[Store], task: Task, placement: Placement, spec: TaskSpec, runs: tuple[Run, ...], claim: Claim | None = None,
    kept: Collection[str] = (),
) -> tuple[Run, ...]:  # fmt: skip
    """Assign the GPUs of a placement to the runs of a task, before the task is stored as placed.

    `claim` is None for a task that did not wait. Runs with FREE_GPUS get none of the GPUs in `kept`.
    """
    pool = tx.store.fleet.pool(task.pool)
    runs = share_gpus(runs, placement.gpu_ids, pool.slot(placement.slot_id))
    if FREE_GPUS in [run.gpus for run in runs]:
        indexes = {str(gpu.index): gpu.gpu_id for gpu in tx.store.instances.gpus(placement.slot_id)}
        visible = {run.id: spec.containers[run.container].visible_gpus for run in runs}
        spare = tuple(gpu_id for gpu_id in spare_gpus(pool, placement, claim) if gpu_id not in kept)
        most = most_spare_gpus(tx, task.pool, task.owner, len(placement.gpu_ids))
        runs = _share_spare_gpus(runs, spare, visible, indexes, most)
    return runs


def assign_free_gpus(
    tx: Tx[Store], task: Task, runs: tuple[Run, ...], slot_id: str, gpu_ids: tuple[str, ...], spec: TaskSpec
) -> tuple[Run, ...]:
    """Assign free GPUs to the runs of a Batch job whose image or environment sets NVIDIA_VISIBLE_DEVICES.

    `gpu_ids` are the free GPUs. A container gets those that the variable in its environment names. If the image sets the variable,
    `services/batch/job_specs.py` has copied the value to the environment.
    """
    visible = {run.id: spec.containers[run.container].visible_gpus for run in runs}
    runs = tuple(run.but(gpus=FREE_GPUS) if visible[run.id] else run for run in runs)
    indexes = {str(gpu.index): gpu.gpu_id for gpu in tx.store.instances.gpus(slot_id)}
    return _share_spare_gpus(runs, gpu_ids, visible, indexes, most_spare_gpus(tx, task.pool, task.owner, 0))


def give_spare_gpus(tx: Tx[Store], task_id: str, attempt_id: str, visible: str) -> tuple[Task, Run] | None:
    """Assign free GPUs to a run whose image sets NVIDIA_VISIBLE_DEVICES to `visible`. The host of the run has reported this value.

    Return the task and the run. The caller must then order the run to start. Return None if the run has started or its task is
    stopping.
    """
    task = tx.store.tasks.get(task_id)
    assert task is not None and task.instance_id is not None
    run = next((run for run in task.runs if run.attempt_id == attempt_id and run.state is RunState.PENDING), None)
    if run is None or task.desired is not TaskState.RUNNING:
        return None
    if run.gpus != FREE_GPUS:  # otherwise the run already has its GPUs, and the order to start was lost
        pool, placement = tx.store.fleet.pool(task.pool), Placement(task.instance_id, ())
        indexes = {str(gpu.index): gpu.gpu_id for gpu in tx.store.instances.gpus(task.instance_id)}
        most = most_spare_gpus(tx, task.pool, task.owner, 0)
        [run] = _share_spare_gpus((run.but(gpus=FREE_GPUS),), spare_gpus(pool, placement), {run.id: visible}, indexes, most)
        after = task.but(runs=tuple(run if each.id == run.id else each for each in task.runs))
        with taking_capacity(tx, task.pool):
            tx.store.tasks.change(task, after, tx.now_s)
        tx.changed(f"task:{task.id}")
        task = after
    return task, run


def share_gpus(runs: tuple[Run, ...], gpu_ids: tuple[str, ...], slot: Slot | None = None) -> tuple[Run, ...]:
    """Divide the GPUs of a task among its containers, in the order of the task definition.

    The GPUs of one container are as close to each other as possible. If containers share a GPU, each of them gets this GPU.
    """
    if len(runs) == 1:
        return runs if runs[0].gpus in (0, FREE_GPUS) else (runs[0].but(gpu_ids=gpu_ids),)
    if any(run.gpu_memory_mib for run in runs):
        return tuple(run.but(gpu_ids=gpu_ids) if run.gpu_memory_mib else run for run in runs)
    counts = [len(gpu_ids) if run.gpus == ALL_GPUS else run.gpus for run in runs if run.gpus not in (0, FREE_GPUS)]
    assert sum(counts) == len(gpu_ids), "every GPU of a placement belongs to a container"
    if not counts:
        return runs
    shares = iter([gpu_ids] if len(counts) == 1 else split_gpus(slot, gpu_ids, counts))
    return tuple(run if run.gpus in (0, FREE_GPUS) else run.but(gpu_ids=next(shares)) for run in runs)


def _share_spare_gpus(
    runs: tuple[Run, ...], spare: tuple[str, ...], visible: dict[str, str | None], indexes: dict[str, str], most: float
) -> tuple[Run, ...]:
    """Assign each free GPU to the first container whose NVIDIA_VISIBLE_DEVICES contains it, but at most `most` GPUs.

    A privileged container without this variable counts as if the variable contained all GPUs.
    """
    shared, left = [], list(spare)
    for run in runs:
        if run.gpus == FREE_GPUS:
            names = [name.strip() for name in (visible[run.id] or "").split(",")]
            wanted = left if "all" in names else [indexes.get(name, name) for name in names]
            allowed = int(min(most, len(left)))
            run = run.but(gpu_ids=tuple([gpu_id for gpu_id in left if gpu_id in wanted][:allowed]))
            most -= len(run.gpu_ids)
            left = [gpu_id for gpu_id in left if gpu_id not in run.gpu_ids]
        shared.append(run)
    return tuple(shared)
