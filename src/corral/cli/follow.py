"""A task and its logs as they come, until the task has stopped.

Requests wait at the server, one for news of the task and one for more of each log. Each has a thread; what they learn goes
through one queue to the main thread, and so does Ctrl-C. Corral writes a task's log down before it says that the task
stopped, so whoever then reads to the end has all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from corral.cli import tasks
from corral.cli.where import Where, client, holding

HOLD_S = 20.0  # how long a request waits for news
# A waiting task's reason is no change of the task (somebody else's end changes it), so it is asked for again this often.
HOLD_WAITING_S = 1.0
FIRST_PAUSE_S = 0.02  # between requests for a log that is not there yet
POLL_S = 1.0  # no more often than this, in the end; also where the server does not hold requests, as AWS


@dataclass(frozen=True, slots=True)
class LogPlace:
    container: str
    region: str | None
    group: str
    stream: str


@dataclass(frozen=True, slots=True)
class Start:
    """Where in a log to begin: everything, the last lines, or what came since a time."""

    tail: int | None = None
    since_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Page:
    place: LogPlace
    events: list[dict[str, Any]]
    token: str  # where the log goes on


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ctrl-C, or as good as."""


News = SimpleQueue[Any]  # a task as it is now, a Page, an Interrupt, or an exception
Show = Callable[[LogPlace, list[dict[str, Any]]], None]
EVERYTHING = Start()


def log_places(definition: dict[str, Any], task: dict[str, Any], container: str | None = None) -> list[LogPlace]:
    """Where the logs of the task's containers go, as far as they can be there: a container's log begins when it starts."""
    runtime_ids = {running["name"]: running.get("runtimeId") for running in task["containers"]}
    places = []
    for defined in definition["containerDefinitions"]:
        name = defined["name"]
        if has_log(defined) and container in (None, name) and runtime_ids.get(name):
            options = defined["logConfiguration"]["options"]
            prefix = options.get("awslogs-stream-prefix")
            stream = f"{prefix}/{name}/{tasks.id_of(task)}" if prefix else runtime_ids[name]
            places.append(LogPlace(name, options.get("awslogs-region"), options["awslogs-group"], stream))
    return places


def has_log(defined: dict[str, Any]) -> bool:
    return bool(defined.get("logConfiguration", {}).get("logDriver") == "awslogs")


def pages(where: Where, place: LogPlace, start: Start = EVERYTHING, token: str | None = None) -> Iterator[Page]:
    """The log from there to its present end; nothing when it has not begun."""
    logs = client(where, "logs", place.region)
    while True:
        try:
            page = _page(logs, place, start, token)
        except logs.exceptions.ResourceNotFoundException:
            return
        yield page
        if page.token == token:
            return
        token = page.token


def follow(
    where: Where,
    cluster: str,
    task_id: str,
    places_of: Callable[[dict[str, Any]], list[LogPlace]],
    show: Show,
    *,
    start: Start = EVERYTHING,
    news: News | None = None,
    on_task: Callable[[dict[str, Any]], None] = lambda task: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Show the logs until the task has stopped, and return the task as it ended."""
    news = news if news is not None else SimpleQueue()
    watch(where, cluster, task_id, news)
    tokens: dict[LogPlace, str | None] = {}  # of the logs that are read, as far as they have been shown
    while True:
        match news.get():
            case Exception() as error:
                raise error
            case Interrupt():
                on_interrupt()
            case Page() as page:
                show(page.place, page.events)
                tokens[page.place] = page.token
            case dict() as task:
                on_task(task)
                places = places_of(task)
                if tasks.is_stopped(task):
                    for place in places:
                        for rest in pages(where, place, start, tokens.get(place)):
                            show(place, rest.events)
                    return task
                for place in places:
                    if place not in tokens:
                        tokens[place] = None
                        in_a_thread(news, partial(_read, client(where, "logs", place.region), place, start, news))


def watch(where: Where, cluster: str, task_id: str, news: News) -> None:
    ecs = client(where, "ecs")  # clients are shared by threads, but made in this one
    in_a_thread(news, lambda: _watch(ecs, cluster, task_id, news))


def in_a_thread(news: News, work: Callable[[], None]) -> None:
    """A daemon: it may be waiting at the server when the program has nothing left to do."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            news.put(error)

    threading.Thread(target=run, daemon=True).start()


def _watch(ecs: Any, cluster: str, task_id: str, news: News) -> None:
    """Tell of the task whenever it looks different, until it has stopped. Corral answers when its version is another."""
    task = tasks.describe_one(ecs, cluster, task_id)
    news.put(task)
    while not tasks.is_stopped(task):
        before, began_s = task, time.monotonic()
        with holding(HOLD_S if task["lastStatus"] in ("RUNNING", "STOPPING") else HOLD_WAITING_S, seen=task.get("version")):
            task = tasks.describe_one(ecs, cluster, task_id)
        if _seen(task) != _seen(before):
            news.put(task)
        else:
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))


def _seen(task: dict[str, Any]) -> tuple[Any, ...]:
    return task.get("version"), task["lastStatus"], task["desiredStatus"], tasks.reason(task)


def _read(logs: Any, place: LogPlace, start: Start, news: News) -> None:
    token: str | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        try:
            with holding(HOLD_S):
                page = _page(logs, place, start, token)
        except logs.exceptions.ResourceNotFoundException:  # AWS may make it a little later
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)
            continue
        moved = page.token != token
        token = page.token
        if page.events or moved:
            news.put(page)
        if not page.events:
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))


def _page(logs: Any, place: LogPlace, start: Start, token: str | None) -> Page:
    asked: dict[str, Any] = {"startFromHead": True}
    if token:
        asked["nextToken"] = token
    elif start.tail is not None:
        asked = {"startFromHead": False, "limit": max(1, start.tail)}
    if start.since_ms is not None:
        asked["startTime"] = start.since_ms
    reply = logs.get_log_events(logGroupName=place.group, logStreamName=place.stream, **asked)
    events = reply["events"] if token or start.tail != 0 else []
    return Page(place, events, reply["nextForwardToken"])
