"""The process of a Lambda function. The server starts this file as a script, with the environment of the function.

There are two processes. The first one, the supervisor, waits. Its child loads the code and runs the handler (`handler_loop.py`).
The lifeline is a socket between the server and the supervisor. The child has no access to it.

The supervisor kills the child, and everything that the child has started, in three cases: the server has ended or has closed the
lifeline, the child has ended, or the function uses too much memory. So a killed server leaves no process behind. In the second and
third case, the supervisor also writes the reason to the lifeline: the exit status of the child, the negative number of the signal
that has killed the child, or TOO_MUCH_MEMORY.

Arguments: the file descriptors of the lifeline and of the socket for events (`handler_loop.py`), the memory limit in MiB, the
folder of the code, the handler.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MEMORY_CHECK_S = 0.5
TOO_MUCH_MEMORY = "memory"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MIB = 1024 * 1024


def main() -> None:
    lifeline, channel, memory_mib = (int(word) for word in sys.argv[1:4])
    folder, handler = sys.argv[4:6]
    libc = ctypes.CDLL(None)
    # From now on, processes whose parent has ended become children of this process.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = os.getpid()
    child = os.fork()
    if child == 0:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != supervisor:  # the supervisor has ended before the call of prctl
            os._exit(1)
        os.close(lifeline)
        sys.path[0] = os.path.dirname(os.path.abspath(__file__))
        from handler_loop import serve

        del sys.path[0], sys.modules["handler_loop"]
        serve(channel, folder, handler)
        os._exit(0)
    os.close(channel)
    os.closerange(0, 3)
    reason = _watch(lifeline, child, memory_mib * MIB)
    _kill_all(supervisor)
    with suppress(OSError):  # the server may have ended
        os.write(lifeline, reason.encode())
    os._exit(0)


def _watch(lifeline: int, child: int, memory_max_bytes: int) -> str:
    """Wait until the child must end or has ended. Return the reason. It is empty if the server has closed the lifeline."""
    ended = os.pidfd_open(child)
    watched = select.poll()
    watched.register(lifeline, select.POLLIN)
    watched.register(ended, select.POLLIN)
    while True:
        ready = {fd for fd, _ in watched.poll(MEMORY_CHECK_S * 1000)}
        if ended in ready:
            _, status = os.waitpid(child, 0)
            return str(os.waitstatus_to_exitcode(status))
        if lifeline in ready:  # the server has closed its end
            return ""
        _reap_orphans(child)
        if sum(map(_resident_bytes, _descendants(os.getpid()))) > memory_max_bytes:
            return TOO_MUCH_MEMORY


def _reap_orphans(child: int) -> None:
    """Collect the exit statuses of ended processes whose parent has also ended. Keep the status of the child itself."""
    while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None and ended.si_pid != child:
        os.waitpid(ended.si_pid, 0)


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _descendants(pid: int) -> list[int]:
    """Return the ids of the children of a process, of their children, and so on."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        try:
            for thread in os.listdir(f"/proc/{parent}/task"):
                with open(f"/proc/{parent}/task/{thread}/children") as file:
                    children = [int(word) for word in file.read().split()]
                found += children
                waiting += children
        except OSError:
            continue
    return found


def _kill_all(supervisor: int) -> None:
    """Kill all descendants, and wait until they have ended."""
    while True:
        for pid in _descendants(supervisor):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
