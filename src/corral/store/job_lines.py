"""SQL of the lines of Batch jobs, and the claims of the lines.

A line has a claim in each pool in which its first job may run. Each job of a line has a row in `waiting_job`. The values of this
row are the place of the job in its line (`JobPlace`). Lines and claims are also in memory, and can be derived from the rows. Only
the ranks of claims are not stored: the scheduler computes them before it serves a pool (`services/batch/line_claims.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from corral.core.database import Database
from corral.model.job_line import JobPlace, LineKey, WaitingLine
from corral.model.placement import JOB, Claim, Rank, claim_rank
from corral.model.task import Demand
from corral.store.fleet import Fleet

QueueName = tuple[str, str]  # region and name of a job queue
FIRST = (
    "SELECT priority, number, position, job_id, since FROM waiting_job WHERE line = ? ORDER BY priority, number, position LIMIT ?"
)


FIRST_MAX = 100  # the most places that `_take_next` reads with one query


class JobLines:
    def __init__(self, database: Database, fleet: Fleet) -> None:
        self._execute = database.execute
        self._executemany = database.executemany
        self._on_rollback = database.undo_log.on_rollback
        self._fleet = fleet
        self._lines: dict[int, WaitingLine] = {}
        self._by_key: dict[LineKey, int] = {}
        self._by_queue: dict[QueueName, dict[int, None]] = {}
        self._by_pool: dict[str, dict[int, None]] = {}
        self._by_resource: dict[tuple[str, str], dict[int, None]] = {}  # region and name of a consumable resource → lines
        self._claims: dict[tuple[int, str], Claim] = {}  # line and pool → claim
        # Line → the places that follow its first place, in reverse order. They save a query for each dispatch. If a line has no
        # entry, `_take_next` reads the places.
        self._next: dict[int, list[JobPlace]] = {}
        self._last_id = 0
        self.seniority: dict[str, float] = {}  # pool → when its oldest waiting job was created; updated with `ranked_at`
        self.ranked_at: dict[str, float] = {}  # pool → when the ranks of all its job claims were computed
        self.moved_at: dict[QueueName, float] = {}  # queue → when a job last left one of its lines

    def rebuild(self) -> None:
        """Derive the lines and their claims from the rows."""
        counts = dict(self._execute("SELECT line, count(*) FROM waiting_job GROUP BY line").fetchall())
        for row in self._execute("SELECT * FROM job_line").fetchall():
            id, region, queue, share, owner, demand, resources, by_image, pools = row
            key = LineKey(region, queue, share, owner, _demand_of(demand), _pairs(resources), bool(by_image))
            first = self._read_first(id)
            assert first is not None, "a line has no jobs"
            self._put(
                WaitingLine(id, key, counts[id], first, tuple((pool, bool(without)) for pool, without in orjson.loads(pools)))
            )
            self._last_id = max(self._last_id, id)
            for pool, without in self._lines[id].pools:
                place = self._lines[id].first
                self._join(id, pool, _claim(claim_rank(place.since_s, order=place[:3]), self._lines[id], without))

    def all(self) -> dict[int, WaitingLine]:
        """Return a copy of all lines, for readers (`show`)."""
        return dict(self._lines)

    def show(self, lines: dict[int, WaitingLine]) -> None:
        """Use the lines that the writer has published. Only a reader calls this."""
        self._lines, self._by_pool = lines, {}
        for line in lines.values():
            for pool, _ in line.pools:
                self._by_pool.setdefault(pool, {})[line.id] = None

    # Reading

    def get(self, line_id: int) -> WaitingLine | None:
        return self._lines.get(line_id)

    def find(self, key: LineKey) -> WaitingLine | None:
        line_id = self._by_key.get(key)
        return None if line_id is None else self._lines[line_id]

    def lines_of(self, region: str, queue: str) -> list[WaitingLine]:
        """Return the lines of a queue, oldest first."""
        return [self._lines[line_id] for line_id in self._by_queue.get((region, queue), ())]

    def in_pool(self, pool: str) -> list[WaitingLine]:
        return [self._lines[line_id] for line_id in self._by_pool.get(pool, ())]

    def with_resource(self, region: str, name: str) -> list[WaitingLine]:
        return [self._lines[line_id] for line_id in self._by_resource.get((region, name), ())]

    def queues(self) -> list[QueueName]:
        """Return the queues in which jobs wait."""
        return list(self._by_queue)

    def claims_of(self, line_id: int) -> dict[str, Claim]:
        return {pool: self._claims[line_id, pool] for pool, _ in self._lines[line_id].pools}

    def line_of(self, claim: Claim) -> WaitingLine:
        return self._lines[int(claim.id.partition("/")[0])]

    def pools_before(self, pool: str) -> set[str]:
        """Return the pools that must be served before this pool, because lines with claims in this pool prefer those pools."""
        before: set[str] = set()
        for line_id in self._by_pool.get(pool, ()):
            for each, _ in self._lines[line_id].pools:
                if each == pool:
                    break
                before.add(each)
        return before

    def places(self, line_id: int, limit: int) -> list[JobPlace]:
        return [JobPlace(*row) for row in self._execute(FIRST, (line_id, limit)).fetchall()]

    def count_before(self, line_id: int, place: JobPlace, most: int) -> int:
        """Return how many jobs of the line are before a place. Stop counting at `most`."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM waiting_job WHERE line = ? AND (priority, number, position) < (?, ?, ?) LIMIT ?)"
        found: int = self._execute(sql, (line_id, *place[:3], most)).fetchone()[0]
        return found

    def _read_first(self, line_id: int) -> JobPlace | None:
        row = self._execute(FIRST, (line_id, 1)).fetchone()
        return None if row is None else JobPlace(*row)

    def _take_next(self, line_id: int) -> JobPlace:
        """Return the new first place of a line whose first place has been deleted."""
        self._on_rollback(partial(self._next.pop, line_id, None))
        places = self._next.get(line_id)
        if not places:
            places = self._next[line_id] = self.places(line_id, FIRST_MAX)[::-1]
        return places.pop()

    # Writing

    def add(self, key: LineKey, places: Sequence[JobPlace]) -> tuple[WaitingLine, bool]:
        """Add jobs to their line, in the order of their places. Return the line, and whether one of these jobs is its first job."""
        before = self.find(key)
        if before is None:
            return self._new_line(key, places), True
        self._executemany("INSERT INTO waiting_job VALUES (?, ?, ?, ?, ?, ?)", [(before.id, *place) for place in places])
        following = self._next.get(before.id)
        if following and places[0] < following[0]:  # a new job is before the last of these places, which is first in reverse order
            del self._next[before.id]
        is_first = places[0] < before.first
        line = replace(before, count=before.count + len(places), first=places[0] if is_first else before.first)
        self._change(line)
        return line, is_first

    def remove(self, key: LineKey, place: JobPlace, now_s: float) -> WaitingLine | None:
        """Remove a job that was dispatched or cancelled. Return the line if it has more jobs.

        If the job was the first job of the line, the caller must call `set_claims`, because the claims name this job.
        """
        before = self.find(key)
        if before is None:
            return None
        sql = "DELETE FROM waiting_job WHERE line = ? AND priority = ? AND number = ? AND position = ?"
        if not self._execute(sql, (before.id, *place[:3])).rowcount:
            return before
        queue = key.region, key.queue
        self._on_rollback(partial(_restore, self.moved_at, queue, self.moved_at.get(queue)))
        self.moved_at[queue] = now_s
        if before.count == 1:
            self._end(before)
            return None
        line = replace(before, count=before.count - 1)
        if place[:3] == before.first[:3]:
            line = replace(line, first=self._take_next(before.id))
        else:
            self._next.pop(before.id, None)
        self._change(line)
        return line

    def take(self, key: LineKey, priority: int, number: int) -> list[JobPlace]:
        """Remove a job, or all children of an array, and return their places. The caller must call `set_claims` for the rest."""
        before = self.find(key)
        if before is None:
            return []
        columns = "priority, number, position, job_id, since"
        sql = f"DELETE FROM waiting_job WHERE line = ? AND priority = ? AND number = ? RETURNING {columns}"
        places = sorted(JobPlace(*row) for row in self._execute(sql, (before.id, priority, number)).fetchall())
        if not places:
            return []
        if before.count == len(places):
            self._end(before)
            return places
        self._next.pop(before.id, None)
        self._on_rollback(partial(self._next.pop, before.id, None))
        first = self._read_first(before.id)
        assert first is not None
        self._change(replace(before, count=before.count - len(places), first=first))
        return places

    def _end(self, line: WaitingLine) -> None:
        """Delete a line that has no jobs any more."""
        self.set_claims(line, {})
        self._execute("DELETE FROM job_line WHERE id = ?", (line.id,))
        self._drop(line.id)
        self._on_rollback(partial(self._put, replace(line, pools=())))

    def _new_line(self, key: LineKey, places: Sequence[JobPlace]) -> WaitingLine:
        self._last_id += 1
        line = WaitingLine(self._last_id, key, len(places), places[0])
        self._execute(
            "INSERT INTO job_line VALUES (?, ?, ?, ?, ?, ?, ?, ?, '[]')",
            (line.id, key.region, key.queue, key.share, key.owner, _demand_text(key.demand), _text(key.resources), key.by_image),
        )
        self._executemany("INSERT INTO waiting_job VALUES (?, ?, ?, ?, ?, ?)", [(line.id, *place) for place in places])
        self._put(line)
        self._on_rollback(partial(self._drop, line.id))
        return line

    def set_claims(self, line: WaitingLine, wanted: Mapping[str, tuple[Rank, bool]]) -> list[str]:
        """Replace the claims of a line. Return the pools that the scheduler must serve now.

        These are the pools in which a claim was added or removed, or got a better rank. `wanted` has for each pool the rank of the
        claim, and whether the claim needs no GPUs there. The pools are in the order of the queue's compute environments.
        """
        line = self._lines[line.id]
        before, improved = dict(line.pools), set[str]()
        for pool in [pool for pool in before if pool not in wanted]:
            self._withdraw(line.id, pool)
        for pool, (rank, without_gpus) in wanted.items():
            claim = _claim(rank, line, without_gpus)
            present = self._claims.get((line.id, pool))
            if present == claim:
                continue
            if present is not None:
                self._withdraw(line.id, pool)
                if claim.rank < present.rank:
                    improved.add(pool)
            self._join(line.id, pool, claim)
            self._on_rollback(partial(self._leave, line.id, pool))
        pools = tuple((pool, without_gpus) for pool, (_, without_gpus) in wanted.items())
        if pools != line.pools:
            self._execute("UPDATE job_line SET pools = ? WHERE id = ?", (_text(pools), line.id))
            self._change(replace(line, pools=pools))
        return [pool for pool in (*wanted, *before) if pool in improved or (pool in wanted) != (pool in before)]

    def set_ranked(self, pool: str, seniority_s: float, now_s: float) -> None:
        """Record that the ranks of all job claims of a pool were computed now."""
        self._on_rollback(partial(_restore, self.seniority, pool, self.seniority.get(pool)))
        self._on_rollback(partial(_restore, self.ranked_at, pool, self.ranked_at.get(pool)))
        self.seniority[pool], self.ranked_at[pool] = seniority_s, now_s

    # Reasons why the first jobs of lines wait. They are stored only for queues that limit the time of such waits.

    def blocked(self, region: str, queue: str) -> dict[str, tuple[str, float]]:
        """Return why the first job of each line waits, by job id: the code of the reason, and the time when this reason began."""
        sql = "SELECT job_id, code, since FROM blocked_job WHERE region = ? AND queue = ?"
        return {job_id: (code, since_s) for job_id, code, since_s in self._execute(sql, (region, queue))}

    def set_blocked(self, region: str, queue: str, blocked: Mapping[str, tuple[str, float]]) -> None:
        self._execute("DELETE FROM blocked_job WHERE region = ? AND queue = ?", (region, queue))
        rows = [(job_id, region, queue, code, since_s) for job_id, (code, since_s) in blocked.items()]
        self._executemany("INSERT OR REPLACE INTO blocked_job VALUES (?, ?, ?, ?, ?)", rows)

    def snapshot(self) -> dict[str, Any]:
        """Return the data in memory that is derived from rows, for tests."""
        return {
            "lines": dict(self._lines),
            "by queue": {name: sorted(lines) for name, lines in self._by_queue.items()},
            "by pool": {name: sorted(lines) for name, lines in self._by_pool.items()},
            "by resource": {name: sorted(lines) for name, lines in self._by_resource.items()},
            "by key": dict(self._by_key),
            "claims": {key: claim[1:] for key, claim in self._claims.items()},
        }

    # Changes in memory

    def _change(self, line: WaitingLine) -> None:
        before = self._lines[line.id]
        self._lines[line.id] = line
        self._on_rollback(partial(self._lines.__setitem__, line.id, before))

    def _put(self, line: WaitingLine) -> None:
        self._lines[line.id] = line
        self._by_key[line.key] = line.id
        self._by_queue.setdefault((line.key.region, line.key.queue), {})[line.id] = None
        for name, _ in line.key.resources:
            self._by_resource.setdefault((line.key.region, name), {})[line.id] = None

    def _drop(self, line_id: int) -> None:
        line = self._lines.pop(line_id)
        self._next.pop(line_id, None)
        del self._by_key[line.key]
        _discard(self._by_queue, (line.key.region, line.key.queue), line_id)
        for name, _ in line.key.resources:
            _discard(self._by_resource, (line.key.region, name), line_id)

    def _join(self, line_id: int, pool: str, claim: Claim) -> None:
        self._claims[line_id, pool] = claim
        self._by_pool.setdefault(pool, {})[line_id] = None
        self._fleet.add_claim(pool, claim)

    def _withdraw(self, line_id: int, pool: str) -> None:
        claim = self._claims[line_id, pool]
        self._fleet.remove_claim(pool, claim)
        self._forget(line_id, pool)
        self._on_rollback(partial(self._remember, line_id, pool, claim))

    def _leave(self, line_id: int, pool: str) -> None:
        """Undo `_join` in this object. `store/fleet.py` undoes its own change."""
        self._forget(line_id, pool)

    def _forget(self, line_id: int, pool: str) -> None:
        del self._claims[line_id, pool]
        _discard(self._by_pool, pool, line_id)

    def _remember(self, line_id: int, pool: str, claim: Claim) -> None:
        self._claims[line_id, pool] = claim
        self._by_pool.setdefault(pool, {})[line_id] = None


def _claim(rank: Rank, line: WaitingLine, without_gpus: bool) -> Claim:
    """Return the claim of the first job of a line. It has no time limit."""
    demand = replace(line.demand, gpus=0) if without_gpus and line.demand.gpus else line.demand
    return Claim(rank, JOB, f"{line.id}/{line.first.job_id}", demand, None, line.key.owner)


def _discard(index: dict[Any, dict[int, None]], key: Any, line_id: int) -> None:
    lines = index[key]
    del lines[line_id]
    if not lines:
        del index[key]


def _restore(values: dict[Any, float], key: Any, before: float | None) -> None:
    if before is None:
        values.pop(key, None)
    else:
        values[key] = before


def _text(value: Iterable[Any]) -> str:
    return orjson.dumps(tuple(value)).decode()


def _pairs(text: str) -> tuple[tuple[str, int], ...]:
    return tuple((name, quantity) for name, quantity in orjson.loads(text))


def _demand_text(demand: Demand) -> str:
    return msgspec.json.encode(demand).decode()


def _demand_of(text: str) -> Demand:
    return msgspec.json.decode(text, type=Demand)
