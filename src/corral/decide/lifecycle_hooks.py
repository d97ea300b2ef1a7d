"""The verdict of the lifecycle hooks that wait for an instance."""

from __future__ import annotations

from collections.abc import Iterable

from corral.model.group import ABANDON, CONTINUE, LifecycleAction


def verdict(actions: Iterable[LifecycleAction], now_s: float) -> tuple[str | None, float | None]:
    """(result, time of the next timeout). No result: an action is still under way.

    A hook that has timed out has its default result. One ABANDON ends all others; CONTINUE needs every hook.
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
