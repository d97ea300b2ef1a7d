"""The program that a lender runs in an allocation: it joins the server as the host of one instance, and runs its agent.

`pilot_start.py` starts it. The host offers only the GPUs of its allocation. The server accepts the token only while the lender says
that the allocation runs, so the pilot tries again for a while.

The pilot exits with its agent, and kills all descendants first. Otherwise the spawner would outlive the agent as a child of init,
where Slurm does not find it with proctrack/linuxproc. If the pilot itself is killed, the spawner ends the runs (`hold.py`).

Slurm sends SIGTERM to all processes of a job that it ends, and SIGKILL after KillWait. In this time the agent lets the tasks end,
and reports their ends to the server. Then it exits.

With `--held`, the lender does not end the processes of the allocation by itself. The standard input stays open for as long as the
allocation lasts. The pilot restarts its agent, and exits when no process of a task is left. SIGTERM lets the agent exit
without telling the server so.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from corral.core.clock import WallClock
from corral.core.errors import Refused
from corral.model.allocation import NOT_YET, TOKEN_S
from corral.node import node_folder, procfs
from corral.node.fingerprint import fingerprint
from corral.node.gpus import detect
from corral.node.hold import Hold
from corral.node.joined_host import Token, join
from corral.process.control_characters import escape_controls
from corral.process.options import parse_options

AGAIN_S = 0.5
RESTART_MIN_S, RESTART_MAX_S = 0.1, 5.0
SPAWNER_ENDS_S = 0.05  # the interval between two looks at the spawner, which ends after the last run


class PilotOptions(Struct, frozen=True, rename="kebab"):
    data: str
    server: str
    gpus: str
    needs: int = 0  # how many GPUs the instance has
    allocation: str = ""  # the lender's id of this allocation
    held: bool = False


def main(arguments: list[str], token: str) -> None:
    """Join, and run the agent. Raise Refused if this allocation does not have the GPUs of its instance."""
    options = parse_options(arguments, PilotOptions)
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    _check_gpus(options, given)
    hold = Hold(sys.stdin.fileno()) if options.held else None
    _join(options, Token(token), hold)
    # Containers would be children of an engine outside the allocation, and would outlive it: so all tasks are processes.
    words = [sys.executable, "-P", "-m", "corral.node", "--data", options.data, "--runtime", "process"]
    words += ["--gpus", options.gpus, "--only-gpus", given] if given else ["--gpus", "none"]
    if hold is None:
        sys.exit(_run_agent(words))
    _keep_agent(words, Path(options.data) / "node", hold)


def _check_gpus(options: PilotOptions, given: str) -> None:
    if not given and options.needs:
        raise Refused(
            "CUDA_VISIBLE_DEVICES is not set, so the GPUs of this allocation are not known, and none is offered. For Slurm, "
            "gres.conf must name the device files of the GPUs"
        )
    found = len(detect(options.gpus, "", given).devices()) if given else 0
    if found < options.needs:
        raise Refused(f"the instance has {options.needs} GPUs, and this allocation has {found}: CUDA_VISIBLE_DEVICES is {given}")


def _join(options: PilotOptions, token: Token, hold: Hold | None) -> None:
    until_s, machine = time.monotonic() + TOKEN_S, fingerprint()
    while True:
        try:
            join(Path(options.data), options.server, token, "pilot", WallClock().now_s, machine, options.allocation)
            return
        except (Refused, OSError) as why:
            is_final = isinstance(why, Refused) and NOT_YET not in str(why)
            if is_final or time.monotonic() > until_s:
                sys.exit(escape_controls(f"corral pilot: {why}"))
            if hold is not None and hold.is_over:
                sys.exit("corral pilot: the allocation is over")
            time.sleep(AGAIN_S)


def _run_agent(words: list[str]) -> int:
    """Run the agent until it exits, and end all processes that it has left. Return its exit code."""
    procfs.become_subreaper()
    held_by, _ = os.pipe()  # no other process has the other end, so it closes with this process
    words = [*words, "--held-by", str(held_by), "--leaves-on-term", "true"]
    agent = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[held_by])
    signal.signal(signal.SIGTERM, lambda *_: agent.terminate())
    code, children = agent.wait(), procfs.OwnChildren()
    with suppress(ChildProcessError):  # raised when none is left
        while True:
            for child in children.pids():
                os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)  # the children of this one are ours now
    return code if code >= 0 else 128 - code


def _keep_agent(words: list[str], data: Path, hold: Hold) -> None:
    """Run the agent, and restart it, until the allocation is over and no run is left."""
    held_by, wait_s = os.dup(sys.stdin.fileno()), RESTART_MIN_S
    agent: subprocess.Popen[bytes] | None = None

    def leave_now(*_: object) -> None:
        if agent is not None:
            agent.terminate()

    signal.signal(signal.SIGTERM, leave_now)
    while True:
        began_s = time.monotonic()
        agent = subprocess.Popen(
            [*words, "--held-by", str(held_by)], stdin=subprocess.DEVNULL, stdout=sys.stderr, pass_fds=[held_by]
        )
        code = agent.wait()
        if hold.is_over and code == 0:
            break
        wait_s = min(2 * wait_s, RESTART_MAX_S) if time.monotonic() < began_s + RESTART_MAX_S else RESTART_MIN_S
        time.sleep(wait_s)
    while (lock := node_folder.try_lock(data / "spawner.lock")) is None:  # it ends after the last run
        time.sleep(SPAWNER_ENDS_S)
    os.close(lock)
