"""The Corral of a data folder: is it running, where, and with which keys."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from corral.cli.refusals import Failed, NotRunning


@dataclass(frozen=True, slots=True)
class Data:
    path: Path
    chosen: bool  # on the command line, which says more than the environment does


def _take(context: click.Context, parameter: click.Parameter, value: Path | None) -> Data:
    source = context.get_parameter_source(parameter.name or "")
    path = value if value is not None else Path.home() / ".corral"
    return Data(path.expanduser().absolute(), source is click.core.ParameterSource.COMMANDLINE)


def data_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        metavar="DIR",
        envvar="CORRAL_DATA",
        callback=_take,
        help="Corral's data folder (default: $CORRAL_DATA, else ~/.corral).",
    )(function)


def running(data: Data) -> dict[str, Any] | None:
    """What the server that runs on this folder says of itself: url, pid, data, account, gpusFlag. None: none runs."""
    about = _read(data.path / "server.json")
    return about if about is not None and serves(about["pid"], data.path) else None


def must_run(data: Data) -> dict[str, Any]:
    about = running(data)
    if about is None:
        raise NotRunning(not_running(data))
    return about


def not_running(data: Data) -> str:
    return f"Corral is not running on {data.path}. Start it with `{start_command(data)}`."


def start_command(data: Data) -> str:
    plain = Data(Path.home() / ".corral", chosen=False)
    return "corral up --detach" if data.path == plain.path else f"corral up --detach --data {data.path}"


def keys(data: Data) -> dict[str, str]:
    """The root keys of this folder: access_key and secret_key."""
    found = _read(data.path / "credentials.json")
    if found is None:
        raise Failed(f"there is no {data.path / 'credentials.json'}: this Corral's keys are gone. Restart it to make new ones.")
    return {"access_key": found["access_key"], "secret_key": found["secret_key"]}


def pid_of(data: Data) -> int | None:
    """The process that serves this folder, also while it still starts and has not said where it listens."""
    about = _read(data.path / "server.json")
    if about is not None and serves(about["pid"], data.path):
        return int(about["pid"])
    try:
        holder = (data.path / "lock").read_text().rpartition(" ")[2]
    except FileNotFoundError:
        return None
    return int(holder) if holder.isdigit() and serves(int(holder), data.path) else None


def serves(pid: int, folder: Path) -> bool:
    """Is this process a Corral server on this folder? The files may have outlived theirs, and its number may be another's now."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "surrogateescape").split("\0")
        its_folder = Path(os.readlink(f"/proc/{pid}/cwd"), words[words.index("--data") + 1])
    except (OSError, ValueError, IndexError):
        return False
    return "corral.server" in words and its_folder.resolve() == folder.resolve()


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Failed(f"{path} cannot be read: {error}") from None
