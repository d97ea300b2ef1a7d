"""Publish and PublishBatch, and the delivery of published messages to the subscriptions of their topic.

The transaction that publishes a message also sends it to the subscribed SQS queues, and adds invocations of the subscribed Lambda
functions. If there is much to deliver, a request does so in several transactions, and gets its response after the last one. So a
client whose request fails in between publishes the message again. Other services publish with `deliver`, in one transaction.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import partial
from hashlib import sha256
from time import gmtime, strftime
from typing import Any
from urllib.parse import quote

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.filter_policy import (
    ATTRIBUTES,
    BODY,
    accepts,
    attribute_properties,
    body_properties,
    read_filter_policy,
)
from corral.decide.policies.policy import AccessRequest, PolicyDecision, PolicyError, evaluate, read_policy, service_principal
from corral.model.json_documents import read_json
from corral.model.queue import Queue
from corral.model.sqs_limits import ATTRIBUTES_MAX, DEDUPLICATION_MS
from corral.services.sns import errors
from corral.services.sns.names import find_topic, is_fifo, subscriptions_of, topic_with_arn
from corral.services.sns.signatures import certificate, certificate_path, signature_members
from corral.services.sns.topics import message_max_bytes
from corral.services.sqs import send_message as sqs
from corral.services.sqs.message_content import NOT_ALLOWED, attributes_size, check_attributes
from corral.services.sqs.queue_names import arn_of, now_ms, queue_with_arn
from corral.store import Store
from corral.store.stored_resources import Document

SENDER = "sns.amazonaws.com"
SUBJECT_MAX_CHARACTERS = 100
# What one transaction delivers. Each delivery takes about 0.06 ms, and 2 ms for each 256 KiB. The signature of a message, which its
# deliveries share, takes about 0.6 ms.
DELIVERIES_MAX, DELIVERED_MAX_BYTES, SIGNATURES_MAX = 50, 1024 * 1024, 4
# Member of a message to a queue → the name of this member in the event for a Lambda function
FUNCTION_NAMES = {"SigningCertURL": "SigningCertUrl", "UnsubscribeURL": "UnsubscribeUrl"}
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")

Attributes = Mapping[str, Mapping[str, Any]]


class PublishedMessage(Struct, frozen=True):
    id: str
    at_s: float  # wall time
    body: str  # the message for SQS queues
    bytes: int  # the size of the message and its attributes
    function_body: str  # the message for Lambda functions
    subject: str | None = None
    attributes: Attributes = field(default_factory=dict)
    group_id: str | None = None
    deduplication_id: str | None = None
    sequence_number: str | None = None  # only messages of FIFO topics have one
    signatures: dict[str, dict[str, str]] = field(default_factory=dict)  # text → the members that sign it
    # FilterPolicyScope → the values in the message to which `_is_accepted` applies filter policies: the message attributes, or the
    # members of the body. None if the body is not a JSON object.
    properties: dict[str, dict[str, Any] | None] = field(default_factory=dict)


class Publisher(Struct, frozen=True):
    """An AWS service that publishes a message. The policy of the topic must allow this."""

    service: str  # such as s3.amazonaws.com
    source_arn: str  # the resource for which the service publishes
    for_owner: bool = False  # the service sends aws:SourceOwner, which the default policy of a topic requires


class Deliveries(Struct):
    """The deliveries of a request that remain."""

    topic: Document
    left: deque[tuple[PublishedMessage, Document]] = field(default_factory=deque)  # messages, and a subscription of each

    def add(self, tx: Tx[Store], notification: PublishedMessage) -> PublishedMessage:
        """Add the deliveries of a message. Return the message with its ids.

        A duplicate in a FIFO topic is not delivered, and gets the ids of the first message.
        """
        if is_fifo(self.topic):
            notification, is_new = _numbered(tx, self.topic, notification)
            if not is_new:
                return notification
        for _, subscription in subscriptions_of(tx, self.topic):
            if subscription["Protocol"] in ("sqs", "lambda") and not subscription["Pending"]:
                self.left.append((notification, subscription))
        return notification

    def deliver_some(self, tx: Tx[Store]) -> int:
        """Deliver as much as one transaction may. All messages of a FIFO topic must be delivered in order, so all at once.

        Return the number of deliveries, for `done`. They stay in `left`, because the core may undo this command and run it again.
        """
        number = size = signatures = 0
        for notification, subscription in self.left:
            if not is_fifo(self.topic) and (
                number >= DELIVERIES_MAX or size >= DELIVERED_MAX_BYTES or signatures >= SIGNATURES_MAX
            ):
                break
            number, size = number + 1, size + notification.bytes
            if _is_accepted(subscription, notification):
                signed = len(notification.signatures)
                _deliver(tx, self.topic, subscription, notification)
                signatures += len(notification.signatures) - signed
        return number

    def done(self, number: int) -> None:
        """Drop the first deliveries. Their transaction has ended."""
        for _ in range(number):
            self.left.popleft()


Publishing = Generator[Callable[[Tx[Store]], Any], Any, dict[str, Any]]


def publish(params: dict[str, Any], caller: Caller) -> Publishing:
    return _in_steps(partial(_publish, params=params, caller=caller))


def publish_batch(params: dict[str, Any], caller: Caller) -> Publishing:
    return _in_steps(partial(_publish_batch, params=params, caller=caller))


def _in_steps(begin: Callable[[Tx[Store]], tuple[dict[str, Any], Deliveries]]) -> Publishing:
    """Publish in as many transactions as the deliveries need."""

    def first(tx: Tx[Store]) -> tuple[dict[str, Any], Deliveries, int]:
        result, deliveries = begin(tx)
        return result, deliveries, deliveries.deliver_some(tx) if deliveries.left else 0

    result, deliveries, number = yield first
    deliveries.done(number)
    while deliveries.left:
        deliveries.done((yield deliveries.deliver_some))
    return result  # type: ignore[no-any-return]


def _publish(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[dict[str, Any], Deliveries]:
    if "PhoneNumber" in params:
        raise errors.invalid("PhoneNumber", "Corral sends no SMS messages")
    arn = params.get("TopicArn") or params.get("TargetArn")
    if not arn:
        raise errors.invalid("TopicArn or TargetArn", "no value for required parameter")
    if ":endpoint/" in arn:
        raise errors.invalid("TargetArn", "Corral sends no push notifications")
    topic = find_topic(tx, caller, arn, "TopicArn" if params.get("TopicArn") else "TargetArn")
    notification = _read(tx, topic, params)
    _check_size(topic, notification.bytes)
    deliveries = Deliveries(topic)
    return _published(deliveries.add(tx, notification)), deliveries


def _publish_batch(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> tuple[dict[str, Any], Deliveries]:
    topic, entries = find_topic(tx, caller, params["TopicArn"]), params["PublishBatchRequestEntries"]
    if len({entry["Id"] for entry in entries}) < len(entries):
        raise errors.BatchEntryIdsNotDistinctException("Two or more batch entries in the request have the same Id.")
    notifications = [_read(tx, topic, entry) for entry in entries]  # an invalid entry fails the whole request, as on AWS
    if sum(notification.bytes for notification in notifications) > message_max_bytes(topic):
        raise errors.BatchRequestTooLongException("The length of all the messages put together is more than the limit.")
    deliveries = Deliveries(topic)
    sent = [_published(deliveries.add(tx, notification)) for notification in notifications]
    return {"Successful": [{"Id": entry["Id"], **each} for entry, each in zip(entries, sent)], "Failed": []}, deliveries


def deliver(
    tx: Tx[Store],
    topic_arn: str,
    message: str,
    *,
    publisher: Publisher | None = None,
    subject: str | None = None,
    attributes: Attributes | None = None,
    group_id: str | None = None,
) -> str:
    """Publish a message for another service, and return its MessageId. The topic can be in any region.

    Raise an error if the topic does not exist, or if its policy does not allow the publisher. Without a publisher, the policy is
    not checked.
    """
    topic = topic_with_arn(tx, topic_arn)
    if topic is None:
        raise errors.no_such_topic()
    if publisher is not None and not may_publish(tx, topic, publisher):
        raise errors.AuthorizationErrorException(f"The policy of topic {topic_arn} does not allow {publisher.service} to publish")
    given = {"Message": message, "Subject": subject, "MessageAttributes": attributes, "MessageGroupId": group_id}
    params = {name: value for name, value in given.items() if value is not None}
    if is_fifo(topic):
        params["MessageDeduplicationId"] = tx.ids.uuid()
    notification = _read(tx, topic, params)
    _check_size(topic, notification.bytes)
    deliveries = Deliveries(topic)
    sent = deliveries.add(tx, notification)
    while deliveries.left:
        deliveries.done(deliveries.deliver_some(tx))
    return sent.id


def may_publish(tx: Tx[Store], topic: Document, publisher: Publisher) -> bool:
    account, arn = tx.settings.account, topic["TopicArn"]
    context = {"aws:sourcearn": (publisher.source_arn,), "aws:sourceaccount": (account,)}
    if publisher.for_owner:
        context["aws:sourceowner"] = (account,)
    try:
        policy = read_policy(topic["Attributes"]["Policy"])
    except PolicyError:  # RemovePermission can remove all statements
        return False
    request = AccessRequest(service_principal(publisher.service), "sns:Publish", arn, context)
    return evaluate(policy, request) is PolicyDecision.ALLOWED


# The message


def _read(tx: Tx[Store], topic: Document, params: Mapping[str, Any]) -> PublishedMessage:
    message, subject, attributes = params["Message"], params.get("Subject"), params.get("MessageAttributes", {})
    if not message:
        raise errors.invalid("Empty message")
    if subject is not None and (not 0 < len(subject) <= SUBJECT_MAX_CHARACTERS or CONTROL.search(subject)):
        raise errors.invalid("Subject")
    for name, attribute in attributes.items():
        try:
            check_attributes({name: attribute})
        except ApiError as error:
            raise errors.InvalidParameterValueException(error.message) from None
    group_id, deduplication_id = _fifo_ids(topic, params)
    structure = params.get("MessageStructure")
    return PublishedMessage(
        tx.ids.uuid(),
        tx.wall_s,
        _body(message, structure, "sqs") if structure is not None else message,
        len(message.encode()) + (attributes_size(attributes) if attributes else 0),
        _body(message, structure, "lambda") if structure is not None else message,
        subject,
        attributes,
        group_id,
        deduplication_id,
    )


def _body(message: str, structure: str, protocol: str) -> str:
    """Return the message for a protocol. With MessageStructure json, a message has a text for each protocol."""
    if structure != "json":
        raise errors.invalid("MessageStructure", "Invalid MessageStructure parameter")
    try:
        texts = read_json(message)
    except ValueError:
        texts = None
    if not isinstance(texts, dict):
        raise errors.invalid("Message Structure - JSON message body failed to parse")
    default, own = texts.get("default"), texts.get(protocol)
    if not isinstance(default, str):
        raise errors.invalid("Message Structure - No default entry in JSON message body")
    return own if isinstance(own, str) else default


def _fifo_ids(topic: Document, params: Mapping[str, Any]) -> tuple[str | None, str | None]:
    group_id, deduplication_id = params.get("MessageGroupId"), params.get("MessageDeduplicationId")
    for name, value in (("MessageGroupId", group_id), ("MessageDeduplicationId", deduplication_id)):
        if value is not None and not sqs.FIFO_ID.fullmatch(value):
            raise errors.invalid(name, f"{name} can only include alphanumeric and punctuation characters. 1 to 128 in length")
    if not is_fifo(topic):
        if deduplication_id is not None:
            raise errors.invalid("MessageDeduplicationId", "The request includes a parameter that is not valid for this topic type")
        return group_id, None
    if group_id is None:
        raise errors.invalid("The MessageGroupId parameter is required for FIFO topics")
    if deduplication_id is None:
        if topic["Attributes"]["ContentBasedDeduplication"] != "true":
            raise errors.invalid(
                "The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
            )
        deduplication_id = sha256(params["Message"].encode()).hexdigest()
    return group_id, deduplication_id


def _check_size(topic: Document, size: int) -> None:
    if size > message_max_bytes(topic):
        raise errors.invalid("Message too long")


def _published(notification: PublishedMessage) -> dict[str, Any]:
    number = notification.sequence_number
    return {"MessageId": notification.id, **({"SequenceNumber": number} if number is not None else {})}


# Delivery


def _numbered(tx: Tx[Store], topic: Document, notification: PublishedMessage) -> tuple[PublishedMessage, bool]:
    """Return the message with its sequence number, and whether it is new. A duplicate gets the ids of the first message."""
    queues, number, at_ms = tx.store.queues, topic["Number"], now_ms(tx)
    group_id, deduplication_id = notification.group_id, notification.deduplication_id
    assert group_id is not None and deduplication_id is not None
    scope = group_id if topic["Attributes"]["FifoThroughputScope"] == "MessageGroup" else ""
    before = queues.sent_before(number, scope, deduplication_id, at_ms)
    message_id, id = before or (notification.id, queues.new_ids(tx.now_s, 1)[0])
    if before is None:
        queues.remember_sent(number, scope, deduplication_id, message_id, id, at_ms + DEDUPLICATION_MS)
        tx.due("duplicates:", tx.now_s + DEDUPLICATION_MS / 1000)
    return replace(notification, id=message_id, sequence_number=sqs.sequence_number(id)), before is None


def _is_accepted(subscription: Document, notification: PublishedMessage) -> bool:
    attributes, properties = subscription["Attributes"], notification.properties
    if "FilterPolicy" not in attributes:
        return True
    scope = attributes.get("FilterPolicyScope", ATTRIBUTES)
    if scope not in properties:
        properties[scope] = body_properties(notification.body) if scope == BODY else attribute_properties(notification.attributes)
    found = properties[scope]
    return found is not None and accepts(read_filter_policy(attributes["FilterPolicy"], scope), found)


def _deliver(tx: Tx[Store], topic: Document, subscription: Document, notification: PublishedMessage) -> None:
    """Put a message on the queue of a subscription, or invoke its function.

    If this is not possible, put the message on the dead-letter queue of the subscription, if there is one.
    """
    if subscription["Protocol"] == "lambda" and _invoke(tx, topic, subscription, notification):
        return
    is_raw = subscription["Attributes"].get("RawMessageDelivery", "false").lower() == "true"
    body = notification.body if is_raw else _envelope(tx, topic, subscription, notification)
    attributes = notification.attributes if is_raw else {}
    redrive = subscription["Attributes"].get("RedrivePolicy")
    endpoints = [subscription["Endpoint"]] if subscription["Protocol"] == "sqs" else []
    targets = [*endpoints, *([read_json(redrive)["deadLetterTargetArn"]] if redrive else [])]
    for target in targets:
        queue = queue_with_arn(tx, target)
        if queue is not None and _can_receive(tx, topic, queue, body, attributes):
            sqs.deliver(
                tx,
                queue,
                body,
                sender=SENDER,
                group_id=notification.group_id,
                deduplication_id=notification.deduplication_id,
                attributes=attributes,
            )
            return


def _invoke(tx: Tx[Store], topic: Document, subscription: Document, notification: PublishedMessage) -> bool:
    """Invoke the function of a subscription. Return False if it does not exist, or if its policy does not allow the topic."""
    from corral.services.lambda_.invocations import enqueue  # imported only here, because most topics have no such subscription
    from corral.services.lambda_.names import function_with_arn
    from corral.services.lambda_.policies import service_may_invoke

    function = function_with_arn(tx, subscription["Endpoint"])
    if function is None or not service_may_invoke(function, SENDER, topic["TopicArn"], tx.settings.account):
        return False
    envelope = _members(tx, topic, subscription, notification, notification.function_body)
    record = {
        "EventSource": "aws:sns",
        "EventVersion": "1.0",
        "EventSubscriptionArn": subscription["SubscriptionArn"],
        "Sns": {
            "Subject": None,
            "MessageAttributes": {},
            **{FUNCTION_NAMES.get(name, name): value for name, value in envelope.items()},
        },
    }
    enqueue(tx, function, orjson.dumps({"Records": [record]}))
    return True


def _can_receive(tx: Tx[Store], topic: Document, queue: Queue, body: str, attributes: Attributes) -> bool:
    return (
        sqs.service_may_send(queue, arn_of(tx, queue), SENDER, topic["TopicArn"], tx.settings.account)
        and len(attributes) <= ATTRIBUTES_MAX
        and len(body.encode()) + attributes_size(attributes) <= queue.message_max_bytes
        and bool(body)
        and not NOT_ALLOWED.search(body)
    )


def _envelope(tx: Tx[Store], topic: Document, subscription: Document, notification: PublishedMessage) -> str:
    """Return the body of the SQS message for a subscription without raw delivery: JSON that contains the published message."""
    return orjson.dumps(_members(tx, topic, subscription, notification, notification.body)).decode()


def _members(tx: Tx[Store], topic: Document, subscription: Document, notification: PublishedMessage, body: str) -> dict[str, Any]:
    """Return a message with the members that describe its source. The messages of FIFO topics are not signed, as on AWS."""
    number, subject = notification.sequence_number, notification.subject
    url = subscription.get("ServerUrl") or tx.settings.endpoint_url
    unsubscribe = quote(subscription["SubscriptionArn"], safe=":")
    envelope: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": notification.id,
        **({"SequenceNumber": number} if number is not None else {}),
        "TopicArn": topic["TopicArn"],
        **({"Subject": subject} if subject is not None else {}),
        "Message": body,
        "Timestamp": _timestamp(notification.at_s),
    }
    if not is_fifo(topic):
        signatures = notification.signatures
        if body not in signatures:  # all subscriptions share it, because a signature takes about a millisecond
            signatures[body] = signature_members(tx.settings, envelope, topic["Attributes"].get("SignatureVersion", "1"))
        envelope |= {**signatures[body], "SigningCertURL": url + certificate_path(certificate(tx.settings))}
    envelope["UnsubscribeURL"] = f"{url}/?Action=Unsubscribe&SubscriptionArn={unsubscribe}"
    if notification.attributes:
        envelope["MessageAttributes"] = {
            name: {"Type": attribute["DataType"], "Value": _text(attribute)} for name, attribute in notification.attributes.items()
        }
    return envelope


def _text(attribute: Mapping[str, Any]) -> str:
    if attribute["DataType"].startswith("Binary"):
        return b64encode(attribute["BinaryValue"]).decode()
    return str(attribute["StringValue"])


def _timestamp(at_s: float) -> str:
    ms = round(at_s * 1000)
    return f"{strftime('%Y-%m-%dT%H:%M:%S', gmtime(ms // 1000))}.{ms % 1000:03d}Z"
