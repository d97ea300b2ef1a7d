"""SQL of the use of GPUs by each owner: what an owner holds now, its decayed use, and its GPU-seconds of each hour.

The owner of a task holds the GPUs that its runs lease: whole GPUs, or parts of shared GPUs by their memory. The owner of an EC2
instance holds the other GPUs of the instance, from its launch to its end. Amounts are in millionths of a GPU, so that sums are
exact.

What the owners hold is in memory, derived from rows. The use until the last change is also in rows, which are written in the
transaction of the change: one row per owner that has changed, and one for its hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import log
from typing import Any

from msgspec import Struct

from corral.core.database import Database
from corral.model.instance import Instance, is_host_pool
from corral.model.job_line import ShareUse, decayed
from corral.model.task import Run, Task

HOUR_S, DAY_S = 3600.0, 86_400.0
HALF_LIFE_S = 7 * 86_400.0
WHOLE = 1_000_000  # millionths of a GPU
USE_KEPT_S = 92 * 86_400.0  # the age at which hours are deleted


class OwnerUse(Struct, frozen=True):
    """What an owner holds since `at_s`, and what it has used until then."""

    millionths: int = 0  # of GPUs
    used: float = 0.0  # GPU-seconds; use of an earlier time counts less
    at_s: float = 0.0
    hour_gpu_s: float = 0.0  # of the hour of `at_s`

    @property
    def gpus(self) -> float:
        return self.millionths / WHOLE

    @property
    def hour(self) -> int:
        return int(self.at_s // HOUR_S)


class HourUse(Struct, frozen=True):
    """The use of GPUs by one owner in one hour."""

    hour: int  # of steady time, since the epoch
    gpu_s: float
    idle_gpu_s: float = 0.0


class OwnerUses:
    def __init__(self, database: Database) -> None:
        self._execute, self._executemany = database.execute, database.executemany
        self._on_rollback = database.undo_log.on_rollback
        self._uses: dict[str, OwnerUse] = {}
        self._memory: dict[str, int] = {}  # owner → memory in MiB of its placed tasks
        self._changed: set[str] = set()  # owners whose rows are written before the commit
        self.decay_s = HALF_LIFE_S / log(2)  # use of this time ago counts e (2.718) times less
        # Called when an owner holds more or fewer GPUs, or more or less memory, also by a rollback
        self.on_hold: Callable[[str], object] = lambda owner: None
        if not database.reads_only:
            database.undo_log.before_commit.append(self._write)

    # Holding

    def hold_runs(self, task: Task, runs: Iterable[Run], now_s: float) -> None:
        """Count the GPUs that runs of a task have leased. The leases are rows already."""
        self._lease(task, self.leased(runs), now_s)

    def release(self, task: Task, millionths: int, now_s: float) -> None:
        self._lease(task, -millionths, now_s)

    def _lease(self, task: Task, change: int, now_s: float) -> None:
        if is_host_pool(task.pool):
            self._hold(task.owner, change, now_s)
        elif change:
            (lender,) = self._execute("SELECT owner FROM instance WHERE id = ?", (task.instance_id,)).fetchone()
            self._lend(lender, task.owner, change, now_s)

    def _lend(self, lender: str, owner: str, change: int, now_s: float) -> None:
        """Count GPUs of an instance of `lender` for the owner of a task, instead of for the lender."""
        if lender != owner:
            self._hold(lender, -change, now_s)
            self._hold(owner, change, now_s)

    def pass_instance(self, before: Instance, after: Instance, now_s: float) -> None:
        """Count the GPUs of an instance for its new owner. Those that tasks lease count for the owners of the tasks."""
        self.hold_instance(after, now_s)
        for owner, millionths in self._execute(_LEASED_ON, (before.id,)).fetchall():
            self._lend(before.owner, owner, -millionths, now_s)
            self._lend(after.owner, owner, millionths, now_s)
        self.release_instance(before, now_s)

    def hold_instance(self, instance: Instance, now_s: float) -> None:
        self._hold(instance.owner, instance.gpus * WHOLE, now_s)

    def release_instance(self, instance: Instance, now_s: float) -> None:
        self._hold(instance.owner, -instance.gpus * WHOLE, now_s)

    def add_memory(self, owner: str, change_mib: int) -> None:
        if change_mib:
            self._add_memory(owner, change_mib)
            self._on_rollback(partial(self._add_memory, owner, -change_mib))

    def leased(self, runs: Iterable[Run]) -> int:
        """Return what runs hold. Their leases are rows still."""
        total = 0
        for run in runs:
            if run.gpu_memory_mib and run.gpu_ids:
                (parts,) = self._execute("SELECT coalesce(sum(millionths), 0) FROM lease WHERE run_id = ?", (run.id,)).fetchone()
                total += parts
            else:
                total += len(run.gpu_ids) * WHOLE
        return total

    def _hold(self, owner: str, change: int, now_s: float) -> None:
        if not change:
            return
        before = self._uses.get(owner)
        use = self._until(owner, before if before is not None else OwnerUse(at_s=now_s), now_s)
        self._changed.add(owner)
        self._on_rollback(partial(self._set, owner, before))
        self._set(owner, OwnerUse(use.millionths + change, use.used, use.at_s, use.hour_gpu_s))

    def _until(self, owner: str, use: OwnerUse, now_s: float) -> OwnerUse:
        """Return the use until a later time. Write the hours that have ended."""
        if now_s <= use.at_s:
            return use
        used = decayed(use.used, use.gpus, now_s - use.at_s, self.decay_s)
        if now_s // HOUR_S == use.at_s // HOUR_S:
            return OwnerUse(use.millionths, used, now_s, use.hour_gpu_s + use.gpus * (now_s - use.at_s))
        *ended, last = _hours(use, now_s)
        self._put_hours([(owner, each.hour, each.gpu_s) for each in ended if each.gpu_s])
        return OwnerUse(use.millionths, used, now_s, last.gpu_s)

    def _put_hours(self, rows: list[tuple[str, int, float]]) -> None:
        if rows:
            self._executemany(
                "INSERT INTO owner_hour (owner, hour, gpu_s) VALUES (?, ?, ?) "
                "ON CONFLICT (owner, hour) DO UPDATE SET gpu_s = excluded.gpu_s",
                rows,
            )

    def _write(self) -> None:
        if not self._changed:
            return
        found = [(owner, use) for owner in sorted(self._changed) if (use := self._uses.get(owner)) is not None]
        self._changed.clear()
        self._executemany(
            "INSERT INTO owner_use VALUES (?, ?, ?) ON CONFLICT (owner) DO UPDATE SET used = excluded.used, at = excluded.at",
            [(owner, use.used, use.at_s) for owner, use in found],
        )
        self._put_hours([(owner, use.hour, use.hour_gpu_s) for owner, use in found if use.hour_gpu_s])

    def _set(self, owner: str, use: OwnerUse | None) -> None:
        if use is None:
            self._uses.pop(owner, None)
        else:
            self._uses[owner] = use
        self.on_hold(owner)

    def _add_memory(self, owner: str, change_mib: int) -> None:
        after = self._memory.get(owner, 0) + change_mib
        if after:
            self._memory[owner] = after
        else:
            self._memory.pop(owner, None)
        self.on_hold(owner)

    # Reading

    def held(self, owner: str) -> float:
        """Return the GPUs that an owner holds now."""
        use = self._uses.get(owner)
        return use.gpus if use is not None else 0.0

    def memory_mib(self, owner: str) -> int:
        """Return the memory that the placed tasks of an owner reserve, on all machines."""
        return self._memory.get(owner, 0)

    def leased_by_task(self, task_id: str) -> int:
        """Return what a task leases, also on an EC2 instance, in millionths of a GPU."""
        sql = "SELECT coalesce(sum(millionths), 0) FROM lease WHERE run_id IN (SELECT id FROM run WHERE task_id = ?)"
        (millionths,) = self._execute(sql, (task_id,)).fetchone()
        return int(millionths)

    def use(self, owner: str) -> ShareUse:
        use = self._uses.get(owner)
        return ShareUse(use.gpus, use.used, use.at_s) if use is not None else ShareUse()

    def holders(self) -> list[str]:
        """Return the owners that hold GPUs now."""
        return [owner for owner, use in self._uses.items() if use.millionths]

    def present(self) -> list[str]:
        """Return the owners whose decayed use is known."""
        return list(self._uses)

    def owners(self) -> list[str]:
        """Return the owners that have used GPUs, sorted."""
        return sorted(self._uses)

    def gpu_s(self, owners: Iterable[str], since_s: float, now_s: float) -> float:
        """Return the GPU-seconds of owners together from `since_s` to `now_s`. The first hour counts in proportion."""
        return sum([gpu_s for owner in owners for gpu_s, _ in self.days(owner, since_s, now_s).values()])

    def hours(self, owner: str, since_s: float, now_s: float) -> list[HourUse]:
        """Return the hours in which an owner has used GPUs, from the hour of `since_s` to that of `now_s`, oldest first."""
        first = int(since_s // HOUR_S)
        sql = "SELECT hour, gpu_s, idle_gpu_s FROM owner_hour WHERE owner = ? AND hour >= ? ORDER BY hour"
        found = {row[0]: HourUse(*row) for row in self._execute(sql, (owner, first))}
        use = self._uses.get(owner)
        for each in _hours(use, max(now_s, use.at_s), first) if use is not None else ():
            if each.gpu_s or each.hour in found:
                stored = found.get(each.hour)
                found[each.hour] = HourUse(each.hour, each.gpu_s, stored.idle_gpu_s if stored is not None else 0.0)
        return [found[hour] for hour in sorted(found)]

    def days(self, owner: str, since_s: float, now_s: float, ahead_s: float = 0.0) -> dict[int, tuple[float, float]]:
        """Return the GPU-seconds and idle GPU-seconds of each day since a time. The first hour counts in proportion.

        A day is a number of days since the epoch, and begins at midnight of a clock that is `ahead_s` ahead of steady time. SQLite
        adds up the hours before the last change, so that a month of many owners takes little time.
        """
        first, last = int(since_s // HOUR_S), self._uses.get(owner, OwnerUse(at_s=now_s)).hour
        parts = [(int((each.hour * HOUR_S + ahead_s) // DAY_S), each.gpu_s, each.idle_gpu_s, each.hour == first)
                 for each in self.hours(owner, max(since_s, last * HOUR_S), now_s)]  # fmt: skip
        sql = (
            f"SELECT CAST((hour * {HOUR_S} + ?1) / {DAY_S} AS INTEGER), sum(gpu_s), sum(min(gpu_s, idle_gpu_s)), hour = ?2 "
            "FROM owner_hour WHERE owner = ?3 AND hour >= ?2 AND hour < ?4 GROUP BY 1, 4"
        )
        found: dict[int, tuple[float, float]] = {}
        for day, gpu_s, idle_s, is_first in (*parts, *self._execute(sql, (ahead_s, first, owner, last))):
            part = 1.0 - since_s % HOUR_S / HOUR_S if is_first else 1.0
            before = found.get(day, (0.0, 0.0))
            found[day] = before[0] + gpu_s * part, before[1] + min(gpu_s, idle_s) * part
        return {day: sums for day, sums in sorted(found.items()) if sums[0]}

    # Age, restart, copies

    def drop_before(self, before_s: float, limit: int) -> int:
        """Delete up to `limit` hours that ended before this time. Return how many were deleted."""
        return self._execute(
            "DELETE FROM owner_hour WHERE (owner, hour) IN (SELECT owner, hour FROM owner_hour WHERE hour < ? LIMIT ?)",
            (int(before_s // HOUR_S), limit),
        ).rowcount

    def rebuild(self, instances: Iterable[Instance]) -> None:
        """Derive from the rows what the owners hold. `instances` are those that are not terminated."""
        held: dict[str, int] = {}
        since: dict[str, float] = {}
        for owner, millionths, placed_at_s, lender in self._execute(_LEASED).fetchall():
            if owner != lender:
                held[owner] = held.get(owner, 0) + millionths
                held[lender] = held.get(lender, 0) - millionths
                since[owner] = max(placed_at_s, since.get(owner, 0.0))
        held.pop("", None)
        for each in instances:
            if not each.is_host and each.host_id is not None and each.gpus:
                held[each.owner] = held.get(each.owner, 0) + each.gpus * WHOLE
                since[each.owner] = max(each.launched_at_s or 0.0, since.get(each.owner, 0.0))
        sql = (
            "SELECT owner, used, at, coalesce((SELECT gpu_s FROM owner_hour WHERE owner_hour.owner = owner_use.owner "
            f"AND hour = CAST(at / {HOUR_S} AS INTEGER)), 0.0) FROM owner_use"
        )
        self._uses = {owner: OwnerUse(held.pop(owner, 0), *rest) for owner, *rest in self._execute(sql).fetchall()}
        # These owners got their GPUs from an earlier version, which did not count. They count from the last placement.
        self._uses |= {owner: OwnerUse(millionths, at_s=since[owner]) for owner, millionths in held.items()}
        placed = "SELECT owner, sum(memory_mib) FROM task WHERE state IN ('PENDING', 'RUNNING') GROUP BY owner"
        self._memory = {owner: memory_mib for owner, memory_mib in self._execute(placed).fetchall() if memory_mib}

    def copy(self) -> tuple[dict[str, OwnerUse], dict[str, int]]:
        """Return a copy for readers (`show`)."""
        return dict(self._uses), dict(self._memory)

    def show(self, uses: dict[str, OwnerUse], memory: dict[str, int]) -> None:
        """Use what the writer has published. Only a reader calls this."""
        self._uses, self._memory = uses, memory

    def snapshot(self) -> dict[str, Any]:
        """Return the data in memory that is derived from rows, for tests."""
        return {"uses": dict(self._uses), "memory": dict(self._memory)}


def _hours(use: OwnerUse, now_s: float, first: int = 0) -> list[HourUse]:
    """Return the hours from that of the last change, or from `first`, to that of `now_s`, with their GPU-seconds."""
    last = int(now_s // HOUR_S)
    if not use.millionths and last > use.hour:
        return [HourUse(use.hour, use.hour_gpu_s), HourUse(last, 0.0)][use.hour < first :]
    found = list[HourUse]()
    for hour in range(max(use.hour, first), last + 1):
        seconds = min(now_s, (hour + 1) * HOUR_S) - max(use.at_s, hour * HOUR_S)
        found.append(HourUse(hour, use.gpus * seconds + (use.hour_gpu_s if hour == use.hour else 0.0)))
    return found


# The leases of tasks, with the owner of the EC2 instance, which is empty on hosts
_LEASED = (
    "SELECT task.owner, lease.millionths, coalesce(task.placed_at, task.created_at), iif(instance.region = '', '', instance.owner) "
    "FROM lease JOIN run ON run.id = lease.run_id JOIN task ON task.id = run.task_id "
    "JOIN instance ON instance.id = lease.instance_id"
)
_LEASED_ON = (
    "SELECT task.owner, sum(lease.millionths) FROM lease JOIN run ON run.id = lease.run_id JOIN task ON task.id = run.task_id "
    "WHERE lease.instance_id = ? GROUP BY task.owner"
)
