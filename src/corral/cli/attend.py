"""Staying with a task that `corral run` began: why it waits, what it writes, and ending as it did."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from corral.cli import tasks
from corral.cli.definitions import is_essential
from corral.cli.follow import Interrupt, LogPlace, News, follow, has_log, log_places, pages, watch
from corral.cli.refusals import INTERRUPTED, NO_EXIT_CODE, PIPE_BROKE, TIMED_OUT
from corral.cli.where import Where, client
from corral.cli.words import duration, print_json, say, with_short_ids

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

    from corral.cli.attached import Attached


@dataclass(frozen=True, slots=True)
class Attended:
    where: Where
    cluster: str
    task: dict[str, Any]  # as RunTask told it
    definition: dict[str, Any]
    news: News
    as_json: bool
    limit_s: int | None
    session: Attached | None  # with -i or -t

    @property
    def task_id(self) -> str:
        return tasks.id_of(self.task)


def attend(it: Attended) -> None:
    """Show how it goes, to the end, and end as it did."""
    narrator = Narrator(it.task_id)
    interrupts: list[bool] = []
    logged = [defined["name"] for defined in it.definition["containerDefinitions"] if has_log(defined)]
    width = max(map(len, logged), default=0) if len(logged) > 1 else 0

    def stop() -> None:
        client(it.where, "ecs").stop_task(cluster=it.cluster, task=it.task_id, reason="corral run was interrupted")

    def interrupted() -> None:
        interrupts.append(True)
        narrator.close()
        stop()
        say(f"stopping task {tasks.short(it.task_id)}; Ctrl-C again leaves it to end by itself")

    def show(place: LogPlace, events: list[dict[str, Any]]) -> None:
        out = sys.stderr if it.as_json else sys.stdout
        name = f"{place.container:<{width}} | " if width else ""
        try:
            out.write("".join(f"{name}{event['message']}\n" for event in events))
            out.flush()
        except BrokenPipeError:  # nobody reads it any more: a program of one's own would be killed by that, so this one is
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            stop()
            sys.exit(PIPE_BROKE)

    try:
        if not logged:
            say(f"no container of {it.definition['family']} keeps a log: its output is not shown")
        narrator.tell(it.task)
        if it.session:
            ended = _attached(it, it.session, narrator, interrupted)
            if not it.session.called.is_set():  # then what went wrong is in the log
                for place in log_places(it.definition, ended):
                    for page in pages(it.where, place):
                        show(place, page.events)
        else:
            ended = follow(
                it.where, it.cluster, it.task_id, lambda seen: log_places(it.definition, seen), show,
                news=it.news, on_task=narrator.tell, on_interrupt=interrupted,
            )  # fmt: skip
    except KeyboardInterrupt:
        narrator.close()
        say(f"left; see `corral logs -f {tasks.short(it.task_id)}`")
        sys.exit(INTERRUPTED)
    except Exception:
        narrator.close()
        say(f"task {tasks.short(it.task_id)} goes on by itself; see `corral logs -f {tasks.short(it.task_id)}`")
        raise
    finally:
        narrator.close()
    if it.as_json:
        print_json(ended)
    sys.exit(_code(it, ended, mine=bool(interrupts)))


def _attached(it: Attended, session: Attached, narrator: Narrator, interrupted: Any) -> dict[str, Any]:
    """The terminal is the task's from its start on; the server may go and come back meanwhile."""

    def tell(task: dict[str, Any]) -> None:
        if not session.begun:
            narrator.tell(task)
        if task["lastStatus"] != "PROVISIONING":
            session.begin()

    tell(it.task)
    watch(it.where, it.cluster, it.task_id, it.news)
    while True:
        match it.news.get():
            case Exception() as error:
                if not session.called.is_set() or session.ended.is_set():
                    raise error
                session.ended.wait()
                watch(it.where, it.cluster, it.task_id, it.news)
            case Interrupt():
                interrupted()
            case dict() as task:
                tell(task)
                if tasks.is_stopped(task):
                    session.close()
                    return task


def _code(it: Attended, ended: dict[str, Any], *, mine: bool) -> int:
    """The exit code, and a word where it does not say it all."""
    name, why = f"task {tasks.short(it.task_id)}", with_short_ids(str(ended.get("stoppedReason", "")))
    if it.session and it.session.unread:
        return PIPE_BROKE
    if it.limit_s is not None and _ran_out(ended):
        say(f"{name} was stopped after its {duration(it.limit_s)}")
        return TIMED_OUT
    code = exit_code(it.definition, ended)
    if code is None:
        say(f"{name} has no exit code: {with_short_ids(tasks.reason(ended))}")
        return INTERRUPTED if ended.get("stopCode") == "UserInitiated" else NO_EXIT_CODE
    if ended.get("stopCode") == "UserInitiated" and not mine:
        say(f"{name} was stopped: {why}")
    return code


def _ran_out(ended: dict[str, Any]) -> bool:
    return "time limit" in str(ended.get("stoppedReason", "")).lower()


def exit_code(definition: dict[str, Any], ended: dict[str, Any]) -> int | None:
    """That of the first essential container that failed, else 0; None when one of them has none."""
    essential = {defined["name"] for defined in definition["containerDefinitions"] if is_essential(defined)}
    codes = [container.get("exitCode") for container in ended["containers"] if container["name"] in essential]
    return next((code for code in codes if code), None if None in codes or not codes else 0)


class Narrator:
    """Says on stderr what a person would ask meanwhile: why it waits, and which GPUs it got.

    At a terminal the reason for waiting is one live line that goes when the wait is over; otherwise each thing is said once.
    """

    def __init__(self, task_id: str) -> None:
        self._name = f"task {tasks.short(task_id)}"
        self._said = ""
        self._began_s = time.monotonic()
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._reason = ""

    def tell(self, task: dict[str, Any]) -> None:
        if task["lastStatus"] == "PROVISIONING" and task["desiredStatus"] != "STOPPED":
            self._wait(with_short_ids(tasks.reason(task)))
        elif task["lastStatus"] in ("PENDING", "ACTIVATING", "RUNNING") or "startedAt" in task:  # a short one is never seen running
            gpus = tasks.gpu_ids(task)
            self._say(f"{self._name} starts" + (f" on {', '.join(gpus)}" if gpus else ""))

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _wait(self, reason: str) -> None:
        self._reason = reason
        if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            self._say(f"{self._name} waits: {reason}")
        elif self._live is None:
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner

            self._spinner = Spinner("dots", style="cyan")
            console = Console(stderr=True, highlight=False, emoji=False, markup=False)
            self._live = Live(get_renderable=self._line, console=console, transient=True, refresh_per_second=8)
            self._live.start(refresh=True)

    def _line(self) -> Spinner:
        from rich.text import Text

        assert self._spinner is not None
        waited = duration(int(time.monotonic() - self._began_s))
        self._spinner.update(text=Text.assemble((f"{self._name} waits {waited}: ", "bold"), self._reason))
        return self._spinner

    def _say(self, text: str) -> None:
        self.close()
        if text != self._said:
            self._said = text
            say(text)
