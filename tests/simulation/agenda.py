"""What will happen, and when: two clocks and a heap."""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from corral.clock import VirtualClock


class Stuck(AssertionError):
    """Something that should go on does not."""


class Agenda:
    """Time passes only from one event to the next.

    `now` never jumps and is what processes and sockets feel; the wall clock beside it, which the core reads, may be stepped.
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
        """Let the next thing happen; False when nothing ever will."""
        if not self._events:
            return False
        when, _, what = heappop(self._events)
        self.clock.advance(when - self.now)
        self.now = when
        what()
        return True


class Waiting:
    """A value that is not there yet, for one process."""

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
    """Run a process written as a generator: it yields what it waits for. One that waits for ever is simply dropped."""

    def resume(value: Any) -> None:
        try:
            waiting = steps.send(value)
        except StopIteration:
            return
        waiting.then(resume)

    resume(None)
