"""What the agent and the spawner say to each other: JSON lines over a stream socket.

agent → spawner     {"start": Launch}       idempotent by run id, until it is forgotten
                    {"stop": "run id"}      SIGTERM, the run's grace, SIGKILL; an unknown one is ignored
                    {"forget": ["run id"]}  ended runs only; their output and work folder go too
                    {"quit": true}          as soon as nothing is alive
spawner → agent     {"runs": [Run], "all": bool}    first everything known, the last such line with all=true;
                                                    then whatever changed, as it is now
"""

from __future__ import annotations

from dataclasses import dataclass, field

MESSAGE_MAX_BYTES = 8 * 1024 * 1024  # one Launch; Linux itself takes about 2 MiB of arguments and environment


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start, complete: nothing of the spawner's own environment reaches it."""

    run_id: str
    command: list[str]
    environment: dict[str, str]
    working_directory: str | None
    stop_grace_s: float
    ships_logs: bool  # kept and told to later agents, which never saw the order
    gpu_ids: list[str]


@dataclass(frozen=True, slots=True)
class Run:
    """All that is remembered of a run; its environment is not, for it may hold secrets."""

    run_id: str
    stop_grace_s: float
    ships_logs: bool
    gpu_ids: list[str]
    pid: int | None = None
    started_at_s: float | None = None
    started_boot_s: float | None = None  # on the clock that /proc/<pid>/stat uses: tells a reused pid from ours
    kill_at_boot_s: float | None = None  # a stop was asked for, and this is when SIGKILL follows
    main_ended_at_s: float | None = None  # the exit code is known (or lost), but something of the run may still live
    stopped_at_s: float | None = None
    exit_code: int | None = None
    reason: str | None = None

    @property
    def alive(self) -> bool:
        return self.stopped_at_s is None


@dataclass(frozen=True, slots=True)
class FromSpawner:
    """A message from the spawner."""

    runs: list[Run] = field(default_factory=list)
    all: bool = False
