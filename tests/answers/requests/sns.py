"""Requests of SNS."""

from __future__ import annotations

from answers.calls import ACCOUNT, OTHER, SAME, Calls


def requests(calls: Calls) -> None:
    arn = calls.twice("CreateTopic", SAME, Name="answers", Tags=[{"Key": "a", "Value": "b"}])["TopicArn"]
    calls("GetTopicAttributes", TopicArn=arn)
    calls.twice("SetTopicAttributes", SAME, TopicArn=arn, AttributeName="DisplayName", AttributeValue="a")
    calls("ListTopics")
    calls.twice("TagResource", SAME, ResourceArn=arn, Tags=[{"Key": "c", "Value": "d"}])
    calls("ListTagsForResource", ResourceArn=arn)
    calls.twice("UntagResource", SAME, ResourceArn=arn, TagKeys=["c"])
    label = {"Label": "l", "AWSAccountId": [ACCOUNT], "ActionName": ["Publish"]}
    calls.twice("AddPermission", "InvalidParameterException", TopicArn=arn, **label)
    calls.twice("RemovePermission", "NotFoundException", TopicArn=arn, Label="l")
    queue = calls.arn("answers", service="sqs")
    subscribed = {"TopicArn": arn, "Protocol": "sqs", "Endpoint": queue, "ReturnSubscriptionArn": True}
    subscription = calls.twice("Subscribe", SAME, **subscribed)["SubscriptionArn"]
    calls("GetSubscriptionAttributes", SubscriptionArn=subscription)
    raw = {"AttributeName": "RawMessageDelivery", "AttributeValue": "true"}
    calls.twice("SetSubscriptionAttributes", SAME, SubscriptionArn=subscription, **raw)
    calls("ListSubscriptions")
    calls("ListSubscriptionsByTopic", TopicArn=arn)
    calls.twice("Publish", OTHER, TopicArn=arn, Message="a")
    calls.twice("PublishBatch", OTHER, TopicArn=arn, PublishBatchRequestEntries=[{"Id": "1", "Message": "a"}])
    fifo = calls("CreateTopic", Name="answers.fifo", Attributes={"FifoTopic": "true"})["TopicArn"]
    grouped = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    calls("Publish", TopicArn=fifo, Message="a", **grouped)
    calls("PublishBatch", TopicArn=fifo, PublishBatchRequestEntries=[{"Id": "1", "Message": "a", **grouped}])
    calls.twice_refused("ConfirmSubscription", "InvalidParameterException", TopicArn=arn, Token="none")
    refusals(calls, arn, subscription)
    calls.twice("Unsubscribe", SAME, SubscriptionArn=subscription)
    calls.twice("DeleteTopic", SAME, TopicArn=arn)


def refusals(calls: Calls, arn: str, subscription: str) -> None:
    none = {"TopicArn": calls.arn("none"), "SubscriptionArn": f"{calls.arn('none')}:00000000-0000-0000-0000-000000000000"}
    label = {"AWSAccountId": [ACCOUNT], "ActionName": ["Publish"], "AttributeName": "DisplayName", "Protocol": "sqs"}
    label["PublishBatchRequestEntries"] = [{"Id": "1", "Message": "a"}]
    calls.all_refused("NotFoundException", "*", "Delete* Unsub* Set* Confirm* Sub*", **none, **label)
    calls.refused(
        "SetTopicAttributes", "NotFoundException", TopicArn=none["TopicArn"], AttributeName="DisplayName", AttributeValue="a"
    )
    raw = {"AttributeName": "RawMessageDelivery", "AttributeValue": "true"}
    calls.refused("SetSubscriptionAttributes", "NotFoundException", SubscriptionArn=none["SubscriptionArn"], **raw)
    calls.refused(
        "Subscribe", "NotFoundException", TopicArn=none["TopicArn"], Protocol="sqs", Endpoint=calls.arn("a", service="sqs")
    )
    calls.all_refused("ResourceNotFoundException", ResourceArn=calls.arn("none"))
    calls.all_refused("InvalidParameterException", TopicArn="none", SubscriptionArn="none", ResourceArn="none")
    for number in range(200):
        endpoint = calls.arn(f"filtered-{number}", service="sqs")
        attributes = {"FilterPolicy": '{"a":["b"]}'}
        calls("Subscribe", TopicArn=arn, Protocol="sqs", Endpoint=endpoint, Attributes=attributes)
    filtered = {"AttributeName": "FilterPolicy", "AttributeValue": '{"a":["b"]}'}
    calls.refused("SetSubscriptionAttributes", "FilterPolicyLimitExceededException", SubscriptionArn=subscription, **filtered)
    more = {"Protocol": "sqs", "Endpoint": calls.arn("b", service="sqs"), "Attributes": {"FilterPolicy": '{"a":["b"]}'}}
    calls.refused("Subscribe", "FilterPolicyLimitExceededException", TopicArn=arn, **more)
    calls.refused("ListSubscriptions", "InvalidParameterException", NextToken="none")
    calls.refused("ListTopics", "InvalidParameterException", NextToken="none")
    calls.refused("CreateTopic", "InvalidParameterException", Name="a b")
    calls.refused(
        "TagResource", "TagLimitExceededException", ResourceArn=arn, Tags=[{"Key": f"k{n}", "Value": ""} for n in range(51)]
    )
    calls.refused("CreateTopic", "TagLimitExceededException", Name="tags", Tags=[{"Key": f"k{n}", "Value": ""} for n in range(51)])
    typed = {"Id": "1", "Message": "a", "MessageAttributes": {"a": {"DataType": "Wrong", "StringValue": "b"}}}
    calls.refused("PublishBatch", "InvalidParameterValueException", TopicArn=arn, PublishBatchRequestEntries=[typed])
    batch = {
        "BatchEntryIdsNotDistinctException": [{"Id": "1", "Message": "a"}] * 2,
        "EmptyBatchRequestException": [],
        "InvalidBatchEntryIdException": [{"Id": "a b", "Message": "a"}],
        "TooManyEntriesInBatchRequestException": [{"Id": f"{number}", "Message": "a"} for number in range(11)],
        "BatchRequestTooLongException": [{"Id": f"{number}", "Message": "a" * 200_000} for number in range(2)],
    }
    for code, entries in batch.items():
        calls.refused("PublishBatch", code, TopicArn=arn, PublishBatchRequestEntries=entries)
    calls.all_denied("AuthorizationErrorException")
