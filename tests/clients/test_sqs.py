"""Operations on queues through boto3: create, find, configure, purge, permissions and tags."""

from __future__ import annotations

import json
import time
from typing import Any

import boto3
import pytest

from harness import REGION, Corral
from sqs_calls import ACCOUNT, arn, counts, name_for, refusal


@pytest.fixture
def sqs(client):
    return client("sqs")


@pytest.fixture
def queue(sqs, request) -> str:
    return sqs.create_queue(QueueName=name_for(request))["QueueUrl"]


@pytest.fixture
def fifo(sqs, request) -> str:
    attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true"}
    return sqs.create_queue(QueueName=f"{name_for(request)}.fifo", Attributes=attributes)["QueueUrl"]


def test_create_queue_again(sqs):
    made = sqs.create_queue(QueueName="again", Attributes={"DelaySeconds": "1"}, tags={"a": "b"})["QueueUrl"]
    assert sqs.create_queue(QueueName="again")["QueueUrl"] == made
    assert sqs.create_queue(QueueName="again", Attributes={"DelaySeconds": "1"})["QueueUrl"] == made
    with pytest.raises(sqs.exceptions.QueueNameExists, match="a different value for attribute DelaySeconds") as refused:
        sqs.create_queue(QueueName="again", Attributes={"DelaySeconds": "2"})
    assert refused.value.response["Error"]["QueryErrorCode"] == "QueueNameExists"
    assert refused.value.response["Error"]["Code"] == "QueueAlreadyExists"
    sqs.delete_queue(QueueUrl=made)
    assert sqs.create_queue(QueueName="again", Attributes={"DelaySeconds": "2"})["QueueUrl"] == made


def test_booleans_in_other_spelling_and_numbers_in_text(sqs, queue):
    attributes = {"FifoQueue": "True", "ContentBasedDeduplication": "True"}
    url = sqs.create_queue(QueueName="spelling.fifo", Attributes=attributes)["QueueUrl"]
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert (shown["FifoQueue"], shown["ContentBasedDeduplication"]) == ("true", "true")
    assert sqs.create_queue(QueueName="spelling.fifo", Attributes=attributes)["QueueUrl"] == url
    code, words = refusal(sqs.create_queue, QueueName="spelling", Attributes={"FifoQueue": "false"})
    assert (code, words) == ("InvalidAttributeName", "Unknown Attribute FifoQueue.")
    policy = json.dumps({"deadLetterTargetArn": arn(queue), "maxReceiveCount": "5"})
    key = {"KmsMasterKeyId": "alias/aws/sqs"}
    url = sqs.create_queue(QueueName="spelling", Attributes={"RedrivePolicy": policy, **key})["QueueUrl"]
    shown = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert json.loads(shown["RedrivePolicy"])["maxReceiveCount"] == 5
    assert (shown["SqsManagedSseEnabled"], shown["KmsDataKeyReusePeriodSeconds"]) == ("false", "300")


def test_errors_have_the_codes_of_both_protocols(sqs, queue):
    cases = (
        ({"QueueUrl": "nothing"}, "AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"),
        ({"QueueUrl": queue, "WaitTimeSeconds": 21}, "InvalidParameterValue", "InvalidParameterValueException"),
    )
    for params, code, name in cases:
        with pytest.raises(sqs.exceptions.ClientError) as refused:
            sqs.receive_message(**params)
        error = refused.value.response["Error"]
        assert (error["Code"], error["QueryErrorCode"], error["Type"]) == (code, name, "Sender")
    with pytest.raises(sqs.exceptions.ClientError) as refused:
        sqs.send_message(QueueUrl=queue, MessageBody="")
    assert refused.value.response["Error"]["QueryErrorCode"] == "MissingRequiredParameterException"


def test_queues_are_found_and_listed(sqs, client):
    urls = [sqs.create_queue(QueueName=f"listed-{at}")["QueueUrl"] for at in range(3)]
    assert sqs.list_queues(QueueNamePrefix="listed-")["QueueUrls"] == urls
    page = sqs.list_queues(QueueNamePrefix="listed-", MaxResults=2)
    assert page["QueueUrls"] == urls[:2]
    rest = sqs.list_queues(QueueNamePrefix="listed-", MaxResults=2, NextToken=page["NextToken"])
    assert rest["QueueUrls"] == urls[2:] and "NextToken" not in rest
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="nothing-")
    assert sqs.get_queue_url(QueueName="listed-1")["QueueUrl"] == urls[1]
    elsewhere = client("sqs", region="eu-west-1")
    for call, params in (
        (elsewhere.get_queue_url, {"QueueName": "listed-1"}),
        (sqs.get_queue_url, {"QueueName": "listed-1", "QueueOwnerAWSAccountId": "210987654321"}),
        (sqs.get_queue_attributes, {"QueueUrl": "http://any/123456789012/nothing"}),
    ):
        assert refusal(call, **params) == ("AWS.SimpleQueueService.NonExistentQueue", "The specified queue does not exist.")
    sqs.purge_queue(QueueUrl="listed-1")  # a name is also accepted
    assert refusal(sqs.purge_queue, QueueUrl="nothing")[0] == "AWS.SimpleQueueService.NonExistentQueue"
    for host in ("localhost:1", "sqs.us-east-1.amazonaws.com", "queue"):
        found = sqs.get_queue_attributes(QueueUrl=f"https://{host}/{ACCOUNT}/listed-0", AttributeNames=["QueueArn"])
        assert found["Attributes"] == {"QueueArn": arn(urls[0])}


def test_a_queue_url_has_the_host_that_the_client_used(corral: Corral):
    keys, port = corral.keys, corral.url.rpartition(":")[2]
    there = boto3.session.Session().client(
        "sqs", region_name=REGION, endpoint_url=f"http://localhost:{port}", aws_access_key_id=keys["access_key"],
        aws_secret_access_key=keys["secret_key"],
    )  # fmt: skip
    assert there.create_queue(QueueName="hosted")["QueueUrl"] == f"http://localhost:{port}/{ACCOUNT}/hosted"


# Attributes


def test_default_attributes(sqs, queue, fifo):
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    created = found.pop("CreatedTimestamp")
    assert found.pop("LastModifiedTimestamp") == created and abs(int(created) - time.time()) < 60
    assert found == {
        "QueueArn": arn(queue),
        "ApproximateNumberOfMessages": "0",
        "ApproximateNumberOfMessagesNotVisible": "0",
        "ApproximateNumberOfMessagesDelayed": "0",
        "VisibilityTimeout": "30",
        "MaximumMessageSize": "1048576",
        "MessageRetentionPeriod": "345600",
        "DelaySeconds": "0",
        "ReceiveMessageWaitTimeSeconds": "0",
        "SqsManagedSseEnabled": "true",
    }
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue)
    found = sqs.get_queue_attributes(QueueUrl=fifo, AttributeNames=["All"])["Attributes"]
    names = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
    assert [found[name] for name in names] == ["true", "true", "queue", "perQueue"]


def test_attributes_are_changed(sqs, queue):
    policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}]})
    given = {"VisibilityTimeout": "43200", "DelaySeconds": "900", "Policy": policy, "KmsMasterKeyId": "alias/mine"}
    sqs.set_queue_attributes(QueueUrl=queue, Attributes=given)
    found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=[*given, "SqsManagedSseEnabled"])["Attributes"]
    assert found == {**given, "SqsManagedSseEnabled": "false"}
    code, words = refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"SqsManagedSseEnabled": "true"})
    assert (code, "one type of server-side encryption" in words) == ("InvalidAttributeName", True)
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": "", "KmsMasterKeyId": ""})
    sqs.set_queue_attributes(QueueUrl=queue, Attributes={"SqsManagedSseEnabled": "true"})
    assert "Attributes" not in sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy", "KmsMasterKeyId"])


@pytest.mark.parametrize(
    ("attribute", "value", "code", "words"),
    [
        ("VisibilityTimeout", "43201", "InvalidAttributeValue", "Invalid value for the parameter VisibilityTimeout."),
        ("VisibilityTimeout", "-1", "InvalidAttributeValue", "Invalid value for the parameter VisibilityTimeout."),
        ("VisibilityTimeout", "²", "InvalidAttributeValue", "Invalid value for the parameter VisibilityTimeout."),
        ("DelaySeconds", "901", "InvalidAttributeValue", "DelaySeconds"),
        ("MaximumMessageSize", "1023", "InvalidAttributeValue", "MaximumMessageSize"),
        ("MaximumMessageSize", "1048577", "InvalidAttributeValue", "MaximumMessageSize"),
        ("MessageRetentionPeriod", "59", "InvalidAttributeValue", "MessageRetentionPeriod"),
        ("MessageRetentionPeriod", "99999999999999999999", "InvalidAttributeValue", "MessageRetentionPeriod"),
        ("ReceiveMessageWaitTimeSeconds", "21", "InvalidAttributeValue", "ReceiveMessageWaitTimeSeconds"),
        ("KmsDataKeyReusePeriodSeconds", "59", "InvalidAttributeValue", "KmsDataKeyReusePeriodSeconds"),
        ("SqsManagedSseEnabled", "yes", "InvalidAttributeValue", "SqsManagedSseEnabled"),
        ("ContentBasedDeduplication", "true", "InvalidAttributeName", "Unknown Attribute ContentBasedDeduplication."),
        ("QueueArn", "x", "InvalidAttributeName", "Unknown Attribute QueueArn."),
        ("Color", "red", "InvalidAttributeName", "Unknown Attribute Color."),
        ("Policy", "{", "InvalidAttributeValue", "Invalid value for the parameter Policy."),
        ("Policy", "[]", "InvalidAttributeValue", "Invalid value for the parameter Policy."),
        ("Policy", '{"Statement": [{"Effect": "Maybe"}]}', "InvalidAttributeValue", "Effect"),
        ("RedrivePolicy", "x", "InvalidParameterValue", "not a valid JSON map"),
        ("RedrivePolicy", '{"maxReceiveCount": 1}', "InvalidParameterValue", "mandatory attribute: deadLetterTargetArn"),
        ("RedrivePolicy", '{"deadLetterTargetArn": "d"}', "InvalidParameterValue", "mandatory attribute: maxReceiveCount"),
        ("RedrivePolicy", '{"deadLetterTargetArn": "dummy", "maxReceiveCount": 42}', "InvalidParameterValue",
         "Invalid value for deadLetterTargetArn."),
        ("RedrivePolicy", '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:no", "maxReceiveCount": "1001"}',
         "InvalidParameterValue", "valid values are from 1 to 1000 both inclusive."),
        ("RedrivePolicy", '{"deadLetterTargetArn": "arn:aws:sqs:us-east-1:123456789012:no", "maxReceiveCount": "10"}',
         "InvalidParameterValue", "Dead letter target does not exist."),
        ("RedriveAllowPolicy", '{"redrivePermission": "some"}', "InvalidParameterValue", "redrivePermission"),
        ("RedriveAllowPolicy", '{"redrivePermission": "byQueue"}', "InvalidParameterValue", "sourceQueueArns"),
    ],
)  # fmt: skip
def test_an_invalid_attribute(sqs, attribute, value, code, words):
    queue = sqs.create_queue(QueueName="refuses")["QueueUrl"]
    before = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
    for refused in (
        refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={attribute: value}),
        refusal(sqs.create_queue, QueueName="never", Attributes={attribute: value}),
    ):
        assert refused[0] == code and words in refused[1]
    assert sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"] == before


@pytest.mark.parametrize(
    ("name", "attributes"),
    [
        ("", {}), ("a" * 81, {}), ("with space", {}), ("dotted.name", {}), ("sneaky.fifo", {}),
        ("plain", {"FifoQueue": "true"}), (".fifo", {"FifoQueue": "true"}), ("a" * 76 + ".fifo", {"FifoQueue": "true"}),
    ],
)  # fmt: skip
def test_an_invalid_name(sqs, name, attributes):
    code, words = refusal(sqs.create_queue, QueueName=name, Attributes=attributes)
    assert code == "InvalidParameterValue" and "1 to 80 in length" in words


def test_a_redrive_allow_policy_limits_source_queues(sqs):
    grave = sqs.create_queue(QueueName="guarded-grave")["QueueUrl"]
    policy = json.dumps({"deadLetterTargetArn": arn(grave), "maxReceiveCount": 3})
    asks = {"QueueName": "asks", "Attributes": {"RedrivePolicy": policy}}
    deny = json.dumps({"redrivePermission": "denyAll"})
    sqs.set_queue_attributes(QueueUrl=grave, Attributes={"RedriveAllowPolicy": deny})
    assert "denyAll" in refusal(sqs.create_queue, **asks)[1]
    allow = json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [arn("x/asks")]})
    sqs.set_queue_attributes(QueueUrl=grave, Attributes={"RedriveAllowPolicy": allow})
    url = sqs.create_queue(**asks)["QueueUrl"]
    assert refusal(sqs.create_queue, QueueName="other", Attributes={"RedrivePolicy": policy})[0] == "InvalidParameterValue"
    assert sqs.list_dead_letter_source_queues(QueueUrl=grave)["queueUrls"] == [url]
    fifo = {"FifoQueue": "true", "RedrivePolicy": policy}
    assert "same type" in refusal(sqs.create_queue, QueueName="asks.fifo", Attributes=fifo)[1]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": ""})
    assert sqs.list_dead_letter_source_queues(QueueUrl=grave)["queueUrls"] == []


def test_fifo_attributes_that_contradict_each_other(sqs, fifo, queue):
    throughput = {"FifoThroughputLimit": "perMessageGroupId"}
    assert refusal(sqs.set_queue_attributes, QueueUrl=fifo, Attributes=throughput)[0] == "InvalidAttributeValue"
    sqs.set_queue_attributes(QueueUrl=fifo, Attributes={**throughput, "DeduplicationScope": "messageGroup"})
    code, words = refusal(sqs.set_queue_attributes, QueueUrl=queue, Attributes={"FifoQueue": "true"})
    assert (code, "Modifying queue type is not supported" in words) == ("InvalidAttributeValue", True)


# Purging, permissions, tags


def test_purge(sqs, queue):
    for at in range(3):
        sqs.send_message(QueueUrl=queue, MessageBody=str(at))
    sqs.purge_queue(QueueUrl=queue)
    assert counts(sqs, queue) == (0, 0, 0)
    with pytest.raises(sqs.exceptions.PurgeQueueInProgress, match="is allowed every 60 seconds") as refused:
        sqs.purge_queue(QueueUrl=queue)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_permissions_are_statements_of_the_policy(sqs, queue):
    def policy() -> Any:
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["Policy"]).get("Attributes")
        return json.loads(found["Policy"]) if found else None

    add = {"QueueUrl": queue, "Label": "one", "AWSAccountIds": ["111122223333"], "Actions": ["ReceiveMessage"]}
    sqs.add_permission(**add)
    assert policy() == {
        "Version": "2008-10-17",
        "Id": f"{arn(queue)}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "one",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111122223333:root"},
                "Action": "SQS:ReceiveMessage",
                "Resource": arn(queue),
            }
        ],
    }
    assert refusal(sqs.add_permission, **add)[1] == "Value one for parameter Label is invalid. Reason: Already exists."
    sqs.add_permission(**add | {"Label": "two", "AWSAccountIds": ["111122223333", "444455556666"], "Actions": ["*", "SendMessage"]})
    assert [statement["Sid"] for statement in policy()["Statement"]] == ["one", "two"]
    assert "Value SQS:Fly for parameter ActionName" in refusal(sqs.add_permission, **add | {"Label": "x", "Actions": ["Fly"]})[1]
    many = ["SendMessage", "ReceiveMessage", "DeleteMessage", "PurgeQueue", "GetQueueUrl", "TagQueue", "UntagQueue", "DeleteQueue"]
    with pytest.raises(sqs.exceptions.OverLimit, match="8 Actions were found, maximum allowed is 7"):
        sqs.add_permission(**add | {"Label": "x", "Actions": many})
    assert refusal(sqs.add_permission, **add | {"Label": "a b"})[0] == "InvalidParameterValue"
    sqs.remove_permission(QueueUrl=queue, Label="one")
    assert [statement["Sid"] for statement in policy()["Statement"]] == ["two"]
    words = refusal(sqs.remove_permission, QueueUrl=queue, Label="one")[1]
    assert words == "Value one for parameter Label is invalid. Reason: can't find label."
    sqs.remove_permission(QueueUrl=queue, Label="two")
    assert policy() is None


def test_tags(sqs, queue):
    assert "Tags" not in sqs.list_queue_tags(QueueUrl=queue)
    sqs.tag_queue(QueueUrl=queue, Tags={"a": "1", "b": ""})
    sqs.tag_queue(QueueUrl=queue, Tags={"a": "2"})
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"a": "2", "b": ""}
    sqs.untag_queue(QueueUrl=queue, TagKeys=["b", "never"])
    assert sqs.list_queue_tags(QueueUrl=queue)["Tags"] == {"a": "2"}
    for tags in ({"aws:x": "1"}, {"": "1"}, {"k" * 129: "1"}, {"k": "v" * 257}, {f"k{at}": "" for at in range(51)}):
        assert refusal(sqs.tag_queue, QueueUrl=queue, Tags=tags)[0] == "InvalidParameterValue"
