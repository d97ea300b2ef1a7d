"""Messages on their piles: put, taken, deleted, moved. The cost of each does not grow with the number of messages.

A standard queue is an index of its places by the time at which they become visible: messages that wait, those in flight
and delayed ones are its parts before and after the present. A FIFO queue is served by its groups (`store/groups.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from corral.database import Database, Row
from corral.model.queue import ID_STEP, Draft, Message, Place, Queue, sent_at_ms
from corral.store.tallies import NEVER_MS, Tallies

MESSAGE_COLUMNS = (
    "place.id, visible_ms, receives, receives_before, first_received_ms, message_id, sent_ms, sender, message.group_id, "
    "deduplication_id, trace, source_arn, attributes, bytes, body"
)
ANSWER_MAX_BYTES = 1024 * 1024  # in one receive; fewer messages than asked for are always allowed
DELETED_MAX_BYTES = 8 * 1024 * 1024  # in one transaction


class Messages:
    """A part of the state store: it shares the store's connection, transactions and savepoints."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.tallies = Tallies(database)
        self._last_id = 0

    def new_ids(self, now_s: float, count: int) -> range:
        """Ids for messages that are sent now, larger than all before."""
        first = max(int(now_s * 1_000_000) * ID_STEP, self._last_id + 1)
        self._last_id = first + count - 1
        return range(first, first + count)

    def put(self, queue: Queue, drafts: Sequence[Draft], ids: Sequence[int], now_ms: int) -> bool:
        """Write messages to the queue's pile; True when it was empty."""
        database, fifo = self._database, queue.is_fifo
        database.executemany(
            "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (id, draft.message_id, now_ms, draft.sender, draft.group_id, draft.deduplication_id, draft.trace,
                 draft.source_arn, draft.attributes, draft.bytes, draft.body)
                for id, draft in zip(ids, drafts)
            ],
        )  # fmt: skip
        tally = self.tallies.of(queue.pile, now_ms)
        was_empty = tally.total == 0
        places: list[tuple[int, int, int | None, str | None]] = []
        for id, draft in zip(ids, drafts):
            visible_ms = None if fifo and not draft.delay_ms else now_ms + draft.delay_ms
            places.append((queue.pile, id, visible_ms, draft.group_id if fifo else None))
            tally.add(visible_ms, 0)
            tally.sent_bytes += draft.bytes
        tally.sent += len(drafts)
        tally.used_ms = now_ms
        database.executemany("INSERT INTO place (pile, id, visible_ms, group_id) VALUES (?, ?, ?, ?)", places)
        return was_empty

    def candidates(self, queue: Queue, count: int, now_ms: int) -> list[Message]:
        """The messages of a standard queue that have waited longest, with their bodies, as far as one answer holds them."""
        rows = self._database.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM place JOIN message ON message.id = place.id "
            "WHERE pile = ? AND visible_ms <= ? ORDER BY pile, visible_ms, receives, place.id LIMIT ?",
            (queue.pile, now_ms, count),
        )
        return fitting(rows)

    def take(self, queue: Queue, found: Sequence[Message], now_ms: int, until_ms: int, task_id: str | None) -> list[Message]:
        """They are in flight from now on; `task_id` is whose program received them."""
        tally = self.tallies.of(queue.pile, now_ms)
        self._database.executemany(
            "UPDATE place SET visible_ms = ?, receives = receives + 1, first_received_ms = coalesce(first_received_ms, ?), "
            "received_ms = ?, task_id = ? WHERE pile = ? AND id = ?",
            [(until_ms, now_ms, now_ms, task_id, queue.pile, message.id) for message in found],
        )
        for message in found:
            tally.remove(message.visible_ms, message.receives)
            tally.add(until_ms, message.receives + 1)
        tally.received += len(found)
        tally.used_ms = now_ms
        return [
            Message(
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
        """No message of a standard queue becomes visible by time alone before this. None: never."""
        next_ms = self.tallies.of(queue.pile, now_ms).next_ms
        return None if next_ms == NEVER_MS else next_ms

    def place(self, pile: int, id: int) -> Place | None:
        """None when the message is not there."""
        row = self._database.execute(
            "SELECT visible_ms, receives, received_ms, group_id FROM place WHERE pile = ? AND id = ?", (pile, id)
        ).fetchone()
        return None if row is None else Place(*row)

    def drop(self, pile: int, ids: Sequence[int], now_ms: int) -> list[str]:
        """Remove messages from a pile for good; the FIFO groups that they were of. One that lies elsewhere by now stays."""
        tally, groups, gone = self.tallies.of(pile, now_ms), dict[str, None](), list[tuple[int]]()
        for id in ids:
            found = self._database.execute(
                "DELETE FROM place WHERE pile = ? AND id = ? RETURNING visible_ms, receives, group_id", (pile, id)
            ).fetchall()
            for visible_ms, receives, group in found:
                gone.append((id,))
                tally.remove(visible_ms, receives)
                if group is not None:
                    groups[group] = None
        self._database.executemany("DELETE FROM message WHERE id = ?", gone)
        return list(groups)

    def count_deleted(self, pile: int, count: int, now_ms: int) -> None:
        tally = self.tallies.of(pile, now_ms)
        tally.deleted += count
        tally.used_ms = now_ms

    def count_empty_receive(self, pile: int, now_ms: int) -> None:
        tally = self.tallies.of(pile, now_ms)
        tally.empty_receives += 1
        tally.used_ms = now_ms

    def show_from(self, pile: int, id: int, visible_ms: int, now_ms: int) -> None:
        """A message in flight becomes visible then."""
        before, tally = self.place(pile, id), self.tallies.of(pile, now_ms)
        assert before is not None
        self._database.execute("UPDATE place SET visible_ms = ? WHERE pile = ? AND id = ?", (visible_ms, pile, id))
        tally.remove(before.visible_ms, before.receives)
        tally.add(visible_ms, before.receives)

    def bury(self, source: Queue, target: Queue, message: Message, source_arn: str, id: int, now_ms: int) -> None:
        """A message goes to the dead-letter queue, with the receives it had. With the same id it is as old as it was."""
        left, tally = self.tallies.of(source.pile, now_ms), self.tallies.of(target.pile, now_ms)
        sent_ms = message.sent_ms if id == message.id else now_ms
        sql = "UPDATE message SET id = ?, sent_ms = ?, source_arn = ? WHERE id = ?"
        self._database.execute(sql, (id, sent_ms, source_arn, message.id))
        visible_ms = None if target.is_fifo else now_ms
        self._database.execute(
            "UPDATE place SET pile = ?, id = ?, visible_ms = ?, receives_before = receives_before + receives, receives = 0, "
            "received_ms = NULL, task_id = NULL WHERE pile = ? AND id = ?",
            (target.pile, id, visible_ms, source.pile, message.id),
        )
        left.remove(message.visible_ms, message.receives)
        tally.add(visible_ms, 0)
        tally.used_ms = now_ms

    # What is too old, and what nobody owns

    def expired(self, queue: Queue, now_ms: int, limit: int) -> list[int]:
        """Some of the messages past the queue's retention, the oldest first."""
        rows = self._database.execute(
            "SELECT place.id, bytes FROM place JOIN message ON message.id = place.id WHERE pile = ? AND place.id < ? "
            "ORDER BY place.id LIMIT ?",
            (queue.pile, queue.oldest_kept_id(now_ms), limit),
        )
        return _some(rows)

    def oldest_ms(self, pile: int) -> int | None:
        """When the oldest message there was sent."""
        (id,) = self._database.execute("SELECT min(id) FROM place WHERE pile = ?", (pile,)).fetchone()
        return None if id is None else sent_at_ms(id)

    def clear_pile(self, limit: int) -> bool:
        """Remove some of what lies on a pile that nobody owns. False: there is none."""
        row = self._database.execute("SELECT min(id) FROM pile WHERE owned = 0").fetchone()
        if row[0] is None:
            return False
        pile: int = row[0]
        rows = self._database.execute(
            "SELECT place.id, bytes FROM place JOIN message ON message.id = place.id WHERE pile = ? ORDER BY place.id LIMIT ?",
            (pile, limit),
        ).fetchall()
        if rows:
            ids = _some(rows)
            self._database.executemany("DELETE FROM message WHERE id = ?", [(id,) for id in ids])
            self._database.execute("DELETE FROM place WHERE pile = ? AND id <= ?", (pile, ids[-1]))
            return True
        names = self._database.execute("SELECT name FROM message_group WHERE pile = ? LIMIT ?", (pile, limit)).fetchall()
        self._database.executemany("DELETE FROM message_group WHERE pile = ? AND name = ?", [(pile, name) for (name,) in names])
        if len(names) < limit:
            self._database.execute("DELETE FROM pile WHERE id = ?", (pile,))
        return True

    def in_flight_of(self, task_id: str, now_ms: int) -> list[tuple[int, int, int]]:
        """(pile, message, visible from) of what a task's program has received and neither deleted nor lost yet."""
        return self._database.execute(
            "SELECT pile, id, visible_ms FROM place WHERE task_id = ? AND visible_ms > ? ORDER BY pile, id", (task_id, now_ms)
        ).fetchall()


def fitting(rows: Iterable[Row]) -> list[Message]:
    """As many of them as one answer holds; always one."""
    found, size = list[Message](), 0
    for message in map(Message._make, rows):
        size += message.bytes
        if found and size > ANSWER_MAX_BYTES:
            break
        found.append(message)
    return found


def _some(rows: Iterable[tuple[int, int]]) -> list[int]:
    """The first ids of (id, bytes), as many as one transaction should delete."""
    ids, size = [], 0
    for id, of_message in rows:
        ids.append(id)
        size += of_message
        if size > DELETED_MAX_BYTES:
            break
    return ids
