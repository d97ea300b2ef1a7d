"""The RunTask calls of `corral run`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, client, is_aws
from corral.cli.printing.errors import CliError
from corral.cli.runs.signals import RunSignals

REFUSE_UNFIT_TAG = "corral:refuse-unfit"  # with this tag, RunTask fails if no host is large enough for the task
STARTED_BY = "corral-run"  # `startedBy` of tasks that are not members of an array


class Submission(NamedTuple):
    """What `corral run` submits: a registered task definition, and the other parameters of RunTask."""

    endpoint: Endpoint
    cluster: str
    name: str  # of the run
    definition: dict[str, Any]  # as RegisterTaskDefinition returns it
    override: dict[str, Any] | None  # of one container
    tags: list[dict[str, str]]


class ArrayPart(NamedTuple):
    """Members of an array that are submitted in the same way."""

    submission: Submission
    indexes: Sequence[int]  # sorted


def run_tasks(
    submission: Submission,
    signals: RunSignals,
    *,
    count: int = 1,
    started_by: str = STARTED_BY,
    more_tags: tuple[dict[str, str], ...] = (),
) -> list[dict[str, Any]]:
    """Start `count` equal tasks and return them. Raise a CliError if RunTask starts fewer.

    The request has no launch type, so that a task waits for free resources instead of failing.
    """
    endpoint = submission.endpoint
    parameters: dict[str, Any] = {
        "cluster": submission.cluster,
        "taskDefinition": submission.definition["taskDefinitionArn"],
        "startedBy": started_by,
        "count": count,
    }
    if submission.override:
        parameters["overrides"] = {"containerOverrides": [submission.override]}
    if tags := [*submission.tags, *more_tags]:
        parameters["tags"] = tags
    if not is_aws(endpoint):
        parameters["enableExecuteCommand"] = True  # `corral exec` needs it; not on AWS, where the task would need a role
    reply = signals.run_task(client(endpoint, "ecs"), parameters)
    if len(reply["tasks"]) < count:
        failure = reply["failures"][0]
        is_unfit = any(tag["key"] == REFUSE_UNFIT_TAG for tag in submission.tags) and failure.get("detail")
        why = failure["detail"] if is_unfit else f"{failure.get('reason')} {failure.get('detail', '')}".strip()
        hint = ". With --wait-anyway, it waits for a larger host." if is_unfit else ""
        raise CliError(f"the task was not started: {why}{hint}")
    started: list[dict[str, Any]] = reply["tasks"]
    return started
