"""`corral revoke` revokes temporary credentials before they expire."""

from __future__ import annotations

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import call, client, cluster_option, find_endpoint
from corral.cli.printing.output import print_json, print_text
from corral.cli.runs import tasks
from corral.cli.runs.completion import complete_tasks
from corral.cli.runs.names import find_run


@click.command(short_help="Revoke temporary credentials.")
@data_option
@click.option("--task", metavar="TASK", shell_complete=complete_tasks("RUNNING"),
              help="Revoke the credentials of this task (a name, an id, or an ARN). The task gets no new ones.")  # fmt: skip
@click.option("--all", "everything", is_flag=True,
              help="Revoke all temporary credentials, passwords of `docker login` and the token of `corral metrics`.")  # fmt: skip
@cluster_option("The cluster of the task, if TASK is not an ARN.")
@click.option("--json", "as_json", is_flag=True, help="Print what was revoked as JSON.")
def revoke(data: DataFolder, task: str | None, everything: bool, cluster: str | None, as_json: bool) -> None:
    """Revoke temporary credentials before they expire. The root key stays valid.

    To replace the root key, restart Corral with --access-key and --secret-key. The restart also revokes all temporary credentials
    that were created with the old key.
    """
    if (task is None) == (not everything):
        raise click.UsageError("use either --task TASK or --all.")
    endpoint = find_endpoint(data)
    wanted: dict[str, object] = {"all": True}
    if task is not None:
        ecs = client(endpoint, "ecs")
        of_cluster, task_id = find_run(endpoint, task, cluster, unfinished=True)
        tasks.describe_one(ecs, of_cluster, task_id)
        wanted = {"task": task_id}
    revoked, _ = call(endpoint, "RevokeSessions", wanted)
    if as_json:
        print_json(revoked)
    elif task is not None:
        print_text(f"{tasks.short(str(wanted['task']))} has no valid credentials now")
    else:
        print_text("All temporary credentials are revoked. Tasks get new credentials when they request them.")
