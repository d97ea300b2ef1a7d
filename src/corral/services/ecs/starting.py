"""From a task to what a host is told: the run's command, environment and log stream."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.decide.lifecycle import startable
from corral.model.run import STOP_GRACE_S, LogTarget, RunSpec, Start
from corral.model.task import Run, Task
from corral.services.ecs.containers import health_check
from corral.services.ecs.inside import environment_inside
from corral.services.ecs.naming import split_definition
from corral.store import Store


def share_gpus(runs: tuple[Run, ...], gpu_ids: tuple[str, ...]) -> tuple[Run, ...]:
    """Each container its own, in the order in which they stand in the task definition."""
    shared, taken = [], 0
    for run in runs:
        shared.append(run.but(gpu_ids=gpu_ids[taken : taken + run.gpus]) if run.gpus else run)
        taken += run.gpus
    assert taken == len(gpu_ids), "every GPU of a placement belongs to a container"
    return tuple(shared)


def start_runs(tx: Tx[Store], task: Task) -> None:
    """Tell the host of a placed task to start what has not started."""
    assert task.host_id is not None
    for run in startable(task.runs):
        tx.start(task.host_id, start_of(tx, task, run))


def containers_of(tx: Tx[Store], task: Task) -> dict[str, dict[str, Any]]:
    """The container definitions of a task with its overrides laid over them, by name."""
    family, revision = split_definition(task.definition_arn)
    assert revision is not None
    return with_overrides(tx.store.document(task.region, family, revision), task.details.get("overrides", {}))


def with_overrides(document: dict[str, Any], overrides: dict[str, Any]) -> dict[str, dict[str, Any]]:
    by_name = {container["name"]: container for container in document["containerDefinitions"]}
    for override in overrides.get("containerOverrides", ()):
        container = by_name[override["name"]]
        merged = {**container, **override}
        if "environment" in override:
            environment = {pair["name"]: pair["value"] for pair in (*container["environment"], *override["environment"])}
            merged["environment"] = [{"name": name, "value": value} for name, value in environment.items()]
        by_name[override["name"]] = merged
    return by_name


def start_of(tx: Tx[Store], task: Task, run: Run) -> Start:
    """What a host needs to start a run, or to look after one that it started."""
    container = containers_of(tx, task)[run.container]
    log = log_target(task, run, container)
    spec = RunSpec(
        run_id=run.attempt_id,
        task_id=task.id,
        container=run.container,
        image=container["image"],
        command=[*container.get("entryPoint", ()), *container.get("command", ())],
        environment={
            **{pair["name"]: pair.get("value", "") for pair in container["environment"]},
            **environment_inside(tx.settings, task, run),
        },
        gpu_ids=list(run.gpu_ids),
        working_directory=container.get("workingDirectory"),
        stop_grace_s=float(container.get("stopTimeout", STOP_GRACE_S)),
        ships_logs=log is not None,
        health=health_check(container),
    )
    return Start(spec, log)


def log_target(task: Task, run: Run, container: dict[str, Any]) -> LogTarget | None:
    logging = container.get("logConfiguration")
    if not logging or logging["logDriver"] != "awslogs":
        return None
    options = logging["options"]
    prefix = options.get("awslogs-stream-prefix")
    return LogTarget(
        region=options.get("awslogs-region", task.region),
        group=options["awslogs-group"],
        stream=f"{prefix}/{run.container}/{task.id}" if prefix else run.id,
        create_group=options.get("awslogs-create-group", "").lower() == "true",
    )
