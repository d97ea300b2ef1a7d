"""Operations on topics: create, list, configure, delete, tags and permissions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.policies.policy import PolicyError, read_policy
from corral.model.json_documents import read_json
from corral.model.numbers import whole_number
from corral.operations.tags import TagRules
from corral.services.sns import errors
from corral.services.sns.names import (
    FIFO,
    PAGES,
    SERVICE,
    TOPIC,
    arn_parts,
    drop_subscription,
    find_topic,
    is_fifo,
    put_topic,
    region_and_name,
    subscriptions_of,
    topic_arn,
    topic_rows,
    topic_with_arn,
)
from corral.store import Store
from corral.store.stored_resources import Document

NAME = re.compile(r"[A-Za-z0-9_-]+")
NAME_MAX_CHARACTERS = 256
DISPLAY_NAME_MAX_CHARACTERS = 100
MESSAGE_MIN_BYTES, MESSAGE_DEFAULT_BYTES, MESSAGE_MAX_BYTES = 1024, 262_144, 1_048_576
SUBSCRIPTIONS_OF_LARGE_MESSAGES_MAX = 100  # the maximum for a topic whose MaximumMessageSize is above the default
LARGE_MESSAGE_PROTOCOLS = frozenset({"sqs", "firehose", "lambda"})

CHOICES = {
    "ContentBasedDeduplication": ("true", "false"),
    "FifoThroughputScope": ("Topic", "MessageGroup"),
    "FifoTopic": ("true", "false"),
    "SignatureVersion": ("1", "2"),
    "TracingConfig": ("PassThrough", "Active"),
}
FIFO_ONLY = frozenset({"ArchivePolicy", "ContentBasedDeduplication", "FifoThroughputScope"})
SAMPLE_RATE = "SuccessFeedbackSampleRate"
FEEDBACK = frozenset(
    f"{kind}{name}"
    for kind in ("Application", "Firehose", "HTTP", "Lambda", "SQS")
    for name in ("FailureFeedbackRoleArn", "SuccessFeedbackRoleArn", SAMPLE_RATE)
)
DOCUMENTS = frozenset({"ArchivePolicy", "DeliveryPolicy"})  # JSON objects that are stored but have no effect
SETTABLE = frozenset({*CHOICES, *DOCUMENTS, *FEEDBACK, "DisplayName", "KmsMasterKeyId", "MaximumMessageSize", "Policy"})
FIFO_DEFAULTS = {"FifoTopic": "true", "ContentBasedDeduplication": "false", "FifoThroughputScope": "Topic"}
OWNER_ACTIONS = (
    "GetTopicAttributes", "SetTopicAttributes", "AddPermission", "RemovePermission", "DeleteTopic", "Subscribe",
    "ListSubscriptionsByTopic", "Publish",
)  # fmt: skip
HTTP_DELIVERY = {  # AWS's defaults for HTTP endpoints
    "defaultHealthyRetryPolicy": {
        "minDelayTarget": 20, "maxDelayTarget": 20, "numRetries": 3, "numMaxDelayRetries": 0, "numNoDelayRetries": 0,
        "numMinDelayRetries": 0, "backoffFunction": "linear",
    },
    "disableSubscriptionOverrides": False,
    "defaultRequestPolicy": {"headerContentType": "text/plain; charset=UTF-8"},
}  # fmt: skip
TAG_RULES = TagRules(
    errors.InvalidParameterException,
    errors={"count": errors.TagLimitExceededException},
    texts={
        "count": "Could not complete request: tag quota of per resource exceeded",  # AWS's own words
        "duplicate": "Invalid parameter: Duplicated keys are not allowed.",
    },
    any_character=True,
)


def create_topic(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Create a topic, or return the existing topic with this name. Raise an error if its attributes or tags are different."""
    name, given = params["Name"], dict(params.get("Attributes", {}))
    tags = TAG_RULES.read(params.get("Tags", []))
    fifo = given.get("FifoTopic") == "true"
    if given.get("FifoTopic") == "false":
        del given["FifoTopic"]
    _check_name(name, fifo=fifo)
    if "DataProtectionPolicy" in params:
        raise errors.invalid("DataProtectionPolicy", "Corral does not serve data protection policies")
    check_attributes(given, "Attributes", fifo=fifo)
    arn = topic_arn(caller.region, caller.account, name)
    existing = topic_with_arn(tx, arn)
    if existing is not None:
        if any(existing["Attributes"].get(attribute, "") != value for attribute, value in given.items()):
            raise errors.invalid("Attributes", "Topic already exists with different attributes")
        if "Tags" in params and tags != existing["Tags"]:
            raise errors.invalid("Tags", "Topic already exists with different tags")
        return {"TopicArn": arn}
    attributes = {"DisplayName": "", "Policy": _default_policy(arn, caller.account), **(FIFO_DEFAULTS if fifo else {}), **given}
    # The number of the topic in the table of deduplication ids. It is negative, because queues have positive numbers in this table.
    number = -tx.store.queues.new_ids(tx.now_s, 1)[0]
    put_topic(tx, {"TopicArn": arn, "Number": number, "Attributes": _without_empty(attributes), "Tags": tags}, caller.owner)
    return {"TopicArn": arn}


def delete_topic(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Delete a topic and its subscriptions. If it does not exist, do nothing, as on AWS."""
    arn_parts(params["TopicArn"], "TopicArn", 6)
    topic = topic_with_arn(tx, params["TopicArn"])
    if topic is not None:
        for _, subscription in list(subscriptions_of(tx, topic)):
            drop_subscription(tx, subscription)
        tx.store.stored.drop(SERVICE, TOPIC, *region_and_name(topic["TopicArn"]))
    return {}


def list_topics(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    found, more = PAGES.page(params, topic_rows(tx, caller.region))
    return {"Topics": [{"TopicArn": topic["TopicArn"]} for topic in found], **more}


def get_topic_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    topic = find_topic(tx, caller, params["TopicArn"])
    attributes = topic["Attributes"]
    pending = [subscription["Pending"] for _, subscription in subscriptions_of(tx, topic)]
    delivery = read_json(attributes.get("DeliveryPolicy", "{}")).get("http", {})
    return {
        "Attributes": {
            **attributes,
            "TopicArn": topic["TopicArn"],
            "Owner": caller.account,
            "SubscriptionsConfirmed": str(pending.count(False)),
            "SubscriptionsPending": str(pending.count(True)),
            "SubscriptionsDeleted": "0",
            "EffectiveDeliveryPolicy": _dumps({"http": {**HTTP_DELIVERY, **delivery}}),
        }
    }


def set_topic_attributes(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    topic = find_topic(tx, caller, params["TopicArn"])
    name, value = params["AttributeName"], params.get("AttributeValue", "")
    if name not in SETTABLE or name == "FifoTopic":
        raise errors.invalid("AttributeName")
    if name == "Policy" and not value:
        value = _default_policy(topic["TopicArn"], caller.account)
    check_attributes({name: value}, "AttributeValue", fifo=is_fifo(topic))
    if name == "MaximumMessageSize" and value and int(value) > MESSAGE_DEFAULT_BYTES:
        _check_large_messages(tx, topic)
    put_topic(tx, {**topic, "Attributes": _without_empty({**topic["Attributes"], name: value})})
    return {}


def message_max_bytes(topic: Document) -> int:
    return int(topic["Attributes"].get("MaximumMessageSize", MESSAGE_DEFAULT_BYTES))


def _check_large_messages(tx: Tx[Store], topic: Document) -> None:
    protocols = [subscription["Protocol"] for _, subscription in subscriptions_of(tx, topic)]
    if len(protocols) > SUBSCRIPTIONS_OF_LARGE_MESSAGES_MAX or not LARGE_MESSAGE_PROTOCOLS.issuperset(protocols):
        raise errors.invalid(
            "MaximumMessageSize",
            f"A topic with messages of more than {MESSAGE_DEFAULT_BYTES} bytes has at most {SUBSCRIPTIONS_OF_LARGE_MESSAGES_MAX} "
            f"subscriptions, and their protocols are {', '.join(sorted(LARGE_MESSAGE_PROTOCOLS))} only",
        )


def _check_name(name: str, *, fifo: bool) -> None:
    if not (1 <= len(name) <= NAME_MAX_CHARACTERS and NAME.fullmatch(name.removesuffix(FIFO) if fifo else name)):
        raise errors.invalid("Topic Name")
    if fifo and not name.endswith(FIFO):
        raise errors.invalid("Topic Name", f"The name of a FIFO topic must end with {FIFO}")


def check_attributes(given: Mapping[str, str], parameter: str, *, fifo: bool) -> None:
    """Raise the service's error for an attribute that does not exist, or whose value is not valid.

    Attributes with a list of allowed values (CHOICES) must not be empty. Other attributes can be empty.
    """
    for name, value in given.items():
        if name not in SETTABLE:
            raise errors.invalid(parameter, f"Unknown attribute {name}")
        if name in FIFO_ONLY and not fifo:
            raise errors.invalid(parameter, f"{name} can only be set for FIFO topics")
        if name in CHOICES and value not in CHOICES[name]:
            raise errors.invalid(parameter, f"{name} must be one of {', '.join(CHOICES[name])}")
        if not value:
            continue
        if name in DOCUMENTS:
            _check_document(name, value)
        elif name == "Policy":
            _check_policy(value)
        elif name == "DisplayName" and len(value) > DISPLAY_NAME_MAX_CHARACTERS:
            raise errors.invalid("DisplayName", f"It must have at most {DISPLAY_NAME_MAX_CHARACTERS} characters")
        elif name == "MaximumMessageSize":
            number = whole_number(value, MESSAGE_MAX_BYTES)
            if number is None or number < MESSAGE_MIN_BYTES:
                raise errors.invalid("MaximumMessageSize", f"It must be from {MESSAGE_MIN_BYTES} to {MESSAGE_MAX_BYTES}")
        elif name.endswith(SAMPLE_RATE) and whole_number(value, 100) is None:
            raise errors.invalid(name, "It must be from 0 to 100")


def _check_document(name: str, text: str) -> None:
    try:
        document = read_json(text)
    except ValueError:
        document = None
    if not isinstance(document, dict) or not isinstance(document.get("http", {}), dict):
        raise errors.invalid(name, "It must be a JSON object")


def _check_policy(text: str) -> None:
    try:
        read_policy(text)
    except PolicyError as error:
        raise errors.InvalidParameterException(f"Invalid parameter: Policy Error: {error}") from None


def _default_policy(arn: str, account: str) -> str:
    """Return the policy that AWS gives a new topic.

    It allows services that act for the topic's owner, such as CloudWatch alarms, to publish.
    """
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": [f"SNS:{action}" for action in OWNER_ACTIONS],
        "Resource": arn,
        "Condition": {"StringEquals": {"AWS:SourceOwner": account}},
    }
    return _dumps({"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]})


def _without_empty(attributes: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in attributes.items() if value or name == "DisplayName"}


def _dumps(document: Any) -> str:
    return orjson.dumps(document).decode()


# Tags


def tag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    topic = _tagged(tx, caller, params)
    put_topic(tx, {**topic, "Tags": TAG_RULES.merge(topic["Tags"], TAG_RULES.read(params["Tags"]))})
    return {}


def untag_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    topic = _tagged(tx, caller, params)
    put_topic(tx, {**topic, "Tags": TAG_RULES.remove(topic["Tags"], params["TagKeys"])})
    return {}


def list_tags_for_resource(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"Tags": TAG_RULES.to_list(_tagged(tx, caller, params)["Tags"])}


def _tagged(tx: Tx[Store], caller: Caller, params: dict[str, Any]) -> Document:
    try:
        return find_topic(tx, caller, params["ResourceArn"], "ResourceArn")
    except errors.NotFoundException:
        raise errors.ResourceNotFoundException("Resource does not exist") from None


# Permissions. A permission is a statement in the topic's policy. The label of the permission is the Sid of the statement.


def add_permission(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    topic, label = find_topic(tx, caller, params["TopicArn"]), params["Label"]
    policy = read_json(topic["Attributes"]["Policy"])
    statements = _statements(policy)
    if any(statement.get("Sid") == label for statement in statements):
        raise errors.invalid("Statement already exists")
    principals = [f"arn:aws:iam::{account}:root" for account in params["AWSAccountId"]]
    actions = [f"SNS:{action}" for action in params["ActionName"]]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principals[0] if len(principals) == 1 else principals},
        "Action": actions[0] if len(actions) == 1 else actions,
        "Resource": topic["TopicArn"],
    }
    _set_policy(tx, topic, {**policy, "Statement": [*statements, statement]})
    return {}


def remove_permission(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    topic, label = find_topic(tx, caller, params["TopicArn"]), params["Label"]
    policy = read_json(topic["Attributes"]["Policy"])
    statements = _statements(policy)
    left = [statement for statement in statements if statement.get("Sid") != label]
    if len(left) == len(statements):
        raise errors.NotFoundException(f"The policy of the topic has no statement with the label {label}")
    _set_policy(tx, topic, {**policy, "Statement": left})
    return {}


def _statements(policy: Document) -> list[Document]:
    statements = policy["Statement"]
    return statements if isinstance(statements, list) else [statements]


def _set_policy(tx: Tx[Store], topic: Document, policy: Document) -> None:
    put_topic(tx, {**topic, "Attributes": {**topic["Attributes"], "Policy": _dumps(policy)}})
