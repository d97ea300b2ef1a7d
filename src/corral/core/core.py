"""Runs commands on a store, which is a SQLite database. `Core.transact` runs several commands in one transaction and commits it.

A command is a function, for example the handler of a request. `core/transactions.py` describes reconcilers and their keys.

A lane is a store with the thread that owns it: there is one lane each for state, logs and metrics.

After the commit, it returns the responses to clients and the orders to hosts, and the caller sends them. `Core` has no thread:
`server/lanes.py` calls `transact` in the thread of the lane. Tests and the simulation call it directly, with a virtual clock.
"""

from __future__ import annotations

import sqlite3
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Generic

from msgspec import Struct, field

from corral.core.clock import Clock
from corral.core.commands import Command, NeedsThread, ParkedCommands, Wait, in_turns
from corral.core.database import CommitFailed, Handover
from corral.core.errors import ApiError, ServiceUnavailable, forget_frames, internal_failure
from corral.core.ids import Ids
from corral.core.outbox import packed
from corral.core.transactions import OncePerTransaction, Reconciler, S, Sizes, Together, Tx
from corral.model.agent_protocol import HostOrders, orders_by_host
from corral.model.settings import Settings

# A transaction is bounded by time, so that requests do not wait for other work. It begins no command after COMMANDS_S. Then its
# reconcilers get RECONCILERS_MAX_S. If clients wait for this transaction or for the next one, the reconcilers get only as much time
# as the commands have taken, but at least RECONCILERS_MIN_S. One reconciler runs in any case. The next transaction continues with
# what is left. In a core without a timer, as in tests, only the number of keys is bounded.
KEEP_S = 10.0  # the stored steady time of a server that writes is at most this old
COMMANDS_S = 0.015
RECONCILERS_MIN_S = 0.003
RECONCILERS_MAX_S = 0.010
TOGETHER_MAX = 100  # the maximum number of keys that share a savepoint (see `Together`)
INSTANT_S = 1e-6  # if the clock returns the same time for two commands, their times differ by this
CLOCK_STEP_S = 1.0  # see `Core._instant`
RETRY_S = 5.0  # a reconciler that raised an exception is run again after this time


class Outcome(Struct):
    """The result of a transaction. The caller sends the responses, orders and hand-overs."""

    answers: list[tuple[Command, Any]] = field(default_factory=list)  # commands, and the response or exception of each
    orders: dict[str, HostOrders] = field(default_factory=dict)  # by host id
    # Hand-overs, and the command that sent each. The caller sends the response of a command when it has tried once to deliver
    # each hand-over of the command.
    handed: list[tuple[Handover, Command | None]] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)  # the ids of hand-overs whose rows were deleted
    faults: list[str] = field(default_factory=list)  # the tracebacks of bugs and of failed writes, for the server's log
    waiting: list[Command] = field(default_factory=list)  # the commands that raised Wait for the first time
    # Commands that wait for the result of a slow function. The caller calls the function, and then runs the command again.
    slow: list[tuple[Command, NeedsThread]] = field(default_factory=list)
    may_have_changed: bool = True  # False if all commands were read-only, no row was written and no reconciler ran
    statements: set[str] = field(default_factory=set)  # the texts of its statements, if the store notes them
    may_have_written: bool = True  # False if no row was written and no reconciler was due; values in memory may have changed


class Core(Generic[S]):
    def __init__(
        self,
        store: S,
        *,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        reconcilers: Mapping[str, Reconciler] | None = None,
        keep_time: Callable[[Tx[S]], None] | None = None,
    ) -> None:
        """`keep_time` stores the steady time for the next server. A transaction that writes calls it, at most every KEEP_S."""
        self.store = store
        self._keep_time = keep_time
        self._keep_at_s = -inf
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._reconcilers = reconcilers or {}
        self._late_kinds = {kind for kind, each in self._reconcilers.items() if isinstance(each, OncePerTransaction)}
        self._together = {kind for kind, each in self._reconcilers.items() if isinstance(each, Together)}
        self._last_s = 0.0
        self.has_threads = False  # True: the caller of `transact` calls the functions in `Outcome.slow`
        self.timer: Callable[[], float] = lambda: 0.0  # returns seconds; it bounds the length of a transaction
        self.is_awaited: Callable[[], bool] = lambda: False  # returns True if commands wait for the next transaction
        self.left: list[Command] = []  # the commands that the next transaction runs, because the time of the last one was over
        self._taken: list[Command] = []  # the commands of the last transaction; if its commit fails, each of them gets an error
        self._parked = ParkedCommands()
        self._origin = ids.hex32()
        self._last_handover = max((handover.id for handover in store.undelivered()), default=0)
        # The ids of hand-overs that were received. Other threads append them. The next transaction deletes their rows in `outbox`.
        self.delivered: deque[int] = deque()

    def next_due_s(self) -> float | None:
        """Return the time at which `transact` must be called even if no command arrives. Return None if there is no such time."""
        if self.left:
            return self._last_s
        parked_s, stored_s = self._parked.next_s(), self.store.next_due_s()
        next_s = parked_s if stored_s is None else min(parked_s, stored_s)
        return None if next_s == inf else next_s

    def transact(self, commands: Sequence[Command]) -> Outcome:
        """Run commands and due reconcilers in one transaction, and commit it.

        If the time of the transaction is over, the next one runs the other commands (`left`). If the commit fails, the result has
        only errors: one for each command.
        """
        outcome = Outcome()
        now_s, began_s = self._instant(), self.timer()
        commands_end_s = began_s + COMMANDS_S
        todo = deque((*self._parked.take_expired(now_s), *(in_turns([*self.left, *commands]) if self.left else commands)))
        self.left, self._taken = [], [*todo]
        ran: list[Command] = []
        steps = self._clock.steps
        tx = Tx(self.store, now_s, self._ids, self._settings, steps, _late_kinds=self._late_kinds, _has_threads=self.has_threads)
        fired = self._parked.take_timers(now_s)
        for key in fired:
            tx.changed(key)
        by_time = bool(fired)
        is_over: Callable[[], bool] | None = None  # whether the time of the reconcilers is over
        try:
            self.store.begin()
            while True:  # runs at least once, because reconcilers may be due although there is no command
                while todo and (not ran or self.timer() < commands_end_s):
                    command = todo.popleft()
                    ran.append(command)
                    has_results = bool(command.results)
                    self._run(tx, command, outcome)
                    if command.in_turn and command not in self._parked:
                        tx._changed.update(dict.fromkeys(command.keys))  # wake the next command that waits in turn for these keys
                    # Before the next command, so that older tasks get freed capacity first. A reconciler that needs the results of
                    # a slow function runs at once, because the next transaction does not have them.
                    if tx._marks:
                        self._reconcile_marked(tx, outcome, partial(self._is_past, inf if has_results else commands_end_s))
                    tx.now_s = self._instant()
                if tx._marks or tx._late_marks or self._is_due(now_s):
                    is_over = is_over or self._reconciler_time(tx, self.timer() - began_s, is_awaited=bool(ran))
                    by_time = self._reconcile_due(tx, outcome, now_s, is_over) or by_time
                if tx._changed:
                    woken = self._parked.take_changed(tx._changed)
                    todo += woken
                    self._taken += woken
                    tx._changed.clear()
                if not todo or self.timer() >= commands_end_s:
                    break
            for key in (*tx._marks, *tx._late_marks):
                self.store.set_due(key, now_s)
            removed = self._write_handovers(tx, outcome) if tx._handed or self.delivered else 0
            if self._keep_time is not None and now_s >= self._keep_at_s and self.store.has_written():
                self._keep_time(tx)
                self._keep_at_s = now_s + KEEP_S
            self.store.commit()
        except Exception as error:
            self._parked.set_timers([(key, now_s + RETRY_S) for key in fired])
            return self._failed(error, list(self.taken()), outcome)
        self.left = list(todo)
        self._parked.set_timers(tx._changes_later)
        outcome.orders, outcome.slow = orders_by_host(tx._orders), tx._slow
        for _ in range(removed):
            self.delivered.popleft()
        outcome.may_have_written = by_time or self.store.has_written()
        outcome.may_have_changed = outcome.may_have_written or not all(command.read_only for command in ran)
        outcome.statements = self.store.take_noted()
        return outcome

    def _run(self, tx: Tx[S], command: Command, outcome: Outcome) -> None:
        sizes = tx._sizes()
        tx.final = command.waits_until_s is not None and command.waits_until_s <= tx.now_s
        tx._command = command
        if command.results:
            tx.results |= command.results
        self.store.savepoint()
        try:
            answer = command.run(tx)
            self.store.release()
        except Wait as wait:
            if wait.keep:
                self.store.release()
            else:
                self._undo(tx, sizes)
            if not tx.final:
                if command.waits_until_s is None:
                    outcome.waiting.append(command)
                self._parked.park(command, wait)
                if wait.again_s is not None:
                    for key in wait.keys:
                        tx.changes_at(key, wait.again_s)
                return
            outcome.faults.append("a handler raised Wait after its deadline\n" + traceback.format_exc())
            answer = internal_failure()
        except NeedsThread as needed:
            self._undo(tx, sizes)
            tx._slow.append((command, needed))
            return
        except ApiError as refusal:
            self._undo(tx, sizes)
            forget_frames(refusal)
            answer = refusal
        except CommitFailed:
            raise
        except sqlite3.OperationalError as error:  # the disk is full, or an I/O error occurred
            self._undo(tx, sizes)
            outcome.faults.append(traceback.format_exc())
            answer = _not_written(error)
        except Exception:
            self._undo(tx, sizes)
            outcome.faults.append(traceback.format_exc())
            answer = internal_failure()
        finally:
            tx._command = None
        outcome.answers.append((command, answer))

    def _instant(self) -> float:
        """Return the time.

        It is later than the time that the previous call returned, so that the commands have different times in the right
        order. The only exception: if the clock was set back by CLOCK_STEP_S or more, return the time of the clock.
        """
        now_s = self._clock.now_s()
        if self._last_s - CLOCK_STEP_S < now_s <= self._last_s:
            now_s = self._last_s + INSTANT_S
        self._last_s = now_s
        return now_s

    def _is_due(self, now_s: float) -> bool:
        due_s = self.store.next_due_s()
        return due_s is not None and due_s <= now_s

    def _is_past(self, end_s: float) -> bool:
        return self.timer() >= end_s

    def _reconciler_time(self, tx: Tx[S], taken_s: float, *, is_awaited: bool) -> Callable[[], bool]:
        """Return a function that tells whether the time of the reconcilers is over. `taken_s` is the time of the commands."""
        began_s, first = self.timer(), tx._reconciles_left
        least_s = min(max(taken_s, RECONCILERS_MIN_S), RECONCILERS_MAX_S)

        def is_over() -> bool:
            if tx._reconciles_left == first:
                return False  # none has run yet
            passed_s = self.timer() - began_s
            return passed_s >= RECONCILERS_MAX_S or (passed_s >= least_s and (is_awaited or self.is_awaited()))

        return is_over

    def _reconcile_due(self, tx: Tx[S], outcome: Outcome, now_s: float, is_over: Callable[[], bool]) -> bool:
        """Run the reconcilers of marked and overdue keys until their time is over. Return whether keys were overdue.

        Reconcilers that run once per transaction are the last. If more keys are overdue than there is time for, the owners take
        turns.
        """
        found = False
        while True:
            self._reconcile_marked(tx, outcome, is_over)
            if tx._reconciles_left <= 0 or is_over():
                return found
            keys = self.store.take_due(now_s, min(TOGETHER_MAX, tx._reconciles_left), self._together)
            if not keys:
                break
            found = True
            for key in keys:
                tx._late_marks.pop(key, None)
                tx._marks[key] = None
        while tx._late_marks and tx._reconciles_left > 0 and not is_over():
            self._reconcile_next(tx, outcome, tx._late_marks)
            self._reconcile_marked(tx, outcome, is_over)
        return found

    def _reconcile_marked(self, tx: Tx[S], outcome: Outcome, is_over: Callable[[], bool]) -> None:
        while tx._marks and tx._reconciles_left > 0 and not is_over():
            self._reconcile_next(tx, outcome, tx._marks)

    def _reconcile_next(self, tx: Tx[S], outcome: Outcome, marks: dict[str, None]) -> None:
        keys = self._next_keys(marks, tx._reconciles_left)
        for key in keys:
            del marks[key]
        tx._reconciles_left -= len(keys)
        if len(keys) > 1 and self._reconcile(tx, keys) is None:
            return
        for key in keys:
            fault = self._reconcile(tx, [key])
            if fault is not None:
                outcome.faults.append(fault)
                self.store.set_due(key, tx.now_s + RETRY_S)

    def _next_keys(self, marks: Mapping[str, None], limit: int) -> list[str]:
        """Return the keys that the next savepoint handles: the first key, and more keys of its reconciler if that is `Together`."""
        first = next(iter(marks))
        kind = first.partition(":")[0]
        if kind not in self._together:
            return [first]
        return list(islice((key for key in marks if key.partition(":")[0] == kind), min(limit, TOGETHER_MAX)))

    def _reconcile(self, tx: Tx[S], keys: Sequence[str]) -> str | None:
        """Run the reconcilers of keys in one savepoint. If one raises an exception, undo the effects of all, and return the
        traceback. Otherwise return None.
        """
        sizes = tx._sizes()
        self.store.savepoint()
        try:
            for key in keys:
                kind, _, name = key.partition(":")
                self._reconcilers[kind](tx, name)
            self.store.release()
        except CommitFailed:
            raise
        except Exception:
            self._undo(tx, sizes)
            return traceback.format_exc()
        return None

    def _write_handovers(self, tx: Tx[S], outcome: Outcome) -> int:
        """Write the hand-overs of this transaction, and delete the rows of `delivered` hand-overs. Return how many of `delivered`
        the caller must remove after the commit.
        """
        outcome.finished = [self.delivered[at] for at in range(len(self.delivered))]
        removed = len(outcome.finished)
        self.store.drop_handovers(outcome.finished)
        for lane, kind, key, payload, command in packed(tx._handed):
            self._last_handover += 1
            handover = Handover(self._last_handover, self._origin, lane, kind, key, payload)
            outcome.finished += self.store.write_handover(handover)
            outcome.handed.append((handover, command))
        return removed

    def _undo(self, tx: Tx[S], sizes: Sizes) -> None:
        self.store.rollback_to_savepoint()
        tx._truncate(sizes)

    def _failed(self, error: Exception, commands: Sequence[Command], outcome: Outcome) -> Outcome:
        """Roll the transaction back, and respond to each of its commands: to those that only read with their result, to all others
        with an error.
        """
        self.store.rollback()
        outcome.faults.append("".join(traceback.format_exception(error)))
        for command in commands:
            if command in self._parked:
                self._parked.remove(command)
        is_full, failed = isinstance(error, CommitFailed | sqlite3.OperationalError), _not_written(error)
        answers = [(each, self._answer_of_read(each, failed) if is_full else failed) for each in dict.fromkeys(commands)]
        return Outcome(answers, faults=outcome.faults)

    def _answer_of_read(self, command: Command, failed: ApiError) -> Any:
        """Run a command again, alone. Return its result or its refusal. Return `failed` if it has written rows, waits, or fails.

        A commit without written rows succeeds on a full disk. So reads are answered there.
        """
        tx = Tx(self.store, self._instant(), self._ids, self._settings, _late_kinds=self._late_kinds)
        tx.final = False
        try:
            self.store.begin()
            sizes = tx._sizes()
            answer = command.run(tx)
            if not self.store.has_written() and tx._sizes() == sizes:
                self.store.commit()
                return answer
        except ApiError as refusal:
            failed = refusal
        except Exception:  # it waits, needs a thread, or cannot write; the transaction that failed has reported other errors
            pass
        self.store.rollback()
        return failed

    def taken(self) -> Iterable[Command]:
        """Return the commands of the last transaction. If `transact` raises an exception, the caller responds to all of them."""
        return dict.fromkeys(self._taken)

    def release(self) -> None:
        """Run all parked commands for the last time in the next transaction. The server calls this before it exits."""
        self._parked.expire_all()


def _not_written(error: Exception) -> ApiError:
    return ServiceUnavailable(f"The request was not executed, because the state could not be written ({error}).")
