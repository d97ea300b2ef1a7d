"""`corral up`: start the server, in this terminal or behind it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click

from corral.cli import here
from corral.cli.here import Data, data_option
from corral.cli.refusals import Failed
from corral.cli.words import print_json, say

READY_S = 15.0
LOG_MAX_BYTES = 10 * 1024 * 1024  # a larger one is put aside at the next start
TAIL_MAX_BYTES = 8 * 1024
ACCOUNT = re.compile(r"[0-9]{12}")
CLUSTER = re.compile(r"[a-zA-Z0-9_-]{1,255}")
INSTANCE_TYPE = re.compile(r"[a-z0-9-]{1,32}\.[a-z0-9-]{1,32}")


@click.command()
@click.option("--detach", "-d", is_flag=True, help="Return once Corral answers; it goes on in the background.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=4566, show_default=True, envvar="CORRAL_PORT", help="0 takes a free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@data_option
@click.option("--gpus", default="auto", show_default=True, help="auto, none, or simulated ones: sim:8, sim:2xH200.")
@click.option("--exclude-gpus", metavar="GPUS", default="", help="GPUs that are never offered, by index or id: 0,3,GPU-...")
@click.option("--runtime", type=click.Choice(["auto", "process", "docker"]), default="auto", show_default=True,
              help="How images are run: as Docker containers, or not at all. auto: where a Docker engine answers.")  # fmt: skip
@click.option("--cluster", default="default", show_default=True, help="The ECS cluster that this machine joins.")
@click.option("--instance-type", default="corral.host", show_default=True,
              help="What this machine counts as: the attribute ecs.instance-type, such as p3.8xlarge.")  # fmt: skip
@click.option("--account", default="123456789012", show_default=True, help="The AWS account number to show.")
@click.option("--alarm-timing", type=click.Choice(["fast", "aws"]), default="fast", show_default=True,
              help="When alarms on Corral's own metrics are judged: every second too, or as on AWS.")  # fmt: skip
@click.option("--access-key", envvar="CORRAL_ACCESS_KEY", help="Fixed root keys; made once and kept when absent.")
@click.option("--secret-key", envvar="CORRAL_SECRET_KEY", help="Goes with --access-key.")
@click.option("--json", "as_json", is_flag=True, help="With --detach: say where it is as JSON.")
def up(
    detach: bool, port: int, host: str, data: Data, gpus: str, exclude_gpus: str, runtime: str, cluster: str,
    instance_type: str, account: str, alarm_timing: str,    access_key: str | None, secret_key: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Start Corral on this machine.

    State lives in the data folder; a later `up` on the same folder goes on where this one stops, and finds the tasks that
    ran on meanwhile.
    """
    if not ACCOUNT.fullmatch(account):
        raise click.BadParameter("an account number has twelve digits.", param_hint="--account")
    if not CLUSTER.fullmatch(cluster):
        raise click.BadParameter("a cluster name has up to 255 letters, digits, hyphens and underscores.", param_hint="--cluster")
    if not INSTANCE_TYPE.fullmatch(instance_type):
        raise click.BadParameter("an instance type looks like p3.8xlarge.", param_hint="--instance-type")
    if bool(access_key) != bool(secret_key):
        raise click.UsageError("--access-key and --secret-key go together.")
    if as_json and not detach:
        raise click.UsageError("--json goes with --detach.")
    command = [sys.executable, "-m", "corral.server", "--data", str(data.path), "--host", host, "--port", str(port)]
    command += ["--gpus", gpus, "--exclude-gpus", exclude_gpus, "--account", account, "--alarm-timing", alarm_timing]
    command += ["--runtime", runtime, "--cluster", cluster, "--instance-type", instance_type]
    if access_key and secret_key:  # not as arguments: those are seen by every user of the machine
        os.environ |= {"CORRAL_ACCESS_KEY": access_key, "CORRAL_SECRET_KEY": secret_key}
    if not detach:
        _become(command, data)
    about = _start_behind(command, data)
    if as_json:
        print_json(about)
    else:
        click.echo(f"Corral is up at {about['url']}  (data in {about['data']}; stop it with `{_down(data)}`)")
    _say_what_is_missing(about, data)
    if runtime == "process":
        say("--runtime process: images are ignored, and every container is a plain process of this machine.")


def _down(data: Data) -> str:
    return here.start_command(data).replace("up --detach", "down")


def _become(command: list[str], data: Data) -> None:
    """Be the server from here on: its signals and its exit code are ours.

    Somebody must still look whether there are GPUs once it answers: a grandchild, so that nobody has to wait for it.
    """
    ready, told = os.pipe()
    if os.fork() == 0:
        os.close(told)
        if os.fork() == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C means the server; without one the pipe ends
            with open(ready) as pipe:
                line = pipe.readline()
            if line:
                _say_what_is_missing(json.loads(line), data)
        os._exit(0)
    os.wait()
    os.close(ready)
    os.set_inheritable(told, True)
    os.execv(command[0], [*command, "--ready-fd", str(told)])


def _start_behind(command: list[str], data: Data) -> dict[str, Any]:
    """Start it in a session of its own and wait until it answers."""
    data.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = data.path / "server.log"
    _put_aside(log)
    ready, told = os.pipe()
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        begin = output.tell()
        process = subprocess.Popen(
            [*command, "--ready-fd", str(told)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[told],
            start_new_session=True,
            cwd="/",
        )
    os.close(told)
    with open(ready, "rb", buffering=0) as pipe:
        line = _first_line(pipe.fileno(), time.monotonic() + READY_S)
    if line:
        about: dict[str, Any] = json.loads(line)
        return about
    if line is None:
        process.terminate()
        raise Failed(f"Corral did not answer within {READY_S:.0f} s and was stopped; {log} may say why.")
    process.wait()
    raise Failed(_last_words(log, begin) or f"the server ended with {process.returncode}; {log} may say why.")


def _put_aside(log: Path) -> None:
    if log.exists() and log.stat().st_size > LOG_MAX_BYTES:
        log.rename(log.with_suffix(".log.1"))


def _first_line(pipe: int, deadline_s: float) -> bytes | None:
    """What the server says when it answers; empty when it ended instead, None when neither happened in time."""
    said = b""
    while not said.endswith(b"\n"):
        readable, _, _ = select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))
        if not readable:
            return None
        part = os.read(pipe, 65_536)
        if not part:
            return b""
        said += part
    return said


def _last_words(log: Path, begin: int) -> str:
    """Why the server would not start. Another one may be writing to the same log, so its own refusal is picked out."""
    with open(log, "rb") as file:
        file.seek(max(begin, file.seek(0, os.SEEK_END) - TAIL_MAX_BYTES))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    refusals = [line.removeprefix("corral: ") for line in lines if line.startswith("corral: ")]
    return refusals[-1] if refusals else "\n".join(lines[-10:])


def _say_what_is_missing(about: dict[str, Any], data: Data) -> None:
    """No host, or no GPU where one was looked for: both would only be noticed when a task waits for ever."""
    from corral.cli.where import of_folder, status

    try:
        hosts = status(of_folder(data))[0]["hosts"]
    except Exception as error:
        say(f"it does not tell its status yet: {error}")
        return
    if not any(host["connected"] for host in hosts):
        say(f"this machine's agent has not joined yet, so tasks wait; {data.path / 'node' / 'agent.log'} may say why.")
    elif about["gpusFlag"] == "auto" and not any(host["gpus"] for host in hosts):
        say("no NVIDIA GPU or driver was found, so tasks that ask for a GPU will wait. `--gpus sim:8` simulates eight.")
