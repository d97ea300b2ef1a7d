"""ECS clusters, and the pools that contain their container instances.

A slot is the capacity of one container instance, total and free. A pool is a set of slots on which the scheduler places tasks.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.fleet.host_options import host_clusters
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.instance import HOST_POOL, cluster_pool
from corral.model.placement import Slot
from corral.store import Store


def exists_without_row(tx: Tx[Store], region: str, name: str) -> bool:
    """Whether this cluster exists even if no request has created it.

    Such clusters are `default`, the cluster of this machine, and a former cluster of this machine that still has tasks.
    """
    return name == DEFAULT_CLUSTER or has_host(tx, name) or tx.store.clusters.has_tasks(region, name)


def is_active_cluster(tx: Tx[Store], region: str, name: str) -> bool:
    found = tx.store.clusters.get(region, name)
    return found[0] == "ACTIVE" or has_host(tx, name) if found is not None else exists_without_row(tx, region, name)


def has_host(tx: Tx[Store], cluster: str) -> bool:
    return cluster in host_clusters(tx)


def pools_of(tx: Tx[Store], region: str, cluster: str) -> tuple[str, ...]:
    """Return the pools that contain the container instances (slots) of a cluster.

    One pool contains the instances that have joined the cluster. If this machine belongs to the cluster, another pool contains the
    hosts themselves, in every region. Only this function implements this rule.
    """
    joined = cluster_pool(region, cluster)
    return (HOST_POOL, joined) if has_host(tx, cluster) else (joined,)


def slots_of(tx: Tx[Store], region: str, cluster: str) -> list[Slot]:
    """Return the container instances of a cluster as slots, which is the form that the scheduler uses."""
    return [slot for pool in pools_of(tx, region, cluster) for slot in tx.store.fleet.pool(pool).slots()]
