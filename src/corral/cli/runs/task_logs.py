"""Follows tasks and their logs until the tasks have stopped.

For each task, one thread waits for changes of the task with long polls. For each log, another thread waits for new events. All
threads put their updates into one queue, which the main thread reads. After a task has stopped, a thread reads the rest of each of
its logs. A task that prints much stops before all of its output is in its log, so the thread reads until the log is complete
(`log_states.py`).

An outage is the time in which the server does not respond, for example because it is restarted. Tasks keep running meanwhile, so
requests are repeated until the server responds again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from corral.cli.client.data_folder import refuse_deleted
from corral.cli.client.endpoint import Endpoint, client, long_poll
from corral.cli.printing.errors import connection_failed
from corral.cli.printing.output import print_message
from corral.cli.runs import tasks
from corral.cli.runs.log_states import LogState, TaskLogStream, log_states, report_dropped, report_unstored
from corral.cli.runs.recorded_runs import describe_everywhere

REST_PAGES_MAX = 4  # the most pages in memory that wait to be shown
STALLED_S = 60.0  # if an incomplete log of a stopped task gets no events for this time, the command ends without the rest
LONG_POLL_S = 20.0  # the maximum time until the server responds to a long poll
# The reason why a task waits can change although the task's version does not. So a waiting task has shorter long polls.
LONG_POLL_WAITING_S = 1.0
FIRST_PAUSE_S = 0.02  # the first pause between requests for a log that does not exist yet; it is doubled each time
OUTAGE_MAX_S = 300.0  # after this time without a response, a command fails
OUTAGE_POLL_S = 0.5
POLL_S = 1.0  # the longest pause between requests; AWS has no long polls, so this is also the polling interval there


class LogStart(NamedTuple):
    """Where to start reading a log: at its first event (default), at the last `tail` events, or at a time."""

    tail: int | None = None
    since_ms: int | None = None


class LogPage(NamedTuple):
    stream: TaskLogStream
    events: list[dict[str, Any]]
    token: str  # the token of the next page


class LogEnd(NamedTuple):
    """The end of a log that was read after its task had stopped."""

    stream: TaskLogStream
    state: LogState | None  # None: the server does not know it

    def report(self, task: str) -> None:
        report_unstored(task, self.state)
        report_dropped(task, self.state)


class RestPage(NamedTuple):
    """A page of a log that was read after its task had stopped."""

    page: LogPage


class FollowedTask(NamedTuple):
    cluster: str
    task_id: str
    streams_of: Callable[[dict[str, Any]], list[TaskLogStream]]  # the logs that are shown, given the task's description


TaskUpdates = SimpleQueue[Any]  # contains descriptions of tasks, LogPages, RestPages, LogEnds and exceptions
Show = Callable[[TaskLogStream, list[dict[str, Any]]], None]
FROM_START = LogStart()
T = TypeVar("T")


class _Outages:
    """Reports each outage once, although several threads notice it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reported_at = float("-inf")

    def report(self) -> None:
        with self._lock:
            if time.monotonic() - self._reported_at > OUTAGE_MAX_S:
                self._reported_at = time.monotonic()
                with suppress(OSError):  # the terminal has closed
                    print_message("the server does not respond. Tasks keep running; waiting for the server")

    def end(self) -> None:
        self._reported_at = float("-inf")


_outages = _Outages()


def through_outages(call: Callable[[], T]) -> T:
    """Send a request. During an outage, repeat it for at most OUTAGE_MAX_S."""
    began_at: float | None = None
    while True:
        try:
            result = call()
        except Exception as error:
            if not connection_failed(error):
                raise
            refuse_deleted()
            began_at = began_at if began_at is not None else time.monotonic()
            if time.monotonic() - began_at > OUTAGE_MAX_S:
                raise
            _outages.report()
            time.sleep(OUTAGE_POLL_S)
        else:
            if began_at is not None:
                _outages.end()
            return result


def log_streams(definition: dict[str, Any], task: dict[str, Any], container: str | None = None) -> list[TaskLogStream]:
    """Return the log streams of the containers of the task that have started, or only of the container `container`."""
    runtime_ids = {running["name"]: running.get("runtimeId") for running in task["containers"]}
    streams = []
    for defined in definition["containerDefinitions"]:
        name = defined["name"]
        if has_log(defined) and container in (None, name) and runtime_ids.get(name):
            options = defined["logConfiguration"]["options"]
            prefix = options.get("awslogs-stream-prefix")
            stream_name = f"{prefix}/{name}/{tasks.id_of(task)}" if prefix else runtime_ids[name]
            streams.append(TaskLogStream(name, options.get("awslogs-region"), options["awslogs-group"], stream_name))
    return streams


def has_log(defined: dict[str, Any]) -> bool:
    return bool(defined.get("logConfiguration", {}).get("logDriver") == "awslogs")


def pages(endpoint: Endpoint, stream: TaskLogStream, start: LogStart = FROM_START, token: str | None = None) -> Iterator[LogPage]:
    """Yield the pages of a log up to its current end. Yield nothing if the log does not exist yet."""
    logs = client(endpoint, "logs", stream.region)
    while True:
        try:
            page = through_outages(partial(_page, logs, stream, start, token))
        except logs.exceptions.ResourceNotFoundException:
            return
        yield page
        if page.token == token:
            return
        token = page.token


def pages_until_complete(
    endpoint: Endpoint, stream: TaskLogStream, task: str, start: LogStart = FROM_START, token: str | None = None
) -> Iterator[LogPage]:
    """Yield the pages of the log of a stopped task until the log is complete. `task` is the name of the task in messages.

    At the end, report how many bytes are missing, if any.
    """
    for found in _rest(endpoint, stream, start, token):
        if isinstance(found, LogPage):
            yield found
        else:
            found.report(task)


def _rest(endpoint: Endpoint, stream: TaskLogStream, start: LogStart, token: str | None) -> Iterator[LogPage | LogEnd]:
    """Yield the pages of the log of a stopped task until the log is complete, and then a LogEnd."""
    logs = client(endpoint, "logs", stream.region)
    moved_s = time.monotonic()
    while True:
        # Read the state before the log. Then a complete log ends with the last page.
        state = through_outages(partial(log_states, endpoint, [stream])).get(stream)
        for page in pages(endpoint, stream, start, token):
            moved_s = moved_s if page.token == token else time.monotonic()
            token = page.token
            yield page
        if state is None or not state.unstored or time.monotonic() > moved_s + STALLED_S:
            yield LogEnd(stream, state)
            return
        with suppress(logs.exceptions.ResourceNotFoundException), long_poll(POLL_S):  # wait for more events
            through_outages(partial(_page, logs, stream, start, token))


def follow(
    endpoint: Endpoint,
    followed: Sequence[FollowedTask],
    show: Show,
    *,
    start: LogStart = FROM_START,
    updates: TaskUpdates | None = None,
    on_task: Callable[[dict[str, Any]], None] = lambda task: None,
) -> list[dict[str, Any]]:
    """Show the logs until all tasks have stopped and the logs are complete. Return the descriptions of the stopped tasks."""
    updates = updates if updates is not None else SimpleQueue()
    streams_of = {each.task_id: each.streams_of for each in followed}
    for each in followed:
        watch_task(endpoint, each.cluster, each.task_id, updates)
    tokens: dict[TaskLogStream, str | None] = {}  # log -> the token of the next page, for all logs that a thread reads
    complete: set[TaskLogStream] = set()  # the logs of stopped tasks
    stopped: dict[str, dict[str, Any]] = {}
    ending: dict[TaskLogStream, str] = {}  # log → id of its stopped task, for the logs whose rest is being read
    room = threading.Semaphore(REST_PAGES_MAX)
    while len(stopped) < len(followed) or ending:
        match updates.get():
            case Exception() as error:
                raise error
            # Ignore pages that an earlier call has left in the queue, and pages of logs that are already complete.
            case LogPage() as page if page.stream in tokens and page.stream not in complete:
                show(page.stream, page.events)
                tokens[page.stream] = page.token
            case RestPage() as rest_page:
                room.release()
                show(rest_page.page.stream, rest_page.page.events)
            case LogEnd() as end if end.stream in ending:
                end.report(f"task {tasks.short(ending.pop(end.stream))}")
            case dict() as task:
                on_task(task)
                task_id = tasks.id_of(task)
                streams = streams_of[task_id](task)
                if tasks.is_stopped(task):
                    complete.update(streams)
                    stopped[task_id] = task
                    for stream in streams:
                        ending[stream] = task_id
                        client(endpoint, "logs", stream.region)  # created here, because threads must not create a client
                        rest = _rest(endpoint, stream, start, tokens.get(stream))
                        run_in_thread(updates, partial(_read_rest, rest, updates, room))
                    continue
                for stream in streams:
                    if stream not in tokens:
                        tokens[stream] = None
                        logs = client(endpoint, "logs", stream.region)
                        run_in_thread(updates, partial(_read, logs, stream, start, updates, complete))
    return [stopped[each.task_id] for each in followed]


def watch_task(endpoint: Endpoint, cluster: str, task_id: str, updates: TaskUpdates) -> None:
    ecs = client(endpoint, "ecs")  # created here, because threads may share a client, but must not create one
    run_in_thread(updates, lambda: _watch(ecs, cluster, task_id, updates))


def run_in_thread(updates: TaskUpdates, work: Callable[[], None]) -> None:
    """Run `work` in a daemon thread, so that a long poll does not delay the exit of the process."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            updates.put(error)

    threading.Thread(target=run, daemon=True).start()


def _watch(ecs: Any, cluster: str, task_id: str, updates: TaskUpdates) -> None:
    """Put the task's description into the queue after each change, until the task has stopped."""
    task = through_outages(partial(tasks.describe_one, ecs, cluster, task_id))
    updates.put(task)
    while not tasks.is_stopped(task):
        before, began_s = task, time.monotonic()
        hold_s = LONG_POLL_S if task["lastStatus"] in ("RUNNING", "STOPPING") else LONG_POLL_WAITING_S
        with long_poll(hold_s, seen=task.get("version")):
            task = through_outages(partial(tasks.describe_one, ecs, cluster, task_id))
        if _visible(task) != _visible(before):
            updates.put(task)
        else:
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))


def wait_until_stopped(endpoint: Endpoint, cluster: str, task_id: str) -> dict[str, Any]:
    """Wait until a task has stopped, and return its description.

    If ECS no longer describes the task, return the description in the history.
    """
    describe = partial(through_outages, partial(describe_everywhere, endpoint, cluster, [task_id]))
    task = tasks.only(describe(), task_id, cluster)
    while not tasks.is_stopped(task):
        began_s = time.monotonic()
        with long_poll(LONG_POLL_S):
            task = tasks.only(describe(), task_id, cluster)
        if not tasks.is_stopped(task):  # AWS has no long polls, so wait before the next request
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))
    return task


def _visible(task: dict[str, Any]) -> tuple[Any, ...]:
    return task.get("version"), task["lastStatus"], task["desiredStatus"], tasks.reason(task)


def _read(logs: Any, stream: TaskLogStream, start: LogStart, updates: TaskUpdates, complete: set[TaskLogStream]) -> None:
    """Put new pages of a log into the queue until the log is complete."""
    token: str | None = None
    pause_s = FIRST_PAUSE_S
    while stream not in complete:
        began_s = time.monotonic()
        try:
            with long_poll(LONG_POLL_S):
                page = through_outages(partial(_page, logs, stream, start, token))
        except logs.exceptions.ResourceNotFoundException:  # AWS may create the stream later
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)
            continue
        moved = page.token != token
        token = page.token
        if page.events or moved:
            updates.put(page)
        if not page.events:
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))


def _read_rest(found: Iterator[LogPage | LogEnd], updates: TaskUpdates, room: threading.Semaphore) -> None:
    """Put the rest of a log into the queue. `room` limits the number of pages there: the reader of the output may be slow."""
    for each in found:
        if isinstance(each, LogPage):
            room.acquire()
            updates.put(RestPage(each))
        else:
            updates.put(each)


def _page(logs: Any, stream: TaskLogStream, start: LogStart, token: str | None) -> LogPage:
    params: dict[str, Any] = {"startFromHead": True}
    if token:
        params["nextToken"] = token
    elif start.tail is not None:
        params = {"startFromHead": False, "limit": max(1, start.tail)}
    if start.since_ms is not None:
        params["startTime"] = start.since_ms
    reply = logs.get_log_events(logGroupName=stream.group, logStreamName=stream.name, **params)
    events = reply["events"] if token or start.tail != 0 else []
    return LogPage(stream, events, reply["nextForwardToken"])
