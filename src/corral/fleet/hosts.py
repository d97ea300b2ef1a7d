"""Messages from the agents of hosts about the hosts themselves: heartbeats, and GPUs that are in use or have failed.

`services/ecs/host_reports.py` handles the messages about runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from corral.core.transactions import Tx
from corral.fleet.instances import host_changed
from corral.model.agent_protocol import SILENT_S
from corral.model.gpu import Foreign
from corral.model.run import RunState
from corral.store import Store

SILENCE = "silence:"  # the key of the reconciler that finds the hosts which do not report any more


def heartbeats(tx: Tx[Store], host_ids: Iterable[str], lacking: Mapping[str, Iterable[str]] = MappingProxyType({})) -> list[str]:
    """Note that these hosts have reported. Return those that must connect anew. This writes nothing, unless a silent host returns.

    These are the hosts whose tasks were given up as lost, and those that can have GPUs now which another host had when they
    connected. `lacking` maps such hosts to these GPUs.
    """
    lost = tx.store.hosts.lost_ids()
    can_move = {host_id for host_id, gpu_ids in lacking.items() if any(map(tx.store.hosts.is_free_to_move, gpu_ids))}
    reported = set(host_ids)
    known = reported - lost - tx.store.joined_hosts.revoked_among(reported)
    returned = tx.store.hosts.silent_ids().intersection(known)
    tx.store.hosts.seen(known, tx.now_s)
    if returned:
        tx.due(SILENCE, tx.now_s + SILENT_S)
    for host_id in sorted(returned):
        wake_pools(tx, host_id)
        host_changed(tx, host_id)
    return sorted((lost | can_move) & reported)


def gpus_in_use(tx: Tx[Store], host_id: str, found: Mapping[str, Sequence[Foreign]]) -> None:
    """Store which GPUs are used by processes that belong to no run. No task is placed on a GPU while such a process uses it."""
    host = tx.store.hosts.get(host_id)
    if host is not None and tx.store.hosts.put_foreign(host_id, found):
        wake_pools(tx, host_id)


def gpus_failed(tx: Tx[Store], host_id: str, faults: Mapping[str, str]) -> None:
    """Store which GPUs have failed, and why. No task is placed on these GPUs.

    `faults` has all faults of the host: GPU id → reason. If a GPU has a new fault, the logs of its tasks get a line with the fault.
    An Auto Scaling group can replace an instance that has a failed GPU.
    """
    changed = tx.store.hosts.put_faults(host_id, faults, tx.now_s)
    if not changed:
        return
    holders = tx.store.hosts.holders(host_id)
    for gpu_id in changed:
        tx.changed(gpu_key(gpu_id))
        holding = [tx.store.tasks.get(task_id) for task_id in holders.get(gpu_id, ())] if gpu_id in faults else []
        for run in [run for task in holding if task is not None for run in task.runs]:
            if gpu_id in run.gpu_ids and run.state is not RunState.STOPPED:
                tx.hand_over("logs", "run notice", {"run": run.attempt_id, "text": f"corral: {gpu_id} failed: {faults[gpu_id]}"})
    wake_pools(tx, host_id)
    host_changed(tx, host_id)


class HostNames:
    """The names of hosts, found by the instances on them. If there is only one host, it needs no name."""

    def __init__(self, tx: Tx[Store]) -> None:
        self._instances = tx.store.instances
        hosts = tx.store.hosts.all()
        self._names = {host["id"]: str(host["name"]) for host in hosts}
        self._silent = {host["id"] for host in hosts if not host["connected"]}

    def of(self, instance_id: str | None) -> str | None:
        """Return None if there is only one host, if the instance has no host, or if the instance is forgotten."""
        if len(self._names) < 2 or instance_id is None:
            return None
        instance = self._instances.get(instance_id)
        return self._names.get(instance.host_id) if instance is not None and instance.host_id is not None else None

    def why_silent(self, instance_id: str | None) -> str:
        """Return a text if the host of an instance does not report, so that the states of its tasks may be old."""
        instance = self._instances.get(instance_id) if instance_id is not None and self._silent else None
        if instance is None or instance.host_id not in self._silent:
            return ""
        return f"its host {self._names[instance.host_id]} does not report"


def gpu_key(gpu_id: str) -> str:
    """Return the key that `Tx.changed` gets when the fault of a GPU changes."""
    return f"gpu:{gpu_id}"


def wake_pools(tx: Tx[Store], host_id: str) -> None:
    """Run the scheduler and the reconcilers of DAEMON services, because the capacity of the host may have changed.

    They run for each pool that has capacity of the host.
    """
    for pool in {instance.pool for instance in tx.store.instances.on_host(host_id)} - {None}:
        tx.mark(f"pool:{pool}")
        tx.mark(f"daemons:{pool}")
