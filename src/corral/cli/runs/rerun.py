"""`corral rerun` runs the command of an earlier run again: in the same folder, with the same options and tags.

An array is run again as a new array, whose members have the same indexes. In this module, the earlier run is called the first run.
The new run gets the environment of the shell that calls `corral rerun`, because Corral does not record environment variables.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click

from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.client.endpoint import Endpoint, client, cluster_option, find_endpoint, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import count, print_message
from corral.cli.runs import tasks
from corral.cli.runs.command_lookup import refuse_missing_command
from corral.cli.runs.completion import complete_runs
from corral.cli.runs.environment import variables, with_environment
from corral.cli.runs.git_commit import GitCommit
from corral.cli.runs.options import GIT_TAG, HOST_IMAGE, REQUEUE_TAG, TIME_LIMIT_TAG
from corral.cli.runs.recorded_runs import NamedRun, find_array, find_one, plain_command
from corral.cli.runs.run import CONTAINER, LOG_GROUP, submit_and_wait
from corral.cli.runs.submission import ArrayPart, Submission
from corral.cli.runs.values import ArraySpec

REQUEUE_OF_TAG = "corral:requeue-of"  # the id of the task that was replaced first
# The new run does not get these tags of the first run: when it may start, its array, which tasks replaced it or were replaced by
# it, and its git commit.
NOT_REPEATED = (
    "corral:hold", "corral:not-before", "corral:after", "corral:after-any", tasks.ARRAY_TAG, tasks.PAUSED_TAG,
    tasks.REQUEUED_TAG,
    REQUEUE_OF_TAG, GIT_TAG,
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
@click.option("--failed", is_flag=True, help="Only if the run did not end with exit code 0. Of an array: only such members.")
@cluster_option("The cluster of the run.")
@click.option("--detach", "-d", is_flag=True, help="Print the task's id and return. For an array, print the array's id.")
@click.option("--json", "as_json", is_flag=True, help="Print the task as JSON; its log is printed to stderr.")
@click.argument("given", metavar="RUN", shell_complete=complete_runs)
def rerun(
    data: DataFolder, env: tuple[str, ...], env_file: tuple[Path, ...], failed: bool, cluster: str | None, detach: bool,
    as_json: bool, given: str,
) -> None:  # fmt: skip
    """Run the command of an earlier run again, in the same folder. Show its output, and exit with its exit code.

    The new run has the name, the GPUs, the memory, the time limit, the priority, the requeues and the tags of the first run. It
    does not wait for other runs. Its environment is the current one. Variables that the first run got by --env or --env-file are
    not recorded: pass them again.

    RUN is a name, an id, the beginning of an id, a glob, or an ARN. A name means the latest run. If there is an array with this
    name, it means the whole array, also if only a part of it was run again since then. The new array has the same indexes.
    `NAME:17` is one task of an array.
    """
    endpoint = find_endpoint(data)
    members = find_array(endpoint, given, cluster)
    runs = _latest_of_each_index(members) if members else [find_one(endpoint, given, cluster)]
    for run in runs:
        check_owner(run.task)
    if failed:
        runs = _failed(runs, given)
    first = runs[0]
    definition = _definition(endpoint, first.task)
    if tasks.array_id(first.task):
        _run_array(endpoint, runs, members, definition, env, env_file, detach=detach, as_json=as_json)
        return
    submission = _submission(endpoint, first.cluster, first.task, definition, env, env_file)
    limit = next((tag["value"] for tag in submission.tags if tag["key"] == TIME_LIMIT_TAG), None)
    submit_and_wait(submission, detach=detach, as_json=as_json, limit_s=int(float(limit)) if limit else None)


def _latest_of_each_index(members: list[NamedRun]) -> list[NamedRun]:
    """Return the latest task of each index, sorted by index. `members` are the tasks of an array, oldest first."""
    latest = {tasks.array_index(run.task): run for run in members}
    return [latest[index] for index in sorted(index for index in latest if index is not None)]


def _failed(runs: list[NamedRun], given: str) -> list[NamedRun]:
    """Return the runs that have ended, and not with exit code 0."""
    unfinished = sum(not tasks.is_stopped(run.task) for run in runs)
    if unfinished:
        print_message(f"{count(unfinished, 'task')} of {given} {'has' if unfinished == 1 else 'have'} not ended")
    found = [run for run in runs if tasks.is_stopped(run.task) and (run.task.get("failed") or _exit_code(run.task) != 0)]
    if not found:
        raise CliError(f"no task of {given} has failed: without --failed, `corral rerun {given}` runs all of them again.")
    return found


def _exit_code(task: dict[str, Any]) -> int | None:
    """Return the exit code of a stopped task. Tasks of ECS have the exit codes of their containers, recorded tasks have one."""
    codes = tasks.exit_codes(task)
    return task.get("exitCode", next((code for code in codes if code), 0) if codes else None)


def _run_array(
    endpoint: Endpoint, runs: list[NamedRun], members: list[NamedRun], definition: dict[str, Any], env: tuple[str, ...],
    env_file: tuple[Path, ...], *, detach: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run members of an array again, as a new array. `corral set` can give members other GPUs or options than the others."""
    if any(run.task["taskDefinitionArn"] != runs[0].task["taskDefinitionArn"] for run in runs):
        raise CliError("the tasks of the array have several task definitions: run them again one by one, as NAME:INDEX.")
    requeues = {tasks.id_of(run.task): tasks.tag_value(run.task, REQUEUE_TAG) for run in members}
    alike: dict[str, list[dict[str, Any]]] = {}  # overrides and tags → tasks
    for run in runs:
        task, overrides = run.task, run.task.get("overrides", {}).get("containerOverrides", ())
        if original := requeues.get(tasks.tag_value(task, REQUEUE_OF_TAG)):  # a task that replaced another has one requeue less
            tags = [{**tag, "value": original} if tag["key"] == REQUEUE_TAG else tag for tag in task["tags"]]
            task = {**task, "tags": tags}
        kept = [{name: value for name, value in each.items() if name not in ENVIRONMENT} for each in overrides]
        options = sorted((tag["key"], tag["value"]) for tag in task.get("tags", ()) if not _is_dropped(tag["key"]))
        alike.setdefault(json.dumps([kept, options]), []).append(task)
    parts = [
        ArrayPart(
            _submission(endpoint, runs[0].cluster, part[0], definition, env, env_file),
            [index for task in part if (index := tasks.array_index(task)) is not None],
        )
        for part in alike.values()
    ]
    limit = int(tasks.tag_value(runs[0].task, tasks.ARRAY_TAG).split()[-1])
    indexes = tuple(sorted(index for part in parts for index in part.indexes))
    spec = ArraySpec(indexes, limit)
    submit_and_wait(parts[0].submission, array=spec, parts=parts, detach=detach, as_json=as_json, limit_s=None)


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
    override = with_environment(endpoint, kept, values)
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
