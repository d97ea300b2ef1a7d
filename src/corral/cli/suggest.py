"""What the shell suggests on Tab: ids of tasks, indexes of GPUs, repositories. Whatever goes wrong means no suggestions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from corral.cli.here import Data

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from corral.cli.where import Where

SHOWN_MAX = 100
Completer = Callable[[click.Context, click.Parameter, str], "list[CompletionItem]"]


def task_ids(*desired: str) -> Completer:
    """Ids of tasks in these desired states."""

    def complete(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from corral.cli import tasks

        def ask(where: Where) -> list[CompletionItem]:
            from corral.cli.where import client

            ecs = client(where, "ecs", quick=True)
            cluster = ctx.params.get("cluster") or where.cluster
            ids = [
                arn.rpartition("/")[2]
                for state in desired
                for arn in ecs.list_tasks(cluster=cluster, desiredStatus=state, maxResults=SHOWN_MAX)["taskArns"]
            ]
            found = tasks.describe(
                ecs, [task_id for task_id in dict.fromkeys(ids) if task_id.startswith(begun)][:SHOWN_MAX], cluster
            )
            return [
                CompletionItem(tasks.id_of(task), help=f"{task['taskDefinitionArn'].rpartition('/')[2]} {tasks.state(task)}")
                for task in found
            ]

        return _quietly(ctx, ask)

    return complete


def gpus(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    def ask(where: Where) -> list[CompletionItem]:
        from corral.cli.where import status

        found = [gpu for host in status(where, quick=True)[0]["hosts"] for gpu in host["gpus"]]
        return [CompletionItem(str(gpu["index"]), help=gpu["model"]) for gpu in found if str(gpu["index"]).startswith(begun)]

    return _quietly(ctx, ask)


def repositories(ctx: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    def ask(where: Where) -> list[CompletionItem]:
        from corral.cli.where import client

        found = client(where, "ecr", quick=True).describe_repositories()["repositories"]
        return [CompletionItem(each["repositoryName"]) for each in found if each["repositoryName"].startswith(begun)]

    return _quietly(ctx, ask)


def _quietly(ctx: click.Context, ask: Callable[[Any], list[CompletionItem]]) -> list[CompletionItem]:
    """Whoever presses Tab wants a word, not an explanation."""
    from corral.cli.where import find

    try:
        data = ctx.params.get("data")
        return ask(find(data if isinstance(data, Data) else Data(Path.home() / ".corral", chosen=False)))
    except Exception:
        return []
