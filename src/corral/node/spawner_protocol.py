"""The protocol between the agent and the spawner: JSON lines over a stream socket.

agent → spawner     {"start": Launch}       idempotent by run id, until the run is forgotten
                    {"stop": "run id"}      SIGTERM, the run's grace period, SIGKILL; unknown runs are ignored
                    {"forget": ["run id"]}  remove ended runs with their output and work folder
                    {"ping": true}          answered by {"pong": true}
                    {"quit": true}          end as soon as no run is alive
spawner → agent     {"runs": [SpawnedRun], "all": bool}     first every known run, the last of these lines with all=true;
                                                            later the present state of each run that changed
"""

from __future__ import annotations

import select
import socket
from dataclasses import dataclass, field, fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson

LAUNCH_MAX_BYTES = 8 * 1024 * 1024  # one Launch as JSON; Linux accepts about 2 MiB of arguments and environment
SPAWNER_MESSAGE_MAX_BYTES = 2 * LAUNCH_MAX_BYTES
RUN_VARIABLE = "CORRAL_RUN"  # in the environment of every run: FOLDER/RUN_ID, because several Corrals may run on a machine
READ_BYTES = 256 * 1024
UNSENT_MAX_BYTES = 64 * 1024 * 1024  # an agent that does not read is disconnected; it receives every run when it reconnects


def run_mark(data: Path, run_id: str) -> str:
    """The value of `RUN_VARIABLE` in the environment of a run."""
    return f"{data}/{run_id}"


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start. It inherits no variable of the spawner's own environment."""

    run_id: str
    command: list[str]
    environment: dict[str, str]
    working_directory: str | None
    stop_grace_s: float
    ships_logs: bool  # remembered for later agents, which did not receive the order
    gpu_ids: list[str]
    memory_mib: int | None = None  # the hard limit
    cpu_units: int = 0
    fault: str | None = None  # why it cannot start: the run ends at once with this reason


@dataclass(slots=True)
class SpawnedRun:
    """What the spawner remembers about a run. Not its environment, which may contain secrets.

    It is not changed in place: `but` returns a copy. It is not frozen, because copying a frozen one takes five times as long.
    """

    run_id: str
    stop_grace_s: float
    ships_logs: bool
    gpu_ids: list[str]
    pid: int | None = None
    started_at_s: float | None = None
    started_boot_s: float | None = None  # on the clock of /proc/<pid>/stat, to recognize a reused pid
    kill_at_boot_s: float | None = None  # a stop was requested; SIGKILL follows at this time
    main_ended_at_s: float | None = None  # the main process has ended, but other processes of the run may be alive
    stopped_at_s: float | None = None
    exit_code: int | None = None
    reason: str | None = None
    group: str | None = None  # its cgroup, while it is alive

    @property
    def alive(self) -> bool:
        return self.stopped_at_s is None

    def but(self, **changes: Any) -> SpawnedRun:
        copy = SpawnedRun(*_FIELDS(self))
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy


_FIELDS = attrgetter(*(each.name for each in fields(SpawnedRun)))


@dataclass(frozen=True, slots=True)
class FromSpawner:
    """A message from the spawner."""

    runs: list[SpawnedRun] = field(default_factory=list)
    all: bool = False
    pong: bool = False


class SpawnerClient:
    """The spawner's end of a connection to an agent. It never blocks, and its buffers are bounded."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unread = b""
        self._unsent = b""
        self.polled = select.EPOLLIN
        self.broken = False
        self.dry = False  # the last call of receive found nothing to read

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    @property
    def behind(self) -> bool:
        return bool(self._unsent)

    def receive(self) -> list[Any]:
        """Return the complete messages that have arrived. Never waits."""
        self.dry = False
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            self.dry = True
            return []
        except OSError:
            data = b""
        if not data:
            self.broken = True
            return []
        *lines, self._unread = (self._unread + data).split(b"\n")
        self.broken = len(self._unread) > SPAWNER_MESSAGE_MAX_BYTES
        return [_decoded(line) for line in lines]

    def send(self, data: bytes) -> None:
        self._unsent += data
        if self.broken or not self._unsent:
            return
        try:
            sent = self._connection.send(self._unsent)
            self._unsent = self._unsent[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.broken = True
        self.broken = self.broken or len(self._unsent) > UNSENT_MAX_BYTES


def _decoded(line: bytes) -> Any:
    """The message in a line. A line that is not JSON must not cost the messages after it."""
    try:
        return orjson.loads(line)
    except ValueError as error:
        return f"not JSON ({error})"
