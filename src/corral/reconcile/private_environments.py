"""The reconciler `private-environment` deletes objects of the private bucket that no task needs any more.

The private bucket has the environment variables that `corral run` stores for its tasks (`model/private_environment.py`).
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.model.private_environment import BUCKET
from corral.services.s3 import versions
from corral.services.s3.lookup import own_caller
from corral.store import Store


def delete_unused_object(tx: Tx[Store], key: str) -> None:
    """Delete an object if no unfinished task refers to it, and the time until which it is kept has passed."""
    found = tx.store.private_environments.get(key)
    if found is None:
        return
    tasks, kept_until_s = found
    if tasks:
        return  # the end of the last of these tasks schedules this reconciler again
    if kept_until_s > tx.now_s:
        tx.due(f"private-environment:{key}", kept_until_s)
        return
    tx.store.private_environments.drop(key)
    bucket = tx.store.buckets.get(BUCKET)
    version = tx.store.objects.latest(bucket.id, key) if bucket is not None else None
    if bucket is not None and version is not None:
        versions.remove(tx, bucket, version, own_caller(tx, bucket))
