"""The foreground of `corral run`: reports why the task waits, shows the output of the task, and exits with its exit code."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from corral.cli.client.endpoint import Endpoint, client
from corral.cli.printing.errors import BROKEN_PIPE, INTERRUPTED, NO_EXIT_CODE, TIMED_OUT, TasksLost
from corral.cli.printing.output import end_bar, format_duration, log_line, print_json, print_message, shorten_ids
from corral.cli.runs import tasks
from corral.cli.runs.log_states import TaskLogStream, log_states
from corral.cli.runs.notify import RunNotifications
from corral.cli.runs.signals import Leave, RunSignals, SignalledRun, is_terminal_closed, stop_task, stop_timeout_s
from corral.cli.runs.task_logs import (
    FollowedTask,
    TaskUpdates,
    follow,
    has_log,
    log_streams,
    pages_until_complete,
    through_outages,
    watch_task,
)

if TYPE_CHECKING:
    from rich.live import Live
    from rich.spinner import Spinner

    from corral.cli.runs.terminal import RunTerminal


class ForegroundRun(NamedTuple):
    endpoint: Endpoint
    cluster: str
    task: dict[str, Any]  # the task in the response of RunTask
    definition: dict[str, Any]
    signals: RunSignals
    as_json: bool
    limit_s: int | None
    terminal: RunTerminal | None  # set with -i
    notifications: RunNotifications

    @property
    def task_id(self) -> str:
        return tasks.id_of(self.task)


def wait_in_foreground(run: ForegroundRun) -> None:
    """Show the task's progress and output until it stops, then exit with its exit code."""
    current = [run.task_id]  # the id of the task that is followed: if a task fails and is requeued, another task replaces it
    reporter = ProgressReporter(run.task_id)
    updates: TaskUpdates = SimpleQueue()
    logged = [defined["name"] for defined in run.definition["containerDefinitions"] if has_log(defined)]
    width = max(map(len, logged), default=0) if len(logged) > 1 else 0
    restore = run.terminal.restore if run.terminal else lambda: None
    run.signals.follow(
        SignalledRun(
            run.endpoint, run.cluster, lambda: list(current), stop_timeout_s(run.definition), updates, reporter.say,
            f"corral logs -f {tasks.short(run.task_id)}", restore,
        )
    )  # fmt: skip

    def on_terminal(write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            if not is_terminal_closed(error):
                raise
            run.signals.terminal_closed()

    def report(task: dict[str, Any]) -> None:
        on_terminal(lambda: reporter.report(task))

    def show(stream: TaskLogStream, events: list[dict[str, Any]]) -> None:
        out = sys.stderr if run.as_json else sys.stdout
        name = f"{stream.container:<{width}} | " if width else ""

        def write() -> None:
            out.write("".join(log_line(name, event["message"], out) for event in events))
            out.flush()

        try:
            on_terminal(write)
        except BrokenPipeError:  # the reader has closed the pipe: stop the task, as SIGPIPE would stop a local program
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
            stop_task(client(run.endpoint, "ecs"), run.cluster, current[0], "the reader of the output has closed it")
            run.notifications.send_later(current)
            sys.exit(BROKEN_PIPE)

    try:
        if not logged:
            print_message(f"no container of {run.definition['family']} has the awslogs log driver, so its output is not shown")
        report(run.task)
        if run.terminal:
            ended = _wait_with_terminal(run, run.terminal, updates, report)
            if not run.terminal.connected.is_set():  # the task failed before it connected, so its log contains the error
                for stream in log_streams(run.definition, ended):
                    for page in pages_until_complete(run.endpoint, stream, f"task {tasks.short(run.task_id)}"):
                        show(stream, page.events)
        else:
            while True:
                followed = FollowedTask(run.cluster, current[0], lambda seen: log_streams(run.definition, seen))
                [ended] = follow(run.endpoint, [followed], show, updates=updates, on_task=report)
                replacement = tasks.tag_value(ended, tasks.REQUEUED_TAG)
                if not replacement:
                    break
                current[0] = replacement
                run.signals.replaced(replacement)
                on_terminal(partial(reporter.requeued, ended, replacement))
    except Leave as leave:
        run.notifications.send_later(current)
        reporter.say(leave.text)
        sys.exit(leave.code)
    except TasksLost:
        raise
    except Exception:
        if run.signals.end_code is not None:
            run.signals.wait_for_stop()
            sys.exit(run.signals.end_code)
        run.notifications.send_later(current)
        reporter.say(f"task {tasks.short(current[0])} keeps running; follow it with `corral logs -f {tasks.short(current[0])}`")
        raise
    finally:
        end_bar()
        reporter.close()
    if run.as_json:
        states = through_outages(lambda: log_states(run.endpoint, log_streams(run.definition, ended)))
        logs = [{"container": log.container, "logStream": log.name, **state.described()} for log, state in states.items()]
        print_json({**ended, **({"logs": logs} if logs else {})})
    run.signals.finished()
    code = _exit_code(run, ended)
    run.notifications.send([ended], code)
    sys.exit(code)


def _wait_with_terminal(
    run: ForegroundRun, terminal: RunTerminal, updates: TaskUpdates, report_progress: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Connect the terminal to the task when the task starts. Wait until the task stops, and return its description.

    If the server does not respond while the terminal is connected, continue when the task has disconnected.
    """

    def report(task: dict[str, Any]) -> None:
        if not terminal.started:
            report_progress(task)
        if task["lastStatus"] != "PROVISIONING":
            terminal.start()

    report(run.task)
    watch_task(run.endpoint, run.cluster, run.task_id, updates)
    while True:
        match updates.get():
            case Leave() as leave:
                raise leave
            case Exception() as error:
                if not terminal.connected.is_set() or terminal.ended.is_set():
                    raise error
                terminal.ended.wait()
                watch_task(run.endpoint, run.cluster, run.task_id, updates)
            case dict() as task:
                report(task)
                if tasks.is_stopped(task):
                    terminal.close()
                    return task


def _exit_code(run: ForegroundRun, ended: dict[str, Any]) -> int:
    """Return the exit code of `corral run`. Print a message if the exit code alone does not explain why the task stopped."""
    name, why = f"task {tasks.short(tasks.id_of(ended))}", shorten_ids(str(ended.get("stoppedReason", "")))
    if run.terminal and run.terminal.output_closed:
        return BROKEN_PIPE
    if run.signals.end_code is not None:
        return run.signals.end_code
    if run.limit_s is not None and tasks.reached_time_limit(ended):
        print_message(f"{name} was stopped at its time limit of {format_duration(run.limit_s)}")
        return TIMED_OUT
    code = tasks.exit_code(run.definition, ended)
    if code is None and run.signals.interrupted and "startedAt" not in ended:
        return INTERRUPTED  # a message has said that Ctrl-C has cancelled the task
    if code is None:
        print_message(f"{name} has no exit code: {shorten_ids(tasks.reason(ended))}")
        return INTERRUPTED if ended.get("stopCode") == "UserInitiated" else NO_EXIT_CODE
    if ended.get("stopCode") == "UserInitiated" and not run.signals.interrupted:
        print_message(f"{name} was stopped: {why}")
    return code


class ProgressReporter:
    """Prints to stderr why the task waits, and later which GPUs it uses.

    In a terminal, if `is_live` is true, one line shows the current reason, and disappears when the task starts. Otherwise a reason
    is printed when it has changed.
    """

    def __init__(self, task_id: str, *, is_live: bool = True) -> None:
        self._name = f"task {tasks.short(task_id)}"
        self._is_live = is_live and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._printed = ""
        self._began_s = time.monotonic()
        self._live: Live | None = None
        self._spinner: Spinner | None = None
        self._reason = ""
        self._lock = threading.RLock()  # the thread that handles signals prints messages, too

    def report(self, task: dict[str, Any]) -> None:
        with self._lock:
            self._report(task)

    def requeued(self, ended: dict[str, Any], replacement: str) -> None:
        """Report that a task has failed, and that another task replaces it. From now on, report the progress of the new task."""
        with self._lock:
            codes = ", ".join(map(str, tasks.exit_codes(ended)))
            why = f"with exit code {codes}" if codes else f"({shorten_ids(tasks.reason(ended))})"
            self._print(f"{self._name} failed {why} and is requeued as task {tasks.short(replacement)}")
            self._name, self._began_s = f"task {tasks.short(replacement)}", time.monotonic()

    def say(self, text: str) -> None:
        """End the line that shows the reason, and print a message. If the terminal has closed, do nothing."""
        with self._lock, suppress(OSError):
            self.close()
            print_message(text)

    def close(self) -> None:
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None

    def _report(self, task: dict[str, Any]) -> None:
        if task["lastStatus"] == "PROVISIONING" and task["desiredStatus"] != "STOPPED":
            self._wait(shorten_ids(tasks.reason(task)))
        elif task["lastStatus"] in ("PENDING", "ACTIVATING", "RUNNING") or "startedAt" in task:  # it may have stopped already
            gpus = tasks.gpu_ids(task)
            self._print(f"{self._name} starts" + (f" on {', '.join(gpus)}" if gpus else ""))

    def _wait(self, reason: str) -> None:
        self._reason = reason
        if not self._is_live:
            self._print(f"{self._name} {reason}" if reason.startswith("waits ") else f"{self._name} waits: {reason}")
        elif self._live is None:
            from rich.live import Live
            from rich.spinner import Spinner

            from corral.cli.printing.safe_text import SafeConsole

            self._spinner = Spinner("dots", style="cyan")
            self._live = Live(get_renderable=self._line, console=SafeConsole(stderr=True), transient=True, refresh_per_second=8)
            self._live.start(refresh=True)

    def _line(self) -> Spinner:
        from corral.cli.printing.safe_text import SafeText

        assert self._spinner is not None
        waited = format_duration(int(time.monotonic() - self._began_s))
        self._spinner.update(text=SafeText.assemble((f"{self._name} waits {waited}: ", "bold"), self._reason))
        return self._spinner

    def _print(self, text: str) -> None:
        self.close()
        if text != self._printed:
            self._printed = text
            print_message(text)
