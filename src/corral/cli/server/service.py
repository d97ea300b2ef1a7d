"""`corral service` lets systemd start Corral at boot. systemd also restarts Corral after a crash. Tasks keep running meanwhile."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.printing.errors import CliError, NotRunning
from corral.cli.printing.output import print_json, print_line, print_message, print_text
from corral.cli.server.systemd_unit import Unit, capture, installed_unit, lingers, output_of, user_name

READY_S = 30.0
POLL_S = 0.1
STARTING = ("active", "activating", "reloading")  # the states of a unit that has started, or that systemd still tries to start


def _scope_options(function: Callable[..., Any]) -> Callable[..., Any]:
    function = click.option("--system", is_flag=True, help="The unit of the whole machine: the default for root.")(function)
    function = click.option("--user", is_flag=True, help="The unit of this user: the default for other users.")(function)
    return data_option(function)


@click.group(short_help="Start Corral at boot, with systemd.")
def service() -> None:
    """Let systemd start Corral at boot.

    \b
    corral service install       write a unit, enable it and start Corral
    corral service status        show the unit and whether Corral runs
    corral service remove        stop Corral and delete the unit

    Corral starts with the options that `corral config` shows. Tasks keep running when the unit stops or restarts.
    """


@service.command(short_help="Write the unit, enable it and start Corral.")
@_scope_options
@click.option("--print", "print_only", is_flag=True, help="Print the unit, and change nothing.")
def install(data: DataFolder, system: bool, user: bool, print_only: bool) -> None:
    """Write a systemd unit for the data folder, enable it at boot, and start Corral.

    If Corral already runs on the folder, it is stopped first, and systemd starts it again. Tasks keep running.
    """
    unit = _unit(data, system, user)
    text = unit.text(os.environ)
    if print_only:
        print_line(text.removesuffix("\n"))
        return
    require_installable(unit)
    other = Unit(data.path, system=not unit.system)
    if other.is_installed():
        scope = "--system" if other.system else "--user"
        raise CliError(f"{other.path} already starts Corral on {data.path}. Remove it first: `corral service remove {scope}`.")
    _warn_about_port(data)
    lingering = enable_unit(unit, text)
    pid = data_folder.pid_of(data)
    if pid is not None and pid != _main_pid(unit):
        from corral.cli.server.down import stop_server

        print_message(f"Corral runs already (process {pid}): systemd starts it again. Tasks keep running.")
        stop_server(data, pid)
    restart_unit(unit)
    about = _wait_until_running(unit, data)
    print_text(f"Corral is up at {about['url']}  (data in {data.path}; {unit.name} starts it at boot)")
    require_lingering(unit, lingering=lingering)


def require_installable(unit: Unit) -> None:
    """Raise a CliError if `enable_unit` cannot install the unit."""
    _require_rights(unit)
    _require_systemd(unit)
    unit.require_free()


def enable_unit(unit: Unit, text: str) -> bool:
    """Write a unit, and let systemd start it at boot. Return False if it starts only when the user logs in."""
    _write(unit, text)
    lingering = unit.system or _enable_linger()
    _run(*unit.systemctl, "daemon-reload")
    _run(*unit.systemctl, "enable", unit.name)
    return lingering


def restart_unit(unit: Unit) -> None:
    _run(*unit.systemctl, "restart", unit.name)


def require_lingering(unit: Unit, *, lingering: bool) -> None:
    if not lingering:
        raise CliError(
            f"{unit.name} runs now, but starts again only when {user_name()} logs in. To start it at boot, run "
            f"`sudo loginctl enable-linger {user_name()}`."
        )


@service.command(short_help="Show the unit and whether Corral runs.")
@_scope_options
@click.option("--json", "as_json", is_flag=True, help="Print the state as JSON.")
def status(data: DataFolder, system: bool, user: bool, as_json: bool) -> None:
    """Show the unit, whether it starts at boot, and whether systemd runs Corral. The exit code is 3 if it does not."""
    unit = _existing_unit(data, system, user)
    installed, pid = unit.is_installed(), data_folder.pid_of(data)
    state = output_of(*unit.systemctl, "is-active", unit.name) if installed else "not installed"
    by_unit = installed and pid is not None and pid == _main_pid(unit)
    at_boot = installed and unit.is_enabled() and (unit.system or lingers())
    shown = {
        "unit": unit.name, "path": str(unit.path), "scope": "system" if unit.system else "user", "installed": installed,
        "state": state or "unknown", "startsAtBoot": at_boot, "pid": pid, "runByUnit": by_unit, "data": str(data.path),
    }  # fmt: skip
    if as_json:
        print_json(shown)
        sys.exit(0 if by_unit else NotRunning.exit_code)
    if not installed:
        raise NotRunning(f"{unit.path} does not exist. `corral service install` creates it.")
    print_text(f"Unit: {unit.path}")
    print_text(f"State: {shown['state']}" + (f" (process {pid})" if by_unit else ""))
    if at_boot:
        print_line("Starts at boot: yes")
    elif not unit.is_enabled():
        print_text(f"Starts at boot: no; run `{' '.join(unit.systemctl)} enable {unit.name}`")
    else:
        print_text(f"Starts at boot: no, only when {user_name()} logs in; run `sudo loginctl enable-linger {user_name()}`")
    print_text(f"Log: {_journal(unit)}")
    if pid is not None and not by_unit:
        print_message(f"Corral runs as process {pid}, which systemd did not start. `corral service install` lets systemd start it.")
    sys.exit(0 if by_unit else NotRunning.exit_code)


@service.command(short_help="Stop Corral and delete the unit.")
@_scope_options
def remove(data: DataFolder, system: bool, user: bool) -> None:
    """Stop Corral, and delete its unit. Tasks and data are kept: `corral up` continues with them."""
    unit = _existing_unit(data, system, user)
    if not unit.is_installed():
        unit.require_free()
        print_line(f"{unit.path} does not exist.")
        return
    require_removable(unit)
    remove_unit(unit)


def require_removable(unit: Unit) -> None:
    """Raise a CliError if `remove_unit` cannot remove the unit."""
    _require_rights(unit)
    _require_systemd(unit)


def remove_unit(unit: Unit) -> None:
    """Stop the Corral of a unit, and delete the unit."""
    _run(*unit.systemctl, "disable", "--now", unit.name)
    unit.path.unlink()
    print_line(f"$ rm {shlex.quote(str(unit.path))}")
    _run(*unit.systemctl, "daemon-reload")
    if not unit.system and lingers():
        print_message(f"lingering stays enabled for {user_name()}: other units may need it. `loginctl disable-linger` ends it.")


def _unit(data: DataFolder, system: bool, user: bool) -> Unit:
    if system and user:
        raise click.UsageError("--system and --user cannot be used together.")
    return Unit(data.path, system=system or (os.geteuid() == 0 and not user))


def _existing_unit(data: DataFolder, system: bool, user: bool) -> Unit:
    """Return the unit that --system or --user names. Without these options, return the installed unit, if there is one."""
    chosen = _unit(data, system, user)
    return chosen if system or user else installed_unit(data) or chosen


def _require_rights(unit: Unit) -> None:
    if unit.system and os.geteuid() != 0:
        raise CliError("--system needs root. Without --system, Corral gets a unit of this user, which needs no root.")


def _require_systemd(unit: Unit) -> None:
    """Raise a CliError that says what to do instead, if systemd does not run or does not respond."""
    command = [*unit.systemctl, "show", "--property=Version", "--value"]
    try:
        done = capture(*command)
    except FileNotFoundError:
        problem = "there is no systemctl command"
    else:
        if done.returncode == 0:
            return
        problem = f"`{shlex.join(command)}` failed: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}"
    if os.path.exists("/run/systemd/system"):
        advice = "log in as this user directly, for example with ssh, and not with su or sudo; then repeat"
    else:
        data, corral = shlex.quote(str(unit.data)), shlex.quote(shutil.which("corral") or "corral")
        advice = (
            f"let another program start `{corral} up --data {data}` at boot as this user, and stop Corral with SIGTERM to that "
            f"process alone. With cron, add this line with `crontab -e`: `@reboot {corral} up --detach --data {data}`"
        )
    raise CliError(f"systemd does not manage this session: {problem}. Nothing was changed. Instead, {advice}.")


def _warn_about_port(data: DataFolder) -> None:
    from corral.configuration.file import ConfigurationError, read_file

    try:
        port = read_file(data.path).values()["up.port"]
    except ConfigurationError as error:
        raise CliError(str(error)) from None
    if port == 0:
        print_message("up.port is 0, so the URL changes at every start. Choose a port: `corral config set up.port 4566`.")
    variable = os.environ.get("CORRAL_PORT")
    if variable and variable != str(port):
        print_message(f"the unit ignores $CORRAL_PORT ({variable}) and uses port {port}: `corral config set up.port {variable}`.")


def _write(unit: Unit, text: str) -> None:
    unit.path.parent.mkdir(parents=True, exist_ok=True)
    fresh = unit.path.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    fresh.rename(unit.path)
    print_line(f"wrote {unit.path}")


def _enable_linger() -> bool:
    """Let the units of this user start at boot. Return False if that is not permitted."""
    if lingers():
        return True
    try:
        _run("loginctl", "enable-linger")
    except CliError as error:
        print_message(error.message)
        return False
    return True


def _wait_until_running(unit: Unit, data: DataFolder) -> dict[str, Any]:
    deadline_s = time.monotonic() + READY_S
    while True:
        state = output_of(*unit.systemctl, "is-active", unit.name)
        if (about := data_folder.running(data)) is not None:
            return about
        if state not in STARTING or time.monotonic() > deadline_s:
            raise CliError(f"{unit.name} did not start Corral (state: {state or 'unknown'}). See `{_journal(unit)}`.")
        time.sleep(POLL_S)


def _journal(unit: Unit) -> str:
    return f"journalctl {'' if unit.system else '--user '}-u {unit.name}"


def _main_pid(unit: Unit) -> int | None:
    shown = output_of(*unit.systemctl, "show", "--property=MainPID", "--value", unit.name)
    return int(shown) if shown.isdigit() and int(shown) else None


def _run(*command: str) -> None:
    """Print a command and run it. Raise a CliError if it fails."""
    print_line(f"$ {shlex.join(command)}")
    try:
        done = capture(*command)
    except FileNotFoundError:
        raise CliError(f"there is no {command[0]} command on PATH.") from None
    if done.returncode:
        raise CliError(f"`{shlex.join(command)}` failed: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
