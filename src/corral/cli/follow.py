"""A task's log as it comes, until the task has stopped.

Two requests wait at the server at the same time, one for the task's end and one for more of its log. Each has a thread;
what they learn goes through one queue to the main thread, and so does Ctrl-C. Corral writes a task's log down before it
says that the task stopped, so whoever then reads to the end has all of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

from corral.cli import tasks
from corral.cli.where import Where, client, holding

HOLD_S = 20.0  # how long a request waits for news
FIRST_PAUSE_S = 0.02  # between requests that nothing can hold: a log that is not there yet, a task that does not run yet
POLL_S = 1.0  # no more often than this, in the end; also where the server does not hold requests, as AWS


@dataclass(frozen=True, slots=True)
class LogPlace:
    region: str | None
    group: str
    stream: str


@dataclass(frozen=True, slots=True)
class Page:
    events: list[dict[str, Any]]
    token: str  # where the log goes on


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Ctrl-C, or as good as."""


News = SimpleQueue[Any]  # a task as it is now, a Page, an Interrupt, or an exception
Show = Callable[[list[dict[str, Any]]], None]


def log_place(definition: dict[str, Any], task: dict[str, Any], container: str | None = None) -> LogPlace | None:
    """Where the task's log goes: the first container's that has one, unless one is named.

    None: it has none, or its stream is named after a container that has not started.
    """
    runtime_ids = {running["name"]: running.get("runtimeId") for running in task["containers"]}
    for defined in definition["containerDefinitions"]:
        if has_log(defined) and container in (None, defined["name"]):
            options = defined["logConfiguration"]["options"]
            prefix = options.get("awslogs-stream-prefix")
            stream = f"{prefix}/{defined['name']}/{tasks.id_of(task)}" if prefix else runtime_ids.get(defined["name"])
            return LogPlace(options.get("awslogs-region"), options["awslogs-group"], stream) if stream else None
    return None


def has_log(defined: dict[str, Any]) -> bool:
    return bool(defined.get("logConfiguration", {}).get("logDriver") == "awslogs")


def read_on(where: Where, place: LogPlace, token: str | None, show: Show) -> None:
    """The log from there to its present end; nothing when it has not begun."""
    logs = client(where, "logs", place.region)
    while True:
        try:
            page = _page(logs, place, token)
        except logs.exceptions.ResourceNotFoundException:
            return
        show(page.events)
        if page.token == token:
            return
        token = page.token


def follow(
    where: Where,
    cluster: str,
    task_id: str,
    place_of: Callable[[dict[str, Any]], LogPlace | None],
    show: Show,
    *,
    news: News | None = None,
    on_task: Callable[[dict[str, Any]], None] = lambda task: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Show the log until the task has stopped, and return the task as it ended."""
    news = news if news is not None else SimpleQueue()
    ecs = client(where, "ecs")  # clients are shared by threads, but made in this one
    _in_a_thread(news, lambda: _watch(ecs, cluster, task_id, news))
    token, reading = None, False
    while True:
        match news.get():
            case Exception() as error:
                raise error
            case Interrupt():
                on_interrupt()
            case Page() as page:
                show(page.events)
                token = page.token
            case dict() as task:
                on_task(task)
                place = place_of(task)
                if tasks.is_stopped(task):
                    if place:
                        read_on(where, place, token, show)
                    return task
                if place and not reading and task["lastStatus"] != "PROVISIONING":
                    reading = True
                    _in_a_thread(news, partial(_read, client(where, "logs", place.region), place, news))


def _in_a_thread(news: News, work: Callable[[], None]) -> None:
    """A daemon: it may be waiting at the server when the program has nothing left to do."""

    def run() -> None:
        try:
            work()
        except Exception as error:
            news.put(error)

    threading.Thread(target=run, daemon=True).start()


def _watch(ecs: Any, cluster: str, task_id: str, news: News) -> None:
    """Tell of the task whenever it looks different, until it has stopped."""
    known, running, pause_s = None, False, FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        # Corral holds this request until the task has stopped, and tells of nothing before: so only once it runs.
        with holding(HOLD_S if running else 0.0):
            task = tasks.describe_one(ecs, cluster, task_id)
        seen = (task["lastStatus"], task["desiredStatus"], tasks.reason(task))
        if seen != known:
            news.put(task)
            known, pause_s = seen, FIRST_PAUSE_S
        if tasks.is_stopped(task):
            return
        if running:
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))
        running = task["lastStatus"] == "RUNNING"
        if not running:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)


def _read(logs: Any, place: LogPlace, news: News) -> None:
    token: str | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        began_s = time.monotonic()
        try:
            with holding(HOLD_S):
                page = _page(logs, place, token)
        except logs.exceptions.ResourceNotFoundException:  # it begins when the task starts
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, POLL_S)
            continue
        token = page.token
        if page.events:
            news.put(page)
        else:
            time.sleep(max(0.0, POLL_S - (time.monotonic() - began_s)))


def _page(logs: Any, place: LogPlace, token: str | None) -> Page:
    on = {"nextToken": token} if token else {}
    reply = logs.get_log_events(logGroupName=place.group, logStreamName=place.stream, startFromHead=True, **on)
    return Page(reply["events"], reply["nextForwardToken"])
