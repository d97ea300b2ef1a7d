"""The Unix accounts of users, as which their processes and their containers with paths of the host run.

A user's account is a name. Each agent looks the name up on its host, and reports the accounts that exist there and that runs may
use (`node/host_accounts.py`). These reports are only in memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pwd import getpwuid

from corral.core.transactions import Tx
from corral.fleet.hosts import wake_pools
from corral.model.agent_protocol import AccountsOrder
from corral.model.principal import OF_USER
from corral.store import Store

NAME = re.compile(r"(?![-0-9]+$)[A-Za-z0-9_.][A-Za-z0-9_.@\\$-]{0,255}")
NOWHERE = (
    "The task would run as {account}, the Unix account of its owner, but no host can: the account must exist there (`useradd "
    "{account}`), and Corral must run there as root. Hosts: {hosts}."
)


def account_of(tx: Tx[Store], owner: str) -> str:
    """Return the Unix account of an owner. Return an empty text if it has none."""
    user = tx.store.iam.users.get(owner.removeprefix(OF_USER)) if owner.startswith(OF_USER) else None
    return user.unix_account if user is not None else ""


def accounts_of_users(tx: Tx[Store]) -> dict[str, str]:
    """User → its Unix account, which is empty if it has none."""
    return {user.name: user.unix_account for user in list(tx.store.iam.users.values())}


def all_accounts(tx: Tx[Store]) -> list[str]:
    return sorted({*accounts_of_users(tx).values()} - {""})


def fault_of_name(name: str) -> str:
    """Return why a name cannot be the account of a user. Hosts check the user id, too."""
    if not NAME.fullmatch(name):
        return f"'{name[:100]}' is not the name of a Unix account"
    if name == "root" or name == _own_name():
        return f"{name} is root or Corral's own account, so its processes could do whatever Corral can. Choose another account"
    return ""


@cache
def _own_name() -> str:
    try:
        return getpwuid(os.geteuid()).pw_name
    except KeyError:  # Corral runs as a user id that has no name
        return "root"


def ask_hosts(tx: Tx[Store], names: list[str]) -> None:
    """Make all connected hosts look up these accounts instead of those of an earlier order."""
    for host in tx.store.hosts.all():
        if host["connected"]:
            tx.order_once(host["id"], AccountsOrder(names))


def report(tx: Tx[Store], host_id: str, found: Mapping[str, int]) -> None:
    """Note the accounts that a host has. Tasks that wait for one of them may be placed there now."""
    names = frozenset(all_accounts(tx)).intersection(found)
    if tx.store.hosts.get(host_id) is not None and tx.store.hosts.put_accounts(host_id, names):
        wake_pools(tx, host_id)


def why_nowhere(tx: Tx[Store], account: str) -> str:
    """Return why no host can run tasks of an account. Return an empty text if one can, or if not all have reported yet."""
    hosts = [host for host in tx.store.hosts.all() if host["connected"]]
    reports = [tx.store.hosts.accounts(host["id"]) for host in hosts]
    if not hosts or any(each is None or account in each for each in reports):
        return ""
    return NOWHERE.format(account=account, hosts=", ".join(str(host["name"]) for host in hosts[:5]))
