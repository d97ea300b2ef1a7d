"""Hosts that join from other machines: the tokens with which they join, and the end of their certificates.

`redeem` and `renew` are commands of the door (`server/door/joining.py`). A token consists of its id, a secret, and the pin of the
server's authority. Corral stores only a digest of the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError, Refused
from corral.core.transactions import Tx
from corral.fleet.instances import host_changed
from corral.model.allocation import NOT_YET, TOKEN_S, Allocation, AllocationState, allocation_cluster
from corral.model.joined_host import JoinedHost, JoinToken, differing_sources
from corral.services.corral.errors import (
    AccessDeniedException,
    DoorClosedException,
    HostNotFoundException,
    InvalidRequestException,
    TokenNotFoundException,
)
from corral.store import Store

TTL_DEFAULT_S, TTL_MIN_S, TTL_MAX_S = 3600.0, 1.0, 30 * 86_400.0
USES_MAX = 10_000
TOKENS_MAX = 1_000
KEPT_S = 86_400.0  # expired tokens are listed for this time
NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")
NAME_KEPT = 58  # so many characters of a name are kept if it gets an addition
CLUSTER = re.compile(r"[a-zA-Z0-9_-]{1,255}")
NAME_RULE = "use up to 63 letters, digits, dots, hyphens and underscores"
TOKEN_ID_DIGITS = 8
AGAIN = "Create another one on the server with `corral token create`."


class JoinRefused(ApiError):
    """A host cannot join, or cannot renew its certificate. The message says why, and what to do."""


class JoinLater(JoinRefused):
    """A pilot cannot join yet, and asks again."""


class Redemption(Struct, frozen=True):
    """The request of a host to join."""

    token_id: str
    secret: str
    name: str
    key_digest: str
    version: str
    address: str
    machine: dict[str, str] = {}  # the fingerprint of its machine
    allocation: str = ""  # of a pilot: the lender's id of its allocation, as the pilot says


def create_join_token(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Create a token. The first one opens the door of the server."""
    require_own_key(caller)
    ttl_s, uses = params.get("ttl", TTL_DEFAULT_S), params.get("uses", 1)
    cluster, rack = params.get("cluster", ""), params.get("rack", "")
    if not TTL_MIN_S <= ttl_s <= TTL_MAX_S:
        raise InvalidRequestException(f"ttl {ttl_s:g} is not valid: pass {TTL_MIN_S:g} to {TTL_MAX_S:.0f} seconds.")
    if not 1 <= uses <= USES_MAX:
        raise InvalidRequestException(f"uses {uses} is not valid: pass 1 to {USES_MAX}.")
    if cluster and not CLUSTER.fullmatch(cluster):
        raise InvalidRequestException(
            f"cluster '{cluster[:300]}' is not valid: use up to 255 letters, digits, hyphens and underscores."
        )
    if rack and not NAME.fullmatch(rack):
        raise InvalidRequestException(
            f"rack '{rack[:300]}' is not valid: use up to 63 letters, digits, dots, hyphens and underscores."
        )
    tx.store.joined_hosts.drop_tokens_expired_before(tx.now_s - KEPT_S)
    if len(tx.store.joined_hosts.tokens()) >= TOKENS_MAX:
        raise InvalidRequestException(f"there are already {TOKENS_MAX} tokens: revoke some with `corral token revoke`.")
    try:
        door = tx.result_of("door", tx.settings.server.open_door)
    except Refused as refusal:
        raise DoorClosedException(str(refusal)) from None
    token_id, secret = tx.ids.hex32()[:TOKEN_ID_DIGITS], tx.ids.hex32()
    token = JoinToken(token_id, _digest(secret), uses, 0, cluster, rack, tx.now_s, tx.now_s + ttl_s)
    tx.store.joined_hosts.add_token(token)
    return {**_token(token), "token": f"{token_id}.{secret}.{door['pin']}", "address": door["address"]}


def list_join_tokens(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List the tokens with which hosts can still join."""
    require_own_key(caller)
    usable = [token for token in tx.store.joined_hosts.tokens() if token.expires_at_s > tx.now_s and token.used < token.uses]
    return {"tokens": [_token(token) for token in usable]}


def revoke_join_token(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Revoke a token. Hosts that have joined with it stay."""
    require_own_key(caller)
    token_id = params["id"]
    if not tx.store.joined_hosts.drop_token(token_id):
        raise TokenNotFoundException(f"There is no token {token_id[:100]}. `corral token list` lists the tokens.")
    return {"id": token_id}


def revoke_host(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Void the certificate of a host. After the commit, all its connections are closed. Its tasks keep their GPUs."""
    require_own_key(caller)
    given = params["host"]
    host = tx.store.joined_hosts.find(given) or tx.store.joined_hosts.named(given)
    if host is None:
        known = any(given in (each["id"], each["name"]) for each in tx.store.hosts.all())
        why = "is the machine of the server, which has no certificate" if known else "was not found: `corral hosts` lists the hosts"
        raise HostNotFoundException(f"Host {given[:300]} {why}.")
    if host.revoked_at_s is None:
        tx.store.joined_hosts.put(replace(host, revoked_at_s=tx.now_s, earlier_serial=""))
        tx.store.hosts.silent(host.id)  # from now on, no task is placed on it
        host_changed(tx, host.id)
    return {"id": host.id, "name": host.name}


def redeem(tx: Tx[Store], request: Redemption) -> JoinedHost:
    """Use a token for a host. The host has no certificate yet: `certify` follows.

    A host that repeats its request, because it has not got the response, has the same key. So it gets the same id, and uses the
    token once. A host that was revoked, and joins again with its key, also keeps its id, because its tasks may still run.
    """
    if (allocation := tx.store.allocations.get(request.token_id)) is not None:
        return _redeem_allocation(tx, request, allocation)
    token, hosts = tx.store.joined_hosts.token(request.token_id), tx.store.joined_hosts
    if token is None or not hmac.compare_digest(token.digest, _digest(request.secret)):
        raise JoinRefused(f"The token is not valid: it is not one of this server, or it was revoked. {AGAIN}")
    if token.expires_at_s <= tx.now_s:
        raise JoinRefused(f"The token has expired. {AGAIN}")
    before = hosts.with_key(request.key_digest)
    if before is not None and differing_sources(before.machine, request.machine):
        raise JoinRefused(other_machine(before, request.machine))
    repeats = before is not None and before.token_id == token.id and before.revoked_at_s is None
    if token.used >= token.uses and not repeats:
        raise JoinRefused(f"The token is used up: it was for {token.uses} host{'' if token.uses == 1 else 's'}. {AGAIN}")
    if not NAME.fullmatch(request.name):
        raise JoinRefused(f"The name '{request.name[:100]}' is not valid. Choose another one with --name: {NAME_RULE}.")
    host_id = before.id if before is not None else tx.ids.hex32()
    if hosts.is_name_taken(request.name, host_id):
        raise JoinRefused(
            f"The name {request.name} is taken by another host. Choose another one with --name. If that host is gone, or is this "
            f"machine before it was installed again, run `corral hosts forget {request.name}` on the server."
        )
    if not repeats:
        hosts.use_token(token.id)
    host = JoinedHost(
        host_id, request.name, request.key_digest, token.id, "", "", token.cluster, token.rack, request.address, request.version,
        before.joined_at_s if before is not None else tx.now_s, machine=request.machine,
    )  # fmt: skip
    hosts.put(host)
    return host


def check_pilot(tx: Tx[Store], allocation: Allocation | None, secret: str, handle: str) -> Allocation:
    """Check the token of a pilot: it is of one allocation, and valid for TOKEN_S after the lender has said that this one runs.

    A job may wait in the line of its lender for days. Meanwhile, a program that reads the token can do nothing with it. `handle` is
    the lender's id of the allocation, as the pilot says.
    """
    began_s = None if allocation is None else allocation.running_at_s
    waits = (AllocationState.WANTED, AllocationState.WAITING)
    if allocation is not None and (allocation.state in waits or began_s is None):
        raise JoinLater(f"The lender says that this allocation {NOT_YET}.")  # some lenders tell the digest only when it runs
    if allocation is None or not allocation.digest or not hmac.compare_digest(allocation.digest, _digest(secret)):
        raise JoinRefused("The token is not valid: the allocation has ended, or Corral has requested it again.")
    if allocation.handle and handle and handle != allocation.handle:
        raise JoinRefused(f"The token is of the allocation {allocation.handle}, and this one is {handle[:100]}.")
    if allocation.state is AllocationState.ENDING or tx.store.instances.get(allocation.instance_id) is None:
        raise JoinRefused("The instance of this allocation was terminated.")
    if began_s is None or tx.now_s > began_s + TOKEN_S:
        raise JoinRefused("The token has expired.")
    return allocation


def _redeem_allocation(tx: Tx[Store], request: Redemption, allocation: Allocation) -> JoinedHost:
    """Let the pilot of an allocation join, once."""
    hosts = tx.store.joined_hosts
    check_pilot(tx, allocation, request.secret, request.allocation)
    before = hosts.with_key(request.key_digest)
    if allocation.host_id and (before is None or before.id != allocation.host_id):
        raise JoinRefused("The token is used up: another host has joined with it.")
    if before is not None and (before.id != allocation.host_id or before.revoked_at_s is not None):
        raise JoinRefused("The host with this key was revoked, or has joined with another token.")
    host_id = allocation.host_id or tx.ids.hex32()
    host = JoinedHost(
        host_id, _free_name(tx, f"{allocation.lender}-{allocation.handle}", host_id), request.key_digest,
        allocation.instance_id, "", "", allocation_cluster(allocation.instance_id), "", request.address, request.version, tx.now_s,
        machine=request.machine,
    )  # fmt: skip
    hosts.put(host)
    tx.store.allocations.put(replace(allocation, host_id=host.id, said=""))
    return host


def certify(tx: Tx[Store], host_id: str, serial: str, key_digest: str, earlier_serial: str, machine: dict[str, str]) -> JoinedHost:
    """Store the serial of a new certificate. With `earlier_serial`, the host renews this certificate, which stays valid, too."""
    host = tx.store.joined_hosts.find(host_id)
    if host is None or host.revoked_at_s is not None or (earlier_serial and not host.accepts(earlier_serial)):
        raise JoinRefused("The certificate of this host was revoked. Join again with a token of `corral token create`.")
    if differing_sources(host.machine, machine):
        raise JoinRefused(other_machine(host, machine))
    after = replace(host, serial=serial, earlier_serial=earlier_serial, key_digest=key_digest)
    tx.store.joined_hosts.put(after)
    return after


def identify(tx: Tx[Store], host_id: str, machine: dict[str, str], address: str) -> str:
    """Check the machine of a host that connects. Return why it is refused; empty: it may connect.

    Sources of the fingerprint that were not known are added. A host that was forgotten is listed again. If another host has got its
    name meanwhile, it gets a new one.
    """
    hosts = tx.store.joined_hosts
    host = hosts.find(host_id)
    if host is None:
        return "the host was removed"
    if why := note_machine(tx, host_id, machine, address):
        return why
    name = host.name if host.forgotten_at_s is None else _free_name(tx, host.name, host.id)
    after = replace(host, name=name, machine=host.machine | machine, forgotten_at_s=None, refused={}, refused_address="")
    if after != host:
        hosts.put(after)
    return ""


def _free_name(tx: Tx[Store], name: str, host_id: str) -> str:
    """Return the name for a host, with an addition if another host has it."""
    return f"{name[:NAME_KEPT]}-{host_id[:4]}" if tx.store.joined_hosts.is_name_taken(name, host_id) else name


def note_machine(tx: Tx[Store], host_id: str, machine: dict[str, str], address: str) -> str:
    """Compare the machine that presents the certificate of a host with the machine of the host. Return why it is refused.

    The refused machine is stored, because `corral hosts accept` accepts the last one. So this is a command of its own before those
    that store nothing if they refuse, `redeem` and `certify`.
    """
    host = tx.store.joined_hosts.find(host_id)
    if host is None or not differing_sources(host.machine, machine):
        return ""
    if (host.refused, host.refused_address) != (machine, address):
        tx.store.joined_hosts.put(replace(host, refused=machine, refused_address=address))
    return other_machine(host, machine)


def note_machine_with_key(tx: Tx[Store], redemption: Redemption) -> str:
    """Call `note_machine` for the host whose key a machine has that wants to join. It has signed its request with this key."""
    host = tx.store.joined_hosts.with_key(redemption.key_digest)
    return "" if host is None else note_machine(tx, host.id, redemption.machine, redemption.address)


def other_machine(host: JoinedHost, machine: dict[str, str]) -> str:
    differ = " and ".join(differing_sources(host.machine, machine))
    return (
        f"This machine is not host {host.name}: its {differ} differs. If its disk is a copy of that host, join as a new host: "
        "`corral join --new SERVER:PORT --token TOKEN`, with a token of `corral token create`. If it is that host with other "
        f"hardware, run `corral hosts accept {host.name}` on the server."
    )


def connected(tx: Tx[Store], host_id: str, address: str, version: str) -> None:
    """Store from where, and with which version, the agent of a host has connected."""
    host = tx.store.joined_hosts.find(host_id)
    if host is not None and (host.address, host.version) != (address, version):
        tx.store.joined_hosts.put(replace(host, address=address, version=version))


def require_own_key(caller: Caller) -> None:
    if not caller.principal.has_own_key:
        raise AccessDeniedException(
            "Sessions cannot decide which machines join: sign the request with the root key (`corral env`) or the key of a user."
        )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _token(token: JoinToken) -> dict[str, Any]:
    return {
        "id": token.id,
        "uses": token.uses,
        "used": token.used,
        "cluster": token.cluster or None,
        "rack": token.rack or None,
        "createdAtS": token.created_at_s,
        "expiresAtS": token.expires_at_s,
    }
