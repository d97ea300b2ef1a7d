"""Finds and describes ECS tasks, and reads task definitions from files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from corral.cli.client.endpoint import id_prefix
from corral.cli.printing.errors import CliError, RunNotFound
from corral.cli.printing.output import SHORT_ID, count

DESCRIBE_MAX = 100
NAME_TAG = "corral:name"  # contains the name of a task, if the name differs from the family of its task definition
ARRAY_TAG = "corral:array"  # `ID INDEX STEP LIMIT`: see `model/queue_options.py`
HOLD_TAG = "corral:hold"
PAUSED_TAG = "corral:paused"  # contains why a task is paused
PAUSE_PHASE = "corral.pause-phase"  # the attribute of a paused task: pausing, paused or resuming
REQUEUED_TAG = "corral:requeued-as"  # this tag of a failed task contains the id of the task that replaces it
STARTED_BY_ARRAY = "corral-array/"  # `startedBy` of an array's members is this prefix and the id of the array
AMBIGUOUS_NAMED_MAX = 5
MIB_PER_GIB = CPU_UNITS_PER_CORE = 1024
RESERVED_MIB = 128  # the memory reservation of a `corral run` without --memory
SHARED_MARK = "*"  # after the number of a GPU that a task shares with other tasks
# RegisterTaskDefinition does not accept these members of DescribeTaskDefinition's response.
READ_ONLY = {
    "taskDefinitionArn", "revision", "status", "requiresAttributes", "compatibilities", "registeredAt", "registeredBy",
    "deregisteredAt", "deleteRequestedAt",
}  # fmt: skip
_WHOLE_ID = re.compile(r"[0-9a-f]{32}")
_PREFIX = re.compile(r"[0-9a-f]{1,31}")
_DETAIL = re.compile(r"needs |first in line$|place [0-9]+ in line |held by (task|instance)s? |expected start ")


def id_of(task: dict[str, Any]) -> str:
    return str(task["taskArn"]).rpartition("/")[2]


def name(task: dict[str, Any]) -> str:
    """Return the name of the task: the value of its tag `corral:name`, or else the family of its task definition."""
    return tag_value(task, NAME_TAG) or str(task["taskDefinitionArn"]).rpartition("/")[2].rpartition(":")[0]


def tag_value(task: dict[str, Any], key: str) -> str:
    """Return the value of a tag, or an empty text. The task must have been described with its tags."""
    return next((str(tag["value"]) for tag in task.get("tags", ()) if tag["key"] == key), "")


def array_id(task: dict[str, Any]) -> str:
    """Return the id of the array to which a task belongs, or an empty text."""
    started_by = str(task.get("startedBy", ""))
    return started_by.removeprefix(STARTED_BY_ARRAY) if started_by.startswith(STARTED_BY_ARRAY) else ""


def array_index(task: dict[str, Any]) -> int | None:
    words = tag_value(task, ARRAY_TAG).split()
    return int(words[1]) if len(words) > 1 and words[1].isdecimal() else None


def label(task: dict[str, Any]) -> str:
    """Return the name by which commands find a task: its name, and for a member of an array also its index, as `train:17`."""
    return title(name(task), array_index(task))


def title(name: str, index: int | None = None) -> str:
    """Return the name of a task as commands print and accept it. `index` is its index in an array."""
    return name if index is None else f"{name}:{index}"


def short(task_id: str) -> str:
    return task_id[:SHORT_ID]


def list_ids(ecs: Any, desired: str, cluster: str, **filters: str) -> Iterator[str]:
    for page in ecs.get_paginator("list_tasks").paginate(cluster=cluster, desiredStatus=desired, **filters):
        for arn in page["taskArns"]:
            yield arn.rpartition("/")[2]


def describe(ecs: Any, ids: Sequence[str], cluster: str) -> list[dict[str, Any]]:
    """Describe tasks, with their tags. Omit tasks that do not exist any more."""
    found = []
    for start in range(0, len(ids), DESCRIBE_MAX):
        found += ecs.describe_tasks(cluster=cluster, tasks=ids[start : start + DESCRIBE_MAX], include=["TAGS"])["tasks"]
    return found


def describe_one(ecs: Any, cluster: str, task_id: str) -> dict[str, Any]:
    return only(describe(ecs, [task_id], cluster), task_id, cluster)


def only(found: list[dict[str, Any]], task_id: str, cluster: str) -> dict[str, Any]:
    if not found:
        raise CliError(f"task {task_id} does not exist in cluster {cluster}: `corral ps --all` lists its tasks.")
    return found[0]


def unfinished(ecs: Any, cluster: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every task of a cluster that has not stopped. `cluster` is an element of DescribeClusters' response."""
    name = cluster["clusterName"]
    found = describe(ecs, [*list_ids(ecs, "RUNNING", name)], name)
    # ListTasks lists stopping tasks together with stopped tasks, and there may be thousands of stopped tasks. So list them only if
    # `found` has fewer tasks than the cluster.
    if len(found) < cluster.get("runningTasksCount", 0) + cluster.get("pendingTasksCount", 0):
        found += describe(ecs, [*list_ids(ecs, "STOPPED", name)], name)
    return [task for task in {task["taskArn"]: task for task in found}.values() if not is_stopped(task)]


def is_exact(given: str) -> bool:
    """Whether this is an ARN or a complete id."""
    return given.startswith("arn:") or bool(_WHOLE_ID.fullmatch(given.lower()))


def is_prefix(given: str) -> bool:
    """Whether the id of a task can begin with this."""
    return _PREFIX.fullmatch(given.lower()) is not None


def find(ecs: Any, given: str, cluster: str) -> tuple[str, str]:
    """Return the cluster and the id of a task. `given` is its ARN, its id or a unique prefix of its id."""
    if given.startswith("arn:"):
        *_, cluster, task_id = [cluster, *given.rpartition(":task/")[2].split("/")]
        return cluster, task_id
    if _WHOLE_ID.fullmatch(given.lower()):
        return cluster, given.lower()
    if not is_prefix(given):
        raise RunNotFound(f"no task has the name '{given}': `corral ps --all` lists the tasks.")
    given = given.lower()
    with id_prefix(given):
        listed = dict.fromkeys(task_id for desired in ("RUNNING", "STOPPED") for task_id in list_ids(ecs, desired, cluster))
    matches = [task_id for task_id in listed if task_id.startswith(given)]
    if not matches:
        raise RunNotFound(f"no task has the name {given}, or an id that begins with it: `corral ps --all` lists the tasks.")
    if len(matches) > 1:
        named = ", ".join(matches[:AMBIGUOUS_NAMED_MAX]) + (", …" if len(matches) > AMBIGUOUS_NAMED_MAX else "")
        raise CliError(f"{len(matches)} task ids begin with {given}: {named}. Give more digits.")
    return cluster, matches[0]


def state(task: dict[str, Any]) -> str:
    """Return the task's lastStatus, with three changes:

    WAITING instead of PROVISIONING, STOPPING for a task that is being stopped, and PAUSING, PAUSED or RESUMING for a paused task.
    """
    last = str(task["lastStatus"])
    if last != "STOPPED" and task["desiredStatus"] == "STOPPED":
        return "STOPPING"
    return _attribute(task, PAUSE_PHASE).upper() or ("WAITING" if last == "PROVISIONING" else last)


def is_paused(task: dict[str, Any]) -> bool:
    """Whether a task is being paused, is paused or is about to continue."""
    return bool(_attribute(task, PAUSE_PHASE))


def _attribute(task: dict[str, Any], name: str) -> str:
    return next((str(each.get("value", "")) for each in task.get("attributes", ()) if each["name"] == name), "")


def is_stopped(task: dict[str, Any]) -> bool:
    return bool(task["lastStatus"] == "STOPPED")


def gpu_ids(task: dict[str, Any]) -> list[str]:
    """Return the GPUs of a task. A GPU that several of its containers share is returned once."""
    return list(dict.fromkeys(gpu_id for container in task["containers"] for gpu_id in container.get("gpuIds", ())))


def shares_a_gpu(task: dict[str, Any]) -> bool:
    return any("gpuSharingStrategy" in container for container in task["containers"])


def spans(indexes: Iterable[int]) -> str:
    """Format numbers: `0-2,7`."""
    found: list[list[int]] = []  # (first, last) of consecutive numbers
    for index in sorted(indexes):
        if found and found[-1][1] == index - 1:
            found[-1][1] = index
        else:
            found.append([index, index])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def needs(amounts: dict[str, int]) -> str:
    """Format what a waiting task needs: `2 GPUs 16 GiB`. `amounts` is the member `needs` of Corral's pages.

    The memory that `corral run` reserves without --memory is omitted, because the user has not asked for it.
    """
    gpus, cpu_units, memory_mib = amounts["gpus"], amounts["cpuUnits"], amounts["memoryMiB"]
    parts = ["all GPUs" if gpus < 0 else count(gpus, "GPU")] if gpus else []
    if shared_mib := amounts.get("gpuMemoryMiB"):
        parts = [f"{size(shared_mib)} of a GPU"]
    parts += [f"{cpu_units / CPU_UNITS_PER_CORE:.4g} CPU"] if cpu_units else []
    parts += [size(memory_mib)] if memory_mib and memory_mib != RESERVED_MIB else []
    return " ".join(parts)


def size(mib: int) -> str:
    """Format an amount of memory: `1.5 GiB`, `512 MiB`."""
    return f"{mib / MIB_PER_GIB:.4g} GiB" if mib >= MIB_PER_GIB else f"{mib} MiB"


def short_reason(reason: str) -> str:
    """Return the part of a reason that tables show: why a task waits, without what other columns show.

    The text of the server is a short answer and details. The details that tables omit are what the task needs, its place in line,
    the ids of the tasks that hold the GPUs, and the estimate of the start.
    """
    return "; ".join(part for part in reason.split("; ") if not _DETAIL.match(part)) or reason


def exit_codes(task: dict[str, Any]) -> list[int]:
    return [container["exitCode"] for container in task["containers"] if "exitCode" in container]


def reached_time_limit(ended: dict[str, Any]) -> bool:
    return "time limit" in str(ended.get("stoppedReason", "")).lower()


def exit_code(definition: dict[str, Any], ended: dict[str, Any]) -> int | None:
    """Return the exit code of the first essential container that failed.

    If none failed, return 0, or None if one of them has no exit code.
    """
    essential = {defined["name"] for defined in definition["containerDefinitions"] if is_essential(defined)}
    codes = [container.get("exitCode") for container in ended["containers"] if container["name"] in essential]
    return next((code for code in codes if code), None if None in codes or not codes else 0)


def reason(task: dict[str, Any]) -> str:
    """Return why a task waits or stopped. Return an empty text if the exit code is the only reason."""
    of_containers = "; ".join(dict.fromkeys(container["reason"] for container in task["containers"] if container.get("reason")))
    if not is_stopped(task):
        return of_containers or str(task.get("stoppedReason", "")) or tag_value(task, PAUSED_TAG)
    if task.get("stopCode") == "EssentialContainerExited" and exit_codes(task):
        return of_containers
    return of_containers or str(task.get("stoppedReason", ""))


def read_definition(path: Path) -> dict[str, Any]:
    """Read a task definition from a file.

    The file contains the input of RegisterTaskDefinition or the response of DescribeTaskDefinition.
    """
    try:
        content = json.loads(path.read_text())
    except ValueError as error:
        raise CliError(f"{path} is not valid JSON: {error}") from None
    if isinstance(content, dict) and isinstance(content.get("taskDefinition"), dict):
        content = {**content["taskDefinition"], **({"tags": content["tags"]} if content.get("tags") else {})}
    if not isinstance(content, dict) or not content.get("containerDefinitions"):
        raise CliError(f"{path} is not a task definition: it has no containerDefinitions.")
    definition = {"family": path.stem, **{name: value for name, value in content.items() if name not in READ_ONLY}}
    _check_members(path, definition)
    return definition


def _check_members(path: Path, definition: dict[str, Any]) -> None:
    """Refuse members that RegisterTaskDefinition does not have, and values of a wrong type.

    ECS ignores unknown members, so a member with a wrong name would have no effect.
    """
    from botocore.session import get_session  # the import is slow, but only files need this check
    from botocore.validate import ParamValidator

    shape = get_session().get_service_model("ecs").operation_model("RegisterTaskDefinition").input_shape
    report = ParamValidator().validate(definition, shape)
    if report.has_errors():
        raise CliError(f"{path} is not a task definition: {' '.join(report.generate_report().split())}")


def is_essential(container: dict[str, Any]) -> bool:
    return bool(container.get("essential", True))


def first_essential(definition: dict[str, Any]) -> str:
    containers = definition["containerDefinitions"]
    return str(next(filter(is_essential, containers), containers[0]).get("name", ""))
