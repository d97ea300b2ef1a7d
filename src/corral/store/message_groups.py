"""Message groups of FIFO queues, deduplication ids, and receive attempts.

The messages of a group are received in order. While a message of a group is in flight, no later message of the group can be
received. `message_group` has one row per group that has messages. The row has the time at which the group is ready, which means
that its first message can be received. After each change of a group's messages, `update_group` must compute this time again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import orjson

from corral.model.queue import MessageDraft, Queue, QueueMessage
from corral.store.messages import MESSAGE_COLUMNS, Messages, fit_response


class MessageGroups(Messages):
    def open_groups(self, queue: Queue, drafts: Sequence[MessageDraft], now_ms: int) -> None:
        """Add rows for groups that had no messages. A group is ready at once, or when the delay of its first message ends."""
        first: dict[str | None, int] = {}
        for draft in drafts:
            first.setdefault(draft.group_id, now_ms + draft.delay_ms)
        self._database.executemany(
            "INSERT INTO message_group VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            [(queue.pile, group, ready_ms) for group, ready_ms in first.items()],
        )

    def ready_groups(self, queue: Queue, limit: int, now_ms: int) -> list[str]:
        """The names of groups that are ready. The group that has waited longest is first."""
        rows = self._database.execute(
            "SELECT name FROM message_group WHERE pile = ? AND ready_ms <= ? ORDER BY ready_ms LIMIT ?", (queue.pile, now_ms, limit)
        )
        return [name for (name,) in rows]

    def next_ready_ms(self, queue: Queue, now_ms: int) -> int | None:
        (found,) = self._database.execute(
            "SELECT min(ready_ms) FROM message_group WHERE pile = ? AND ready_ms > ?", (queue.pile, now_ms)
        ).fetchone()
        return None if found is None else int(found)

    def first_of_group(self, queue: Queue, group: str, limit: int, now_ms: int) -> list[QueueMessage]:
        """The first messages of a ready group, up to the first one that is delayed or in flight. The result includes the bodies."""
        rows = self._database.execute(
            f"SELECT {MESSAGE_COLUMNS} FROM place JOIN message ON message.id = place.id "
            "WHERE pile = ? AND place.group_id = ? ORDER BY place.id LIMIT ?",
            (queue.pile, group, limit),
        )
        found = fit_response(rows)
        return list(takewhile(lambda message: message.visible_ms is None or message.visible_ms <= now_ms, found))

    def update_group(self, pile: int, group: str, now_ms: int) -> None:
        """Compute and store when a group is ready. If it becomes ready now, the groups that are already ready are served first."""
        first = self._database.execute(
            "SELECT visible_ms FROM place WHERE pile = ? AND group_id = ? ORDER BY id LIMIT 1", (pile, group)
        ).fetchone()
        if first is None:
            self._database.execute("DELETE FROM message_group WHERE pile = ? AND name = ?", (pile, group))
            return
        self._database.execute(
            "INSERT INTO message_group VALUES (?, ?, ?) ON CONFLICT (pile, name) DO UPDATE SET ready_ms = excluded.ready_ms",
            (pile, group, max(now_ms, first[0] or 0)),
        )

    # Deduplication ids and receive attempts

    def sent_before(self, owner: int, scope: str, deduplication_id: str, now_ms: int) -> tuple[str, int] | None:
        """(SQS message id, row id) of an earlier message with this deduplication id; None if there is none or the id has expired.

        `owner` is `Queue.deduplication_owner`, or the negative number of an SNS topic. `scope` is a message group, or empty.
        """
        row: tuple[str, int] | None = self._database.execute(
            "SELECT message_id, id FROM deduplication WHERE queue = ? AND scope = ? AND deduplication_id = ? AND expires_ms > ?",
            (owner, scope, deduplication_id, now_ms),
        ).fetchone()
        return row

    def remember_sent(self, owner: int, scope: str, deduplication_id: str, message_id: str, id: int, expires_ms: int) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO deduplication VALUES (?, ?, ?, ?, ?, ?)",
            (owner, scope, deduplication_id, message_id, id, expires_ms),
        )

    def received_before(self, queue: Queue, attempt_id: str, now_ms: int) -> list[tuple[int, int]] | None:
        """(row id, receive count) of each message that a receive attempt returned; None if the attempt is unknown or expired."""
        row = self._database.execute(
            "SELECT given FROM receive_attempt WHERE queue = ? AND attempt_id = ? AND expires_ms > ?",
            (queue.id, attempt_id, now_ms),
        ).fetchone()
        return None if row is None else [(id, receives) for id, receives in orjson.loads(row[0])]

    def remember_received(self, queue: Queue, attempt_id: str, given: Sequence[tuple[int, int]], expires_ms: int) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO receive_attempt VALUES (?, ?, ?, ?)",
            (queue.id, attempt_id, orjson.dumps(given).decode(), expires_ms),
        )

    def in_flight(self, queue: Queue, given: Sequence[tuple[int, int]], now_ms: int) -> list[QueueMessage]:
        """The messages of a receive attempt that are still in flight and have not been received again."""
        found: list[QueueMessage] = []
        for id, receives in given:
            rows = self._database.execute(
                f"SELECT {MESSAGE_COLUMNS} FROM place JOIN message ON message.id = place.id "
                "WHERE pile = ? AND place.id = ? AND receives = ? AND visible_ms > ?",
                (queue.pile, id, receives, now_ms),
            )
            found += map(QueueMessage._make, rows)
        return found

    def forget_duplicates(self, now_ms: int, limit: int) -> int:
        """Delete up to `limit` expired deduplication ids and up to `limit` expired receive attempts. Return the total."""
        dropped = 0
        for table, key in (("deduplication", "queue, scope, deduplication_id"), ("receive_attempt", "queue, attempt_id")):
            dropped += self._database.execute(
                f"DELETE FROM {table} WHERE ({key}) IN "
                f"(SELECT {key} FROM {table} WHERE expires_ms <= ? ORDER BY expires_ms LIMIT ?)",
                (now_ms, limit),
            ).rowcount
        return dropped

    def next_forgotten_ms(self) -> int | None:
        """When the next deduplication id or receive attempt expires."""
        rows: list[Any] = [
            self._database.execute("SELECT min(expires_ms) FROM deduplication").fetchone()[0],
            self._database.execute("SELECT min(expires_ms) FROM receive_attempt").fetchone()[0],
        ]
        return min((at for at in rows if at is not None), default=None)
