"""`corral resume` lets paused tasks continue on their GPUs."""

from __future__ import annotations

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import cluster_option, find_endpoint
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, print_message, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.pause import PAUSED, RESUMING, RUNNING, SHOWN_MAX, Row, change, find_tasks, refuse_aws, report, wait_while


@click.command(short_help="Let paused tasks continue.")
@data_option
@click.option("--wait", "-w", is_flag=True, help="Wait until the tasks run again.")
@cluster_option("The cluster of tasks that are not given as ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the pauses as JSON.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("RUNNING"))
def resume(data: DataFolder, wait: bool, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Let paused tasks continue, as soon as their GPUs are free. A task waits in line for the GPUs that it had.

    TASK is a name, an id, a prefix of an id, a glob, an ARN, or the id of an array. The name of an array means all its tasks that
    are paused. `NAME:17` is one task of an array. The exit code is 1 if one of the tasks cannot continue.
    """
    endpoint = find_endpoint(data)
    refuse_aws(endpoint, "resume")
    found = find_tasks(endpoint, given, cluster)
    paused = [(of_cluster, task) for of_cluster, task in found if tasks.is_paused(task)]
    if not paused:
        shown = ", ".join(f"{tasks.label(task)} is {tasks.state(task)}" for _, task in found[:SHOWN_MAX])
        raise CliError(f"{shown}: `corral resume` continues only paused tasks.")
    rows = [change(endpoint, "ResumeTask", of_cluster, task) for of_cluster, task in paused]
    # The scheduler has served their claims since then.
    rows = [row if "error" in row else change(endpoint, "DescribeTaskPause", *of) for row, of in zip(rows, paused)]
    if wait:
        clusters = {tasks.id_of(task): of_cluster for of_cluster, task in paused}
        rows = wait_while(endpoint, rows, clusters, lambda row: row["returns"] or row["phase"] == RESUMING)
    report(rows, as_json, _outcome, lambda row: row.get("phase") in (RESUMING, RUNNING) or bool(row.get("returns")))
    if left := len(found) - len(paused):
        print_message(f"{count(left, 'task')} of {count(len(found), 'task')} {'was' if left == 1 else 'were'} not paused")


def _outcome(row: Row) -> str:
    if row["lastStatus"] in ("STOPPING", "STOPPED"):
        return "has ended"
    if row["returns"]:
        return f"waits for its GPUs: {tasks.short_reason(shorten_ids(row['waitsFor']))}"
    if row["phase"] == RESUMING:
        return "continues"
    if row["phase"] == PAUSED:
        return f"stays paused: {row['whyNot']}" if row["whyNot"] else "stays paused"
    return f"runs again, after {row['moveBackSeconds']:.1f} s"
