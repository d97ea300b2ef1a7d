"""Reconcilers of hosts that stop reporting and of instances that shut down."""

from __future__ import annotations

from corral.core import Tx
from corral.model.instance import HOST_POOL, InstanceState
from corral.model.run import SILENT_S
from corral.store import Store

# A terminated instance is shown for this long. A stopped task refers to its instance, so this time is longer than that of tasks.
TERMINATED_INSTANCES_S = 2 * 3600.0
ROWS_MAX = 100


def reconcile_host(tx: Tx[Store], host_id: str) -> None:
    """Mark a host as silent if it has not reported for a while.

    A silent host gets no new work. Its tasks keep their GPUs, because their processes can still be alive.
    """
    host = tx.store.hosts.get(host_id)
    if host is None or not host["connected"]:
        return
    silent_at_s = host["seen_at"] + SILENT_S
    if tx.now_s >= silent_at_s:
        tx.store.hosts.silent(host_id)
    else:
        tx.due(f"host:{host_id}", silent_at_s)


def reconcile_instance(tx: Tx[Store], instance_id: str) -> None:
    """Terminate an instance that is shutting down and has no tasks any more. Its GPUs return to its host."""
    instance = tx.store.instances.get(instance_id)
    if instance is None or instance.state is not InstanceState.SHUTTING_DOWN or tx.store.tasks.on(instance_id):
        return
    tx.store.instances.terminate(instance, tx.now_s)
    tx.changed(f"instance:{instance_id}")
    tx.mark(f"pool:{HOST_POOL}")
    tx.due("terminated:", tx.now_s + TERMINATED_INSTANCES_S)


def drop_terminated_instances(tx: Tx[Store], _: str) -> None:
    """Delete a limited number of terminated instances that have been shown for long enough."""
    if tx.store.instances.drop_terminated(tx.now_s - TERMINATED_INSTANCES_S, ROWS_MAX) >= ROWS_MAX:
        tx.due("terminated:", tx.now_s)
