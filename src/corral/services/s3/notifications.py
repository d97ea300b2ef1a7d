"""Object events. Each event updates the lifecycle schedule of the key and sends the bucket's event notifications.

The transaction that changes the object also sends the notification to a queue or an SNS topic, or adds an invocation of a Lambda
function. As on AWS, the policy of the target must allow S3 to do so. S3 checks the policy for each event. It also checks the policy
when a request configures the notification, before it sends a test message. Functions get no test message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import combinations
from time import gmtime, strftime
from typing import Any
from urllib.parse import quote_plus

import orjson
from msgspec import Struct

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.objects import BUCKET_NOTIFICATION, NULL, Bucket, ObjectVersion
from corral.model.queue import Queue
from corral.services.s3.errors import InvalidArgument
from corral.services.s3.lifecycle import key_changed
from corral.services.s3.lookup import bucket_arn, owner
from corral.services.sns import publish
from corral.services.sns.names import topic_with_arn
from corral.services.sqs import send_message
from corral.services.sqs.queue_names import queue_with_arn
from corral.store import Store
from corral.store.stored_resources import Document

QUEUES, TOPICS, FUNCTIONS = "QueueConfigurations", "TopicConfigurations", "LambdaFunctionConfigurations"
TARGETS = {QUEUES: "QueueArn", TOPICS: "TopicArn", FUNCTIONS: "LambdaFunctionArn"}
SERVICES = {QUEUES: "sqs", TOPICS: "sns", FUNCTIONS: "lambda"}  # configuration member → the service in the ARN of its targets
MISSING_TARGETS = {
    QUEUES: "The destination queue does not exist",
    TOPICS: "The destination topic does not exist",
    FUNCTIONS: "The destination Lambda does not exist",
}
NOT_INVOKED = "Not authorized to invoke function"
SENDER = "s3.amazonaws.com"
SUBJECT = "Amazon S3 Notification"  # the subject of messages to topics
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"
RECORD_VERSION = "2.1"
NEWER_RECORD_VERSION = "2.3"
CHANGES = ("ObjectTagging", "ObjectAcl")  # the records of these events have neither a size nor a sequencer
NEWER_EVENTS = (  # the records of these events have NEWER_RECORD_VERSION
    *CHANGES,
    "LifecycleExpiration",
    "LifecycleTransition",
    "IntelligentTiering",
)
# Causes for the removal of an object. The name of the event begins with the cause.
BY_RULE = "LifecycleExpiration"
BY_REQUEST = "ObjectRemoved"


def object_created(tx: Tx[Store], bucket: Bucket, version: ObjectVersion, event_name: str, caller: Caller) -> None:
    """Handle the creation of a version. `event_name` is Put, Post, Copy or CompleteMultipartUpload."""
    key_changed(tx, bucket, version.key)
    _notify(tx, bucket, caller, f"ObjectCreated:{event_name}", version)


def object_removed(tx: Tx[Store], bucket: Bucket, version: ObjectVersion, event_name: str, caller: Caller, cause: str) -> None:
    """Handle a removal. `version` is the removed version (Delete) or the new marker (DeleteMarkerCreated)."""
    key_changed(tx, bucket, version.key)
    _notify(tx, bucket, caller, f"{cause}:{event_name}", version)


def tags_changed(tx: Tx[Store], bucket: Bucket, version: ObjectVersion, event_name: str, caller: Caller) -> None:
    """Handle a change of an object's tags. `event_name` is Put or Delete."""
    key_changed(tx, bucket, version.key)
    _notify(tx, bucket, caller, f"ObjectTagging:{event_name}", version)


def acl_changed(tx: Tx[Store], bucket: Bucket, version: ObjectVersion, caller: Caller) -> None:
    _notify(tx, bucket, caller, "ObjectAcl:Put", version)


def absent_key_deleted(tx: Tx[Store], bucket: Bucket, key: str, caller: Caller) -> None:
    """Handle the deletion of a key that does not exist. S3 sends this event for DeleteObjects, but not for DeleteObject."""
    version = ObjectVersion(0, key, NULL, False, None, 0, "", tx.wall_s, {})
    _notify(tx, bucket, caller, f"{BY_REQUEST}:Delete", version)


def validate_notifications(tx: Tx[Store], bucket: Bucket, params: dict[str, Any], caller: Caller) -> Any:
    """Check a configuration, and send a test message to each queue and topic in it.

    Returns the configuration to store. Each of its notifications has an id.
    """
    given = params["NotificationConfiguration"]
    stored = {
        member: [_with_rule_names(part if part.get("Id") else {**part, "Id": tx.ids.uuid()}) for part in given[member]]
        for member in TARGETS
        if given.get(member)
    }
    if "EventBridgeConfiguration" in given:
        stored["EventBridgeConfiguration"] = given["EventBridgeConfiguration"]
    notifications = [notification for _, notification in _notifications(stored)]
    if ambiguous(notifications):
        raise InvalidArgument(
            "Configuration is ambiguously defined. Cannot have overlapping suffixes in two rules if the prefixes are overlapping "
            "for the same event type."
        )
    if not params.get("SkipDestinationValidation"):
        _validate_targets(tx, bucket, stored, caller)
    return stored


def _notify(tx: Tx[Store], bucket: Bucket, caller: Caller, event: str, version: ObjectVersion) -> None:
    """Send an event, such as "ObjectCreated:Put", to the targets whose notifications match it."""
    found = tx.store.bucket_documents.text(bucket.id, BUCKET_NOTIFICATION) if bucket.has_notifications else None
    if found is None:
        return
    for notification in matching(_valid_notifications(found[0]), f"s3:{event}", version.key):
        target = _target(tx, notification.target)
        if target is not None and _refusal(tx, bucket, target, notification.target, caller) is None:
            _send(tx, target, {"Records": [_record(tx, bucket, caller, event, version, notification.id)]})


def _target(tx: Tx[Store], arn: str) -> Queue | Document | None:
    if _service(arn) == "lambda":
        from corral.services.lambda_.names import function_with_arn  # imported only here, because Lambda imports S3

        return function_with_arn(tx, arn)
    return queue_with_arn(tx, arn) or topic_with_arn(tx, arn)


def _send(tx: Tx[Store], target: Queue | Document, message: dict[str, Any]) -> None:
    """Send a message. A topic with a small MaximumMessageSize can refuse the message; then nothing is sent."""
    text = orjson.dumps(message).decode()
    if isinstance(target, Queue):
        send_message.deliver(tx, target, text, sender=SENDER)
    elif "FunctionArn" in target:
        from corral.services.lambda_.invocations import enqueue

        enqueue(tx, target, text.encode())
    else:
        with suppress(ApiError):
            publish.deliver(tx, target["TopicArn"], text, subject=SUBJECT)


@lru_cache(maxsize=256)
def _valid_notifications(text: str) -> tuple[Notification, ...]:
    """Return the notifications of a configuration, except those whose target is of another kind than their member."""
    return tuple(each for member, each in _notifications(orjson.loads(text)) if _service(each.target) == SERVICES[member])


def _service(arn: str) -> str:
    return arn.split(":")[2]


def _notifications(document: Mapping[str, Any]) -> Iterator[tuple[str, Notification]]:
    """Yield (configuration member, notification) for each notification of a configuration."""
    for member, target in TARGETS.items():
        for part in document.get(member, ()):
            rules = part.get("Filter", {}).get("Key", {}).get("FilterRules", ())
            ends: dict[str, str] = {}
            for rule in rules:
                name = rule["Name"].lower()
                if name in ends:
                    raise InvalidArgument(f"Cannot specify more than one {name} rule in a filter.")
                ends[name] = rule.get("Value", "")
            yield (
                member,
                Notification(part["Id"], part[target], tuple(part["Events"]), ends.get("prefix", ""), ends.get("suffix", "")),
            )


def _with_rule_names(part: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose filter rules have the names Prefix and Suffix. A request can write them in any case."""
    rules = part.get("Filter", {}).get("Key", {}).get("FilterRules")
    if not rules:
        return part
    for rule in rules:
        name = rule.get("Name", "")
        if name.lower() not in ("prefix", "suffix"):
            message = "filter rule name must be either prefix or suffix"
            raise InvalidArgument(message, ArgumentName="FilterRule.Name", ArgumentValue=name)
    named = [{**rule, "Name": rule["Name"].capitalize()} for rule in rules]
    return {**part, "Filter": {"Key": {"FilterRules": named}}}


def _validate_targets(tx: Tx[Store], bucket: Bucket, document: Mapping[str, Any], caller: Caller) -> None:
    """Check that every target accepts messages from this bucket, and send a test message to each queue and topic."""
    targets, refusals = list[Queue | Document](), dict[str, str]()
    for member, arn in dict.fromkeys((member, part.target) for member, part in _notifications(document)):
        target = _target(tx, arn) if _service(arn) == SERVICES[member] else None
        refusal = MISSING_TARGETS[member] if target is None else _refusal(tx, bucket, target, arn, caller)
        if refusal is not None:
            refusals[f"{arn}, null" if refusal.startswith(NOT_INVOKED) else arn] = refusal
        elif target is not None and member != FUNCTIONS:
            targets.append(target)
    if refusals:
        members = dict[str, str]()
        for number, (arn, refusal) in enumerate(refusals.items(), 1):
            members |= {f"ArgumentName{number}": arn, f"ArgumentValue{number}": refusal}
        raise InvalidArgument("Unable to validate the following destination configurations", **members)
    for target in targets:
        test = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": _iso(tx.wall_s), "Bucket": bucket.name}
        _send(tx, target, test | {"RequestId": caller.request_id, "HostId": caller.request_id})


def _refusal(tx: Tx[Store], bucket: Bucket, target: Queue | Document, arn: str, caller: Caller) -> str | None:
    """Return why S3 must not send the bucket's notifications to this target. Return None if S3 may send them."""
    is_queue, source = isinstance(target, Queue), bucket_arn(bucket.name)
    if arn.split(":")[3] != bucket.region:
        return "The notification destination service region is not valid for the bucket location constraint"
    if arn.endswith(".fifo"):
        return f"FIFO {'SQS queues' if is_queue else 'SNS topics'} are not supported"
    if isinstance(target, Queue):
        allowed = send_message.service_may_send(target, arn, SENDER, source, caller.account)
    elif "FunctionArn" in target:
        from corral.services.lambda_.policies import service_may_invoke

        return None if service_may_invoke(target, SENDER, source, caller.account) else f"{NOT_INVOKED} [{arn}]"
    else:
        allowed = publish.may_publish(tx, target, publish.Publisher(SENDER, source))
    if not allowed:
        kind = "queue" if is_queue else "topic"
        return f"Permissions on the destination {kind} do not allow S3 to publish notifications from this bucket"
    return None


def _record(
    tx: Tx[Store], bucket: Bucket, caller: Caller, event: str, version: ObjectVersion, notification_id: str
) -> dict[str, Any]:
    about: dict[str, Any] = {"key": quote_plus(version.key, safe="/")}
    is_change = event.startswith(CHANGES)
    if not event.startswith("ObjectRemoved:") and not version.is_marker:
        about |= {"eTag": version.etag} if is_change else {"size": version.size, "eTag": version.etag}
    if event.endswith(":DeleteMarkerCreated"):
        about["eTag"] = EMPTY_MD5
    if bucket.versioning:
        about["versionId"] = version.id
    return {
        "eventVersion": NEWER_RECORD_VERSION if event.startswith(NEWER_EVENTS) else RECORD_VERSION,
        "eventSource": "aws:s3",
        "awsRegion": bucket.region,
        "eventTime": _iso(tx.wall_s),
        "eventName": event,
        "userIdentity": {"principalId": caller.principal.arn},
        "requestParameters": {"sourceIPAddress": caller.source_ip},
        "responseElements": {"x-amz-request-id": caller.request_id, "x-amz-id-2": caller.request_id},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": notification_id,
            "bucket": {
                "name": bucket.name,
                "ownerIdentity": {"principalId": owner(caller)["ID"]},
                "arn": bucket_arn(bucket.name),
            },
            "object": about if is_change else {**about, "sequencer": f"{round(tx.wall_s * 1e7):018X}"},
        },
    }


def _iso(at_s: float) -> str:
    ms = round(at_s * 1000)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(ms // 1000))}.{ms % 1000:03d}Z"


class Notification(Struct, frozen=True):
    id: str
    target: str  # the ARN of the destination
    events: tuple[str, ...]  # names or patterns, for example "s3:ObjectCreated:Put" and "s3:ObjectCreated:*"
    prefix: str = ""
    suffix: str = ""


def matching(notifications: Iterable[Notification], event: str, key: str) -> list[Notification]:
    """Return the notifications that match `event`, such as "s3:ObjectCreated:Put", on the object with this key."""
    return [
        each
        for each in notifications
        if key.startswith(each.prefix) and key.endswith(each.suffix) and any(_covers(pattern, event) for pattern in each.events)
    ]


def ambiguous(notifications: Sequence[Notification]) -> bool:
    """Whether one event could match two of these notifications. S3 refuses such a configuration."""
    return any(
        _overlap(one.prefix, other.prefix, str.startswith)
        and _overlap(one.suffix, other.suffix, str.endswith)
        and any(_covers(a, b) or _covers(b, a) for a in one.events for b in other.events)
        for one, other in combinations(notifications, 2)
    )


def _covers(pattern: str, event: str) -> bool:
    return pattern == event or (pattern.endswith("*") and event.startswith(pattern[:-1]))


def _overlap(one: str, other: str, has: Callable[[str, str], bool]) -> bool:
    return has(one, other) or has(other, one)
