"""`corral pause` pauses running tasks: their GPUs become free, and their GPU memory moves to the memory of the host.

Corral's operation PauseTask begins a pause, and DescribeTaskPause waits while the memory moves. `corral resume` is in `resume.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, NotCorral, call, client, cluster_option, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, print_json, print_message, print_progress, print_text
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import describe_runs, find_runs
from corral.cli.runs.task_logs import through_outages

PAUSING, PAUSED, RESUMING, RUNNING = "pausing", "paused", "resuming", "running"
WAIT_S = 5.0  # the longest wait of one request
DRAW_S = 1.0  # how often the line on the terminal changes
SHOWN_MAX = 20  # if more tasks could not be changed, the others are only counted

Row = dict[str, Any]  # the response of PauseTask, ResumeTask or DescribeTaskPause; or `task`, `name` and `error`


@click.command(short_help="Pause running tasks, so that others get their GPUs.")
@data_option
@click.option("--reason", metavar="TEXT", help="A text that lists show while the tasks are paused.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the memory of the GPUs has moved.")
@cluster_option("The cluster of tasks that are not given as ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the pauses as JSON.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("RUNNING"))
def pause(data: DataFolder, reason: str | None, no_wait: bool, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Pause running tasks. Their processes stop, what they have on GPUs moves to the memory of the host, and their GPUs are free.

    A task continues with `corral resume`, on the same GPUs. Until then it keeps its memory. Its time limit does not count.

    TASK is a name, an id, a prefix of an id, a glob, an ARN, or the id of an array. The name of an array means all its tasks that
    run. `NAME:17` is one task of an array. The exit code is 1 if one of the tasks could not be paused.
    """
    endpoint = find_endpoint(data)
    refuse_aws(endpoint, "pause")
    found = find_tasks(endpoint, given, cluster)
    running = [(of_cluster, task) for of_cluster, task in found if is_running(task)]
    if not running:
        shown = ", ".join(f"{tasks.label(task)} is {tasks.state(task)}" for _, task in found[:SHOWN_MAX])
        raise CliError(f"{shown}: `corral pause` pauses only tasks that run. `corral set --hold` holds tasks that wait.")
    given_reason = {"reason": reason} if reason else {}
    rows = [change(endpoint, "PauseTask", of_cluster, task, **given_reason) for of_cluster, task in running]
    if not no_wait:
        clusters = {tasks.id_of(task): of_cluster for of_cluster, task in running}
        rows = wait_while(endpoint, rows, clusters, lambda row: row["phase"] == PAUSING)
    report(rows, as_json, _outcome, lambda row: row.get("phase") in (PAUSING, PAUSED))
    if left := len(found) - len(running):
        print_message(
            f"{count(left, 'task')} of {count(len(found), 'task')} did not run, and {'was' if left == 1 else 'were'} not paused"
        )


def refuse_aws(endpoint: Endpoint, command: str) -> None:
    if is_aws(endpoint):
        raise CliError(f"the endpoint is AWS, where tasks cannot be paused: `corral {command}` works only with Corral.")


def find_tasks(endpoint: Endpoint, given: Sequence[str], cluster: str | None) -> list[tuple[str, dict[str, Any]]]:
    """Return the tasks that the arguments name, each with its cluster."""
    found = list(dict.fromkeys(run for each in given for run in find_runs(endpoint, each, cluster, unfinished=True)))
    return list(zip((of_cluster for of_cluster, _ in found), describe_runs(client(endpoint, "ecs"), found)))


def is_running(task: dict[str, Any]) -> bool:
    return bool(task["lastStatus"] == "RUNNING" and task["desiredStatus"] == "RUNNING")


def change(endpoint: Endpoint, operation: str, cluster: str, task: dict[str, Any], **more: Any) -> Row:
    """Pause or continue one task. If the server refuses it, return a row with the error."""
    asked = {"cluster": cluster, "task": tasks.id_of(task), **more}
    try:
        return call(endpoint, operation, asked)[0]
    except NotCorral:
        raise
    except CliError as error:
        return {"task": tasks.id_of(task), "name": tasks.label(task), "error": error.message}


def wait_while(endpoint: Endpoint, rows: list[Row], clusters: dict[str, str], goes_on: Callable[[Row], bool]) -> list[Row]:
    """Wait until no task is in this state any more. On a terminal, a line shows what is waited for."""
    waited = list(rows)
    with _progress() as draw:
        for at, row in enumerate(rows):
            while "error" not in row and goes_on(row):
                wait_s = WAIT_S if draw is None else DRAW_S
                if draw is not None:
                    draw([each for each in waited if "error" not in each and goes_on(each)])
                asked = {"cluster": clusters[row["task"]], "task": row["task"], "waitSeconds": wait_s}
                try:
                    row = through_outages(partial(call, endpoint, "DescribeTaskPause", asked))[0]
                except NotCorral:
                    raise
                except CliError as error:
                    row = {"task": row["task"], "name": row["name"], "error": error.message}
                waited[at] = row
    return waited


@contextmanager
def _progress() -> Iterator[Callable[[list[Row]], None] | None]:
    """Give a function that draws a line about the tasks that are waited for. Give None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    began_s = time.monotonic()

    def draw(waited: list[Row]) -> None:
        first = waited[0]
        what = f"waits for its GPUs ({first['waitsFor']})" if first["returns"] else f"is {first['phase']}"
        more = f", and {len(waited) - 1} more" if len(waited) > 1 else ""
        print_progress(f"{first['name']} {what}, for {time.monotonic() - began_s:.0f} s{more}")

    try:
        yield draw
    finally:
        print_progress()


def report(rows: list[Row], as_json: bool, outcome: Callable[[Row], str], succeeded: Callable[[Row], bool]) -> None:
    """Print what has become of each task, and exit with 1 if one of them has failed."""
    failed = [row for row in rows if not succeeded(row)]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            if row not in failed:
                print_text(f"{_title(row)} {outcome(row)}")
    for row in failed[:SHOWN_MAX]:
        print_message(row["error"] if "error" in row else f"{_title(row)} {outcome(row)}")
    if len(failed) > SHOWN_MAX:
        print_message(f"and {len(failed) - SHOWN_MAX} more tasks could not be changed")
    if failed:
        sys.exit(1)


def _title(row: Row) -> str:
    return f"{row['name']} ({tasks.short(row['task'])})"


def _outcome(row: Row) -> str:
    if row["phase"] == PAUSING:
        return "is being paused"
    if row["phase"] == PAUSED:
        moved = f": {tasks.size(row['hostMemoryMiB'])} moved to the memory of the host" if row["hostMemoryMiB"] else ""
        return f"is paused{moved} in {row['moveOutSeconds']:.1f} s"
    if row["lastStatus"] in ("STOPPING", "STOPPED"):
        return "has ended"
    return f"could not be paused: {row['whyNot']}" if row["whyNot"] else f"is {row['phase']}"
