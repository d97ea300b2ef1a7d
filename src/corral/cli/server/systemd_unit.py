"""The systemd unit that starts Corral at boot: its name, its path and its text.

A user unit belongs to one user and needs no root. systemd starts it when the user logs in. If lingering is enabled for the user
(`loginctl enable-linger`), systemd starts it at boot. A system unit belongs to root and always starts at boot.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from pwd import getpwuid

from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder
from corral.cli.printing.errors import CliError

SYSTEM_UNITS = Path("/etc/systemd/system")
COMMAND_S = 60.0
# The agent passes these variables to tasks that are processes (`node/process_engine.py`), and DOCKER_HOST names the Docker engine.
# systemd starts a unit with few variables, so the unit has the values of the shell in which it was installed.
VARIABLES = ("PATH", "HOME", "USER", "SHELL", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "DOCKER_HOST")
NAME_MAX = 200


@dataclass(frozen=True, slots=True)
class Unit:
    data: Path
    system: bool
    joins: bool = False  # True: the unit of a host that has joined another server (`corral join`)

    @property
    def name(self) -> str:
        """`corral.service` for the default data folder. The name for another folder contains its path."""
        if self.data == Path.home() / ".corral":
            return "corral.service"
        if self.joins and self.data == Path.home() / ".corral-host":
            return "corral-host.service"
        return f"corral-{re.sub('[^A-Za-z0-9]+', '-', str(self.data)).strip('-')[-NAME_MAX:]}.service"

    @property
    def path(self) -> Path:
        if self.system:
            return SYSTEM_UNITS / self.name
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user" / self.name

    @property
    def target(self) -> str:
        return "multi-user.target" if self.system else "default.target"

    @property
    def systemctl(self) -> list[str]:
        return ["systemctl"] if self.system else ["systemctl", "--user"]

    @property
    def mark(self) -> str:
        """The first line of the unit. It shows that Corral wrote the file, and for which data folder."""
        return f"# Written by `{self._command}` for the data folder {self.data}"

    @property
    def _command(self) -> str:
        return "corral join --service" if self.joins else "corral service install"

    def is_installed(self) -> bool:
        return self._first_line() == self.mark

    def require_free(self) -> None:
        """Raise a CliError if the path has a file that is not the unit of this data folder."""
        if self._first_line() not in (None, self.mark):
            raise CliError(f"{self.path} was not written by `{self._command}` for {self.data}. Move the file away, then repeat.")

    def _first_line(self) -> str | None:
        try:
            return os.fsdecode(self.path.read_bytes().partition(b"\n")[0])
        except FileNotFoundError:
            return None

    def is_enabled(self) -> bool:
        """Return True if systemd starts the unit at boot or, without lingering, at login. Needs no running systemd."""
        return os.path.lexists(self.path.parent / f"{self.target}.wants" / self.name)

    def text(self, environment: Mapping[str, str]) -> str:
        """Return the content of the unit file.

        KillMode=process: when the unit stops, systemd ends only the server. Tasks keep running.
        OOMPolicy=continue: systemd does not stop the unit when a task has used too much memory.
        Delegate=yes: Corral may create cgroups with memory and CPU limits for tasks.
        """
        command = [sys.executable, "-P", "-m", "corral", "join" if self.joins else "up", "--data", str(self.data)]
        for value in (*command, *(environment.get(name, "") for name in VARIABLES)):
            if re.search(r"[\x00-\x1f\x7f]", value):
                raise CliError(
                    f"{value!r} contains a control character, which a systemd unit cannot contain. Choose another value."
                )
        variables = [f"Environment={_quoted(f'{name}={environment[name]}')}" for name in VARIABLES if environment.get(name)]
        network = ["Wants=network-online.target", "After=network-online.target docker.service nvidia-persistenced.service"]
        lines = [
            self.mark,
            "[Unit]",
            f"Description=Corral (data in {str(self.data).replace('%', '%%')})",
            *(network if self.system else []),
            "StartLimitIntervalSec=300",
            "StartLimitBurst=10",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={' '.join((_quoted(command[0]), *(_quoted(word).replace('$', '$$') for word in command[1:])))}",
            *variables,
            "Restart=on-failure",
            "RestartSec=2",
            "RestartPreventExitStatus=3",  # the data folder was deleted (`server/deleted_folder.py`)
            "KillMode=process",
            "TimeoutStopSec=30",
            "OOMPolicy=continue",
            "Delegate=yes",
            "TasksMax=infinity",
            "",
            "[Install]",
            f"WantedBy={self.target}",
        ]
        return "\n".join(lines) + "\n"


def user_name() -> str:
    try:
        return getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())  # loginctl accepts a number, too


def lingers() -> bool:
    """Return True if systemd starts the units of this user at boot."""
    return output_of("loginctl", "show-user", user_name(), "--property=Linger", "--value") == "yes"


def output_of(*command: str) -> str:
    """Return what a command prints. Return an empty text if the command does not exist."""
    try:
        return capture(*command).stdout.strip()
    except FileNotFoundError:
        return ""


def capture(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        raise CliError(f"`{shlex.join(command)}` did not end within {COMMAND_S:.0f} s.") from None


def installed_unit(data: DataFolder) -> Unit | None:
    """Return the installed unit of a data folder, or None. If there is a user unit and a system unit, return the user unit."""
    for unit in (Unit(data.path, system=False), Unit(data.path, system=True)):
        if unit.is_installed():
            return unit
    return None


def restart_commands(data: DataFolder) -> str:
    """Return the commands that restart Corral, for a message."""
    unit = installed_unit(data)
    if unit is not None:
        return f"`{' '.join(unit.systemctl)} restart {unit.name}`"
    up = data_folder.start_command(data)
    return f"`{up.replace('up --detach', 'down')}`, `{up}`"


def _quoted(word: str) -> str:
    """Return a word in quotation marks. `%` begins a specifier of systemd, so it is doubled."""
    return '"' + word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%") + '"'
