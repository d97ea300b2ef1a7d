"""`corral join` lets this machine run tasks of a Corral server on another machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from corral.cli.client.data_folder import host_folder
from corral.cli.hosts.interface import known_interface
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_message, print_text
from corral.cli.server.service import enable_unit, require_installable, require_lingering, restart_unit
from corral.cli.server.systemd_unit import Unit
from corral.process.data_folder import JOINED

STDIN = "-"


def _folder(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path:
    return value.expanduser().absolute() if value is not None else host_folder()


@click.command(short_help="Let this machine run tasks of a server on another machine.")
@click.argument("server", metavar="[SERVER[:PORT]]", required=False)
@click.option("--token", metavar="TOKEN", help="The token that `corral token create` has printed; - reads it from standard input.")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", envvar="CORRAL_HOST_DATA",
              callback=_folder, help="The folder of this host (default: $CORRAL_HOST_DATA, else ~/.corral-host).")  # fmt: skip
@click.option("--name", help="The name of this host (default: the name of the machine).")
@click.option("--gpus", show_default="auto", help="auto, none, or simulated GPUs: sim:8, sim:2xH200.")
@click.option("--exclude-gpus", metavar="GPUS", help="GPUs that tasks never get, by index or id: 0,3,GPU-...")
@click.option("--runtime", type=click.Choice(["auto", "process", "docker"]), show_default="auto",
              help="docker runs images as containers, process ignores images, auto uses Docker if it is available.")  # fmt: skip
@click.option("--cluster", metavar="NAME", show_default="that of the server",
              help="The ECS cluster that this host joins, unless the token names one.")  # fmt: skip
@click.option("--rack", help="The rack of this host, unless the token names one.")
@click.option("--instance-type", show_default="corral.host",
              help="The value of the attribute ecs.instance-type of this host, such as p3.8xlarge.")  # fmt: skip
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="An attribute for placement constraints. Repeatable.")
@click.option("--address", help="The address of this machine for tasks on other hosts (default: found by Corral).")
@click.option("--interface", metavar="NAME", callback=known_interface,
              help="The network interface for tasks on other hosts, such as ib0 (default: that of the address).")  # fmt: skip
@click.option("--new", is_flag=True, help="Join as a new host: this disk or folder is a copy of that of another host.")
@click.option("--service", is_flag=True, help="Let systemd run it, also at boot, instead of this command.")
@click.pass_context
def join(
    context: click.Context, /, server: str | None, token: str | None, data: Path, name: str | None, labels: tuple[str, ...],
    new: bool, service: bool, **options: Any,
) -> None:  # fmt: skip
    """Let this machine run tasks of a Corral server on another machine. Its GPUs are then in `corral status`.

    `corral token create` on the server prints the command. Later, `corral join` without arguments continues. Tasks keep running
    when this command ends, and it finds them again.

    Corral remembers the options in corral.toml in the folder of the host.
    """
    if token is not None and token != STDIN:
        _hide_token(token)
    if (server is None) != (token is None):
        raise click.UsageError("SERVER and --token are used together: copy the line that `corral token create` has printed.")
    if new and server is None:
        raise click.UsageError("--new needs SERVER:PORT and --token: a copy of a host joins with a token of its own.")
    given = {name: value for name, value in options.items() if value is not None} | ({"labels": ",".join(labels)} if labels else {})
    remembered = [key for key in given if context.get_parameter_source(key) is ParameterSource.COMMANDLINE]
    chosen = _chosen(data, given, remembered)
    unit = Unit(data, system=os.geteuid() == 0, joins=True) if service else None
    if unit is not None:
        require_installable(unit)
    if server is not None:
        record = _join(data, server, sys.stdin.readline(), name or os.uname().nodename, new=new)
        print_text(f"Host {record['name']} has joined the server at {record['door']}  (folder {data})")
    elif not (data / JOINED).exists():
        raise click.UsageError(
            f"{data} has not joined a server yet. Run `corral token create` on the server, and the command that it prints here."
        )
    _store(data, {key: given[key] for key in remembered})
    if unit is not None:
        lingering = enable_unit(unit, unit.text(os.environ))
        restart_unit(unit)
        print_text(f"{unit.name} runs tasks on this machine, also after a restart of the machine")
        require_lingering(unit, lingering=lingering)
        return
    _run_agent(data, chosen)


def _hide_token(token: str) -> None:
    """Start this command again, with the token on standard input. Every account of the machine can read arguments."""
    words = sys.argv[1:]
    for at, word in enumerate(words):
        if word == "--token" and at + 1 < len(words):
            words[at + 1] = STDIN
        elif word.startswith("--token="):
            words[at] = f"--token={STDIN}"
    reader, writer = os.pipe()
    os.write(writer, token.encode()[:4096] + b"\n")
    os.close(writer)
    os.dup2(reader, 0)
    _replace_process([sys.executable, "-P", "-m", "corral", *words])


def _chosen(data: Path, given: dict[str, Any], remembered: list[str]) -> dict[str, Any]:
    """Return all options: those of the command line, else those of corral.toml, else the defaults. Change nothing."""
    from corral.configuration.file import ConfigurationError, read_file, with_settings
    from corral.configuration.settings import JOIN, JOIN_OPTIONS

    for name, value in given.items():
        if problem := JOIN_OPTIONS[name].problem(value):
            raise click.BadParameter(f"{problem}.", param_hint="--" + name.replace("_", "-"))
    try:
        file = read_file(data)
        values = file.values()
        with_settings(file, {f"{JOIN}.{name}": given[name] for name in remembered})
    except ConfigurationError as error:
        raise CliError(str(error)) from None
    return {name: values[f"{JOIN}.{name}"] for name in JOIN_OPTIONS} | given


def _store(data: Path, values: dict[str, Any]) -> None:
    from corral.configuration.file import ConfigurationError, store_settings
    from corral.configuration.settings import JOIN

    try:
        if values:
            store_settings(data, {f"{JOIN}.{name}": value for name, value in values.items()})
    except ConfigurationError as error:
        raise CliError(str(error)) from None


def _join(data: Path, server: str, token: str, name: str, *, new: bool) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", "corral.node.join", "--data", str(data), "--server", server, "--name", name]
    command += ["--new", "true"] if new else []
    done = subprocess.run(command, input=token, capture_output=True, text=True)
    if done.returncode:
        raise CliError(done.stderr.strip() or f"the join failed with exit code {done.returncode}")
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def _run_agent(data: Path, chosen: dict[str, Any]) -> None:
    """Replace this process with the agent, so that the agent gets the signals."""
    command = [sys.executable, "-P", "-m", "corral.node", "--data", str(data), "--gpus", chosen["gpus"]]
    if chosen["exclude_gpus"]:
        done = subprocess.run(
            [*command, "--find-gpus", chosen["exclude_gpus"]], stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            raise CliError(done.stderr.strip().removeprefix("corral node: "))
        chosen = chosen | {"exclude_gpus": done.stdout.strip()}
    for name, value in chosen.items():
        command += [] if name == "gpus" else ["--" + name.replace("_", "-"), value]
    print_message("This machine runs tasks until this command ends (Ctrl-C). Tasks that run then continue.")
    _replace_process(command)


def _replace_process(command: list[str]) -> None:
    """Start a Python program in this process. Ctrl-C waits until the program expects it: Python's start would print a traceback."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.execv(command[0], command)
