"""Periods of CloudWatch metrics: their valid lengths, their start times, and how long their samples are stored."""

from __future__ import annotations

from corral.model.durations import HOUR_S, MINUTE_S
from corral.model.metric import RETENTION_S

SHORT_PERIODS_S = (1, 5, 10, 20, 30)


def is_period(period_s: int) -> bool:
    return period_s in SHORT_PERIODS_S or (period_s > 0 and period_s % MINUTE_S == 0)


def first_period(start_s: float, period_s: int, now_s: float) -> int:
    """Return the start of a request's first period.

    CloudWatch rounds the start time down. If the period is shorter than a minute, it rounds to a multiple of the period. Otherwise
    the age of the start time decides: it rounds to the minute up to 15 days, to five minutes up to 63 days, and then to the hour.
    """
    if period_s < MINUTE_S:
        step_s = period_s
    else:
        step_s = next((step for step, age in RETENTION_S.items() if step >= MINUTE_S and now_s - start_s <= age), HOUR_S)
    return int(start_s // step_s) * step_s


def is_stored_for(at_s: int, period_s: int, now_s: float) -> bool:
    """Whether samples of that time are still stored at a resolution that divides the period."""
    step_s = next((step for step, age in RETENTION_S.items() if now_s - at_s <= age), None)
    return step_s is not None and period_s % step_s == 0
