"""Reconcilers of container images. They delete the contents of deleted repositories, and layers that no image uses.

Each transaction deletes a limited number of rows, because the deletion of ten thousand images at once would delay requests.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.services.ecr.image_storage import DELETED_REPOSITORIES, UNUSED_KEPT_S, release, schedule_layer_cleanup
from corral.store import Store

LAYERS_MAX = 200  # the most unused layers that one transaction deletes
ROWS_MAX = 100  # the most images and layers of deleted repositories that one transaction deletes


def clear_deleted_repositories(tx: Tx[Store], _: str) -> None:
    """Delete the next images and layers of deleted repositories. Schedule the next call if more are left."""
    contents, is_more = tx.store.images.clear_deleted_repository(ROWS_MAX)
    release(tx, contents)
    if is_more:
        tx.due(DELETED_REPOSITORIES, tx.now_s)


def drop_unused_layers(tx: Tx[Store], _: str) -> None:
    """Delete layers that no image has used for an hour."""
    release(tx, tx.store.images.drop_unused_layers(tx.now_s - UNUSED_KEPT_S, LAYERS_MAX))
    schedule_layer_cleanup(tx)
