"""The unfinished tasks of a cluster, running tasks first, then waiting tasks, for `corral ps`.

ECS can list these tasks too, but ECS returns at most 100 tasks per request, and not in the order of their starts. ListRuns lists
the first waiting tasks in the order in which they will start, and then tasks that their tags hold back. It also returns the number
of all tasks in each state, and the number of tasks in other clusters and regions.

The place of a task is the position of its claim in this list, counted from 1. A task that its tags hold back has no claim, so it
has no place. A paused task that waits to continue has a place, and is listed with the running tasks.
"""

from __future__ import annotations

from heapq import merge
from itertools import islice
from typing import Any

from corral.access.authorization import may
from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.core.transactions import Tx
from corral.decide.placement.start_estimates import estimates
from corral.fleet.clusters import is_active_cluster, pools_of
from corral.fleet.hosts import HostNames
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.placement import TASK, Claim
from corral.model.queue_options import HOLD_TAG
from corral.model.task import Demand, Task, TaskState
from corral.services.corral.errors import ClusterNotFoundException, InvalidRequestException
from corral.services.ecs.pause_texts import pause_state
from corral.services.ecs.task_description import WaitReasons, last_status, task_arn_of, why_paused, why_waiting
from corral.store import Store

WAITING_DEFAULT = 100  # the number of waiting tasks in the response if the request does not limit it
LISTED_MAX = 5_000  # the maximum number of running tasks, and of waiting tasks, in the response
SCANNED_MAX = 10_000  # no further claims are read after this many; a pool can have claims of other clusters
SCAN_GROWTH = 4  # if too few tasks of the cluster were found, this many times as many claims are read
ELSEWHERE_MAX = 20  # the maximum number of other clusters in the response
CHUNK = 25  # after so many descriptions, a long read gives way to others


def list_runs(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List at most LISTED_MAX tasks on instances, and the first `maxWaiting` waiting tasks."""
    region, cluster, limit = caller.region, params.get("cluster", DEFAULT_CLUSTER), params.get("maxWaiting", WAITING_DEFAULT)
    if limit < 0:
        raise InvalidRequestException(f"maxWaiting {limit} is not valid: pass a number from 0 to {LISTED_MAX}.")
    if not is_active_cluster(tx, region, cluster):
        raise ClusterNotFoundException(f"cluster {cluster} does not exist: `corral aws ecs list-clusters` lists the clusters.")
    pools, limit = pools_of(tx, region, cluster), min(limit, LISTED_MAX)
    jobs = {line.id: line.count for pool in pools for line in tx.store.job_lines.in_pool(pool)}
    hosts = HostNames(tx)
    places = dict(first_in_line(tx, region, cluster, limit))
    behind = tx.store.task_queue.first_not_admitted(limit - len(places), (region, cluster))
    behind += tx.store.tasks.listing.for_turns(max(0, limit - len(places) - len(behind)), (region, cluster))
    listed = list(dict.fromkeys([*tx.store.tasks.listing.placed_in(region, cluster, LISTED_MAX), *places, *behind]))
    starts_s = {task_id: at_s for pool in pools for task_id, at_s in estimates(tx.store.fleet.pool(pool), tx.now_s).items()}
    reasons, rows, reads = WaitReasons(tx), [], dict[str, bool]()
    for start in range(0, len(listed), CHUNK):
        found = tx.store.tasks.several(listed[start : start + CHUNK])
        for task_id in listed[start : start + CHUNK]:
            task = found.get(task_id)
            if task is not None and task.state is not TaskState.STOPPED:
                if task.owner not in reads:
                    reads[task.owner] = _may_describe(tx, caller, task)
                waiting = why_waiting(tx, task, reasons) or why_paused(tx, task, reasons)
                row = _run(task, waiting, places.get(task_id), starts_s.get(task_id), has_reasons=reads[task.owner])
                reason = "; ".join(filter(None, (row["reason"], hosts.why_silent(task.instance_id))))
                rows.append({**row, "reason": reason, "host": hosts.of(task.instance_id)})
        tx.step()
    others = tx.store.tasks.listing.elsewhere(region, cluster, ELSEWHERE_MAX)
    return {
        "cluster": cluster,
        "counts": {**tx.store.tasks.listing.unfinished_counts(region, cluster), "jobs": sum(jobs.values())},
        "elsewhere": [dict(zip(("region", "cluster", "tasks"), each)) for each in others],
        "gpuIndexes": {gpu.gpu_id: gpu.index for host in tx.store.hosts.all() for gpu in tx.store.hosts.gpus(host["id"])},
        "running": [row for row in rows if row["state"] != "WAITING"],
        "waiting": [row for row in rows if row["state"] == "WAITING"],
    }


def first_in_line(tx: Tx[Store], region: str, cluster: str, limit: int) -> list[tuple[str, int]]:
    """Return the ids and the places of the waiting tasks of a cluster that will start first, at most `limit`."""
    pools, scanned = [tx.store.fleet.pool(pool) for pool in pools_of(tx, region, cluster)], limit
    while True:
        lines = [enumerate(islice(pool.in_order(), scanned), 1) for pool in pools]
        claims = list(islice(merge(*lines, key=_claim_of), scanned))
        of_cluster = tx.store.tasks.listing.in_cluster(region, cluster, [claim.id for _, claim in claims if claim.kind == TASK])
        found = [(claim.id, place) for place, claim in claims if claim.id in of_cluster][:limit]
        if len(found) == limit or len(claims) < scanned or scanned >= SCANNED_MAX:
            return found
        scanned *= SCAN_GROWTH


def _claim_of(place: tuple[int, Claim]) -> Claim:
    return place[1]


def _may_describe(tx: Tx[Store], caller: Caller, task: Task) -> bool:
    """Whether the caller may describe the tasks of the owner of a task."""
    if task.owner == caller.owner or not caller.is_restricted:
        return True
    return may(tx, caller, Permission("ecs:DescribeTasks", task_arn_of(tx.settings.account, task)))


def _run(task: Task, waiting: str | None, place: int | None, starts_at_s: float | None, *, has_reasons: bool) -> dict[str, Any]:
    """Describe a task. Without `has_reasons`, leave out why its containers failed, which can name commands, images and files."""
    found = [run.reason if has_reasons else None for run in task.runs]
    reasons = dict.fromkeys(reason for each in found if (reason := each or waiting))
    waits, paused = task.state is TaskState.PROVISIONING, pause_state(task)
    is_in_line = waits or (task.pause is not None and task.pause.returns)
    return {
        "task": task.id,
        "taskDefinition": task.definition_arn.rpartition("/")[2],
        "taskName": task.name,
        "arrayIndex": task.array_index,
        "state": "WAITING" if waits else paused or last_status(task),
        "sinceS": since_s_of(task),
        "gpuIds": gpu_ids_of(task),
        "gpuMemoryMiB": task.demand.gpu_memory_mib,
        "needs": needs_of(task.demand),
        "place": place if is_in_line else None,
        "startsAtS": starts_at_s if is_in_line else None,
        "held": waits and {"key": HOLD_TAG, "value": "true"} in task.details.get("tags", ()),
        "reason": "; ".join(reasons) or (has_reasons and task.stopped_reason) or "",
        "owner": task.owner,
        "hostMemoryMiB": held_mib_of(task),
    }


def since_s_of(task: Task) -> float:
    """Return since when a task has its state: since its pause, its start or its request."""
    if task.pause is not None and pause_state(task) is not None:
        return task.pause.since_s
    return task.started_at_s or task.created_at_s


def gpu_ids_of(task: Task) -> list[str]:
    """Return the GPUs that a task has. A paused task has none."""
    return [] if task.is_paused else list(dict.fromkeys(gpu_id for run in task.runs for gpu_id in run.gpu_ids))


def held_mib_of(task: Task) -> int | None:
    """Return the memory of the host that has what a paused task had on its GPUs, or None."""
    return (task.pause.held_mib or None) if task.pause is not None and pause_state(task) is not None else None


def needs_of(demand: Demand) -> dict[str, int]:
    """Return the resources of a demand. -1 GPUs means all GPUs of a host. `gpuMemoryMiB` is the memory on a shared GPU, or 0."""
    return {
        "gpus": demand.gpus,
        "gpuMemoryMiB": demand.gpu_memory_mib,
        "cpuUnits": demand.cpu_units,
        "memoryMiB": demand.memory_mib,
    }
