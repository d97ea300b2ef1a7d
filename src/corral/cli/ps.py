"""`corral ps` lists tasks, their GPUs, and why they wait or stopped."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from corral.cli import tasks
from corral.cli.completion import complete_tasks
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import Endpoint, client, cluster_option, find_endpoint, is_aws, status_page
from corral.cli.errors import CliError
from corral.cli.output import age, console, print_json, print_line, server_time, shorten_ids
from corral.cli.run_names import select

GPU_SHORT_ID = 12  # "GPU-" and eight digits
# A task's name has up to WIDE_NAME columns on a screen of WIDE columns, else NARROW_NAME.
WIDE, WIDE_NAME, NARROW_NAME = 120, 40, 20


@click.command()
@data_option
@click.option("--all", "-a", "everything", is_flag=True, help="Also list stopped tasks.")
@cluster_option("The cluster.", "name")
@click.option("--json", "as_json", is_flag=True, help="Print the tasks as DescribeTasks returns them.")
@click.argument("given", nargs=-1, metavar="[TASK]...", shell_complete=complete_tasks("RUNNING"))
def ps(data: DataFolder, everything: bool, name: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """List the tasks of a cluster, oldest first. TASK is a name, a prefix of an id, or a glob. List only these tasks."""
    endpoint = find_endpoint(data)
    ecs, name = client(endpoint, "ecs"), name or endpoint.cluster
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
    elif found:
        _print(found, _gpu_names(endpoint) if any(map(tasks.gpu_ids, found)) else {}, server_time(reply))
    else:
        print_line("No tasks." if everything else "No tasks. `corral ps --all` also lists stopped tasks.")


def _everything(ecs: Any, cluster: str) -> list[dict[str, Any]]:
    """Return all tasks. List running tasks before stopped ones, so that a task that stops in between is not missed."""
    ids = dict.fromkeys(task_id for desired in ("RUNNING", "STOPPED") for task_id in tasks.list_ids(ecs, desired, cluster))
    return tasks.describe(ecs, list(ids), cluster)


def _gpu_names(endpoint: Endpoint) -> dict[str, str]:
    """Return the index of each GPU id from Corral's status page. AWS has no such page, so the result is empty."""
    if is_aws(endpoint):
        return {}
    try:
        hosts = status_page(endpoint)[0]["hosts"]
    except Exception:
        return {}
    return {gpu["id"]: str(gpu["index"]) for host in hosts for gpu in host["gpus"]} if len(hosts) == 1 else {}


def _print(found: list[dict[str, Any]], gpu_names: dict[str, str], now: datetime | None) -> None:
    from rich.table import Table

    out = console()
    rows = [
        {
            "ID": tasks.short(tasks.id_of(task)),
            "TASK": tasks.title(task["taskDefinitionArn"].rpartition("/")[2], tasks.name(task)),
            "STATE": tasks.state(task),
            "GPUS": ",".join(gpu_names.get(gpu_id, gpu_id[:GPU_SHORT_ID]) for gpu_id in tasks.gpu_ids(task)),
            "SINCE": age(task.get("stoppedAt") or task.get("startedAt") or task["createdAt"], now),
            "EXIT": ",".join(map(str, tasks.exit_codes(task))),
            "REASON": shorten_ids(tasks.reason(task)),
        }
        for task in found
    ]
    names = [name for name in rows[0] if name not in ("EXIT", "REASON") or any(row[name] for row in rows)]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, no_wrap=name not in ("GPUS", "REASON"), overflow="ellipsis" if name == "TASK" else "fold")
    table.columns[1].max_width = WIDE_NAME if out.width >= WIDE else NARROW_NAME
    for row in rows:
        table.add_row(*(row[name] for name in names))
    out.print(table)
