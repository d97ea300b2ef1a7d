"""Expires S3 objects and aborts multipart uploads, as the lifecycle rules of their bucket say.

In a bucket with enabled rules, each object key and each upload has a scheduled time for its next evaluation.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.decide.objects.expiry import abort_time, evaluate_key
from corral.services.s3 import lifecycle, versions
from corral.services.s3.lookup import own_caller
from corral.services.s3.multipart_uploads import abort
from corral.services.s3.notifications import BY_RULE
from corral.store import Store
from corral.store.expiries import ExpiryTarget

EVALUATIONS_MAX = 100  # the most keys and uploads that one transaction evaluates
REMOVALS_MAX = 40  # a transaction evaluates no further key after this many removals, because a removal may send notifications
VERSIONS_MAX = 40  # the most versions of one key that one evaluation examines: the oldest versions


def expire_due(tx: Tx[Store], _: str) -> None:
    """Evaluate keys and uploads whose scheduled time has passed, and schedule the next call."""
    removed = 0
    for target in tx.store.expiries.due(tx.expiry_s, EVALUATIONS_MAX):
        removed += _evaluate_upload(tx, target) if target.upload_id else _evaluate_key(tx, target)
        if removed >= REMOVALS_MAX:
            break
    next_s = tx.store.expiries.next_s()
    if next_s is not None:
        tx.due("expiry:", tx.now_s + max(0.0, next_s - tx.expiry_s))


def rescan_bucket(tx: Tx[Store], bucket_id: str) -> None:
    """Schedule the evaluation of the next EVALUATIONS_MAX keys and uploads in a bucket whose rules have changed."""
    number = int(bucket_id)
    found = tx.store.expiries.walk(number, EVALUATIONS_MAX)
    if found is None:  # no scan is in progress, for example because the bucket was deleted
        return
    at_s = tx.expiry_s if lifecycle.enabled_rules(tx, number) else None
    for target in found:
        lifecycle.schedule(tx, target, at_s)
    if found:
        tx.due(f"lifecycle:{number}", tx.now_s)
    else:
        tx.store.expiries.end_walk(number)


def _evaluate_upload(tx: Tx[Store], target: ExpiryTarget) -> int:
    """Abort the upload, or schedule its next evaluation. Return the number of removals."""
    upload = tx.store.objects.upload(target.upload_id)
    rules = lifecycle.enabled_rules(tx, target.bucket_id)
    found = abort_time(rules, upload.key, upload.initiated_at_s) if upload is not None else None
    if upload is not None and found is not None and found[0] <= tx.expiry_s:
        abort(tx, upload)
        return 1
    lifecycle.schedule(tx, target, found[0] if found is not None else None)
    return 0


def _evaluate_key(tx: Tx[Store], target: ExpiryTarget) -> int:
    """Expire versions of the key, or schedule its next evaluation. Return the number of removals."""
    bucket, key = tx.store.buckets.by_id(target.bucket_id), target.key
    rules, current = lifecycle.enabled_rules(tx, bucket.id), tx.store.objects.latest(bucket.id, key)
    if not rules or current is None:
        lifecycle.schedule(tx, target, None)
        return 0
    unseen = max(0, tx.store.expiries.version_count(bucket.id, key) - VERSIONS_MAX)
    seen = tx.store.expiries.oldest_versions(bucket.id, key, VERSIONS_MAX)[::-1]
    candidates = [lifecycle.candidate(version) for version in seen]
    decision = evaluate_key(rules, key, candidates, tx.expiry_s, current=lifecycle.candidate(current), unseen=unseen)
    caller = own_caller(tx, bucket)
    for version in seen:
        if version.id in decision.drop:
            versions.remove(tx, bucket, version, caller, BY_RULE)
    if decision.expire is not None and bucket.versioning:
        versions.add_marker(tx, bucket, key, caller, BY_RULE)
    elif decision.expire is not None:
        versions.remove(tx, bucket, current, caller, BY_RULE)
    if unseen and decision.drop:
        lifecycle.schedule(tx, target, tx.expiry_s)  # some versions were not examined yet, so evaluate the key again now
    elif not decision.drop and decision.expire is None:
        lifecycle.schedule(tx, target, decision.next_s)
    return len(decision.drop) + (decision.expire is not None)
