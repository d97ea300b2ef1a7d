"""The life of hosts: drain, resume, rename and forget them, and accept another machine as a host."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet import instances
from corral.fleet.hosts import wake_pools
from corral.model.joined_host import JoinedHost
from corral.model.stop_reasons import HOST_FORGOTTEN
from corral.services.corral.errors import (
    HostInUseException,
    HostNotConnectedException,
    HostNotFoundException,
    InvalidRequestException,
)
from corral.services.corral.joining import NAME, NAME_RULE, require_own_key
from corral.services.ecs import host_loss
from corral.store import Store

DEADLINE_MAX_S = 30 * 86_400.0


def drain_host(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Give a host no new tasks. Services move their tasks. With `deadline`, its other tasks are stopped after this time."""
    host = _connected_before(tx, params["host"])
    deadline_s = params.get("deadline")
    if deadline_s is not None and not 0 <= deadline_s <= DEADLINE_MAX_S:
        raise InvalidRequestException(f"deadline {deadline_s:g} is not valid: pass 0 to {DEADLINE_MAX_S:.0f} seconds.")
    _set_status(tx, host["id"], "DRAINING")
    until_s = None if deadline_s is None else tx.now_s + deadline_s
    tx.store.hosts.drain_until(host["id"], until_s)
    if until_s is not None:
        tx.due(f"drain:{host['id']}", until_s)
    return _named(host) | {"tasks": len(tx.store.tasks.on_host(host["id"]))}


def resume_host(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """End the drain of a host."""
    host = _connected_before(tx, params["host"])
    tx.store.hosts.drain_until(host["id"], None)
    _set_status(tx, host["id"], "ACTIVE")
    wake_pools(tx, host["id"])
    return _named(host)


def rename_host(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Give a joined host another name. Placement constraints with its old name do not find it any more."""
    host, name = _listed(tx, params["host"]), params["name"]
    if not NAME.fullmatch(name):
        raise InvalidRequestException(f"The name '{name[:100]}' is not valid: {NAME_RULE}.")
    if tx.store.joined_hosts.is_name_taken(name, host.id):
        raise InvalidRequestException(f"The name {name} is taken by another host: `corral hosts` lists the hosts.")
    tx.store.joined_hosts.put(replace(host, name=name))
    if tx.store.hosts.get(host.id) is not None:
        tx.store.hosts.rename(host.id, name)
        wake_pools(tx, host.id)
    return {"id": host.id, "name": name}


def forget_host(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Give up a host that is not connected, and its tasks (`services/ecs/host_loss.py`). It is no longer listed.

    Its certificate stays valid. If its machine returns, it stops what is left of these tasks, and then gets work again.
    """
    host = _find(tx, params["host"])
    if why := host_loss.why_not_forgotten(tx, host["id"], now=params.get("now", False)):
        raise HostInUseException(f"Host {host['name']} {why}.")
    return _named(host) | {"tasks": host_loss.forget(tx, host["id"], HOST_FORGOTTEN)}


def accept_host(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Accept that a host has another machine, for example with a new mainboard: the one that last presented its certificate."""
    require_own_key(caller)
    host = _joined(tx, params["host"])
    if not host.refused:
        raise InvalidRequestException(
            f"No other machine has presented the certificate of {host.name}: start `corral join` on it first."
        )
    known = tx.store.hosts.get(host.id)
    if known is not None and known["connected"]:
        raise HostInUseException(
            f"Host {host.name} is connected, so the other machine with its certificate is a copy of it: "
            "run `corral join --new` there."
        )
    tx.store.joined_hosts.put(replace(host, machine=host.refused, refused={}, refused_address=""))
    return {"id": host.id, "name": host.name, "address": host.refused_address}


def upgrade_host(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Order a joined host to upgrade to the version of this server. Its agent restarts, and its tasks continue."""
    require_own_key(caller)
    host = _listed(tx, params["host"])
    if not tx.settings.server.is_connected(host.id) or tx.store.hosts.get(host.id) is None:
        raise HostNotConnectedException(f"Host {host.name} is not connected, so it cannot be upgraded. Try again when it is.")
    order = tx.result_of("upgrade", tx.settings.server.upgrade_order)
    if host.version != order.version:
        tx.order_once(host.id, order)
    return {"id": host.id, "name": host.name, "agent": host.version, "version": order.version}


def _set_status(tx: Tx[Store], host_id: str, status: str) -> None:
    """Set the status of all instances on a host. Those that were deregistered keep theirs."""
    for instance in tx.store.instances.on_host(host_id):
        if instance.status != "INACTIVE":
            instances.set_status(tx, instance, status)


def _find(tx: Tx[Store], given: str) -> dict[str, Any]:
    """Return id and name of a host, by its name or its id."""
    joined = tx.store.joined_hosts.find(given) or tx.store.joined_hosts.named(given)
    if joined is not None:
        return {"id": joined.id, "name": joined.name}
    for host in tx.store.hosts.all():
        if given in (host["id"], host["name"]):
            return host
    raise HostNotFoundException(f"Host {given[:300]} was not found: `corral hosts` lists the hosts.")


def _connected_before(tx: Tx[Store], given: str) -> dict[str, Any]:
    host = _find(tx, given)
    if (joined := tx.store.joined_hosts.find(host["id"])) is not None:
        _refuse_forgotten(joined)
    if tx.store.hosts.get(host["id"]) is None:
        raise HostNotFoundException(f"Host {host['name']} has not connected yet: run `corral join` on it.")
    return host


def _joined(tx: Tx[Store], given: str) -> JoinedHost:
    host = tx.store.joined_hosts.find(_find(tx, given)["id"])
    if host is None:
        raise HostNotFoundException(f"Host {given[:300]} is the machine of the server, which has not joined.")
    return host


def _listed(tx: Tx[Store], given: str) -> JoinedHost:
    host = _joined(tx, given)
    _refuse_forgotten(host)
    return host


def _refuse_forgotten(host: JoinedHost) -> None:
    if host.forgotten_at_s is not None:
        raise HostNotFoundException(
            f"Host {host.name} was forgotten. It is listed again when it connects: `corral hosts` lists the hosts."
        )


def _named(host: dict[str, Any]) -> dict[str, Any]:
    return {"id": host["id"], "name": host["name"]}
