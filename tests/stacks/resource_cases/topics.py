"""Cases of SNS."""

from __future__ import annotations

from stacks.resource_cases import OTHER_TAGS, TAGS, Case

TOPIC, ARN = "AWS::SNS::Topic", "arn:aws:sns:us-east-1:123456789012"
QUEUES = "arn:aws:sqs:us-east-1:123456789012"
PUBLISH = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sns:Publish", "Resource": "*"}
OPEN_TOPIC = {"Version": "2012-10-17", "Statement": [PUBLISH]}
CLOSED_TOPIC = {"Version": "2012-10-17", "Statement": [{**PUBLISH, "Effect": "Deny"}]}
LOGGING = {"Protocol": "http/s", "SuccessFeedbackRoleArn": "arn:aws:iam::123456789012:role/r", "SuccessFeedbackSampleRate": "5"}

CASES: dict[str, Case] = {
    TOPIC: Case(
        {
            "TopicName": "topic",
            "DisplayName": "Topic",
            "KmsMasterKeyId": "alias/aws/sns",
            "SignatureVersion": "2",
            "TracingConfig": "Active",
            "MaximumMessageSize": 300_000,
            "DeliveryStatusLogging": [LOGGING],
            "Subscription": [{"Protocol": "sqs", "Endpoint": f"{QUEUES}:a"}, {"Protocol": "sqs", "Endpoint": f"{QUEUES}:b"}],
            **TAGS,
        },
        changed={
            "DisplayName": None,
            "KmsMasterKeyId": None,
            "SignatureVersion": None,
            "TracingConfig": None,
            "MaximumMessageSize": 2048,
            "DeliveryStatusLogging": [{**LOGGING, "SuccessFeedbackSampleRate": "6"}],
            "Subscription": [{"Protocol": "sqs", "Endpoint": f"{QUEUES}:b"}, {"Protocol": "sqs", "Endpoint": f"{QUEUES}:c"}],
            **OTHER_TAGS,
        },
        replacing={"TopicName": "topic2"},
        starts=f"{ARN}:topic",
        shown=("sns:GetTopicAttributes", {"TopicArn": f"{ARN}:topic"}, "'MaximumMessageSize': '2048'"),
    ),
    "AWS::SNS::Subscription": Case(
        {
            "TopicArn": {"Ref": "topic"},
            "Protocol": "sqs",
            "Endpoint": {"GetAtt": ["queue", "Arn"]},
            "FilterPolicy": {"kind": ["image"]},
            "RedrivePolicy": {"deadLetterTargetArn": {"GetAtt": ["queue", "Arn"]}},
            "RawMessageDelivery": True,
        },
        needs={"topic": (TOPIC, {"TopicName": "topic"}), "queue": ("AWS::SQS::Queue", {"QueueName": "queue"})},
        changed={
            "FilterPolicy": {"detail": {"kind": ["video"]}},
            "FilterPolicyScope": "MessageBody",
            "RedrivePolicy": None,
            "RawMessageDelivery": None,
        },
        replacing={"Endpoint": f"{QUEUES}:other"},
        starts=f"{ARN}:topic:",
        shown=("sns:ListSubscriptionsByTopic", {"TopicArn": f"{ARN}:topic"}, f"{QUEUES}:queue"),
    ),
    "AWS::SNS::TopicPolicy": Case(
        {"PolicyDocument": OPEN_TOPIC, "Topics": [{"Ref": "topic"}]},
        needs={"topic": (TOPIC, {"TopicName": "topic"}), "second": (TOPIC, {"TopicName": "second"})},
        changed={"PolicyDocument": CLOSED_TOPIC, "Topics": [{"Ref": "second"}]},
        starts="sns-policy-",
        shown=("sns:GetTopicAttributes", {"TopicArn": f"{ARN}:second"}, "Deny"),
    ),
    "AWS::SNS::TopicInlinePolicy": Case(
        {"PolicyDocument": OPEN_TOPIC, "TopicArn": {"Ref": "topic"}},
        needs={"topic": (TOPIC, {"TopicName": "topic"}), "second": (TOPIC, {"TopicName": "second"})},
        changed={"PolicyDocument": CLOSED_TOPIC},
        replacing={"TopicArn": {"Ref": "second"}},
        starts=f"{ARN}:topic",
        shown=("sns:GetTopicAttributes", {"TopicArn": f"{ARN}:topic"}, "Deny"),
    ),
}
