"""Task definitions in deletion go once no task refers to them."""

from __future__ import annotations

from corral.core import Tx
from corral.store import Store

LOOK_AGAIN_S = 60.0
ROWS_MAX = 500


def finish_deletions(tx: Tx[Store], _: str) -> None:
    """A stopped task refers to its definition as long as it is shown."""
    if tx.store.definitions.drop_deleted(tx.settings.account, ROWS_MAX):
        tx.due("deletion:", tx.now_s + LOOK_AGAIN_S)
