"""Topics, subscriptions and published messages for fuzzed requests to SNS."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

Call = Callable[..., Awaitable[Any]]
FILTER_POLICIES = (
    {"a": {"b": [1, {"numeric": [">", 0, "<=", 5]}]}, "$or": [{"c": [{"exists": False}]}, {"d": [{"prefix": "x"}]}]},
    {"a": [{"anything-but": ["x", "y"]}, {"anything-but": {"prefix": "z"}}, {"cidr": "10.0.0.0/8"}]},
    {"a": [{"suffix": "x"}, {"equals-ignore-case": "y"}, None, True]},
)


async def build_topics(call: Call, knows: Callable[..., None], account: str, mark: str, policy: str) -> None:
    queue, name, tags = f"arn:aws:sqs:us-east-1:{account}:fuzz-{mark}", f"fuzz-{mark}", [{"Key": "a", "Value": "b"}]
    plain = (await call("CreateTopic", Name=name, Attributes={"DisplayName": "a"}, Tags=tags))["TopicArn"]
    fifo = (await call("CreateTopic", Name=f"{name}.fifo", Attributes={"FifoTopic": "true"}))["TopicArn"]
    policies = [json.dumps(each) for each in FILTER_POLICIES]
    redrive = json.dumps({"deadLetterTargetArn": queue})
    arns = []
    for topic in (plain, fifo):
        attributes = {"FilterPolicy": policies[0], "FilterPolicyScope": "MessageBody", "RedrivePolicy": redrive}
        arns.append(
            (await call("Subscribe", TopicArn=topic, Protocol="sqs", Endpoint=queue, Attributes=attributes))["SubscriptionArn"]
        )
    await call("Subscribe", TopicArn=plain, Protocol="email", Endpoint="a@b.c", ReturnSubscriptionArn=True)
    for each in policies:
        await call("SetSubscriptionAttributes", SubscriptionArn=arns[0], AttributeName="FilterPolicy", AttributeValue=each)
    sent = {"a": {"DataType": "Number.x", "StringValue": "12"}, "b": {"DataType": "String.Array", "StringValue": '["c", 1]'}}
    await call("Publish", TopicArn=plain, Message='{"a": {"b": 1}}', Subject="s", MessageAttributes=sent)
    await call("Publish", TopicArn=plain, Message='{"default": "a", "sqs": "b"}', MessageStructure="json")
    await call("Publish", TopicArn=fifo, Message="m", MessageGroupId="g", MessageDeduplicationId="d")
    entries = [{"Id": "a", "Message": "b", "MessageAttributes": sent}, {"Id": "b", "Message": "c", "Subject": "d"}]
    await call("PublishBatch", TopicArn=plain, PublishBatchRequestEntries=entries)
    await call("AddPermission", TopicArn=plain, Label="l", AWSAccountId=[account], ActionName=["Publish"])
    await call("SetTopicAttributes", TopicArn=plain, AttributeName="Policy", AttributeValue=policy)
    await call("RemovePermission", TopicArn=plain, Label="a")
    await call("SetTopicAttributes", TopicArn=plain, AttributeName="Policy", AttributeValue=policy)
    knows("sns", TopicArn=[plain, fifo], TargetArn=plain, ResourceArn=[plain, fifo], SubscriptionArn=arns, Endpoint=queue)
    knows("sns", AttributeName=["FilterPolicy", "RedrivePolicy", "DeliveryPolicy", "Policy"])
    knows("sns", AttributeValue=[*policies, redrive, policy, '{"http": {}}'], Token="t", Name=[name, f"{name}.fifo"])
