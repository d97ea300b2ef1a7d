"""Reconcilers of container images. They delete the contents of deleted repositories, and layers that no image uses, in batches."""

from __future__ import annotations

from corral.core import Tx
from corral.services.ecr.image_storage import DELETED_REPOSITORIES, UNUSED_KEPT_S, release, schedule_layer_cleanup
from corral.store import Store

LAYERS_MAX = 200
ROWS_MAX = 100  # images and layers of a deleted repository that one batch deletes


def clear_deleted_repositories(tx: Tx[Store], _: str) -> None:
    """Delete some images and layers of deleted repositories. To delete ten thousand images at once would delay requests."""
    contents, is_more = tx.store.images.clear_deleted_repository(ROWS_MAX)
    release(tx, contents)
    if is_more:
        tx.due(DELETED_REPOSITORIES, tx.now_s)


def drop_unused_layers(tx: Tx[Store], _: str) -> None:
    """Delete layers that no image has used for an hour."""
    release(tx, tx.store.images.drop_unused_layers(tx.now_s - UNUSED_KEPT_S, LAYERS_MAX))
    schedule_layer_cleanup(tx)
