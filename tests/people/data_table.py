"""Attempts on objects, messages, topics, parameters, secrets, logs and metrics of another owner."""

from __future__ import annotations

import json

from harness import REGION
from people.attempts import ACCOUNT, WORKS, Actor, Attempt, Names, Outcome, Params, api, listing, outcome_of, partly

ROLE = f"arn:aws:iam::{ACCOUNT}:role/<them>-role"
DATA: Params = {"Bucket": "<them>-data"}
KEY: Params = {**DATA, "Key": "k"}
SPARE: Params = {**DATA, "Key": "spare"}
OBJECT = "arn:aws:s3:::<them>-data/"
BUCKET = "arn:aws:s3:::<them>-data"
OF_SQS, OF_SNS = f"arn:aws:sqs:{REGION}:{ACCOUNT}:", f"arn:aws:sns:{REGION}:{ACCOUNT}:"
QUEUE: Params = {"QueueUrl": "<queue>"}
STREAM: Params = {"logGroupName": "/<them>/log", "logStreamName": "s"}
GROUP: Params = {"logGroupName": "/<them>/log"}
FILTER: Params = {"metricTransformations": [{"metricName": "m", "metricNamespace": "x", "metricValue": "1"}]}
EVENT = [{"timestamp": 1_790_000_000_000, "message": "forged"}]
ALARM: Params = {
    "MetricName": "m", "Namespace": "x", "Statistic": "Sum", "Period": 60, "EvaluationPeriods": 1, "Threshold": 1,
    "ComparisonOperator": "GreaterThanThreshold",
}  # fmt: skip


def policy(action: str, resource: str) -> str:
    who = {"AWS": f"arn:aws:iam::{ACCOUNT}:user/<me>"}
    statement = {"Sid": "s", "Effect": "Allow", "Principal": who, "Action": action, "Resource": resource}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def redrive(target: str) -> str:
    return json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": 3})


OBJECTS = (
    api("read an object", "s3.get_object", KEY, f"{OBJECT}k"),
    api("read a version of an object", "s3.get_object", {**KEY, "VersionId": "<version>"}, OBJECT, control_with=KEY,
        action="s3:GetObjectVersion"),
    api("read the head of an object", "s3.head_object", KEY),
    api("read the attributes of an object", "s3.get_object_attributes", {**KEY, "ObjectAttributes": ["ETag"]}, f"{OBJECT}k"),
    api("read the tags of an object", "s3.get_object_tagging", KEY, f"{OBJECT}k"),
    api("read the ACL of an object", "s3.get_object_acl", KEY, f"{OBJECT}k"),
    api("list the objects of a bucket", "s3.list_objects_v2", DATA, BUCKET, action="s3:ListBucket"),
    api("list the objects, first form", "s3.list_objects", DATA, BUCKET, action="s3:ListBucket"),
    api("list the versions", "s3.list_object_versions", DATA, BUCKET, action="s3:ListBucketVersions"),
    api("list the uploads", "s3.list_multipart_uploads", DATA, BUCKET, action="s3:ListBucketMultipartUploads"),
    api("list the parts of an upload", "s3.list_parts", {**DATA, "Key": "big", "UploadId": "<upload>"}, OBJECT,
        action="s3:ListMultipartUploadParts"),
    api("see a bucket", "s3.head_bucket", DATA),
    api("open a bucket to oneself", "s3.put_bucket_policy", {**DATA, "Policy": policy("s3:*", f"{OBJECT}*")}, BUCKET),
    api("read the location of a bucket", "s3.get_bucket_location", DATA, BUCKET),
    api("read the notifications of a bucket", "s3.get_bucket_notification_configuration", DATA, BUCKET,
        action="s3:GetBucketNotification"),
    listing("list the buckets", "s3.list_buckets", {}, "<them>-data"),
    api("overwrite an object", "s3.put_object", {**KEY, "Body": b"mine"}, f"{OBJECT}k"),
    api("add an object", "s3.put_object", {**DATA, "Key": "<me>", "Body": b"mine"}, f"{OBJECT}<me>"),
    api("copy an object out", "s3.copy_object", {"Bucket": "<me>-data", "Key": "copy", "CopySource": "<them>-data/k"},
        f"{OBJECT}k", action="s3:GetObject"),
    api("copy an object in", "s3.copy_object", {**DATA, "Key": "copy", "CopySource": "<me>-data/k"}, OBJECT, action="s3:PutObject"),
    api("copy a part out", "s3.upload_part_copy", {"Bucket": "<me>-data", "Key": "big", "UploadId": "<my_upload>", "PartNumber": 1,
        "CopySource": "<them>-data/k"}, f"{OBJECT}k", action="s3:GetObject"),
    api("begin an upload", "s3.create_multipart_upload", {**DATA, "Key": "new"}, OBJECT, action="s3:PutObject"),
    api("send a part of an upload", "s3.upload_part", {**DATA, "Key": "big", "UploadId": "<upload>", "PartNumber": 2, "Body": b"x"},
        OBJECT, action="s3:PutObject"),
    api("change the tags of an object", "s3.put_object_tagging", {**KEY, "Tagging": {"TagSet": [{"Key": "a", "Value": "c"}]}},
        f"{OBJECT}k"),
    api("change the ACL of a bucket", "s3.put_bucket_acl", {**DATA, "ACL": "private"}, BUCKET),
    api("open a bucket to the public", "s3.delete_public_access_block", DATA, BUCKET, action="s3:PutBucketPublicAccessBlock"),
    api("change the tags of a bucket", "s3.put_bucket_tagging", {**DATA, "Tagging": {"TagSet": []}}, BUCKET),
    api("let the objects of a bucket expire", "s3.put_bucket_lifecycle_configuration", {**DATA,
        "LifecycleConfiguration": {"Rules": [
        {"ID": "r", "Filter": {}, "Status": "Disabled", "Expiration": {"Days": 1}}]}}, BUCKET,
        action="s3:PutLifecycleConfiguration"),
    api("remove the notifications of a bucket", "s3.put_bucket_notification_configuration",
        {**DATA, "NotificationConfiguration": {}}, BUCKET, action="s3:PutBucketNotification"),
    api("suspend the versions of a bucket", "s3.put_bucket_versioning", {**DATA, "VersioningConfiguration": {"Status": "Enabled"}},
        BUCKET),
    api("replicate a bucket", "s3.put_bucket_replication", {**DATA, "ReplicationConfiguration": {"Role": ROLE, "Rules": [
        {"ID": "r", "Priority": 1, "Filter": {}, "DeleteMarkerReplication": {"Status": "Disabled"}, "Status": "Enabled",
         "Destination": {"Bucket": "arn:aws:s3:::<me>-data"}}]}}, BUCKET, action="s3:PutReplicationConfiguration"),
    api("pass a role to the replication of one's own bucket", "s3.put_bucket_replication", {"Bucket": "<me>-data",
        "ReplicationConfiguration": {"Role": ROLE, "Rules": [{"ID": "r", "Priority": 1, "Filter": {}, "Status": "Enabled",
         "DeleteMarkerReplication": {"Status": "Disabled"}, "Destination": {"Bucket": "arn:aws:s3:::<me>-data"}}]}}, ROLE,
        action="iam:PassRole"),
    api("abort an upload", "s3.abort_multipart_upload", {**DATA, "Key": "big", "UploadId": "<upload>"}, OBJECT, is_last=True),
    partly("delete some objects", "s3.delete_objects", {**DATA, "Delete": {"Objects": [{"Key": "spare"}]}},
        "s3:DeleteObject", f"{OBJECT}spare", is_last=True),
    api("delete an object", "s3.delete_object", SPARE, f"{OBJECT}spare", is_last=True),
    api("delete a version of an object", "s3.delete_object", {**SPARE, "VersionId": "<version>"}, OBJECT,
        action="s3:DeleteObjectVersion", is_last=True),
    api("take over the name of a bucket", "s3.create_bucket", DATA, BUCKET, control=""),
)  # fmt: skip

MESSAGES = (
    api("receive messages", "sqs.receive_message", QUEUE, f"{OF_SQS}<them>-jobs"),
    api("send a message", "sqs.send_message", {**QUEUE, "MessageBody": "x"}, f"{OF_SQS}<them>-jobs"),
    api("send several messages", "sqs.send_message_batch", {**QUEUE, "Entries": [{"Id": "1", "MessageBody": "x"}]},
        f"{OF_SQS}<them>-jobs", action="sqs:SendMessage"),
    api("see the settings of a queue", "sqs.get_queue_attributes", {**QUEUE, "AttributeNames": ["All"]}, f"{OF_SQS}<them>-jobs"),
    api("find a queue", "sqs.get_queue_url", {"QueueName": "<them>-jobs"}, f"{OF_SQS}<them>-jobs"),
    listing("list the queues", "sqs.list_queues", {}, "<them>-jobs"),
    api("list the sources of a dead-letter queue", "sqs.list_dead_letter_source_queues", {"QueueUrl": "<dead>"},
        f"{OF_SQS}<them>-dead"),
    api("see the tags of a queue", "sqs.list_queue_tags", QUEUE, f"{OF_SQS}<them>-jobs"),
    api("hide a message", "sqs.change_message_visibility", {**QUEUE, "ReceiptHandle": "<handle>", "VisibilityTimeout": 0},
        f"{OF_SQS}<them>-jobs"),
    api("change a queue", "sqs.set_queue_attributes", {**QUEUE, "Attributes": {"DelaySeconds": "0"}}, f"{OF_SQS}<them>-jobs"),
    api("open a queue", "sqs.set_queue_attributes", {**QUEUE, "Attributes": {"Policy": policy("sqs:*", "*")}},
        f"{OF_SQS}<them>-jobs"),
    api("give a permission on a queue", "sqs.add_permission", {**QUEUE, "Label": "l", "AWSAccountIds": [ACCOUNT],
        "Actions": ["SendMessage"]}, f"{OF_SQS}<them>-jobs"),
    api("take a permission away", "sqs.remove_permission", {**QUEUE, "Label": "l"}, f"{OF_SQS}<them>-jobs"),
    api("tag a queue", "sqs.tag_queue", {**QUEUE, "Tags": {"a": "b"}}, f"{OF_SQS}<them>-jobs"),
    api("create the queue of another again", "sqs.create_queue", {"QueueName": "<them>-dead"}, f"{OF_SQS}<them>-dead"),
    api("use the dead-letter queue of another", "sqs.set_queue_attributes", {"QueueUrl": "<my_queue>", "Attributes": {
        "RedrivePolicy": redrive("<dead_arn>")}}, f"{OF_SQS}<them>-dead", action="sqs:SendMessage"),
    api("use it in a new queue", "sqs.create_queue", {"QueueName": "<me>-new", "Attributes": {"RedrivePolicy":
        redrive("<dead_arn>")}}, f"{OF_SQS}<them>-dead", action="sqs:SendMessage"),
    api("make one's queue the dead-letter queue of another", "sqs.set_queue_attributes", {**QUEUE, "Attributes": {
        "RedrivePolicy": redrive("<my_dead_arn>")}}, f"{OF_SQS}<them>-jobs"),
    api("move the messages of another to their source", "sqs.start_message_move_task", {"SourceArn": "<dead_arn>"},
        f"{OF_SQS}<them>-dead"),
    api("move one's messages to another's queue", "sqs.start_message_move_task", {"SourceArn": "<my_dead_arn>",
        "DestinationArn": "<queue_arn>"}, f"{OF_SQS}<them>-jobs", action="sqs:SendMessage", control=""),
    api("move another's messages to one's queue", "sqs.start_message_move_task", {"SourceArn": "<dead_arn>",
        "DestinationArn": "<my_queue_arn>"}, f"{OF_SQS}<them>-dead", control=""),
    api("list the moves of messages", "sqs.list_message_move_tasks", {"SourceArn": "<dead_arn>"}, f"{OF_SQS}<them>-dead"),
    api("delete a message", "sqs.delete_message", {**QUEUE, "ReceiptHandle": "<handle>"}, f"{OF_SQS}<them>-jobs", is_last=True),
    api("purge a queue", "sqs.purge_queue", QUEUE, f"{OF_SQS}<them>-jobs", is_last=True),
    api("delete a queue", "sqs.delete_queue", QUEUE, f"{OF_SQS}<them>-jobs", is_last=True),
    api("publish to a topic", "sns.publish", {"TopicArn": "<topic>", "Message": "x"}, f"{OF_SNS}<them>-news"),
    api("publish several", "sns.publish_batch", {"TopicArn": "<topic>", "PublishBatchRequestEntries": [{"Id": "1",
        "Message": "x"}]}, f"{OF_SNS}<them>-news", action="sns:Publish"),
    api("subscribe to a topic", "sns.subscribe", {"TopicArn": "<topic>", "Protocol": "sqs", "Endpoint": "<my_queue_arn>"},
        f"{OF_SNS}<them>-news"),
    api("see a topic", "sns.get_topic_attributes", {"TopicArn": "<topic>"}, f"{OF_SNS}<them>-news"),
    api("open a topic", "sns.set_topic_attributes", {"TopicArn": "<topic>", "AttributeName": "Policy",
        "AttributeValue": policy("sns:Publish", "<topic>")}, f"{OF_SNS}<them>-news"),
    api("open a topic by a label", "sns.add_permission", {"TopicArn": "<topic>", "Label": "l", "AWSAccountId": [ACCOUNT],
        "ActionName": ["Publish"]}, f"{OF_SNS}<them>-news"),
    api("pass a role to one's own topic", "sns.set_topic_attributes", {"TopicArn": "<my_topic>",
        "AttributeName": "SQSSuccessFeedbackRoleArn", "AttributeValue": ROLE}, ROLE, action="iam:PassRole"),
    api("see a subscription", "sns.get_subscription_attributes", {"SubscriptionArn": "<subscription>"}, f"{OF_SNS}<them>-news"),
    api("list the subscriptions of a topic", "sns.list_subscriptions_by_topic", {"TopicArn": "<topic>"}, f"{OF_SNS}<them>-news"),
    listing("list the topics", "sns.list_topics", {}, "<them>-news"),
    listing("list the subscriptions", "sns.list_subscriptions", {}, "<them>-news"),
    api("change a subscription", "sns.set_subscription_attributes", {"SubscriptionArn": "<subscription>",
        "AttributeName": "RawMessageDelivery", "AttributeValue": "true"}, f"{OF_SNS}<them>-news"),
    api("create the topic of another again", "sns.create_topic", {"Name": "<them>-news"}, f"{OF_SNS}<them>-news"),
    api("unsubscribe", "sns.unsubscribe", {"SubscriptionArn": "<subscription>"}, f"{OF_SNS}<them>-news", is_last=True),
    api("delete a topic", "sns.delete_topic", {"TopicArn": "<topic>"}, f"{OF_SNS}<them>-news", is_last=True),
)  # fmt: skip

PARAMETER = f"arn:aws:ssm:{REGION}:{ACCOUNT}:parameter/<them>/rate"
SECRET: Params = {"SecretId": "<secret>"}
TEXTS = (
    api("read a parameter", "ssm.get_parameter", {"Name": "/<them>/rate", "WithDecryption": True}, PARAMETER),
    api("read several parameters", "ssm.get_parameters", {"Names": ["/<them>/rate", "/<me>/rate"]}, PARAMETER),
    listing("read the parameters below a path", "ssm.get_parameters_by_path", {"Path": "/", "Recursive": True}, "secret of <them>"),
    api("read the history of a parameter", "ssm.get_parameter_history", {"Name": "/<them>/rate"}, PARAMETER),
    listing("list the parameters", "ssm.describe_parameters", {}, "/<them>/rate"),
    api("read a secret as a parameter", "ssm.get_parameter", {"Name": "/aws/reference/secretsmanager/<them>-secret",
        "WithDecryption": True}, "<secret>", action="secretsmanager:GetSecretValue"),
    api("overwrite a parameter", "ssm.put_parameter", {"Name": "/<them>/rate", "Value": "x", "Overwrite": True}, PARAMETER),
    api("label a parameter", "ssm.label_parameter_version", {"Name": "/<them>/rate", "Labels": ["l"]}, PARAMETER),
    api("tag a parameter", "ssm.add_tags_to_resource", {"ResourceType": "Parameter", "ResourceId": "/<them>/rate",
        "Tags": [{"Key": "a", "Value": "b"}]}, PARAMETER),
    api("delete a parameter", "ssm.delete_parameter", {"Name": "/<them>/rate"}, PARAMETER, is_last=True),
    api("delete several parameters", "ssm.delete_parameters", {"Names": ["/<them>/plain"]}, "/<them>/plain", is_last=True),
    api("read a secret", "secretsmanager.get_secret_value", SECRET, "<secret>"),
    api("read a secret by its name", "secretsmanager.get_secret_value", {"SecretId": "<them>-secret"}, "<secret>"),
    partly("read several secrets", "secretsmanager.batch_get_secret_value", {"SecretIdList": ["<secret>"]}, "", ""),
    listing("read the secrets of a filter", "secretsmanager.batch_get_secret_value",
        {"Filters": [{"Key": "name", "Values": ["<them>"]}]}, "secret of <them>"),
    listing("list the secrets", "secretsmanager.list_secrets", {}, "<them>-secret"),
    api("describe a secret", "secretsmanager.describe_secret", SECRET, "<secret>"),
    api("open a secret", "secretsmanager.put_resource_policy", {**SECRET, "ResourcePolicy": policy(
        "secretsmanager:GetSecretValue", "*")}, "<secret>"),
    api("overwrite a secret", "secretsmanager.put_secret_value", {**SECRET, "SecretString": "x"}, "<secret>"),
    api("change a secret", "secretsmanager.update_secret", {**SECRET, "Description": "x"}, "<secret>"),
    api("let one's function rotate a secret", "secretsmanager.rotate_secret", {**SECRET, "RotationLambdaARN": "<my_function>",
        "RotationRules": {"AutomaticallyAfterDays": 30}}, "<secret>", control=""),
    api("tag a secret", "secretsmanager.tag_resource", {**SECRET, "Tags": [{"Key": "a", "Value": "b"}]}, "<secret>"),
    api("delete a secret", "secretsmanager.delete_secret", SECRET, "<secret>", is_last=True),
)  # fmt: skip

LOG = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/<them>/log"
LOGS = (
    api("read a log", "logs.get_log_events", STREAM, f"{LOG}:log-stream:s"),
    listing("search a log", "logs.filter_log_events", GROUP, "secret of <them>"),
    listing("list the streams of a log", "logs.describe_log_streams", GROUP, "log-stream:s"),
    listing("list the logs", "logs.describe_log_groups", {}, "/<them>/log"),
    listing("list the logs, second form", "logs.list_log_groups", {}, "/<them>/log"),
    listing("list the filters of a log", "logs.describe_metric_filters", {}, "<them>-filter"),
    api("write to a log", "logs.put_log_events", {**STREAM, "logEvents": EVENT}, f"{LOG}:log-stream:s"),
    api("add a stream to a log", "logs.create_log_stream", {**GROUP, "logStreamName": "<me>"}, LOG),
    api("count what is in a log", "logs.put_metric_filter", {**GROUP, "filterName": "<me>", "filterPattern": "secret", **FILTER},
        LOG),
    api("change the retention of a log", "logs.put_retention_policy", {**GROUP, "retentionInDays": 1}, LOG),
    api("tag a log", "logs.tag_resource", {"resourceArn": LOG, "tags": {"a": "b"}}, LOG),
    api("see the tags of a log", "logs.list_tags_for_resource", {"resourceArn": LOG}, LOG),
    api("delete a filter of a log", "logs.delete_metric_filter", {**GROUP, "filterName": "<them>-filter"}, LOG, is_last=True),
    api("delete a stream of a log", "logs.delete_log_stream", STREAM, LOG, is_last=True),
    api("delete a log", "logs.delete_log_group", GROUP, LOG, is_last=True),
    api("overwrite an alarm", "cloudwatch.put_metric_alarm", {"AlarmName": "<them>-alarm", **ALARM}, ":alarm:<them>-alarm"),
    api("set the state of an alarm", "cloudwatch.set_alarm_state", {"AlarmName": "<them>-alarm", "StateValue": "OK",
        "StateReason": "x"}, ":alarm:<them>-alarm"),
    api("silence an alarm", "cloudwatch.disable_alarm_actions", {"AlarmNames": ["<them>-alarm"]}, ":alarm:<them>-alarm"),
    api("tag an alarm", "cloudwatch.tag_resource", {"ResourceARN": f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:<them>-alarm",
        "Tags": [{"Key": "a", "Value": "b"}]}, ":alarm:<them>-alarm"),
    api("let an alarm publish to another's topic", "cloudwatch.put_metric_alarm", {"AlarmName": "<me>-other", **ALARM,
        "AlarmActions": ["<topic>"]}, "<topic>", action="sns:Publish"),
    api("overwrite a dashboard", "cloudwatch.put_dashboard", {"DashboardName": "<them>-board", "DashboardBody": "{}"},
        "dashboard/<them>-board", control_with={"DashboardName": "<them>-board", "DashboardBody": '{"widgets": []}'}),
    api("delete an alarm", "cloudwatch.delete_alarms", {"AlarmNames": ["<them>-alarm"]}, ":alarm:<them>-alarm", is_last=True),
    api("delete a dashboard", "cloudwatch.delete_dashboards", {"DashboardNames": ["<them>-board"]}, "dashboard/<them>-board",
        is_last=True),
)  # fmt: skip


def deliver_by_topic(actor: Actor, names: Names) -> Outcome:
    """Subscribe the queue of another to a new topic, and publish. As on AWS, the queue gets it only if its policy says so."""
    sns = actor.client("sns")
    topic = sns.create_topic(Name=f"{actor.name}-deliver")["TopicArn"]
    sns.subscribe(TopicArn=topic, Protocol="sqs", Endpoint=names["queue_arn"])
    sns.subscribe(TopicArn=topic, Protocol="lambda", Endpoint=names["function"])
    sns.publish(TopicArn=topic, Message="forged")
    sns.delete_topic(TopicArn=topic)
    return Outcome(WORKS)


def claim(actor: Actor, names: Names) -> Outcome:
    """Send the condition keys as headers and as parameters of the URL."""
    from botocore.awsrequest import AWSRequest

    def add(request: AWSRequest, **_: object) -> None:
        request.headers["x-corral-owner"] = f"user/{actor.name}"
        request.url += f"?corral:Owner=user/{actor.name}&corral%3ACaller={names['owner']}"

    s3 = actor.client("s3")
    s3.meta.events.register("before-sign.s3.GetObject", add)
    try:
        return outcome_of(lambda: s3.get_object(Bucket=f"{names['them']}-data", Key="k")["Body"].read())
    finally:
        s3.meta.events.unregister("before-sign.s3.GetObject", add)


def notified(name: str, member: str, target: Params) -> Attempt:
    """Let one's bucket notify a target of another owner. S3's error for it names no permission."""
    return api(
        name, "s3.put_bucket_notification_configuration",
        {"Bucket": "<me>-data", "NotificationConfiguration": {member: [{"Id": "x", "Events": ["s3:ObjectCreated:*"], **target}]}},
        expected="InvalidArgument", says="Unable to validate the following destination configurations", control="",
    )  # fmt: skip


OWNERS = (
    Attempt("name oneself as the owner", claim, action="s3:GetObject", on=f"{OBJECT}k"),
    api("tag a queue with an owner", "sqs.tag_queue", {**QUEUE, "Tags": {"corral:Owner": "user/<me>"}}, f"{OF_SQS}<them>-jobs",
        control=""),
    api("make a session with an owner", "sts.assume_role", {"RoleArn": ROLE, "RoleSessionName": "me", "Tags": [
        {"Key": "corral:Owner", "Value": "<owner>"}]}, ROLE, control=""),
    Attempt("deliver to the queue and the function of another", deliver_by_topic, WORKS, control=""),
    notified("let one's bucket notify another's queue", "QueueConfigurations", {"QueueArn": "<queue_arn>"}),
    notified("let one's bucket notify another's topic", "TopicConfigurations", {"TopicArn": "<topic>"}),
    notified("let one's bucket invoke another's function", "LambdaFunctionConfigurations", {"LambdaFunctionArn": "<function>"}),
)  # fmt: skip

ATTEMPTS = (*OWNERS, *OBJECTS, *MESSAGES, *TEXTS, *LOGS)
