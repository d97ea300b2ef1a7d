"""The reconciler of allocations, which lenders give to instances."""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.fleet import instances
from corral.model.allocation import JOIN_MAX_S, AllocationState
from corral.model.instance import InstanceState
from corral.store import Store


def end_unused_allocation(tx: Tx[Store], instance_id: str) -> None:
    """Terminate an instance whose allocation has run for JOIN_MAX_S, and whose pilot has not joined with the GPUs that it needs.

    Otherwise the allocation would run for nothing. Its group launches another instance.
    """
    allocation, instance = tx.store.allocations.get(instance_id), tx.store.instances.get(instance_id)
    if allocation is None or instance is None or instance.state is not InstanceState.PENDING or allocation.running_at_s is None:
        return
    if allocation.state is AllocationState.RUNNING and tx.now_s >= allocation.running_at_s + JOIN_MAX_S:
        why = f"the pilot of {allocation.handle} has not joined within {JOIN_MAX_S / 60:.0f} minutes"
        instances.terminate(tx, instance, f"Server.{allocation.lender}: {why}{f': {allocation.said}' if allocation.said else ''}")
