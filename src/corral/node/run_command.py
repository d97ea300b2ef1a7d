"""Start commands of the agent inside a run: health checks, and the relays of sessions.

They have the environment, the folder and the Unix account of the run. The agent has several threads, so it does not fork itself to
become another account. It starts the program `account_process.py` as root. The environment and the arguments of the user are in an
order that this program reads, because they would otherwise act on a process of root.

Each command inherits a lock (`lock_files.py`). The name of the lock file of another account has the user id, because the command
can write to the file: Corral kills only processes of this user, as others can have got the lock through a socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from corral.channel import command_relay
from corral.model.run import RunSpec
from corral.node import account_process
from corral.node.account_folders import work_of
from corral.node.account_process import find_account

OWN_VARIABLES = ("PATH", "LD_LIBRARY_PATH", "LANG")  # with which Corral's own Python starts
PYTHON = (sys.executable, "-I", "-S")


async def start_command(
    run: RunSpec, data: Path, command: list[str], environment: Mapping[str, str], *inherited: int, is_relay: bool = False
) -> Process:
    """Start a command with these descriptors. If it `is_relay`, `command` are the arguments of the relay.

    Raises OSError or ValueError if that fails. If only the account cannot execute it, the command exits with CANNOT_RUN.
    """
    if not run.account:
        program = [*PYTHON, command_relay.__file__, *command] if is_relay else command
        return await _start(program, environment, run.working_directory or data / "work" / run.run_id, inherited)
    order = {
        "account": run.account,
        "command": command,
        "environment": dict(environment),
        "directory": run.working_directory or work_of(data, run.run_id),
        "relay": command_relay.__file__ if is_relay else None,
    }
    own = {name: os.environ[name] for name in OWN_VARIABLES if name in os.environ}
    with _in_memory(json.dumps(order).encode()) as fd:
        return await _start([*PYTHON, account_process.__file__, str(fd)], own, "/", (*inherited, fd))


async def _start(command: list[str], environment: Mapping[str, str], directory: str | Path, inherited: tuple[int, ...]) -> Process:
    return await asyncio.create_subprocess_exec(
        *command, stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, env=environment, cwd=directory,
        start_new_session=True, pass_fds=inherited,
    )  # fmt: skip


@contextmanager
def _in_memory(text: bytes) -> Iterator[int]:
    fd = os.memfd_create("order", os.MFD_CLOEXEC)
    try:
        with open(os.dup(fd), "wb") as file:
            file.write(text)
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


async def lock_of(path: str, account: str) -> str:
    """Return the path of the lock file for commands of a Unix account. Raises NoAccount if this host does not have it."""
    return f"{path}@{(await asyncio.to_thread(find_account, account)).uid}" if account else path


def uid_of(lock: str) -> int | None:
    """Return the user id in the name of a lock file. Return None for a lock file of Corral's own account."""
    found = lock.rpartition("@")[2]
    return int(found) if "@" in lock and found.isdigit() else None
