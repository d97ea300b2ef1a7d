"""Parts of a date, in UTC, from seconds since the epoch. Plain arithmetic: a decision may not ask for the time."""

from __future__ import annotations

from collections.abc import Callable

DAY_S = 86_400
CYCLE_DAYS = 146_097  # of 400 years, after which the calendar repeats itself


def date_of(at_s: int) -> tuple[int, int, int]:
    """Year, month, day. Years are counted from March, so that the odd day of a leap year is the last one."""
    days = at_s // DAY_S + 719_468  # since the first of March of the year 0
    cycle, of_cycle = divmod(days, CYCLE_DAYS)
    year_of_cycle = (of_cycle - of_cycle // 1460 + of_cycle // 36_524 - of_cycle // 146_096) // 365
    of_year = of_cycle - (365 * year_of_cycle + year_of_cycle // 4 - year_of_cycle // 100)
    month_from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    return 400 * cycle + year_of_cycle + (month <= 2), month, day


CALENDAR: dict[str, Callable[[int], int]] = {
    "MINUTE": lambda at_s: at_s // 60 % 60,
    "HOUR": lambda at_s: at_s // 3600 % 24,
    "DAY": lambda at_s: (at_s // DAY_S + 3) % 7 + 1,  # Monday is 1; the epoch was a Thursday
    "DATE": lambda at_s: date_of(at_s)[2],
    "MONTH": lambda at_s: date_of(at_s)[1],
    "YEAR": lambda at_s: date_of(at_s)[0],
    "EPOCH": lambda at_s: at_s,
}
