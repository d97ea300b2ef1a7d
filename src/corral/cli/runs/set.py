"""`corral set` changes tasks that wait: their priority, time limit and GPUs. It also holds and releases them.

Corral's operation UpdateWaitingTasks makes the changes. It refuses tasks that have got their resources in the meantime.
"""

from __future__ import annotations

from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, call, cluster_option, find_endpoint, is_aws
from corral.cli.printing.errors import CliError, RunNotFound
from corral.cli.printing.output import DURATION, count, print_json, print_line, print_message, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import find_runs, is_glob
from corral.cli.runs.recorded_runs import find_recorded
from corral.cli.runs.values import GPU_COUNT, PRIORITY_MAX, whole_units

TASKS_MAX = 100  # tasks in one request
SHOWN_MAX = 10  # if more tasks are changed, the others are only counted
NO_LIMIT = "none"


class TimeLimit(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions
    """Parses the value of --time: a duration as in `corral run --time`, or `none`, which is 0."""

    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return 0 if str(value).lower() == NO_LIMIT else DURATION.convert(value, param, ctx)


@click.command(short_help="Change tasks that wait: priority, time limit, GPUs, hold.")
@data_option
@click.option(
    "--priority", type=click.IntRange(-PRIORITY_MAX, PRIORITY_MAX), metavar="N", help="Higher numbers start first (default: 0)."
)
@click.option("--time", "-t", "limit_s", type=TimeLimit(), help="The time limit: 90s, 30m, 1h30m, 1:30:00, or `none`.")
@click.option("--gpus", "-g", type=GPU_COUNT, help="GPUs to reserve: a number, or `all` GPUs of a host.")
@click.option("--hold/--release", "held", default=None, help="Do not start the tasks before --release or `corral release`.")
@cluster_option("The cluster of tasks that are not given as ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as JSON: what changed, their state and their place in line.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("WAITING"))
def set_(
    data: DataFolder, priority: int | None, limit_s: int | None, gpus: str | None, held: bool | None, cluster: str | None,
    as_json: bool, given: tuple[str, ...],
) -> None:  # fmt: skip
    """Change tasks that wait. A task that has started is not changed.

    A task keeps its place in line. Only another priority and a hold change it. `corral hold` holds a GPU, not a task.

    TASK is a name, an id, a prefix of an id, a glob, an ARN, or the id of an array. The name of an array means all its tasks that
    wait. `NAME:17` is one task of an array.
    """
    options = {"priority": priority, "held": held, "timeLimitSeconds": limit_s, "gpus": gpus}
    change = {name: value for name, value in options.items() if value is not None}
    if not change:
        raise click.UsageError("say what to change: --priority, --time, --gpus, --hold or --release.")
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("the endpoint is AWS, where tasks that wait cannot be changed: `corral set` works only with Corral.")
    found = dict.fromkeys(run for each in given for run in _runs(endpoint, each, cluster))
    rows: list[dict[str, Any]] = []
    for of_cluster in dict.fromkeys(name for name, _ in found):
        ids = [task_id for name, task_id in found if name == of_cluster]
        for start in range(0, len(ids), TASKS_MAX):
            part = {"cluster": of_cluster, "tasks": ids[start : start + TASKS_MAX], **change}
            rows += call(endpoint, "UpdateWaitingTasks", part)[0]["tasks"]
    changed, others = [row for row in rows if row["changed"]], [row for row in rows if not row["changed"]]
    if not changed:
        states = dict.fromkeys(row["state"] for row in others)
        shown = ", ".join(f"{row['name']} ({tasks.short(row['task'])}) is {row['state']}" for row in others[:SHOWN_MAX])
        shown = shown if len(others) <= SHOWN_MAX else f"{count(len(others), 'task')} are {' or '.join(states)}"
        raise CliError(f"{shown}: `corral set` changes only tasks that wait.")
    if as_json:
        print_json(rows)
        return
    for row in changed[:SHOWN_MAX]:
        print_line(f"{row['name']} ({tasks.short(row['task'])}): {'; '.join([*_changes(change), *_place(row)])}")
    if len(changed) > SHOWN_MAX:
        print_line(f"and {len(changed) - SHOWN_MAX} more tasks: {', '.join(_changes(change))}")
    if others:
        verb = "has started or ended, and was" if len(others) == 1 else "have started or ended, and were"
        print_message(f"{count(len(others), 'task')} {verb} not changed")


def _runs(endpoint: Endpoint, given: str, cluster: str | None) -> list[tuple[str, str]]:
    try:
        return find_runs(endpoint, given, cluster, unfinished=True)
    except RunNotFound:
        if is_glob(given) or not (recorded := find_recorded(endpoint, given)):
            raise
        raise CliError(f"{tasks.label(recorded[-1].task)} has ended: `corral set` changes only tasks that wait.") from None


def _changes(change: dict[str, Any]) -> list[str]:
    """Say what has changed, in the order of the options."""
    shown = []
    if "priority" in change:
        shown.append(f"priority {change['priority']}")
    if "timeLimitSeconds" in change:
        limit_s = change["timeLimitSeconds"]
        shown.append(f"time limit {whole_units(limit_s)}" if limit_s else "no time limit")
    if "gpus" in change:
        gpus = change["gpus"]
        shown.append("all GPUs" if gpus == "ALL" else f"{gpus} GPU{'s' * (gpus != '1')}")
    if "held" in change:
        shown.append("held" if change["held"] else "released")
    return shown


def _place(row: dict[str, Any]) -> list[str]:
    """Say what has become of a changed task: it starts, or has a place in line, or waits for something else."""
    if row["state"] != "WAITING":
        return ["starts now" if row["state"] == "PENDING" else str(row["state"])]
    before = f", was {row['placeBefore']}" if row["placeBefore"] not in (None, row["place"]) else ""
    if row["place"] is not None:
        return [f"place {row['place']} in line{before}"]
    lost = [f"no place in line{before}"] if before else []
    return [*lost, f"`corral release {row['name']}` releases it" if row["held"] else shorten_ids(row["reason"])]
