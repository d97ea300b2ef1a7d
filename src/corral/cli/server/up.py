"""`corral up` starts the server, in the foreground or in the background.

The server stores the options of the command line in corral.toml, after it has accepted them. A later `corral up` without these
options uses the stored options. Access keys are never stored in corral.toml.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder, data_option
from corral.cli.hosts.interface import known_interface
from corral.cli.printing.errors import CliError
from corral.cli.printing.output import print_json, print_message, print_text
from corral.process.data_folder import CONFIGURATION

SAY_AFTER_S = 3.0  # `corral up --detach` says what the server does if its start takes longer
SAY_AGAIN_S = 30.0  # how often it repeats a message that has not changed
TAIL_MAX_BYTES = 8 * 1024
TLS_OPTIONS = ("tls_names", "tls_certificate", "tls_key", "tls_port")


def _absolute(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return an absolute path, because the server starts in another folder. An empty text stays empty."""
    return str(Path(value).absolute()) if value else value


@click.command(short_help="Start Corral on this machine.")
@click.option("--detach", "-d", is_flag=True, help="Run in the background, and return when Corral accepts requests.")
@click.option("--port", type=click.IntRange(0, 65535), show_default="4566", envvar="CORRAL_PORT", help="0 chooses a free port.")
@click.option("--console-port", type=click.IntRange(0, 65535), show_default="4568", help="The port of the web console.")
@click.option("--host", show_default="127.0.0.1, or with --tls all addresses", help="The address to listen on.")
@click.option("--tls/--no-tls", default=None, help="Serve other machines, with TLS.")
@click.option("--tls-names", metavar="NAMES", help="Further names of this machine for its certificate: box1,box1.lab.example")
@click.option("--tls-certificate", metavar="FILE", callback=_absolute,
              help="A certificate for TLS, with its chain (default: Corral makes one).")  # fmt: skip
@click.option("--tls-key", metavar="FILE", callback=_absolute, help="The key of --tls-certificate.")
@click.option("--tls-port", type=click.IntRange(0, 65535), help="A further port for other machines, such as 443.")
@click.option("--plain-http/--no-plain-http", default=None, help="Let other machines use plain HTTP, too.")
@data_option
@click.option("--gpus", show_default="auto", help="auto, none, or simulated GPUs: sim:8, sim:2xH200.")
@click.option("--exclude-gpus", metavar="GPUS", help="GPUs that tasks never get, by index or id: 0,3,GPU-...")
@click.option("--runtime", type=click.Choice(["auto", "process", "docker"]), show_default="auto",
              help="docker runs images as containers, process ignores images, auto uses Docker if it is available.")  # fmt: skip
@click.option("--isolate/--no-isolate", default=None,
              help="Refuse tasks with access to this machine: corral/host, privileged, host mounts, host network.")  # fmt: skip
@click.option("--cluster", show_default="default", help="The ECS cluster that this machine joins.")
@click.option("--instance-type", show_default="corral.host",
              help="The value of the attribute ecs.instance-type of this machine, such as p3.8xlarge.")  # fmt: skip
@click.option("--account", show_default="123456789012", help="The AWS account id in ARNs.")
@click.option("--door", metavar="[ADDRESS:]PORT", help="Where other machines join (`corral join`). An empty text closes the door.")
@click.option("--address", help="The address of this machine for tasks on other hosts (default: found by Corral).")
@click.option("--interface", metavar="NAME", callback=known_interface,
              help="The network interface for tasks on other hosts, such as ib0 (default: that of the address).")  # fmt: skip
@click.option("--alarm-timing", type=click.Choice(["fast", "aws"]), show_default="fast",
              help="aws evaluates alarms as AWS does. fast evaluates some alarms every second.")  # fmt: skip
@click.option("--access-key", envvar="CORRAL_ACCESS_KEY", help="The root access key (default: generated at the first start).")
@click.option("--secret-key", envvar="CORRAL_SECRET_KEY", help="The root secret key; requires --access-key.")
@click.option("--discard-blobs", is_flag=True,
              help="Start although state.db is missing; the bytes of objects are erased after a week.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="With --detach: print the URL, the process id and more as JSON.")
@click.pass_context
def up(
    context: click.Context, /, detach: bool, data: DataFolder, access_key: str | None, secret_key: str | None, discard_blobs: bool,
    as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """Start Corral on this machine.

    Corral stores its state in the data folder. The next `corral up` on the same folder continues with this state. It also finds the
    tasks that kept running meanwhile.

    Corral remembers the options in corral.toml in the data folder, except --access-key, --secret-key and --discard-blobs. The next
    `corral up` uses them again. `corral config` shows and changes them.
    """
    if bool(access_key) != bool(secret_key):
        raise click.UsageError("--access-key and --secret-key must be used together.")
    if as_json and not detach:
        raise click.UsageError("--json requires --detach.")
    given = {name: value for name, value in options.items() if value is not None}
    remembered = [name for name in given if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    chosen, stored = _chosen(data, given, remembered)
    command = [sys.executable, "-P", "-m", "corral.server", "--data", str(data.path), "--remember", ",".join(remembered)]
    for name, value in chosen.items():
        command += [_flag(name), str(value).lower() if isinstance(value, bool) else str(value)]
    command += ["--discard-blobs", "true"] if discard_blobs else []
    if access_key and secret_key:  # not passed as arguments, because every user of the machine can read those
        os.environ |= {"CORRAL_ACCESS_KEY": access_key, "CORRAL_SECRET_KEY": secret_key}
    _resume_notifications(data)
    if not detach:
        _report_stored(data, stored)
        _run_in_foreground(command, data)
    about = _start_in_background(command, data)
    if as_json:
        print_json(about)
    else:
        print_text(f"Corral is up at {about['url']}  (data in {about['data']}; stop it with `{_down(data)}`)")
        if about["tlsUrl"]:
            print_text(f"Other machines reach it at {about['tlsUrl']}")
    if about["lastServer"]:
        print_message(about["lastServer"])
    _report_stored(data, stored)
    _report_missing(about, data)
    if chosen["runtime"] == "process":
        print_message("--runtime process: images are ignored, and every container runs as a process of this machine.")


def _resume_notifications(data: DataFolder) -> None:
    """Send the notifications that a restart of the machine has interrupted. They are sent after the server has started."""
    from corral.cli.runs.notify_process import resume_notifications

    resume_notifications(data)


def _chosen(data: DataFolder, given: Mapping[str, Any], remembered: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return all options: those of the command line, else those of the environment, else those of corral.toml, else the defaults.

    Also return separately the options that come from corral.toml. Raise an error if an option is not valid, or if the options
    cannot be stored in corral.toml. Change nothing.
    """
    from corral.configuration.file import ConfigurationError, read_file, with_settings
    from corral.configuration.settings import UP, UP_OPTIONS

    for name, value in given.items():
        if problem := UP_OPTIONS[name].problem(value):
            raise click.BadParameter(f"{problem}.", param_hint=_flag(name))
    try:
        file = read_file(data.path)
        found = file.stored()
        stored = {name: found[f"{UP}.{name}"] for name in UP_OPTIONS if f"{UP}.{name}" in found}
        with_settings(file, {f"{UP}.{name}": given[name] for name in remembered})
    except ConfigurationError as error:
        raise CliError(str(error)) from None
    chosen = {**{name: setting.default for name, setting in UP_OPTIONS.items()}, **stored, **given}
    if chosen["isolate"] and chosen["runtime"] == "process":
        raise click.UsageError("--isolate runs every task in a container, so it cannot be used with --runtime process.")
    if not chosen["tls"] and (unused := [name for name in TLS_OPTIONS if given.get(name)]):
        raise click.UsageError(f"{_flag(unused[0])} needs --tls.")
    return chosen, {name: value for name, value in stored.items() if name not in given}


def _report_stored(data: DataFolder, stored: Mapping[str, Any]) -> None:
    if stored:
        print_message(f"options of {data.path / CONFIGURATION}: {' '.join(_shown(name, value) for name, value in stored.items())}")


def _shown(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _flag(name if value else f"no_{name}")
    return f"{_flag(name)} {value}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _down(data: DataFolder) -> str:
    return data_folder.start_command(data).replace("up --detach", "down")


def _run_in_foreground(command: list[str], data: DataFolder) -> None:
    """Replace this process with the server, so that the server receives the signals and sets the exit code.

    A grandchild process waits until the server is ready, and then reports missing hosts and GPUs.
    """
    ready, ready_writer = os.pipe()
    if os.fork() == 0:
        os.close(ready_writer)
        if os.fork() == 0:
            # Ctrl-C is for the server; when the server exits, the pipe closes and this process ends.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with open(ready) as pipe:
                line = pipe.readline()
            if line:
                _report_missing(json.loads(line), data)
        os._exit(0)
    os.wait()
    os.close(ready)
    os.set_inheritable(ready_writer, True)
    os.execv(command[0], [*command, "--ready-fd", str(ready_writer)])


def _start_in_background(command: list[str], data: DataFolder) -> dict[str, Any]:
    """Start the server in a new session, and wait until it is ready.

    The server first validates the data folder, and only then opens its log file there. Until then, its output is written to a
    temporary file, so that a refused folder is not changed.
    """
    from tempfile import TemporaryFile

    log = data.path / "server.log"
    ready, ready_writer = os.pipe()
    with TemporaryFile() as early:
        begin = log.stat().st_size if log.exists() else 0
        process = subprocess.Popen(
            [*command, "--ready-fd", str(ready_writer), "--stages", "true", "--log", str(log)],
            stdin=subprocess.DEVNULL,
            stdout=early,
            stderr=early,
            pass_fds=[ready_writer],
            start_new_session=True,
            cwd="/",
        )
        os.close(ready_writer)
        try:
            with open(ready, "rb", buffering=0) as pipe:
                about = _about_server(pipe.fileno(), f"process {process.pid} starts; see {log}")
        except KeyboardInterrupt:
            raise CliError(f"Corral is still starting, as process {process.pid}. `{_down(data)}` stops it.") from None
        if about is not None:
            return about
        process.wait()
        early.seek(0)
        output = early.read() + _written_since(log, begin)
    raise CliError(_start_error(output) or f"the server exited with {process.returncode}. See {log}.")


def _written_since(log: Path, begin: int) -> bytes:
    if not log.exists():
        return b""
    with open(log, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(begin if begin <= end else 0, end - TAIL_MAX_BYTES))  # if the file is shorter than `begin`, it is a new file
        return file.read()


def _about_server(pipe: int, stage: str) -> dict[str, Any] | None:
    """Wait until the server is ready, and return what it says about itself. Return None if it has ended.

    The server writes a line when it begins a stage of its start, and a line when it is ready. If the start takes long, print the
    stage: for example, a large database that a crash has left, or a migration.
    """
    received, said, say_at_s = b"", "", time.monotonic() + SAY_AFTER_S
    while True:
        *lines, received = received.split(b"\n")
        for line in map(json.loads, lines):
            if "stage" not in line:
                about: dict[str, Any] = line
                return about
            stage = line["stage"]
        readable, _, _ = select.select([pipe], [], [], max(0.0, say_at_s - time.monotonic()))
        if readable:
            part = os.read(pipe, 65_536)
            if not part:
                return None
            received += part
        if time.monotonic() >= say_at_s:
            print_message(f"Corral is {'still ' if said else ''}starting: {stage}")
            said, say_at_s = stage, time.monotonic() + SAY_AGAIN_S
        elif said and said != stage:
            say_at_s = time.monotonic()


def _start_error(output: bytes) -> str:
    """Return why the server did not start: the last line of its output that begins with `corral:`, or else the last lines."""
    from corral.process.log_times import without_time

    lines = output[-TAIL_MAX_BYTES:].decode("utf-8", "replace").strip().splitlines()
    texts = [without_time(line) for line in lines]
    refusals = [text.removeprefix("corral: ") for text in texts if text.startswith("corral: ")]
    return refusals[-1] if refusals else "\n".join(lines[-10:])


def _report_missing(about: dict[str, Any], data: DataFolder) -> None:
    """Print a message if no host is connected or no GPU was found.

    Without the message, the user would only see tasks that wait forever.
    """
    from corral.cli.client.endpoint import endpoint_of_folder, get_status

    try:
        hosts = get_status(endpoint_of_folder(data))[0]["hosts"]
    except Exception as error:
        print_message(f"the status could not be read: {error}")
        return
    if not any(host["connected"] for host in hosts):
        print_message(f"this machine's agent has not connected yet, so tasks wait. See {data.path / 'node' / 'agent.log'}.")
    elif about["gpusFlag"] == "auto" and not any(host["gpus"] for host in hosts):
        print_message("no NVIDIA GPU or driver was found, so tasks that need a GPU will wait. `--gpus sim:8` simulates eight.")
