"""Objects and uploads that expire by the lifecycle rules of their bucket: they are looked at when their time has come."""

from __future__ import annotations

from corral.core import Tx
from corral.decide.expiry import abortion, judge
from corral.services.caller import Caller
from corral.services.s3 import lifecycle, versions
from corral.services.s3.events import BY_RULE
from corral.services.s3.uploads import abort
from corral.store import Store
from corral.store.expiries import Due

LOOKS_MAX = 100  # in one transaction
REMOVALS_MAX = 40  # and so many versions and uploads that go, about: others may have to be told
VERSIONS_MAX = 40  # of one key, the oldest first
S3 = "s3.amazonaws.com"


def look_at_expiries(tx: Tx[Store], _: str) -> None:
    """Whatever is due."""
    removed = 0
    for due in tx.store.expiries.due(tx.now_s, LOOKS_MAX):
        removed += _look_at_upload(tx, due) if due.upload_id else _look_at_key(tx, due)
        if removed >= REMOVALS_MAX:
            break
    next_s = tx.store.expiries.next_s()
    if next_s is not None:
        tx.due("expiry:", max(next_s, tx.now_s))


def walk_bucket(tx: Tx[Store], bucket_id: str) -> None:
    """A bucket has other rules now: all that is in it is to be looked at, and from then on when its time comes."""
    number = int(bucket_id)
    found = tx.store.expiries.walk(number, LOOKS_MAX)
    if found is None:  # the bucket is gone
        return
    at_s = tx.now_s if lifecycle.rules_of(tx, number) else None
    for due in found:
        lifecycle.look_at(tx, due, at_s)
    if found:
        tx.due(f"lifecycle:{number}", tx.now_s)
    else:
        tx.store.expiries.end_walk(number)


def _look_at_upload(tx: Tx[Store], due: Due) -> int:
    """How much was removed."""
    upload = tx.store.objects.upload(due.upload_id)
    rules = lifecycle.rules_of(tx, due.bucket_id)
    found = abortion(rules, upload.key, upload.initiated_at_s) if upload is not None else None
    if upload is not None and found is not None and found[0] <= tx.now_s:
        abort(tx, upload)
        return 1
    lifecycle.look_at(tx, due, found[0] if found is not None else None)
    return 0


def _look_at_key(tx: Tx[Store], due: Due) -> int:
    """How much was removed."""
    bucket, key = tx.store.buckets.numbered(due.bucket_id), due.key
    rules, current = lifecycle.rules_of(tx, bucket.id), tx.store.objects.latest(bucket.id, key)
    if not rules or current is None:
        lifecycle.look_at(tx, due, None)
        return 0
    unseen = max(0, tx.store.expiries.version_count(bucket.id, key) - VERSIONS_MAX)
    seen = tx.store.expiries.oldest_versions(bucket.id, key, VERSIONS_MAX)[::-1]
    judged = [lifecycle.as_judged(version) for version in seen]
    judgement = judge(rules, key, judged, tx.now_s, current=lifecycle.as_judged(current), unseen=unseen)
    caller = Caller(tx.settings.account, bucket.region, S3, request_id=tx.ids.uuid(), source_ip=S3)
    for version in seen:
        if version.id in judgement.drop:
            versions.remove(tx, bucket, version, caller, BY_RULE)
    if judgement.expire is not None and bucket.versioning:
        versions.add_marker(tx, bucket, key, caller, BY_RULE)
    elif judgement.expire is not None:
        versions.remove(tx, bucket, current, caller, BY_RULE)
    if unseen and judgement.drop:
        lifecycle.look_at(tx, due, tx.now_s)  # others have moved up
    elif not judgement.drop and judgement.expire is None:
        lifecycle.look_at(tx, due, judgement.next_s)
    return len(judgement.drop) + (judgement.expire is not None)
