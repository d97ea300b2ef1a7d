"""One thread owns a store: it takes everything that waits, runs it in one transaction, and answers after the commit.

`Core` is the mechanism without a thread: `batch` is called with commands and returns what may leave. A test or a
simulation calls it directly on a virtual clock; `server/lanes.py` puts a thread around it.
"""

from __future__ import annotations

import sqlite3
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any, Generic, Protocol, Self, TypeVar

import orjson

from corral.clock import Clock
from corral.database import CommitFailed, Handover
from corral.errors import ApiError, ServiceUnavailable, our_fault
from corral.ids import Ids
from corral.model.run import RunSpec, StartOrder
from corral.model.settings import Settings

MARKS_MAX_PER_BATCH = 1_000  # further ones become rows that are due at once: requests are answered in between
INSTANT_S = 1e-6
CLOCK_STEP_S = 1.0
RETRY_S = 5.0  # a reconciler that failed by a fault of ours is tried again


class Wait(Exception):
    """A handler has nothing to say yet: ask it again when one of `keys` changes, or for the last time at `until_s`.

    With `again_s` the keys count as changed at that time. Of those who wait `in_turn` for a key only one is asked, and the next
    once that one has got its answer: when a message comes, a thousand idle workers are not all asked. With `keep` what
    the handler has written stays, although it waits.
    """

    def __init__(
        self, keys: Iterable[str], until_s: float, *, again_s: float | None = None, in_turn: bool = False, keep: bool = False
    ) -> None:
        super().__init__("waiting")
        self.keys = tuple(dict.fromkeys(keys))  # each once: a caller may name a task twice
        self.until_s = until_s
        self.again_s = again_s
        self.in_turn = in_turn
        self.keep = keep


class Owned(Protocol):
    """A store that one core owns: what it needs of it."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def savepoint(self) -> None: ...
    def release(self) -> None: ...
    def rollback_to_savepoint(self) -> None: ...
    def set_due(self, key: str, at_s: float) -> None: ...
    def take_due(self, now_s: float, limit: int) -> list[str]: ...
    def next_due_s(self) -> float | None: ...
    def undelivered(self) -> list[Handover]: ...
    def write_handover(self, handover: Handover) -> list[int]: ...
    def drop_handovers(self, ids: Iterable[int]) -> None: ...
    def note_received(self, handover: Handover) -> bool: ...
    def forget_received(self, finished: Iterable[Handover]) -> None: ...
    def keep_received(self, undelivered: Iterable[Handover]) -> None: ...
    def reader(self) -> Self: ...
    def begin_reading(self) -> None: ...
    def end_reading(self) -> None: ...
    def close(self) -> None: ...


S = TypeVar("S", bound=Owned)
Order = StartOrder | str | RunSpec | None  # start; stop that run; check that one; what was ordered before is void
Sizes = tuple[int, int, int, int, int]


@dataclass(slots=True)
class Tx(Generic[S]):
    """What a handler or reconciler is given: the store, the time, and ways to cause something after the commit."""

    store: S
    now_s: float
    ids: Ids
    settings: Settings
    final: bool = True  # False: the handler may still answer with Wait
    _looks_left: int = MARKS_MAX_PER_BATCH
    _marks: dict[str, None] = field(default_factory=dict)
    _changed: dict[str, None] = field(default_factory=dict)
    _orders: list[tuple[str, Order]] = field(default_factory=list)
    _changes_later: list[tuple[str, float]] = field(default_factory=list)
    _handed: list[HandedOver] = field(default_factory=list)
    _command: Command | None = None  # the one that runs now; None: a reconciler does

    def mark(self, key: str) -> None:
        """The reconciler that `key` names should look at it, in this very transaction."""
        self._marks[key] = None

    def due(self, key: str, at_s: float) -> None:
        """The reconciler that `key` names should look at it then."""
        self.store.set_due(key, at_s)

    def changed(self, key: str) -> None:
        """Whoever waits for `key` is asked again."""
        self._changed[key] = None

    def changes_at(self, key: str, at_s: float) -> None:
        """Whoever waits for `key` now is asked again at that time. Those who come later know by themselves."""
        self._changes_later.append((key, at_s))

    def hand_over(self, lane: str, kind: str, payload: Any, *, key: str | None = None) -> None:
        """What another store has to do about this: once this is committed, the receiver `kind` of that lane gets the payload.

        It gets it exactly once, after any crash too, and normally before this command is answered. `payload` is plain data,
        for it is kept as JSON. With `key` it replaces an earlier one of the same lane, kind and key that was not received yet.
        """
        self._handed.append((lane, kind, key, orjson.dumps(payload), self._command))

    def start(self, host_id: str, start: StartOrder) -> None:
        self._orders.append((host_id, start))

    def stop(self, host_id: str, run_id: str) -> None:
        self._orders.append((host_id, run_id))

    def check(self, host_id: str, spec: RunSpec) -> None:
        """A living run whose health its host should look at: an agent that was started anew does not know."""
        self._orders.append((host_id, spec))

    def begin_anew(self, host_id: str) -> None:
        """What this host was told before is void: it has said what it knows, and now it is told everything again."""
        self._orders.append((host_id, None))

    def _sizes(self) -> Sizes:
        return len(self._marks), len(self._changed), len(self._orders), len(self._changes_later), len(self._handed)

    def _cut(self, sizes: Sizes) -> None:
        """Drop what a failed command caused."""
        for collected, size in zip((self._marks, self._changed), sizes):
            while len(collected) > size:
                collected.popitem()
        del self._orders[sizes[2] :]
        del self._changes_later[sizes[3] :]
        del self._handed[sizes[4] :]


Handler = Callable[[Tx[Any]], Any]
Reconciler = Callable[[Tx[Any], str], None]
Receiver = Callable[[Tx[Any], Any], None]  # of hand-overs, one payload at a time


@dataclass(slots=True, eq=False)
class Command:
    """Something to run in a transaction, and whom to tell."""

    run: Handler
    done: Callable[[Any], None]  # called with the result, or with an exception
    gone: Callable[[], bool] = lambda: False  # whoever asked waits no longer: it is not asked again
    on_wait: Callable[[], None] | None = None  # for whoever carries the answer: it will take a while
    only_looks: bool = False  # nothing is different after it
    waits_until_s: float | None = None  # set once it has answered with Wait
    keys: tuple[str, ...] = ()
    in_turn: bool = False


HandedOver = tuple[str, str, str | None, bytes, Command | None]  # lane, kind, key, payload, and the command that did it


@dataclass(slots=True)
class HostOrders:
    start: list[StartOrder] = field(default_factory=list)
    stop: list[str] = field(default_factory=list)  # run ids
    check: list[RunSpec] = field(default_factory=list)
    anew: bool = False  # orders committed before these and not sent yet must not be sent: they may be for runs given up


@dataclass(slots=True)
class Outcome:
    """What may leave after the commit."""

    answers: list[tuple[Command, Any]] = field(default_factory=list)
    orders: dict[str, HostOrders] = field(default_factory=dict)
    handed: list[tuple[Handover, Command | None]] = field(default_factory=list)  # for other lanes, and who is answered after that
    finished: list[int] = field(default_factory=list)  # hand-overs whose rows are gone
    faults: list[str] = field(default_factory=list)  # tracebacks of our own bugs, for the log
    waiting: list[Command] = field(default_factory=list)  # those that have begun to wait
    may_differ: bool = True  # something may be different after this, by commands or by time


class Core(Generic[S]):
    def __init__(
        self,
        store: S,
        *,
        settings: Settings,
        clock: Clock,
        ids: Ids,
        reconcilers: Mapping[str, Reconciler] | None = None,
    ) -> None:
        self.store = store
        self._settings = settings
        self._clock = clock
        self._ids = ids
        self._reconcilers = reconcilers or {}
        self._last_s = 0.0
        self._parked: dict[Command, None] = {}
        self._parked_by_key: dict[str, dict[Command, None]] = {}
        self._expiries: list[tuple[float, int, Command]] = []  # a heap; those no longer parked are skipped
        self._parkings = count()
        self._alarms: list[tuple[float, str]] = []  # a heap: when keys change by time alone
        self._alarm_s: dict[str, float] = {}  # the next of each key; other entries of the heap are skipped
        self._origin = ids.hex32()
        self._last_handover = max((handover.id for handover in store.undelivered()), default=0)
        self.delivered: deque[int] = deque()  # hand-overs that were received: the next batch removes them. Other threads append

    def next_due_s(self) -> float | None:
        """When `batch` should be called next if nothing arrives before."""
        while self._expiries and self._expiries[0][2] not in self._parked:
            heappop(self._expiries)
        times = [heap[0][0] for heap in (self._expiries, self._alarms) if heap]
        if (stored := self.store.next_due_s()) is not None:
            times.append(stored)
        return min(times, default=None)

    def batch(self, commands: Sequence[Command]) -> Outcome:
        """Run commands and whatever is due in one transaction; what they cause leaves only if it was committed."""
        outcome = Outcome()
        now_s = self._instant()
        todo = [*self._unpark_expired(now_s), *commands]
        ran = list(todo)  # everyone who saw what may not be committed, also those who wait on
        tx = Tx(self.store, now_s, self._ids, self._settings)
        rung = self._ring(tx)
        by_time = bool(rung)
        try:
            self.store.begin()
            while True:  # once even without a command: something is due
                for command in todo:
                    self._run(tx, command, outcome)
                    if command.in_turn and command not in self._parked:
                        tx._changed.update(dict.fromkeys(command.keys))  # the next one's turn
                    self._look_at_marks(tx, outcome)  # before the next: what was freed goes to those who wait, not to a newcomer
                    tx.now_s = self._instant()
                for key in self.store.take_due(now_s, tx._looks_left):
                    tx.mark(key)
                    by_time = True
                self._look_at_marks(tx, outcome)
                todo = self._unpark_changed(tx)
                if not todo:
                    break
                ran += todo
            removed = self._write_handovers(tx, outcome) if tx._handed or self.delivered else 0
            self.store.commit()
        except Exception as error:
            tx._changes_later = [(key, now_s + RETRY_S) for key in rung]
            self._set_alarms(tx)
            return self._failed(error, ran, outcome)
        self._set_alarms(tx)
        outcome.orders = _by_host(tx._orders)
        for _ in range(removed):
            self.delivered.popleft()
        outcome.may_differ = by_time or not all(command.only_looks for command in ran)
        return outcome

    def _run(self, tx: Tx[S], command: Command, outcome: Outcome) -> None:
        sizes = tx._sizes()
        tx.final = command.waits_until_s is not None and command.waits_until_s <= tx.now_s
        tx._command = command
        self.store.savepoint()
        try:
            answer = command.run(tx)
            self.store.release()
        except Wait as wait:
            if wait.keep:
                self.store.release()
            else:
                self._take_back(tx, sizes)
            if not tx.final:
                if command.waits_until_s is None:
                    outcome.waiting.append(command)
                self._park(tx, command, wait)
                return
            outcome.faults.append("a handler would wait past its time\n" + traceback.format_exc())
            answer = our_fault()
        except ApiError as refusal:
            self._take_back(tx, sizes)
            answer = refusal
        except CommitFailed:
            raise
        except sqlite3.OperationalError as error:  # disk full or I/O error in the middle of a command
            self._take_back(tx, sizes)
            outcome.faults.append(traceback.format_exc())
            answer = _not_written(error)
        except Exception:
            self._take_back(tx, sizes)
            outcome.faults.append(traceback.format_exc())
            answer = our_fault()
        finally:
            tx._command = None
        outcome.answers.append((command, answer))

    def _instant(self) -> float:
        """The time, a little later each time it is asked for: who came first is older, also within one batch."""
        now_s = self._clock.now_s()
        if self._last_s - CLOCK_STEP_S < now_s <= self._last_s:  # a larger step back is believed
            now_s = self._last_s + INSTANT_S
        self._last_s = now_s
        return now_s

    def _look_at_marks(self, tx: Tx[S], outcome: Outcome) -> None:
        """Look at every key that was marked, until none is left or enough has been done."""
        while tx._marks and tx._looks_left:
            key = next(iter(tx._marks))
            del tx._marks[key]
            tx._looks_left -= 1
            sizes = tx._sizes()
            self.store.savepoint()
            try:
                kind, _, name = key.partition(":")
                self._reconcilers[kind](tx, name)
                self.store.release()
            except CommitFailed:
                raise
            except Exception:
                self._take_back(tx, sizes)
                outcome.faults.append(traceback.format_exc())
                self.store.set_due(key, tx.now_s + RETRY_S)
        for key in tx._marks:
            self.store.set_due(key, tx.now_s)
        tx._marks.clear()

    def _write_handovers(self, tx: Tx[S], outcome: Outcome) -> int:
        """One row for all that a command hands to the same receiver. Returns how many of `delivered` were removed."""
        outcome.finished = [self.delivered[at] for at in range(len(self.delivered))]
        removed = len(outcome.finished)
        self.store.drop_handovers(outcome.finished)
        rows: dict[tuple[str, str, str | Command | None], tuple[list[bytes], str | None, Command | None]] = {}
        for lane, kind, key, payload, command in tx._handed:
            about = (lane, kind, command if key is None else key)
            if key is not None:
                rows.pop(about, None)
            rows.setdefault(about, ([], key, command))[0].append(payload)
        for (lane, kind, _), (payloads, key, command) in rows.items():
            self._last_handover += 1
            handover = Handover(self._last_handover, self._origin, lane, kind, key, b"[" + b",".join(payloads) + b"]")
            outcome.finished += self.store.write_handover(handover)
            outcome.handed.append((handover, command))
        return removed

    def _take_back(self, tx: Tx[S], sizes: Sizes) -> None:
        self.store.rollback_to_savepoint()
        tx._cut(sizes)

    def _failed(self, error: Exception, commands: Sequence[Command], outcome: Outcome) -> Outcome:
        """Nothing of the batch happened: say so to everyone in it."""
        self.store.rollback()
        outcome.faults.append("".join(traceback.format_exception(error)))
        for command in commands:
            if command in self._parked:
                self._unpark(command)
        return Outcome(answers=[(command, _not_written(error)) for command in dict.fromkeys(commands)], faults=outcome.faults)

    # Parked commands: those that answered with Wait.

    def _park(self, tx: Tx[S], command: Command, wait: Wait) -> None:
        if command.waits_until_s is None:
            command.waits_until_s = wait.until_s
        command.keys, command.in_turn = wait.keys, wait.in_turn
        self._parked[command] = None
        heappush(self._expiries, (command.waits_until_s, next(self._parkings), command))
        for key in wait.keys:
            self._parked_by_key.setdefault(key, {})[command] = None
            if wait.again_s is not None:
                tx.changes_at(key, wait.again_s)

    def _unpark(self, command: Command) -> Command:
        del self._parked[command]
        for key in command.keys:
            waiting = self._parked_by_key[key]
            del waiting[command]
            if not waiting:
                del self._parked_by_key[key]
        return command

    def release(self) -> None:
        """Everyone who waits is asked for the last time in the next batch: we are going down."""
        for command in self._parked:
            command.waits_until_s = 0.0
            heappush(self._expiries, (0.0, next(self._parkings), command))

    def _unpark_changed(self, tx: Tx[S]) -> list[Command]:
        woken: dict[Command, None] = {}
        for key in tx._changed:
            gone = []
            for command in self._parked_by_key.get(key, {}):
                if command.gone():
                    gone.append(command)
                    continue
                woken[command] = None
                if command.in_turn:
                    break
            for command in gone:
                self._unpark(command)
                woken.pop(command, None)
        tx._changed.clear()
        return [self._unpark(command) for command in woken]

    def _unpark_expired(self, now_s: float) -> list[Command]:
        expired = []
        while self._expiries and self._expiries[0][0] <= now_s:
            command = heappop(self._expiries)[2]
            if command in self._parked:
                self._unpark(command)
                if not command.gone():
                    expired.append(command)
        return expired

    # Keys that change by time alone, for as long as somebody waits for them.

    def _set_alarms(self, tx: Tx[S]) -> None:
        for key, at_s in tx._changes_later:
            if key in self._parked_by_key and at_s < self._alarm_s.get(key, inf):
                self._alarm_s[key] = at_s
                heappush(self._alarms, (at_s, key))

    def _ring(self, tx: Tx[S]) -> list[str]:
        rung = []
        while self._alarms and self._alarms[0][0] <= tx.now_s:
            at_s, key = heappop(self._alarms)
            if self._alarm_s.get(key) == at_s:
                del self._alarm_s[key]
                tx.changed(key)
                rung.append(key)
        return rung


def _not_written(error: Exception) -> ApiError:
    return ServiceUnavailable(f"Nothing was changed: the state could not be written ({error}).")


def _by_host(orders: Sequence[tuple[str, Order]]) -> dict[str, HostOrders]:
    found: dict[str, HostOrders] = {}
    for host_id, order in orders:
        if order is None:
            found[host_id] = HostOrders(anew=True)
            continue
        of_host = found.setdefault(host_id, HostOrders())
        if isinstance(order, StartOrder):
            of_host.start.append(order)
        elif isinstance(order, RunSpec):
            of_host.check.append(order)
        else:
            of_host.stop.append(order)
    return found
