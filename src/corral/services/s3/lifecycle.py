"""Lifecycle configurations: their validation, and the schedule of keys and uploads that their rules can expire.

Each such key or upload has a row with the time of its next evaluation. `key_changed` updates the row when a key changes. When the
rules of a bucket change, a walk through the bucket updates all rows. `reconcile/object_expiry.py` evaluates the keys and uploads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.objects import expiry
from corral.decide.objects.expiry import DAY_S, LifecycleFilter, LifecycleRule
from corral.model.http_dates import http_date
from corral.model.objects import BUCKET_LIFECYCLE, Bucket, MultipartUpload, ObjectVersion
from corral.services.s3.errors import InvalidArgument, InvalidRequest, malformed_xml
from corral.store import Store
from corral.store.expiries import ExpiryTarget

ACTIONS = (
    "Expiration",
    "Transitions",
    "NoncurrentVersionExpiration",
    "NoncurrentVersionTransitions",
    "AbortIncompleteMultipartUpload",
)


def validate_lifecycle(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    """Check a configuration and start a walk through the bucket.

    Returns the configuration to store. Each of its rules has an id.
    """
    document = params.get("LifecycleConfiguration", {})
    given = document.get("Rules", [])
    if not given:
        raise malformed_xml()
    rules = [rule if rule.get("ID") else {**rule, "ID": tx.ids.uuid()} for rule in given]
    if len({rule["ID"] for rule in rules}) != len(rules):
        raise InvalidArgument("Rule ID must be unique. Found same ID for one or more rules")
    for rule in rules:
        _check(rule)
    begin_walk(tx, bucket)
    minimum = params.get("TransitionDefaultMinimumObjectSize", "all_storage_classes_128K")
    return {"Rules": rules, "TransitionDefaultMinimumObjectSize": minimum}


def begin_walk(tx: Tx[Store], bucket: Bucket) -> None:
    """Start a walk through the bucket that schedules every key and upload, because the rules have changed."""
    tx.store.expiries.begin_walk(bucket.id)
    tx.due(f"lifecycle:{bucket.id}", tx.now_s)


# Scheduling


def enabled_rules(tx: Tx[Store], bucket_id: int) -> Sequence[LifecycleRule]:
    found = tx.store.bucket_documents.text(bucket_id, BUCKET_LIFECYCLE)
    return _parsed_rules(*found) if found is not None else ()


def key_changed(tx: Tx[Store], bucket: Bucket, key: str) -> None:
    """Schedule the next evaluation of a key after one of its versions was added, removed or tagged.

    Rules expire versions only at midnight. So if the bucket has versioning, the key is evaluated at the next midnight.
    """
    if not bucket.has_lifecycle:
        return
    rules = enabled_rules(tx, bucket.id)
    current, at_s = tx.store.objects.latest(bucket.id, key), None
    if current is not None and bucket.versioning:
        at_s = expiry.midnight_after(tx.wall_s)
    elif current is not None:
        found = expiry.expiry_time(rules, key, candidate(current))
        at_s = found[0] if found is not None else None
    schedule(tx, ExpiryTarget(bucket.id, key, ""), at_s)


def upload_started(tx: Tx[Store], bucket: Bucket, key: str, upload_id: str) -> dict[str, Any]:
    """Schedule a new upload. Returns the response members that say when a rule will abort the upload."""
    members = abort_members(tx, bucket, key, tx.wall_s)
    if members:
        schedule(tx, ExpiryTarget(bucket.id, key, upload_id), members["AbortDate"])
    return members


def upload_ended(tx: Tx[Store], upload: MultipartUpload) -> None:
    if enabled_rules(tx, upload.bucket_id):
        schedule(tx, ExpiryTarget(upload.bucket_id, upload.key, upload.id), None)


def schedule(tx: Tx[Store], target: ExpiryTarget, at_s: float | None) -> None:
    """Schedule the next evaluation of a key or upload. If `at_s` is None, remove the key or upload from the schedule."""
    tx.store.expiries.put(target, at_s)
    if at_s is not None:
        tx.due("expiry:", tx.now_s + at_s - tx.expiry_s)


def candidate(version: ObjectVersion) -> expiry.CandidateVersion:
    tags = version.details.get("Tags", {})
    return expiry.CandidateVersion(version.id, version.modified_at_s, version.size, tags, version.is_marker)


def expiration_member(tx: Tx[Store], bucket: Bucket, version: ObjectVersion) -> dict[str, str]:
    """The response member `Expiration`: the expiry date and the rule. Empty if no rule will expire the object."""
    if not (bucket.has_lifecycle and version.latest):
        return {}
    found = expiry.expiry_time(enabled_rules(tx, bucket.id), version.key, candidate(version))
    return {} if found is None else {"Expiration": f'expiry-date="{_date(found[0])}", rule-id="{quote(found[1].id)}"'}


def abort_members(tx: Tx[Store], bucket: Bucket, key: str, initiated_at_s: float) -> dict[str, Any]:
    """The response members `AbortDate` and `AbortRuleId`. Empty if no rule will abort the upload."""
    found = expiry.abort_time(enabled_rules(tx, bucket.id), key, initiated_at_s) if bucket.has_lifecycle else None
    return {} if found is None else {"AbortDate": found[0], "AbortRuleId": found[1].id}


def _date(at_s: float) -> str:
    return http_date(int(at_s))


@lru_cache(maxsize=256)
def _parsed_rules(text: str, since_s: float) -> tuple[LifecycleRule, ...]:
    return tuple(_rule(rule, since_s) for rule in orjson.loads(text)["Rules"] if rule["Status"] == "Enabled")


def _rule(rule: Mapping[str, Any], since_s: float) -> LifecycleRule:
    expires, noncurrent = rule.get("Expiration", {}), rule.get("NoncurrentVersionExpiration", {})
    return LifecycleRule(
        id=rule["ID"],
        filter=_filter(rule),
        since_s=since_s,
        days=expires.get("Days"),
        date_s=expires.get("Date"),
        lone_markers=expires.get("ExpiredObjectDeleteMarker", False),
        noncurrent_days=noncurrent.get("NoncurrentDays"),
        newer_noncurrent=noncurrent.get("NewerNoncurrentVersions", 0),
        abort_days=rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation"),
    )


def _filter(rule: Mapping[str, Any]) -> LifecycleFilter:
    given = rule.get("Filter", {})
    parts = given.get("And", given)
    tags = parts.get("Tags", [given["Tag"]] if "Tag" in given else [])
    return LifecycleFilter(
        prefix=parts.get("Prefix", rule.get("Prefix", "")),
        tags=tuple((tag["Key"], tag["Value"]) for tag in tags),
        larger_than=parts.get("ObjectSizeGreaterThan"),
        smaller_than=parts.get("ObjectSizeLessThan"),
    )


# Validation


def _check(rule: Mapping[str, Any]) -> None:
    if ("Filter" in rule) == ("Prefix" in rule):
        raise malformed_xml()
    if "Filter" in rule and len(rule["Filter"]) > 1:
        raise malformed_xml()  # several conditions must be inside And
    if not any(rule.get(action) for action in ACTIONS):
        raise InvalidRequest("At least one action needs to be specified in a rule")
    selected = _filter(rule)
    if "AbortIncompleteMultipartUpload" in rule:
        if "DaysAfterInitiation" not in rule["AbortIncompleteMultipartUpload"]:
            raise malformed_xml()
        if selected.tags:
            raise InvalidRequest("AbortIncompleteMultipartUpload cannot be specified with Tags.")
        if selected.larger_than is not None or selected.smaller_than is not None:
            raise InvalidRequest("AbortIncompleteMultipartUpload cannot be specified with Object Size.")
    if "Expiration" in rule:
        _check_expiration(rule["Expiration"], selected)
    noncurrent = rule.get("NoncurrentVersionExpiration")
    if noncurrent and "NoncurrentDays" not in noncurrent:
        raise malformed_xml()


def _check_expiration(expires: Mapping[str, Any], selected: LifecycleFilter) -> None:
    if sum(member in expires for member in ("Days", "Date", "ExpiredObjectDeleteMarker")) != 1:
        raise malformed_xml()
    if expires.get("Date", 0) % DAY_S:
        raise InvalidArgument("'Date' must be at midnight GMT")
    if "ExpiredObjectDeleteMarker" in expires and selected.tags:
        raise InvalidRequest("ExpiredObjectDeleteMarker cannot be specified with Tags.")
