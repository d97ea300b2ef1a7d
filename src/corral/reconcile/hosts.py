"""The reconciler `host` finds hosts that have stopped reporting."""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.fleet.instances import host_changed
from corral.model.agent_protocol import SILENT_S
from corral.store import Store


def reconcile_host(tx: Tx[Store], host_id: str) -> None:
    """Record that a host is silent if it has not reported for SILENT_S seconds.

    A silent host gets no new work. Its tasks keep their GPUs, because their processes can still be alive.
    """
    host = tx.store.hosts.get(host_id)
    if host is None or not host["connected"]:
        return
    silent_at_s = host["seen_at"] + SILENT_S
    if tx.now_s >= silent_at_s:
        tx.store.hosts.silent(host_id)
        host_changed(tx, host_id)
    else:
        tx.due(f"host:{host_id}", silent_at_s)
