"""Decides whether Corral may use an object of S3 as code, as a template, or as the environment of a program on the host.

All programs in containers can write all objects, unless a policy denies it. If such an object could steer a program on the host, a
container could control the host. So each writer of the object must be allowed to run programs on the host.
"""

from __future__ import annotations

from corral.access.authorization import may_run_on_host
from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.objects import ObjectVersion
from corral.model.principal import role_session
from corral.store import Store

REFUSED = (
    "{writer} wrote s3://{bucket}/{key} and may not run programs on the host. Write the object again with a key that may, for "
    "example the root key, or allow corral:RunOnHost in a policy of the role {role}."
)


def writer_refusal(tx: Tx[Store], bucket: str, version: ObjectVersion) -> str | None:
    """Return the error text if a writer of the object may not run programs on the host, by the policies that its role has now.

    Otherwise return None. A role that has been deleted allows nothing.
    """
    for writer in version.writers:
        role, _, session = writer.partition("/")
        principal = role_session(tx.settings.account, role, session, "")
        if not may_run_on_host(tx, Caller(tx.settings.account, "", principal, confined=True)):
            return REFUSED.format(writer=principal.arn, bucket=bucket, key=version.key, role=role)
    return None
