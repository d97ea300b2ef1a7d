"""What the options of hosts decide: to which clusters hosts belong, and whether images run in containers.

Each host reports its own options. Until the first host has connected, Corral assumes one host with the options of this machine.
"""

from __future__ import annotations

from collections.abc import Collection

from corral.core.transactions import Tx
from corral.model.task import Task
from corral.store import Store
from corral.store.hosts import StoredOptions


def host_clusters(tx: Tx[Store]) -> Collection[str]:
    """Return the clusters to which hosts belong, in every region, and those to which hosts move after their last task."""
    return tx.store.instances.clusters_of_hosts() or (tx.settings.host.cluster,)


def runs_containers(tx: Tx[Store]) -> bool:
    """Whether a host runs images in Docker."""
    return any(host.runs_containers for host in _all(tx))


def all_run_containers(tx: Tx[Store]) -> bool:
    """Whether every host runs images in Docker."""
    return all(host.runs_containers for host in _all(tx))


def options_for(tx: Tx[Store], task: Task) -> StoredOptions:
    """Return the options of the host of a task. If the task has no host, return those of a host on which it may be placed."""
    instance = tx.store.instances.get(task.instance_id) if task.instance_id is not None else None
    placed = tx.store.hosts.options().get(instance.host_id or "") if instance is not None else None
    return placed or max(_all(tx), key=lambda host: host.runs_containers)


def _all(tx: Tx[Store]) -> Collection[StoredOptions]:
    return tx.store.hosts.options().values() or [StoredOptions(tx.settings.host)]
