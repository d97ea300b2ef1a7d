"""The folder `<data>/node`: its files, locks and sockets.

The agent carries out the orders of the server. The spawner starts the runs that are processes.

host.json       the host's id
agent.lock      held by the agent; contains its pid
agent.log       the agent's log
core.sock       the socket on which the server accepts agents
sessions/<id>   the lock file of a session; the lock is held while a process of the session is alive
checks.lock     the lock file of all health checks
spawner.lock    held by the spawner; contains its pid
spawner.log     the spawner's log
spawner.sock    the socket on which the spawner accepts agents
kept.sock       the socket on which the spawner takes and returns the listening sockets of the gateway (kept_sockets.py)
gateway.log     the log of the gateway
gateway.json    whether the server is on this machine, so that it needs no gateway (gateway_ports.py)
journal         the spawner's journal, in JSON lines
starting        an empty file; its modification time shows whether the process of the last run was started
cgroups         the paths of the folders that contain the cgroups of runs, one per line
output/<run>    the output of a run; for a process, also the lock file: the lock is held while a process of the run is alive
output_limit    how many bytes an output file with a second name may use on disk (output_bounds.py)
paused/<run>    the mark of a run that is paused, or was (pause_marks.py); with ",program": held by the program that pauses it
paused.lock     held for a moment by each process that changes marks, or stops and continues processes because of them
pauses.log      the log of the programs that pause and continue runs
work/<run>      the default working directory of a run
containers/     files of the runs that are containers, and the empty file `used` if there has been one (docker_runs.py)
gpu_faults.json the faults of GPUs that last until a reboot, or until a user declares that the GPU works again (gpu_faults.py)
images.json     the images that Corral pulled, and when they were last used
simulated_gpu_states/   whether the memory of processes is on a simulated GPU (simulated_gpu_states.py)
spare/          emptied files and folders of ended runs, for reuse
trash/          files and folders that are being removed
"""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

LISTEN_BACKLOG = 16
GONE_CHECK_S = 0.5  # the interval between two calls of `HeldPath.is_gone`
GONE_CHECKS = 2
GONE_GRACE_S = 1.0  # if the folder is gone, runs get SIGTERM, and SIGKILL after this time


def private(path: str, flags: int) -> int:
    """Open a file for `open`. If it is created, only its owner may read it, whatever the umask is."""
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def make(folder: Path) -> None:
    """Create missing folders and log files. Only their owner can read them, because environments and outputs contain secrets."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("output", "work", "sessions", "spare", "trash"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    for name in ("agent.log", "spawner.log"):
        os.close(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def try_lock(path: Path) -> int | None:
    """Return the descriptor that holds the lock, or None if another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    name_holder(fd, os.getpid())
    return fd


def name_holder(lock: int, pid: int) -> None:
    """Write the pid of the process that holds a lock to its file."""
    os.pwrite(lock, b"%-10d\n" % pid, 0)  # the text always has the same length, so that a reader never sees a partial pid


class HeldPath:
    """Finds out whether a path still leads to the file or folder to which it led at first.

    The open descriptor prevents that a new folder gets the same inode number.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        self._missed = 0

    def is_gone(self) -> bool:
        """Whether the last GONE_CHECKS calls have found nothing, or something else, at the path. Then the caller ends tasks."""
        self._missed = 0 if self.is_same() else self._missed + 1
        return self._missed >= GONE_CHECKS

    def is_same(self) -> bool:
        """Whether the path leads to the same file or folder. If this cannot be found out, assume that it does."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self.fd))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True


def lock_owner(path: Path) -> int | None:
    """Return the pid in a lock file, of the process that holds the lock or held it last. Return None if there is no pid."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def listen(folder: Path, name: str) -> socket.socket:
    """Listen on the socket `folder/name`. The caller holds the lock for it, so an existing socket is not in use and is replaced."""
    server = _bind(folder, name, socket.SOCK_STREAM)
    server.listen(LISTEN_BACKLOG)
    return server


def receive_datagrams(folder: Path, name: str) -> socket.socket:
    """Like `listen`, for a socket that receives datagrams."""
    return _bind(folder, name, socket.SOCK_DGRAM)


def _bind(folder: Path, name: str, kind: int) -> socket.socket:
    (folder / name).unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    with _Directory(folder) as short:
        server.bind(f"{short}/{name}")
    return server


def connect(folder: Path, name: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Connect to the socket `folder/name`. Raises OSError at once if no process listens on it."""
    client = socket.socket(socket.AF_UNIX, kind | socket.SOCK_NONBLOCK)
    try:
        with _Directory(folder) as short:
            client.connect(f"{short}/{name}")
    except OSError:
        client.close()
        raise
    return client


class _Directory:
    """A short path to a folder.

    It is needed because a socket address has at most 107 bytes, and a data folder may have a longer path.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> str:
        self._fd = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
