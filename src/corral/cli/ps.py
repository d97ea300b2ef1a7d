"""`corral ps`: the tasks, what they hold and why they wait or stopped."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from corral.cli import tasks
from corral.cli.here import Data, data_option
from corral.cli.where import Where, client, find, is_aws
from corral.cli.where import status as status_page
from corral.cli.words import age, console, print_json, server_time, with_short_ids

GPU_SHORT_ID = 12  # "GPU-" and eight digits


@click.command()
@data_option
@click.option("--all", "-a", "everything", is_flag=True, help="Stopped tasks too.")
@click.option("--json", "as_json", is_flag=True, help="The tasks as DescribeTasks tells them.")
def ps(data: Data, everything: bool, as_json: bool) -> None:
    """List the tasks of the cluster `default`, oldest first."""
    where = find(data)
    ecs = client(where, "ecs")
    cluster = ecs.describe_clusters(clusters=[tasks.CLUSTER])
    found = _everything(ecs) if everything else tasks.unfinished(ecs, (cluster["clusters"] or [{}])[0])
    found.sort(key=lambda task: (task["createdAt"], task["taskArn"]))
    if as_json:
        print_json(found)
    elif found:
        _print(found, _gpu_names(where) if any(map(tasks.gpu_ids, found)) else {}, server_time(cluster))
    else:
        click.echo("No tasks." if everything else "No tasks; `corral ps --all` shows stopped ones too.")


def _everything(ecs: Any) -> list[dict[str, Any]]:
    """Running ones first: one that is told to stop in between is then listed at least once."""
    ids = dict.fromkeys(task_id for desired in ("RUNNING", "STOPPED") for task_id in tasks.list_ids(ecs, desired))
    return tasks.describe(ecs, list(ids))


def _gpu_names(where: Where) -> dict[str, str]:
    """GPU id → index, which Corral's own page tells; AWS tells none, and then an id has to do."""
    if is_aws(where):
        return {}
    try:
        hosts = status_page(where)[0]["hosts"]
    except Exception:
        return {}
    return {gpu["id"]: str(gpu["index"]) for host in hosts for gpu in host["gpus"]} if len(hosts) == 1 else {}


def _print(found: list[dict[str, Any]], gpu_names: dict[str, str], now: datetime | None) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("ID", "TASK", "STATE", "GPUS", "SINCE", "EXIT", "REASON"):
        table.add_column(name, no_wrap=name in ("ID", "STATE", "SINCE", "EXIT"), overflow="fold")
    table.columns[1].max_width = 28
    for task in found:
        table.add_row(
            tasks.short(tasks.id_of(task)),
            task["taskDefinitionArn"].rpartition("/")[2],
            tasks.state(task),
            ",".join(gpu_names.get(gpu_id, gpu_id[:GPU_SHORT_ID]) for gpu_id in tasks.gpu_ids(task)),
            age(task.get("stoppedAt") or task.get("startedAt") or task["createdAt"], now),
            ",".join(map(str, tasks.exit_codes(task))),
            with_short_ids(tasks.reason(task)),
        )
    console().print(table)
