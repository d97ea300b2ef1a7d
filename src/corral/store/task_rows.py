"""Conversion between database rows and the model's tasks and runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import msgspec
import orjson
from msgspec.structs import fields

from corral.core.database import Row
from corral.model.pause import Pause
from corral.model.run import RunState
from corral.model.task import Demand, PlacementRules, Run, Task, TaskState

# The fields of tasks and runs, in the order of their columns. The last five fields of a task are its demand.
TASK_FIELDS = (
    "id", "region", "cluster", "definition_arn", "pool", "state", "desired", "created_at_s", "version", "instance_id",
    "placed_at_s", "started_at_s", "stopping_at_s", "stopped_at_s", "stop_code", "stopped_reason", "family", "group", "started_by",
    "details", "plain", "time_limit_s", "launch_type", "owner", "pause", "gpus", "cpu_units", "memory_mib", "rules",
    "gpu_memory_mib",
)  # fmt: skip
RUN_FIELDS = (
    "id", "task_id", "container", "position", "essential", "gpus", "state", "gpu_ids", "pid", "exit_code", "reason", "started_at_s",
    "stopped_at_s", "waits", "restarts", "health", "about", "gpu_memory_mib",
)  # fmt: skip
assert set(TASK_FIELDS[:-5]) | {"demand", "runs"} == {field.name for field in fields(Task)}
assert set(RUN_FIELDS) == {field.name for field in fields(Run)}
_PAUSES = msgspec.json.Decoder(Pause)
COLUMNS = {"group": "task_group", "time_limit_s": "time_limit"}  # field → column, if their names differ
TASK_COLUMNS, RUN_COLUMNS = (
    ", ".join(COLUMNS.get(field, field.replace("_at_s", "_at")) for field in names) for names in (TASK_FIELDS, RUN_FIELDS)
)
INSERT_TASK, INSERT_RUN = f"INSERT INTO task ({TASK_COLUMNS})", f"INSERT INTO run ({RUN_COLUMNS})"
INSERT_LEASE = "INSERT INTO lease (gpu_id, run_id, mode, instance_id)"
TASK_STATES = {state.value: state for state in TaskState}
RUN_STATES = {state.value: state for state in RunState}


def values_of_task(task: Task) -> tuple[Any, ...]:
    """The values for INSERT_TASK. `_value_` of an enumeration is faster than `value`, which is a descriptor of Python."""
    return (
        task.id, task.region, task.cluster, task.definition_arn, task.pool, task.state._value_, task.desired._value_,
        task.created_at_s, task.version, task.instance_id, task.placed_at_s, task.started_at_s, task.stopping_at_s,
        task.stopped_at_s, task.stop_code, task.stopped_reason, task.family, task.group, task.started_by,
        dumps(task.details), task.plain, task.time_limit_s, task.launch_type, task.owner, pause_text(task.pause),
        task.demand.gpus, task.demand.cpu_units, task.demand.memory_mib, _rules_text(task.demand.rules),
        task.demand.gpu_memory_mib,
    )  # fmt: skip


def values_of_run(run: Run) -> tuple[Any, ...]:
    """The values for INSERT_RUN."""
    return (
        run.id, run.task_id, run.container, run.position, run.essential, run.gpus, run.state._value_, dumps(run.gpu_ids), run.pid,
        run.exit_code, run.reason, run.started_at_s, run.stopped_at_s, run.waits, run.restarts, run.health, None,
        run.gpu_memory_mib,
    )  # fmt: skip


# Positions of the columns that need a conversion, and functions that return values in the order of the fields of Task and Run.
_STATE, _DESIRED, _DETAILS, _PLAIN, _PAUSE, _ASK = map(TASK_FIELDS.index, ("state", "desired", "details", "plain", "pause", "gpus"))
_IN_TASK = itemgetter(*map((*TASK_FIELDS, "demand", "runs").index, Task.__struct_fields__))
_ESSENTIAL, _RUN_STATE, _GPU_IDS, _WAITS, _ABOUT = map(RUN_FIELDS.index, ("essential", "state", "gpu_ids", "waits", "about"))
_IN_RUN = itemgetter(*map(RUN_FIELDS.index, Run.__struct_fields__))


def task_of(row: Row, runs: Sequence[Row]) -> Task:
    gpus, cpu_units, memory_mib, rules, gpu_memory_mib = row[_ASK:]
    demand = Demand(gpus, cpu_units, memory_mib, placement_rules_of(rules), (), gpu_memory_mib)
    found = [*row, demand, tuple([_run_of(run) for run in runs])]
    found[_STATE], found[_DESIRED] = TASK_STATES[found[_STATE]], TASK_STATES[found[_DESIRED]]
    found[_DETAILS] = orjson.loads(found[_DETAILS])
    found[_PLAIN] = bool(found[_PLAIN])
    if found[_PAUSE] is not None:
        found[_PAUSE] = pause_of(found[_PAUSE])
    return Task(*_IN_TASK(found))


def _run_of(row: Row) -> Run:
    found = list(row)
    found[_ESSENTIAL], found[_WAITS] = bool(found[_ESSENTIAL]), bool(found[_WAITS])
    found[_RUN_STATE] = RUN_STATES[found[_RUN_STATE]]
    found[_GPU_IDS] = tuple(orjson.loads(found[_GPU_IDS]))
    found[_ABOUT] = orjson.loads(found[_ABOUT]) if found[_ABOUT] else None
    return Run(*_IN_RUN(found))


def _rules_text(rules: PlacementRules | None) -> str | None:
    if rules is None:
        return None
    members = [rules.scope, rules.member_of, rules.distinct, rules.strategy, rules.group, rules.depends_on_tasks]
    return dumps([*members, rules.instance_group, rules.account])


def placement_rules_of(text: str | None) -> PlacementRules | None:
    if text is None:
        return None
    scope, member_of, distinct, strategy, *others = orjson.loads(text)
    return PlacementRules(scope, tuple(member_of), distinct, tuple((kind, of) for kind, of in strategy), *others)


def pause_text(pause: Pause | None) -> str | None:
    return None if pause is None else msgspec.json.encode(pause).decode()


def pause_of(text: str) -> Pause:
    return _PAUSES.decode(text)


def dumps(value: Any) -> str:
    return orjson.dumps(value).decode()


@lru_cache(maxsize=256)
def update_task(columns: tuple[str, ...]) -> str:
    """Return the statement that changes a task. Other columns are not written, because SQLite would update their indexes."""
    changes = "".join([f", {column} = ?" for column in columns])
    return f"UPDATE task SET state = ?, version = version + 1{changes} WHERE id = ? AND version = ?"
