"""CloudWatch Logs: groups, streams, PutLogEvents and GetLogEvents, through boto3."""

from __future__ import annotations

import time

import pytest


@pytest.fixture
def logs(client):
    return client("logs")


@pytest.fixture
def stream(logs, request):
    group = f"/group/{request.node.name}"
    logs.create_log_group(logGroupName=group)
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    return {"logGroupName": group, "logStreamName": "s"}


def now_ms() -> int:
    return int(time.time() * 1000)


def put(logs, stream, *messages, at_ms=None):
    at_ms = at_ms or now_ms()
    return logs.put_log_events(**stream, logEvents=[{"timestamp": at_ms, "message": text} for text in messages])


def test_put_and_get_in_both_directions(logs, stream):
    put(logs, stream, *[f"line {number}" for number in range(25)])
    page = logs.get_log_events(**stream, limit=10, startFromHead=True)
    assert [event["message"] for event in page["events"]] == [f"line {number}" for number in range(10)]
    page = logs.get_log_events(**stream, limit=10, nextToken=page["nextForwardToken"])
    assert page["events"][0]["message"] == "line 10"
    page = logs.get_log_events(**stream, limit=10, nextToken=page["nextForwardToken"])
    assert len(page["events"]) == 5
    end = logs.get_log_events(**stream, limit=10, nextToken=page["nextForwardToken"])
    assert end["events"] == [] and end["nextForwardToken"] == page["nextForwardToken"]
    put(logs, stream, "later")
    assert [e["message"] for e in logs.get_log_events(**stream, nextToken=end["nextForwardToken"])["events"]] == ["later"]
    newest = logs.get_log_events(**stream, limit=3)
    assert [event["message"] for event in newest["events"]] == ["line 23", "line 24", "later"]
    back = logs.get_log_events(**stream, limit=3, nextToken=newest["nextBackwardToken"])
    assert [event["message"] for event in back["events"]] == ["line 20", "line 21", "line 22"]


def test_tokens_of_an_empty_stream_continue_with_its_first_event(logs, stream):
    token = logs.get_log_events(**stream, startFromHead=True)["nextForwardToken"]
    put(logs, stream, "first")
    assert [event["message"] for event in logs.get_log_events(**stream, nextToken=token)["events"]] == ["first"]


def test_start_and_end_time_limit_the_events(logs, stream):
    base = now_ms() - 60_000
    for number in range(3):
        put(logs, stream, f"at {number}", at_ms=base + number * 1000)
    shown = logs.get_log_events(**stream, startTime=base + 1000, endTime=base + 2000)["events"]
    assert [event["message"] for event in shown] == ["at 1"]


def test_invalid_batches_are_refused(logs, stream):
    invalid = logs.exceptions.InvalidParameterException
    with pytest.raises(invalid, match="chronological"):
        now = now_ms()
        events = [{"timestamp": now, "message": "b"}, {"timestamp": now - 1, "message": "a"}]
        logs.put_log_events(**stream, logEvents=events)
    with pytest.raises(invalid, match="too large"):
        put(logs, stream, "x" * 1_048_551)  # with its 26 bytes, one too many
    with pytest.raises(invalid, match="too large"):
        put(logs, stream, *["x" * 200_000] * 6)
    old = put(logs, stream, "ancient", at_ms=now_ms() - 15 * 86_400_000)
    assert old["rejectedLogEventsInfo"] == {"tooOldLogEventEndIndex": 1}
    new = put(logs, stream, "future", at_ms=now_ms() + 3 * 3_600_000)
    assert new["rejectedLogEventsInfo"] == {"tooNewLogEventStartIndex": 0}
    assert logs.get_log_events(**stream)["events"] == []


def test_missing_and_duplicate_names(logs, stream):
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log group"):
        put(logs, stream | {"logGroupName": "/nowhere"}, "x")
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log stream"):
        put(logs, stream | {"logStreamName": "nothing"}, "x")
    with pytest.raises(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_group(logGroupName=stream["logGroupName"])
    with pytest.raises(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_stream(**stream)
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.get_log_events(**stream, nextToken="nonsense")


def test_groups_and_streams_are_listed_in_pages(logs):
    for number in range(5):
        logs.create_log_group(logGroupName=f"/paged/{number}")
        logs.create_log_stream(logGroupName="/paged/0", logStreamName=f"stream-{number}")
    groups = logs.get_paginator("describe_log_groups").paginate(logGroupNamePrefix="/paged/", PaginationConfig={"PageSize": 2})
    assert [group["logGroupName"] for group in groups.build_full_result()["logGroups"]] == [f"/paged/{n}" for n in range(5)]
    streams = logs.get_paginator("describe_log_streams").paginate(logGroupName="/paged/0", PaginationConfig={"PageSize": 2})
    assert [s["logStreamName"] for s in streams.build_full_result()["logStreams"]] == [f"stream-{n}" for n in range(5)]
    put(logs, {"logGroupName": "/paged/0", "logStreamName": "stream-3"}, "x")
    newest = logs.describe_log_streams(logGroupName="/paged/0", orderBy="LastEventTime", descending=True, limit=1)
    assert newest["logStreams"][0]["logStreamName"] == "stream-3"
    logs.delete_log_group(logGroupName="/paged/0")
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.describe_log_streams(logGroupName="/paged/0")
