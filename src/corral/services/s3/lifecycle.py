"""Lifecycle configurations: checked, kept, and put into effect key by key.

For every key and every upload that rules may do something to there is a row that says when to look at it. Whoever changes a key
calls `changed`; when the rules themselves change, a walk goes through the bucket. The look itself is `reconcile/objects.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from email.utils import formatdate
from functools import lru_cache
from typing import Any
from urllib.parse import quote

import orjson

from corral.core import Tx
from corral.decide import expiry
from corral.decide.expiry import DAY_S, Filter, Rule
from corral.errors import api_error
from corral.model.objects import Bucket, Upload, Version
from corral.services.caller import Caller
from corral.services.s3.documents import Document, Params
from corral.services.s3.errors import InvalidArgument, InvalidRequest, malformed_xml
from corral.store import Store
from corral.store.expiries import Due

ACTIONS = (
    "Expiration",
    "Transitions",
    "NoncurrentVersionExpiration",
    "NoncurrentVersionTransitions",
    "AbortIncompleteMultipartUpload",
)
KIND = "BucketLifecycleConfiguration"


def settle(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    """The configuration as it is kept: checked, and every rule with an id."""
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
    """The bucket's rules are other ones now."""
    tx.store.expiries.begin_walk(bucket.id)
    tx.due(f"lifecycle:{bucket.id}", tx.now_s)


LIFECYCLE = Document(
    KIND,
    settle,
    "DeleteBucketLifecycle",
    missing=lambda: api_error("NoSuchLifecycleConfiguration", 404)("The lifecycle configuration does not exist"),
    removed=begin_walk,
)


# What is in effect


def rules_of(tx: Tx[Store], bucket_id: int) -> Sequence[Rule]:
    """The bucket's rules that are enabled."""
    found = tx.store.documents.text(bucket_id, KIND)
    return _read(*found) if found is not None else ()


def changed(tx: Tx[Store], bucket: Bucket, key: str) -> None:
    """A version of the key came, went or was tagged. Nothing is due before the next midnight by that."""
    if not bucket.has_lifecycle:
        return
    rules = rules_of(tx, bucket.id)
    current, at_s = tx.store.objects.latest(bucket.id, key), None
    if current is not None and bucket.versioning:
        at_s = expiry.midnight_after(tx.now_s)
    elif current is not None:
        found = expiry.expiry(rules, key, as_judged(current))
        at_s = found[0] if found is not None else None
    look_at(tx, Due(bucket.id, key, ""), at_s)


def upload_began(tx: Tx[Store], bucket: Bucket, key: str, upload_id: str) -> dict[str, Any]:
    """The members of CreateMultipartUpload's answer that say when it will be given up."""
    members = abort_members(tx, bucket, key, tx.now_s)
    if members:
        look_at(tx, Due(bucket.id, key, upload_id), members["AbortDate"])
    return members


def upload_ended(tx: Tx[Store], upload: Upload) -> None:
    if rules_of(tx, upload.bucket_id):
        look_at(tx, Due(upload.bucket_id, upload.key, upload.id), None)


def look_at(tx: Tx[Store], due: Due, at_s: float | None) -> None:
    tx.store.expiries.put(due, at_s)
    if at_s is not None:
        tx.due("expiry:", at_s)


def as_judged(version: Version) -> expiry.Version:
    tags = version.details.get("Tags", {})
    return expiry.Version(version.id, version.modified_at_s, version.size, tags, version.is_marker)


def expiration(tx: Tx[Store], bucket: Bucket, version: Version) -> dict[str, str]:
    """The member of PutObject's, HeadObject's and GetObject's answers that says when the object will expire."""
    if not (bucket.has_lifecycle and version.latest):
        return {}
    found = expiry.expiry(rules_of(tx, bucket.id), version.key, as_judged(version))
    return {} if found is None else {"Expiration": f'expiry-date="{_date(found[0])}", rule-id="{quote(found[1].id)}"'}


def abort_members(tx: Tx[Store], bucket: Bucket, key: str, initiated_at_s: float) -> dict[str, Any]:
    """The members of ListParts' answer that say when the upload will be given up."""
    found = expiry.abortion(rules_of(tx, bucket.id), key, initiated_at_s) if bucket.has_lifecycle else None
    return {} if found is None else {"AbortDate": found[0], "AbortRuleId": found[1].id}


def _date(at_s: float) -> str:
    return formatdate(at_s, usegmt=True)


@lru_cache(maxsize=256)
def _read(text: str, since_s: float) -> tuple[Rule, ...]:
    return tuple(_rule(rule, since_s) for rule in orjson.loads(text)["Rules"] if rule["Status"] == "Enabled")


def _rule(rule: Mapping[str, Any], since_s: float) -> Rule:
    expires, noncurrent = rule.get("Expiration", {}), rule.get("NoncurrentVersionExpiration", {})
    return Rule(
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


def _filter(rule: Mapping[str, Any]) -> Filter:
    given = rule.get("Filter", {})
    parts = given.get("And", given)
    tags = parts.get("Tags", [given["Tag"]] if "Tag" in given else [])
    return Filter(
        prefix=parts.get("Prefix", rule.get("Prefix", "")),
        tags=tuple((tag["Key"], tag["Value"]) for tag in tags),
        larger_than=parts.get("ObjectSizeGreaterThan"),
        smaller_than=parts.get("ObjectSizeLessThan"),
    )


# What S3 refuses


def _check(rule: Mapping[str, Any]) -> None:
    if ("Filter" in rule) == ("Prefix" in rule):
        raise malformed_xml()
    if "Filter" in rule and len(rule["Filter"]) > 1:
        raise malformed_xml()  # several go into And
    if not any(rule.get(action) for action in ACTIONS):
        raise InvalidRequest("At least one action needs to be specified in a rule")
    which = _filter(rule)
    if "AbortIncompleteMultipartUpload" in rule:
        if "DaysAfterInitiation" not in rule["AbortIncompleteMultipartUpload"]:
            raise malformed_xml()
        if which.tags:
            raise InvalidRequest("AbortIncompleteMultipartUpload cannot be specified with Tags.")
        if which.larger_than is not None or which.smaller_than is not None:
            raise InvalidRequest("AbortIncompleteMultipartUpload cannot be specified with Object Size.")
    if "Expiration" in rule:
        _check_expiration(rule["Expiration"], which)
    noncurrent = rule.get("NoncurrentVersionExpiration")
    if noncurrent and "NoncurrentDays" not in noncurrent:
        raise malformed_xml()


def _check_expiration(expires: Mapping[str, Any], which: Filter) -> None:
    if sum(member in expires for member in ("Days", "Date", "ExpiredObjectDeleteMarker")) != 1:
        raise malformed_xml()
    if expires.get("Date", 0) % DAY_S:
        raise InvalidArgument("'Date' must be at midnight GMT")
    if "ExpiredObjectDeleteMarker" in expires and which.tags:
        raise InvalidRequest("ExpiredObjectDeleteMarker cannot be specified with Tags.")
