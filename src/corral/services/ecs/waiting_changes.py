"""Changes of tasks that wait: `corral set` changes their priority, time limit and GPUs, and holds or releases them.

A change is one transaction. It is refused if the task has got its resources in the meantime. A waiting task has no lease, only a
claim, which is an entry in the waiting list for capacity. If its demand changes, its claim is replaced by a claim with the new
demand and the same rank, so that it keeps its place. The scheduler grants the new claim like any other.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.fleet.clusters import pools_of
from corral.fleet.limits import why_refused
from corral.model.ecs_service import STARTED_BY as STARTED_BY_SERVICE
from corral.model.job import STARTED_BY as STARTED_BY_BATCH
from corral.model.placement import TASK
from corral.model.queue_options import HOLD_TAG, PRIORITY_TAG
from corral.model.task import Task, TaskState
from corral.services.ecs.errors import InvalidParameterException
from corral.services.ecs.gpu_requirements import gpu_count
from corral.services.ecs.launch import never_fits
from corral.services.ecs.task_progress import mark_provider
from corral.services.ecs.task_queue import rank_of, read_options, tags_changed
from corral.services.ecs.task_spec import TIME_LIMIT_TAG, TaskSpec, longest_time_of, spec_of, task_spec
from corral.store import Store


class WaitingChange(Struct, frozen=True, forbid_unknown_fields=True):
    """What changes. None: the value stays."""

    priority: int | None = None
    held: bool | None = None
    time_limit_s: int | None = None  # 0: no time limit
    gpus: str | None = None  # a number, or ALL

    def tags(self, tags: list[dict[str, str]]) -> list[dict[str, str]]:
        changed: dict[str, str | None] = {}  # None: the tag is removed
        if self.priority is not None:
            changed[PRIORITY_TAG] = str(self.priority)
        if self.held is not None:
            changed[HOLD_TAG] = "true" if self.held else None
        if self.time_limit_s is not None:
            changed[TIME_LIMIT_TAG] = str(self.time_limit_s) if self.time_limit_s else None
        added = [{"key": key, "value": value} for key, value in changed.items() if value is not None]
        return [*(tag for tag in tags if tag["key"] not in changed), *added]


def is_waiting(task: Task) -> bool:
    return task.state is TaskState.PROVISIONING and task.desired is TaskState.RUNNING


def change_waiting(tx: Tx[Store], task: Task, change: WaitingChange) -> None:
    assert is_waiting(task)
    started_by = task.started_by or ""
    if started_by.startswith((STARTED_BY_SERVICE, STARTED_BY_BATCH)):
        owner = "a service" if started_by.startswith(STARTED_BY_SERVICE) else "a Batch job"
        raise InvalidParameterException(f"{_named(task)} belongs to {owner}, which decides what its tasks need.")
    before = task.details.get("tags", [])
    after = task.but(details={**task.details, "tags": change.tags(before)})
    spec = spec_of(tx, task)
    if change.gpus is not None:
        after, spec = _with_gpus(tx, after, spec, change.gpus)
        if (why := why_refused(tx, task.owner, after.demand)) is not None:
            raise InvalidParameterException(f"{_named(task)} was not changed: {why}")
    tags_changed(tx, tx.store.tasks.change_waiting(task, after, longest_time_of(after, spec)), before)
    for pool in pools_of(tx, task.region, task.cluster):
        tx.mark(f"pool:{pool}")
    mark_provider(tx, task)
    tx.changed(f"task:{task.id}")


def lower_priority(tx: Tx[Store], task: Task, priority: int) -> None:
    """Lower the priority of a task that waits for capacity, because a limit of its owner does not allow a higher one."""
    tags = WaitingChange(priority=priority).tags(task.details.get("tags", []))
    after = task.but(details={**task.details, "tags": tags})
    tx.store.tasks.change_waiting(task, after, longest_time_of(after, spec_of(tx, task)))
    if (claim := tx.store.claims.get(TASK, task.id)) is not None:
        tx.store.claims.change(claim, claim._replace(rank=rank_of(after, priority)))
    tx.mark(f"pool:{task.pool}")
    tx.changed(f"task:{task.id}")


def _with_gpus(tx: Tx[Store], task: Task, spec: TaskSpec, gpus: str) -> tuple[Task, TaskSpec]:
    """Return the task with another number of GPUs. Its overrides contain the number, as if RunTask had got it."""
    requiring = [each for each in spec.containers.values() if gpu_count(each.definition)]
    if task.demand.gpu_memory_mib:
        raise _refused(task, "shares a GPU with other tasks, and has one GPU")
    if task.launch_type == "FARGATE":
        raise _refused(task, "is a task of Fargate, which has no GPUs")
    if len(requiring) > 1:
        raise _refused(task, "has several containers with GPUs")
    chosen = next(iter(requiring), None) or next(each for each in spec.containers.values() if each.definition["essential"])
    name = chosen.definition["name"]
    others = [need for need in chosen.definition.get("resourceRequirements", ()) if need["type"] != "GPU"]
    wanted = [*others, {"type": "GPU", "value": gpus}] if gpus != "0" else others
    overrides: dict[str, Any] = task.details.get("overrides") or {}
    containers = {each["name"]: each for each in overrides.get("containerOverrides", ())}
    containers[name] = {**containers.get(name, {"name": name}), "resourceRequirements": wanted}
    overrides = {**overrides, "containerOverrides": list(containers.values())}
    spec = task_spec(spec.document, overrides)
    demand = replace(spec.demand, rules=task.demand.rules)
    roams = tx.store.claims.roams(TASK, task.id) or ((queued := tx.store.task_queue.get(task.id)) is not None and queued.roams)
    pools = pools_of(tx, task.region, task.cluster) if roams else (task.pool,)
    if read_options(task.details["tags"]).refuse_unfit and (why := never_fits(tx, pools, demand)) is not None:
        raise InvalidParameterException(f"{_named(task)} was not changed: {why.detail}.")
    gpus_of = {run.container: run.gpus for run in spec.runs}
    runs = tuple(run.but(gpus=gpus_of[run.container]) for run in task.runs)
    return task.but(details={**task.details, "overrides": overrides}, demand=demand, runs=runs), spec


def _refused(task: Task, why: str) -> ApiError:
    return InvalidParameterException(f"The GPUs of {_named(task)} cannot be changed: it {why}.")


def _named(task: Task) -> str:
    return f"{task.label} ({task.id[:8]})"
