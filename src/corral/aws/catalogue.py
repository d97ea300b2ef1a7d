"""The services whose requests Corral recognises, and the values in a request that identify each service.

This table is written by hand. If Corral read these values from botocore, it would load every model at start. A test compares the
table with botocore's metadata.
"""

from __future__ import annotations

from msgspec import Struct

MIB = 1024 * 1024
# The limit of a body for services that accept 1 MiB of data (log events, messages, metrics, templates). A character of this data
# takes up to six bytes in JSON, and three in a form.
ESCAPED = 8 * MIB
FILES = 16 * MIB  # the limit for services that accept files: the code of functions, and the manifests of images


class AwsService(Struct, frozen=True):
    """The values that identify one service in a request. `name` is botocore's name for the service."""

    name: str
    signing_name: str
    api_version: str
    protocols: tuple[str, ...]  # the protocols that clients use; the first one is preferred
    target_prefix: str | None = None  # the part of the X-Amz-Target header before the dot
    body_max_bytes: int = 4 * MIB


SERVICES: tuple[AwsService, ...] = (
    AwsService("application-autoscaling", "application-autoscaling", "2016-02-06", ("json",), "AnyScaleFrontendService"),
    AwsService("autoscaling", "autoscaling", "2011-01-01", ("query",)),
    AwsService("autoscaling-plans", "autoscaling-plans", "2018-01-06", ("json",), "AnyScaleScalingPlannerFrontendService"),
    AwsService("batch", "batch", "2016-08-10", ("rest-json",)),
    AwsService("cloudformation", "cloudformation", "2010-05-15", ("query",), body_max_bytes=ESCAPED),
    AwsService("cloudtrail", "cloudtrail", "2013-11-01", ("json",), "com.amazonaws.cloudtrail.v20131101.CloudTrail_20131101"),
    AwsService(
        "cloudwatch",
        "monitoring",
        "2010-08-01",
        ("json", "query", "smithy-rpc-v2-cbor"),
        "GraniteServiceVersion20100801",
        ESCAPED,
    ),
    AwsService("corral", "corral", "2026-11-01", ("json",), "Corral", FILES),  # Corral's own operations (`services/corral`)
    AwsService("dynamodb", "dynamodb", "2012-08-10", ("json",), "DynamoDB_20120810"),
    AwsService("ec2", "ec2", "2016-11-15", ("ec2",)),
    AwsService("ecr", "ecr", "2015-09-21", ("json",), "AmazonEC2ContainerRegistry_V20150921", FILES),
    AwsService("ecs", "ecs", "2014-11-13", ("json",), "AmazonEC2ContainerServiceV20141113"),
    AwsService("elbv2", "elasticloadbalancing", "2015-12-01", ("query",)),
    AwsService("events", "events", "2015-10-07", ("json",), "AWSEvents"),
    AwsService("firehose", "firehose", "2015-08-04", ("json",), "Firehose_20150804"),
    AwsService("iam", "iam", "2010-05-08", ("query",)),
    AwsService("kinesis", "kinesis", "2013-12-02", ("json",), "Kinesis_20131202"),
    AwsService("kms", "kms", "2014-11-01", ("json",), "TrentService"),
    AwsService("lambda", "lambda", "2015-03-31", ("rest-json",), body_max_bytes=FILES),
    AwsService("logs", "logs", "2014-03-28", ("json",), "Logs_20140328", ESCAPED),
    AwsService("s3", "s3", "2006-03-01", ("rest-xml",), body_max_bytes=ESCAPED),
    AwsService("secretsmanager", "secretsmanager", "2017-10-17", ("json",), "secretsmanager"),
    AwsService("sns", "sns", "2010-03-31", ("query",)),
    AwsService("sqs", "sqs", "2012-11-05", ("json", "query"), "AmazonSQS", ESCAPED),  # old clients still use the query protocol
    AwsService("ssm", "ssm", "2014-11-06", ("json",), "AmazonSSM"),
    AwsService("sts", "sts", "2011-06-15", ("query",)),
)

SERVICE_BY_NAME = {service.name: service for service in SERVICES}
SERVICE_BY_SIGNING_NAME = {service.signing_name: service for service in SERVICES}
SERVICE_BY_TARGET_PREFIX = {service.target_prefix: service for service in SERVICES if service.target_prefix is not None}
# On AWS, these services have no X-Amz-Target. With these prefixes of Corral's own, they also accept requests in AWS JSON.
SERVICE_BY_OWN_PREFIX = {f"Corral.{each.name}": each for each in SERVICES if each.protocols[0] in ("query", "ec2", "rest-json")}
SERVICE_BY_ACTION_VERSION = {service.api_version: service for service in SERVICES if {"query", "ec2"} & set(service.protocols)}
assert len(SERVICE_BY_SIGNING_NAME) == len(SERVICES), "two services have the same signing name"
