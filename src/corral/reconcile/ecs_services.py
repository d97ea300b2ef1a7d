"""ECS services."""

from __future__ import annotations

from corral.core import Tx
from corral.store import Store


def reconcile_service(tx: Tx[Store], key: str) -> None:
    """Corral serves no services yet."""


def reconcile_daemons(tx: Tx[Store], pool: str) -> None:
    """Corral serves no services yet."""
