"""`corral release` lets tasks start that were submitted with `corral run --hold`."""

from __future__ import annotations

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import client, cluster_option, find_endpoint
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_line, print_message
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import describe_runs, find_runs


@click.command(short_help="Let held tasks start.")
@data_option
@cluster_option("The cluster of tasks that are not given as ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print the ids of the released tasks as JSON.")
@click.argument("given", nargs=-1, required=True, metavar="TASK...", shell_complete=complete_tasks("HELD"))
def release(data: DataFolder, cluster: str | None, as_json: bool, given: tuple[str, ...]) -> None:
    """Release tasks that `corral run --hold` has submitted, so that they start when their GPUs are free.

    TASK is a name, an id, a prefix of an id, a glob, an ARN, or the id of an array.
    """
    endpoint = find_endpoint(data)
    ecs = client(endpoint, "ecs")
    found = dict.fromkeys(run for each in given for run in find_runs(endpoint, each, cluster, unfinished=True))
    described = describe_runs(ecs, list(found))
    held = [task for task in described if tasks.tag_value(task, tasks.HOLD_TAG)]
    if not held:
        raise CliError(f"no task of {', '.join(given)} is held: `corral ps` shows what tasks wait for.")
    for task in held:
        ecs.untag_resource(resourceArn=task["taskArn"], tagKeys=[tasks.HOLD_TAG])
        if not as_json:
            print_line(f"{tasks.short(tasks.id_of(task))} {tasks.label(task)} is released")
    if as_json:
        print_json([tasks.id_of(task) for task in held])
    elif len(held) < len(described):
        print_message(f"{len(described) - len(held)} of the tasks were not held")
