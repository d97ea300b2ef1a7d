"""The reconciler `invocations` deletes the rows of Lambda invocations an hour after the invocations have ended."""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.services.lambda_ import invocations
from corral.store import Store


def drop_ended_invocations(tx: Tx[Store], _: str) -> None:
    invocations.drop_ended_invocations(tx)
