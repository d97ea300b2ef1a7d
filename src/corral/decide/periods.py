"""Periods of metrics: which there are, when they begin, and how long each can be asked for."""

from __future__ import annotations

HOUR_S = 3600
DAY_S = 86_400
SHORT = (1, 5, 10, 20, 30)
AGES = ((3 * HOUR_S, 1), (15 * DAY_S, 60), (63 * DAY_S, 300), (455 * DAY_S, 3600))  # up to which age, how fine


def is_period(period_s: int) -> bool:
    return period_s in SHORT or (period_s > 0 and period_s % 60 == 0)


def first_period(start_s: float, period_s: int, now_s: float) -> int:
    """When the first period of a request begins: the older, the coarser CloudWatch rounds down."""
    if period_s < 60:
        step_s = period_s
    else:
        step_s = next((step for age, step in AGES[1:] if now_s - start_s <= age), HOUR_S)
    return int(start_s // step_s) * step_s


def is_kept(at_s: int, period_s: int, now_s: float) -> bool:
    """Whether samples of that time can still be told apart well enough for the period."""
    step_s = next((step for age, step in AGES if now_s - at_s <= age), None)
    return step_s is not None and period_s % step_s == 0
