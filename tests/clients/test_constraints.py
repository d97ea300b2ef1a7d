"""Requests that violate a constraint of AWS's models, sent by boto3 without its own validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

Client = Callable[..., Any]


@pytest.mark.parametrize(
    ("service", "operation", "params", "code", "text"),
    [
        (  # json
            "logs",
            "create_log_group",
            {"logGroupName": "with space"},
            "InvalidParameterException",
            r"1 validation error detected: Value 'with space' at 'logGroupName' failed to satisfy constraint: "
            r"Member must satisfy regular expression pattern: [\.\-_/#A-Za-z0-9]+",
        ),
        (
            "logs",
            "put_retention_policy",
            {"logGroupName": "none", "retentionInDays": 2},
            "InvalidParameterException",
            "1 validation error detected: Value '2' at 'retentionInDays' failed to satisfy constraint: "
            "Member must satisfy enum value set: [1, 3, 5, ",
        ),
        (
            "ecs",
            "run_task",
            {"taskDefinition": "none", "count": 11},
            "InvalidParameterException",
            "Count must be between 1 and 10.",
        ),
        (
            "ecs",
            "run_task",
            {"taskDefinition": "none", "launchType": "MOON", "count": 0},
            "InvalidParameterException",
            "1 validation error detected: Value 'MOON' at 'launchType' failed to satisfy constraint: "
            "Member must satisfy enum value set: [EC2, FARGATE, EXTERNAL, MANAGED_INSTANCES]",
        ),
        (
            "ecs",
            "run_task",
            {"cluster": "none", "taskDefinition": "none", "launchType": "bogus"},
            "InvalidParameterException",
            "Value 'bogus' at 'launchType' failed to satisfy constraint: Member must satisfy enum value set: [EC2, FARGATE, ",
        ),
        (
            "ecr",
            "describe_images",
            {"repositoryName": "Upper"},
            "InvalidParameterException",
            "Invalid parameter at 'repositoryName' failed to satisfy constraint: 'must satisfy regular expression '",
        ),
        (
            "ssm",
            "get_parameters",
            {"Names": [f"n{number}" for number in range(11)]},
            "ValidationException",
            "at 'names' failed to satisfy constraint: Member must have length less than or equal to 10",
        ),
        (
            "sqs",
            "list_queues",
            {"MaxResults": 1001},
            "InvalidParameterValue",
            "Value 1001 for parameter MaxResults is invalid. Reason: MaxResults must be an integer between 1 and 1000.",
        ),
        (
            "cloudwatch",
            "put_metric_data",
            {"Namespace": "a", "MetricData": [{"MetricName": "m", "Value": 1}, {"MetricName": "", "Value": 1, "Unit": "Miles"}]},
            "InvalidParameterValue",
            "The parameter MetricData.member.2.Unit must be a value in the set [ Seconds, ",
        ),
        (  # query
            "sts",
            "get_federation_token",
            {"Name": "a", "DurationSeconds": 1},
            "ValidationError",
            "2 validation errors detected: Value 'a' at 'name' failed to satisfy constraint: "
            "Member must have length greater than or equal to 2; Value '1' at 'durationSeconds' failed to satisfy constraint: "
            "Member must have value greater than or equal to 900",
        ),
        (
            "iam",
            "get_role",
            {"RoleName": "with space"},
            "ValidationError",
            "The specified value for roleName is invalid. It must contain only alphanumeric characters and/or the following: +=,.@",
        ),
        (  # ec2
            "ec2",
            "create_vpc",
            {"CidrBlock": "10.0.0.0/16", "InstanceTenancy": "large"},
            "InvalidParameterValue",
            "Value (large) for parameter instanceTenancy is invalid. Valid values: default, dedicated, host.",
        ),
        (  # rest-xml: the query string, and a document
            "s3",
            "list_objects_v2",
            {"Bucket": "none", "EncodingType": "rot13"},
            "InvalidArgument",
            "Invalid Encoding Method specified in Request",
        ),
        (
            "s3",
            "put_object",
            {"Bucket": "none", "Key": "a", "StorageClass": "ATTIC"},
            "InvalidStorageClass",
            "The storage class you specified is not valid",
        ),
        ("s3", "put_object", {"Bucket": "none", "Key": "a", "ACL": "friends"}, "InvalidArgument", "The canned ACL is unknown."),
        (
            "s3",
            "create_multipart_upload",
            {"Bucket": "none", "Key": "a", "ServerSideEncryption": "rot13"},
            "InvalidArgument",
            "The encryption method specified is not supported",
        ),
        (
            "s3",
            "put_bucket_tagging",
            {"Bucket": "none", "Tagging": {"TagSet": [{"Key": "", "Value": "b"}]}},
            "InvalidTag",
            "The TagKey you have provided is invalid",
        ),
        (
            "s3",
            "put_bucket_versioning",
            {"Bucket": "none", "VersioningConfiguration": {"Status": "Sometimes"}},
            "MalformedXML",
            "The XML you provided was not well-formed or did not validate against our published schema",
        ),
    ],
)
def test_a_violation_is_refused_before_the_handler_runs(
    client: Client, service: str, operation: str, params: dict[str, Any], code: str, text: str
) -> None:
    loose = client(service, parameter_validation=False)
    with pytest.raises(ClientError) as refused:
        getattr(loose, operation)(**params)
    assert refused.value.response["Error"]["Code"] == code
    assert text in refused.value.response["Error"]["Message"]


def test_modelled_errors_are_typed(client: Client) -> None:
    logs = client("logs", parameter_validation=False)
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.describe_log_groups(limit=51)
    sqs = client("sqs", parameter_validation=False)
    with pytest.raises(sqs.exceptions.EmptyBatchRequest):
        sqs.delete_message_batch(QueueUrl="http://localhost/000000000000/none", Entries=[])
