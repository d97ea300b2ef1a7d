"""Cases of S3, SQS, CloudWatch Logs, CloudWatch, ECR, SSM and Secrets Manager."""

from __future__ import annotations

from typing import Any

from stacks.resource_cases import OTHER_TAGS, TAGS, Case

BUCKET, QUEUE, REPOSITORY, LOG_GROUP = "AWS::S3::Bucket", "AWS::SQS::Queue", "AWS::ECR::Repository", "AWS::Logs::LogGroup"
ALARM = "AWS::CloudWatch::Alarm"
TO_QUEUE = {"Effect": "Allow", "Principal": {"Service": "s3.amazonaws.com"}, "Action": "sqs:SendMessage", "Resource": "*"}
OPEN_QUEUE = {"Version": "2012-10-17", "Statement": [TO_QUEUE]}
CLOSED_QUEUE = {"Version": "2012-10-17", "Statement": [{**TO_QUEUE, "Effect": "Deny"}]}
LIFECYCLE = (
    '{"rules": [{"rulePriority": 1, "selection": {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": %d}, '
    '"action": {"type": "expire"}}]}'
)
SECRET = "AWS::SecretsManager::Secret"
READ_SECRET = {"Effect": "Allow", "Principal": {"AWS": "123456789012"}, "Action": "secretsmanager:GetSecretValue", "Resource": "*"}
SECRETS = {"secret": SECRET, "other": (SECRET, {"Name": "other", "SecretString": "x"})}


def bucket_policy(sid: str) -> dict[str, Any]:
    allow = {"Sid": sid, "Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::bucket/*"}
    return {"Version": "2012-10-17", "Statement": [allow]}


CASES: dict[str, Case] = {
    BUCKET: Case(
        {
            "BucketName": "bucket",
            "AccessControl": "LogDeliveryWrite",
            "OwnershipControls": {"Rules": [{"ObjectOwnership": "ObjectWriter"}]},
            "VersioningConfiguration": {"Status": "Enabled"},
            "BucketEncryption": {
                "ServerSideEncryptionConfiguration": [
                    {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}, "BucketKeyEnabled": True}
                ]
            },
            "CorsConfiguration": {"CorsRules": [{"AllowedMethods": ["GET"], "AllowedOrigins": ["*"], "MaxAge": 60}]},
            "LifecycleConfiguration": {
                "Rules": [
                    {
                        "Id": "old",
                        "Status": "Enabled",
                        "Prefix": "tmp/",
                        "ExpirationInDays": 7,
                        "NoncurrentVersionExpirationInDays": 3,
                    },
                    {
                        "Id": "large",
                        "Status": "Enabled",
                        "TagFilters": [{"Key": "a", "Value": "b"}],
                        "ObjectSizeGreaterThan": "1000",
                        "Transitions": [{"StorageClass": "Glacier", "TransitionDate": "2030-01-01T00:00:00Z"}],
                    },
                    {"Id": "parts", "Status": "Enabled", "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}},
                ]
            },
            "LoggingConfiguration": {"LogFilePrefix": "log/"},
            "MetricsConfigurations": [{"Id": "all"}, {"Id": "some", "Prefix": "p/", "TagFilters": [{"Key": "a", "Value": "b"}]}],
            "InventoryConfigurations": [
                {
                    "Id": "daily",
                    "Enabled": True,
                    "IncludedObjectVersions": "All",
                    "ScheduleFrequency": "Daily",
                    "Destination": {"BucketArn": "arn:aws:s3:::other", "Format": "CSV"},
                }
            ],
            "AnalyticsConfigurations": [
                {
                    "Id": "classes",
                    "StorageClassAnalysis": {
                        "DataExport": {
                            "OutputSchemaVersion": "V_1",
                            "Destination": {"BucketArn": "arn:aws:s3:::other", "Format": "CSV"},
                        }
                    },
                }
            ],
            "IntelligentTieringConfigurations": [
                {"Id": "cold", "Status": "Enabled", "Tierings": [{"AccessTier": "ARCHIVE_ACCESS", "Days": 90}]}
            ],
            "ReplicationConfiguration": {
                "Role": "arn:aws:iam::123456789012:role/replication",
                "Rules": [
                    {
                        "Id": "all",
                        "Status": "Enabled",
                        "Priority": 1,
                        "Filter": {"And": {"Prefix": "p/", "TagFilters": [{"Key": "a", "Value": "b"}]}},
                        "DeleteMarkerReplication": {"Status": "Disabled"},
                        "Destination": {"Bucket": "arn:aws:s3:::other"},
                    }
                ],
            },
            "WebsiteConfiguration": {
                "IndexDocument": "index.html",
                "ErrorDocument": "error.html",
                "RoutingRules": [
                    {"RedirectRule": {"ReplaceKeyWith": "x"}, "RoutingRuleCondition": {"HttpErrorCodeReturnedEquals": "404"}}
                ],
            },
            "NotificationConfiguration": {
                "QueueConfigurations": [
                    {
                        "Event": "s3:ObjectCreated:Put",
                        "Queue": {"GetAtt": ["queue", "Arn"]},
                        "Filter": {"S3Key": {"Rules": [{"Name": "suffix", "Value": ".jpg"}]}},
                    }
                ],
                "TopicConfigurations": [{"Event": "s3:ObjectRemoved:*", "Topic": "arn:aws:sns:us-east-1:123456789012:topic"}],
            },
            "PublicAccessBlockConfiguration": {"BlockPublicAcls": True},
            **TAGS,
        },
        needs={"queue": QUEUE, "policy": "AWS::SQS::QueuePolicy"},
        changed={
            **OTHER_TAGS,
            "AccessControl": None,
            "OwnershipControls": None,
            "BucketEncryption": None,
            "CorsConfiguration": None,
            "LifecycleConfiguration": {"Rules": [{"Id": "new", "Status": "Enabled", "ExpirationInDays": 1}]},
            "LoggingConfiguration": None,
            "MetricsConfigurations": [{"Id": "some", "Prefix": "q/"}],
            "InventoryConfigurations": None,
            "AnalyticsConfigurations": None,
            "IntelligentTieringConfigurations": None,
            "ReplicationConfiguration": None,
            "WebsiteConfiguration": None,
            "NotificationConfiguration": None,
            "PublicAccessBlockConfiguration": None,
            "ObjectLockEnabled": True,
            "AccelerateConfiguration": {"AccelerationStatus": "Enabled"},
            "AbacStatus": "Enabled",
        },
        replacing={"BucketName": "bucket2"},
        starts="bucket",
        shown=("s3:GetBucketLifecycleConfiguration", {"Bucket": "bucket"}, "{'Prefix': ''}"),
    ),
    "AWS::S3::BucketPolicy": Case(
        {"Bucket": {"Ref": "bucket"}, "PolicyDocument": bucket_policy("one")},
        needs={"bucket": (BUCKET, {"BucketName": "bucket"}), "second": (BUCKET, {"BucketName": "bucket-2"})},
        changed={"PolicyDocument": bucket_policy("two")},
        replacing={
            "Bucket": {"Ref": "second"},
            "PolicyDocument": {
                "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:*", "Resource": "arn:aws:s3:::bucket-2"}]
            },
        },
        starts="bucket",
        shown=("s3:GetBucketPolicy", {"Bucket": "bucket"}, '"Sid":"two"'),
    ),
    QUEUE: Case(
        {"QueueName": "queue", "VisibilityTimeout": 60, "SqsManagedSseEnabled": True, "FifoQueue": False, **TAGS},
        needs={"dead": (QUEUE, {"QueueName": "dead"})},
        changed={
            "VisibilityTimeout": None,
            "DelaySeconds": 5,
            "RedrivePolicy": {"deadLetterTargetArn": {"GetAtt": ["dead", "Arn"]}, "maxReceiveCount": 3},
            **OTHER_TAGS,
        },
        replacing={"QueueName": "queue.fifo", "FifoQueue": True, "RedrivePolicy": None},
        starts="http://127.0.0.1:4566/123456789012/queue",
        shown=(
            "sqs:GetQueueAttributes",
            {"QueueUrl": "/123456789012/queue", "AttributeNames": ["VisibilityTimeout", "RedrivePolicy"]},
            "'VisibilityTimeout': '30', 'RedrivePolicy': '{\"deadLetter",
        ),
    ),
    "AWS::SQS::QueuePolicy": Case(
        {"PolicyDocument": OPEN_QUEUE, "Queues": [{"Ref": "queue"}]},
        needs={"queue": (QUEUE, {"QueueName": "queue"}), "second": (QUEUE, {"QueueName": "second"})},
        changed={"PolicyDocument": CLOSED_QUEUE, "Queues": [{"Ref": "second"}]},
        starts="sqs-policy-",
        shown=("sqs:GetQueueAttributes", {"QueueUrl": "/123456789012/second", "AttributeNames": ["Policy"]}, "Deny"),
    ),
    "AWS::SQS::QueueInlinePolicy": Case(
        {"PolicyDocument": OPEN_QUEUE, "Queue": {"Ref": "queue"}},
        needs={"queue": (QUEUE, {"QueueName": "queue"}), "second": (QUEUE, {"QueueName": "second"})},
        changed={"PolicyDocument": CLOSED_QUEUE},
        replacing={"Queue": {"Ref": "second"}},
        starts="http://127.0.0.1:4566/123456789012/queue",
        shown=("sqs:GetQueueAttributes", {"QueueUrl": "/123456789012/queue", "AttributeNames": ["Policy"]}, "Deny"),
    ),
    LOG_GROUP: Case(
        {"LogGroupName": "group", "RetentionInDays": 7, "LogGroupClass": "STANDARD", **TAGS},
        changed={"RetentionInDays": 14, "DeletionProtectionEnabled": False, "KmsKeyId": "arn:aws:kms:x", **OTHER_TAGS},
        replacing={"LogGroupName": "group2"},
        starts="group",
        shown=("logs:DescribeLogGroups", {}, "'retentionInDays': 14"),
    ),
    "AWS::Logs::LogStream": Case(
        {"LogGroupName": {"Ref": "group"}, "LogStreamName": "stream"},
        needs={"group": LOG_GROUP},
        replacing={"LogStreamName": "stream2"},
        starts="stream",
        shown=("logs:DescribeLogStreams", {"logGroupName": "group"}, "'stream'"),
    ),
    "AWS::Logs::MetricFilter": Case(
        {
            "LogGroupName": {"Ref": "group"},
            "FilterName": "errors",
            "FilterPattern": "{ $.level = ERROR }",
            "MetricTransformations": [
                {
                    "MetricName": "Errors",
                    "MetricNamespace": "App",
                    "MetricValue": "1",
                    "Dimensions": [{"Key": "Host", "Value": "$.host"}],
                }
            ],
        },
        needs={"group": LOG_GROUP},
        changed={
            "FilterPattern": "WARN",
            "MetricTransformations": [
                {"MetricName": "Warnings", "MetricNamespace": "App", "MetricValue": "1", "DefaultValue": 0, "Unit": "Count"}
            ],
        },
        replacing={"FilterName": "errors2"},
        starts="errors",
        shown=("logs:DescribeMetricFilters", {}, "'metricName': 'Warnings'"),
    ),
    ALARM: Case(
        {
            "AlarmName": "alarm",
            "MetricName": "ApproximateNumberOfMessagesVisible",
            "Namespace": "AWS/SQS",
            "Statistic": "Average",
            "Period": 300,
            "EvaluationPeriods": 1,
            "Threshold": 0,
            "ComparisonOperator": "GreaterThanThreshold",
            "Dimensions": [{"Name": "QueueName", "Value": "queue"}],
            "AlarmDescription": "full",
            **TAGS,
        },
        changed={"Threshold": 5.5, "AlarmDescription": None, "AlarmActions": ["arn:aws:sns:us-east-1:1:t"], **OTHER_TAGS},
        replacing={"AlarmName": "alarm2"},
        starts="alarm",
        shown=("cloudwatch:DescribeAlarms", {}, "'Threshold': 5.5"),
    ),
    "AWS::CloudWatch::CompositeAlarm": Case(
        {"AlarmName": "both", "AlarmRule": "ALARM(alarm)", **TAGS},
        needs={"alarm": ALARM},
        changed={"AlarmRule": "OK(alarm)", **OTHER_TAGS},
        replacing={"AlarmName": "both2"},
        starts="both",
        shown=("cloudwatch:DescribeAlarms", {"AlarmTypes": ["CompositeAlarm"]}, "OK(alarm)"),
    ),
    "AWS::CloudWatch::Dashboard": Case(
        {"DashboardName": "board", "DashboardBody": '{"widgets": []}', **TAGS},
        changed={"DashboardBody": '{"widgets": [], "start": "-PT3H"}', **OTHER_TAGS},
        replacing={"DashboardName": "board2"},
        starts="board",
        shown=("cloudwatch:GetDashboard", {"DashboardName": "board"}, "-PT3H"),
    ),
    REPOSITORY: Case(
        {
            "RepositoryName": "team/app",
            "ImageTagMutability": "IMMUTABLE",
            "ImageScanningConfiguration": {"ScanOnPush": True},
            "LifecyclePolicy": {"LifecyclePolicyText": LIFECYCLE % 3},
            "RepositoryPolicyText": OPEN_QUEUE,
            "EncryptionConfiguration": {"EncryptionType": "AES256"},
            **TAGS,
        },
        changed={
            "ImageTagMutability": "MUTABLE_WITH_EXCLUSION",
            "ImageTagMutabilityExclusionFilters": [
                {"ImageTagMutabilityExclusionFilterType": "WILDCARD", "ImageTagMutabilityExclusionFilterValue": "v*"}
            ],
            "ImageScanningConfiguration": None,
            "LifecyclePolicy": {"LifecyclePolicyText": LIFECYCLE % 5},
            "RepositoryPolicyText": None,
            "EmptyOnDelete": True,
            **OTHER_TAGS,
        },
        replacing={"RepositoryName": "team/app2"},
        starts="team/app",
        shown=("ecr:DescribeRepositories", {}, "'filter': 'v*'"),
    ),
    "AWS::ECR::ReplicationConfiguration": Case(
        {"ReplicationConfiguration": {"Rules": [{"Destinations": [{"Region": "eu-west-1", "RegistryId": "123456789012"}]}]}},
        changed={
            "ReplicationConfiguration": {
                "Rules": [
                    {
                        "Destinations": [{"Region": "eu-west-2", "RegistryId": "123456789012"}],
                        "RepositoryFilters": [{"Filter": "app", "FilterType": "PREFIX_MATCH"}],
                    }
                ]
            }
        },
        starts="123456789012",
        shown=("ecr:DescribeRegistry", {}, "eu-west-2"),
    ),
    "AWS::ECR::RegistryScanningConfiguration": Case(
        {
            "ScanType": "BASIC",
            "Rules": [{"ScanFrequency": "SCAN_ON_PUSH", "RepositoryFilters": [{"Filter": "*", "FilterType": "WILDCARD"}]}],
        },
        changed={"ScanType": "ENHANCED"},
        starts="123456789012",
        shown=("ecr:GetRegistryScanningConfiguration", {}, "ENHANCED"),
    ),
    "AWS::SSM::Parameter": Case(
        {"Name": "/app/size", "Type": "String", "Value": "3", "Description": "size", "Tags": {"a": "1"}},
        changed={"Value": "4", "Description": None, "AllowedPattern": "\\d+", "Tags": {"b": "2"}},
        replacing={"Name": "/app/size2"},
        starts="/app/size",
        shown=("ssm:GetParameter", {"Name": "/app/size"}, "'Value': '4'"),
    ),
    SECRET: Case(
        {
            "Name": "db",
            "Description": "d",
            "GenerateSecretString": {"SecretStringTemplate": '{"user": "me"}', "GenerateStringKey": "password"},
            **TAGS,
        },
        changed={"Description": None, "KmsKeyId": "alias/k", "GenerateSecretString": None, "SecretString": "new", **OTHER_TAGS},
        replacing={"Name": "db2"},
        starts="arn:aws:secretsmanager:us-east-1:123456789012:secret:db-",
        shown=("secretsmanager:GetSecretValue", {"SecretId": "db"}, "'SecretString': 'new'"),
    ),
    "AWS::SecretsManager::ResourcePolicy": Case(
        {"SecretId": {"Ref": "secret"}, "ResourcePolicy": {"Version": "2012-10-17", "Statement": [READ_SECRET]}},
        needs=SECRETS,
        changed={"ResourcePolicy": {"Version": "2012-10-17", "Statement": [{**READ_SECRET, "Sid": "changed"}]}},
        replacing={"SecretId": {"Ref": "other"}},
        starts="arn:aws:secretsmanager:us-east-1:123456789012:secret:db-",
        shown=("secretsmanager:GetResourcePolicy", {"SecretId": "db"}, "changed"),
    ),
    "AWS::SecretsManager::RotationSchedule": Case(
        {"SecretId": {"Ref": "secret"}, "RotationLambdaARN": "arn:aws:lambda:us-east-1:123456789012:function:r"},
        needs=SECRETS,
        changed={"RotationRules": {"AutomaticallyAfterDays": 7}},
        replacing={"SecretId": {"Ref": "other"}},
        starts="arn:aws:secretsmanager:us-east-1:123456789012:secret:db-",
        shown=("secretsmanager:DescribeSecret", {"SecretId": "db"}, "{'AutomaticallyAfterDays': 7}"),
    ),
    "AWS::SecretsManager::SecretTargetAttachment": Case(
        {"SecretId": {"Ref": "secret"}, "TargetId": "database", "TargetType": "AWS::RDS::DBInstance"},
        needs=SECRETS,
        changed={"TargetId": "database2"},
        replacing={"SecretId": {"Ref": "other"}},
        starts="arn:aws:secretsmanager:us-east-1:123456789012:secret:db-",
    ),
}
