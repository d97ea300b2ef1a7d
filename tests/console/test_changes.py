"""The streams of changes: what changes is told, once and soon; what does not change is not."""

from __future__ import annotations

import http.client
import json
import re
import time
from typing import Any

import pytest

from console.page import Page, new_user, opened, opened_by
from corral.core.clock import VirtualClock
from corral.core.database import Database
from corral.core.ids import RandomIds
from corral.model.settings import Settings
from corral.server.console.changes import (
    ALL_TOPICS,
    LOGS_MAX,
    NO_TOPIC,
    STREAMS_MAX,
    TOPICS,
    Changes,
    ChangeStream,
    topics_of,
)
from corral.store import Store
from corral.telemetry import LogStore, MetricStore
from harness import Corral, container, eventually


@pytest.fixture(scope="module")
def page(corral: Corral) -> Page:
    return opened(corral)


class Stream:
    def __init__(self, page: Page, *topics: str, after: int | None = None) -> None:
        self.connection = page.begin("POST", "/changes", {"topics": list(topics), "after": after})
        self.response = self.connection.getresponse()
        assert self.response.status == 200, self.response.read()
        assert self.response.getheader("content-type") == "text/event-stream"
        self.id = 0

    def next(self) -> list[str]:
        """Return the topics of the next event."""
        found: list[str] = []
        while True:
            line = self.response.readline().decode()
            assert line, "the stream has ended"
            if line.startswith("id: "):
                self.id = int(line.removeprefix("id: "))
            elif line.startswith("data: "):
                found = json.loads(line.removeprefix("data: "))["topics"]
            elif line == "\n" and found:
                return found

    def until(self, topic: str) -> None:
        while topic not in self.next():
            pass

    def close(self) -> None:
        self.connection.close()


def test_each_table_has_topics_or_none() -> None:
    """A new table needs a line in TOPICS, or in NO_TOPIC if no page shows it."""
    stores: list[type[Database]] = [Store, LogStore, MetricStore]
    tables = {name for store in stores for name in re.findall(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+)", store._script())}
    assert TOPICS.keys() | NO_TOPIC == tables and not TOPICS.keys() & NO_TOPIC


@pytest.mark.parametrize(
    "sql, topics",
    [
        ("SELECT id FROM task WHERE id = ?", set()),
        ("INSERT INTO task (id) VALUES (?)", {"tasks"}),
        ("INSERT OR REPLACE INTO queue VALUES (?)", {"queues"}),
        ("UPDATE task SET state = ? WHERE id IN (SELECT id FROM run)", {"tasks"}),
        ("DELETE FROM lease WHERE run_id = ?", {"tasks", "gpus", "hosts"}),
        ("WITH some AS (SELECT 1) UPDATE OR IGNORE stack SET x = 1", {"stacks"}),
        ("insert into alarm values (1)", {"alarms"}),
        ("UPDATE due SET at_s = ?", set()),
        ("SAVEPOINT command", set()),
    ],
)
def test_statements_that_write_have_the_topics_of_their_table(sql: str, topics: set[str]) -> None:
    assert set(topics_of(sql)) == topics


def test_changes_reach_the_pages_that_show_them(corral: Corral, page: Page) -> None:
    tasks, others = Stream(page, "tasks", "gpus"), Stream(page, "stacks", "queues", "buckets", "alarms", "groups")
    assert tasks.next() == ["gpus", "tasks"]  # all, because the page knows nothing
    assert others.next() == ["alarms", "buckets", "groups", "queues", "stacks"]
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="changes", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    ecs.run_task(taskDefinition="changes")
    tasks.until("tasks")
    corral.stop_tasks()
    tasks.until("tasks")
    corral.client("sqs").create_queue(QueueName="changes")
    assert others.next() == ["queues"]
    corral.client("s3").create_bucket(Bucket="changes")
    others.until("buckets")
    corral.client("cloudwatch").put_metric_alarm(
        AlarmName="a", MetricName="m", Namespace="n", Period=60, EvaluationPeriods=1, Threshold=1.0, Statistic="Sum",
        ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip
    others.until("alarms")
    corral.group("changes")
    others.until("groups")
    tasks.until("gpus")  # at each sample
    tasks.close()
    others.close()


def test_a_page_that_reconnects_gets_what_has_changed_since(corral: Corral, page: Page) -> None:
    first, other = Stream(page, "queues", "stacks"), Stream(page, "tasks")
    first.next()
    other.next()
    first.close()
    corral.client("sqs").create_queue(QueueName="meanwhile")
    again = Stream(page, "queues", "stacks", after=first.id)
    assert again.next() == ["queues"] and again.id > first.id
    later = Stream(page, "queues", "stacks", after=again.id)  # nothing has changed, so there is no event before the next change
    corral.client("sqs").create_queue(QueueName="later")
    assert later.next() == ["queues"]
    for unknown in (0, again.id + 10**9):
        assert Stream(page, "queues", "stacks", after=unknown).next() == ["queues", "stacks"]


def test_a_log_is_told_when_it_grows(corral: Corral, page: Page) -> None:
    logs = corral.client("logs")
    logs.create_log_group(logGroupName="/changes/log")
    for name in ("a/b/c", "other"):
        logs.create_log_stream(logGroupName="/changes/log", logStreamName=name)
    topic = "logs:/changes/log:a/b/c"
    stream = Stream(page, topic, "logs:/none:none", "queues")
    assert stream.next() == ["logs:/changes/log:a/b/c", "logs:/none:none", "queues"]

    def put(name: str) -> None:
        event = {"timestamp": int(time.time() * 1000), "message": "x"}
        logs.put_log_events(logGroupName="/changes/log", logStreamName=name, logEvents=[event])

    put("other")
    put("a/b/c")
    assert stream.next() == [topic]
    put("other")
    corral.client("sqs").create_queue(QueueName="after-logs")
    assert stream.next() == ["queues"]


def test_events_are_bounded_in_rate(corral: Corral, page: Page) -> None:
    """A busy server sends an event for many changes."""
    stream = Stream(page, "queues")
    stream.next()
    sqs, began_s = corral.client("sqs"), time.monotonic()
    url = sqs.create_queue(QueueName="busy")["QueueUrl"]
    for _ in range(100):
        sqs.send_message(QueueUrl=url, MessageBody="x")
    sqs.delete_queue(QueueUrl=url)
    events = 0
    stream.response.fp.raw._sock.settimeout(0.5)  # type: ignore[union-attr]
    try:
        while stream.next():
            events += 1
    except TimeoutError:
        pass
    assert 1 <= events <= 10 * (time.monotonic() - began_s) + 2


@pytest.mark.parametrize(
    "wanted",
    [{}, {"topics": "tasks"}, {"topics": [1]}, {"topics": ["nothing"]}, {"topics": ["logs:"]}, {"topics": ["logs:group"]},
     {"topics": ["tasks"] * 65}, {"topics": ["tasks"], "after": "1"}, {"topics": ["tasks"], "after": -1},
     {"topics": [f"logs:group:{number}" for number in range(LOGS_MAX + 1)]}],
)  # fmt: skip
def test_other_topics_are_refused(page: Page, wanted: dict[str, Any]) -> None:
    assert page.send("POST", "/changes", wanted).code == "InvalidRequest"
    assert "logs" not in ALL_TOPICS


def test_the_streams_of_one_owner_are_bounded(corral: Corral, page: Page) -> None:
    """Otherwise the pages of one user, or a program with its session, could keep the server busy."""
    name = "streams"
    mine = opened_by(corral, new_user(corral, name))
    streams = [Stream(mine, "queues") for _ in range(STREAMS_MAX)]
    for _ in range(2):
        assert mine.send("POST", "/changes", {"topics": ["queues"]}).code == "TooManyStreams"
    Stream(page, "queues").close()
    first = streams.pop(0)
    first.close()
    first.response.close()
    eventually(lambda: mine.begin("POST", "/changes", {"topics": ["queues"]}).getresponse().status == 200, "a place is free")
    for stream in streams:
        stream.close()
        stream.response.close()


class CountingLane:
    """A lane without log streams that counts how often they are read."""

    def __init__(self) -> None:
        self.reads = 0

    def read_without_snapshot(self, *_: Any) -> None:
        self.reads += 1


def test_writes_to_logs_are_read_with_the_next_event_and_not_with_each_transaction() -> None:
    lane = CountingLane()
    changes = Changes({"logs": lane}, Settings(), RandomIds(), VirtualClock())  # type: ignore[dict-item]
    stream = ChangeStream(frozenset(), {"logs:g:1": ("g", "1"), "logs:g:2": ("g", "2")}, "us-east-1", "root", lambda: True)
    changes.add(stream)
    for _ in range(100):
        changes.written({"INSERT INTO log_event VALUES (?)"})
    assert lane.reads == 0 and stream.news.is_set()
    assert sorted(changes.take(stream)) == ["logs:g:1", "logs:g:2"] and lane.reads == 2
    assert changes.take(stream) == [] and lane.reads == 2


def test_a_stream_ends_with_its_session(corral: Corral) -> None:
    mine = opened(corral)
    stream = Stream(mine, "tasks")
    stream.next()
    assert mine.send("DELETE", "/session").status == 200
    assert stream.response.read() == b""
    with pytest.raises((AssertionError, http.client.HTTPException)):
        Stream(mine, "tasks")


def test_pages_that_leave_while_something_changes(corral: Corral, page: Page) -> None:
    """The server writes to a stream at the moment at which its client disconnects, and logs no error."""
    sqs = corral.client("sqs")
    url = sqs.create_queue(QueueName="left")["QueueUrl"]
    for _ in range(20):
        streams = [Stream(page, "queues") for _ in range(10)]
        for stream in streams:
            sqs.send_message(QueueUrl=url, MessageBody="x")
            stream.close()
            stream.response.close()
    other = Stream(page, "queues")
    other.next()
    sqs.delete_queue(QueueUrl=url)
    other.until("queues")
    assert "Traceback" not in corral.log()


def test_nothing_is_noted_without_streams(corral: Corral) -> None:
    """A store notes statements only while streams are open."""
    store = Store(None)
    store.begin()
    store.execute("UPDATE task SET version = 1")
    store.commit()
    assert store.take_noted() == set()
    store.note_statements(True)
    store.execute("SELECT 1")
    store.insert_later("INSERT INTO watch", ("a", "b"))
    assert eventually(store.take_noted) == {"SELECT 1", "INSERT INTO watch"}
    store.note_statements(False)
    store.execute("SELECT 1")
    assert store.take_noted() == set()
