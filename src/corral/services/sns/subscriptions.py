"""Operations on subscriptions: subscribe, confirm, list, configure, unsubscribe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.policies.filter_policy import ATTRIBUTES, SCOPES, FilterPolicyError, read_filter_policy
from corral.model.json_documents import read_json
from corral.services.sns import errors
from corral.services.sns.names import (
    PAGES,
    drop_subscription,
    find_subscription,
    find_topic,
    is_fifo,
    put_subscription,
    subscription_rows,
    subscriptions_of,
)
from corral.services.sns.signatures import create_key
from corral.services.sns.topics import (
    LARGE_MESSAGE_PROTOCOLS,
    MESSAGE_DEFAULT_BYTES,
    SUBSCRIPTIONS_OF_LARGE_MESSAGES_MAX,
    message_max_bytes,
)
from corral.services.sqs.queue_names import QUEUE_ARN, queue_with_arn
from corral.store import Store
from corral.store.stored_resources import Document

# The most subscriptions of a topic. AWS allows 100 for a FIFO topic, and millions for another topic. Corral delivers a message to
# all subscriptions in one transaction, so it has a limit of its own.
FIFO_SUBSCRIPTIONS_MAX, SUBSCRIPTIONS_MAX = 100, 1_000
FILTER_POLICIES_MAX = 200  # the maximum number of subscriptions of one topic that have a filter policy
# AWS confirms a subscription with one of these protocols at once, if the endpoint belongs to the caller's account. Other
# subscriptions wait for a confirmation.
CONFIRMED_AT_ONCE = frozenset({"application", "firehose", "lambda", "sms", "sqs"})
SIGNED_PROTOCOLS = frozenset({"lambda", "sqs"})  # Corral sends messages to their endpoints
RAW_PROTOCOLS = frozenset({"firehose", "http", "https", "sqs"})
ENDPOINTS = {  # protocol → the form of its endpoints, and AWS's error text
    "application": (re.compile(r"arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:endpoint/.+"), "Application endpoint arn invalid"),
    "email": (re.compile(r"[^@\s]+@[^@\s]+"), "Email address"),
    "email-json": (re.compile(r"[^@\s]+@[^@\s]+"), "Email address"),
    "firehose": (re.compile(r"arn:[a-z-]+:firehose:[a-z0-9-]+:\d{12}:deliverystream/.+"), "Firehose endpoint ARN"),
    "http": (re.compile(r"http://\S+"), "Endpoint must match the specified protocol"),
    "https": (re.compile(r"https://\S+"), "Endpoint must match the specified protocol"),
    "lambda": (re.compile(r"arn:[a-z-]+:lambda:[a-z0-9-]+:\d{12}:function:.+"), "Lambda endpoint ARN"),
    "sms": (re.compile(r"\+?[0-9][0-9 ().-]{3,}"), "Invalid SMS endpoint"),
    "sqs": (QUEUE_ARN, "SQS endpoint ARN"),
}
SETTABLE = frozenset(
    {"DeliveryPolicy", "FilterPolicy", "FilterPolicyScope", "RawMessageDelivery", "RedrivePolicy", "SubscriptionRoleArn"}
)


def subscribe(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Create a subscription. If the endpoint is already subscribed with the same attributes, return its subscription."""
    topic, protocol, endpoint = find_topic(tx, caller, params["TopicArn"]), params["Protocol"], params.get("Endpoint", "")
    given = _without_empty(params.get("Attributes", {}))
    _check_endpoint(tx, topic, protocol, endpoint)
    _check_attributes(tx, topic, protocol, given)
    if protocol == "firehose" and "SubscriptionRoleArn" not in given:
        raise errors.invalid("Attributes", "SubscriptionRoleArn is required for a subscription with the protocol firehose")
    others = [subscription for _, subscription in subscriptions_of(tx, topic)]
    for other in others:
        if (other["Protocol"], other["Endpoint"]) == (protocol, endpoint):
            if any(other["Attributes"].get(name, _default(name)) != value for name, value in given.items()):
                raise errors.invalid("Attributes", "Subscription already exists with different attributes")
            return _subscribed(other, params)
    most = FIFO_SUBSCRIPTIONS_MAX if is_fifo(topic) else SUBSCRIPTIONS_MAX
    if len(others) >= most:
        raise errors.SubscriptionLimitExceededException(
            f"The topic {topic['TopicArn']} already has {most} subscriptions: delete some of them, or use several topics."
        )
    if "FilterPolicy" in given:
        _check_filter_count(others)
    if message_max_bytes(topic) > MESSAGE_DEFAULT_BYTES and (
        len(others) >= SUBSCRIPTIONS_OF_LARGE_MESSAGES_MAX or protocol not in LARGE_MESSAGE_PROTOCOLS
    ):
        raise errors.invalid("Protocol", f"MaximumMessageSize of the topic is more than {MESSAGE_DEFAULT_BYTES}")
    if protocol in SIGNED_PROTOCOLS and not is_fifo(topic):
        create_key(tx)
    account = endpoint.split(":")[4] if endpoint.startswith("arn:") else caller.account
    subscription: Document = {
        "SubscriptionArn": f"{topic['TopicArn']}:{tx.ids.uuid()}",
        "TopicArn": topic["TopicArn"],
        "Protocol": protocol,
        "Endpoint": endpoint,
        "Owner": caller.account,
        "Principal": caller.principal.arn,
        "Pending": protocol not in CONFIRMED_AT_ONCE or account != caller.account,
        "Attributes": given,
        # The messages contain URLs of this server. A subscriber on another machine reaches it by TLS only.
        **({"ServerUrl": caller.endpoint_url} if caller.secure and caller.endpoint_url else {}),
    }
    put_subscription(tx, subscription, caller.owner)
    return _subscribed(subscription, params)


def _subscribed(subscription: Document, params: dict[str, Any]) -> dict[str, Any]:
    shown = params.get("ReturnSubscriptionArn") or not subscription["Pending"]
    return {"SubscriptionArn": subscription["SubscriptionArn"] if shown else "pending confirmation"}


def confirm_subscription(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Refuse every token. Corral sends no confirmation messages, so no endpoint has a token."""
    find_topic(tx, caller, params["TopicArn"])
    raise errors.invalid("Token", "Corral sends no messages to HTTP and email endpoints, so it has issued no token")


def unsubscribe(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Delete a subscription. If it does not exist, do nothing, as on AWS."""
    subscription = find_subscription(tx, caller, params["SubscriptionArn"])
    if subscription is not None:
        drop_subscription(tx, subscription)
    return {}


def list_subscriptions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found, more = PAGES.page(params, subscription_rows(tx, caller.region))
    return {"Subscriptions": [_listed(each) for each in found], **more}


def list_subscriptions_by_topic(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    topic = find_topic(tx, caller, params["TopicArn"])
    found, more = PAGES.page(params, lambda after, limit: list(islice(subscriptions_of(tx, topic, after), limit)))
    return {"Subscriptions": [_listed(each) for each in found], **more}


def _listed(subscription: Document) -> dict[str, Any]:
    shown = {member: subscription[member] for member in ("SubscriptionArn", "Owner", "Protocol", "Endpoint", "TopicArn")}
    return shown | {"SubscriptionArn": "PendingConfirmation"} if subscription["Pending"] else shown


def get_subscription_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    subscription = _found(tx, caller, params)
    attributes = {"RawMessageDelivery": "false", **subscription["Attributes"]}
    if "FilterPolicy" in attributes:
        attributes.setdefault("FilterPolicyScope", ATTRIBUTES)
    return {
        "Attributes": {
            **attributes,
            **{member: subscription[member] for member in ("SubscriptionArn", "TopicArn", "Protocol", "Endpoint", "Owner")},
            "SubscriptionPrincipal": subscription["Principal"],
            "PendingConfirmation": "true" if subscription["Pending"] else "false",
            "ConfirmationWasAuthenticated": "false" if subscription["Pending"] else "true",
        }
    }


def set_subscription_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    subscription, name = _found(tx, caller, params), params["AttributeName"]
    if name not in SETTABLE:
        raise errors.invalid("AttributeName")
    topic = find_topic(tx, caller, subscription["TopicArn"])
    attributes = _without_empty({**subscription["Attributes"], name: params.get("AttributeValue", "")})
    _check_attributes(tx, topic, subscription["Protocol"], attributes)
    if name in attributes and name == "FilterPolicy" and name not in subscription["Attributes"]:
        _check_filter_count([other for _, other in subscriptions_of(tx, topic)])
    put_subscription(tx, {**subscription, "Attributes": attributes})
    return {}


def _found(tx: Tx[Store], caller: Caller, params: dict[str, Any]) -> Document:
    subscription = find_subscription(tx, caller, params["SubscriptionArn"])
    if subscription is None:
        raise errors.no_such_subscription()
    return subscription


# Checks


def _check_endpoint(tx: Tx[Store], topic: Document, protocol: str, endpoint: str) -> None:
    if is_fifo(topic) and protocol != "sqs":
        raise errors.invalid(f"Invalid protocol type: {protocol}", "Only SQS queues can be subscribed to FIFO topics")
    form, text = ENDPOINTS[protocol]
    if not form.fullmatch(endpoint):
        raise errors.invalid(text)
    if protocol == "sqs" and endpoint.endswith(".fifo") and not is_fifo(topic):
        raise errors.invalid("Invalid parameter: Endpoint", "FIFO SQS Queues can not be subscribed to standard SNS topics")


def _check_attributes(tx: Tx[Store], topic: Document, protocol: str, given: Mapping[str, str]) -> None:
    for name in given:
        if name not in SETTABLE:
            raise errors.invalid("Attributes", f"Unknown attribute {name}")
    if (raw := given.get("RawMessageDelivery", "false").lower()) not in ("true", "false"):
        raise errors.invalid("Attributes", f"RawMessageDelivery: Invalid value [{raw}]. Must be true or false.")
    if raw == "true" and protocol not in RAW_PROTOCOLS:
        raise errors.invalid("Attributes", f"Delivery protocol [{protocol}] does not support raw message delivery.")
    scope = given.get("FilterPolicyScope", ATTRIBUTES)
    if scope not in SCOPES:
        raise errors.invalid("Attributes", f"FilterPolicyScope: Invalid value [{scope}]. Please use either {' or '.join(SCOPES)}")
    if "FilterPolicy" in given:
        try:
            read_filter_policy(given["FilterPolicy"], scope)
        except FilterPolicyError as error:
            raise errors.InvalidParameterException(f"Invalid parameter: FilterPolicy: {error}") from None
    if "DeliveryPolicy" in given and _json_object(given["DeliveryPolicy"]) is None:
        raise errors.invalid("DeliveryPolicy", "It must be a JSON object")
    if "RedrivePolicy" in given:
        _check_redrive(tx, topic, given["RedrivePolicy"])


def _check_redrive(tx: Tx[Store], topic: Document, text: str) -> None:
    policy = _json_object(text)
    if policy is None:
        raise errors.InvalidParameterException("Invalid parameter: RedrivePolicy: failed to parse JSON.")
    arn = policy.get("deadLetterTargetArn")
    if not isinstance(arn, str) or not QUEUE_ARN.fullmatch(arn):
        raise errors.InvalidParameterException("Invalid parameter: RedrivePolicy: deadLetterTargetArn is an invalid arn")
    queue = queue_with_arn(tx, arn)
    if queue is None or queue.region != topic["TopicArn"].split(":")[3]:
        raise errors.InvalidParameterException(
            "Invalid parameter: RedrivePolicy: the queue does not exist in the region of the topic"
        )
    if queue.is_fifo and not is_fifo(topic):
        raise errors.InvalidParameterException(
            "Invalid parameter: RedrivePolicy: must use a standard queue as DLQ for a standard topic"
        )


def _check_filter_count(others: list[Document]) -> None:
    if sum("FilterPolicy" in other["Attributes"] for other in others) >= FILTER_POLICIES_MAX:
        raise errors.FilterPolicyLimitExceededException(
            f"The topic already has {FILTER_POLICIES_MAX} subscriptions with a filter policy"
        )


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = read_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _default(name: str) -> str:
    return {"RawMessageDelivery": "false", "FilterPolicyScope": ATTRIBUTES}.get(name, "")


def _without_empty(attributes: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes without empty values. An empty filter policy accepts every message, so it is removed, too."""
    kept = {name: value for name, value in attributes.items() if value}
    if _json_object(kept.get("FilterPolicy", "null")) == {}:
        del kept["FilterPolicy"]
    return kept
