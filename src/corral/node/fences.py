"""Fences: the spawner ends runs of a host that the server has not answered for some time, because the agent may be dead.

A task with the tag `corral:fence-after` ends that many seconds after the agent has sent the last message that the server has
answered. The agent reports these times (`answered`). All times are of the boot-time clock, which also counts while the machine is
suspended. The spawner sends SIGTERM, and SIGKILL after the grace period of the run: to processes itself, and to containers by the
socket of their engine. It does not wait for the engine, and reads no response: a container that has ended ignores the request.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from corral.node.procfs import boot_s

CHECK_S = 1.0  # timers of the spawner do not count while the machine is suspended, so it looks again and again
REPEAT_S = 5.0  # SIGKILL for a container is repeated, because the engine may not respond


@dataclass
class FencedContainer:
    run_id: str
    after_s: float
    grace_s: float
    engine: str  # the path of the socket of its engine
    name: str
    ended_at_boot_s: float | None = None  # when it got SIGTERM
    kill_at_boot_s: float = 0.0  # when it gets SIGKILL, again and again


class Fences:
    """`end` ends a run that is a process. `at` starts a timer of the spawner.

    `end_pause` ends the pause of a container, and returns whether there was one.
    """

    def __init__(
        self, folder: Path, at: Callable[[float, Callable[[], None]], None], end: Callable[[str], None],
        end_pause: Callable[[str], bool] = lambda run_id: False,
    ) -> None:  # fmt: skip
        self._at = at
        self._end = end
        self._end_pause = end_pause
        self._processes: dict[str, float] = {}  # run id → seconds
        self.containers: dict[str, FencedContainer] = {}
        self._is_checking = False
        # The time of the last answer is the modification time of this file, for the next spawner of the same boot.
        self._fd = os.open(folder / "answered", os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._answered_boot_s = min(os.fstat(self._fd).st_mtime, boot_s())

    def answered(self, sent_boot_s: float) -> None:
        """The server has answered a message that the agent has sent at this time."""
        self._answered_boot_s = sent_boot_s
        os.utime(self._fd, (0, sent_boot_s))

    def add(self, run_id: str, after_s: float | None) -> None:
        """Fence a run that is a process. Without a time, it has no fence."""
        if after_s is not None:
            self._processes[run_id] = after_s
            self._check_later()

    def add_container(self, container: FencedContainer) -> None:
        self.containers.setdefault(container.run_id, container)
        self._check_later()

    def remove(self, run_id: str) -> None:
        self._processes.pop(run_id, None)
        self.containers.pop(run_id, None)

    def _check_later(self) -> None:
        if not self._is_checking:
            self._is_checking = True
            self._at(boot_s() + CHECK_S, self._check)

    def _check(self) -> None:
        self._is_checking = False
        now_s = boot_s()
        silent_s = now_s - self._answered_boot_s
        for run_id in [run_id for run_id, after_s in self._processes.items() if silent_s >= after_s]:
            del self._processes[run_id]
            self._end(run_id)
        for each in self.containers.values():
            if each.ended_at_boot_s is None and silent_s >= each.after_s and self._terminate(each):
                each.ended_at_boot_s, each.kill_at_boot_s = now_s, now_s + each.grace_s
            elif each.ended_at_boot_s is not None and now_s >= each.kill_at_boot_s and _post(each, "kill?signal=SIGKILL"):
                each.kill_at_boot_s = now_s + REPEAT_S
        if self._processes or self.containers:
            self._check_later()

    def _terminate(self, container: FencedContainer) -> bool:
        """Send SIGTERM. Continue a paused container first, so that it receives the signal."""
        if self._end_pause(container.run_id):
            _post(container, "unpause")
        return _post(container, "kill?signal=SIGTERM")


def _post(container: FencedContainer, what: str) -> bool:
    """Send a request to the engine of a container. Return False if the engine does not accept it now."""
    head = f"POST /containers/{container.name}/{what} HTTP/1.1\r\nHost: docker\r\nContent-Length: 0\r\n"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as connection:
        try:
            connection.connect(container.engine)
            connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            return False
    return True
