"""`corral ps` lists tasks, their GPUs, and why they wait or stopped.

A Corral server has a page with the unfinished tasks of a cluster: running tasks, and the first waiting tasks in the order in which
they will start. With other servers, and if the command line names tasks, the command calls ECS instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from corral.cli.client import owners
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import (
    Endpoint,
    NotCorral,
    call,
    client,
    cluster_option,
    find_endpoint,
    get_status,
    is_aws,
    list_runs,
)
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import (
    ago,
    count,
    parsed_date,
    print_json,
    print_message,
    print_table,
    print_text,
    screen_width,
    server_time,
    shorten_ids,
    start,
)
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import select

GPU_SHORT_ID = 12  # "GPU-" and eight digits
WIDE = 120  # a screen with at least this many columns has a column for what a task needs
NAME_MIN = 20  # the name of a task may have this many columns, or a quarter of the screen
GPUS_WIDTH = 12
ELSEWHERE_SHOWN = 3  # the number of other clusters that are named
LIMIT_DEFAULT, LIMIT_MAX = 100, 5_000
OPTIONAL = ("USER", "HOST", "LINE", "START", "EXIT", "NEEDS", "REASON")  # columns that are omitted if they are empty

Row = dict[str, str]


@click.command(short_help="List running and waiting tasks.")
@data_option
@click.option("--all", "-a", "everything", is_flag=True, help="Also list stopped tasks.")
@click.option("--mine", is_flag=True, help="Only tasks that you have started.")
@cluster_option("The cluster.", "name")
@click.option(
    "--limit", type=click.IntRange(0, LIMIT_MAX), default=LIMIT_DEFAULT, metavar="N",
    help=f"List at most N waiting tasks (default: {LIMIT_DEFAULT}).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as DescribeTasks returns them.")
@click.argument("given", nargs=-1, metavar="[TASK]...", shell_complete=complete_tasks("RUNNING", "WAITING"))
def ps(data: DataFolder, everything: bool, mine: bool, name: str | None, limit: int, as_json: bool, given: tuple[str, ...]) -> None:
    """List the tasks of a cluster: running tasks first, then waiting tasks with their place in line.

    TASK is a name, a prefix of an id, or a glob. List only these tasks.
    """
    endpoint = find_endpoint(data)
    cluster = name or endpoint.cluster
    page = None if given else _page(endpoint, cluster, limit)
    if page is None:
        if mine:
            raise click.UsageError("--mine works with a Corral server, and without TASK.")
        _list_by_ecs(endpoint, cluster, given, everything=everything, as_json=as_json)
        return
    content, now = page
    ecs = client(endpoint, "ecs")
    runs = [*content["running"], *content["waiting"]]
    if mine:
        me = owners.own(endpoint)
        runs = [run for run in runs if run.get("owner") == me]
    stopped = _stopped(endpoint, ecs, cluster, mine=mine) if everything else []
    if as_json:
        print_json([*stopped, *tasks.describe(ecs, [run["task"] for run in runs], cluster)])
        return
    names = {gpu_id: str(index) for gpu_id, index in content["gpuIndexes"].items()}
    hosts = _host_names(endpoint, ecs, cluster, stopped) if stopped else {}
    rows = [*(_task_row(task, names, now, hosts) for task in stopped), *(_run_row(run, names, now) for run in runs)]
    if not owners.several([*runs, *stopped]):
        rows = [row | {"USER": ""} for row in rows]
    _print(rows, everything=everything)
    if not mine:
        _print_rest(content)
    _print_elsewhere(content, ecs.meta.region_name)


def _page(endpoint: Endpoint, cluster: str, limit: int) -> tuple[dict[str, Any], datetime | None] | None:
    """Return Corral's page with the tasks of a cluster, and the server's time. Return None if the endpoint is not Corral."""
    if is_aws(endpoint):
        return None
    try:
        content, date = list_runs(endpoint, cluster, limit)
    except NotCorral:
        return None
    return content, parsed_date(date)


def _list_by_ecs(endpoint: Endpoint, name: str, given: tuple[str, ...], *, everything: bool, as_json: bool) -> None:
    ecs = client(endpoint, "ecs")
    reply = ecs.describe_clusters(clusters=[name])
    if not reply["clusters"]:
        raise CliError(f"cluster {name} does not exist: `corral aws ecs list-clusters` lists the clusters.")
    cluster = reply["clusters"][0]
    found = _everything(ecs, cluster["clusterName"]) if everything else tasks.unfinished(ecs, cluster)
    if given:
        found = select(found, given)
    found.sort(key=lambda task: (task["createdAt"], task["taskArn"]))
    if as_json:
        print_json(found)
        return
    names = _gpu_names(endpoint) if any(map(tasks.gpu_ids, found)) else {}
    _print([_task_row(task, names, server_time(reply)) for task in found], everything=everything)


def _described(ecs: Any, desired: str, cluster: str) -> list[dict[str, Any]]:
    found = tasks.describe(ecs, [*tasks.list_ids(ecs, desired, cluster)], cluster)
    return sorted(found, key=lambda task: (task["createdAt"], task["taskArn"]))


def _stopped(endpoint: Endpoint, ecs: Any, cluster: str, *, mine: bool) -> list[dict[str, Any]]:
    """Return the stopped tasks that ECS still shows, with their owners, which the history knows."""
    found = [task for task in _described(ecs, "STOPPED", cluster) if tasks.is_stopped(task)]
    if not found:
        return []
    history, _ = call(endpoint, "GetHistory", {"cluster": cluster, "limit": len(found)})
    known = {tasks.id_of(each): each.get("owner", "") for each in history["tasks"]}
    for task in found:
        task["owner"] = known.get(tasks.id_of(task), "")
    me = owners.own(endpoint) if mine else ""
    return [task for task in found if task["owner"] == me] if mine else found


def _everything(ecs: Any, cluster: str) -> list[dict[str, Any]]:
    """Return all tasks. List running tasks before stopped ones, so that a task that stops in between is not missed."""
    ids = dict.fromkeys(task_id for desired in ("RUNNING", "STOPPED") for task_id in tasks.list_ids(ecs, desired, cluster))
    return tasks.describe(ecs, list(ids), cluster)


def _gpu_names(endpoint: Endpoint) -> dict[str, str]:
    """Return the index of each GPU id from Corral's page. Other servers have no such page, so the result is empty."""
    page = _page(endpoint, endpoint.cluster, 0)
    return {gpu_id: str(index) for gpu_id, index in page[0]["gpuIndexes"].items()} if page else {}


def _host_names(endpoint: Endpoint, ecs: Any, cluster: str, found: list[dict[str, Any]]) -> dict[str, str]:
    """Return the name of the host of each container instance of these tasks. Return no names if there is only one host."""
    if len(get_status(endpoint, tasks=0)[0]["hosts"]) < 2:
        return {}
    arns, names = list(dict.fromkeys(task["containerInstanceArn"] for task in found if "containerInstanceArn" in task)), {}
    for first in range(0, len(arns), tasks.DESCRIBE_MAX):
        of_cluster = {"cluster": cluster, "containerInstances": arns[first : first + tasks.DESCRIBE_MAX]}
        for each in ecs.describe_container_instances(**of_cluster)["containerInstances"]:
            attributes = {attribute["name"]: attribute.get("value", "") for attribute in each["attributes"]}
            names[each["containerInstanceArn"]] = attributes.get("corral.host-name", "")
    return names


def _task_row(
    task: dict[str, Any], gpu_names: Mapping[str, str], now: datetime | None, hosts: Mapping[str, str] | None = None
) -> Row:
    """Return the row of a task of ECS. `hosts` has the names of hosts by the ARN of the container instance."""
    return {
        "ID": tasks.short(tasks.id_of(task)),
        "TASK": tasks.label(task),
        "USER": owners.shown(task.get("owner")),
        "STATE": tasks.state(task),
        "HOST": (hosts or {}).get(task.get("containerInstanceArn", ""), ""),
        "LINE": "",
        "GPUS": _gpus([] if tasks.state(task) == "PAUSED" else tasks.gpu_ids(task), gpu_names, is_shared=tasks.shares_a_gpu(task)),
        "SINCE": ago(task.get("stoppedAt") or task.get("startedAt") or task["createdAt"], now),
        "START": "",
        "EXIT": ",".join(map(str, tasks.exit_codes(task))),
        "NEEDS": "",
        "REASON": tasks.short_reason(shorten_ids(tasks.reason(task))),
    }


def _run_row(run: dict[str, Any], gpu_names: Mapping[str, str], now: datetime | None) -> Row:
    """Return the row of a task on Corral's page."""
    return {
        "ID": tasks.short(run["task"]),
        "TASK": tasks.title(run["taskName"], run["arrayIndex"]),
        "USER": owners.shown(run.get("owner")),
        "STATE": run["state"],
        "HOST": run.get("host") or "",
        "LINE": str(run["place"] or ""),
        "GPUS": _gpus(run["gpuIds"], gpu_names, is_shared=bool(run["gpuMemoryMiB"])),
        "SINCE": ago(datetime.fromtimestamp(run["sinceS"], UTC), now),
        "START": start(run.get("startsAtS"), now),
        "EXIT": "",
        "NEEDS": tasks.needs(run["needs"]) if run["state"] == "WAITING" else "",
        "REASON": tasks.short_reason(shorten_ids(run["reason"])),
    }


def _gpus(gpu_ids: list[str], names: Mapping[str, str], *, is_shared: bool) -> str:
    """Return the indexes of a task's GPUs, or parts of the GPU ids if an index is unknown. A star marks a shared GPU."""
    shared = tasks.SHARED_MARK if gpu_ids and is_shared else ""
    if all(gpu_id in names for gpu_id in gpu_ids):
        return tasks.spans(int(names[gpu_id]) for gpu_id in gpu_ids) + shared
    return ",".join(names.get(gpu_id, gpu_id[:GPU_SHORT_ID]) for gpu_id in gpu_ids) + shared


def _print(rows: list[Row], *, everything: bool) -> None:
    if not rows:
        print_text("No tasks." if everything else "No tasks. `corral ps --all` also lists stopped tasks.")
        return
    width = screen_width()
    is_wide = width is None or width >= WIDE
    shown = rows if is_wide else [{name: row[name] for name in row if name != "NEEDS"} for row in rows]
    widths = {"TASK": max(NAME_MIN, (width or 0) // 4), "GPUS": GPUS_WIDTH}
    print_table(shown, width=width, widths_max=widths, optional=OPTIONAL, folded=("TASK",))


def _print_rest(content: dict[str, Any]) -> None:
    """Print how many tasks the list does not contain, and how many Batch jobs wait for the same machines."""
    more, jobs = content["counts"]["WAITING"] - len(content["waiting"]), content["counts"]["jobs"]
    if more > 0:
        print_message(f"{more:,} more {'tasks wait' if more > 1 else 'task waits'}: `corral ps --limit N` lists more")
    if jobs:
        print_message(f"{count(jobs, 'Batch job')} {'wait' if jobs > 1 else 'waits'} for the same machines")


def _print_elsewhere(content: dict[str, Any], region: str) -> None:
    """Print which other clusters and regions have tasks that run or wait."""
    for each in content["elsewhere"][:ELSEWHERE_SHOWN]:
        there = "" if each["region"] == region else f"AWS_DEFAULT_REGION={each['region']} "
        where = f"cluster {each['cluster']}" + (f" of {each['region']}" if there else "")
        print_message(f"{count(each['tasks'], 'task')} in {where}: `{there}corral ps --cluster {each['cluster']}`")
    if more := max(0, len(content["elsewhere"]) - ELSEWHERE_SHOWN):
        print_message(f"{more} more clusters have tasks")
