"""How many messages each pile has: derived from the rows, kept in memory, so that nobody has to count.

Messages become visible by time alone. A tally has a hand that stands at some instant: what becomes visible later is still
counted as in flight or delayed. Whoever looks at a tally moves its hand to the present first, which counts, by an index,
what has become visible since: each message once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from corral.database import Database
from corral.model.queue import Counts

NEVER_MS = 1 << 62
STEP_BACK_MS = 1000  # a clock that is set back further makes us count again


@dataclass(slots=True)
class Tally:
    total: int = 0
    in_flight: int = 0
    delayed: int = 0
    hand_ms: int = 0
    next_ms: int = NEVER_MS  # nothing becomes visible between the hand and this
    used_ms: int = 0
    # Since somebody last asked:
    sent: int = 0
    sent_bytes: int = 0
    received: int = 0
    deleted: int = 0
    empty_receives: int = 0

    @property
    def counts(self) -> Counts:
        return Counts(self.total - self.in_flight - self.delayed, self.in_flight, self.delayed)

    def add(self, visible_ms: int | None, receives: int, count: int = 1) -> None:
        """A message has come to lie there, or (-1) has gone."""
        self.total += count
        if visible_ms is not None and visible_ms > self.hand_ms:
            if receives:
                self.in_flight += count
            else:
                self.delayed += count
            if visible_ms < self.next_ms:
                self.next_ms = visible_ms

    def remove(self, visible_ms: int | None, receives: int) -> None:
        self.add(visible_ms, receives, -1)

    def _fields(self) -> tuple[int, ...]:
        return (self.total, self.in_flight, self.delayed, self.hand_ms, self.next_ms, self.used_ms,
                self.sent, self.sent_bytes, self.received, self.deleted, self.empty_receives)  # fmt: skip

    def _restore(self, fields: tuple[int, ...]) -> None:
        (self.total, self.in_flight, self.delayed, self.hand_ms, self.next_ms, self.used_ms,
         self.sent, self.sent_bytes, self.received, self.deleted, self.empty_receives) = fields  # fmt: skip


class Tallies:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._on_rollback = database.journal.on_rollback
        self._by_pile: dict[int, Tally] = {}

    def rebuild(self) -> None:
        """Derive them from the rows. Their hands stand at the beginning of time: the first look counts what is invisible."""
        sql = "SELECT pile, (SELECT count(*) FROM place WHERE place.pile = queue.pile) FROM queue"
        self._by_pile = {pile: Tally(total=total) for pile, total in self._database.execute(sql) if total}

    def of(self, pile: int, now_ms: int) -> Tally:
        """The tally of a pile, at the present, for somebody who is going to change it: ask before any row is changed."""
        tally = self._by_pile.get(pile)
        if tally is None:
            tally = self._by_pile[pile] = Tally(hand_ms=now_ms)
            self._on_rollback(partial(self._by_pile.pop, pile, None))
        else:
            self._on_rollback(partial(tally._restore, tally._fields()))
            if now_ms != tally.hand_ms:
                self._move_hand(pile, tally, now_ms)
        return tally

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._by_pile))

    def drop(self, pile: int) -> None:
        """Nobody asks for this pile any more."""
        tally = self._by_pile.pop(pile, None)
        if tally is not None:
            self._on_rollback(partial(self._by_pile.__setitem__, pile, tally))

    def _move_hand(self, pile: int, tally: Tally, now_ms: int) -> None:
        if tally.hand_ms == 0 or now_ms < tally.hand_ms - STEP_BACK_MS:
            tally.in_flight, tally.delayed = self._count(pile, now_ms, NEVER_MS)
        elif now_ms < tally.next_ms:
            tally.hand_ms = max(now_ms, tally.hand_ms)
            return
        else:
            in_flight, delayed = self._count(pile, tally.hand_ms, now_ms)
            tally.in_flight -= in_flight
            tally.delayed -= delayed
        tally.hand_ms = now_ms
        (next_ms,) = self._database.execute(
            "SELECT min(visible_ms) FROM place WHERE pile = ? AND visible_ms > ?", (pile, now_ms)
        ).fetchone()
        tally.next_ms = NEVER_MS if next_ms is None else next_ms

    def _count(self, pile: int, after_ms: int, until_ms: int) -> tuple[int, int]:
        """Places that become visible in that time: (in flight till then, delayed till then)."""
        row = self._database.execute(
            "SELECT total(receives > 0), count(*) FROM place WHERE pile = ? AND visible_ms > ? AND visible_ms <= ?",
            (pile, after_ms, until_ms),
        ).fetchone()
        return int(row[0]), row[1] - int(row[0])
