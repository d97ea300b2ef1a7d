"""Decides whether Corral may use what a container wrote as code, as a template, or as the environment of a program on the host.

All programs in containers can write all objects of S3, unless a policy denies it. If such an object could steer a program on the
host, a container could control the host. So each writer of the object must be allowed to run programs on the host.
"""

from __future__ import annotations

from collections.abc import Iterable

from corral.access.authorization import may_run_on_host
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.principal import ANONYMOUS, OF_USER, ROOT, iam_user, role_session
from corral.store import Store

REFUSED = (
    "{writer} wrote {what} and may not run programs on the host. Write it again with a key that may, for example the root key, or "
    "allow corral:RunOnHost in a policy of {entity}."
)


def writer_refusal(tx: Tx[Store], what: str, writers: Iterable[str]) -> str | None:
    """Return the error text if one of the writers of `what` may not run programs on the host. Otherwise return None.

    A writer is a `Caller.writer`. The policies that its role and its owner have now decide. What has been deleted allows nothing.
    """
    for writer in writers:
        caller, entity = _caller(tx, writer)
        if caller is None or not may_run_on_host(tx, caller):
            name = caller.principal.arn if caller is not None else entity
            return REFUSED.format(writer=name, what=what, entity=entity)
    return None


def _caller(tx: Tx[Store], writer: str) -> tuple[Caller | None, str]:
    """Return the writer as a caller, and the entity of IAM that could get the permission. None: no policy can allow it."""
    role, session, owner = (*writer.split("/", 2), "", "")[:3]
    account = tx.settings.account
    if role:
        principal = role_session(account, role, session, owner or ROOT)
        # The task id makes the owner limit the role, as it does for tasks of users.
        return Caller(account, "", principal, confined=True, task_id=session if owner else None), f"the role {role}"
    if owner.startswith(OF_USER):
        name = owner.removeprefix(OF_USER)
        return Caller(account, "", iam_user(account, name)), f"the user {name}"
    return None, f"an {owner} caller" if owner == ANONYMOUS else f"a {owner}"
