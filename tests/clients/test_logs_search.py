"""FilterLogEvents, and GetLogEvents in both directions, through boto3."""

from __future__ import annotations

import re
import time

import pytest


@pytest.fixture
def logs(client):
    return client("logs")


@pytest.fixture
def group(logs, request):
    name = "/group/" + re.sub(r"\W", "-", request.node.name)
    logs.create_log_group(logGroupName=name)
    return name


BASE_MS = int(time.time() * 1000) - 3_600_000


def fill(logs, group, stream, *events):
    """Events as (milliseconds after the base, message)."""
    logs.create_log_stream(logGroupName=group, logStreamName=stream)
    logs.put_log_events(
        logGroupName=group, logStreamName=stream, logEvents=[{"timestamp": BASE_MS + at, "message": text} for at, text in events]
    )


def messages(answer):
    return [event["message"] for event in answer["events"]]


def test_streams_are_interleaved_in_order_of_time(logs, group):
    fill(logs, group, "a", (0, "a0"), (20, "a20"), (40, "a40"))
    fill(logs, group, "b", (10, "b10"), (20, "b20"), (50, "b50"))
    answer = logs.filter_log_events(logGroupName=group)
    assert messages(answer) == ["a0", "b10", "a20", "b20", "a40", "b50"]
    assert answer["searchedLogStreams"] == [] and "nextToken" not in answer
    first = answer["events"][0]
    assert first["logStreamName"] == "a" and first["timestamp"] == BASE_MS and first["ingestionTime"] >= BASE_MS
    ids = [event["eventId"] for event in answer["events"]]
    assert len(set(ids)) == 6 and ids == [event["eventId"] for event in logs.filter_log_events(logGroupName=group)["events"]]
    backwards = logs.filter_log_events(logGroupName=group, startFromHead=False, startTime=BASE_MS)
    assert messages(backwards) == ["b50", "a40", "b20", "a20", "b10", "a0"]


@pytest.mark.parametrize("forwards", [True, False])
def test_the_paginator_returns_every_event_once(logs, group, forwards):
    for stream in range(7):
        fill(logs, group, f"s{stream}", *[(stream + 7 * number, f"{stream + 7 * number:03d}") for number in range(40)])
    pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName=group, filterPattern="-1", startFromHead=forwards, PaginationConfig={"PageSize": 10}
    )
    expected = [text for text in (f"{number:03d}" for number in range(280)) if "1" not in text]
    assert messages(pages.build_full_result()) == (expected if forwards else expected[::-1])


def test_a_search_can_be_limited_to_streams_and_times(logs, group):
    fill(logs, group, "train/1", (0, "one"), (10, "ten"))
    fill(logs, group, "train/2", (5, "five"))
    fill(logs, group, "eval/1", (7, "seven"))
    assert messages(logs.filter_log_events(logGroupName=group, logStreamNamePrefix="train/")) == ["one", "five", "ten"]
    assert messages(logs.filter_log_events(logGroupName=group, logStreamNames=["eval/1", "train/2"])) == ["five", "seven"]
    arn = f"arn:aws:logs:us-east-1:123456789012:log-group:{group}"
    window = {"startTime": BASE_MS + 5, "endTime": BASE_MS + 10}  # the end belongs to it
    assert messages(logs.filter_log_events(logGroupIdentifier=arn, **window)) == ["five", "seven", "ten"]
    assert messages(logs.filter_log_events(logGroupName=group, logStreamNamePrefix="none")) == []
    with pytest.raises(logs.exceptions.InvalidParameterException, match="mutually exclusive"):
        logs.filter_log_events(logGroupName=group, logStreamNamePrefix="t", logStreamNames=["train/1"])
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log stream"):
        logs.filter_log_events(logGroupName=group, logStreamNames=["train/1", "nothing"])
    with pytest.raises(logs.exceptions.ResourceNotFoundException, match="log group"):
        logs.filter_log_events(logGroupName="/nowhere")
    with pytest.raises(logs.exceptions.InvalidParameterException, match="nextToken"):
        logs.filter_log_events(logGroupName=group, nextToken="nonsense")
    with pytest.raises(logs.exceptions.InvalidParameterException, match="2024"):
        logs.filter_log_events(logGroupName=group, startFromHead=False, startTime=0)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("loss", [0, 1]),
        ("loss -nan", [0]),
        ('?"CUDA error" ?nan', [1, 2]),
        ("%step [0-9]{2}%", [1]),
        ("[..., key=loss, value>0.1]", [0]),
        ('{ $.gpu[*].busy >= 90 && $.host = "n*" }', [3]),
        ("{ $.host NOT EXISTS }", []),
    ],
)
def test_every_kind_of_pattern_reaches_the_events(logs, group, pattern, found):
    texts = ["step 7 loss 0.25", "step 10 loss nan", "CUDA error", '{"host": "node1", "gpu": [{"busy": 3}, {"busy": 97}]}']
    fill(logs, group, "s", *enumerate(texts))
    assert messages(logs.filter_log_events(logGroupName=group, filterPattern=pattern)) == [texts[at] for at in found]


def test_an_invalid_pattern_is_refused_with_the_position(logs, group):
    with pytest.raises(
        logs.exceptions.InvalidParameterException, match=r"Invalid filter pattern: .*must end with '}' \(at character 10\)"
    ):
        logs.filter_log_events(logGroupName=group, filterPattern="{ $.a = 1")


def test_a_page_has_at_most_a_mebibyte(logs, group):
    """No event is lost between pages."""
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    for number in range(5):
        event = {"timestamp": BASE_MS + number, "message": f"{number}" * 700_000}
        logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=[event])
    pages = [page["events"] for page in logs.get_paginator("filter_log_events").paginate(logGroupName=group)]
    assert max(map(len, pages)) == 1
    assert [event["message"][0] for page in pages for event in page] == list("01234")


def test_a_long_search_takes_several_pages(logs, group):
    """Some pages have no events, and each continues where the previous page ended."""
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    hay = [{"timestamp": BASE_MS, "message": "hay " * 20}] * 9_000
    for _ in range(16):
        logs.put_log_events(logGroupName=group, logStreamName="s", logEvents=hay)
    fill(logs, group, "t", (1, "needle"))
    pages = list(logs.get_paginator("filter_log_events").paginate(logGroupName=group, filterPattern="needle"))
    assert len(pages) > 1 and pages[0]["events"] == []
    assert [event["message"] for page in pages for event in page["events"]] == ["needle"]


def test_a_stream_ends_with_the_same_token_in_both_directions(logs, group):
    fill(logs, group, "s", *[(number, f"{number}") for number in range(5)])
    stream = {"logGroupName": group, "logStreamName": "s"}
    page = logs.get_log_events(**stream, limit=5, startFromHead=True)
    last = logs.get_log_events(**stream, nextToken=page["nextForwardToken"], startFromHead=True)
    assert last["events"] == [] and last["nextForwardToken"] == page["nextForwardToken"]
    assert messages(logs.get_log_events(**stream, nextToken=last["nextBackwardToken"])) == list("01234")
    back = logs.get_log_events(**stream, nextToken=page["nextBackwardToken"])
    assert back["events"] == [] and back["nextBackwardToken"] == page["nextBackwardToken"]
    assert messages(logs.get_log_events(**stream, nextToken=back["nextForwardToken"])) == list("01234")
    assert messages(logs.get_log_events(logGroupIdentifier=group, logStreamName="s", limit=2, unmask=True)) == ["3", "4"]


def test_batches_follow_the_documented_rules(logs, group):
    logs.create_log_stream(logGroupName=group, logStreamName="s")
    stream = {"logGroupName": group, "logStreamName": "s"}
    invalid = logs.exceptions.InvalidParameterException
    day = 86_400_000

    def put(*times, **more):
        return logs.put_log_events(**stream, logEvents=[{"timestamp": at_ms, "message": "x"} for at_ms in times], **more)

    with pytest.raises(invalid, match="24 hours"):
        put(BASE_MS - day - 1, BASE_MS)
    assert put(BASE_MS - 20 * day, BASE_MS)["rejectedLogEventsInfo"] == {
        "tooOldLogEventEndIndex": 1
    }  # of the others, the span is fine
    put(BASE_MS, sequenceToken="whatever")
    put(BASE_MS, entity={"keyAttributes": {"Type": "Service", "Name": "train", "Environment": "lab"}})
    logs.put_log_events(**stream, logEvents=[{"timestamp": BASE_MS, "message": "x" * (1_048_576 - 26)}])
    with pytest.raises(invalid, match="too large"):
        logs.put_log_events(**stream, logEvents=[{"timestamp": BASE_MS, "message": "é" * 524_276}])
    with pytest.raises(invalid, match="10000"):
        put(*[BASE_MS] * 10_001)
    assert len(logs.filter_log_events(logGroupName=group, filterPattern="-xx")["events"]) == 3
