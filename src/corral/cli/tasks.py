"""ECS tasks as the verbs see them: find, describe, and read off what people want to know."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from corral.cli.refusals import Failed
from corral.cli.words import SHORT_ID

DESCRIBE_MAX = 100
AMBIGUOUS_NAMED_MAX = 5
_WHOLE_ID = re.compile(r"[0-9a-f]{32}")
_PREFIX = re.compile(r"[0-9a-f]{1,31}")


def id_of(task: dict[str, Any]) -> str:
    return str(task["taskArn"]).rpartition("/")[2]


def short(task_id: str) -> str:
    return task_id[:SHORT_ID]


def list_ids(ecs: Any, desired: str, cluster: str) -> Iterator[str]:
    for page in ecs.get_paginator("list_tasks").paginate(cluster=cluster, desiredStatus=desired):
        for arn in page["taskArns"]:
            yield arn.rpartition("/")[2]


def describe(ecs: Any, ids: Sequence[str], cluster: str) -> list[dict[str, Any]]:
    """Those that are still known; one may be forgotten between listing and describing."""
    found = []
    for start in range(0, len(ids), DESCRIBE_MAX):
        found += ecs.describe_tasks(cluster=cluster, tasks=ids[start : start + DESCRIBE_MAX])["tasks"]
    return found


def describe_one(ecs: Any, cluster: str, task_id: str) -> dict[str, Any]:
    return only(describe(ecs, [task_id], cluster), task_id, cluster)


def only(found: list[dict[str, Any]], task_id: str, cluster: str) -> dict[str, Any]:
    if not found:
        raise Failed(f"there is no task {task_id} in the cluster {cluster}.")
    return found[0]


def unfinished(ecs: Any, cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Every task that is not over, given what DescribeClusters says of its cluster."""
    name = cluster["clusterName"]
    found = describe(ecs, [*list_ids(ecs, "RUNNING", name)], name)
    # Tasks on their way out are listed among the stopped ones, of which there may be thousands: look only if some are left.
    if len(found) < cluster.get("runningTasksCount", 0) + cluster.get("pendingTasksCount", 0):
        found += describe(ecs, [*list_ids(ecs, "STOPPED", name)], name)
    return [task for task in {task["taskArn"]: task for task in found}.values() if not is_stopped(task)]


def find(ecs: Any, given: str, cluster: str) -> tuple[str, str]:
    """(cluster, id) of the task with this ARN, id or unique beginning of an id."""
    if given.startswith("arn:"):
        *_, cluster, task_id = [cluster, *given.rpartition(":task/")[2].split("/")]
        return cluster, task_id
    given = given.lower()
    if _WHOLE_ID.fullmatch(given):
        return cluster, given
    if not _PREFIX.fullmatch(given):
        raise Failed(f"'{given}' is not a task: give an id, the beginning of one (`corral ps --all` lists them), or an ARN.")
    listed = dict.fromkeys(task_id for desired in ("RUNNING", "STOPPED") for task_id in list_ids(ecs, desired, cluster))
    matches = [task_id for task_id in listed if task_id.startswith(given)]
    if not matches:
        raise Failed(f"no task begins with {given}; `corral ps --all` lists them.")
    if len(matches) > 1:
        named = ", ".join(matches[:AMBIGUOUS_NAMED_MAX]) + (", …" if len(matches) > AMBIGUOUS_NAMED_MAX else "")
        raise Failed(f"{len(matches)} tasks begin with {given}: {named}")
    return cluster, matches[0]


def state(task: dict[str, Any]) -> str:
    """ECS's word; WAITING and STOPPING say more to a person than PROVISIONING and a RUNNING that was told to stop."""
    last = str(task["lastStatus"])
    if last != "STOPPED" and task["desiredStatus"] == "STOPPED":
        return "STOPPING"
    return "WAITING" if last == "PROVISIONING" else last


def is_stopped(task: dict[str, Any]) -> bool:
    return bool(task["lastStatus"] == "STOPPED")


def gpu_ids(task: dict[str, Any]) -> list[str]:
    return [gpu_id for container in task["containers"] for gpu_id in container.get("gpuIds", ())]


def exit_codes(task: dict[str, Any]) -> list[int]:
    return [container["exitCode"] for container in task["containers"] if "exitCode" in container]


def reason(task: dict[str, Any]) -> str:
    """Why it waits or why it stopped; nothing when its exit code says it all."""
    of_containers = "; ".join(dict.fromkeys(container["reason"] for container in task["containers"] if container.get("reason")))
    if not is_stopped(task):
        return of_containers or str(task.get("stoppedReason", ""))
    if task.get("stopCode") == "EssentialContainerExited" and exit_codes(task):
        return of_containers
    return of_containers or str(task.get("stoppedReason", ""))
