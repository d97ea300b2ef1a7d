"""Shares: how much an owner, or a share of a Batch job queue, uses of the machine, and what that means for its place in the line.

Past use decays: with the decay time D, use D seconds ago counts e (2.718) times less than use now. So an owner that has held G GPUs
for a long time has a use of G * D GPU-seconds, or G GPUs on average. Use that is one half-life old counts half.

The level of an owner is its average use, or what it holds now if this is more, divided by its weight. The owner with the lowest
level is served first. Without the second part, an owner could take all free capacity at one instant, because past use grows only
with time.

The levels of all owners that hold nothing decay by the same factor, so their order never changes. `line_level` returns a number
that stays the same while a level decays: only owners that hold something need a new number from time to time.
"""

from __future__ import annotations

from math import inf, log

from corral.model.job_line import ShareUse, decayed


def decay_of(half_life_s: float) -> float:
    """Return the decay time: use of this time ago counts e (2.718) times less."""
    return half_life_s / log(2)


def use_at(use: ShareUse, now_s: float, decay_s: float) -> ShareUse:
    """Return the use at a later time. The same amount has been held since `use.at_s`."""
    elapsed_s = now_s - use.at_s
    if elapsed_s <= 0:
        return use
    return ShareUse(use.held, decayed(use.used, use.held, elapsed_s, decay_s), now_s)


def use_after(use: ShareUse, change: float, now_s: float, decay_s: float) -> ShareUse:
    """Return the use after an owner or a share gets more, or gives some back (a negative change)."""
    at_s, used, held = use.at_s, use.used, use.held
    if now_s > at_s:
        used, at_s = decayed(used, held, now_s - at_s, decay_s), now_s
    held += change
    return ShareUse(held if held > 0 else 0.0, used, at_s)


def is_idle(use: ShareUse, now_s: float, decay_s: float) -> bool:
    """Whether nothing is held, and earlier use no longer counts."""
    return not use.held and use_at(use, now_s, decay_s).used < 1.0


def average_use(use: ShareUse, decay_s: float, now_s: float) -> float:
    """Return the average use of the past, or what is held now if this is more."""
    used, held = use.used, use.held
    if now_s > use.at_s:
        used = decayed(used, held, now_s - use.at_s, decay_s)
    average = used / decay_s
    return average if average > held else held


def line_level(use: ShareUse, weight: float, decay_s: float, now_s: float) -> float:
    """Return a number that is smaller for an owner with a lower level. It does not change while the owner holds nothing."""
    level = average_use(use, decay_s, now_s)
    return log(level / weight) + now_s / decay_s if level > 0 else -inf
