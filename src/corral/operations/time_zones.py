"""Time zones of scheduled actions."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from corral.decide.scaling.schedules import Offset

LAST_S = 253_370_764_800.0  # the beginning of the year 9999; datetime has no dates after that year


def is_time_zone(name: str) -> bool:
    return name in _names()


def offset_of(time_zone: str) -> Offset:
    """Return a function that returns the UTC offset at a time, both in seconds."""
    if time_zone == "UTC":
        return lambda at_s: 0.0
    zone = ZoneInfo(time_zone)

    def offset(at_s: float) -> float:
        ahead = datetime.fromtimestamp(min(at_s, LAST_S), UTC).astimezone(zone).utcoffset()
        return ahead.total_seconds() if ahead is not None else 0.0

    return offset


@cache
def _names() -> set[str]:
    return available_timezones()
