"""Instances: one that shuts down is terminated when its last task has ended; terminated ones are forgotten."""

from __future__ import annotations

from corral.core import Tx
from corral.model.instance import HOST_POOL, InstanceState
from corral.store import Store

SHOWN_S = 2 * 3600.0  # longer than a stopped task is shown, which names its instance
ROWS_MAX = 100


def look_at_instance(tx: Tx[Store], instance_id: str) -> None:
    """A shutting-down instance without tasks gives its GPUs back to its host."""
    instance = tx.store.instances.get(instance_id)
    if instance is None or instance.state is not InstanceState.SHUTTING_DOWN or tx.store.tasks.on(instance_id):
        return
    tx.store.instances.terminate(instance, tx.now_s)
    tx.changed(f"instance:{instance_id}")
    tx.mark(f"pool:{HOST_POOL}")
    tx.due("terminated:", tx.now_s + SHOWN_S)


def forget_terminated(tx: Tx[Store], _: str) -> None:
    """Drop instances that have been shown for long enough, some at a time."""
    if tx.store.instances.drop_terminated(tx.now_s - SHOWN_S, ROWS_MAX) >= ROWS_MAX:
        tx.due("terminated:", tx.now_s)
