"""ECS clusters, and the pools that contain their container instances.

A slot is the capacity of one container instance, total and free. A pool is a set of slots on which the scheduler places tasks.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.fleet.host_options import host_clusters
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.instance import cluster_pool, host_instance_id, host_pool
from corral.model.placement import Slot
from corral.store import Store


def exists_without_row(tx: Tx[Store], region: str, name: str) -> bool:
    """Whether this cluster exists even if no request has created it.

    Such clusters are `default`, the clusters of hosts, and a former cluster of a host that still has tasks.
    """
    return name == DEFAULT_CLUSTER or has_host(tx, name) or tx.store.clusters.has_tasks(region, name)


def is_active_cluster(tx: Tx[Store], region: str, name: str) -> bool:
    found = tx.store.clusters.get(region, name)
    return found[0] == "ACTIVE" or has_host(tx, name) if found is not None else exists_without_row(tx, region, name)


def has_host(tx: Tx[Store], cluster: str) -> bool:
    return cluster in host_clusters(tx)


def pools_of(tx: Tx[Store], region: str, cluster: str) -> tuple[str, ...]:
    """Return the pools that contain the container instances (slots) of a cluster.

    One pool contains the EC2 instances that have joined the cluster. If hosts belong to the cluster, another pool contains the
    hosts themselves, in every region. Only this function implements this rule.
    """
    joined = cluster_pool(region, cluster)
    return (host_pool(cluster), joined) if has_host(tx, cluster) else (joined,)


def host_pools(tx: Tx[Store], cluster: str = "") -> tuple[str, ...]:
    """Return the pools of all hosts: those of `cluster` first, then those of the server's cluster."""
    first, found = (cluster, tx.settings.host.cluster), host_clusters(tx)
    if len(found) == 1:
        return tuple([host_pool(each) for each in found])
    ordered = [each for each in dict.fromkeys(first) if each in found]
    return tuple([host_pool(each) for each in (*ordered, *sorted(set(found) - set(ordered)))])


def fargate_pool(tx: Tx[Store], cluster: str) -> str:
    """Return the pool for the Fargate tasks of a cluster: the hosts of the cluster, or those of the server's cluster."""
    return host_pools(tx, cluster)[0]


def slots_of(tx: Tx[Store], region: str, cluster: str) -> list[Slot]:
    """Return the container instances of a cluster as slots, which is the form that the scheduler uses."""
    return [slot for pool in pools_of(tx, region, cluster) for slot in tx.store.fleet.pool(pool).slots()]


def slot_of_host(tx: Tx[Store], host_id: str) -> Slot | None:
    """Return the slot of a host's own instance. Return None if the host has not connected yet."""
    own = tx.store.instances.get(host_instance_id(host_id))
    pool = tx.store.fleet.pool(own.pool) if own is not None and own.pool is not None else None
    return pool.slot(own.id) if own is not None and pool is not None and own.id in pool else None
