"""Hosts that have joined from other machines: their network is cut, their certificates are revoked, and they join again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

from corral.core.transactions import Tx
from corral.model.agent_protocol import HEARTBEAT_S, Hello
from corral.model.joined_host import JoinedHost
from corral.services.corral import joining
from corral.services.ecs import host_reports
from corral.store import Store
from simulation.checkers import Checker, Violation
from simulation.clients import CALLER
from simulation.host import Host
from simulation.plan import Plan

if TYPE_CHECKING:
    from corral.core.core import Outcome
    from simulation.world import World

LOST_S = 2 * HEARTBEAT_S  # both ends give up a connection on which nothing arrives
CUTS_S = (1.0, 5.0, 20.0, 60.0)
REVOKED_S = (2.0, 20.0, 60.0)
MACHINE = {"machine-id": "a"}


def with_joined_hosts(plan: Plan) -> Plan:
    hosts = plan.hosts if len(plan.hosts) > 1 else plan.hosts * 2
    faults = (*plan.faults, "cut", "cut", "revoke")
    return replace(plan, hosts=hosts, with_joined=True, faults=faults, fault_every_s=min(plan.fault_every_s, 3.0))


def serves_hello(tx: Tx[Store], hello: Hello, world: World, machine: dict[str, str] = MACHINE) -> list[str] | str:
    """Apply the hello of a host that has joined, as the server does. Its certificate was checked before.

    Return the GPUs that another host has, or why the host is refused.
    """
    if tx.store.joined_hosts.find(hello.host_id) is None:  # it redeems its token now
        new = JoinedHost(hello.host_id, hello.name, hello.host_id, "token", "serial", "", "", "", "", "", tx.now_s)
        tx.store.joined_hosts.put(new)
    if refusal := world.parts.identify(tx, hello.host_id, machine, "10.0.0.1"):
        return refusal
    world.parts.hello(tx, hello)
    joining.connected(tx, hello.host_id, "10.0.0.1", "1")
    return list(tx.store.hosts.gpus_elsewhere([gpu.gpu_id for gpu in hello.gpus], hello.host_id))


def cut(host: Host) -> None:
    """Let no byte pass for some time. If that is long, both ends give up their connection."""
    world = host.world
    host.cut_until = world.agenda.now + world.rng.choice(CUTS_S)
    connection = host.agent.connection if host.agent is not None else None
    if connection is not None:
        connection.up.stalled_until = connection.down.stalled_until = host.cut_until
        if host.cut_until > world.agenda.now + LOST_S:
            world.agenda.after(LOST_S, connection.break_off)


def revoke(host: Host) -> None:
    world = host.world
    handler = world.parts.handlers.get("RevokeHost", joining.revoke_host)
    world.plane.submit(lambda tx: handler(tx, {"host": host.id}, CALLER) if tx.store.joined_hosts.find(host.id) else None)
    world.agenda.after(world.rng.choice(REVOKED_S), partial(join_again, host))


def join_again(host: Host) -> None:
    """Redeem another token with the same key: the host keeps its id, because its runs may be alive."""

    def handler(tx: Tx[Store]) -> None:
        before = tx.store.joined_hosts.find(host.id)
        if before is not None and before.revoked_at_s is not None:
            host.world.note("host", host.id[-2:], "joins again")
            tx.store.joined_hosts.put(structs.replace(before, revoked_at_s=None))

    host.world.plane.submit(handler)


class RevokedGetNothing(Checker):
    """A revoked host is not connected: so the scheduler places nothing on it."""

    def transaction_done(self, outcome: Outcome) -> None:
        rows = self.world.plane.store.execute(
            "SELECT host.id FROM host JOIN joined_host USING (id) WHERE connected AND revoked_at IS NOT NULL"
        ).fetchall()
        if rows:
            raise Violation(f"{rows} are revoked and connected")


# Planted faults


def hello_of_a_revoked_host(tx: Tx[Store], message: Hello) -> None:
    """Whether a host was revoked is not looked at."""
    host = tx.store.joined_hosts.find(message.host_id)
    if host is None or host.revoked_at_s is None:
        host_reports.hello(tx, message)
        return
    tx.store.joined_hosts.put(structs.replace(host, revoked_at_s=None))
    host_reports.hello(tx, message)
    tx.store.joined_hosts.put(host)


def revoking_frees(tx: Tx[Store], params: dict[str, Any], caller: Any) -> dict[str, Any]:
    """The GPUs of a revoked host are free at once, although its runs live."""
    answer = joining.revoke_host(tx, params, caller)
    for task in tx.store.tasks.on_host(params["host"]):
        for run in task.runs:
            tx.store.execute("DELETE FROM lease WHERE run_id = ?", (run.id,))
    return answer
