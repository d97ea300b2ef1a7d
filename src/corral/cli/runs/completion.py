"""`corral completion`, and the functions that complete names and ids of tasks, GPU indexes, repositories and fleets.

A fleet is a group or a service that a policy or a capacity provider scales (`fleet.py`). If an error occurs, these functions
suggest nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from corral.cli.client.data_folder import DataFolder

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from corral.cli.client.endpoint import Endpoint

COMPLETE_VARIABLE = "_CORRAL_COMPLETE"
SUGGESTIONS_MAX = 100
# desiredStatus of ListTasks → states of the tasks that ListTasks returns
DESIRED = {"RUNNING": {"RUNNING", "WAITING", "HELD"}, "STOPPED": {"STOPPED"}}
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


@click.command(short_help="Print the completion script of your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script for your shell. With it, the shell completes commands, options, tasks, GPUs and repositories.

    \b
    bash:  eval "$(corral completion bash)"       in ~/.bashrc
    zsh:   eval "$(corral completion zsh)"        in ~/.zshrc, after compinit
    fish:  corral completion fish | source        in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "corral", COMPLETE_VARIABLE).source())


def complete_tasks(*states: str) -> Completer:
    """Return a function that completes names and ids of tasks in these states: RUNNING, WAITING, HELD or STOPPED.

    RUNNING includes tasks that start or stop. HELD tasks are waiting tasks that the user holds back with `corral run --hold`.
    """

    def complete(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        def suggestions(endpoint: Endpoint) -> list[CompletionItem]:
            found = _tasks(endpoint, ctx.params.get("cluster") or ctx.params.get("name") or endpoint.cluster, states)
            counts = Counter(each.name for each in found)
            names = [
                CompletionItem(name, help=f"{number} tasks" if number > 1 else "")
                for name, number in sorted(counts.items())
                if name.startswith(prefix) and " " not in name
            ]
            return names + [
                CompletionItem(each.task_id, help=f"{each.name} {each.state}") for each in found if each.task_id.startswith(prefix)
            ]

        return without_errors(ctx, suggestions)

    return complete


class SuggestedTask(NamedTuple):
    task_id: str
    name: str
    state: str


def _tasks(endpoint: Endpoint, cluster: str, states: Collection[str]) -> list[SuggestedTask]:
    """Return tasks in these states, at most SUGGESTIONS_MAX waiting and SUGGESTIONS_MAX stopped tasks.

    AWS's ListTasks cannot select waiting or held tasks. So on AWS, the result can have any task that has not stopped.
    """
    from corral.cli.client.endpoint import client, is_aws, list_runs
    from corral.cli.runs import tasks

    ecs = client(endpoint, "ecs", quick=True)
    found = []
    desired = [status for status, of_status in DESIRED.items() if of_status & set(states)]
    if not is_aws(endpoint) and "RUNNING" in desired:
        desired.remove("RUNNING")
        page, _ = list_runs(endpoint, cluster, SUGGESTIONS_MAX, quick=True)
        rows = page["running"] if "RUNNING" in states else []
        rows += [row for row in page["waiting"] if "WAITING" in states or (row["held"] and "HELD" in states)]
        found = [SuggestedTask(row["task"], row["taskName"], "HELD" if row["held"] else row["state"]) for row in rows]
    for status in desired:
        arns = ecs.list_tasks(cluster=cluster, desiredStatus=status, maxResults=SUGGESTIONS_MAX)["taskArns"]
        described = tasks.describe(ecs, [arn.rpartition("/")[2] for arn in arns], cluster)
        found += [SuggestedTask(tasks.id_of(task), tasks.name(task), tasks.state(task)) for task in described]
    return found


def complete_recorded(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Suggest names of runs in Corral's history of ended runs."""
    from click.shell_completion import CompletionItem

    def suggestions(endpoint: Endpoint) -> list[CompletionItem]:
        from corral.cli.runs.recorded_runs import recorded_names

        return [CompletionItem(name) for name in recorded_names(endpoint, prefix) if " " not in name]

    return without_errors(ctx, suggestions)


def complete_runs(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Suggest tasks that ECS shows, and names of runs in the history."""
    shown = complete_tasks("RUNNING", "WAITING", "STOPPED")(ctx, parameter, prefix)
    names = {item.value for item in shown}
    return shown + [item for item in complete_recorded(ctx, parameter, prefix) if item.value not in names]


def complete_gpus(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    def suggestions(endpoint: Endpoint) -> list[CompletionItem]:
        from corral.cli.client.endpoint import get_status

        gpus = [gpu for host in get_status(endpoint, quick=True)[0]["hosts"] for gpu in host["gpus"]]
        return [CompletionItem(str(gpu["index"]), help=gpu["model"]) for gpu in gpus if str(gpu["index"]).startswith(prefix)]

    return without_errors(ctx, suggestions)


def complete_repositories(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    def suggestions(endpoint: Endpoint) -> list[CompletionItem]:
        from corral.cli.client.endpoint import client

        repositories = client(endpoint, "ecr", quick=True).describe_repositories()["repositories"]
        return [CompletionItem(each["repositoryName"]) for each in repositories if each["repositoryName"].startswith(prefix)]

    return without_errors(ctx, suggestions)


def complete_fleets(ctx: click.Context, parameter: click.Parameter, prefix: str) -> list[CompletionItem]:
    """Suggest the names of Auto Scaling groups, of the stacks that have such a group, and of services that can be scaled."""
    from click.shell_completion import CompletionItem

    def suggestions(endpoint: Endpoint) -> list[CompletionItem]:
        from corral.cli.client.endpoint import client

        groups = client(endpoint, "autoscaling", quick=True).describe_auto_scaling_groups()["AutoScalingGroups"]
        stacks = [tag["Value"] for each in groups for tag in each["Tags"] if tag["Key"] == "aws:cloudformation:stack-name"]
        scaling = client(endpoint, "application-autoscaling", quick=True)
        targets = scaling.describe_scalable_targets(ServiceNamespace="ecs")["ScalableTargets"]
        services = [each["ResourceId"].rpartition("/")[2] for each in targets]
        names = dict.fromkeys([*stacks, *(each["AutoScalingGroupName"] for each in groups), *services])
        return [CompletionItem(name) for name in names if name.startswith(prefix)]

    return without_errors(ctx, suggestions)


def without_errors(ctx: click.Context, suggestions: Callable[[Endpoint], list[CompletionItem]]) -> list[CompletionItem]:
    """Return the suggestions, or an empty list after an error, because an error message would disturb the user's command line."""
    from corral.cli.client.endpoint import find_endpoint

    try:
        data = ctx.params.get("data")
        return suggestions(
            find_endpoint(data if isinstance(data, DataFolder) else DataFolder(Path.home() / ".corral", chosen=False))
        )
    except Exception:
        return []
