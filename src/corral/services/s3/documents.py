"""What a bucket may be told beside its objects: kept, checked and shown, by one mechanism.

A `Document` declares one kind: the operations that put, show and remove it, where it stands in requests and replies, and what
is said of a bucket that has none. `handlers(document)` are those operations. Most of these documents do nothing here, and nobody
is told that they do; those that act (CORS, notifications, lifecycle) are read by what acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from corral.core import Tx
from corral.errors import ApiError
from corral.model.objects import Bucket
from corral.services.caller import Caller
from corral.services.pagination import Pagination
from corral.services.s3.errors import InvalidArgument
from corral.services.s3.naming import existing_bucket
from corral.store import Store

Params = dict[str, Any]
Handler = Callable[[Tx[Store], Params, Caller], dict[str, Any]]
Settle = Callable[[Tx[Store], Bucket, Params, Caller], Any]

PAGES = Pagination(InvalidArgument, None, "ContinuationToken", "NextContinuationToken", truncated="IsTruncated")
NAMED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Document:
    name: str  # "BucketCors": what Put… and Get… are followed by
    settle: Settle  # refuses, or gives what is kept
    delete: str | None = None  # the operation
    shown: str | None = None  # the reply's member that holds it; None: its members are the reply's own
    default: Any = None  # what a bucket has that was told nothing
    missing: Callable[[], ApiError] | None = None  # where it has none at all
    removed: Callable[[Tx[Store], Bucket], None] = lambda tx, bucket: None


def current(tx: Tx[Store], bucket: Bucket, document: Document) -> Any:
    """What holds for the bucket now; None: it has none."""
    found = tx.store.documents.get(bucket.id, document.name)
    return document.default if found is None else found[0]


def handlers(document: Document) -> dict[str, Handler]:
    def put(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        tx.store.documents.put(bucket.id, document.name, document.settle(tx, bucket, params, caller), tx.now_s)
        return {}

    def get(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        found = current(tx, bucket, document)
        if found is None:
            assert document.missing is not None
            raise document.missing()
        return {document.shown: found} if document.shown is not None else found

    def delete(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        if document.default is not None and document.missing is not None:
            tx.store.documents.put(bucket.id, document.name, None, tx.now_s)
        else:
            tx.store.documents.drop(bucket.id, document.name)
        document.removed(tx, bucket)
        return {}

    found = {f"Put{document.name}": put, f"Get{document.name}": get}
    return found | ({document.delete: delete} if document.delete is not None else {})


def named_handlers(word: str, missing: Callable[[], ApiError]) -> dict[str, Handler]:
    """Of a kind of which a bucket may have several, each with an Id: `PutBucketMetricsConfiguration` and the like."""
    kind, given = f"Bucket{word}Configuration", f"{word}Configuration"

    def put(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        document, name = params[given], params["Id"]
        if document["Id"] != name:
            raise InvalidArgument("The id of the configuration is not the one of the request.")
        held = tx.store.documents.named(bucket.id, kind)
        if len(held) >= NAMED_MAX and name not in dict(held):
            raise InvalidArgument(f"A bucket may have {NAMED_MAX} configurations of a kind.")
        tx.store.documents.put(bucket.id, kind, document, tx.now_s, name)
        return {}

    def get(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        found = tx.store.documents.get(bucket.id, kind, params["Id"])
        if found is None:
            raise missing()
        return {given: found[0]}

    def delete(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        if not tx.store.documents.drop(bucket.id, kind, params["Id"]):
            raise missing()
        return {}

    def listing(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        bucket = existing_bucket(tx, params, caller)
        page, token = PAGES.page(params, lambda after, limit: tx.store.documents.named(bucket.id, kind, after, limit))
        return {f"{given}List": page, **token}

    return {f"Put{kind}": put, f"Get{kind}": get, f"Delete{kind}": delete, f"List{kind}s": listing}
