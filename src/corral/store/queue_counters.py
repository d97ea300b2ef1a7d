"""Message counts of each pile, in memory.

The counts are derived from the rows at start and updated with each change, so no request has to count rows. But messages also
become visible as time passes. So each counter is valid for one instant, `as_of_ms`. Messages that become visible after this
instant count as in flight or delayed. Each use first advances the counter to the present time: it counts, with an index, the
messages that have become visible since `as_of_ms`. So each message is counted only once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct

from corral.core.database import Database
from corral.model.queue import Counts

NEVER_MS = 1 << 62
# The value of `used_ms` after a start, when the time of the last use is not known. The first report to CloudWatch replaces it by
# the present time.
SINCE_START_MS = -1
EMPTY_AT_START_MAX = 1000  # if there are more queues, metrics of empty queues are not published after a start
STEP_BACK_MS = 1000  # if the clock is set back by more, all messages in flight or delayed are counted again


class QueueCounter(Struct):
    total: int = 0
    in_flight: int = 0
    delayed: int = 0
    as_of_ms: int = 0
    next_ms: int = NEVER_MS  # no message becomes visible between `as_of_ms` and this time
    used_ms: int = 0  # when the queue was last used; `queues.py` publishes metrics of an empty queue for ACTIVE_MS after that
    # Events since the last report to CloudWatch
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    deleted: int = 0
    empty_receives: int = 0

    @property
    def counts(self) -> Counts:
        return Counts(self.total - self.in_flight - self.delayed, self.in_flight, self.delayed)

    def add(self, visible_ms: int | None, receives: int, count: int = 1) -> None:
        """Count a message that was added to the pile. With `count` -1, subtract a message that was removed."""
        self.total += count
        if visible_ms is not None and visible_ms > self.as_of_ms:
            if receives:
                self.in_flight += count
            else:
                self.delayed += count
            if visible_ms < self.next_ms:
                self.next_ms = visible_ms

    def remove(self, visible_ms: int | None, receives: int) -> None:
        self.add(visible_ms, receives, -1)

    def receive(self, found: Sequence[tuple[int | None, int]], until_ms: int) -> None:
        """Count messages of the pile as in flight until `until_ms`. `found` has their earlier `visible_ms` and `receives`."""
        hidden = [each for each in found if each[0] is not None and each[0] > self.as_of_ms]  # only if the clock was set back
        for visible_ms, receives in hidden:
            self.remove(visible_ms, receives)
        self.total -= len(found) - len(hidden)
        self.add(until_ms, 1, len(found))

    def _fields(self) -> tuple[int, ...]:
        return (self.total, self.in_flight, self.delayed, self.as_of_ms, self.next_ms, self.used_ms,
                self.sent, self.sent_bytes, self.received, self.deleted, self.empty_receives)  # fmt: skip

    def _restore(self, fields: tuple[int, ...]) -> None:
        (self.total, self.in_flight, self.delayed, self.as_of_ms, self.next_ms, self.used_ms,
         self.sent, self.sent_bytes, self.received, self.deleted, self.empty_receives) = fields  # fmt: skip


class QueueCounters:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._on_rollback = database.undo_log.on_rollback
        self._by_pile: dict[int, QueueCounter] = {}

    def rebuild(self) -> None:
        """Count the rows. `as_of_ms` is 0, so the first use of a counter counts the messages in flight and delayed.

        Empty queues have a counter too, because an alarm may wait for the metrics of a queue that became empty before the start.
        """
        sql = "SELECT pile, (SELECT count(*) FROM place WHERE place.pile = queue.pile) FROM queue"
        totals = self._database.execute(sql).fetchall()
        with_empty = len(totals) <= EMPTY_AT_START_MAX
        self._by_pile = {pile: QueueCounter(total=total, used_ms=SINCE_START_MS) for pile, total in totals if total or with_empty}

    def of(self, pile: int, now_ms: int) -> QueueCounter:
        """The counter of a pile, advanced to the present time. Call this before you change a row, because it may count rows."""
        counter = self._by_pile.get(pile)
        if counter is None:
            counter = self._by_pile[pile] = QueueCounter(as_of_ms=now_ms)
            self._on_rollback(partial(self._by_pile.pop, pile, None))
        else:
            self._on_rollback(partial(counter._restore, counter._fields()))
            if now_ms != counter.as_of_ms:
                self._advance(pile, counter, now_ms)
        return counter

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._by_pile))

    def drop(self, pile: int) -> None:
        """Remove the counter of a pile that is no longer used."""
        counter = self._by_pile.pop(pile, None)
        if counter is not None:
            self._on_rollback(partial(self._by_pile.__setitem__, pile, counter))

    def _advance(self, pile: int, counter: QueueCounter, now_ms: int) -> None:
        if counter.as_of_ms == 0 or now_ms < counter.as_of_ms - STEP_BACK_MS:
            counter.in_flight, counter.delayed = self._count(pile, now_ms, NEVER_MS)
        elif now_ms < counter.next_ms:
            counter.as_of_ms = max(now_ms, counter.as_of_ms)
            return
        else:
            in_flight, delayed = self._count(pile, counter.as_of_ms, now_ms)
            counter.in_flight -= in_flight
            counter.delayed -= delayed
        counter.as_of_ms = now_ms
        (next_ms,) = self._database.execute(
            "SELECT min(visible_ms) FROM place WHERE pile = ? AND visible_ms > ?", (pile, now_ms)
        ).fetchone()
        counter.next_ms = NEVER_MS if next_ms is None else next_ms

    def _count(self, pile: int, after_ms: int, until_ms: int) -> tuple[int, int]:
        """How many messages in flight and how many delayed messages become visible after `after_ms`, up to `until_ms`."""
        row = self._database.execute(
            "SELECT total(receives > 0), count(*) FROM place WHERE pile = ? AND visible_ms > ? AND visible_ms <= ?",
            (pile, after_ms, until_ms),
        ).fetchone()
        return int(row[0]), row[1] - int(row[0])
