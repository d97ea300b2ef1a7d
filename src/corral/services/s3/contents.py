"""Bytes that nobody refers to any more: whoever erases files is told."""

from __future__ import annotations

from corral.core import Tx
from corral.store import Store

GARBAGE = "blobs:garbage"  # what the keeper of blobs waits for


def thrown_away(tx: Tx[Store], there_is_some: bool) -> None:
    if there_is_some:
        tx.changed(GARBAGE)
