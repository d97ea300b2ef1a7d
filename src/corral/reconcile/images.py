"""Container images: what no repository or image has any more goes, some at a time."""

from __future__ import annotations

from corral.core import Tx
from corral.services.ecr.pushing import LEFT, UNUSED_KEPT_S, look_at_layers, release
from corral.store import Store

LAYERS_MAX = 200
LEFT_MAX = 100  # images or layers


def clear_left(tx: Tx[Store], _: str) -> None:
    """What deleted repositories held: ten thousand images must not stall anybody."""
    contents, is_more = tx.store.images.clear_left(LEFT_MAX)
    release(tx, contents)
    if is_more:
        tx.due(LEFT, tx.now_s)


def drop_unused_layers(tx: Tx[Store], _: str) -> None:
    """Layers that no image has had for an hour."""
    release(tx, tx.store.images.drop_unused_layers(tx.now_s - UNUSED_KEPT_S, LAYERS_MAX))
    look_at_layers(tx)
