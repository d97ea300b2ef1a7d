"""Sends a notification about the end of a run: to the desktop, by mail, to a webhook, or with a shell command."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from corral.cli.printing.output import format_duration, shorten_ids
from corral.cli.runs import tasks
from corral.process.control_characters import escape_controls

COMMAND_MAX_S = 300.0  # a command that runs longer is killed
REQUEST_MAX_S = 10.0
ATTEMPT_PAUSES_S = (1.0, 4.0)  # the pauses between the attempts to send a webhook
REASON_MAX = 1_000
MAIL = "mail:"


class EndedRun(NamedTuple):
    """What a notification reports about a run. With --array, a run has several tasks."""

    name: str
    task_ids: Sequence[str]
    exit_code: int | None  # None: the task never started, or its host was lost
    reason: str
    duration_s: int  # from the first start of a task to the last end; 0 if no task has started

    @property
    def title(self) -> str:
        if self.exit_code is None:
            return f"{self.name} did not run to its end"
        return f"{self.name} failed with exit code {self.exit_code}" if self.exit_code else f"{self.name} succeeded"

    @property
    def details(self) -> str:
        shown = ", ".join(task_id[:8] for task_id in self.task_ids[:3])
        more = f" and {len(self.task_ids) - 3} more" if len(self.task_ids) > 3 else ""
        lines = [f"task {shown}{more}, {format_duration(self.duration_s)}", shorten_ids(self.reason)]
        return "\n".join(line for line in lines if line)

    @property
    def variables(self) -> dict[str, str]:
        return {
            "CORRAL_NAME": self.name,
            "CORRAL_TASK": " ".join(self.task_ids),
            "CORRAL_EXIT_CODE": "" if self.exit_code is None else str(self.exit_code),
            "CORRAL_REASON": self.reason,
            "CORRAL_DURATION": str(self.duration_s),
        }

    @property
    def document(self) -> dict[str, Any]:
        """The body of a webhook. Chat programs display the member `text`."""
        return {
            "text": f"{self.title} ({format_duration(self.duration_s)})",
            "name": self.name,
            "tasks": list(self.task_ids),
            "exitCode": self.exit_code,
            "reason": self.reason,
            "durationSeconds": self.duration_s,
        }


def end_notice(name: str, ended: Sequence[dict[str, Any]], exit_code: int | None) -> EndedRun:
    """Return what a notification reports about a run. `ended` has the descriptions of its stopped tasks."""
    started = [task["startedAt"] for task in ended if "startedAt" in task]
    stopped = [task["stoppedAt"] for task in ended if "stoppedAt" in task]
    duration_s = max(0, int((max(stopped) - min(started)).total_seconds())) if started and stopped else 0
    reason = next((why for task in ended if (why := tasks.reason(task))), "")
    ids = [tasks.id_of(task) for task in ended]
    return EndedRun(name, ids, exit_code, escape_controls(reason[:REASON_MAX]), duration_s)


def send_all(given: Sequence[str], end: EndedRun, environment: Mapping[str, str], folder: str, say: Callable[[str], None]) -> None:
    """Send all notifications of a run, one after the other. Print a message for each that fails."""
    for each in given:
        try:
            problem = _send(each, end, environment, folder)
        except (OSError, ValueError) as error:  # ValueError: a variable contains a NUL character
            problem = str(error)
        if problem:
            say(f"the notification {_shown(each)} failed: {problem}")


def _shown(given: str) -> str:
    """Return a notification without the path of a URL, which may contain a secret."""
    from urllib.parse import urlsplit

    return f"{urlsplit(given).scheme}://{urlsplit(given).hostname}/…" if _is_url(given) else given[:80]


def _is_url(given: str) -> bool:
    return given.startswith(("http://", "https://"))


def _send(given: str, end: EndedRun, environment: Mapping[str, str], folder: str) -> str:
    """Send one notification. Return why it failed, or an empty text."""
    if _is_url(given):
        return _post(given, end)
    if given == "desktop":
        body = end.details.replace("&", "&amp;").replace("<", "&lt;")  # a desktop displays the body as markup
        urgency = "normal" if end.exit_code == 0 else "critical"
        return _run(["notify-send", "--app-name=Corral", f"--urgency={urgency}", end.title, body], environment, folder)
    if given.startswith(MAIL):
        return _run(["mail", "-s", end.title, given.removeprefix(MAIL)], environment, folder, f"{end.title}\n{end.details}\n")
    return _run(["/bin/sh", "-c", given], {**environment, **end.variables}, folder)


def _run(command: list[str], environment: Mapping[str, str], folder: str, text: str = "") -> str:
    """Run a command. Return why it failed, or an empty text.

    The command gets its own session, so that all its processes can be killed if it takes too long.
    """
    import subprocess

    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdin=subprocess.PIPE, stdout=2, text=True, start_new_session=True
    )  # the output of the command is written to stderr, because stdout may be JSON
    try:
        process.communicate(text, COMMAND_MAX_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"it took more than {COMMAND_MAX_S:.0f} s and was killed"
    return f"exit code {process.returncode}" if process.returncode else ""


def _post(url: str, end: EndedRun) -> str:
    import urllib.error
    import urllib.request

    problem = ""
    for pause_s in (*ATTEMPT_PAUSES_S, None):
        request = urllib.request.Request(url, json.dumps(end.document).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_MAX_S):
                return ""
        except urllib.error.HTTPError as error:
            problem = f"HTTP {error.code}"
            if error.code < 500:
                return problem
        except OSError as error:
            problem = str(error.reason if isinstance(error, urllib.error.URLError) else error)
        if pause_s is not None:
            time.sleep(pause_s)
    return problem
