"""What others are told of objects, in the transaction that makes or removes them."""

from __future__ import annotations

from corral.core import Tx
from corral.model.objects import Bucket, Version
from corral.services.caller import Caller
from corral.services.s3 import lifecycle
from corral.services.s3.notifications import tell
from corral.store import Store

BY_RULE = "LifecycleExpiration"
BY_REQUEST = "ObjectRemoved"


def object_created(tx: Tx[Store], bucket: Bucket, version: Version, event_name: str, caller: Caller) -> None:
    """`event_name` is Put, Post, Copy or CompleteMultipartUpload."""
    lifecycle.changed(tx, bucket, version.key)
    tell(tx, bucket, caller, f"ObjectCreated:{event_name}", version)


def object_removed(tx: Tx[Store], bucket: Bucket, version: Version, event_name: str, caller: Caller, cause: str) -> None:
    """`event_name` is Delete, with the version that is gone, or DeleteMarkerCreated, with the marker."""
    lifecycle.changed(tx, bucket, version.key)
    tell(tx, bucket, caller, f"{cause}:{event_name}", version)


def tags_changed(tx: Tx[Store], bucket: Bucket, version: Version, event_name: str, caller: Caller) -> None:
    """`event_name` is Put or Delete."""
    lifecycle.changed(tx, bucket, version.key)
    tell(tx, bucket, caller, f"ObjectTagging:{event_name}", version)
