"""The protocol between the agent and the spawner: JSON lines over a stream socket.

Both processes run on a host. The agent is connected to the server. The spawner starts the processes of runs and waits for their
end.

agent → spawner     {"start": Launch}       start a process; a second start with the same run id is ignored
                    {"stop": "run id"}      send SIGTERM, and SIGKILL after the run's grace period
                    {"signal": "SIGINT", "run": "run id"}   send this signal to the process group of a run that is alive
                    {"forget": ["run id"]}  remove these ended runs, their output and their work folders
                    {"answered": seconds}   when the agent sent the last message that the server has answered (`fences.py`)
                    {"fence": FencedContainer}  end this container if the server does not answer
                    {"unfence": ["run id"]}
                    {"ping": true}          request the response {"pong": true}
                    {"quit": true}          exit when no run is alive any more
spawner → agent     {"runs": [SpawnedRun], "all": bool}     at first the state of every known run (the last line has
                                                            all=true), later the state of each run that changes
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LAUNCH_MAX_BYTES = 8 * 1024 * 1024  # the maximum size of a Launch as JSON; Linux accepts about 2 MiB of arguments and environment
SPAWNER_MESSAGE_MAX_BYTES = 2 * LAUNCH_MAX_BYTES
# Every run has this environment variable. Its value is FOLDER/RUN_ID, because several Corrals may run on one machine.
RUN_VARIABLE = "CORRAL_RUN"


def run_mark(data: Path, run_id: str) -> str:
    return f"{data}/{run_id}"


@dataclass
class Launch:
    """A process to start. The process inherits no environment variables of the spawner. Instances are not changed."""

    run_id: str
    command: list[str]
    environment: dict[str, str]
    working_directory: str | None
    stop_grace_s: float
    # The spawner stores this flag, because an agent that starts later did not receive the Launch.
    ships_logs: bool
    gpu_ids: list[str]
    memory_mib: int | None = None  # the hard limit of the run's memory
    cpu_units: int = 0
    has_output_file: bool = False  # the agent has created the output file, because the output is kept (`kept_outputs.py`)
    fault: str | None = None  # why the process cannot start; if set, the run ends at once with this reason
    fence_s: float | None = None  # end the run if the server has not answered for so long (`fences.py`)
    account: str = ""  # the Unix account of the process; empty: that of the spawner


def launch_from(run_id: str, fields: dict[str, Any]) -> Launch:
    """Return the Launch in a message. If the fields of the message do not fit this version, the Launch has a fault."""
    try:
        return Launch(**fields)
    except TypeError as error:  # the order is from an agent of another version
        fault = f"CannotStartContainerError: the spawner does not understand the order: {error}"
        return Launch(run_id, [], {}, None, 0.0, ships_logs=bool(fields.get("ships_logs")), gpu_ids=[], fault=fault)


@dataclass
class SpawnedRun:
    """The state of a run, as the spawner stores it.

    The environment of the run is not stored, because it may contain secrets. Instances are not changed in place: `but` returns a
    changed copy. The class is not frozen and has no slots, because the spawner would need three times as long to create, copy and
    serialize instances.
    """

    run_id: str
    stop_grace_s: float
    ships_logs: bool
    gpu_ids: list[str]
    pid: int | None = None
    started_at_s: float | None = None
    started_boot_s: float | None = None  # the start time by the clock of /proc/<pid>/stat; it shows whether the pid was reused
    kill_at_boot_s: float | None = None  # set when a stop was requested: the time of SIGKILL
    main_ended_at_s: float | None = None  # set when the main process has ended; other processes of the run may still be alive
    stopped_at_s: float | None = None
    exit_code: int | None = None
    reason: str | None = None
    group: str | None = None  # the cgroup of the run, while the run is alive
    fence_s: float | None = None  # of the Launch
    account: str = ""  # of the Launch
    uid: int | None = None  # the user id of the account, when the process has become it
    start_number: int = 0  # counts the starts of one spawner, to find out after its death which of them happened

    @property
    def alive(self) -> bool:
        return self.stopped_at_s is None

    def but(self, **changes: Any) -> SpawnedRun:
        copy = object.__new__(SpawnedRun)
        copy.__dict__ = {**self.__dict__, **changes}
        return copy


@dataclass(frozen=True, slots=True)
class FromSpawner:
    """A message from the spawner."""

    runs: list[SpawnedRun] = field(default_factory=list)
    all: bool = False
    pong: bool = False
