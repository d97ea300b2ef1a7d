"""SQL of tasks and EC2 instances that hold GPUs which do nothing, and of the idle GPU-seconds of owners.

These are measurements: they are in memory, and a rollback does not undo them. The server writes them once a minute. Reader threads
share the object of the writer, and copy what they read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from corral.core.database import Database
from corral.store.owner_use import HOUR_S

IDLE_PERCENT = 1.0  # a GPU with less utilization does nothing
GAP_MAX_S = 120.0  # a sample covers the time since the last sample of the GPU, but not a longer time
SAVED_AFTER_S = 60.0  # a shorter idle time is not written


class IdleTime(Struct, frozen=True):
    since_s: float
    noted_at_s: float | None = None  # when a notification was sent


class Sampled(NamedTuple):
    gpu_id: str
    holder: str  # the id of the task or instance


class IdleHolders:
    def __init__(self, database: Database) -> None:
        self._executemany = database.executemany
        self._on_rollback = database.undo_log.on_rollback
        self._idle: dict[str, IdleTime] = {}
        self._saved: dict[str, IdleTime] = {}  # as in the rows
        self._sampled: dict[Sampled, float] = {}  # → the time of the last sample
        self._unsaved: dict[tuple[str, int], float] = {}  # owner, hour → idle GPU-seconds
        rows = database.execute("SELECT id, since, noted_at FROM idle_holder").fetchall()
        self._idle = {holder: IdleTime(since_s, noted_at_s) for holder, since_s, noted_at_s in rows}
        self._saved = dict(self._idle)

    # Measurements

    def add_sample(self, gpu_id: str, holder: str, percent: float, at_s: float) -> float:
        """Note the utilization of a GPU of a task or instance. Return for how many seconds the GPU has done nothing."""
        key = Sampled(gpu_id, holder)
        before_s = self._sampled.get(key)
        self._sampled[key] = at_s
        if percent >= IDLE_PERCENT:
            self._idle.pop(holder, None)
            return 0.0
        if holder not in self._idle:
            self._idle[holder] = IdleTime(at_s)
        return at_s - before_s if before_s is not None and 0.0 < at_s - before_s <= GAP_MAX_S else 0.0

    def add_idle(self, owner: str, gpu_s: float, at_s: float) -> None:
        key = owner, int(at_s // HOUR_S)
        self._unsaved[key] = self._unsaved.get(key, 0.0) + gpu_s

    def note(self, holder: str, now_s: float) -> None:
        """Record that a notification about a holder was sent."""
        before = self._idle[holder]
        self._set(holder, IdleTime(before.since_s, now_s))
        self._on_rollback(partial(self._set, holder, before))
        self._write({holder: self._idle[holder]}, [])

    def _set(self, holder: str, time: IdleTime) -> None:
        self._idle[holder] = time

    def save(self, now_s: float, holds: Callable[[str], bool]) -> None:
        """Write what has changed. Forget tasks and instances that do not hold GPUs any more."""
        self._sampled = {key: at_s for key, at_s in self._sampled.items() if now_s - at_s <= GAP_MAX_S}
        self._idle = {holder: time for holder, time in self._idle.items() if holds(holder)}
        kept = {holder: time for holder, time in self._idle.items() if now_s - time.since_s >= SAVED_AFTER_S}
        changed = {holder: time for holder, time in kept.items() if self._saved.get(holder) != time}
        self._write(changed, [holder for holder in self._saved if holder not in kept])
        unsaved, self._unsaved = self._unsaved, {}
        if unsaved:
            self._on_rollback(partial(self._put_back, unsaved))
            self._executemany(
                "INSERT INTO owner_hour (owner, hour, idle_gpu_s) VALUES (?, ?, ?) "
                "ON CONFLICT (owner, hour) DO UPDATE SET idle_gpu_s = idle_gpu_s + excluded.idle_gpu_s",
                [(owner, hour, gpu_s) for (owner, hour), gpu_s in unsaved.items()],
            )

    def _write(self, changed: dict[str, IdleTime], ended: list[str]) -> None:
        if not changed and not ended:
            return
        self._on_rollback(partial(self._set_saved, self._saved))
        self._saved = {holder: time for holder, time in {**self._saved, **changed}.items() if holder not in ended}
        self._executemany("DELETE FROM idle_holder WHERE id = ?", [(holder,) for holder in ended])
        self._executemany(
            "INSERT OR REPLACE INTO idle_holder VALUES (?, ?, ?)",
            [(holder, time.since_s, time.noted_at_s) for holder, time in changed.items()],
        )

    def _set_saved(self, saved: dict[str, IdleTime]) -> None:
        self._saved = saved

    def _put_back(self, unsaved: dict[tuple[str, int], float]) -> None:
        for key, gpu_s in unsaved.items():
            self._unsaved[key] = self._unsaved.get(key, 0.0) + gpu_s

    # Reading

    def since(self, before_s: float) -> dict[str, IdleTime]:
        """Return the tasks and instances that have been idle since this time or longer, the longest first."""
        found = [(time.since_s, holder, time) for holder, time in self._idle.copy().items() if time.since_s <= before_s]
        return {holder: time for _, holder, time in sorted(found, key=lambda each: each[:2])}

    def unsaved(self, owner: str) -> dict[int, float]:
        """Return hour → idle GPU-seconds of an owner that are not in `owner_hour` yet."""
        return {hour: gpu_s for (found, hour), gpu_s in self._unsaved.copy().items() if found == owner}
