"""Start the main process of a run with posix_spawn, which is the fastest method in Python."""

from __future__ import annotations

import errno
import os
import signal
import stat

from corral.node.spawner_protocol import Launch

# The child process inherits the locked output file as stdout, as stderr, and as this third descriptor. So a program that redirects
# stdout and stderr still holds the lock. Shells do not use this number themselves.
LOCK_FD = 199
SHOWN_NAME_MAX = 200  # maximum length of a program's name in an error message
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
# glibc needs two system calls for each signal that is not in this list, and one for each signal that is.
_RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class CannotSpawn(Exception):
    """The process cannot be started. The message becomes the container's `reason`, so it has the form of ECS's messages."""


def spawn(launch: Launch, working_directory: str, output_fd: int, null_fd: int, mark: str) -> int:
    """Start the command as the leader of a new session, in `working_directory`, and return its pid.

    Before the child executes the command, it truncates the file `mark`. The modification time of the file proves that a child
    process existed.

    posix_spawn cannot set the working directory of the child. So the spawner changes its own working directory first. That is safe,
    because the spawner has only one thread.
    """
    try:
        os.chdir(working_directory)
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL byte
        raise CannotSpawn(bad_directory(working_directory, error)) from None
    name = launch.command[0] if launch.command else ""
    try:
        return os.posix_spawn(
            executable(name, launch.environment.get("PATH", SEARCH_PATH)),
            [word.encode() for word in launch.command],
            {name.encode(): value.encode() for name, value in launch.environment.items()},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, mark, os.O_WRONLY | os.O_TRUNC | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, null_fd, 0),
                (os.POSIX_SPAWN_DUP2, output_fd, 1),
                (os.POSIX_SPAWN_DUP2, output_fd, 2),
                (os.POSIX_SPAWN_DUP2, output_fd, LOCK_FD),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=_RESET_SIGNALS,
        )
    except (OSError, ValueError) as error:
        raise CannotSpawn(cannot_execute(name, error)) from None


def cannot_execute(name: str, error: OSError | ValueError) -> str:
    why = str(error)  # of a ValueError: a text contains a NUL byte, or the name of a variable contains "="
    if isinstance(error, OSError):
        why = (error.strerror or why).lower()
        if error.errno == errno.E2BIG:
            why += ": command and environment can have about 2 MiB together, and each argument and variable 128 KiB"
    return f'CannotStartContainerError: exec: "{_short(name)}": {why}'


def bad_directory(path: str, error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return f'CannotStartContainerError: working directory "{_short(path)}" does not exist'
    why = (isinstance(error, OSError) and error.strerror) or str(error)
    return f'CannotStartContainerError: working directory "{_short(path)}": {why.lower()}'


def _short(name: str) -> str:
    return name if len(name) <= SHOWN_NAME_MAX else name[:SHOWN_NAME_MAX] + "..."


def executable(name: str, search_path: str) -> str:
    """Return the path that execvp would find in the PATH of the run."""
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
        raise CannotSpawn(f'CannotStartContainerError: exec: "{_short(name)}": permission denied')
    raise CannotSpawn(f'CannotStartContainerError: exec: "{_short(name)}": executable file not found in $PATH')


def exit_code(status: int) -> int:
    """Return the exit code in Docker's form: 128 + signal for a process that was ended by a signal."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
