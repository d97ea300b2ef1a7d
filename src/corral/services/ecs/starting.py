"""From a task to what a host is told: the run's command, environment and log stream."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.decide.gpus import share
from corral.decide.place import spare_gpus
from corral.model.placement import Claim, Placement, Slot
from corral.model.run import LogTarget, RunSpec, RunState, StartOrder
from corral.model.task import ALL_GPUS, FREE_GPUS, Run, Task, TaskState
from corral.services.ecr.image_names import pull_from_here
from corral.services.ecs.definitions import names_gpus, visible_gpus
from corral.services.ecs.environment_files import files_of
from corral.services.ecs.inside import environment_inside
from corral.services.ecs.naming import arn, split_definition
from corral.services.ecs.secrets import secrets_of
from corral.services.ecs.task_spec import ContainerSpec, TaskSpec
from corral.store import Store


def with_gpus(
    tx: Tx[Store], pool_name: str, runs: tuple[Run, ...], placement: Placement, spec: TaskSpec, claim: Claim | None = None
) -> tuple[Run, ...]:
    """The runs of a task that is about to be placed, with their GPUs. Without a claim it is a newcomer."""
    pool = tx.store.fleet.pool(pool_name)
    runs = share_gpus(runs, placement.gpu_ids, pool.slot(placement.slot_id))
    if any(run.gpus == FREE_GPUS for run in runs):
        indexes = {str(gpu.index): gpu.gpu_id for gpu in tx.store.instances.gpus(placement.slot_id)}
        named = {run.id: visible_gpus(spec.containers[run.container].definition) for run in runs}
        runs = _share_spare(runs, spare_gpus(pool, placement, claim), named, indexes)
    return runs


def give_spare_gpus(tx: Tx[Store], task_id: str, attempt_id: str, named: str) -> tuple[Task, Run] | None:
    """A run's image asks for GPUs in the old way, which its host found out: give it what no task holds.

    Return the task and the run, which must be started with them. None: the run has started or is to stop.
    """
    task = tx.store.tasks.get(task_id)
    assert task is not None and task.instance_id is not None
    run = next((run for run in task.runs if run.attempt_id == attempt_id and run.state is RunState.PENDING), None)
    if run is None or task.desired is not TaskState.RUNNING:
        return None
    if run.gpus != FREE_GPUS:  # else it was given them before, and did not hear of it
        pool, placement = tx.store.fleet.pool(task.pool), Placement(task.instance_id, ())
        indexes = {str(gpu.index): gpu.gpu_id for gpu in tx.store.instances.gpus(task.instance_id)}
        [run] = _share_spare((run.but(gpus=FREE_GPUS),), spare_gpus(pool, placement), {run.id: named}, indexes)
        after = task.but(runs=tuple(run if each.id == run.id else each for each in task.runs))
        tx.store.tasks.change(task, after)
        tx.changed(f"task:{task.id}")
        task = after
    return task, run


def share_gpus(runs: tuple[Run, ...], gpu_ids: tuple[str, ...], slot: Slot | None = None) -> tuple[Run, ...]:
    """Each container its own: in the order in which they stand in the task definition, and close to each other."""
    if len(runs) == 1:
        return runs if runs[0].gpus in (0, FREE_GPUS) else (runs[0].but(gpu_ids=gpu_ids),)
    counts = [len(gpu_ids) if run.gpus == ALL_GPUS else run.gpus for run in runs if run.gpus not in (0, FREE_GPUS)]
    assert sum(counts) == len(gpu_ids), "every GPU of a placement belongs to a container"
    if not counts:
        return runs
    shares = iter([gpu_ids] if len(counts) == 1 else share(slot, gpu_ids, counts))
    return tuple(run if run.gpus in (0, FREE_GPUS) else run.but(gpu_ids=next(shares)) for run in runs)


def _share_spare(
    runs: tuple[Run, ...], spare: tuple[str, ...], named: dict[str, str | None], indexes: dict[str, str]
) -> tuple[Run, ...]:
    """What nobody holds goes to the first container that names it in the old way."""
    shared, left = [], list(spare)
    for run in runs:
        if run.gpus == FREE_GPUS:
            words = [word.strip() for word in (named[run.id] or "").split(",")]
            wanted = left if "all" in words else [indexes.get(word, word) for word in words]
            run = run.but(gpu_ids=tuple(gpu_id for gpu_id in left if gpu_id in wanted))
            left = [gpu_id for gpu_id in left if gpu_id not in run.gpu_ids]
        shared.append(run)
    return tuple(shared)


def start_of(tx: Tx[Store], task: Task, run: Run, spec: TaskSpec) -> StartOrder:
    """What a host needs to start a run, or to look after one that it started."""
    container = spec.containers[run.container]
    log = log_target(task, run, container)
    secrets, no_secrets = secrets_of(tx, task, container.definition)
    files, no_files = files_of(tx, container.definition)
    settings = container_settings(tx, task, spec, container)
    pull = pull_from_here(tx.settings, container.image, task.region, tx.now_s) if settings is not None else None
    ordered = RunSpec(
        run_id=run.attempt_id,
        task_id=task.id,
        container=run.container,
        image=pull.image if pull is not None else container.image,
        command=container.command,
        environment={**container.environment, **secrets, **environment_inside(tx.settings, task, run)},
        gpu_ids=list(run.gpu_ids),
        working_directory=container.definition.get("workingDirectory"),
        stop_grace_s=container.stop_grace_s,
        ships_logs=log is not None,
        health=container.health_check,
        settings=settings,
        endpoint_url=tx.settings.endpoint_url,
        pull_always=pull is not None,
        registry_auth=pull.auth if pull is not None else "",
        image_may_ask=settings is not None and run.gpus == 0 and task.launch_type == "EC2" and not names_gpus(container.definition),
        environment_files=files,
    )
    return StartOrder(ordered, log, no_secrets or no_files)


def container_settings(tx: Tx[Store], task: Task, spec: TaskSpec, container: ContainerSpec) -> dict[str, Any] | None:
    """What a Docker engine is to be told beside command and environment, in ECS's shape; None: it is a plain process.

    Whether there is an engine, its host knows: without one `--runtime auto` is a plain process too.
    """
    if tx.settings.runtime == "process" or container.is_host_image:
        return None
    family, revision = split_definition(task.definition_arn)
    kept = ("networkMode", "pidMode", "ipcMode", "volumes")
    return {
        "container": {name: value for name, value in container.definition.items() if name != "environment"},
        "task": {
            **{name: spec.document[name] for name in kept if name in spec.document},
            "cpu": str(task.ask.cpu_units) if spec.cpu else None,
            "memory": str(task.ask.memory_mib) if spec.memory else None,
            "family": family,
            "revision": str(revision),
            "arn": arn(tx.settings.account, task.region, f"task/{task.cluster}/{task.id}"),
            "cluster": task.cluster,
        },
    }


def log_target(task: Task, run: Run, container: ContainerSpec) -> LogTarget | None:
    options = container.log_options
    if options is None:
        return None
    prefix = options.get("awslogs-stream-prefix")
    return LogTarget(
        region=options.get("awslogs-region", task.region),
        group=options["awslogs-group"],
        stream=f"{prefix}/{run.container}/{task.id}" if prefix else run.id,
        create_group=options.get("awslogs-create-group", "").lower() == "true",
    )
