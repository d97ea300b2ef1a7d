"""SQL of queues and message move tasks. `messages.py` and `message_groups.py` have the SQL of messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson
from msgspec import Struct
from msgspec.structs import replace

from corral.core.database import Database, Row
from corral.model.queue import Counts, MoveTask, Queue, QueueActivity, dead_letters_arn
from corral.model.sqs_limits import MOVE_TASKS_MAX
from corral.store.message_groups import MessageGroups
from corral.store.queue_counters import SINCE_START_MS, QueueCounter

QUEUE_COLUMNS = "id, region, name, pile, created_ms, modified_ms, purged_ms, owner, attributes, tags"
TASK_COLUMNS = "id, source, source_arn, destination_arn, per_s, status, to_move, moved, started_ms, failure"
ACTIVE_MS = 6 * 3_600_000  # metrics of an empty queue are published for this time after its last use
CACHED_MAX = 20_000  # entries of the cache; each queue has two


class QueueChangeCount(Struct):
    """The number of commits that changed a row of a queue. The writer and the readers share it."""

    count: int = 0


class Queues(MessageGroups):
    def __init__(self, database: Database, of_writer: Queues | None = None) -> None:
        """A reader passes the queues of the writer, which remembers the last arrivals and receives."""
        super().__init__(database)
        if of_writer is not None:
            self._wakes, self._first_receives = of_writer._wakes, of_writer._first_receives
        # Each queue has two keys: (region, name), and its pile. A reader clears its cache when the writer has committed a change.
        self._cached: dict[tuple[str, str] | int, Queue] = {}
        self._changes: QueueChangeCount = QueueChangeCount() if of_writer is None else of_writer._changes
        self._cached_at = 0  # a reader: the change count at which it has filled the cache
        self._reading_at: int | None = None  # the change count before the current read snapshot began; None: no snapshot
        if not database.reads_only:
            (last,) = database.execute("SELECT max(id) FROM message").fetchone()
            self._last_id = last or 0
            self.counters.rebuild()

    def begin_reading(self) -> None:
        self._reading_at = self._changes.count

    def end_reading(self) -> None:
        self._reading_at = None

    def _forget_on_rollback(self) -> None:
        """Clear the cache if the transaction is rolled back. Call this before you change a queue's row."""
        self._database.undo_log.on_rollback(self._cached.clear)
        self._database.undo_log.on_commit(self._count_change)

    def _count_change(self) -> None:
        self._changes.count += 1

    def _cache(self, queue: Queue) -> Queue:
        if len(self._cached) > CACHED_MAX:
            self._cached.clear()
        self._cached[queue.region, queue.name] = self._cached[queue.pile] = queue
        return queue

    def _known(self, key: tuple[str, str] | int) -> Queue | None:
        if self._database.reads_only:
            # From before the read: if a commit changes the row later, the counts differ.
            count = self._changes.count if self._reading_at is None else self._reading_at
            if self._cached_at != count:
                self._cached.clear()
                self._cached_at = count
        return self._cached.get(key)

    # Queues

    def queue(self, region: str, name: str) -> Queue | None:
        if (queue := self._known((region, name))) is not None:
            return queue
        return self._select(f"SELECT {QUEUE_COLUMNS} FROM queue WHERE region = ? AND name = ?", (region, name))

    def queue_numbered(self, id: int) -> Queue | None:
        self._known(0)  # a reader must not cache the row as one of an earlier state
        return self._select(f"SELECT {QUEUE_COLUMNS} FROM queue WHERE id = ?", (id,))

    def _queue_of_pile(self, pile: int) -> Queue | None:
        if (queue := self._known(pile)) is not None:
            return queue
        return self._select(f"SELECT {QUEUE_COLUMNS} FROM queue WHERE pile = ?", (pile,))

    def _select(self, sql: str, values: Row) -> Queue | None:
        row = self._database.execute(sql, values).fetchone()
        return None if row is None else self._cache(_queue(row))

    def add_queue(
        self, region: str, name: str, attributes: Mapping[str, str], tags: Mapping[str, str], now_ms: int, owner: str
    ) -> Queue:
        self._forget_on_rollback()
        queue = Queue(0, region, name, self._new_pile(), now_ms, now_ms, None, owner, dict(attributes), dict(tags))
        id = self._database.execute(
            "INSERT INTO queue (region, name, pile, created_ms, modified_ms, dead_letters, owner, attributes, tags) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (region, name, queue.pile, now_ms, now_ms, queue.dead_letters_arn, owner, _dumps(attributes), _dumps(tags)),
        ).lastrowid
        assert id is not None
        return self._cache(replace(queue, id=id))

    def set_attributes(self, queue: Queue, attributes: Mapping[str, str], now_ms: int) -> Queue:
        self._forget_on_rollback()
        self._database.execute(
            "UPDATE queue SET attributes = ?, dead_letters = ?, modified_ms = ? WHERE id = ?",
            (_dumps(attributes), dead_letters_arn(attributes), now_ms, queue.id),
        )
        return self._cache(replace(queue, attributes=dict(attributes), modified_ms=now_ms))

    def set_tags(self, queue: Queue, tags: Mapping[str, str]) -> None:
        self._forget_on_rollback()
        self._database.execute("UPDATE queue SET tags = ? WHERE id = ?", (_dumps(tags), queue.id))
        self._cache(replace(queue, tags=dict(tags)))

    def set_owner(self, queue: Queue, owner: str) -> None:
        self._forget_on_rollback()
        self._database.execute("UPDATE queue SET owner = ? WHERE id = ?", (owner, queue.id))
        self._cache(replace(queue, owner=owner))

    def purge_queue(self, queue: Queue, now_ms: int) -> None:
        """Give the queue a new, empty pile. A reconciler deletes the rows of the old pile later."""
        self._abandon_pile(queue)
        emptied = replace(queue, pile=self._new_pile(), purged_ms=now_ms)
        self._database.execute("UPDATE queue SET pile = ?, purged_ms = ? WHERE id = ?", (emptied.pile, now_ms, queue.id))
        self._cache(emptied)
        self.counters.of(emptied.pile, now_ms).used_ms = now_ms  # so metrics that show the empty queue are published

    def drop_queue(self, queue: Queue) -> None:
        self._abandon_pile(queue)
        self._database.execute("DELETE FROM queue WHERE id = ?", (queue.id,))
        self._cached.pop((queue.region, queue.name), None)

    def _new_pile(self) -> int:
        pile = self._database.execute("INSERT INTO pile DEFAULT VALUES").lastrowid
        assert pile is not None
        return pile

    def _abandon_pile(self, queue: Queue) -> None:
        self._forget_on_rollback()
        self._database.execute("UPDATE pile SET owned = 0 WHERE id = ?", (queue.pile,))
        self.counters.drop(queue.pile)
        self._cached.pop(queue.pile, None)

    def queue_names(self, region: str, *, prefix: str, after: str, limit: int) -> list[str]:
        start = max(prefix, after + "\0" if after else "")
        rows = self._database.execute(
            "SELECT name FROM queue WHERE region = ? AND name >= ? AND name < ? ORDER BY name LIMIT ?",
            (region, start, prefix + "\x7f", limit),
        )
        return [name for (name,) in rows]

    def dead_letter_sources(self, region: str, arn: str, after: str, limit: int) -> list[str]:
        """Names of the queues that use the queue with this ARN as their dead-letter queue."""
        rows = self._database.execute(
            "SELECT name FROM queue WHERE region = ? AND dead_letters = ? AND name > ? ORDER BY name LIMIT ?",
            (region, arn, after, limit),
        )
        return [name for (name,) in rows]

    # Counts and metrics

    def counts(self, queue: Queue, now_ms: int) -> Counts:
        return self.counters.of(queue.pile, now_ms).counts

    def activity(self, now_s: float) -> list[QueueActivity]:
        """Metrics of every queue that has messages or was used within ACTIVE_MS. Events are counted since the previous call."""
        now_ms, found = round(now_s * 1000), list[QueueActivity]()
        for pile in self.counters:
            counter, queue = self.counters.of(pile, now_ms), self._queue_of_pile(pile)
            if counter.used_ms == SINCE_START_MS:
                counter.used_ms = now_ms
            if queue is None or (counter.total == 0 and counter.used_ms < now_ms - ACTIVE_MS):
                self.counters.drop(pile)
                continue
            found.append(self._activity(queue, counter, now_ms))
            counter.sent = counter.sent_bytes = counter.received = counter.deleted = counter.empty_receives = 0
        return found

    def levels(self, now_s: float) -> Iterator[tuple[str, str, int, int, int]]:
        """Yield (region, name, visible, in flight, delayed) for every queue that `activity` describes."""
        now_ms = round(now_s * 1000)
        for pile in self.counters:
            queue, counts = self._queue_of_pile(pile), self.counters.of(pile, now_ms).counts
            if queue is not None:
                yield queue.region, queue.name, counts.visible, counts.in_flight, counts.delayed

    def _activity(self, queue: Queue, counter: QueueCounter, now_ms: int) -> QueueActivity:
        counts, oldest_ms = counter.counts, self.oldest_ms(queue.pile) if counter.total else None
        return QueueActivity(
            region=queue.region,
            name=queue.name,
            visible=counts.visible,
            in_flight=counts.in_flight,
            delayed=counts.delayed,
            oldest_age_s=0.0 if oldest_ms is None else max(0, now_ms - oldest_ms) / 1000,
            sent=counter.sent,
            sent_bytes=counter.sent_bytes,
            received=counter.received,
            deleted=counter.deleted,
            empty_receives=counter.empty_receives,
        )

    # Message move tasks

    def move_task(self, id: str) -> MoveTask | None:
        row = self._database.execute(f"SELECT {TASK_COLUMNS} FROM move_task WHERE id = ?", (id,)).fetchone()
        return None if row is None else MoveTask(*row)

    def move_tasks(self, source: Queue, limit: int) -> list[MoveTask]:
        """The move tasks of a source queue. The latest task is first."""
        rows = self._database.execute(
            f"SELECT {TASK_COLUMNS} FROM move_task WHERE source = ? ORDER BY started_ms DESC LIMIT ?", (source.id, limit)
        )
        return [MoveTask(*row) for row in rows]

    def add_move_task(self, task: MoveTask) -> None:
        """Add a move task. If the source queue then has too many move tasks, delete its oldest ones."""
        self._database.execute(
            f"INSERT INTO move_task ({TASK_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (task.id, task.source, task.source_arn, task.destination_arn, task.per_s, task.status, task.to_move, task.moved,
             task.started_ms, task.failure),
        )  # fmt: skip
        self._database.execute(
            "DELETE FROM move_task WHERE source = ?1 AND started_ms < "
            "(SELECT min(started_ms) FROM (SELECT started_ms FROM move_task WHERE source = ?1 ORDER BY started_ms DESC LIMIT ?2))",
            (task.source, MOVE_TASKS_MAX),
        )

    def change_move_task(self, task: MoveTask) -> None:
        self._database.execute(
            "UPDATE move_task SET status = ?, moved = ?, failure = ? WHERE id = ?", (task.status, task.moved, task.failure, task.id)
        )


def _queue(row: Row) -> Queue:
    return Queue(*row[:-2], *(orjson.loads(text) for text in row[-2:]))


def _dumps(value: Mapping[str, str]) -> str:
    return orjson.dumps(value).decode()
