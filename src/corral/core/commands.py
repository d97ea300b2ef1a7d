"""Commands: functions that the core (`core.Core`) runs in a transaction, for example the handlers of requests.

A command that has no response yet raises `Wait` with some keys. A key names a thing that can change, for example `stack:ID`. The
core parks the command. It runs the command again when one of these keys changes (`Tx.changed`), and at the command's deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

from msgspec import Struct

from corral.core.errors import forget_frames


class Wait(Exception):
    """Raised by a handler that has no response yet. The core runs the handler again when one of `keys` changes, and for the last
    time at `until_s`.

    If `again_s` is set, the core also runs the handler again at that time. If `in_turn` is True and several commands wait for the
    same key, the core runs them one after the other: a command runs only after the previous command has a response. So one new
    message of a queue does not wake a thousand idle workers. If `keep` is True, the core commits the rows that the handler has
    written, although the handler has no response yet.
    """

    def __init__(
        self, keys: Iterable[str], until_s: float, *, again_s: float | None = None, in_turn: bool = False, keep: bool = False
    ) -> None:
        super().__init__("waiting")
        self.keys = tuple(dict.fromkeys(keys))  # remove duplicates, because a request can name a task twice
        self.until_s = until_s
        self.again_s = again_s
        self.in_turn = in_turn
        self.keep = keep


class NeedsThread(Exception):
    """Raised by `Tx.result_of`, if no other thread has called the slow function yet. A reconciler passes it to `Tx.in_thread`.

    If a command raises it, the core runs the command again when the function has a result. `name` identifies the result.
    """

    def __init__(self, name: Hashable, function: Callable[[], Any]) -> None:
        super().__init__("a slow function must be called in another thread")
        self.name = name
        self.function = function

    def call(self) -> dict[Hashable, Any]:
        """Call the function. Return the result or the exception, by its name (`Command.results`)."""
        forget_frames(self)
        try:
            return {self.name: self.function()}
        except Exception as error:
            forget_frames(error)
            return {self.name: error}


class Command(Struct, eq=False):
    """A function to run in a transaction, and the callback for its result."""

    run: Callable[[Any], Any]  # its argument is the transaction (`core.Tx`)
    done: Callable[[Any], None]  # called with the result, or with an exception
    gone: Callable[[], bool] = lambda: False  # returns True if the client has disconnected; then the core does not run it again
    on_wait: Callable[[], None] | None = None  # called when the command begins to wait
    read_only: bool = False  # True if the command changes nothing
    waits_until_s: float | None = None  # the deadline; set when the command raises Wait for the first time
    keys: tuple[str, ...] = ()  # the keys for which the command waits
    in_turn: bool = False  # see `Wait`
    owner: str = ""  # the owner of the caller; if a transaction cannot run all commands, owners take turns. Empty: Corral itself
    results: dict[Hashable, Any] = {}  # the results and exceptions of the slow functions that it needs, by their names


def in_turns(commands: Sequence[Command]) -> list[Command]:
    """Sort commands so that their owners take turns. The commands of an owner keep their order."""
    counts: dict[str, int] = {}
    turns = []
    for command in commands:
        turns.append(counts.get(command.owner, 0))
        counts[command.owner] = turns[-1] + 1
    return [commands[at] for at in sorted(range(len(commands)), key=turns.__getitem__)]


class ParkedCommands:
    def __init__(self) -> None:
        self._commands: dict[Command, None] = {}
        self._by_key: dict[str, dict[Command, None]] = {}
        self._expiries: list[tuple[float, int, Command]] = []  # a heap; its entries for commands that no longer wait are ignored
        self._numbers = count()
        # A timer is a time at which a key counts as changed. A timer can only be set while a command waits for the key.
        self._timers: list[tuple[float, str]] = []  # a heap
        self._timer_s: dict[str, float] = {}  # key → time of its next timer; all other entries of `_timers` are ignored

    def __contains__(self, command: Command) -> bool:
        return command in self._commands

    def next_s(self) -> float:
        """Return the time of the next deadline or timer. Return infinity if there is none."""
        while self._expiries and self._expiries[0][2] not in self._commands:
            heappop(self._expiries)
        return min((heap[0][0] for heap in (self._expiries, self._timers) if heap), default=inf)

    def park(self, command: Command, wait: Wait) -> None:
        if command.waits_until_s is None:
            command.waits_until_s = wait.until_s
        command.keys, command.in_turn = wait.keys, wait.in_turn
        self._commands[command] = None
        heappush(self._expiries, (command.waits_until_s, next(self._numbers), command))
        for key in wait.keys:
            self._by_key.setdefault(key, {})[command] = None

    def remove(self, command: Command) -> Command:
        del self._commands[command]
        for key in command.keys:
            waiting = self._by_key[key]
            del waiting[command]
            if not waiting:
                del self._by_key[key]
        return command

    def take_changed(self, keys: Iterable[str]) -> list[Command]:
        """Remove and return the commands that wait for these keys. If commands wait in turn for a key, take only the first."""
        woken: dict[Command, None] = {}
        for key in keys:
            gone = []
            for command in self._by_key.get(key, ()):
                if command.gone():
                    gone.append(command)
                    continue
                woken[command] = None
                if command.in_turn:
                    break
            for command in gone:
                self.remove(command)
                woken.pop(command, None)
        return [self.remove(command) for command in woken]

    def take_expired(self, now_s: float) -> list[Command]:
        """Remove and return the commands whose deadline has passed."""
        expired = []
        while self._expiries and self._expiries[0][0] <= now_s:
            command = heappop(self._expiries)[2]
            if command in self._commands:
                self.remove(command)
                if not command.gone():
                    expired.append(command)
        return expired

    def expire_all(self) -> None:
        for command in self._commands:
            command.waits_until_s = 0.0
            heappush(self._expiries, (0.0, next(self._numbers), command))

    def set_timers(self, times: Iterable[tuple[str, float]]) -> None:
        for key, at_s in times:
            if key in self._by_key and at_s < self._timer_s.get(key, inf):
                self._timer_s[key] = at_s
                heappush(self._timers, (at_s, key))

    def take_timers(self, now_s: float) -> list[str]:
        """Remove the timers whose time has come, and return their keys."""
        keys = []
        while self._timers and self._timers[0][0] <= now_s:
            at_s, key = heappop(self._timers)
            if self._timer_s.get(key) == at_s:
                del self._timer_s[key]
                keys.append(key)
        return keys
