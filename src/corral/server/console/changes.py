"""The streams of changes: they tell pages of the console which topics have changed, and pages read again what they show.

A topic is a kind of resource, such as `tasks`, or one log stream. The lanes note the statements that write rows, while at least one
stream is open, and `TOPICS` maps the tables of these statements to topics. So a stream can tell too much, but never too little. A
stream without a change sends a comment every KEEP_ALIVE_S.

The id of an event is a time in milliseconds, so ids grow over restarts of the server. A page that reconnects names the last id that
it knows, and gets the topics that have changed since. If the server does not know them, it names all.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from typing import Any

import orjson

from corral.core.clock import Clock
from corral.core.errors import api_error
from corral.core.ids import Ids
from corral.model.agent_protocol import HEARTBEAT_S
from corral.model.gpu_metrics import GpuSample
from corral.model.settings import Settings
from corral.server.console.guard import HEADERS
from corral.server.http.connection import ClientGone, HttpConnection
from corral.server.lanes import Lane

INTERVAL_S = 0.1  # between two events of a stream
KEEP_ALIVE_S = 15.0
SAMPLE_S = 1.0  # how often streams with the topic `gpus` are told about new samples
# With so many GPUs, hosts are not asked for samples at once: they send those of HEARTBEAT_S together, which is less work.
MANY_GPUS = 64
LINGER_S = 20.0  # so long after the last stream has closed, changes are noted for pages that reconnect
TOPICS_MAX = 64
LOGS_MAX = 4  # log streams of one page
STREAMS_MAX = 100  # of one owner, on all its pages
LOGS = "logs:"

# Table → the topics whose pages read it. The tables without topics are those of the core, and those that no page shows.
TOPICS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("task", "run", "claim", "queued_task", "task_dependency", "task_array", "end_notice", "leaving_task", "task_history",
         "task_gpu_use", "task_definition", "task_definition_family"), ("tasks",)),
    "lease": ("tasks", "gpus", "hosts"),
    **dict.fromkeys(("host", "old_run", "joined_host", "join_token"), ("hosts",)),
    **dict.fromkeys(("gpu", "idle_holder"), ("hosts", "gpus")),
    **dict.fromkeys(("instance", "instance_attribute", "allocation"), ("instances", "hosts", "groups")),
    **dict.fromkeys(
        ("job", "job_line", "waiting_job", "job_holding", "job_share", "blocked_job", "job_spec", "job_child", "job_summary",
         "job_dependency", "job_notice", "job_definition", "job_definition_family"), ("jobs",)),
    "cluster": ("clusters", "services"),
    **dict.fromkeys(
        ("ecs_service", "ecs_service_event", "ecs_service_deployment", "target_activity"), ("services",)),
    **dict.fromkeys(
        ("scaling_group", "group_member", "scaling_activity", "instance_refresh", "scaling_request", "policy_alarm"),
        ("groups", "services")),
    **dict.fromkeys(
        ("queue", "pile", "message", "place", "message_group", "deduplication", "receive_attempt", "move_task"), ("queues",)),
    **dict.fromkeys(
        ("stack", "stack_resource", "stack_event", "stack_export", "stack_import", "stack_template", "change_set"), ("stacks",)),
    **dict.fromkeys(("bucket", "bucket_document", "object_version", "content", "content_part", "upload"), ("buckets",)),
    **dict.fromkeys(("invocation", "event_batch", "function_code"), ("functions",)),
    **dict.fromkeys(("access_key", "subject_limits"), ("people",)),
    # Resources of many services whose details are a document: queues and environments of Batch, hooks and policies of groups,
    # capacity providers, users, functions.
    "stored_resource": ("stored", "jobs", "groups", "services", "functions", "people"),
    **dict.fromkeys(("alarm", "alarm_metric", "alarm_child", "alarm_watch", "alarm_history"), ("alarms",)),
    "dashboard": ("dashboards",),
    **dict.fromkeys(("log_group", "metric_filter"), ("log-groups",)),
    **dict.fromkeys(("log_stream", "log_event", "shipment"), (LOGS,)),
}  # fmt: skip
NO_TOPIC = frozenset(
    {"due", "watch", "inbox", "outbox", "schema_origin", "service_use", "owner_use", "owner_hour", "instance_usage", "stored_bytes",
     "client_token", "private_environment", "expiry", "expiry_walk", "tag", "series", "series_dimension", "packed", "flushed",
     "parameter", "parameter_version", "secret", "secret_version", "repository", "repository_layer", "layer", "image", "image_tag",
     "image_part"}
)  # fmt: skip
SAMPLED, PEOPLE = "gpus", "people"
ALL_TOPICS = frozenset(topic for topics in TOPICS.values() for topic in topics if topic != LOGS)
_WRITES = re.compile(
    r"\b(?:INSERT(?:\s+OR\s+\w+)?\s+INTO|REPLACE\s+INTO|UPDATE(?:\s+OR\s+\w+)?|DELETE\s+FROM)\s+(\w+)", re.IGNORECASE
)

InvalidTopics = api_error("InvalidRequest", 400)
TooManyStreams = api_error("TooManyStreams", 429)
Opened = Callable[[], bool]


@cache  # the number of different statements is bounded, because their texts are in the code
def topics_of(sql: str) -> tuple[str, ...]:
    """Return the topics of a statement. One that only reads has none."""
    return tuple({topic for table in _WRITES.findall(sql) for topic in TOPICS.get(table, ())})


class ChangeStream:
    """The changes that one page has not been told yet."""

    def __init__(self, topics: frozenset[str], logs: dict[str, tuple[str, str]], region: str, owner: str, is_open: Opened) -> None:
        self.topics = topics
        self.logs = logs  # topic → log group and log stream
        self.log_sizes: dict[str, int] = {}  # topic → the number of events when the page was last told
        self.logs_written = False  # whether events of any log stream were written since the page was last told
        self.region = region
        self.owner = owner
        self.is_open = is_open  # whether its session has not ended
        self.pending: set[str] = set()
        self.news = asyncio.Event()
        self.is_closed = False

    def tell(self, topics: Iterable[str]) -> None:
        found = [topic for topic in topics if topic in self.topics]
        if found:
            self.pending.update(found)
            self.news.set()

    def close(self) -> None:
        self.is_closed = True
        self.news.set()


class Changes:
    """Runs on the event loop."""

    def __init__(self, lanes: Mapping[str, Lane[Any]], settings: Settings, ids: Ids, clock: Clock) -> None:
        self._lanes = lanes
        self._settings = settings
        self._ids = ids
        self._clock = clock
        self._streams: dict[ChangeStream, None] = {}
        self._last_id = 0
        self._since_id: int | None = None  # changes after this id are known; None: changes are not noted
        self._changed: dict[str, int] = {}  # topic → the id of its last change
        self._watching: asyncio.Future[None] | None = None
        self._sampling: asyncio.TimerHandle | None = None
        self._samples: list[GpuSample] = []  # the samples that pages were last notified about
        self._lingering: asyncio.TimerHandle | None = None

    @property
    def last_id(self) -> int:
        return self._last_id

    async def open(self, wanted: Mapping[str, Any], region: str, owner: str, is_open: Opened) -> ChangeStream:
        """Return a stream. Its first event has the topics that have changed since the event that the page knows."""
        topics, logs, after = _wanted(wanted)
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        await self._watch()
        stream = ChangeStream(topics, logs, region, owner, is_open)
        self.add(stream)
        if after is not None and self._since_id is not None and self._since_id <= after <= self._last_id:
            stream.pending = {topic for topic in topics if self._changed.get(topic, 0) > after} | logs.keys()
        else:
            stream.pending = {*topics, *logs}
        self._read_logs(stream)
        stream.news.set()
        if SAMPLED in topics and self._sampling is None:
            self._sample()
        return stream

    def add(self, stream: ChangeStream) -> None:
        if sum(each.owner == stream.owner for each in self._streams) >= STREAMS_MAX:
            raise TooManyStreams(f"{STREAMS_MAX} pages of this user follow changes already: close some of them.")
        self._streams[stream] = None

    def take(self, stream: ChangeStream) -> list[str]:
        """Return the topics that the page was not told yet. It is told about them now."""
        if stream.logs_written:
            stream.logs_written = False
            stream.pending.update(self._read_logs(stream))
        topics = sorted(stream.pending)
        stream.pending.clear()
        return topics

    def leave(self, stream: ChangeStream) -> None:
        self._streams.pop(stream, None)
        if not self._streams and self._lingering is None:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._stop)

    def check_sessions(self) -> None:
        """Close the streams whose session has ended."""
        for stream in self._streams:
            if not stream.is_open():
                stream.close()

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    async def _watch(self) -> None:
        """Let the lanes note their statements from now on."""
        if self._since_id is not None:
            return
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._begin())
        await asyncio.shield(self._watching)

    async def _begin(self) -> None:
        for lane in self._lanes.values():
            lane.on_statements = self.written
            await lane.submit(lambda tx: tx.store.note_statements(True), read_only=True)
        self._since_id = self._next_id()
        self._watching = None

    def _stop(self) -> None:
        self._lingering = None
        if self._streams:
            return
        self._since_id = None
        self._changed.clear()
        for lane in self._lanes.values():
            lane.on_statements = None
            lane.submit(lambda tx: tx.store.note_statements(False), read_only=True)

    def _next_id(self) -> int:
        self._last_id = max(self._last_id + 1, int(self._clock.wall_s() * 1000))
        return self._last_id

    def written(self, statements: set[str]) -> None:
        """Note the statements of a transaction. Which logs have grown is read with the next event of each stream."""
        topics = {topic for sql in statements for topic in topics_of(sql)}
        if LOGS in topics:
            topics.discard(LOGS)
            for stream in self._streams:
                if stream.logs:
                    stream.logs_written = True
                    stream.news.set()
        if topics:
            self._note(topics)

    def _note(self, topics: Collection[str]) -> None:
        id_ = self._next_id()
        if PEOPLE in topics:
            self.check_sessions()
        for topic in topics:
            self._changed[topic] = id_
        for stream in self._streams:
            stream.tell(topics)

    def _read_logs(self, stream: ChangeStream) -> list[str]:
        """Return the log streams of a page that have other events than when it was last told."""
        lane = self._lanes["logs"]
        changed = []
        for topic, (group, name) in stream.logs.items():
            found = lane.read_without_snapshot(
                lambda tx, group=group, name=name: tx.store.stream(stream.region, group, name),  # type: ignore[misc]
                self._settings,
                self._ids,
            )
            size = found.events if found is not None else -1
            if stream.log_sizes.get(topic) != size:
                stream.log_sizes[topic] = size
                changed.append(topic)
        if changed:
            self._next_id()
        return changed

    def _sample(self) -> None:
        """Tell the pages that show GPUs about new samples, as long as there are such pages."""
        self._sampling = None
        if not any(SAMPLED in stream.topics for stream in self._streams):
            return
        server = self._settings.server
        is_small = len(server.samples) < MANY_GPUS
        if is_small:
            server.read_samples()
        samples = list(server.samples.values())
        if samples != self._samples:
            self._samples = samples
            self._note((SAMPLED,))
        wait_s = SAMPLE_S if is_small else HEARTBEAT_S
        self._sampling = asyncio.get_running_loop().call_later(wait_s, self._sample)


async def stream_events(stream: ChangeStream, changes: Changes, connection: HttpConnection) -> None:
    """Send the events of a stream until the client disconnects, the session ends or the server exits."""
    gone = asyncio.ensure_future(_disconnected(connection))
    gone.add_done_callback(lambda _: stream.close())
    headers = [("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"), ("Transfer-Encoding", "chunked")]
    try:
        head = connection.head(200, [*headers, *HEADERS], 0)
        if _can_write(connection):
            connection.transport.write(head)
        loop = asyncio.get_running_loop()
        alive_at_s = loop.time() + KEEP_ALIVE_S
        while True:
            try:
                async with asyncio.timeout_at(alive_at_s):
                    await stream.news.wait()
            except TimeoutError:
                pass
            if stream.is_closed or not stream.is_open() or not _can_write(connection):
                break
            stream.news.clear()
            event = b": open\n\n" if loop.time() >= alive_at_s else b""
            if topics := changes.take(stream):
                event = b"id: %d\ndata: %b\n\n" % (changes.last_id, orjson.dumps({"topics": topics}))
            if event:
                connection.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
                await connection.drain()
                alive_at_s = loop.time() + KEEP_ALIVE_S
            await asyncio.sleep(INTERVAL_S)
        if _can_write(connection):
            connection.transport.write(b"0\r\n\r\n")
            connection.finish()
    finally:
        changes.leave(stream)
        gone.cancel()


def _can_write(connection: HttpConnection) -> bool:
    """Whether the client is there. The transport is closed a moment before `_disconnected` returns."""
    return not connection.is_disconnected and not connection.transport.is_closing()


async def _disconnected(connection: HttpConnection) -> None:
    try:
        while True:
            await connection.receive()
    except ClientGone:
        return


def log_streams(topics: Any) -> list[tuple[str, str]]:
    """Return the log groups and log streams among the topics of a request, which may not be valid."""
    given = topics[:TOPICS_MAX] if isinstance(topics, list) else []
    return [place for each in given if isinstance(each, str) and (place := _log_stream(each)) is not None]


def _log_stream(topic: str) -> tuple[str, str] | None:
    group, _, name = topic.removeprefix(LOGS).partition(":")
    return (group, name) if topic.startswith(LOGS) and group and name else None


def _wanted(wanted: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, tuple[str, str]], int | None]:
    """Return the topics of a request, its log streams, and the id of the last event that the page knows."""
    given, after = wanted.get("topics"), wanted.get("after")
    if not isinstance(given, list) or len(given) > TOPICS_MAX or not all(isinstance(each, str) for each in given):
        raise InvalidTopics(f'Send {{"topics": [at most {TOPICS_MAX} names], "after": ID or null}}.')
    logs = {}
    for topic in given:
        if (place := _log_stream(topic)) is not None:
            logs[topic] = place
        elif topic not in ALL_TOPICS:
            raise InvalidTopics(f"The topic {topic[:100]!r} is unknown: use logs:GROUP:STREAM or {', '.join(sorted(ALL_TOPICS))}.")
    if len(logs) > LOGS_MAX:
        raise InvalidTopics(f"The request names {len(logs)} log streams: name at most {LOGS_MAX}.")
    if after is not None and (type(after) is not int or after < 0):
        raise InvalidTopics("after must be the id of an event, or null.")
    return frozenset(given) - logs.keys(), logs, after
