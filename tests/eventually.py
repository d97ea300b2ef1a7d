"""Waiting for a condition, with a deadline; never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.005
DEADLINE_S = 30.0


def eventually(check: Callable[[], T], what: str = "", within_s: float = DEADLINE_S) -> T:
    """The first true answer of `check`, or AssertionError."""
    until = time.monotonic() + within_s
    while not (answer := check()):
        assert time.monotonic() < until, f"not within {within_s} s: {what or check.__name__}"
        time.sleep(PAUSE_S)
    return answer


async def soon(check: Callable[[], T], what: str = "", within_s: float = DEADLINE_S) -> T:
    """The same, while the event loop goes on."""
    until = time.monotonic() + within_s
    while not (answer := check()):
        assert time.monotonic() < until, f"not within {within_s} s: {what or check.__name__}"
        await asyncio.sleep(PAUSE_S)
    return answer
