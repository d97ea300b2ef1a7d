"""Hand-overs: a change in one store causes a change in another store exactly once, even if Corral crashes.

Each store (state.db, logs.db, metrics.db) has one thread that runs all its transactions. A store and its thread are a lane. A
hand-over is a message from one lane to another lane:

1. `Tx.hand_over` writes a row into the sender's table `outbox`, in the transaction that makes the first change.
2. After the commit, `Delivery` sends the hand-over to the receiving lane.
3. `receive` makes the second change. In the same transaction it writes the id of the hand-over into the table `inbox`, so that a
   second delivery is a no-op.
4. The sender deletes the row of its `outbox` in its next transaction.
5. With a later hand-over, the sender also sends the ids of the rows that it has deleted. The receiver deletes these ids from its
   `inbox`.

If Corral crashes, rows are left in an `outbox`. The next start delivers them again. A failed delivery is retried, and does not
delay other deliveries.

This module starts no thread and reads no clock. Its callers do: `server/lanes.py`, and the simulation in the tests.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from msgspec import Struct

from corral.core.commands import Command
from corral.core.core import Core, Outcome
from corral.core.database import CommitFailed, Handover
from corral.core.transactions import OwnedStore, Receiver, Tx

REMOVE_S = 1.0  # if no transaction has deleted the outbox rows of received hand-overs in this time, one is started for them
RETRY_MIN_S = 1.0  # the pause before the first retry of a delivery; each further pause is twice as long, up to RETRY_MAX_S
RETRY_MAX_S = 60.0

log = logging.getLogger("corral")
Done = Callable[[Any], None]  # called with the result, or with an exception


def receive(tx: Tx[Any], receivers: Mapping[str, Receiver], handover: Handover, finished: Iterable[Handover]) -> None:
    """Apply a hand-over in the receiving lane, unless it was applied before.

    `finished` are earlier hand-overs whose rows the sender has deleted. Their inbox entries are no longer needed.
    """
    tx.store.forget_received(finished)
    if tx.store.note_received(handover):
        for payload in orjson.loads(handover.payload):
            receivers[handover.kind](tx, payload)


def forget_finished(stores: Sequence[OwnedStore]) -> None:
    """Delete the inbox entries of hand-overs that are in no `outbox`. Such hand-overs cannot be delivered again.

    Call this before any lane runs.
    """
    undelivered = [handover for store in stores for handover in store.undelivered()]
    for store in stores:
        store.begin()
        try:
            store.forget_received_except(undelivered)
            store.commit()
        except (CommitFailed, sqlite3.OperationalError) as error:  # the disk is full: the next start retries
            store.rollback()
            log.warning("could not delete inbox entries of finished hand-overs: %s", error)


class PendingDelivery(Struct):
    handover: Handover
    tries: int = 0  # number of failed attempts
    error: str = ""


class DelayedResponse(Struct):
    """The response of a command that has hand-overs. It is sent when the first delivery attempt of each hand-over has ended."""

    value: Any
    untried: int  # the number of hand-overs whose first delivery attempt has not ended


class Delivery:
    """Delivers the hand-overs of one sending lane, until their rows are deleted."""

    def __init__(
        self,
        core: Core[Any],
        send: Callable[[Handover, list[Handover], Done], None],
        later: Callable[[float, Callable[[], None]], object],
        wake: Callable[[], None],
    ) -> None:
        """`send` runs `receive` in the receiving lane. `later` calls a function after some seconds.

        `wake` starts a transaction in the sending lane.
        """
        self._core = core
        self._send = send
        self._later = later
        self._wake = wake
        self._unfinished: dict[int, PendingDelivery] = {}
        # Receiving lane → hand-overs whose outbox rows are deleted. The lane must still delete their inbox entries.
        self._finished: dict[str, list[Handover]] = {}
        self._responses: dict[Command, DelayedResponse] = {}
        # Command → its hand-overs that have not been sent. Each is sent after the first delivery attempt of the previous one.
        self._later_parts: dict[Command, deque[Handover]] = {}
        self._will_wake = False

    def start(self) -> None:
        """Deliver the hand-overs that an earlier process did not deliver."""
        for handover in self._core.store.undelivered():
            self._begin(handover, None)

    def deliver(self, outcome: Outcome) -> list[tuple[Command, Any]]:
        """Send the hand-overs of a transaction. Return the responses of commands without hand-overs, which can be sent now."""
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
                self._responses[command] = DelayedResponse(value, untried[command])
        begun: set[Command] = set()
        for handover, command in outcome.handed:
            if command is None or handover.key is not None:
                self._begin(handover, command)
            elif command not in begun:
                begun.add(command)
                self._begin(handover, command)
            else:  # wait, so that the receiving lane can run other commands between two hand-overs
                self._later_parts.setdefault(command, deque()).append(handover)
        return [(command, value) for command, value in outcome.answers if command not in untried]

    def failing(self) -> list[dict[str, Any]]:
        """Return the hand-overs that could not be delivered yet, for `corral status`. Any thread may call this."""
        return [
            {"to": sending.handover.lane, "kind": sending.handover.kind, "tries": sending.tries, "error": sending.error}
            for sending in list(self._unfinished.values())
            if sending.tries
        ]

    def _begin(self, handover: Handover, command: Command | None) -> None:
        self._unfinished[handover.id] = sending = PendingDelivery(handover)
        self._try(sending, command)

    def _try(self, sending: PendingDelivery, command: Command | None = None) -> None:
        if sending.handover.id in self._unfinished:  # otherwise a later hand-over with the same key has replaced it
            finished = self._finished.pop(sending.handover.lane, [])
            self._send(sending.handover, finished, partial(self._tried, sending, command, finished))

    def _tried(self, sending: PendingDelivery, command: Command | None, finished: list[Handover], result: Any) -> None:
        handover = sending.handover
        if isinstance(result, BaseException):
            self._finished.setdefault(handover.lane, []).extend(finished)
            self._try_again(sending, result)
        elif handover.id in self._unfinished:
            sending.tries = 0
            self._core.delivered.append(handover.id)
            self._remove_soon()
        if command is not None and (parts := self._later_parts.get(command)):
            following = parts.popleft()
            if not parts:
                del self._later_parts[command]
            self._begin(following, command)
        if command in self._responses:
            waiting = self._responses[command]
            waiting.untried -= 1
            if not waiting.untried:
                del self._responses[command]
                command.done(waiting.value)  # also after a failed delivery: the command is committed, and the delivery is retried

    def _try_again(self, sending: PendingDelivery, error: BaseException) -> None:
        sending.tries += 1
        sending.error = str(error)
        wait_s = min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(sending.tries - 1, 10))
        log.error(
            "the hand-over '%s' to lane %s failed (try %d, next in %.0f s): %s",
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
            self._remove_soon()  # check again later, because the transaction may fail
