"""The loss of a host: its tasks are given up without a report of their end.

A silent host is lost only by proof or by order: `corral hosts forget`, or `lost_after` of its cluster (corral.toml). Its tasks are
STOPPED with the reason, so their credentials are void, and services and jobs start again elsewhere. Its GPUs are free of leases,
but its machine may still run the tasks. So the store keeps the ids of these runs (`old_run`) until the host has reported their
ends, or its machine has restarted. Until then, the host gets no work, and its GPUs move to no other host.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.fleet import instances
from corral.fleet.hosts import wake_pools
from corral.fleet.instances import host_changed
from corral.model.agent_protocol import SILENT_S
from corral.model.instance import host_instance_id
from corral.model.run import Observed, RunState
from corral.services.ecs.host_reports import apply_reports
from corral.services.ecs.task_spec import fence_s, spec_of
from corral.store import Store

# The agent may have sent a message later than the server has stored (`seen_at`), and the spawner looks once a second.
FENCE_MARGIN_S = SILENT_S


def lose(tx: Tx[Store], host_id: str, reason: str) -> None:
    """Give up the tasks and the EC2 instances of a host that does not report, and close what is left of its connections."""
    hosts, tasks = tx.store.hosts, tx.store.tasks.on_host(host_id)
    hosts.lose(host_id, reason, tx.now_s)
    old = {run.attempt_id for task in tasks for run in task.runs if run.state is not RunState.STOPPED and not run.waits}
    hosts.set_old_runs(host_id, old.union(hosts.old_runs(host_id)))
    for task in tasks:
        unfinished = [run for run in task.runs if run.state is not RunState.STOPPED and not run.waits]
        ends = {
            run.attempt_id: Observed(run.attempt_id, started_at_s=run.started_at_s, stopped_at_s=tx.now_s, reason=reason)
            for run in unfinished
        }
        apply_reports(tx, task, ends)
    for instance in tx.store.instances.on_host(host_id):
        if not instance.is_host:
            instances.terminate(tx, instance, reason)
    tx.store.joined_hosts.cut_off(host_id)
    wake_pools(tx, host_id)
    host_changed(tx, host_id)


def forget(tx: Tx[Store], host_id: str, reason: str) -> int:
    """Give up a host, and do not list it until it connects again. Return the number of its tasks."""
    joined = tx.store.joined_hosts.find(host_id)
    if joined is not None:
        tx.store.joined_hosts.put(replace(joined, forgotten_at_s=tx.now_s))
    if tx.store.hosts.get(host_id) is None:
        return 0
    count = len(tx.store.tasks.on_host(host_id))
    lose(tx, host_id, reason)
    own = tx.store.instances.get(host_instance_id(host_id))
    if own is not None and own.pool is not None:
        tx.store.instances.withdraw(own)
    return count


def fences_end_at_s(tx: Tx[Store], host_id: str) -> float:
    """Return when all tasks of a silent host that have a fence have been ended by it. 0: no task has one."""
    host, ends = tx.store.hosts.get(host_id), [0.0]
    for task in tx.store.tasks.on_host(host_id):
        after_s = fence_s(task.details.get("tags", ()))
        if host is not None and after_s is not None:
            grace_s = max((container.stop_grace_s for container in spec_of(tx, task).containers.values()), default=0.0)
            ends.append(host["seen_at"] + after_s + grace_s + FENCE_MARGIN_S)
    return max(ends)


def why_not_forgotten(tx: Tx[Store], host_id: str, *, now: bool = False) -> str:
    """Return why a host cannot be forgotten, as the end of a sentence. Empty: it can.

    With `now`, it can be forgotten although a fence may not have ended its tasks yet.
    """
    host = tx.store.hosts.get(host_id)
    if tx.store.joined_hosts.find(host_id) is None:
        return "is the machine of the server: restart the server, which finds out what has become of its tasks"
    if host is not None and host["connected"]:
        return "is connected: only a host that is SILENT can be forgotten. `corral hosts drain` takes its tasks away"
    left_s = fences_end_at_s(tx, host_id) - tx.now_s
    if left_s > 0 and not now:
        return (
            f"has tasks with a fence, which end by themselves in at most {left_s:.0f} s. Forget it then, or with --now if the "
            "machine is off"
        )
    return ""
