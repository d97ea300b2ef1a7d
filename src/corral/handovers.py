"""Hand-overs between lanes: what one store causes in another happens exactly once, whatever crashes in between.

`Tx.hand_over` writes a row of the sender's `outbox` with its cause. After the commit `Delivery` gives it to the lane that it is
for. There `receive` notes it in the `inbox` in the same transaction as the effect, so that a second delivery does nothing. Then
the sender removes its row, in its next transaction, and the receiver forgets its note with the next hand-over that it gets. What
a crash left in an `outbox` is delivered again at the next start. A delivery that fails is tried again, and holds up no other.

Nothing here has a thread or reads a clock: `server/lanes.py` and the simulator bring both.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from corral.core import Command, Core, Outcome, Owned, Receiver, Tx
from corral.database import CommitFailed, Handover

REMOVE_S = 1.0  # the row of what was received goes with the next transaction; if none comes, after this time
RETRY_MIN_S = 1.0
RETRY_MAX_S = 60.0

log = logging.getLogger("corral")
Done = Callable[[Any], None]  # called with the answer, or with an exception


def receive(tx: Tx[Any], receivers: Mapping[str, Receiver], handover: Handover, finished: Iterable[Handover]) -> None:
    """In the receiving lane. `finished` are earlier ones whose rows the sender has removed."""
    tx.store.forget_received(finished)
    if tx.store.note_received(handover):
        for payload in orjson.loads(handover.payload):
            receivers[handover.kind](tx, payload)


def forget_finished(stores: Sequence[Owned]) -> None:
    """At a start, before any lane runs: whatever is in no `outbox` will not be delivered again, so no `inbox` needs to know it."""
    undelivered = [handover for store in stores for handover in store.undelivered()]
    for store in stores:
        store.begin()
        try:
            store.keep_received(undelivered)
            store.commit()
        except (CommitFailed, sqlite3.OperationalError) as error:  # the disk is full: the next start does it
            store.rollback()
            log.warning("an inbox still has notes of finished hand-overs: %s", error)


@dataclass(slots=True)
class Sending:
    handover: Handover
    tries: int = 0  # that failed
    error: str = ""


@dataclass(slots=True)
class Answer:
    """What a command is told once each of its hand-overs was received, or has failed for the first time."""

    value: Any
    untried: int


class Delivery:
    """The hand-overs of one lane, until their rows are removed."""

    def __init__(
        self,
        core: Core[Any],
        send: Callable[[Handover, list[Handover], Done], None],
        later: Callable[[float, Callable[[], None]], object],
        wake: Callable[[], None],
    ) -> None:
        """`send` has `receive` run in the lane that a hand-over is for; `wake` has our own lane run a batch."""
        self._core = core
        self._send = send
        self._later = later
        self._wake = wake
        self._unfinished: dict[int, Sending] = {}
        self._finished: dict[str, list[Handover]] = {}  # removed here; the lane that received them has not been told
        self._answers: dict[Command, Answer] = {}
        self._will_wake = False

    def start(self) -> None:
        """Deliver what an earlier life has left."""
        for handover in self._core.store.undelivered():
            self._begin(handover, None)

    def deliver(self, outcome: Outcome) -> list[tuple[Command, Any]]:
        """Send what was handed over. Returns the answers that wait for nothing."""
        for number in outcome.finished:
            if (sending := self._unfinished.pop(number, None)) is not None:
                self._finished.setdefault(sending.handover.lane, []).append(sending.handover)
        if not outcome.handed:
            return outcome.answers
        untried: dict[Command | None, int] = {}
        for _, command in outcome.handed:
            untried[command] = untried.get(command, 0) + 1
        for command, value in outcome.answers:
            if command in untried:
                self._answers[command] = Answer(value, untried[command])
        for handover, command in outcome.handed:
            self._begin(handover, command)
        return [(command, value) for command, value in outcome.answers if command not in untried]

    def failing(self) -> list[dict[str, Any]]:
        """Those that were tried in vain, for people to look at. Other threads may ask."""
        return [
            {"to": sending.handover.lane, "kind": sending.handover.kind, "tries": sending.tries, "error": sending.error}
            for sending in list(self._unfinished.values())
            if sending.tries
        ]

    def _begin(self, handover: Handover, command: Command | None) -> None:
        self._unfinished[handover.id] = sending = Sending(handover)
        self._try(sending, command)

    def _try(self, sending: Sending, command: Command | None = None) -> None:
        if sending.handover.id in self._unfinished:  # else a later one has replaced it
            finished = self._finished.pop(sending.handover.lane, [])
            self._send(sending.handover, finished, partial(self._tried, sending, command, finished))

    def _tried(self, sending: Sending, command: Command | None, finished: list[Handover], answer: Any) -> None:
        handover = sending.handover
        if isinstance(answer, BaseException):
            self._finished.setdefault(handover.lane, []).extend(finished)
            self._try_again(sending, answer)
        elif handover.id in self._unfinished:
            sending.tries = 0
            self._core.delivered.append(handover.id)
            self._remove_soon()
        if command in self._answers:
            waiting = self._answers[command]
            waiting.untried -= 1
            if not waiting.untried:
                del self._answers[command]
                command.done(waiting.value)  # its own work is committed, and what failed will be tried again

    def _try_again(self, sending: Sending, error: BaseException) -> None:
        sending.tries += 1
        sending.error = str(error)
        wait_s = min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(sending.tries - 1, 10))
        log.error(
            "%s for the lane %s was not received (try %d; the next one in %.0f s): %s",
            sending.handover.kind, sending.handover.lane, sending.tries, wait_s, error,
        )  # fmt: skip
        self._later(wait_s, partial(self._try, sending))

    def _remove_soon(self) -> None:
        if not self._will_wake:
            self._will_wake = True
            self._later(REMOVE_S, self._remove)

    def _remove(self) -> None:
        self._will_wake = False
        if self._core.delivered:
            self._wake()
            self._remove_soon()  # in case that transaction fails
