"""Auto Scaling groups."""

from __future__ import annotations

from corral.core import Tx
from corral.store import Store


def reconcile_group(tx: Tx[Store], key: str) -> None:
    """Corral serves no groups yet."""
