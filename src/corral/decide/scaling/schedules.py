"""Parses schedules and finds their next time.

Auto Scaling groups have cron expressions with five fields: minute, hour, day of month, month, day of week. Application Auto Scaling
has at(TIME), rate(NUMBER UNIT), and cron(FIELDS) with a sixth field for the year.
"""

from __future__ import annotations

import re
from calendar import monthrange, timegm
from collections.abc import Callable

from msgspec import Struct

from corral.model.numbers import whole_number

DAY_S = 86_400
HORIZON_DAYS = 40 * 366  # how far the search goes: two leap days on the same weekday are at most 40 years apart (2088 and 2128)
MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
PART = re.compile(r"(\*|[a-z0-9]+)(?:-([a-z0-9]+))?(?:/([0-9]+))?")
EXPRESSION = re.compile(r"(at|rate|cron)\((.*)\)")
TIME = re.compile(r"(\d{4})-(\d{2})-(\d{2})T(\d{2}):(\d{2}):(\d{2})", re.ASCII)
UNITS_S = {"minute": 60, "minutes": 60, "hour": 3600, "hours": 3600, "day": DAY_S, "days": DAY_S}

Offset = Callable[[float], float]  # returns the UTC offset at a time, both in seconds


class CronError(ValueError):
    """The schedule is not valid. The text says why."""


class Cron(Struct, frozen=True):
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0 is Sunday
    any_day: bool  # the field of the day of the month begins with *, or is ?
    any_weekday: bool
    years: frozenset[int] | None = None  # None: every year

    def has_day(self, day: int, weekday: int) -> bool:
        """Return whether the schedule includes this day. As in cron, if both day fields restrict the days, one match is enough."""
        if self.any_day or self.any_weekday:
            return day in self.days and weekday in self.weekdays
        return day in self.days or weekday in self.weekdays

    @property
    def seconds_of_day(self) -> list[int]:
        return [hour * 3600 + minute * 60 for hour in sorted(self.hours) for minute in sorted(self.minutes)]


def read_cron(text: str) -> Cron:
    fields = text.lower().split()
    if len(fields) != 5:
        raise CronError(f"it has {len(fields)} fields, not 5: minute, hour, day of month, month, day of week")
    minutes, hours, days, months, weekdays = fields
    week = _values(weekdays, 0, 7, DAYS, 0, "day of week")
    return Cron(
        _values(minutes, 0, 59, (), 0, "minute"),
        _values(hours, 0, 23, (), 0, "hour"),
        _values(days, 1, 31, (), 0, "day of month"),
        _values(months, 1, 12, MONTHS, 1, "month"),
        frozenset(day % 7 for day in week),  # 7 is Sunday too
        days.startswith("*"),
        weekdays.startswith("*"),
    )


def next_time(cron: Cron, after_s: float, offset: Offset) -> float | None:
    """Return the first time of a schedule after `after_s`, or None if there is none, for example for 30 February.

    When daylight saving time begins, a skipped local time is moved forward by the skipped hour. When daylight saving time ends, a
    local time that occurs twice counts once.
    """
    day = int((after_s + offset(after_s)) // DAY_S)
    end_day = day + HORIZON_DAYS if cron.years is None else _first_day(max(cron.years) + 1)
    while day < end_day:
        year, month, of_month = date_of(day)
        if cron.years is not None and year not in cron.years:
            day = _first_day(min(each for each in cron.years if each > year))
            continue
        if month not in cron.months:
            day += monthrange(year, month)[1] - of_month + 1
            continue
        if cron.has_day(of_month, (day + 4) % 7):  # 1 January 1970 was a Thursday
            for second in cron.seconds_of_day:
                at_s = _instant(day * DAY_S + second, offset)
                if at_s > after_s:
                    return at_s
        day += 1
    return None


def _first_day(year: int) -> int:
    """Return the number of 1 January of a year, counted from 1 January 1970."""
    return timegm((year, 1, 1, 0, 0, 0)) // DAY_S


class Once(Struct, frozen=True):
    local_s: int  # the time in the time zone of the schedule, as seconds since 1 January 1970


class Rate(Struct, frozen=True):
    seconds: int


Schedule = Once | Rate | Cron


def read_schedule(text: str) -> Schedule:
    """Parse a schedule of Application Auto Scaling: at(…), rate(…) or cron(…)."""
    match = EXPRESSION.fullmatch(text.strip())
    if match is None:
        raise CronError("it must have the form at(yyyy-mm-ddThh:mm:ss), rate(value unit) or cron(fields)")
    kind, inner = match[1], match[2].strip()
    if kind == "at":
        return Once(_local_time(inner))
    if kind == "rate":
        return Rate(_rate_s(inner))
    return _read_cron_with_year(inner)


def next_run(schedule: Schedule, after_s: float, begin_s: float, offset: Offset) -> float | None:
    """Return the first time of a schedule after `after_s` that is not before `begin_s`, or None if there is none.

    A rate counts from `begin_s`.
    """
    if isinstance(schedule, Once):
        at_s = max(_instant(schedule.local_s, offset), begin_s)
        return at_s if at_s > after_s else None
    if isinstance(schedule, Rate):
        runs = max(0, int((after_s - begin_s) // schedule.seconds) + 1)
        return begin_s + runs * schedule.seconds
    return next_time(schedule, max(after_s, begin_s - 1), offset)


def _local_time(text: str) -> int:
    match = TIME.fullmatch(text)
    if match is None:
        raise CronError(f"'{text}' is not a time of the form yyyy-mm-ddThh:mm:ss")
    year, month, day, hour, minute, second = (int(part) for part in match.groups())
    if not (
        year >= 1970 and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1] and hour < 24 and max(minute, second) < 60
    ):
        raise CronError(f"'{text}' is not a valid time")
    return timegm((year, month, day, hour, minute, second))


def _rate_s(text: str) -> int:
    number, _, unit = text.partition(" ")
    value = whole_number(number)
    if value is None or value < 1 or unit.strip() not in UNITS_S:
        raise CronError(f"'{text}' is not a rate: use a positive number and one of {', '.join(UNITS_S)}")
    return value * UNITS_S[unit.strip()]


def _read_cron_with_year(text: str) -> Cron:
    """Parse a cron expression with a year. Weekdays are 1 to 7, and 1 is Sunday. One of the day fields must be a question mark."""
    fields = text.lower().split()
    if len(fields) != 6:
        raise CronError(f"it has {len(fields)} fields, not 6: minute, hour, day of month, month, day of week, year")
    minutes, hours, days, months, weekdays, years = fields
    if (days == "?") == (weekdays == "?"):
        raise CronError("exactly one of the day of month and the day of week must be ?")
    week = _values("*" if weekdays == "?" else weekdays, 1, 7, DAYS, 1, "day of week")
    return Cron(
        _values(minutes, 0, 59, (), 0, "minute"),
        _values(hours, 0, 23, (), 0, "hour"),
        _values("*" if days == "?" else days, 1, 31, (), 0, "day of month"),
        _values(months, 1, 12, MONTHS, 1, "month"),
        frozenset(day - 1 for day in week),
        days in ("*", "?"),
        weekdays in ("*", "?"),
        None if years == "*" else _values(years, 1970, 2199, (), 0, "year"),
    )


def date_of(day: int) -> tuple[int, int, int]:
    """Convert a number of days since 1 January 1970 to year, month and day. Unlike datetime, it accepts years above 9999."""
    cycle, in_cycle = divmod(day + 719_468, 146_097)  # counted from 1 March of the year 0; 400 years have 146,097 days
    year = (in_cycle - in_cycle // 1460 + in_cycle // 36_524 - in_cycle // 146_096) // 365
    in_year = in_cycle - (365 * year + year // 4 - year // 100)
    from_march = (5 * in_year + 2) // 153
    month = from_march + 3 if from_march < 10 else from_march - 9
    return 400 * cycle + year + (month <= 2), month, in_year - (153 * from_march + 2) // 5 + 1


def _instant(local_s: int, offset: Offset) -> float:
    """Convert a local time to UTC. If the local time occurs twice, return the first."""
    before, after = offset(local_s - DAY_S), offset(local_s + DAY_S)
    found = [local_s - ahead for ahead in (before, after) if offset(local_s - ahead) == ahead]
    return float(min(found, default=local_s - before))


def _values(text: str, least: int, most: int, names: tuple[str, ...], first_name: int, field: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = PART.fullmatch(part)
        if match is None:
            raise CronError(f"'{part}' is not valid for the {field}")
        begin, end, step = match.groups()
        every = 1 if step is None else _number(step, field)
        if begin == "*":
            if end is not None:
                raise CronError(f"'{part}' is not valid for the {field}")
            low, high = least, most
        else:
            low = _value(begin, names, first_name, field)
            high = _value(end, names, first_name, field) if end is not None else (most if step is not None else low)
        if not (least <= low <= high <= most and every >= 1):
            raise CronError(f"'{part}' is not valid for the {field}: its values must rise and be between {least} and {most}")
        found |= set(range(low, high + 1, every))
    return frozenset(found)


def _value(text: str, names: tuple[str, ...], first_name: int, field: str) -> int:
    return names.index(text) + first_name if text in names else _number(text, field)


def _number(text: str, field: str) -> int:
    number = whole_number(text)
    if number is None:
        raise CronError(f"'{text}' is not valid for the {field}")
    return number
