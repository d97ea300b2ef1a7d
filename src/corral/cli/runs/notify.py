"""Notifications at the end of a run (`corral run --notify`). A notification is one of:

    desktop             a notification of the desktop, by the command notify-send
    mail:ADDRESS        a mail, by the command mail
    http(s)://…         a webhook: a POST request with a small JSON document
    none                no notification, not even those of the setting `run.notify` in corral.toml
    any other text      a shell command, with the variables CORRAL_NAME, CORRAL_TASK, CORRAL_EXIT_CODE, CORRAL_REASON and
                        CORRAL_DURATION (in seconds)

A foreground run sends its notifications itself. If `corral run` exits before the end of the run, for example with --detach, another
process sends them (`notify_process.py`). If a notification fails, the exit code of `corral run` does not change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

from corral.cli.client.data_folder import DataFolder
from corral.cli.client.endpoint import Endpoint
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message
from corral.cli.runs.notification import MAIL, _is_url, end_notice, send_all
from corral.process.data_folder import CONFIGURATION

NONE = "none"
_ADDRESS = r"[^\s,;<>-][^\s,;<>]{0,253}"
_WORD = r"[\w.-]+"


class RunNotifications(NamedTuple):
    given: Sequence[str]
    name: str
    data: DataFolder
    endpoint: Endpoint
    cluster: str

    def send(self, ended: Sequence[dict[str, Any]], exit_code: int | None) -> None:
        """Send all notifications. `ended` has the descriptions of the stopped tasks."""
        send_all(self.given, end_notice(self.name, ended, exit_code), os.environ, os.getcwd(), print_message)

    def send_later(self, task_ids: Sequence[str]) -> None:
        """Let another process send the notifications when the tasks have stopped."""
        if self.given:
            from corral.cli.runs.notify_process import notify_later

            served = str(self.data.path) if self.endpoint.endpoint_url is not None else ""
            run = {"notifications": list(self.given), "name": self.name, "cluster": self.cluster, "tasks": list(task_ids)}
            notify_later(served, run, os.environ)


NO_NOTIFICATIONS = RunNotifications((), "", DataFolder(Path(), chosen=False), Endpoint(), "")


def check_notifications(context: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a notification that cannot work, before the run starts."""
    for each in given:
        problem = _problem(each)
        if problem:
            raise click.BadParameter(problem)
    return given


def notifications_of(given: Sequence[str], data: DataFolder) -> list[str]:
    """Return the notifications of the command line, or those of corral.toml if the command line has none. Omit `none`."""
    if given:
        return [each for each in given if each != NONE]
    if not _mentions_notify(data.path / CONFIGURATION):
        return []
    from corral.configuration.file import ConfigurationError, read_file

    try:
        configured: list[str] = read_file(data.path).values()["run.notify"]
    except ConfigurationError as error:
        raise CliError(str(error)) from None
    problems = {each: _problem(each) for each in configured}
    for problem in filter(None, problems.values()):
        print_message(f"run.notify in {data.path / CONFIGURATION}: {problem}")
    return [each for each in configured if each != NONE and not problems[each]]


def _mentions_notify(path: Path) -> bool:
    """Whether corral.toml can have the setting `run.notify`. If not, the file is not parsed.

    Parsing the file would take as long as the rest of the command.
    """
    try:
        return b"notify" in path.read_bytes()
    except OSError:
        return False


notify_option = click.option(
    "--notify", metavar="WHAT", multiple=True, callback=check_notifications,
    help="At the end of the run: desktop, mail:ADDRESS, a URL for a webhook, or a shell command. Can be repeated.",
)  # fmt: skip


def _problem(given: str) -> str:
    import shutil
    from urllib.parse import urlsplit

    if given == NONE:
        return ""
    if given == "desktop":
        return (
            "" if shutil.which("notify-send") else "desktop requires the program notify-send, which is not installed (libnotify)."
        )
    if given.startswith(MAIL):
        if not re.fullmatch(_ADDRESS, given.removeprefix(MAIL)):
            return f"'{given}' is not mail:ADDRESS: write it as mail:me@example.org."
        return "" if shutil.which("mail") else "mail: requires the program mail, which is not installed (bsd-mailx or mailutils)."
    if _is_url(given):
        return "" if urlsplit(given).hostname else f"'{given}' is not a URL: it names no host."
    if not given.strip() or "\0" in given:
        return f"'{given}' is not a command."
    if re.fullmatch(_WORD, given) and shutil.which(given) is None:
        return f"'{given}' is not a command on the PATH. Use desktop, mail:ADDRESS, a URL, or a shell command."
    return ""
