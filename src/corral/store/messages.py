"""Messages of queues: add, receive, delete and move. The cost of each operation does not depend on the length of the queue.

A pile is the set of a queue's messages. A purge gives the queue a new pile. Each message has two rows. The row in `message` has
the content, and changes only if the message moves to a dead-letter queue. The row in `place` has the pile and the time at which the
message becomes visible, and changes with each receive. For a standard queue, an index sorts the places by this time. If the
time has passed, the message can be received. Otherwise it is in flight or delayed. For FIFO queues, see `store/message_groups.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from corral.core.database import Database, Row
from corral.model.queue import ID_STEP, MessageDraft, MessageState, Queue, QueueMessage, sent_at_ms
from corral.model.sqs_limits import RECEIVE_MAX_BYTES
from corral.store.queue_counters import NEVER_MS, QueueCounters

MESSAGE_COLUMNS = (
    "place.id, visible_ms, receives, receives_before, first_received_ms, message_id, sent_ms, sender, message.group_id, "
    "deduplication_id, trace, source_arn, attributes, bytes, body"
)
WAKES_MAX = 64  # how many arrivals of messages in an empty pile are remembered for each pile
PILES_MAX = 1_000  # piles whose arrivals are remembered
FIRST_RECEIVES_MAX = 1_000  # tasks whose first receive is remembered
DELETED_MAX_BYTES = 8 * 1024 * 1024  # bytes that one transaction deletes


class Dropped(NamedTuple):
    """The message groups and the tasks of deleted messages."""

    groups: list[str]  # message groups of a FIFO queue
    tasks: list[str]  # tasks that received the messages


class HeldMessages(NamedTuple):
    """The messages of one queue that a task has received and that are in flight."""

    queue: str
    messages: int
    until_ms: int  # when the last of them becomes visible again


class Messages:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.counters = QueueCounters(database)
        self._last_id = 0
        self._wakes: dict[int, list[tuple[int, str]]] = {}  # pile → the last arrivals in the empty pile: (time in ms, sender)
        self.on_wake: Callable[[], object] | None = None  # called after a commit that put messages into an empty pile
        self._first_receives: dict[str, int] = {}  # task id → when it received its first message, in ms; the oldest task is first

    def new_ids(self, now_s: float, count: int) -> range:
        """New message ids. They are larger than all earlier ids."""
        first = max(int(now_s * 1_000_000) * ID_STEP, self._last_id + 1)
        self._last_id = first + count - 1
        return range(first, first + count)

    def put(self, queue: Queue, drafts: Sequence[MessageDraft], ids: Sequence[int], now_ms: int) -> bool:
        """Add messages to the queue's pile. Returns True if the pile was empty before."""
        database, fifo = self._database, queue.is_fifo
        database.executemany(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (id, draft.message_id, now_ms, draft.sender, draft.group_id, draft.deduplication_id, draft.trace,
                 draft.source_arn, draft.attributes, draft.bytes, draft.body)
                for id, draft in zip(ids, drafts)
            ],
        )  # fmt: skip
        counter = self.counters.of(queue.pile, now_ms)
        was_empty = counter.total == 0
        places: list[tuple[int, int, int | None, str | None]] = []
        for id, draft in zip(ids, drafts):
            visible_ms = None if fifo and not draft.delay_ms else now_ms + draft.delay_ms
            places.append((queue.pile, id, visible_ms, draft.group_id if fifo else None))
            counter.add(visible_ms, 0)
            counter.sent_bytes += draft.bytes
        counter.sent += len(drafts)
        counter.used_ms = now_ms
        database.executemany("INSERT INTO place (pile, id, visible_ms, group_id) VALUES (?, ?, ?, ?)", places)
        if was_empty and drafts:
            database.undo_log.on_commit(partial(self._remember_wake, queue.pile, now_ms, drafts[0].sender))
        return was_empty

    def _remember_wake(self, pile: int, now_ms: int, sender: str) -> None:
        wakes = self._wakes.setdefault(pile, [])
        wakes.append((now_ms, sender))
        del wakes[:-WAKES_MAX]
        if len(self._wakes) > PILES_MAX:
            del self._wakes[next(iter(self._wakes))]
        if self.on_wake is not None:
            self.on_wake()

    def wakes(self, pile: int) -> list[tuple[int, str]]:
        """The last arrivals of messages in the empty pile since the start of the server: (time in ms, sender), oldest first."""
        return list(self._wakes.get(pile, ()))

    def _remember_first_receive(self, task_id: str, now_ms: int) -> None:
        self._first_receives.setdefault(task_id, now_ms)
        if len(self._first_receives) > FIRST_RECEIVES_MAX:
            del self._first_receives[next(iter(self._first_receives))]

    def first_receive_ms(self, task_id: str) -> int | None:
        """When a task received its first message; None if the server does not remember it."""
        return self._first_receives.get(task_id)

    def candidates(self, queue: Queue, count: int, now_ms: int) -> list[QueueMessage]:
        """The visible messages of a standard queue that have waited longest, with bodies, up to the size of one response."""
        rows = self._database.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM place JOIN message ON message.id = place.id "
            "WHERE pile = ? AND visible_ms <= ? ORDER BY pile, visible_ms, receives, place.id LIMIT ?",
            (queue.pile, now_ms, count),
        )
        return fit_response(rows)

    def peek(self, queue: Queue, count: int, now_ms: int) -> list[QueueMessage]:
        """The oldest messages of a queue, in whatever state, with bodies, up to the size of one response."""
        rows = self._database.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM place JOIN message ON message.id = place.id "
            "WHERE pile = ? AND place.id >= ? ORDER BY place.id LIMIT ?",
            (queue.pile, queue.oldest_kept_id(now_ms), count),
        )
        return fit_response(rows)

    def mark_received(
        self, queue: Queue, found: Sequence[QueueMessage], now_ms: int, until_ms: int, task_id: str | None
    ) -> list[QueueMessage]:
        """Mark messages as in flight until `until_ms`. `task_id` is the task that received them."""
        counter = self.counters.of(queue.pile, now_ms)
        for some in _in_tens([message.id for message in found]):
            self._database.execute(
                "UPDATE place SET visible_ms = ?, receives = receives + 1, first_received_ms = coalesce(first_received_ms, ?), "
                f"received_ms = ?, task_id = ? WHERE pile = ? AND id IN ({_marks(some)})",
                (until_ms, now_ms, now_ms, task_id, queue.pile, *some),
            )
        counter.receive([(message.visible_ms, message.receives) for message in found], until_ms)
        counter.received += len(found)
        counter.used_ms = now_ms
        if task_id is not None and task_id not in self._first_receives:
            self._database.undo_log.on_commit(partial(self._remember_first_receive, task_id, now_ms))
        return [
            QueueMessage(
                message.id,
                until_ms,
                message.receives + 1,
                message.receives_before,
                message.first_received_ms or now_ms,
                *message[5:],
            )
            for message in found
        ]

    def next_visible_ms(self, queue: Queue, now_ms: int) -> int | None:
        """A lower bound of the time at which the next message becomes visible; None if none is in flight or delayed.

        Only for standard queues. A later request, such as ChangeMessageVisibility, can make a message visible earlier.
        """
        next_ms = self.counters.of(queue.pile, now_ms).next_ms
        return None if next_ms == NEVER_MS else next_ms

    def first_visible_ms(self, queue: Queue, now_ms: int) -> int | None:
        """When the message of a standard queue that has been visible longest became visible; None if no message is visible."""
        row = self._database.execute(
            "SELECT min(visible_ms) FROM place WHERE pile = ? AND visible_ms <= ?", (queue.pile, now_ms)
        ).fetchone()
        return row[0] if row[0] is None else int(row[0])

    def message_state(self, pile: int, id: int) -> MessageState | None:
        row = self._database.execute(
            "SELECT visible_ms, receives, received_ms, group_id, task_id FROM place WHERE pile = ? AND id = ?", (pile, id)
        ).fetchone()
        return None if row is None else MessageState(*row)

    def drop(self, pile: int, ids: Sequence[int], now_ms: int) -> Dropped:
        """Delete messages of a pile. Messages that were moved to another pile are not deleted."""
        counter = self.counters.of(pile, now_ms)
        groups, tasks = dict[str, None](), dict[str, None]()
        for some in _in_tens(ids):
            found = self._database.execute(
                f"SELECT id, visible_ms, receives, group_id, task_id FROM place WHERE pile = ? AND id IN ({_marks(some)})",
                (pile, *some),
            ).fetchall()
            gone = [row[0] for row in found]
            self._database.execute(f"DELETE FROM place WHERE pile = ? AND id IN ({_marks(gone)})", (pile, *gone))
            self._database.execute(f"DELETE FROM message WHERE id IN ({_marks(gone)})", gone)
            for _, visible_ms, receives, group, task_id in found:
                counter.add(visible_ms, receives, -1)
                if group is not None:
                    groups[group] = None
                if task_id is not None:
                    tasks[task_id] = None
        return Dropped(list(groups), list(tasks))

    def count_deleted(self, pile: int, count: int, now_ms: int) -> None:
        counter = self.counters.of(pile, now_ms)
        counter.deleted += count
        counter.used_ms = now_ms

    def count_empty_receive(self, pile: int, now_ms: int) -> None:
        counter = self.counters.of(pile, now_ms)
        counter.empty_receives += 1
        counter.used_ms = now_ms

    def set_visible_from(self, pile: int, id: int, visible_ms: int, now_ms: int) -> None:
        """Set the time at which an in-flight message becomes visible."""
        before, counter = self.message_state(pile, id), self.counters.of(pile, now_ms)
        assert before is not None
        self._database.execute("UPDATE place SET visible_ms = ? WHERE pile = ? AND id = ?", (visible_ms, pile, id))
        counter.remove(before.visible_ms, before.receives)
        counter.add(visible_ms, before.receives)

    def move_to_dead_letters(
        self, source: Queue, target: Queue, message: QueueMessage, source_arn: str, id: int, now_ms: int
    ) -> None:
        """Move a message to its dead-letter queue. It keeps its receive count. It keeps its age only if `id` is its present id."""
        source_counter, counter = self.counters.of(source.pile, now_ms), self.counters.of(target.pile, now_ms)
        sent_ms = message.sent_ms if id == message.id else now_ms
        sql = "UPDATE message SET id = ?, sent_ms = ?, source_arn = ? WHERE id = ?"
        self._database.execute(sql, (id, sent_ms, source_arn, message.id))
        visible_ms = None if target.is_fifo else now_ms
        self._database.execute(
            "UPDATE place SET pile = ?, id = ?, visible_ms = ?, receives_before = receives_before + receives, receives = 0, "
            "received_ms = NULL, task_id = NULL WHERE pile = ? AND id = ?",
            (target.pile, id, visible_ms, source.pile, message.id),
        )
        source_counter.remove(message.visible_ms, message.receives)
        counter.add(visible_ms, 0)
        counter.used_ms = now_ms

    # Expired messages, and piles of purged or deleted queues

    def expired(self, queue: Queue, now_ms: int, limit: int) -> list[int]:
        """The ids of up to `limit` messages that are older than the queue's retention. The oldest message is first."""
        rows = self._database.execute(
            "SELECT place.id, bytes FROM place JOIN message ON message.id = place.id WHERE pile = ? AND place.id < ? "
            "ORDER BY place.id LIMIT ?",
            (queue.pile, queue.oldest_kept_id(now_ms), limit),
        )
        return _fit_transaction(rows)

    def oldest_ms(self, pile: int) -> int | None:
        """The time at which the oldest message of a pile was sent; None if the pile is empty."""
        (id,) = self._database.execute("SELECT min(id) FROM place WHERE pile = ?", (pile,)).fetchone()
        return None if id is None else sent_at_ms(id)

    def clear_pile(self, limit: int) -> bool:
        """Delete up to `limit` rows of a pile that belongs to no queue. Returns False if there is no such pile."""
        row = self._database.execute("SELECT min(id) FROM pile WHERE owned = 0").fetchone()
        if row[0] is None:
            return False
        pile: int = row[0]
        rows = self._database.execute(
            "SELECT place.id, bytes FROM place JOIN message ON message.id = place.id WHERE pile = ? ORDER BY place.id LIMIT ?",
            (pile, limit),
        ).fetchall()
        if rows:
            ids = _fit_transaction(rows)
            self._database.executemany("DELETE FROM message WHERE id = ?", [(id,) for id in ids])
            self._database.execute("DELETE FROM place WHERE pile = ? AND id <= ?", (pile, ids[-1]))
            return True
        names = self._database.execute("SELECT name FROM message_group WHERE pile = ? LIMIT ?", (pile, limit)).fetchall()
        self._database.executemany("DELETE FROM message_group WHERE pile = ? AND name = ?", [(pile, name) for (name,) in names])
        if len(names) < limit:
            self._database.execute("DELETE FROM pile WHERE id = ?", (pile,))
        return True

    def held_by(self, task_id: str, now_ms: int) -> int:
        """How many messages the task has received that are still in flight. Messages of purged and deleted queues do not count."""
        (count,) = self._database.execute(
            "SELECT count(*) FROM place JOIN queue ON queue.pile = place.pile WHERE task_id = ? AND visible_ms > ?",
            (task_id, now_ms),
        ).fetchone()
        return int(count)

    def held_by_each(self, task_ids: Iterable[str], now_ms: int) -> dict[str, list[HeldMessages]]:
        """The messages that tasks hold in flight, by task. Tasks that hold none are left out."""
        found: dict[str, list[HeldMessages]] = {}
        for task_id in task_ids:
            rows = self._database.execute(
                "SELECT queue.name, count(*), max(visible_ms) FROM place JOIN queue ON queue.pile = place.pile "
                "WHERE task_id = ? AND visible_ms > ? GROUP BY queue.id ORDER BY queue.name",
                (task_id, now_ms),
            ).fetchall()
            if rows:
                found[task_id] = [HeldMessages(*row) for row in rows]
        return found


def fit_response(rows: Iterable[Row]) -> list[QueueMessage]:
    """The first messages that fit into one response. The result has at least one message, if there is any."""
    found, size = list[QueueMessage](), 0
    for message in map(QueueMessage._make, rows):
        size += message.bytes
        if found and size > RECEIVE_MAX_BYTES:
            break
        found.append(message)
    return found


def _in_tens(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Split ids into groups of at most ten. One statement per group is faster than one per id.

    A request names at most ten messages. Larger groups would fill the cache of prepared statements, because each number of ids
    needs its own statement.
    """
    return (ids[at : at + 10] for at in range(0, len(ids), 10))


def _marks(ids: Sequence[int]) -> str:
    return ", ".join("?" * len(ids))


def _fit_transaction(rows: Iterable[tuple[int, int]]) -> list[int]:
    """The first ids of (id, bytes) rows, up to the number of bytes that one transaction deletes."""
    ids, size = [], 0
    for id, message_bytes in rows:
        ids.append(id)
        size += message_bytes
        if size > DELETED_MAX_BYTES:
            break
    return ids
