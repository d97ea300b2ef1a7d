"""Starting one process, and finding what is left of it.

posix_spawn and not fork: the spawner has nothing to do between the two, and it is the fastest way Python has.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import stat
from collections.abc import Iterable

from corral.node.spawner_protocol import Launch

# Beside stdout and stderr the child gets the locked description once more, so that a program which points those
# elsewhere is still known to live. The number is one that shells do not use for themselves.
LOCK_FD = 199
CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
_RESET_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM]


class CannotStart(Exception):
    """The text is what ECS would say."""


def open_output(path: str) -> int:
    """The run's output, open and locked. Whoever inherits this description keeps the lock."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def is_held(path: str) -> bool:
    """Does anything hold the lock that `open_output` took? A file that is not there is held by nobody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def spawn(launch: Launch, working_directory: str, output_fd: int, null_fd: int) -> int:
    """Start it as the leader of a session of its own, in `working_directory`, and return its pid.

    posix_spawn cannot change the directory, so the spawner itself goes there first; it has only one thread.
    """
    try:
        os.chdir(working_directory)
    except OSError as error:
        raise CannotStart(_bad_directory(working_directory, error)) from None
    try:
        name = launch.command[0] if launch.command else ""
        environment = {key.encode(): value.encode() for key, value in launch.environment.items()}
        return os.posix_spawn(
            _executable(name, launch.environment.get("PATH", SEARCH_PATH)),
            [word.encode() for word in launch.command],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null_fd, 0),
                (os.POSIX_SPAWN_DUP2, output_fd, 1),
                (os.POSIX_SPAWN_DUP2, output_fd, 2),
                (os.POSIX_SPAWN_DUP2, output_fd, LOCK_FD),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=_RESET_SIGNALS,
        )
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise CannotStart(f'CannotStartContainerError: exec: "{name}": {why}') from None
    except ValueError as error:  # a NUL byte, or "=" in the name of a variable
        raise CannotStart(f'CannotStartContainerError: exec: "{name}": {error}') from None


def _bad_directory(path: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f'CannotStartContainerError: working directory "{path}" does not exist'
    return f'CannotStartContainerError: working directory "{path}": {(error.strerror or str(error)).lower()}'


def _executable(name: str, search_path: str) -> str:
    """Where execvp would find it, with the run's own PATH."""
    if "/" in name:
        return name
    not_executable = False
    for folder in search_path.split(":"):
        candidate = f"{folder or '.'}/{name}"
        try:
            if not stat.S_ISREG(os.stat(candidate).st_mode):
                continue
        except (OSError, ValueError):
            continue
        if os.access(candidate, os.X_OK):
            return candidate
        not_executable = True
    if not_executable:
        raise CannotStart(f'CannotStartContainerError: exec: "{name}": permission denied')
    raise CannotStart(f'CannotStartContainerError: exec: "{name}": executable file not found in $PATH')


def exit_code(status: int) -> int:
    """As docker counts: 128 + signal for a process that one ended."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def started_boot_s(pid: int) -> float | None:
    """When the process started, on CLOCK_BOOTTIME; None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(fields[19]) / CLOCK_TICKS_PER_S


def holders(paths: Iterable[str]) -> dict[str, list[int]]:
    """Which processes hold these runs' locks. Reads all of /proc, once for all of them: not for the common case."""
    wanted = _inodes(paths)
    found: dict[str, list[int]] = {path: [] for path in wanted.values()}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for path in _locked_by(entry, wanted):
                found[path].append(int(entry))
    return found


def kill_holders(paths: Iterable[str]) -> None:
    """SIGKILL whatever holds these runs' locks."""
    paths = list(paths)
    wanted = _inodes(paths)
    # Parents first, for numbers grow: whoever watches another must not live to tell that it ended by itself.
    for pid in sorted({pid for pids in holders(paths).values() for pid in pids}):
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _locked_by(str(pid), wanted):  # again, now that the number cannot pass to another process
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            pass  # it has just gone, or is not ours to kill: then its run is not over
        finally:
            os.close(handle)


def _inodes(paths: Iterable[str]) -> dict[tuple[int, int], str]:
    wanted = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            about = os.stat(path)
            wanted[about.st_dev, about.st_ino] = path
    return wanted


def _locked_by(pid: str, wanted: dict[tuple[int, int], str]) -> set[str]:
    """Which of the files this process has open with their lock; whoever merely reads one is left out."""
    found: set[str] = set()
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return found  # gone meanwhile, or of another user, whose files we may not see
    for fd in fds:
        with contextlib.suppress(OSError):  # closed meanwhile
            about = os.stat(f"/proc/{pid}/fd/{fd}")
            path = wanted.get((about.st_dev, about.st_ino))
            if path is not None and _is_locked(f"/proc/{pid}/fdinfo/{fd}"):
                found.add(path)
    return found


def _is_locked(fdinfo: str) -> bool:
    """The kernel lists a lock with the very description that holds it, not with others of the same file."""
    with open(fdinfo, "rb") as file:
        return b"FLOCK" in file.read()
