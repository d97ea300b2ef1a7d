"""Decides the common result of all lifecycle hooks that delay the launch or the termination of an instance."""

from __future__ import annotations

from collections.abc import Iterable

from corral.model.group import ABANDON, CONTINUE, LifecycleAction


def verdict(actions: Iterable[LifecycleAction], now_s: float) -> tuple[str | None, float | None]:
    """Return the result, and the time of the next timeout. The result is None while a hook still waits.

    A hook that has timed out counts with its default result. The result is ABANDON as soon as one hook abandons, and CONTINUE when
    all hooks continue.
    """
    deadlines: list[float] = []
    for action in actions:
        deadline_s = min(action.deadline_s, action.last_deadline_s)
        result = action.result or (action.default_result if deadline_s <= now_s else "")
        if result == ABANDON:
            return ABANDON, None
        if not result:
            deadlines.append(deadline_s)
    return (None, min(deadlines)) if deadlines else (CONTINUE, None)
