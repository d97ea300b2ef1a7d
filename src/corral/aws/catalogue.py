"""The services whose requests Corral can name, and how a request shows that it is meant for one of them.

Written by hand, because reading it from botocore would mean loading every model at start; a test holds it against
botocore's own metadata.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Service:
    """How one service is recognised; `name` is botocore's."""

    name: str
    signing_name: str
    api_version: str
    protocols: tuple[str, ...]  # those that clients use, the preferred one first
    target_prefix: str | None = None  # of X-Amz-Target


SERVICES: tuple[Service, ...] = (
    Service("application-autoscaling", "application-autoscaling", "2016-02-06", ("json",), "AnyScaleFrontendService"),
    Service("autoscaling", "autoscaling", "2011-01-01", ("query",)),
    Service("autoscaling-plans", "autoscaling-plans", "2018-01-06", ("json",), "AnyScaleScalingPlannerFrontendService"),
    Service("batch", "batch", "2016-08-10", ("rest-json",)),
    Service("cloudformation", "cloudformation", "2010-05-15", ("query",)),
    Service(
        "cloudwatch",
        "monitoring",
        "2010-08-01",
        ("json", "query", "smithy-rpc-v2-cbor"),
        "GraniteServiceVersion20100801",
    ),
    Service("dynamodb", "dynamodb", "2012-08-10", ("json",), "DynamoDB_20120810"),
    Service("ec2", "ec2", "2016-11-15", ("ec2",)),
    Service("ecr", "ecr", "2015-09-21", ("json",), "AmazonEC2ContainerRegistry_V20150921"),
    Service("ecs", "ecs", "2014-11-13", ("json",), "AmazonEC2ContainerServiceV20141113"),
    Service("elbv2", "elasticloadbalancing", "2015-12-01", ("query",)),
    Service("events", "events", "2015-10-07", ("json",), "AWSEvents"),
    Service("firehose", "firehose", "2015-08-04", ("json",), "Firehose_20150804"),
    Service("iam", "iam", "2010-05-08", ("query",)),
    Service("kinesis", "kinesis", "2013-12-02", ("json",), "Kinesis_20131202"),
    Service("kms", "kms", "2014-11-01", ("json",), "TrentService"),
    Service("lambda", "lambda", "2015-03-31", ("rest-json",)),
    Service("logs", "logs", "2014-03-28", ("json",), "Logs_20140328"),
    Service("s3", "s3", "2006-03-01", ("rest-xml",)),
    Service("secretsmanager", "secretsmanager", "2017-10-17", ("json",), "secretsmanager"),
    Service("sns", "sns", "2010-03-31", ("query",)),
    Service("sqs", "sqs", "2012-11-05", ("json", "query"), "AmazonSQS"),  # older clients still speak query
    Service("ssm", "ssm", "2014-11-06", ("json",), "AmazonSSM"),
    Service("sts", "sts", "2011-06-15", ("query",)),
)

BY_NAME = {service.name: service for service in SERVICES}
BY_SIGNING_NAME = {service.signing_name: service for service in SERVICES}
BY_TARGET_PREFIX = {service.target_prefix: service for service in SERVICES if service.target_prefix is not None}
BY_ACTION_VERSION = {service.api_version: service for service in SERVICES if {"query", "ec2"} & set(service.protocols)}
assert len(BY_SIGNING_NAME) == len(SERVICES), "two services with one signing name need a second mark"
