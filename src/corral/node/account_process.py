"""Find the Unix account as which a run acts.

This file imports only the standard library, because it is also a program (see `main`).
"""

from __future__ import annotations

import os
import pwd
import re
from typing import NamedTuple

NAME = re.compile(r"(?![-0-9]+$)[A-Za-z0-9_.][A-Za-z0-9_.@\\$-]{0,255}")


class Account(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str
    shell: str


class NoAccount(Exception):
    """No run may act as this account on this host. The message says why, and what to do."""


def find_account(name: str) -> Account:
    """Return the account with this name. It must exist, and be neither root nor the account of Corral itself.

    Only root can start processes of other accounts. The lookup can take long, for example if a directory server has the accounts.
    """
    if os.geteuid():
        raise NoAccount("Corral does not run as root on this host, so it cannot start processes of other accounts")
    if not NAME.fullmatch(name):
        raise NoAccount(f"the name {name[:100]!r} is not the name of a Unix account")
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise NoAccount(f"this host has no Unix account {name}: create it there with `useradd {name}`") from None
    if entry.pw_uid in (0, os.getuid(), os.geteuid()):
        raise NoAccount(f"the Unix account {name} has the user id {entry.pw_uid}, as Corral itself: choose another account")
    return Account(name, entry.pw_uid, entry.pw_gid, entry.pw_dir or "/", entry.pw_shell or "/bin/sh")
