"""Waiting for a condition, with a deadline; never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PAUSE_S = 0.005
PAUSE_MAX_S = 0.3
DEADLINE_S = 30.0


def eventually(check: Callable[[], T], what: str = "", within_s: float = DEADLINE_S) -> T:
    """The first true answer of `check`, or AssertionError."""
    since = time.monotonic()
    while not (answer := check()):
        time.sleep(_pause(since, within_s, what or getattr(check, "__name__", "")))
    return answer


async def soon(check: Callable[[], T], what: str = "", within_s: float = DEADLINE_S) -> T:
    """The same, while the event loop goes on."""
    since = time.monotonic()
    while not (answer := check()):
        await asyncio.sleep(_pause(since, within_s, what or getattr(check, "__name__", "")))
    return answer


def _pause(since: float, within_s: float, what: str) -> float:
    """A sixth of the time waited so far: a check that asks a server takes CPU time away from that server."""
    waited_s = time.monotonic() - since
    assert waited_s < within_s, f"not within {within_s} s: {what}"
    return min(max(waited_s / 6, PAUSE_S), PAUSE_MAX_S)
