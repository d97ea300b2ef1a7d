"""The order in which claims are served."""

from __future__ import annotations

from corral.model.placement import Rank


def rank(since_s: float, priority: int = 0) -> Rank:
    """The key that is stored with a claim and sorts a queue: higher priority first, then oldest first.

    A queue compares keys and knows nothing else of them, so a new rule of order changes this function alone.
    """
    return (-priority, since_s)
