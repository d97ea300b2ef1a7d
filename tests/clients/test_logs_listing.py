"""CloudWatch Logs: groups, streams, tags, retention and metric filters, through boto3 and the aws command."""

from __future__ import annotations

import re
import time

import pytest

from eventually import eventually

DAY_MS = 86_400_000


@pytest.fixture
def logs(client):
    return client("logs")


@pytest.fixture
def group(logs, request):
    name = "/group/" + re.sub(r"\W", "-", request.node.name)
    logs.create_log_group(logGroupName=name)
    return name


def now_ms() -> int:
    return int(time.time() * 1000)


def put(logs, group, stream, *messages, at_ms=None):
    at_ms = at_ms or now_ms()
    events = [{"timestamp": at_ms, "message": text} for text in messages]
    return logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


def shown(logs, group):
    [found] = logs.describe_log_groups(logGroupIdentifiers=[group])["logGroups"]
    return found


def names(answer):
    return [group["logGroupName"] for group in answer["logGroups"]]


def test_describe_log_groups_returns_the_settings_of_a_group(logs):
    logs.create_log_group(
        logGroupName="/made/one",
        kmsKeyId="arn:aws:kms:us-east-1:123456789012:key/k",
        logGroupClass="INFREQUENT_ACCESS",
        tags={"a": "b"},
    )
    found = shown(logs, "/made/one")
    assert found["kmsKeyId"].endswith("key/k") and found["logGroupClass"] == "INFREQUENT_ACCESS"
    assert found["arn"] == "arn:aws:logs:us-east-1:123456789012:log-group:/made/one:*"
    assert found["logGroupArn"] == found["arn"].removesuffix(":*")
    assert found["storedBytes"] == 0 and found["metricFilterCount"] == 0 and "retentionInDays" not in found
    assert abs(found["creationTime"] - now_ms()) < 60_000


@pytest.mark.parametrize("name", ["with space", "a:b", "a*", "x" * 513, "aws/mine"])
def test_invalid_group_names_are_refused(logs, name):
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.create_log_group(logGroupName=name)


def test_groups_are_found_by_prefix_pattern_class_and_name(logs):
    for name in ("/find/DataLogs", "/find/datalogs", "/find/GroupDataLogs"):
        logs.create_log_group(logGroupName=name)
    logs.create_log_group(logGroupName="/find/rare", logGroupClass="INFREQUENT_ACCESS")
    assert len(names(logs.describe_log_groups(logGroupNamePrefix="/find/"))) == 4
    by_pattern = logs.describe_log_groups(logGroupNamePattern="DataLogs")
    assert names(by_pattern) == ["/find/DataLogs", "/find/GroupDataLogs"]
    members = {"arn", "creationTime", "logGroupArn", "logGroupClass", "logGroupName", "metricFilterCount"}
    assert set(by_pattern["logGroups"][0]) == members  # no more, as on AWS
    assert "/find/rare" in names(logs.describe_log_groups(logGroupClass="ESSENTIALS"))  # the two are listed together
    assert "/find/rare" not in names(logs.describe_log_groups(logGroupClass="STANDARD", logGroupNamePrefix="/find"))
    arn = "arn:aws:logs:us-east-1:123456789012:log-group:/find/rare"
    assert names(logs.describe_log_groups(logGroupIdentifiers=[arn, "/find/datalogs", "/none"])) == ["/find/datalogs", "/find/rare"]
    assert names(logs.describe_log_groups(includeLinkedAccounts=True, logGroupNamePrefix="/find/r")) == ["/find/rare"]
    with pytest.raises(logs.exceptions.InvalidParameterException, match="mutually exclusive"):
        logs.describe_log_groups(logGroupNamePrefix="a", logGroupNamePattern="b")
    with pytest.raises(logs.exceptions.InvalidParameterException, match="less than or equal to 50"):
        logs.describe_log_groups(limit=51)


def test_groups_are_listed_by_pattern_and_tag(logs):
    for name, tags in (("/list/train-a", {"team": "vision"}), ("/list/train-b", {"team": "speech"}), ("/other/train", {"x": "y"})):
        logs.create_log_group(logGroupName=name, tags=tags)
    assert names(logs.list_log_groups(logGroupNamePattern="^/list")) == ["/list/train-a", "/list/train-b"]
    assert names(logs.list_log_groups(logGroupNamePattern="n-b|^/other/t")) == ["/list/train-b", "/other/train"]
    assert names(logs.list_log_groups(logGroupTags=[{"key": "team", "values": ["vis*"]}])) == ["/list/train-a"]
    for values, found in {("VIS*",): "a", ("!vision",): "b", ("!VIS*",): "b", ("Vision",): "", ("none", "!x*"): "ab"}.items():
        tagged = names(logs.list_log_groups(logGroupTags=[{"key": "team", "values": list(values)}]))
        assert tagged == [f"/list/train-{each}" for each in found], values
    assert names(logs.list_log_groups(logGroupTags=[{"key": "team"}])) == ["/list/train-a", "/list/train-b"]
    assert names(logs.list_log_groups(dataSources=[{"name": "x"}])) == []
    page = logs.list_log_groups(logGroupNamePattern="/list", limit=1)
    rest = logs.list_log_groups(logGroupNamePattern="/list", limit=1, nextToken=page["nextToken"])
    assert names(page) + names(rest) == ["/list/train-a", "/list/train-b"] and "nextToken" not in rest
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.list_log_groups(logGroupNamePattern="(a|b)*")


def test_a_group_counts_its_bytes(logs, group):
    for stream in ("one", "two"):
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
        put(logs, group, stream, "four", "é")
    assert shown(logs, group)["storedBytes"] == 2 * (4 + 26 + 2 + 26)
    logs.delete_log_stream(logGroupName=group, logStreamName="one")
    assert shown(logs, group)["storedBytes"] == 4 + 26 + 2 + 26


def test_a_protected_group_is_not_deleted(logs):
    logs.create_log_group(logGroupName="/guarded", deletionProtectionEnabled=True)
    logs.create_log_stream(logGroupName="/guarded", logStreamName="s")
    assert shown(logs, "/guarded")["deletionProtectionEnabled"] is True
    with pytest.raises(logs.exceptions.ValidationException, match="put-log-group-deletion-protection"):
        logs.delete_log_group(logGroupName="/guarded")
    with pytest.raises(logs.exceptions.ValidationException):
        logs.delete_log_stream(logGroupName="/guarded", logStreamName="s")
    logs.put_log_group_deletion_protection(logGroupIdentifier="/guarded", deletionProtectionEnabled=False)
    logs.delete_log_group(logGroupName="/guarded")


def test_the_name_of_a_deleted_group_is_free_at_once(logs, group):
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    put(logs, group, "s", "old")
    logs.put_retention_policy(logGroupName=group, retentionInDays=7)
    logs.delete_log_group(logGroupName=group)
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.delete_log_group(logGroupName=group)
    logs.create_log_group(logGroupName=group)
    assert logs.describe_log_streams(logGroupName=group)["logStreams"] == []
    assert shown(logs, group)["storedBytes"] == 0 and "retentionInDays" not in shown(logs, group)


def test_retention_hides_at_once_and_then_deletes(logs, group):
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    put(logs, group, "s", *[f"old {number}" for number in range(1200)], at_ms=now_ms() - 2 * DAY_MS)
    put(logs, group, "s", "new")
    logs.put_retention_policy(logGroupName=group, retentionInDays=1)
    stream = {"logGroupName": group, "logStreamName": "s"}
    assert [event["message"] for event in logs.get_log_events(**stream, startFromHead=True)["events"]] == ["new"]
    assert [event["message"] for event in logs.filter_log_events(logGroupName=group)["events"]] == ["new"]
    eventually(lambda: shown(logs, group)["storedBytes"] == 3 + 26, "what has expired is deleted")
    logs.delete_retention_policy(logGroupName=group)
    assert [event["message"] for event in logs.get_log_events(**stream, startFromHead=True)["events"]] == ["new"]
    assert "retentionInDays" not in shown(logs, group)


def test_expired_events_are_rejected(logs, group):
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    logs.put_retention_policy(logGroupName=group, retentionInDays=3)
    assert shown(logs, group)["retentionInDays"] == 3
    now = now_ms()
    times = [now - 20 * DAY_MS, now - 4 * DAY_MS, now, now + 3 * 3_600_000]
    events = [{"timestamp": at_ms, "message": "x"} for at_ms in times]
    answer = logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=events)
    assert answer["rejectedLogEventsInfo"] == {
        "tooOldLogEventEndIndex": 1,
        "expiredLogEventEndIndex": 2,
        "tooNewLogEventStartIndex": 3,
    }
    assert len(logs.get_log_events(logGroupName=group, logStreamName="s")["events"]) == 1


def test_other_retention_days_are_refused(logs, group):
    with pytest.raises(logs.exceptions.InvalidParameterException, match="retentionInDays"):
        logs.put_retention_policy(logGroupName=group, retentionInDays=2)
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.put_retention_policy(logGroupName="/nowhere", retentionInDays=1)


def test_both_generations_of_tag_operations(logs, group):
    arn = shown(logs, group)["logGroupArn"]
    logs.tag_resource(resourceArn=arn, tags={"team": "vision", "run": "7"})
    logs.tag_log_group(logGroupName=group, tags={"run": "8"})
    assert logs.list_tags_for_resource(resourceArn=arn)["tags"] == {"team": "vision", "run": "8"}
    assert logs.list_tags_log_group(logGroupName=group)["tags"] == {"team": "vision", "run": "8"}
    logs.untag_resource(resourceArn=arn, tagKeys=["run", "nothing"])
    logs.untag_log_group(logGroupName=group, tags=["team"])
    assert logs.list_tags_for_resource(resourceArn=arn)["tags"] == {}
    with pytest.raises(logs.exceptions.TooManyTagsException):
        for part in range(2):
            logs.tag_resource(resourceArn=arn, tags={f"key{part}-{number}": "" for number in range(26)})
    with pytest.raises(logs.exceptions.InvalidParameterException, match="reserved"):
        logs.tag_resource(resourceArn=arn, tags={"aws:x": "y"})
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.list_tags_for_resource(resourceArn=arn + "x")
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.list_tags_for_resource(resourceArn="arn:aws:ecs:us-east-1:123456789012:cluster/default")


def test_streams_are_listed_in_every_order(logs, group):
    for name in ("b", "a", "c", "never"):
        logs.create_log_stream(logGroupName=group, logStreamName=name)
    for age, name in enumerate(("c", "a", "b")):
        put(logs, group, name, "x", at_ms=now_ms() - (10 - age) * 60_000)

    def listed(**options):
        pages = logs.get_paginator("describe_log_streams").paginate(PaginationConfig={"PageSize": 1}, **options)
        return [stream["logStreamName"] for stream in pages.build_full_result()["logStreams"]]

    assert listed(logGroupName=group) == ["a", "b", "c", "never"]
    assert listed(logGroupIdentifier=shown(logs, group)["logGroupArn"], descending=True) == ["never", "c", "b", "a"]
    assert listed(logGroupName=group, orderBy="LastEventTime") == ["never", "c", "a", "b"]
    assert listed(logGroupName=group, orderBy="LastEventTime", descending=True) == ["b", "a", "c", "never"]
    assert listed(logGroupName=group, logStreamNamePrefix="n") == ["never"]
    invalid = logs.exceptions.InvalidParameterException
    with pytest.raises(invalid, match="LastEventTime"):
        logs.describe_log_streams(logGroupName=group, orderBy="LastEventTime", logStreamNamePrefix="n")
    for call in (logs.describe_log_streams, logs.filter_log_events):
        with pytest.raises(logs.exceptions.ClientError, match="LogGroup name and LogGroup ARN are mutually exclusive parameters"):
            call(logGroupName=group, logGroupIdentifier=group)
        with pytest.raises(invalid, match="exactly one"):
            call()
    described = {stream["logStreamName"]: stream for stream in logs.describe_log_streams(logGroupName=group)["logStreams"]}
    assert "uploadSequenceToken" in described["a"] and "uploadSequenceToken" not in described["never"]
    with pytest.raises(invalid, match="orderBy"):
        logs.describe_log_streams(logGroupName=group, orderBy="Size")
    one = {"logGroupName": group, "logStreamName": "a"}
    for call, more in (
        (logs.describe_log_streams, {"logGroupName": group}),
        (logs.describe_log_groups, {}),
        (logs.list_log_groups, {}),
        (logs.describe_metric_filters, {}),
        (logs.filter_log_events, {"logGroupName": group}),
        (logs.get_log_events, one),
    ):
        with pytest.raises(invalid, match=r"The specified nextToken is invalid\.$"):
            call(**more, nextToken="nonsense")
    too_long = "Invalid LogGroup or LogStream, both must have length less than or equal to 512"
    for wrong in ({**one, "logGroupName": "a" * 513}, {**one, "logStreamName": "a" * 513}):
        with pytest.raises(invalid, match=too_long):
            logs.create_log_stream(**wrong)


TRANSFORMATION = {"metricName": "Errors", "metricNamespace": "Train", "metricValue": "1"}


def test_metric_filters_are_stored(logs, group):
    def put_filter(name, pattern="ERROR", **more):
        logs.put_metric_filter(
            logGroupName=group, filterName=name, filterPattern=pattern, metricTransformations=[TRANSFORMATION | more]
        )

    logs.create_log_group(logGroupName="/low-cost", logGroupClass="INFREQUENT_ACCESS")
    with pytest.raises(logs.exceptions.InvalidOperationException, match="PutMetricFilter is not supported for this log class"):
        logs.put_metric_filter(logGroupName="/low-cost", filterName="f", filterPattern="", metricTransformations=[TRANSFORMATION])
    for name in ("errors", "slow", "errors-too"):
        put_filter(name, "{ $.latency > 3 }", dimensions={"Host": "$.host"}, unit="Count")
    put_filter("errors", metricName="Other", defaultValue=0.5)
    assert shown(logs, group)["metricFilterCount"] == 3
    pages = logs.get_paginator("describe_metric_filters").paginate(logGroupName=group, PaginationConfig={"PageSize": 1})
    found = pages.build_full_result()["metricFilters"]
    assert [each["filterName"] for each in found] == ["errors", "errors-too", "slow"]
    assert found[0]["filterPattern"] == "ERROR" and found[0]["metricTransformations"][0]["defaultValue"] == 0.5
    assert found[1]["metricTransformations"] == [TRANSFORMATION | {"dimensions": {"Host": "$.host"}, "unit": "Count"}]
    assert all(each["logGroupName"] == group and each["creationTime"] for each in found)
    assert [each["applyOnTransformedLogs"] for each in found] == [False] * 3
    by_name = logs.describe_metric_filters(logGroupName=group, filterNamePrefix="errors-")["metricFilters"]
    assert [each["filterName"] for each in by_name] == ["errors-too"]
    by_metric = logs.describe_metric_filters(metricName="Other", metricNamespace="Train")["metricFilters"]
    assert [each["filterName"] for each in by_metric] == ["errors"]
    logs.delete_metric_filter(logGroupName=group, filterName="slow")
    assert shown(logs, group)["metricFilterCount"] == 2
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="metric filter"):
        logs.delete_metric_filter(logGroupName=group, filterName="slow")
    invalid = logs.exceptions.InvalidParameterException
    with pytest.raises(invalid, match="at character 1"):
        put_filter("bad", "@")
    with pytest.raises(invalid, match="does not support dimensions"):
        put_filter("bad", "ERROR", dimensions={"Host": "$.host"})
    with pytest.raises(invalid, match="together"):
        logs.describe_metric_filters(metricName="Other")
    for number in range(5):
        put_filter(f"regex{number}", "%[0-9]%")
    with pytest.raises(logs.exceptions.LimitExceededException):
        put_filter("one-too-many", "%[0-9]%")
    put_filter("regex0", "%[a-z]%")  # another pattern for one that is there


def test_test_metric_filter(aws):
    answer = aws(
        "logs", "test-metric-filter", "--filter-pattern", "[ip, ..., status=5*, size]",
        "--log-event-messages", "1.2.3.4 - anna 500 77", "1.2.3.4 - anna 200 77",
    )  # fmt: skip
    assert answer["matches"] == [
        {
            "eventNumber": 1,
            "eventMessage": "1.2.3.4 - anna 500 77",
            "extractedValues": {"$ip": "1.2.3.4", "$2": "-", "$3": "anna", "$status": "500", "$size": "77"},
        }
    ]


def test_the_aws_command_lists_groups_and_streams(aws):
    aws("logs", "create-log-group", "--log-group-name", "/aws-cli", "--tags", "team=vision")
    aws("logs", "put-retention-policy", "--log-group-name", "/aws-cli", "--retention-in-days", "30")
    [group] = aws("logs", "describe-log-groups", "--log-group-name-prefix", "/aws-cli")["logGroups"]
    assert group["retentionInDays"] == 30
    assert aws("logs", "list-tags-for-resource", "--resource-arn", group["logGroupArn"])["tags"] == {"team": "vision"}
    aws("logs", "create-log-stream", "--log-group-name", "/aws-cli", "--log-stream-name", "s")
    aws("logs", "put-log-events", "--log-group-name", "/aws-cli", "--log-stream-name", "s",
        "--log-events", f"timestamp={now_ms()},message=hello")  # fmt: skip
    [stream] = aws("logs", "describe-log-streams", "--log-group-name", "/aws-cli")["logStreams"]
    assert stream["logStreamName"] == "s" and stream["lastEventTimestamp"]
    [event] = aws("logs", "filter-log-events", "--log-group-name", "/aws-cli", "--filter-pattern", "?hello ?bye")["events"]
    assert event["message"] == "hello"
    with pytest.raises(AssertionError, match="StartQuery"):
        aws("logs", "start-query", "--log-group-name", "/aws-cli", "--start-time", "0", "--end-time", "1", "--query-string", "x")
    aws("logs", "delete-log-group", "--log-group-name", "/aws-cli")
