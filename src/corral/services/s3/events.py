"""What others are told of objects, in the transaction that makes or removes them."""

from __future__ import annotations

from corral.core import Tx
from corral.model.objects import Bucket, Version
from corral.store import Store


def object_created(tx: Tx[Store], bucket: Bucket, version: Version, event_name: str) -> None:
    """`event_name` is Put, Post, Copy or CompleteMultipartUpload."""


def object_removed(tx: Tx[Store], bucket: Bucket, version: Version, event_name: str) -> None:
    """`event_name` is Delete, with the version that is gone, or DeleteMarkerCreated, with the marker."""
