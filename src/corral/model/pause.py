"""Pauses of tasks: a task that is paused keeps its processes and their memory, and its GPUs are free for others.

The memory that its processes have on GPUs is in the memory of the host until the task continues on the same GPUs. A task keeps its
CPU units and its memory while it is paused.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from corral.model.numbers import whole_number

PREEMPTIBLE_TAG = "corral:preemptible"  # `true`: claims with a higher priority pause the task; `kill`: they stop and requeue it
TURNS_TAG = "corral:turns"  # seconds: the task takes turns on its GPUs with other such tasks
PAUSED_TAG = "corral:paused"  # shown while a task is paused; tags of requests cannot set it
TURN_MIN_S = 10.0  # a task that continues is not paused for another claim before this time
TURN_MAX_S = 7 * 86_400
MOVES_PER_TURN = 10  # a turn lasts at least this many times as long as the last move out and back
RETRY_FIRST_S, RETRY_MAX_S = 30.0, 3600.0  # after a pause that has failed, how long no claim pauses the task


class PausePhase(StrEnum):
    RUNNING = "running"
    PAUSING = "pausing"  # its host moves it out; its GPUs are still leased
    PAUSED = "paused"  # its GPUs are free
    RESUMING = "resuming"  # its GPUs are leased again; its host moves it back


class Cause(StrEnum):
    USER = "user"  # it continues when a user says so
    PRIORITY = "priority"  # a claim with a higher priority has taken its GPUs
    TURN = "turn"  # its turn was over


class Lends(StrEnum):
    """How a task lends its GPUs to claims with a higher priority."""

    NOT = ""
    PAUSE = "true"
    KILL = "kill"


class PauseTagError(ValueError):
    """The value of a tag breaks the rule for this tag. The text has the value and the rule."""


def pause_of_tags(tags: Mapping[str, str], priority: tuple[float, ...]) -> Pause | None:
    """Read from the tags of a new task whether it lends its GPUs or takes turns. None: it does neither."""
    lends, turns = tags.get(PREEMPTIBLE_TAG, "false"), tags.get(TURNS_TAG)
    if lends not in ("true", "false", "kill"):
        raise PauseTagError(f"The tag {PREEMPTIBLE_TAG} has the value '{lends}', but it must be `true`, `kill` or `false`.")
    turn_s = whole_number(turns, TURN_MAX_S) if turns is not None else 0
    if turn_s is None or (turns is not None and turn_s < TURN_MIN_S):
        rule = f"a number of seconds from {TURN_MIN_S:.0f} to {TURN_MAX_S}, for example 300"
        raise PauseTagError(f"The tag {TURNS_TAG} has the value '{turns}', but it must be {rule}.")
    if lends == "false" and not turn_s:
        return None
    return Pause(Lends(lends) if lends != "false" else Lends.NOT, float(turn_s), priority)


class Pause(Struct, frozen=True, omit_defaults=True):
    """What is known of the pauses of a task. Only a task that lends its GPUs, takes turns or was paused has such a record."""

    lends: Lends = Lends.NOT
    turn_s: float = 0.0  # 0: it does not take turns
    priority: tuple[float, ...] = (0.0,)  # see `decide/placement/preemption.py`
    phase: PausePhase = PausePhase.RUNNING
    gpu_ids: tuple[str, ...] = ()  # that it had when it was paused last
    number: int = 0  # of the last order to its host (`PauseOrder`)
    answers: dict[str, bool] = field(default_factory=dict)  # attempt id → whether the run is paused, after the last order
    cause: Cause | None = None  # of the last pause
    reason: str = ""  # of the last pause, for users
    claim: str = ""  # the id of the claim for which it was paused last
    since_s: float = 0.0  # when the last pause began
    paused_s: float = 0.0  # how long earlier pauses were, together
    pauses: int = 0  # how many pauses have succeeded
    host_mib: int = 0  # what the last pause has moved to the memory of the host
    out_s: float = 0.0  # how long the last move out took
    back_s: float = 0.0  # how long the last move back took
    resumed_at_s: float = 0.0  # when it continued last
    returns: bool = False  # it is paused, and waits in line for its GPUs
    why_not: str = ""  # why the last pause or the last return has failed
    failures: int = 0  # how many pauses have failed since the last one that succeeded
    retry_at_s: float = 0.0  # before this time, no claim pauses it, because the last pause has failed

    @property
    def is_active(self) -> bool:
        return self.phase is not PausePhase.RUNNING

    @property
    def held_mib(self) -> int:
        """The memory of the host that has what its processes had on GPUs."""
        return self.host_mib if self.phase in (PausePhase.PAUSED, PausePhase.RESUMING) else 0

    @property
    def lends_something(self) -> bool:
        return self.lends is not Lends.NOT or self.turn_s > 0

    def lost_s(self, now_s: float) -> float:
        """Return how long the task was paused until now."""
        return self.paused_s + (max(0.0, now_s - self.since_s) if self.is_active else 0.0)

    def may_be_paused_at_s(self, started_at_s: float) -> float:
        """Return from when on another claim may pause the task. A task that has just continued gets a turn first."""
        turn_s = max(MOVES_PER_TURN * (self.out_s + self.back_s), TURN_MIN_S) if self.pauses else 0.0
        since_s = max(self.resumed_at_s, started_at_s)
        return max(since_s + turn_s, self.retry_at_s)

    def turn_ends_at_s(self, started_at_s: float) -> float:
        """Return when the turn of a running task that takes turns is over."""
        return max(max(self.resumed_at_s, started_at_s) + self.turn_s, self.may_be_paused_at_s(started_at_s))

    def fresh(self) -> Pause:
        """Return the record of another task with the same tags."""
        return Pause(self.lends, self.turn_s, self.priority)

    def but(self, **changes: object) -> Pause:
        return replace(self, **changes)
