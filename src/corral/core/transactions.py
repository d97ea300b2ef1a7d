"""Transactions: what handlers of requests and reconcilers use to read and to change a store, which is a SQLite database (`Tx`).

A reconciler is a function that compares one thing, for example a pool, with what it should be, and changes it. The key of a
reconciler is a text such as `pool:hosts`: the name of the reconciler and the name of the thing. A reconciler runs when its key is
marked (`Tx.mark`), or at a set time (`Tx.due`). The key of a change, such as `stack:ID`, names a thing that has changed
(`Tx.changed`). Commands and reconcilers can wait for a change.

`core/core.py` runs commands and reconcilers in a transaction, and commits it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Any, Generic, Protocol, Self, TypeVar

import orjson
from msgspec import Struct, field

from corral.core.clock import NO_STEPS, WallSteps
from corral.core.commands import Command, NeedsThread
from corral.core.database import CommitFailed as CommitFailed
from corral.core.database import Handover
from corral.core.ids import Ids
from corral.core.outbox import NewHandover
from corral.model.agent_protocol import (
    AccountsOrder,
    GpuFaultOrder,
    ImagePush,
    Order,
    PauseOrder,
    SignalOrder,
    StartOrder,
    UpgradeOrder,
)
from corral.model.run import RunSpec
from corral.model.settings import Settings

MARKS_MAX_PER_TRANSACTION = 1_000  # the most reconcilers that run in a transaction


class OwnedStore(Protocol):
    """The methods of a store that the core calls."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def has_written(self) -> bool: ...
    def free_pages(self) -> None: ...
    def note_statements(self, is_on: bool) -> None: ...
    def take_noted(self) -> set[str]: ...
    def rollback(self) -> None: ...
    def savepoint(self) -> None: ...
    def release(self) -> None: ...
    def rollback_to_savepoint(self) -> None: ...
    def begin_attempt(self) -> tuple[int, int]: ...
    def end_attempt(self) -> None: ...
    def undo_attempt(self, position: tuple[int, int]) -> None: ...
    def watch(self, key: str, changed: Iterable[str]) -> None: ...
    def watchers(self, changed: str) -> Iterable[str]: ...
    def set_due(self, key: str, at_s: float) -> None: ...
    def take_due(self, now_s: float, limit: int, together: Collection[str]) -> list[str]: ...
    def next_due_s(self) -> float | None: ...
    def undelivered(self) -> list[Handover]: ...
    def write_handover(self, handover: Handover) -> list[int]: ...
    def drop_handovers(self, ids: Iterable[int]) -> None: ...
    def note_received(self, handover: Handover) -> bool: ...
    def forget_received(self, finished: Iterable[Handover]) -> None: ...
    def forget_received_except(self, undelivered: Iterable[Handover]) -> None: ...
    def reader(self) -> Self: ...
    def publish(self) -> None: ...
    def begin_reading(self) -> None: ...
    def end_reading(self) -> None: ...
    def close(self) -> None: ...


S = TypeVar("S", bound=OwnedStore)
R = TypeVar("R")
Sizes = tuple[int, int, int, int, int, int]


def _no_step() -> None:
    pass


class Tx(Struct, Generic[S]):
    """The transaction that handlers and reconcilers use.

    It has the store and the time. It collects what the core does next: reconcilers and commands to run before the commit, and
    orders and hand-overs to send after the commit.
    """

    store: S
    now_s: float  # steady time (`core/clock.py`); in the lane of metrics, wall time
    ids: Ids
    settings: Settings
    steps: WallSteps = NO_STEPS  # converts between steady time and wall time
    final: bool = True  # False if the handler may raise Wait
    step: Callable[[], None] = _no_step  # a long read calls this regularly; it raises an exception if the read must stop
    _reconciles_left: int = MARKS_MAX_PER_TRANSACTION
    _marks: dict[str, None] = field(default_factory=dict)  # the marked keys of reconcilers that run after each command
    _late_marks: dict[str, None] = field(default_factory=dict)  # the marked keys of reconcilers that run once per transaction
    _late_kinds: Collection[str] = ()  # the names of the reconcilers that run once per transaction
    _changed: dict[str, None] = field(default_factory=dict)  # the keys with which `changed` was called
    _orders: list[tuple[str, Order]] = field(default_factory=list)
    _changes_later: list[tuple[str, float]] = field(default_factory=list)  # the keys and times of `changes_at`
    _handed: list[NewHandover] = field(default_factory=list)
    _command: Command | None = None  # the command that is running; None if a reconciler is running
    _has_threads: bool = False  # see `result_of`
    results: dict[Hashable, Any] = field(default_factory=dict)  # the results and exceptions of slow functions, by their names
    _slow: list[tuple[Command, NeedsThread]] = field(default_factory=list)  # what waits for a slow function, and the function

    @property
    def wall_s(self) -> float:
        """The wall time of this transaction: for texts, and for times that a client compares with its own wall clock."""
        return self.now_s + self.steps.ahead_s

    @property
    def expiry_s(self) -> float:
        """The earlier of both times. What has a wall time is deleted by this time, so that no step deletes it too early."""
        return min(self.now_s, self.wall_s)

    def mark(self, key: str) -> None:
        """Run the reconciler of `key` in this transaction. A key is `RECONCILER:NAME`.

        The reconciler runs before the next command. A reconciler that is `OncePerTransaction` runs after the last command.
        If the time of this transaction is over, the key is due at once, and a later transaction runs the reconciler.
        """
        marks = self._late_marks if self._late_kinds and key.partition(":")[0] in self._late_kinds else self._marks
        marks[key] = None

    def due(self, key: str, at_s: float) -> None:
        """Run the reconciler of `key` at the time `at_s`. If an earlier time is already set, keep the earlier time."""
        self.store.set_due(key, at_s)

    def changed(self, key: str) -> None:
        """Run the commands that wait for `key` (`Wait`) and the reconcilers that watch it (`watch`) in this transaction."""
        self._changed[key] = None
        for reconciler in self.store.watchers(key):
            self.mark(reconciler)

    def watch(self, key: str, changed: Iterable[str]) -> None:
        """Run the reconciler of `key` whenever `Tx.changed` is called with one of the keys in `changed`, also after a restart.

        The keys in `changed` replace the keys of an earlier call. If `changed` is empty, the reconciler watches nothing any more.
        """
        self.store.watch(key, changed)

    def attempt(self, function: Callable[[], R]) -> R:
        """Call a function. If it raises an exception, undo all its effects, and raise the exception again."""
        sizes, position = self._sizes(), self.store.begin_attempt()
        try:
            result = function()
        except CommitFailed:
            raise
        except BaseException:
            self.store.undo_attempt(position)
            self._truncate(sizes)
            raise
        self.store.end_attempt()
        return result

    def result_of(self, name: Hashable, function: Callable[[], R]) -> R:
        """Return the result of a slow function, for example one that reads a large file. The function must not use the store.

        Another thread calls the function. Raise NeedsThread before that. A core that has no threads, as in tests, calls it here.
        """
        if name not in self.results and self._has_threads:
            raise NeedsThread(name, function)
        result: R | Exception = self.results[name] if name in self.results else function()
        if isinstance(result, Exception):
            raise result
        return result

    def in_thread(self, key: str, needed: NeedsThread) -> None:
        """Call a slow function in another thread after the commit. Then run the reconciler of `key`."""
        self._slow.append((Command(lambda tx: tx.mark(key), lambda _: None), needed))

    def changes_at(self, key: str, at_s: float) -> None:
        """At the time `at_s`, run the commands that wait for `key`, and the reconcilers that watch it.

        A command that begins to wait after this transaction must pass `again_s` to Wait instead.
        """
        self._changes_later.append((key, at_s))
        for reconciler in self.store.watchers(key):
            self.due(reconciler, at_s)

    def hand_over(self, lane: str, kind: str, payload: Any, *, key: str | None = None) -> None:
        """Send a payload to another lane after this transaction is committed. `kind` is the name of the receiving function.

        The receiver gets the payload exactly once, even after a crash. The client gets the response to this command after the first
        attempt to deliver the payload, even if this attempt fails. `payload` is stored as JSON. If `key` is given, the payload
        replaces an earlier payload with the same lane, kind and key that has not been received yet.
        """
        self._handed.append((lane, kind, key, orjson.dumps(payload), self._command))

    def start(self, host_id: str, start: StartOrder) -> None:
        self._orders.append((host_id, start))

    def stop(self, host_id: str, run_id: str) -> None:
        self._orders.append((host_id, run_id))

    def check(self, host_id: str, spec: RunSpec) -> None:
        """Order the agent of a host to check the health of a run.

        After a restart, the agent needs this order for each run with a health check, because it stores no health checks.
        """
        self._orders.append((host_id, spec))

    def pushed_image(self, host_id: str, pushed: ImagePush) -> None:
        """Tell the agent of a host that Corral's registry has a new image or tag. Runs that wait for it pull it at once."""
        self._orders.append((host_id, pushed))

    def order_once(self, host_id: str, order: SignalOrder | GpuFaultOrder | PauseOrder | AccountsOrder | UpgradeOrder) -> None:
        """Send an order that is not repeated if the agent of the host disconnects."""
        self._orders.append((host_id, order))

    def reset_orders(self, host_id: str) -> None:
        """Discard the earlier orders for this host.

        Call this when the host has reported all its runs. The same transaction must create all orders again that are still needed.
        """
        self._orders.append((host_id, None))

    def _sizes(self) -> Sizes:
        orders, later, handed = len(self._orders), len(self._changes_later), len(self._handed)
        return len(self._marks), len(self._late_marks), len(self._changed), orders, later, handed

    def _truncate(self, sizes: Sizes) -> None:
        """Discard the effects of a failed command, reconciler or attempt. `_sizes` returned `sizes` before it began."""
        for collected, size in zip((self._marks, self._late_marks, self._changed), sizes):
            while len(collected) > size:
                collected.popitem()
        del self._orders[sizes[3] :]
        del self._changes_later[sizes[4] :]
        del self._handed[sizes[5] :]


Reconciler = Callable[[Tx[Any], str], None]


class _Wrapped(Struct, frozen=True):
    run: Reconciler

    def __call__(self, tx: Tx[Any], name: str) -> None:
        self.run(tx, name)


class OncePerTransaction(_Wrapped, frozen=True):
    """A reconciler that runs after the last command of a transaction, and not after each command that marks its key.

    Many commands of a transaction can mark the same key, for example the reports about the tasks of a service. To reconcile a large
    service takes longer than such a command.
    """


class Together(_Wrapped, frozen=True):
    """A reconciler whose marked keys share one savepoint, because each savepoint costs time.

    If the reconciler raises an exception for one key, the core undoes the changes for all these keys. Then it runs the reconciler
    for each key again, with one savepoint per key.
    """


Receiver = Callable[[Tx[Any], Any], None]  # called once for each payload of a hand-over
