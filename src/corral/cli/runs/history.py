"""`corral history` lists runs that have ended, including runs that ECS no longer describes."""

from __future__ import annotations

import shlex
from datetime import datetime
from typing import Any

import click

from corral.cli.client import owners
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import (
    ago,
    format_duration,
    parse_period,
    print_json,
    print_message,
    print_table,
    print_text,
    screen_width,
    shorten_ids,
)
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_recorded
from corral.cli.runs.recorded_runs import recorded_runs

DEFAULT_LIMIT = 30
LIMIT_MAX = 100_000
WIDE = 120  # columns of a screen that has room for longer names, the waiting time, and the commit
WIDE_NAME, NARROW_NAME = 32, 16
COMMAND_LINES = 4  # `corral show` prints the whole command and the whole reason
OPTIONAL = ("USER", "PAUSED", "HOST", "GPUS", "MEMORY", "LOAD", "GIT")  # columns that are omitted if they are empty


@click.command(short_help="List the runs that have ended.")
@data_option
@click.option(
    "--failed", is_flag=True, help="Only runs that failed by themselves: an exit code other than 0, the time limit, or no start."
)
@click.option("--since", metavar="TIME", help="Only runs that ended since this time: 2d or 12h ago, or 2026-01-31T08:00:00Z.")
@click.option("--runs", "only_runs", is_flag=True, help="Leave out the tasks of services and of Batch jobs.")
@click.option(
    "--limit", type=click.IntRange(1, LIMIT_MAX), help=f"The number of runs (default: {DEFAULT_LIMIT}; with --since, all)."
)
@click.option("--mine", is_flag=True, help="Only runs that you have started.")
@click.option("--cluster", help="Only runs of this cluster (default: all clusters).")
@click.option("--json", "as_json", is_flag=True, help="Print the runs as JSON, in the form of DescribeTasks with more members.")
@click.argument("name", required=False, shell_complete=complete_recorded)
def history(
    data: DataFolder, failed: bool, since: str | None, only_runs: bool, limit: int | None, mine: bool, cluster: str | None,
    as_json: bool, name: str | None,
) -> None:  # fmt: skip
    """List the latest runs that have ended, oldest first. NAME is a name or a glob, and selects the runs with this name.

    Corral keeps ended runs for 30 days (`[history] days` in corral.toml). EXIT is the exit code. RAN is the time from the start to
    the end, and PAUSED how much of it the run was paused. MEMORY is the highest memory use of one GPU. LOAD is the mean utilization
    of the GPUs.
    """
    endpoint = find_endpoint(data)
    if is_aws(endpoint):
        raise CliError("`corral history` works only with Corral. AWS shows a stopped task for an hour: use `corral ps --all`.")
    filters = {"name": name, "cluster": cluster, "failed": failed, **parse_period(since)}
    owner = owners.own(endpoint) if mine else ""
    limit = limit or (DEFAULT_LIMIT if since is None else LIMIT_MAX)
    chosen = {key: value for key, value in filters.items() if value not in (None, False, "")}
    found, has_more, now = recorded_runs(endpoint, limit, only_runs=only_runs, owner=owner, **chosen)
    found.reverse()
    if as_json:
        print_json(found)
    elif found:
        _print(found, now)
        if has_more:
            print_message(f"there are older runs: --limit {2 * limit} shows more, and --since and --failed select runs.")
    else:
        print_text(_nothing(name, failed=failed, since=since))


def _nothing(name: str | None, *, failed: bool, since: str | None) -> str:
    kind = "failed run" if failed else "run"
    named = f" with the name {name}" if name else ""
    ended = f" that ended since {since}" if since else " that has ended"
    return f"No {kind}{named}{ended}. `corral ps` lists the tasks that run or wait."


def _print(found: list[dict[str, Any]], now: datetime | None) -> None:
    width = screen_width()
    is_wide = width is None or width >= WIDE
    rows = [_row(task, now, is_wide=is_wide) for task in found]
    if not owners.several(found):
        rows = [row | {"USER": ""} for row in rows]
    names = {"NAME": WIDE_NAME if is_wide else NARROW_NAME}
    print_table(rows, width=width, widths_max=names, lines_max=COMMAND_LINES, optional=OPTIONAL, folded=("NAME",))


def _row(task: dict[str, Any], now: datetime | None, *, is_wide: bool) -> dict[str, str]:
    use = task.get("gpuUse")
    row = {
        "ID": tasks.short(tasks.id_of(task)),
        "NAME": tasks.label(task),
        "USER": owners.shown(task.get("owner")),
        "ENDED": ago(task["stoppedAt"], now),
        "EXIT": str(task["exitCode"]) if "exitCode" in task else "-",
        **({"WAITED": duration(task.get("waitingSeconds"))} if is_wide else {}),
        "RAN": duration(task.get("wallSeconds")),
        "PAUSED": duration(task["pausedSeconds"]) if task.get("pausedSeconds") else "",
        "HOST": task.get("host", ""),
        "GPUS": str(task["gpus"] or ""),
        "MEMORY": gib(use["peakMemoryMiB"]) if use else "",
        "LOAD": f"{use['meanUtilizationPercent']:.0f}%" if use else "",
        **({"GIT": task.get("git", "")} if is_wide else {}),
    }
    # The reason is empty if the exit code is the only reason.
    command, why = shlex.join(task.get("command", ())), shorten_ids(tasks.reason(task))
    return {**row, "COMMAND": f"{command} ({why})" if command and why else command or why}


def duration(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(round(seconds))


def gib(mib: int) -> str:
    return f"{mib / 1024:.1f}G" if mib >= 1024 else f"{mib}M"
