"""ARNs of topics and subscriptions, and functions that find and store topics and subscriptions.

The key of a subscription in the store is TOPIC:ID, which is also the end of its ARN. Topic names contain no colon, so all keys with
the prefix `TOPIC:` belong to one topic.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import Candidates, Pagination
from corral.services.sns.errors import InvalidParameterException, invalid, no_such_topic
from corral.store import Store
from corral.store.stored_resources import Document

SERVICE, TOPIC, SUBSCRIPTION = "sns", "topic", "subscription"
FIFO = ".fifo"
PAGES = Pagination(InvalidParameterException, limit=None, token="NextToken", next_token="NextToken", default=100)


def topic_arn(region: str, account: str, name: str) -> str:
    return f"arn:aws:sns:{region}:{account}:{name}"


def arn_parts(arn: str, parameter: str, count: int) -> list[str]:
    """Split an ARN of SNS. Raise the service's error if it does not have `count` parts."""
    parts = arn.split(":")
    if len(parts) < 6:
        raise invalid(parameter, f"An ARN must have at least 6 elements, not {len(parts)}")
    if parts[0] != "arn" or parts[2] != "sns" or len(parts) != count:
        raise invalid(parameter)
    return parts


# Topics


def find_topic(tx: Tx[Store], caller: Caller, arn: str, parameter: str = "TopicArn") -> Document:
    """Return the topic with this ARN, in the caller's region. Raise the service's error if it does not exist."""
    parts = arn_parts(arn, parameter, 6)
    if parts[3] != caller.region:
        raise invalid(parameter)
    found = topic_with_arn(tx, arn)
    if found is None:
        raise no_such_topic()
    return found


def topic_with_arn(tx: Tx[Store], arn: str) -> Document | None:
    """Return the topic with this ARN, in any region, or None if the account does not have it."""
    parts = arn.split(":")
    if len(parts) != 6:
        return None
    found = tx.store.stored.get(SERVICE, TOPIC, parts[3], parts[5])
    return found if found is not None and found["TopicArn"] == arn else None


def region_and_name(arn: str) -> tuple[str, str]:
    """Split an ARN into the region, and the name of the topic or the key of the subscription."""
    parts = arn.split(":", 5)
    return parts[3], parts[5]


def put_topic(tx: Tx[Store], topic: Document, owner: str = "") -> None:
    """Store a new or changed topic. A topic that exists keeps its owner."""
    region, name = region_and_name(topic["TopicArn"])
    tx.store.stored.put(SERVICE, TOPIC, region, name, topic, tx.now_s, owner)


def is_fifo(topic: Document) -> bool:
    return str(topic["TopicArn"]).endswith(FIFO)


def topic_rows(tx: Tx[Store], region: str) -> Candidates[Document]:
    return lambda after, limit: tx.store.stored.listed(SERVICE, TOPIC, region, after, limit)


# Subscriptions


def find_subscription(tx: Tx[Store], caller: Caller, arn: str) -> Document | None:
    """Return the subscription with this ARN, in the caller's region, or None if it does not exist."""
    parts = arn_parts(arn, "SubscriptionArn", 7)
    found = tx.store.stored.get(SERVICE, SUBSCRIPTION, caller.region, f"{parts[5]}:{parts[6]}")
    return found if found is not None and found["SubscriptionArn"] == arn else None


def put_subscription(tx: Tx[Store], subscription: Document, owner: str = "") -> None:
    region, key = region_and_name(subscription["SubscriptionArn"])
    tx.store.stored.put(SERVICE, SUBSCRIPTION, region, key, subscription, tx.now_s, owner)


def drop_subscription(tx: Tx[Store], subscription: Document) -> None:
    region, key = region_and_name(subscription["SubscriptionArn"])
    tx.store.stored.drop(SERVICE, SUBSCRIPTION, region, key)


def subscriptions_of(tx: Tx[Store], topic: Document, after: str = "") -> Iterator[tuple[str, Document]]:
    """Return (key, subscription) for the subscriptions of a topic with keys greater than `after`, sorted by key."""
    region, name = region_and_name(topic["TopicArn"])
    return tx.store.stored.with_prefix(SERVICE, SUBSCRIPTION, region, f"{name}:", after)


def subscription_rows(tx: Tx[Store], region: str) -> Candidates[Document]:
    return lambda after, limit: tx.store.stored.listed(SERVICE, SUBSCRIPTION, region, after, limit)
