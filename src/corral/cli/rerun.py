"""`corral rerun` runs the command of an earlier run again: in the same folder, with the same options and tags.

In this module, the earlier run is called the first run. The new run gets the environment of the shell that calls `corral rerun`,
because Corral does not record environment variables.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from corral.cli import tasks
from corral.cli.command_lookup import refuse_missing_command
from corral.cli.completion import complete_runs
from corral.cli.data_folder import DataFolder, data_option
from corral.cli.endpoint import Endpoint, client, cluster_option, find_endpoint, is_aws
from corral.cli.errors import CliError
from corral.cli.git_commit import GitCommit
from corral.cli.output import print_message
from corral.cli.recorded_runs import find_one, plain_command
from corral.cli.run import CONTAINER, LOG_GROUP, submit_and_wait
from corral.cli.run_environment import variables, with_environment
from corral.cli.run_options import GIT_TAG, HOST_IMAGE, TIME_LIMIT_TAG
from corral.cli.submission import Submission

# The new run does not get these tags of the first run: when it may start, its index in an array, which tasks replaced it or were
# replaced by it, and its git commit.
NOT_REPEATED = (
    "corral:hold", "corral:not-before", "corral:after", "corral:after-any", tasks.ARRAY_TAG, tasks.REQUEUED_TAG,
    "corral:requeue-of", GIT_TAG,
)  # fmt: skip
ENVIRONMENT = ("environment", "environmentFiles")
OWNERS = {
    "batch:": "Batch job: submit the job again with `corral aws batch submit-job`",
    "ecs-svc/": "service, which starts its tasks itself",
}


@click.command(short_help="Run the command of an earlier run again.")
@data_option
@click.option("--env", "-e", metavar="K=V", multiple=True, help="Add a variable to the current environment. Can be repeated.")
@click.option(
    "--env-file", type=click.Path(path_type=Path), metavar="FILE", multiple=True, help="Add variables from a file of NAME=VALUE."
)
@cluster_option("The cluster of the run.")
@click.option("--detach", "-d", is_flag=True, help="Print the task's id and return.")
@click.option("--json", "as_json", is_flag=True, help="Print the task as JSON; its log is printed to stderr.")
@click.argument("given", metavar="RUN", shell_complete=complete_runs)
def rerun(
    data: DataFolder, env: tuple[str, ...], env_file: tuple[Path, ...], cluster: str | None, detach: bool, as_json: bool, given: str
) -> None:
    """Run the command of an earlier run again, in the same folder. Show its output, and exit with its exit code.

    The new run has the name, the GPUs, the memory, the time limit, the priority, the requeues and the tags of the first run. It
    does not wait for other runs, and is not part of an array. Its environment is the current one. Variables that the first run got
    by --env or --env-file are not recorded: pass them again.

    RUN is a name, an id, the beginning of an id, a glob, or an ARN. A name means the latest run.
    """
    endpoint = find_endpoint(data)
    run = find_one(endpoint, given, cluster or endpoint.cluster)
    check_owner(run.task)
    definition = _definition(endpoint, run.task)
    submission = _submission(endpoint, run.cluster, run.task, definition, env, env_file)
    limit = next((tag["value"] for tag in submission.tags if tag["key"] == TIME_LIMIT_TAG), None)
    submit_and_wait(submission, detach=detach, as_json=as_json, limit_s=int(float(limit)) if limit else None)


def check_owner(task: dict[str, Any]) -> None:
    """Refuse tasks that a service or a Batch job has started."""
    started_by = str(task.get("startedBy") or "")
    for prefix, owner in OWNERS.items():
        if started_by.startswith(prefix):
            raise CliError(f"task {tasks.short(tasks.id_of(task))} belongs to a {owner}.")


def _definition(endpoint: Endpoint, task: dict[str, Any]) -> dict[str, Any]:
    ecs, arn = client(endpoint, "ecs"), task["taskDefinitionArn"]
    try:
        found: dict[str, Any] = ecs.describe_task_definition(taskDefinition=arn)["taskDefinition"]
    except ecs.exceptions.ClientException:
        found = {}
    if found.get("status") != "ACTIVE":
        name = arn.rpartition("/")[2]
        raise CliError(f"the task definition {name} of the run was deregistered: start the run again with `corral run`.")
    return found


def _submission(
    endpoint: Endpoint, cluster: str, task: dict[str, Any], definition: dict[str, Any], env: tuple[str, ...],
    env_file: tuple[Path, ...],
) -> Submission:  # fmt: skip
    given = [each for each in task.get("overrides", {}).get("containerOverrides", ()) if len(each) > 1]
    if len(given) > 1:
        raise CliError("the run has overrides of several containers: start it again with `corral aws ecs run-task`.")
    main = tasks.first_essential(definition)
    container = next(each for each in definition["containerDefinitions"] if each["name"] == main)
    kept = {name: value for name, value in (given[0] if given else {"name": main}).items() if name not in ENVIRONMENT}
    command = kept.get("command", container.get("command", []))
    if (plain := plain_command(command)) != command:
        print_message("the run was interactive (-i): it runs again without this terminal")
        kept["command"] = plain
    values = variables(env, env_file, inherits=_is_command(container))
    had_environment = task.get("hadEnvironment") or any(name in each for each in given for name in ENVIRONMENT)
    if had_environment and not _is_command(container) and not env and not env_file:
        print_message("the environment variables of the first run are not recorded: pass them with --env if they are needed")
    folder = container.get("workingDirectory")
    if _is_command(container) and folder and not os.path.isdir(folder):
        raise CliError(f"the folder {folder} of the run does not exist any more.")
    if _is_command(container) and folder and plain:
        refuse_missing_command(endpoint, plain, folder, values)
    git = GitCommit(folder) if folder and not is_aws(endpoint) else None
    override = with_environment(endpoint, kept, {**values, **_array_variables(task)})
    tags = [tag for tag in task.get("tags", ()) if not _is_dropped(tag["key"])]
    if git is not None and (commit := git.read()):
        tags.append({"key": GIT_TAG, "value": commit})
    return Submission(endpoint, cluster, tasks.name(task), definition, override if len(override) > 1 else None, tags)


def _is_command(container: dict[str, Any]) -> bool:
    """Whether `corral run COMMAND` has registered this container. Then the run is a process with the environment of its caller."""
    group = container.get("logConfiguration", {}).get("options", {}).get("awslogs-group")
    return bool(container["name"] == CONTAINER and container["image"] == HOST_IMAGE and group == LOG_GROUP)


def _is_dropped(key: str) -> bool:
    return key in NOT_REPEATED or key.startswith(("corral:after:", "corral:after-any:", "aws:"))


def _array_variables(task: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a member of an array. They tell the program which part of the work it has."""
    words = tasks.tag_value(task, tasks.ARRAY_TAG).split()
    return {"CORRAL_ARRAY_ID": words[0], "CORRAL_INDEX": words[1]} if len(words) > 1 else {}
