"""Start the main process of a run as another Unix account.

The spawner forks, because posix_spawn cannot change the account. The child has the memory of the spawner until it executes the
program, so it is not dumpable (`account_process.py`). As root, it only looks up the account and gives it its folder. The rest
is done as the account: it opens the working directory and looks for the program with the permissions of the account, so a link
leads it nowhere else. The program inherits the descriptors 0, 1, 2 and LOCK_FD.

The spawner does not wait for the child: a pipe has the result (`pending_starts.py`).
"""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import suppress
from typing import NoReturn

from corral.model.shipped_folder import VARIABLE as SHIPPED_FOLDER
from corral.node.account_process import Account, become, environment_of, find_account
from corral.node.pending_starts import RESULT_MAX_BYTES
from corral.node.process_launch import LOCK_FD, SEARCH_PATH, CannotSpawn, bad_directory, cannot_execute, executable
from corral.node.spawner_protocol import Launch

RESULT_FD = LOCK_FD + 1  # of the pipe, in the child until exec
ABOVE = LOCK_FD + 2  # the child moves the descriptors that it keeps out of the way first


def fork_as(launch: Launch, work: str | None, cache: str, output_fd: int, null_fd: int, mark: str) -> tuple[int, int]:
    """Fork the child that becomes the main process of a run. Return its pid, and the descriptor of the pipe with the result.

    `work` is the new work folder of the run, and the working directory if the launch names none. `cache` is the folder of the
    account's cache of shipped files.
    """
    pipe, result = os.pipe2(os.O_CLOEXEC)
    try:
        if pid := os.fork():
            return pid, pipe
        _run_child(launch, work, cache, output_fd, null_fd, mark, result)  # never returns
    except OSError:
        os.close(pipe)
        raise
    finally:
        os.close(result)


def _run_child(launch: Launch, work: str | None, cache: str, output_fd: int, null_fd: int, mark: str, result_fd: int) -> NoReturn:
    """Become the account and execute the program. Whatever fails, this child must not continue as a second spawner."""
    result, why = result_fd, "it was interrupted"
    try:
        os.setsid()
        result = _prepare(output_fd, null_fd, result_fd, mark)
        _execute(launch, work, cache, result)
    except CannotSpawn as error:
        why = str(error)
    except BaseException as error:
        why = f"CannotStartContainerError: {error}"
    finally:
        with suppress(OSError):
            os.write(result, f"\n{why}".encode(errors="replace")[:RESULT_MAX_BYTES])
        os._exit(127)


def _prepare(output_fd: int, null_fd: int, result_fd: int, mark: str) -> int:
    """Set the descriptors and the signals of the child. Return the descriptor of the pipe."""
    os.close(os.open(mark, os.O_WRONLY | os.O_TRUNC | os.O_CREAT | os.O_CLOEXEC, 0o600))
    output, null, result = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE) for fd in (output_fd, null_fd, result_fd))
    for source, target in ((null, 0), (output, 1), (output, 2), (output, LOCK_FD)):
        os.dup2(source, target)
    os.dup2(result, RESULT_FD, inheritable=False)
    _close_others()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE}:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    return RESULT_FD


def _close_others() -> None:
    os.closerange(3, LOCK_FD)
    os.closerange(RESULT_FD + 1, os.sysconf("SC_OPEN_MAX"))


def _execute(launch: Launch, work: str | None, cache: str, result: int) -> NoReturn:
    account = find_account(launch.account)
    _close_others()  # the lookup may have opened files
    _hand_over(account, work, cache, ships=SHIPPED_FOLDER in launch.environment)
    become(account)
    directory = launch.working_directory if work is None else work
    assert directory is not None
    try:
        os.chdir(directory)
    except (OSError, ValueError) as error:  # ValueError: the path contains a NUL byte
        raise CannotSpawn(bad_directory(directory, error)) from None
    name = launch.command[0] if launch.command else ""
    environment = environment_of(account, launch.environment)
    try:
        program = executable(name, environment.get("PATH", SEARCH_PATH))
        words = [word.encode() for word in launch.command]
        variables = {each.encode(): value.encode() for each, value in environment.items()}
        os.write(result, b"%d\n" % account.uid)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execve(program, words, variables)
    except (OSError, ValueError) as error:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        raise CannotSpawn(cannot_execute(name, error)) from None


def _hand_over(account: Account, work: str | None, cache: str, *, ships: bool) -> None:
    """Give the account its folders, and let it open its output again, for example as /dev/stderr.

    The output still belongs to root: its owner could let root wait when root opens it (F_SETLEASE), or give it another name.
    """
    os.fchown(1, -1, account.gid)
    os.fchmod(1, 0o620)
    if work is not None:
        os.chown(work, account.uid, account.gid, follow_symlinks=False)
    if not ships:
        return
    with suppress(FileExistsError):
        os.mkdir(cache, 0o700)
        os.chown(cache, account.uid, account.gid, follow_symlinks=False)
    if os.lstat(cache).st_uid != account.uid:
        raise CannotSpawn(f"CannotStartContainerError: {cache} belongs to an earlier account of this name: delete it")
