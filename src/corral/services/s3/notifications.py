"""Event notifications: what a bucket's events are told to, and the telling.

A message lies in its queue by the same transaction that makes the object. Queues are asked for leave twice, as on AWS: when
the notification is configured, which a test message shows, and with every event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from time import gmtime, strftime
from typing import Any
from urllib.parse import quote_plus

import orjson

from corral.core import Tx
from corral.decide.notifications import Notification, ambiguous, matching
from corral.decide.policy import AccessRequest, PolicyDecision, PolicyError, evaluate, read_policy, service_principal
from corral.model.objects import Bucket, Version
from corral.model.queue import Queue
from corral.services.caller import Caller
from corral.services.s3.documents import Document, Params
from corral.services.s3.errors import InvalidArgument
from corral.services.s3.naming import owner
from corral.services.sqs.queue_names import queue_with_arn
from corral.services.sqs.send_message import deliver
from corral.store import Store

KIND = "BucketNotificationConfiguration"
QUEUES, TOPICS, FUNCTIONS = "QueueConfigurations", "TopicConfigurations", "LambdaFunctionConfigurations"
TARGETS = {QUEUES: "QueueArn", TOPICS: "TopicArn", FUNCTIONS: "LambdaFunctionArn"}
NOT_HERE = {
    QUEUES: "The destination queue does not exist",
    TOPICS: "Corral has no SNS topics",
    FUNCTIONS: "Corral has no Lambda functions",
}
SENDER = "s3.amazonaws.com"
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
RECORD_VERSION = "2.1"
LATER_EVENTS = (
    "ObjectTagging",
    "ObjectAcl",
    "LifecycleExpiration",
    "LifecycleTransition",
    "IntelligentTiering",
)  # have version 2.3


def settle(tx: Tx[Store], bucket: Bucket, params: Params, caller: Caller) -> Any:
    """The configuration as it is kept, with an id for every part; every queue has been tried with a test message."""
    given = params["NotificationConfiguration"]
    kept = {
        member: [part if part.get("Id") else {**part, "Id": tx.ids.uuid()} for part in given[member]]
        for member in TARGETS
        if given.get(member)
    }
    if "EventBridgeConfiguration" in given:
        kept["EventBridgeConfiguration"] = given["EventBridgeConfiguration"]
    notifications = [notification for _, notification in _parts(kept)]
    if ambiguous(notifications):
        raise InvalidArgument(
            "Configuration is ambiguously defined. Cannot have overlapping suffixes in two rules if the prefixes are overlapping "
            "for the same event type."
        )
    if not params.get("SkipDestinationValidation"):
        _try_targets(tx, bucket, kept, caller)
    return kept


NOTIFICATION = Document(KIND, settle, default={})


def tell(tx: Tx[Store], bucket: Bucket, caller: Caller, event: str, version: Version) -> None:
    """`event` ("ObjectCreated:Put") has happened to this version: whoever wants to hear of it will."""
    found = tx.store.documents.text(bucket.id, KIND) if bucket.has_notifications else None
    if found is None:
        return
    for notification in matching(_queues(found[0]), f"s3:{event}", version.key):
        queue = queue_with_arn(tx, notification.target)
        if queue is not None and _refusal(bucket, queue, notification.target, caller) is None:
            _send(tx, queue, {"Records": [_record(tx, bucket, caller, event, version, notification.id)]})


def _send(tx: Tx[Store], queue: Queue, message: dict[str, Any]) -> None:
    deliver(tx, queue, orjson.dumps(message).decode(), sender=SENDER)


@lru_cache(maxsize=256)
def _queues(text: str) -> tuple[Notification, ...]:
    return tuple(notification for member, notification in _parts(orjson.loads(text)) if member == QUEUES)


def _parts(document: Mapping[str, Any]) -> Iterator[tuple[str, Notification]]:
    """(member, notification) for all parts of a configuration."""
    for member, target in TARGETS.items():
        for part in document.get(member, ()):
            rules = part.get("Filter", {}).get("Key", {}).get("FilterRules", ())
            ends: dict[str, str] = {}
            for rule in rules:
                if "Name" not in rule:
                    raise InvalidArgument("filter rule name must be either prefix or suffix")
                name = rule["Name"].lower()
                if name in ends:
                    raise InvalidArgument(f"Cannot specify more than one {name} rule in a filter.")
                ends[name] = rule.get("Value", "")
            yield (
                member,
                Notification(part["Id"], part[target], tuple(part["Events"]), ends.get("prefix", ""), ends.get("suffix", "")),
            )


def _try_targets(tx: Tx[Store], bucket: Bucket, document: Mapping[str, Any], caller: Caller) -> None:
    """Every target must take messages of this bucket; the queues get one to show that they do."""
    queues, refusals = list[Queue](), dict[str, str]()
    for member, target in dict.fromkeys((member, part.target) for member, part in _parts(document)):
        queue = queue_with_arn(tx, target) if member == QUEUES else None
        refusal = NOT_HERE[member] if queue is None else _refusal(bucket, queue, target, caller)
        if refusal is not None:
            refusals[target] = refusal
        elif queue is not None:
            queues.append(queue)
    if refusals:
        members = dict[str, str]()
        for number, (target, words) in enumerate(refusals.items(), 1):
            members |= {f"ArgumentName{number}": f"{target}, null", f"ArgumentValue{number}": words}
        raise InvalidArgument("Unable to validate the following destination configurations", **members)
    for queue in queues:
        test = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": _iso(tx.now_s), "Bucket": bucket.name}
        _send(tx, queue, test | {"RequestId": caller.request_id, "HostId": caller.request_id})


def _refusal(bucket: Bucket, queue: Queue, arn: str, caller: Caller) -> str | None:
    """Why S3 may not send to this queue on behalf of the bucket."""
    if queue.region != bucket.region:
        return "The notification destination service region is not valid for the bucket location constraint"
    if queue.is_fifo:
        return "FIFO SQS queues are not supported"
    context = {"aws:sourcearn": (f"arn:aws:s3:::{bucket.name}",), "aws:sourceaccount": (caller.account,)}
    try:
        request = AccessRequest(service_principal(SENDER), "sqs:SendMessage", arn, context)
        decision = evaluate(read_policy(queue.attributes.get("Policy", "")), request)
    except PolicyError:  # it has none
        decision = PolicyDecision.NO_MATCH
    if decision is not PolicyDecision.ALLOWED:
        return "Permissions on the destination queue do not allow S3 to publish notifications from this bucket"
    return None


def _record(tx: Tx[Store], bucket: Bucket, caller: Caller, event: str, version: Version, notification_id: str) -> dict[str, Any]:
    about: dict[str, Any] = {"key": quote_plus(version.key, safe="/")}
    if not event.startswith("ObjectRemoved:") and not version.is_marker:
        about |= {"size": version.size, "eTag": version.etag}
    if event.endswith(":DeleteMarkerCreated"):
        about["eTag"] = EMPTY_MD5
    if bucket.versioning:
        about["versionId"] = version.id
    return {
        "eventVersion": "2.3" if event.startswith(LATER_EVENTS) else RECORD_VERSION,
        "eventSource": "aws:s3",
        "awsRegion": bucket.region,
        "eventTime": _iso(tx.now_s),
        "eventName": event,
        "userIdentity": {"principalId": caller.principal},
        "requestParameters": {"sourceIPAddress": caller.source_ip},
        "responseElements": {"x-amz-request-id": caller.request_id, "x-amz-id-2": caller.request_id},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": notification_id,
            "bucket": {
                "name": bucket.name,
                "ownerIdentity": {"principalId": owner(caller)["ID"]},
                "arn": f"arn:aws:s3:::{bucket.name}",
            },
            "object": {**about, "sequencer": f"{round(tx.now_s * 1e7):018X}"},
        },
    }


def _iso(at_s: float) -> str:
    ms = round(at_s * 1000)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(ms // 1000))}.{ms % 1000:03d}Z"
