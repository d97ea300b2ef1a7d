"""Which slots a cluster has. Only this module knows that a host's own instance joins its cluster in every region."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.instance import HOST_POOL, cluster_pool
from corral.model.placement import Slot
from corral.store import Store

HOST_PROVIDER = "host"  # the capacity provider of the cluster that this machine joins
HOST_CLUSTER_DETAILS: dict[str, Any] = {  # of that cluster, unless a caller changed them
    "capacityProviders": [HOST_PROVIDER],
    "defaultCapacityProviderStrategy": [{"capacityProvider": HOST_PROVIDER, "weight": 1, "base": 0}],
}


def has_host(tx: Tx[Store], cluster: str) -> bool:
    """Whether this machine joined the cluster: `corral up --cluster`."""
    return cluster == tx.settings.cluster


def pools_of(tx: Tx[Store], region: str, cluster: str) -> tuple[str, ...]:
    """The pools whose slots are the cluster's container instances: the hosts' own, and instances that joined it."""
    joined = cluster_pool(region, cluster)
    return (HOST_POOL, joined) if has_host(tx, cluster) else (joined,)


def slots_of(tx: Tx[Store], region: str, cluster: str) -> list[Slot]:
    """The container instances of a cluster, as the scheduler sees them."""
    return [slot for pool in pools_of(tx, region, cluster) for slot in tx.store.fleet.pool(pool).slots()]


def find_slot(tx: Tx[Store], region: str, cluster: str, slot_id: str) -> tuple[str, Slot] | None:
    """A container instance of a cluster and its pool. None: the cluster has none of this id."""
    for name in pools_of(tx, region, cluster):
        pool = tx.store.fleet.pool(name)
        if slot_id in pool:
            return name, pool.slot(slot_id)
    return None
