"""Reconcilers of instances.

They complete the stop or the termination of an instance after its last task has ended, delete old rows of terminated instances, and
reconcile DAEMON services when instances change. `reconcile_daemons` is here and not in `ecs_services.py`, so that a server without
services does not load `ecs_services.py`.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.fleet import instances
from corral.model.instance import cluster_of_pool, is_host_pool
from corral.store import Store

ROWS_MAX = 100


def reconcile_instance(tx: Tx[Store], instance_id: str) -> None:
    """Complete the stop, the termination or the deregistration of an instance that has no tasks left.

    The own instance of a host moves to the cluster that the options of the host name.
    """
    instance = tx.store.instances.get(instance_id)
    if instance is not None and instance.is_host:
        instances.move_host(tx, instance)
    elif instance is not None:
        instances.finish(tx, instance)


def drop_terminated_instances(tx: Tx[Store], _: str) -> None:
    """Delete instances that were terminated more than SHOWN_S ago, hosts of lenders on which they were, and old instance-hours.

    One transaction deletes at most ROWS_MAX rows of each kind.
    """
    dropped = tx.store.instances.drop_terminated(tx.now_s - instances.SHOWN_S, ROWS_MAX)
    hours = tx.store.instances.usage.drop_before(tx.now_s - instances.USAGE_SHOWN_S, ROWS_MAX)
    lent = tx.store.hosts.drop_lent(ROWS_MAX)
    tx.store.joined_hosts.drop(lent)
    if max(dropped, hours, len(lent)) >= ROWS_MAX:
        tx.due("terminated:", tx.now_s)


def reconcile_daemons(tx: Tx[Store], pool: str) -> None:
    """Reconcile the DAEMON services of a cluster, because the slots of its pool have changed."""
    cluster = cluster_of_pool(pool)
    if is_host_pool(pool):
        services = tx.store.ecs_services.daemons(cluster)
    else:
        services = tx.store.ecs_services.daemons(cluster, pool.partition("/")[0])
    for region, name in services:
        tx.mark(f"service:{region}/{cluster}/{name}")
