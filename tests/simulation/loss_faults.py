"""Planted faults of hosts that are lost, and of the fences of their tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from corral.core.transactions import Tx
from corral.model.agent_protocol import Hello
from corral.reconcile import STATE
from corral.services.corral import joining
from corral.services.ecs import host_loss, host_reports
from corral.store import Store
from simulation.host import Engine, Process
from simulation.plan import Plan
from simulation.world import LOST_AFTER_S, Parts


def many_losses(plan: Plan) -> Plan:
    """Let hosts be away for long enough. In so much time, steps of the wall clock would delete log events for their age."""
    faults = tuple(fault for fault in plan.faults if fault != "clock step")
    return replace(plan, with_loss=True, safety_s=100.0, faults=faults)


def many_changes(plan: Plan) -> Plan:
    return replace(many_losses(plan), with_changes=True)


def hello_ignores_old_runs(tx: Tx[Store], message: Hello) -> None:
    """A host that returns gets new work while it still ends its old work."""
    host_reports.hello(tx, message)
    tx.store.hosts.set_old_runs(message.host_id, ())


def lost_before_its_fences(tx: Tx[Store], host_id: str) -> None:
    """A silent host is lost after `lost_after`, although the fences of its tasks may not have ended them."""
    STATE["host"](tx, host_id)
    host = tx.store.hosts.get(host_id)
    if host is not None and not host["connected"] and host["lost_at"] is None:
        if tx.now_s >= host["seen_at"] + LOST_AFTER_S / 2:
            host_loss.lose(tx, host_id, "the host was lost")
        else:
            tx.due(f"host:{host_id}", host["seen_at"] + LOST_AFTER_S / 2)


def forgotten_at_once(tx: Tx[Store], host_id: str) -> Any:
    """A host is forgotten while it is connected."""
    return host_loss.forget(tx, host_id, "the host was lost") if tx.store.hosts.get(host_id) is not None else 0


def serves_copies(tx: Tx[Store], host_id: str, machine: dict[str, str], address: str) -> str:
    """The machine that presents a certificate is not compared with that of its host."""
    host = tx.store.joined_hosts.find(host_id)
    return joining.identify(tx, host_id, (host.machine if host is not None else {}) or machine, address)


class IgnoresFences(Engine):
    def _fence(self, process: Process, after_s: float) -> None:
        pass


LOSS_FAULTS = {
    "a host that returns gets work before its old work has ended": Parts(hello=hello_ignores_old_runs, tune=many_losses),
    "a host is lost before the fences of its tasks": Parts(reconcilers={**STATE, "host": lost_before_its_fences}, tune=many_losses),
    "a connected host is forgotten": Parts(forget=forgotten_at_once, tune=many_losses),
    "the engine ignores fences": Parts(engine=IgnoresFences, tune=many_losses),
    "a copy of a host is served": Parts(identify=serves_copies, tune=many_changes),
}
