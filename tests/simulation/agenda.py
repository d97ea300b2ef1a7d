"""The agenda of future events: two clocks and a heap."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from corral.core.clock import VirtualClock


class Stuck(AssertionError):
    """The simulation made no progress."""


class Agenda:
    """Time passes only from one event to the next.

    `now` never jumps and is what processes, sockets and timeouts feel; the wall clock can be set.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, what: Callable[[], None]) -> None:
        heappush(self._events, (max(when, self.now), next(self._numbers), what))

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self.at(self.now + delay_s, what)

    def step(self) -> bool:
        """Run the next event; False if there is none."""
        if not self._events:
            return False
        when, _, what = heappop(self._events)
        self.clock.advance(when - self.now)
        self.now = when
        what()
        return True


class Waiting:
    """A value that one process waits for."""

    def __init__(self) -> None:
        self._resume: Callable[[Any], None] | None = None
        self._settled = False
        self._value: Any = None

    def settle(self, value: Any) -> None:
        if self._settled:
            return
        self._settled, self._value = True, value
        if self._resume is not None:
            self._resume(value)

    def then(self, resume: Callable[[Any], None]) -> None:
        if self._settled:
            resume(self._value)
        else:
            self._resume = resume


Steps = Generator[Waiting, Any, None]


def go(steps: Steps) -> None:
    """Run a process written as a generator: it yields the promises that it waits for. A process that waits for ever is dropped."""

    def resume(value: Any) -> None:
        try:
            waiting = steps.send(value)
        except StopIteration:
            return
        waiting.then(resume)

    resume(None)
