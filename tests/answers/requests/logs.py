"""Requests of CloudWatch Logs."""

from __future__ import annotations

import time

from answers.calls import OTHER, SAME, Calls

CHANGE = {"metricName": "m", "metricNamespace": "n", "metricValue": "1", "defaultValue": 0.0, "unit": "Count"}


def requests(calls: Calls) -> None:
    group = {"logGroupName": "/answers"}
    stream = {**group, "logStreamName": "s"}
    calls.twice(
        "CreateLogGroup", "ResourceAlreadyExistsException", **group, tags={"a": "b"}, kmsKeyId=calls.arn("key/a", service="kms")
    )
    calls.twice("CreateLogStream", "ResourceAlreadyExistsException", **stream)
    now = int(time.time() * 1000)
    events = [{"timestamp": now, "message": "a"}]
    calls.twice("PutLogEvents", OTHER, **stream, logEvents=events, sequenceToken="0")
    old = [{"timestamp": at, "message": "a"} for at in (1, now - 20 * 86_400_000, now + 3 * 3_600_000)]
    calls("PutLogEvents", **stream, logEvents=old)
    calls("GetLogEvents", **stream, startFromHead=True)
    calls.twice("FilterLogEvents", SAME, **group)
    calls.twice("PutRetentionPolicy", SAME, **group, retentionInDays=7)
    calls("PutLogEvents", **stream, logEvents=[{"timestamp": now - 8 * 86_400_000, "message": "a"}, *events])
    calls("DescribeLogGroups", logGroupNamePrefix="/answers")
    calls.twice("PutLogGroupDeletionProtection", SAME, logGroupIdentifier="/answers", deletionProtectionEnabled=True)
    calls.refused("DeleteLogGroup", "ValidationException", **group)
    calls("PutLogGroupDeletionProtection", logGroupIdentifier="/answers", deletionProtectionEnabled=False)
    described = {**group, "filterName": "f", "filterPattern": "{ $.a = 1 }", "fieldSelectionCriteria": '@aws.account = "1"'}
    calls.twice("PutMetricFilter", SAME, **described, metricTransformations=[CHANGE])
    by_size = {"metricName": "m", "metricNamespace": "n", "metricValue": "$.a", "dimensions": {"d": "$.d"}}
    calls("PutMetricFilter", **group, filterName="g", filterPattern="{ $.a = 1 }", metricTransformations=[by_size])
    calls("DescribeMetricFilters", **group)
    calls("CreateLogGroup", logGroupName="/cheap", logGroupClass="INFREQUENT_ACCESS")
    cheap = {"logGroupName": "/cheap", "filterName": "f", "filterPattern": "", "metricTransformations": [CHANGE]}
    calls.refused("PutMetricFilter", "InvalidOperationException", **cheap)
    calls("TestMetricFilter", filterPattern="[a, b]", logEventMessages=["1 2"])
    calls("DescribeLogGroups", logGroupNamePrefix="/answers")
    calls("ListLogGroups")
    calls("DescribeLogStreams", **group)
    calls.twice("TagLogGroup", SAME, **group, tags={"c": "d"})
    calls("ListTagsLogGroup", **group)
    calls.twice("UntagLogGroup", SAME, **group, tags=["c"])
    resource = {"resourceArn": calls.arn("log-group:/answers")}
    calls.twice("TagResource", SAME, **resource, tags={"c": "d"})
    calls("ListTagsForResource", **resource)
    calls.twice("UntagResource", SAME, **resource, tagKeys=["c"])
    refusals(calls)
    calls.twice("DeleteMetricFilter", "ResourceNotFoundException", **group, filterName="f")
    calls.twice("DeleteRetentionPolicy", SAME, **group)
    calls.twice("DeleteLogStream", "ResourceNotFoundException", **stream)
    calls.twice("DeleteLogGroup", "ResourceNotFoundException", **group)


def refusals(calls: Calls) -> None:
    calls.all_refused("ResourceNotFoundException", logGroupName="none")
    calls.all_refused("ResourceNotFoundException", resourceArn=calls.arn("log-group:none"))
    calls.refused(
        "PutLogGroupDeletionProtection", "ResourceNotFoundException", logGroupIdentifier="none", deletionProtectionEnabled=True
    )
    calls("TagResource", resourceArn=calls.arn("log-group:/answers"), tags={f"k{number}": "" for number in range(45)})
    tags = {f"l{number}": "" for number in range(10)}
    calls.refused("TagResource", "TooManyTagsException", resourceArn=calls.arn("log-group:/answers"), tags=tags)
