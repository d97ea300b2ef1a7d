"""Stops all tasks of all regions, for `corral down --stop-tasks` and for a server whose data folder was deleted.

A stopped task leaves room for others: a service replaces its task, and waiting tasks and Batch jobs start. So launches are paused
first (`model/settings.py`). A task that is launched during the pause waits for capacity. The pause ends after `pause_s`, or with
the server. Then the scheduler starts what waits.
"""

from __future__ import annotations

from typing import Any

from corral.core.transactions import Tx
from corral.model.task import StopCode
from corral.services.ecs.task_progress import begin_stop
from corral.store import Store

STOPS_MAX = 100  # the most tasks that one call stops, so that the transaction stays short


def stop_all(tx: Tx[Store], reason: str, pause_s: float) -> dict[str, Any]:
    """Pause launches, and stop at most STOPS_MAX tasks. Return how many were stopped, and what is left. Repeat it until none runs.

    Waiting tasks of services are not stopped, because the service would replace them.
    """
    pause(tx, pause_s)
    task_ids = tx.store.tasks.listing.not_stopping(STOPS_MAX)
    for task_id in task_ids:
        task = tx.store.tasks.get(task_id)
        assert task is not None, "the same transaction has listed the task"
        begin_stop(tx, task, StopCode.USER, reason)
    counts, lines = tx.store.tasks.listing.counts(), tx.store.job_lines
    return {
        "stopped": len(task_ids),
        "running": counts.get("PENDING", 0) + counts.get("RUNNING", 0),
        "silent": {host["name"]: count for host in tx.store.hosts.all() if (count := _unreachable(tx, host))},
        "services": tx.store.ecs_services.count_wanted(),
        "jobs": sum(line.count for region, queue in lines.queues() for line in lines.lines_of(region, queue)),
    }


def _unreachable(tx: Tx[Store], host: dict[str, Any]) -> int:
    """Return the number of tasks on a host that is not connected. They stop when it connects again."""
    return 0 if host["connected"] else len(tx.store.tasks.on_host(host["id"]))


def pause(tx: Tx[Store], pause_s: float) -> None:
    """Pause launches for this time from now on. 0 ends the pause."""
    tx.settings.launches.paused_until_s = tx.now_s + pause_s
    for pool in tx.store.fleet.pools_with_claims():
        tx.mark(f"pool:{pool}")
