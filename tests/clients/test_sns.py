"""SNS: topics, subscriptions and delivery to queues, through boto3."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable
from itertools import count
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA1, SHA256
from cryptography.x509 import load_pem_x509_certificate

from harness import Corral

ACCOUNT = "123456789012"
NUMBERS = count()


def policy_for(topic: str, arn: str, **members: Any) -> str:
    """A queue policy as in SNS's documentation."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": topic}},
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [{**statement, **members}]})


class Topic:
    """A topic, and the queues that its tests subscribe."""

    def __init__(self, corral: Corral, **params: Any) -> None:
        self.sns, self.sqs = corral.client("sns"), corral.client("sqs")
        self.suffix = ".fifo" if params.get("Attributes", {}).get("FifoTopic") == "true" else ""
        self.name = f"topic-{next(NUMBERS)}"
        self.arn = self.sns.create_topic(Name=self.name + self.suffix, **params)["TopicArn"]

    def queue(self, *, fifo: bool = False, allowed: bool = True, **attributes: str) -> Queue:
        return Queue(self, fifo=fifo, allowed=allowed, attributes=attributes)

    def subscribe(self, queue: Queue, **attributes: str) -> str:
        subscribed = self.sns.subscribe(TopicArn=self.arn, Protocol="sqs", Endpoint=queue.arn, Attributes=attributes)
        return str(subscribed["SubscriptionArn"])

    def publish(self, message: str, **params: Any) -> dict[str, Any]:
        response: dict[str, Any] = self.sns.publish(TopicArn=self.arn, Message=message, **params)
        return response

    def attributes(self, subscription: str) -> dict[str, str]:
        found: dict[str, str] = self.sns.get_subscription_attributes(SubscriptionArn=subscription)["Attributes"]
        return found


class Queue:
    def __init__(self, topic: Topic, *, fifo: bool, allowed: bool, attributes: dict[str, str]) -> None:
        self.sqs, name = topic.sqs, f"queue-{next(NUMBERS)}{'.fifo' if fifo else ''}"
        self.arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{name}"
        if allowed:
            attributes = {"Policy": policy_for(topic.arn, self.arn), **attributes}
        if fifo:
            attributes = {"FifoQueue": "true", **attributes}
        self.url = self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]

    def messages(self) -> list[dict[str, Any]]:
        """Receive and delete all messages. A message is there when Publish has returned."""
        found: list[dict[str, Any]] = []
        while batch := self.sqs.receive_message(
            QueueUrl=self.url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
        ).get("Messages", []):
            found += batch
            entries = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(batch)]
            self.sqs.delete_message_batch(QueueUrl=self.url, Entries=entries)
        return found

    def notifications(self) -> list[dict[str, Any]]:
        return [json.loads(message["Body"]) for message in self.messages()]

    def texts(self) -> list[str]:
        return [each["Message"] for each in self.notifications()]


@pytest.fixture
def topic(corral: Corral) -> Topic:
    return Topic(corral)


@pytest.fixture
def fifo(corral: Corral) -> Topic:
    return Topic(corral, Attributes={"FifoTopic": "true"})


def refused(call: Callable[..., Any], code: str, text: str, **params: Any) -> None:
    with pytest.raises(ClientError) as raised:
        call(**params)
    assert raised.value.response["Error"]["Code"] == code
    assert text in raised.value.response["Error"]["Message"]


# Topics


def test_a_topic_is_created_once(topic: Topic) -> None:
    assert topic.arn == f"arn:aws:sns:us-east-1:{ACCOUNT}:{topic.name}"
    assert topic.sns.create_topic(Name=topic.name)["TopicArn"] == topic.arn
    assert topic.arn in [each["TopicArn"] for each in topic.sns.list_topics()["Topics"]]
    refused(
        topic.sns.create_topic, "InvalidParameter", "different attributes", Name=topic.name, Attributes={"DisplayName": "other"}
    )
    refused(topic.sns.create_topic, "InvalidParameter", "different tags", Name=topic.name, Tags=[{"Key": "a", "Value": "b"}])
    topic.sns.delete_topic(TopicArn=topic.arn)
    topic.sns.delete_topic(TopicArn=topic.arn)
    with pytest.raises(topic.sns.exceptions.NotFoundException, match="Topic does not exist"):
        topic.sns.get_topic_attributes(TopicArn=topic.arn)


def test_attributes_of_a_topic(topic: Topic) -> None:
    found = topic.sns.get_topic_attributes(TopicArn=topic.arn)["Attributes"]
    assert (found["TopicArn"], found["Owner"], found["DisplayName"]) == (topic.arn, ACCOUNT, "")
    assert (found["SubscriptionsConfirmed"], found["SubscriptionsPending"], found["SubscriptionsDeleted"]) == ("0", "0", "0")
    assert json.loads(found["Policy"])["Statement"][0]["Condition"] == {"StringEquals": {"AWS:SourceOwner": ACCOUNT}}
    assert json.loads(found["EffectiveDeliveryPolicy"])["http"]["defaultHealthyRetryPolicy"]["numRetries"] == 3
    topic.sns.set_topic_attributes(TopicArn=topic.arn, AttributeName="DisplayName", AttributeValue="Jobs")
    topic.sns.set_topic_attributes(TopicArn=topic.arn, AttributeName="SignatureVersion", AttributeValue="2")
    topic.subscribe(topic.queue())
    topic.sns.subscribe(TopicArn=topic.arn, Protocol="email", Endpoint="a@example.com")
    found = topic.sns.get_topic_attributes(TopicArn=topic.arn)["Attributes"]
    assert (found["DisplayName"], found["SignatureVersion"]) == ("Jobs", "2")
    assert (found["SubscriptionsConfirmed"], found["SubscriptionsPending"]) == ("1", "1")


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("Colour", "red", "AttributeName"),
        ("FifoTopic", "true", "AttributeName"),
        ("Policy", "{}", "Policy Error: Missing required field Statement"),
        ("TracingConfig", "Passive", "TracingConfig must be one of"),
        ("DisplayName", "x" * 101, "DisplayName"),
        ("MaximumMessageSize", "1023", "from 1024 to 1048576"),
        ("DeliveryPolicy", "[]", "JSON object"),
        ("SQSSuccessFeedbackSampleRate", "101", "from 0 to 100"),
        ("ContentBasedDeduplication", "true", "FIFO topics"),
    ],
)
def test_invalid_attributes_of_a_topic(topic: Topic, name: str, value: str, text: str) -> None:
    change = topic.sns.set_topic_attributes
    refused(change, "InvalidParameter", text, TopicArn=topic.arn, AttributeName=name, AttributeValue=value)


@pytest.mark.parametrize("name", ["", "a b", "a" * 257, "a.fifo", "é"])
def test_invalid_names_of_topics(topic: Topic, name: str) -> None:
    refused(topic.sns.create_topic, "InvalidParameter", "Topic Name", Name=name)


def test_a_fifo_topic_has_a_name_with_the_suffix(topic: Topic) -> None:
    refused(topic.sns.create_topic, "InvalidParameter", "must end with .fifo", Name="plain", Attributes={"FifoTopic": "true"})


def test_tags(corral: Corral) -> None:
    topic = Topic(corral, Tags=[{"Key": "team", "Value": "vision"}])
    topic.sns.tag_resource(ResourceArn=topic.arn, Tags=[{"Key": "team", "Value": "audio"}, {"Key": "a", "Value": ""}])
    topic.sns.untag_resource(ResourceArn=topic.arn, TagKeys=["a", "b"])
    assert topic.sns.list_tags_for_resource(ResourceArn=topic.arn)["Tags"] == [{"Key": "team", "Value": "audio"}]
    many = [{"Key": str(at), "Value": ""} for at in range(50)]
    refused(topic.sns.tag_resource, "TagLimitExceeded", "quota", ResourceArn=topic.arn, Tags=many)
    refused(topic.sns.list_tags_for_resource, "ResourceNotFound", "does not exist", ResourceArn=topic.arn + "x")


def test_permissions_are_statements_of_the_policy(topic: Topic) -> None:
    given = {"TopicArn": topic.arn, "Label": "one", "AWSAccountId": ["111122223333"], "ActionName": ["Publish", "Subscribe"]}
    topic.sns.add_permission(**given)
    refused(topic.sns.add_permission, "InvalidParameter", "Statement already exists", **given)
    refused(topic.sns.add_permission, "InvalidParameter", "out of service scope", **{**given, "ActionName": ["SendMessage"]})
    statements = json.loads(topic.sns.get_topic_attributes(TopicArn=topic.arn)["Attributes"]["Policy"])["Statement"]
    assert statements[1] == {
        "Sid": "one",
        "Effect": "Allow",
        "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
        "Action": ["SNS:Publish", "SNS:Subscribe"],
        "Resource": topic.arn,
    }
    topic.sns.remove_permission(TopicArn=topic.arn, Label="one")
    refused(topic.sns.remove_permission, "NotFound", "no statement with the label one", TopicArn=topic.arn, Label="one")


def test_lists_have_pages_of_a_hundred(corral: Corral, topic: Topic) -> None:
    arns = {topic.sns.create_topic(Name=f"{topic.name}-{at}")["TopicArn"] for at in range(101)}
    pages = list(topic.sns.get_paginator("list_topics").paginate())
    assert len(pages) >= 2 and all(len(page["Topics"]) <= 100 for page in pages)
    assert arns <= {each["TopicArn"] for page in pages for each in page["Topics"]}
    for at in range(101):
        topic.sns.subscribe(TopicArn=topic.arn, Protocol="sqs", Endpoint=f"arn:aws:sqs:us-east-1:{ACCOUNT}:none-{at}")
    listed = topic.sns.get_paginator("list_subscriptions_by_topic").paginate(TopicArn=topic.arn).build_full_result()
    assert len({each["Endpoint"] for each in listed["Subscriptions"]}) == 101
    everywhere = topic.sns.get_paginator("list_subscriptions").paginate().build_full_result()["Subscriptions"]
    assert {each["SubscriptionArn"] for each in listed["Subscriptions"]} <= {each["SubscriptionArn"] for each in everywhere}
    refused(topic.sns.list_topics, "InvalidParameter", "NextToken is not valid", NextToken="!")
    topic.sns.delete_topic(TopicArn=topic.arn)
    left = topic.sns.get_paginator("list_subscriptions").paginate().build_full_result()["Subscriptions"]
    assert topic.arn not in {each["TopicArn"] for each in left}, "the topic's subscriptions are deleted with it"


def test_topics_belong_to_a_region(corral: Corral, topic: Topic) -> None:
    elsewhere = corral.client("sns", region="eu-west-1")
    assert topic.arn not in [each["TopicArn"] for each in elsewhere.list_topics()["Topics"]]
    refused(elsewhere.get_topic_attributes, "InvalidParameter", "TopicArn", TopicArn=topic.arn)
    refused(topic.sns.get_topic_attributes, "InvalidParameter", "at least 6 elements, not 1", TopicArn="topic")


# Subscriptions


def test_a_queue_is_subscribed_at_once(topic: Topic) -> None:
    queue = topic.queue()
    arn = topic.subscribe(queue)
    assert topic.subscribe(queue) == arn
    refused(
        topic.sns.subscribe, "InvalidParameter", "different attributes",
        TopicArn=topic.arn, Protocol="sqs", Endpoint=queue.arn, Attributes={"RawMessageDelivery": "true"},
    )  # fmt: skip
    assert topic.sns.list_subscriptions_by_topic(TopicArn=topic.arn)["Subscriptions"] == [
        {"SubscriptionArn": arn, "Owner": ACCOUNT, "Protocol": "sqs", "Endpoint": queue.arn, "TopicArn": topic.arn}
    ]
    found = topic.attributes(arn)
    assert (found["PendingConfirmation"], found["ConfirmationWasAuthenticated"], found["RawMessageDelivery"]) == (
        "false", "true", "false",
    )  # fmt: skip
    topic.sns.unsubscribe(SubscriptionArn=arn)
    topic.sns.unsubscribe(SubscriptionArn=arn)
    topic.publish("without a subscription")
    assert queue.messages() == []
    with pytest.raises(topic.sns.exceptions.NotFoundException, match="Subscription does not exist"):
        topic.attributes(arn)


@pytest.mark.parametrize(
    ("protocol", "endpoint", "is_pending"),
    [
        ("http", "http://example.com/hook", True),
        ("https", "https://example.com/hook", True),
        ("email", "a@example.com", True),
        ("email-json", "a@example.com", True),
        ("sms", "+15551234567", False),
        ("lambda", f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:f", False),
        ("application", f"arn:aws:sns:us-east-1:{ACCOUNT}:endpoint/GCM/app/1", False),
        ("firehose", f"arn:aws:firehose:us-east-1:{ACCOUNT}:deliverystream/s", False),
        ("sqs", "arn:aws:sqs:us-east-1:111122223333:theirs", True),
    ],
)
def test_other_endpoints_are_stored(topic: Topic, protocol: str, endpoint: str, is_pending: bool) -> None:
    role = {"SubscriptionRoleArn": f"arn:aws:iam::{ACCOUNT}:role/r"} if protocol == "firehose" else {}
    params = {"TopicArn": topic.arn, "Protocol": protocol, "Endpoint": endpoint, "Attributes": role}
    shown = topic.sns.subscribe(**params)["SubscriptionArn"]
    arn = topic.sns.subscribe(**params, ReturnSubscriptionArn=True)["SubscriptionArn"]
    assert shown == ("pending confirmation" if is_pending else arn)
    (listed,) = topic.sns.list_subscriptions_by_topic(TopicArn=topic.arn)["Subscriptions"]
    assert listed["SubscriptionArn"] == ("PendingConfirmation" if is_pending else arn)
    assert topic.attributes(arn)["PendingConfirmation"] == ("true" if is_pending else "false")
    topic.publish("stored only")


@pytest.mark.parametrize(
    ("protocol", "endpoint", "text"),
    [
        ("carrier-pigeon", "x", "does not support this protocol string: carrier-pigeon"),
        ("sqs", "queue", "SQS endpoint ARN"),
        ("http", "https://example.com", "Endpoint must match the specified protocol"),
        ("email", "example.com", "Email address"),
        ("lambda", "f", "Lambda endpoint ARN"),
        ("sqs", f"arn:aws:sqs:us-east-1:{ACCOUNT}:q.fifo", "FIFO SQS Queues can not be subscribed to standard SNS topics"),
        ("firehose", f"arn:aws:firehose:us-east-1:{ACCOUNT}:deliverystream/s", "SubscriptionRoleArn is required"),
    ],
)
def test_invalid_endpoints(topic: Topic, protocol: str, endpoint: str, text: str) -> None:
    refused(topic.sns.subscribe, "InvalidParameter", text, TopicArn=topic.arn, Protocol=protocol, Endpoint=endpoint)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("Colour", "red", "AttributeName"),
        ("RawMessageDelivery", "maybe", "RawMessageDelivery"),
        ("FilterPolicyScope", "MessageHead", "FilterPolicyScope"),
        ("FilterPolicy", '{"a": "b"}', 'FilterPolicy: "a" must be'),
        ("FilterPolicy", '{"a": {"b": ["c"]}}', "does not support nested filter policy"),
        ("RedrivePolicy", "[]", "RedrivePolicy: failed to parse JSON"),
        ("RedrivePolicy", '{"deadLetterTargetArn": "q"}', "deadLetterTargetArn is an invalid arn"),
        ("RedrivePolicy", f'{{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:{ACCOUNT}:none"}}', "does not exist"),
    ],
)
def test_invalid_attributes_of_a_subscription(topic: Topic, name: str, value: str, text: str) -> None:
    arn = topic.subscribe(topic.queue())
    change = topic.sns.set_subscription_attributes
    refused(change, "InvalidParameter", text, SubscriptionArn=arn, AttributeName=name, AttributeValue=value)


def test_no_token_is_valid(topic: Topic) -> None:
    topic.sns.subscribe(TopicArn=topic.arn, Protocol="email", Endpoint="a@example.com")
    refused(topic.sns.confirm_subscription, "InvalidParameter", "Token", TopicArn=topic.arn, Token="x")


# Delivery


def test_the_envelope(topic: Topic) -> None:
    queue = topic.queue()
    subscription = topic.subscribe(queue)
    attributes = {
        "kind": {"DataType": "String", "StringValue": "image"},
        "size": {"DataType": "Number", "StringValue": "17"},
        "data": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
    }
    sent = topic.publish("hello\nwörld", Subject="Greeting", MessageAttributes=attributes)
    (message,) = queue.messages()
    body = json.loads(message["Body"])
    assert "MessageAttributes" not in message and message["MessageId"] != sent["MessageId"]
    assert list(body) == [
        "Type", "MessageId", "TopicArn", "Subject", "Message", "Timestamp", "SignatureVersion", "Signature", "SigningCertURL",
        "UnsubscribeURL", "MessageAttributes",
    ]  # fmt: skip
    assert (body["Type"], body["MessageId"], body["TopicArn"]) == ("Notification", sent["MessageId"], topic.arn)
    assert (body["Subject"], body["Message"]) == ("Greeting", "hello\nwörld")
    assert body["UnsubscribeURL"].endswith(f"/?Action=Unsubscribe&SubscriptionArn={subscription}")
    assert body["MessageAttributes"] == {
        "kind": {"Type": "String", "Value": "image"},
        "size": {"Type": "Number", "Value": "17"},
        "data": {"Type": "Binary", "Value": "AAE="},
    }


def test_messages_are_signed(topic: Topic) -> None:
    """Check the signatures as AWS documents it: the text of the members, and the certificate at SigningCertURL."""
    queue = topic.queue()
    topic.subscribe(queue)
    for version, algorithm in (("1", SHA1()), ("2", SHA256())):
        topic.sns.set_topic_attributes(TopicArn=topic.arn, AttributeName="SignatureVersion", AttributeValue=version)
        topic.publish("hello\nwörld", **({"Subject": "Greeting"} if version == "1" else {}))
        (body,) = queue.notifications()
        names = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
        text = "".join(f"{name}\n{body[name]}\n" for name in names if name in body)
        with urlopen(body["SigningCertURL"], timeout=30) as response:
            key = load_pem_x509_certificate(response.read()).public_key()
        assert isinstance(key, RSAPublicKey) and body["SignatureVersion"] == version
        key.verify(b64decode(body["Signature"]), text.encode(), PKCS1v15(), algorithm)
    with pytest.raises(HTTPError, match="404"):
        urlopen(re.sub("-[0-9a-f]+.pem", "-0.pem", body["SigningCertURL"]), timeout=30)


def test_raw_delivery(topic: Topic) -> None:
    queue = topic.queue()
    topic.subscribe(queue, RawMessageDelivery="true")
    attributes = {"kind": {"DataType": "String", "StringValue": "image"}, "data": {"DataType": "Binary", "BinaryValue": b"\x00"}}
    topic.publish("hello", Subject="not delivered", MessageAttributes=attributes, MessageGroupId="tenant")
    (message,) = queue.messages()
    assert (message["Body"], message["MessageAttributes"]) == ("hello", attributes)
    assert message["Attributes"]["MessageGroupId"] == "tenant"


def test_one_message_reaches_every_queue(topic: Topic) -> None:
    queues = [topic.queue() for _ in range(3)]
    for queue in queues:
        topic.subscribe(queue)
    topic.publish("to all")
    assert [queue.texts() for queue in queues] == [["to all"]] * 3


def test_a_message_for_each_protocol(topic: Topic) -> None:
    queue = topic.queue()
    topic.subscribe(queue)
    topic.publish(json.dumps({"default": "a", "sqs": "b", "email": "c"}), MessageStructure="json")
    topic.publish(json.dumps({"default": "a", "email": "c"}), MessageStructure="json")
    assert queue.texts() == ["b", "a"]
    refused(topic.publish, "InvalidParameter", "No default entry", message="{}", MessageStructure="json")
    refused(topic.publish, "InvalidParameter", "failed to parse", message="{", MessageStructure="json")


@pytest.mark.parametrize(
    "statement",
    [
        {"Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:sns:us-east-1:123456789012:other"}}},
        {"Principal": {"Service": "s3.amazonaws.com"}},
        {"Action": "sqs:ReceiveMessage"},
        {"Effect": "Deny"},
    ],
)
def test_the_policy_of_the_queue_decides(topic: Topic, statement: dict[str, Any]) -> None:
    queue = topic.queue(allowed=False)
    topic.subscribe(queue)
    topic.publish("no policy")
    assert queue.messages() == []
    topic.sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"Policy": policy_for(topic.arn, queue.arn, **statement)})
    topic.publish("not allowed")
    assert queue.messages() == []
    topic.sqs.set_queue_attributes(QueueUrl=queue.url, Attributes={"Policy": policy_for(topic.arn, queue.arn)})
    topic.publish("allowed")
    assert queue.texts() == ["allowed"]


def test_messages_that_cannot_be_delivered_go_to_the_dead_letter_queue(topic: Topic) -> None:
    dead, queue = topic.queue(), topic.queue(allowed=False)
    topic.subscribe(queue, RedrivePolicy=json.dumps({"deadLetterTargetArn": dead.arn}), RawMessageDelivery="true")
    attributes = {"a": {"DataType": "String", "StringValue": "b"}}
    topic.publish("not allowed", MessageAttributes=attributes)
    assert [(each["Body"], each["MessageAttributes"]) for each in dead.messages()] == [("not allowed", attributes)]
    small = {"Policy": policy_for(topic.arn, queue.arn), "MaximumMessageSize": "1024"}
    topic.sqs.set_queue_attributes(QueueUrl=queue.url, Attributes=small)
    topic.publish("x" * 1025)
    topic.publish("x" * 1024)
    assert [len(each["Body"]) for each in dead.messages()] == [1025]
    assert [len(each["Body"]) for each in queue.messages()] == [1024]
    topic.sqs.delete_queue(QueueUrl=queue.url)
    topic.publish("no queue")
    assert [each["Body"] for each in dead.messages()] == ["no queue"]


def test_filter_policies(topic: Topic) -> None:
    by_attributes, by_body, all_messages = topic.queue(), topic.queue(), topic.queue()
    chosen = topic.subscribe(by_attributes, FilterPolicy=json.dumps({"kind": ["image", {"prefix": "video/"}]}))
    nested = {"detail": {"size": [{"numeric": [">", 100]}]}}
    topic.subscribe(by_body, FilterPolicy=json.dumps(nested), FilterPolicyScope="MessageBody")
    topic.subscribe(all_messages)
    assert topic.attributes(chosen)["FilterPolicyScope"] == "MessageAttributes"
    large, small = json.dumps({"detail": {"size": 101}}), json.dumps({"detail": {"size": 100}})
    kinds = {"image": large, "video/mp4": small, "audio": large}
    for kind, body in kinds.items():
        topic.publish(body, MessageAttributes={"kind": {"DataType": "String", "StringValue": kind}})
    topic.publish("plain text")
    assert by_attributes.texts() == [large, small]
    assert by_body.texts() == [large, large]
    assert len(all_messages.texts()) == 4
    topic.sns.set_subscription_attributes(SubscriptionArn=chosen, AttributeName="FilterPolicy", AttributeValue="{}")
    assert "FilterPolicy" not in topic.attributes(chosen)
    topic.publish("unfiltered")
    assert by_attributes.texts() == ["unfiltered"]


@pytest.mark.parametrize(
    ("code", "text", "params"),
    [
        ("InvalidParameter", "Empty message", {"Message": ""}),
        ("InvalidParameter", "Subject", {"Subject": "two\nlines"}),
        ("InvalidParameter", "Subject", {"Subject": "x" * 101}),
        ("InvalidParameter", "Message too long", {"Message": "x" * 262_145}),
        ("InvalidParameter", "MessageStructure", {"MessageStructure": "xml"}),
        ("InvalidParameter", "not valid for this topic type", {"MessageDeduplicationId": "a"}),
        ("InvalidParameter", "no SMS messages", {"PhoneNumber": "+15551234567"}),
        ("ParameterValueInvalid", "to a number", {"MessageAttributes": {"a": {"DataType": "Number", "StringValue": "b"}}}),
        ("ParameterValueInvalid", "type prefixes", {"MessageAttributes": {"a": {"DataType": "Text", "StringValue": "b"}}}),
        ("NotFound", "Topic does not exist", {"TopicArn": f"arn:aws:sns:us-east-1:{ACCOUNT}:none"}),
        ("InvalidParameter", "no push notifications", {"TargetArn": "arn:aws:sns:us-east-1:1:endpoint/a/b/c", "TopicArn": None}),
        ("InvalidParameter", "TopicArn or TargetArn", {"TopicArn": None}),
    ],
)
def test_invalid_messages(topic: Topic, code: str, text: str, params: dict[str, Any]) -> None:
    given = {"TopicArn": topic.arn, "Message": "m", **params}
    refused(topic.sns.publish, code, text, **{name: value for name, value in given.items() if value is not None})


def test_larger_messages(topic: Topic) -> None:
    queue = topic.queue()
    topic.subscribe(queue, RawMessageDelivery="true")
    topic.sns.set_topic_attributes(TopicArn=topic.arn, AttributeName="MaximumMessageSize", AttributeValue="1048576")
    topic.publish("x" * 1_048_576)
    assert [len(each["Body"]) for each in queue.messages()] == [1_048_576]
    email = {"TopicArn": topic.arn, "Protocol": "email", "Endpoint": "a@example.com"}
    refused(topic.sns.subscribe, "InvalidParameter", "MaximumMessageSize", **email)


def test_batches(topic: Topic) -> None:
    queue = topic.queue()
    topic.subscribe(queue)
    entries = [{"Id": "a", "Message": "one"}, {"Id": "b", "Message": "two"}, {"Id": "c", "Message": "three"}]
    batch = {"TopicArn": topic.arn, "PublishBatchRequestEntries": entries}
    entries[1]["Subject"] = "\n"
    refused(topic.sns.publish_batch, "InvalidParameter", "Invalid parameter: Subject", **batch)  # as a whole
    assert queue.messages() == []
    entries[1]["Subject"] = "s"
    response = topic.sns.publish_batch(**batch)
    assert [each["Id"] for each in response["Successful"]] == ["a", "b", "c"]
    assert [each["MessageId"] for each in response["Successful"]] == [each["MessageId"] for each in queue.notifications()]


@pytest.mark.parametrize(
    ("code", "entries"),
    [
        ("EmptyBatchRequest", []),
        ("TooManyEntriesInBatchRequest", [{"Id": str(at), "Message": "m"} for at in range(11)]),
        ("BatchEntryIdsNotDistinct", [{"Id": "a", "Message": "m"}] * 2),
        ("InvalidBatchEntryId", [{"Id": "a b", "Message": "m"}]),
        ("BatchRequestTooLong", [{"Id": str(at), "Message": "m" * 131_073} for at in range(2)]),
    ],
)
def test_invalid_batches(topic: Topic, code: str, entries: list[dict[str, str]]) -> None:
    refused(topic.sns.publish_batch, code, "", TopicArn=topic.arn, PublishBatchRequestEntries=entries)


# FIFO topics


def test_a_fifo_topic_keeps_the_order_of_a_group(fifo: Topic) -> None:
    queue, standard = fifo.queue(fifo=True), fifo.queue()
    fifo.subscribe(queue)
    fifo.subscribe(standard, RawMessageDelivery="true")
    sent = [fifo.publish(str(at), MessageGroupId="g", MessageDeduplicationId=str(at)) for at in range(12)]
    assert [int(each["SequenceNumber"]) for each in sent] == sorted(int(each["SequenceNumber"]) for each in sent)
    messages = queue.messages()
    assert list(json.loads(messages[0]["Body"])) == [
        "Type", "MessageId", "SequenceNumber", "TopicArn", "Message", "Timestamp", "UnsubscribeURL"
    ]  # fmt: skip
    assert [json.loads(each["Body"])["Message"] for each in messages] == [str(at) for at in range(12)]
    assert [json.loads(each["Body"])["SequenceNumber"] for each in messages] == [each["SequenceNumber"] for each in sent]
    assert {each["Attributes"]["MessageGroupId"] for each in messages} == {"g"}
    assert [each["Attributes"]["MessageDeduplicationId"] for each in messages] == [str(at) for at in range(12)]
    assert sorted(int(each["Body"]) for each in standard.messages()) == list(range(12))


def test_a_fifo_topic_delivers_a_message_once(fifo: Topic) -> None:
    queue = fifo.queue()  # a standard queue does not deduplicate itself
    fifo.subscribe(queue)
    first = fifo.publish("one", MessageGroupId="g", MessageDeduplicationId="d")
    again = fifo.publish("two", MessageGroupId="h", MessageDeduplicationId="d")
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    batch = [{"Id": str(at), "Message": "three", "MessageGroupId": "g", "MessageDeduplicationId": "e"} for at in range(2)]
    sent = fifo.sns.publish_batch(TopicArn=fifo.arn, PublishBatchRequestEntries=batch)["Successful"]
    assert sent[0]["MessageId"] == sent[1]["MessageId"]
    assert queue.texts() == ["one", "three"]
    fifo.sns.set_topic_attributes(TopicArn=fifo.arn, AttributeName="FifoThroughputScope", AttributeValue="MessageGroup")
    fifo.publish("four", MessageGroupId="g", MessageDeduplicationId="f")
    fifo.publish("five", MessageGroupId="h", MessageDeduplicationId="f")
    assert queue.texts() == ["four", "five"]


def test_content_based_deduplication(fifo: Topic) -> None:
    queue = fifo.queue(fifo=True)
    fifo.subscribe(queue)
    refused(fifo.publish, "InvalidParameter", "ContentBasedDeduplication", message="m", MessageGroupId="g")
    refused(fifo.publish, "InvalidParameter", "MessageGroupId parameter is required", message="m", MessageDeduplicationId="d")
    fifo.sns.set_topic_attributes(TopicArn=fifo.arn, AttributeName="ContentBasedDeduplication", AttributeValue="true")
    ids = [fifo.publish(text, MessageGroupId="g")["MessageId"] for text in ("m", "m", "n")]
    assert ids[0] == ids[1] != ids[2]
    assert queue.texts() == ["m", "n"]


def test_a_fifo_topic_has_at_most_a_hundred_subscriptions(fifo: Topic) -> None:
    endpoint = "arn:aws:sqs:us-east-1:123456789012:queue-{}.fifo"
    for number in range(100):
        fifo.sns.subscribe(TopicArn=fifo.arn, Protocol="sqs", Endpoint=endpoint.format(number))
    with pytest.raises(fifo.sns.exceptions.SubscriptionLimitExceededException, match="already has 100 subscriptions"):
        fifo.sns.subscribe(TopicArn=fifo.arn, Protocol="sqs", Endpoint=endpoint.format(100))


def test_fifo_topics_accept_queues_only(fifo: Topic) -> None:
    params = {"TopicArn": fifo.arn, "Protocol": "http", "Endpoint": "http://example.com"}
    refused(fifo.sns.subscribe, "InvalidParameter", "Invalid protocol type: http", **params)


def test_operations_that_are_not_served(topic: Topic) -> None:
    params: dict[str, Any] = {"Name": "a", "Platform": "GCM", "Attributes": {}}
    refused(topic.sns.create_platform_application, "InvalidAction", "CreatePlatformApplication", **params)


# Stacks and crashes

TEMPLATE = """
Resources:
  Topic: {Type: AWS::SNS::Topic}
  Queue: {Type: AWS::SQS::Queue}
  Allow:
    Type: AWS::SQS::QueuePolicy
    Properties:
      Queues: [!Ref Queue]
      PolicyDocument:
        Statement:
          - {Effect: Allow, Principal: {Service: sns.amazonaws.com}, Action: sqs:SendMessage, Resource: !GetAtt Queue.Arn,
             Condition: {ArnEquals: {aws:SourceArn: !Ref Topic}}}
  Subscription:
    Type: AWS::SNS::Subscription
    Properties: {TopicArn: !Ref Topic, Protocol: sqs, Endpoint: !GetAtt Queue.Arn, RawMessageDelivery: true,
                 FilterPolicyScope: MessageBody, FilterPolicy: {kind: [image]}}
Outputs:
  Topic: {Value: !Ref Topic}
  Queue: {Value: !Ref Queue}
"""


def test_a_stack_with_a_topic(corral: Corral) -> None:
    cloudformation, sns, sqs = corral.client("cloudformation"), corral.client("sns"), corral.client("sqs")
    cloudformation.create_stack(StackName="topics", TemplateBody=TEMPLATE)
    cloudformation.get_waiter("stack_create_complete").wait(StackName="topics", WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    [stack] = cloudformation.describe_stacks(StackName="topics")["Stacks"]
    made = {output["OutputKey"]: output["OutputValue"] for output in stack["Outputs"]}
    for kind in ("video", "image"):
        sns.publish(TopicArn=made["Topic"], Message=json.dumps({"kind": kind}))
    received = sqs.receive_message(QueueUrl=made["Queue"], MaxNumberOfMessages=10)["Messages"]
    assert [json.loads(each["Body"]) for each in received] == [{"kind": "image"}]
    cloudformation.delete_stack(StackName="topics")
    cloudformation.get_waiter("stack_delete_complete").wait(StackName="topics", WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    assert made["Topic"] not in [each["TopicArn"] for each in sns.list_topics()["Topics"]]


def test_topics_survive_kill_9(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral().start()
    topic = Topic(corral, Attributes={"FifoTopic": "true"})
    queue = topic.queue()
    topic.subscribe(queue, FilterPolicy='{"a": [{"exists": false}]}')
    first = topic.publish("before", MessageGroupId="g", MessageDeduplicationId="d")
    corral.kill("corral.server")
    corral.start()
    assert topic.publish("before", MessageGroupId="g", MessageDeduplicationId="d")["MessageId"] == first["MessageId"]
    topic.publish("after", MessageGroupId="g", MessageDeduplicationId="e")
    assert queue.texts() == ["before", "after"]
