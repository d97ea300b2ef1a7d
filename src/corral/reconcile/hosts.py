"""Hosts that fall silent."""

from __future__ import annotations

from corral.core import Tx
from corral.model.run import SILENT_S
from corral.store import Store


def look_at_host(tx: Tx[Store], host_id: str) -> None:
    """A host not heard of for a while gets nothing new. Its leases stay: its runs may well be alive."""
    host = tx.store.hosts.get(host_id)
    if host is None or not host["connected"]:
        return
    silent_at_s = host["seen_at"] + SILENT_S
    if tx.now_s >= silent_at_s:
        tx.store.hosts.silent(host_id)
    else:
        tx.due(f"host:{host_id}", silent_at_s)
