"""Recurring schedules, compared with a search through every minute."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.scaling.schedules import CronError, Offset, date_of, next_run, next_time, read_cron, read_schedule


def utc(at_s: float) -> float:
    return 0.0


def of(zone: str) -> Offset:
    def offset(at_s: float) -> float:
        ahead = datetime.fromtimestamp(at_s, UTC).astimezone(ZoneInfo(zone)).utcoffset()
        assert ahead is not None
        return ahead.total_seconds()

    return offset


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "cron, after, zone, expected",
    [
        ("0 9 * * *", "2026-01-01T08:59:59", "UTC", "2026-01-01T09:00:00"),
        ("0 9 * * *", "2026-01-01T09:00:00", "UTC", "2026-01-02T09:00:00"),
        ("*/15 * * * *", "2026-01-01T09:46:00", "UTC", "2026-01-01T10:00:00"),
        ("30 0 1 1,6,12 *", "2026-01-01T01:00:00", "UTC", "2026-06-01T00:30:00"),
        ("0 0 * * mon-fri", "2026-01-02T12:00:00", "UTC", "2026-01-05T00:00:00"),  # from Friday to Monday
        ("0 0 * * 7", "2026-01-02T12:00:00", "UTC", "2026-01-04T00:00:00"),  # 7 is Sunday
        ("0 0 13 * 5", "2026-01-03T00:00:00", "UTC", "2026-01-09T00:00:00"),  # the 13th, or a Friday
        ("0 0 29 2 *", "2096-03-01T00:00:00", "UTC", "2104-02-29T00:00:00"),
        ("0 0 29 2 */7", "2032-03-01T00:00:00", "UTC", "2060-02-29T00:00:00"),  # the next 29 February that is a Sunday
        ("0 9 * * *", "2026-01-01T00:00:00", "America/New_York", "2026-01-01T14:00:00"),
        ("0 9 * * *", "2026-07-01T00:00:00", "America/New_York", "2026-07-01T13:00:00"),
        ("30 2 * * *", "2026-03-08T00:00:00", "America/New_York", "2026-03-08T07:30:00"),  # 02:30 is skipped: 03:30 EDT
        ("30 1 1 11 *", "2026-10-01T00:00:00", "America/New_York", "2026-11-01T05:30:00"),  # 01:30 occurs twice: the first
        ("0 0 * * *", "2026-01-01T00:00:00", "Pacific/Kiritimati", "2026-01-01T10:00:00"),
    ],
)
def test_next_times(cron: str, after: str, zone: str, expected: str) -> None:
    offset = utc if zone == "UTC" else of(zone)
    assert next_time(read_cron(cron), at(after), offset) == at(expected)


def test_a_day_that_never_comes() -> None:
    assert next_time(read_cron("0 0 30 2 *"), at("2026-01-01T00:00:00"), utc) is None


@pytest.mark.parametrize(
    "cron, says",
    [
        ("* * * *", "4 fields"), ("60 * * * *", "minute"), ("* 24 * * *", "hour"), ("* * 0 * *", "day of month"),
        ("* * * 13 *", "month"), ("* * * * 8", "day of week"), ("a * * * *", "minute"), ("5-1 * * * *", "minute"),
        ("*/0 * * * *", "minute"), ("1, * * * *", "minute"), ("² * * * *", "minute"), ("@daily", "1 fields"),
        ("*-5 * * * *", "minute"), ("99999999999999999999 * * * *", "minute"),
    ],
)  # fmt: skip
def test_what_is_no_schedule(cron: str, says: str) -> None:
    with pytest.raises(CronError, match=says):
        read_cron(cron)


numbers = st.sampled_from(["*", "*/20", "7", "3,44", "10-12"])


@given(
    minute=numbers,
    hour=st.sampled_from(["*", "*/6", "5", "2-4"]),
    day=st.sampled_from(["*", "1", "15-17", "31"]),
    weekday=st.sampled_from(["*", "1", "mon,sat", "0-3/3"]),
    after=st.datetimes(datetime(2024, 1, 1), datetime(2026, 1, 1)),
)
def test_no_earlier_minute_matches(minute: str, hour: str, day: str, weekday: str, after: datetime) -> None:
    cron = read_cron(f"{minute} {hour} {day} * {weekday}")
    start_s = after.replace(tzinfo=UTC).timestamp()
    found = next_time(cron, start_s, utc)
    assert found is not None and found > start_s and found % 60 == 0
    here = after.replace(second=0, microsecond=0, tzinfo=UTC) + timedelta(minutes=1)
    for _ in range(2000):
        matches = cron.has_day(here.day, here.isoweekday() % 7) and here.hour in cron.hours and here.minute in cron.minutes
        assert not matches or found <= here.timestamp()
        if here.timestamp() == found:
            assert matches
            break
        here += timedelta(minutes=1)


@given(st.dates())
def test_dates(day) -> None:
    number = (day - datetime(1970, 1, 1).date()).days
    if number >= 0:
        assert date_of(number) == (day.year, day.month, day.day)


# at, rate and cron with a year


def runs(text: str, after: datetime, begin: datetime | None = None, many: int = 3) -> list[str]:
    schedule, at_s = read_schedule(text), after.replace(tzinfo=UTC).timestamp()
    begin_s, found = (begin or after).replace(tzinfo=UTC).timestamp(), []
    while len(found) < many and (next_s := next_run(schedule, at_s, begin_s, utc)) is not None:
        found.append(f"{datetime.fromtimestamp(next_s, UTC):%Y-%m-%d %H:%M:%S %a}")
        at_s = next_s
    return found


@pytest.mark.parametrize(
    "text, expected",
    [
        ("at(2026-03-01T08:00:30)", ["2026-03-01 08:00:30 Sun"]),
        ("at(2025-03-01T08:00:00)", []),
        ("rate(5 minutes)", ["2026-01-01 00:05:00 Thu", "2026-01-01 00:10:00 Thu", "2026-01-01 00:15:00 Thu"]),
        ("rate(1 day)", ["2026-01-02 00:00:00 Fri", "2026-01-03 00:00:00 Sat", "2026-01-04 00:00:00 Sun"]),
        ("cron(0 8 ? * MON-FRI *)", ["2026-01-01 08:00:00 Thu", "2026-01-02 08:00:00 Fri", "2026-01-05 08:00:00 Mon"]),
        ("cron(0 8 ? * 1 *)", ["2026-01-04 08:00:00 Sun", "2026-01-11 08:00:00 Sun", "2026-01-18 08:00:00 Sun"]),
        ("cron(0/30 0 1 JAN ? 2026-2027)", ["2026-01-01 00:30:00 Thu", "2027-01-01 00:00:00 Fri", "2027-01-01 00:30:00 Fri"]),
        ("cron(0 0 29 2 ? 2040)", ["2040-02-29 00:00:00 Wed"]),
        ("cron(0 0 1 1 ? 2030,2050)", ["2030-01-01 00:00:00 Tue", "2050-01-01 00:00:00 Sat"]),
        ("cron(0 0 1 1 ? 2020)", []),
    ],
)
def test_expressions(text: str, expected: list[str]) -> None:
    assert runs(text, datetime(2026, 1, 1)) == expected


def test_a_rate_begins_with_its_start_time() -> None:
    assert runs("rate(1 hour)", datetime(2026, 1, 1), datetime(2026, 1, 2, 0, 30), 2) == [
        "2026-01-02 00:30:00 Fri", "2026-01-02 01:30:00 Fri",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text, says",
    [
        ("0 8 * * *", "must have the form"), ("at(tomorrow)", "not a time"), ("at(2026-02-30T00:00:00)", "not a valid time"),
        ("rate(0 minutes)", "not a rate"), ("rate(5 weeks)", "not a rate"), ("rate(minutes)", "not a rate"),
        ("cron(0 8 * * *)", "5 fields"), ("cron(0 8 * * * *)", "must be ?"), ("cron(0 8 ? * ? *)", "must be ?"),
        ("cron(0 8 L * ? *)", "day of month"), ("cron(0 8 ? * 2#1 *)", "day of week"), ("cron(0 8 ? * 0 *)", "day of week"),
        ("cron(0 8 1 * ? 1900)", "year"),
    ],
)  # fmt: skip
def test_what_is_no_expression(text: str, says: str) -> None:
    with pytest.raises(CronError, match=re.escape(says)):
        read_schedule(text)
