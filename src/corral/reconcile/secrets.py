"""The reconciler `secret` deletes a secret at the end of its recovery window."""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.services.secretsmanager.secrets import delete_if_due
from corral.store import Store


def delete_secret(tx: Tx[Store], key: str) -> None:
    region, _, name = key.partition("/")
    delete_if_due(tx, region, name)
