"""Where things lie under `<data>/node`, and how its sockets are reached.

host.json       the host's id, made once
agent.lock      held by the one agent, whose pid is in it
agent.log       written by whoever starts the agent, not by us
core.sock       the core listens here
sessions.sock   and here for commands that are run beside a run
sessions/<id>   one of those; its open description is locked while anything of it lives
spawner.lock    held by the one spawner, whose pid is in it
spawner.log     what the spawner has to say
spawner.sock    the spawner listens here
journal         what the spawner did: JSON lines
output/<run>    what the run wrote; its open description is locked while anything of the run lives
work/<run>      the run's own working directory
containers/     <run>.run: a container under way, with its labels; <run>.mark: how far its log is in its output
images.json     the images that we pulled, and when they were last used
spare/          empty files and folders of forgotten runs, to serve again
trash/          what is being removed
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

LISTEN_BACKLOG = 16


def make(folder: Path) -> None:
    """Make what is missing. Only the owner may look inside: environments and outputs hold secrets."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("output", "work", "sessions", "spare", "trash"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)


def try_lock(path: Path) -> int | None:
    """The descriptor that holds the lock, or None when somebody else does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    os.pwrite(fd, b"%-10d\n" % os.getpid(), 0)  # for people, and for whoever wants to end it; of one length: never torn
    return fd


def listen(folder: Path, name: str) -> socket.socket:
    """Listen on `folder/name`. The caller holds the lock that makes a socket lying there a stale one."""
    (folder / name).unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    with _Directory(folder) as short:
        server.bind(f"{short}/{name}")
    server.listen(LISTEN_BACKLOG)
    return server


def connect(folder: Path, name: str) -> socket.socket:
    """Connect to `folder/name`, or raise OSError at once: a local listener either answers or is not there."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with _Directory(folder) as short:
            client.connect(f"{short}/{name}")
    except OSError:
        client.close()
        raise
    return client


class _Directory:
    """A short name for a folder: socket addresses end at 107 bytes, and data folders may lie deep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> str:
        self._fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
