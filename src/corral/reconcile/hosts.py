"""The reconciler `silence` finds hosts that have stopped reporting, `host` records that one is silent or lost, and `drain` stops
the tasks of drained hosts at their deadline."""

from __future__ import annotations

from typing import Any

from corral.core.transactions import Tx
from corral.fleet.hosts import SILENCE
from corral.fleet.instances import host_changed
from corral.model.agent_protocol import SILENT_S
from corral.model.ecs_service import service_of_task
from corral.model.stop_reasons import HOST_DRAINED, HOST_LOST_IN_TIME
from corral.model.task import StopCode
from corral.services.ecs.task_progress import begin_stop
from corral.store import Store

LATE_S = 2 * SILENT_S  # a silent host is looked at every SILENT_S; after a longer time, the server was not running


def find_silent_hosts(tx: Tx[Store], _: str) -> None:
    """Run `host` for each host that has not reported for SILENT_S, and this reconciler again when the next one can be silent.

    So hosts that report need neither a timer nor a row of their own.
    """
    silent_at_s = {host_id: seen_at_s + SILENT_S for host_id, seen_at_s in tx.store.hosts.last_seen().items()}
    for host_id, at_s in silent_at_s.items():
        if at_s <= tx.now_s:
            tx.mark(f"host:{host_id}")
    later = [at_s for at_s in silent_at_s.values() if at_s > tx.now_s]
    if later:
        tx.due(SILENCE, min(later))


def reconcile_host(tx: Tx[Store], host_id: str) -> None:
    """Record that a host is silent if it has not reported for SILENT_S seconds.

    A silent host gets no new work. Its tasks keep their GPUs, because their processes can still be alive. It is lost only if its
    cluster has `lost_after`.
    """
    host = tx.store.hosts.get(host_id)
    if host is None or host["lost_at"] is not None:
        return
    if not host["connected"]:
        _lose_in_time(tx, host)
        return
    silent_at_s = host["seen_at"] + SILENT_S
    if tx.now_s >= silent_at_s:
        tx.store.hosts.silent(host_id)
        host_changed(tx, host_id)
        _lose_in_time(tx, host)
    else:
        tx.due(SILENCE, silent_at_s)


def _lose_in_time(tx: Tx[Store], host: dict[str, Any]) -> None:
    """Give up a silent host when `lost_after` of its cluster is over, and the fences of its tasks have ended them.

    A host cannot report while the server is down, stopped or suspended. So after such a time, it has SILENT_S to connect.
    """
    after_s = tx.settings.lost_after.get(tx.store.hosts.options()[host["id"]].options.cluster)
    if after_s is None or tx.store.joined_hosts.find(host["id"]) is None:
        return
    from corral.services.ecs.host_loss import fences_end_at_s, lose  # imported here, because few clusters have `lost_after`

    at_s = max(host["seen_at"] + after_s, fences_end_at_s(tx, host["id"]))
    seconds_ago = tx.store.hosts.note_silence(host["id"], tx.now_s)
    if tx.now_s >= at_s and seconds_ago is not None and seconds_ago <= LATE_S:
        lose(tx, host["id"], HOST_LOST_IN_TIME.format(f"{after_s:g}"))
    else:
        again_s = tx.now_s + SILENT_S
        tx.due(f"host:{host['id']}", again_s if tx.now_s >= at_s else min(at_s, again_s))


def end_drain(tx: Tx[Store], host_id: str) -> None:
    """Stop the tasks of a drained host, if its deadline is over. Services move their tasks themselves."""
    host = tx.store.hosts.get(host_id)
    if host is None or host["drain_until"] is None:
        return
    if tx.now_s < host["drain_until"]:  # an earlier drain had an earlier deadline
        tx.due(f"drain:{host_id}", host["drain_until"])
        return
    tx.store.hosts.drain_until(host_id, None)
    for task in tx.store.tasks.on_host(host_id):
        if service_of_task(task) is None:
            begin_stop(tx, task, StopCode.TERMINATION, HOST_DRAINED)
