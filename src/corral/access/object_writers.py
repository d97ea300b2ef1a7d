"""Decides whether Corral may use what a container wrote as code, as a template, or as the environment of a program on the host.

All programs in containers can write all objects of S3, unless a policy denies it. If such an object could steer a program on the
host, a container could control the host. So each writer of the object must be allowed to run programs on the host.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.access.authorization import may_run_on_host
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.principal import role_session
from corral.store import Store

REFUSED = (
    "{writer} wrote {what} and may not run programs on the host. Write it again with a key that may, for example the root key, or "
    "allow corral:RunOnHost in a policy of the role {role}."
)


def writer_refusal(tx: Tx[Store], what: str, writers: Iterable[str]) -> str | None:
    """Return the error text if one of the writers of `what` may not run programs on the host. Otherwise return None.

    A writer is a `Caller.writer`. The policies that its role has now decide. A role that has been deleted allows nothing.
    """
    for writer in writers:
        role, _, session = writer.partition("/")
        principal = role_session(tx.settings.account, role, session, "")
        if not may_run_on_host(tx, Caller(tx.settings.account, "", principal, confined=True)):
            return REFUSED.format(writer=principal.arn, what=what, role=role)
    return None
