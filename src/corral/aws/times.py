"""Timestamps: float seconds since the epoch inside, three formats on the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any

from corral.aws.faults import Misfit, WrongResult

EPOCH_MIN_S = -62135596800.0  # year 1: what a datetime can hold, so that no service need check
EPOCH_MAX_S = 253402300799.999  # year 9999


def seconds_from_number(value: float) -> float:
    """A JSON number of seconds."""
    if not EPOCH_MIN_S <= value <= EPOCH_MAX_S:  # also refuses NaN
        raise Misfit.type(f"{value} is not a timestamp between the years 1 and 9999")
    return float(value)


def seconds_from_text(text: str, form: str) -> float:
    """A timestamp in a header, a label, a query string, a form, or a JSON string whose model says so."""
    try:
        if form == "unixtimestamp":
            return seconds_from_number(float(text))
        stamp = parsedate_to_datetime(text) if form == "rfc822" else datetime.fromisoformat(text)
        return (stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):  # the email package lets all of these out
        raise Misfit.type(f"not a timestamp in the format {form}") from None


def seconds_from_result(value: Any) -> int | float:
    """What a handler gave, to the millisecond, as AWS does."""
    if value.__class__ is float:
        return _to_ms(value)
    if isinstance(value, datetime):
        value = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongResult(f"a timestamp must be seconds or a datetime, not {type(value).__name__}")
    return value if isinstance(value, int) else _to_ms(value)


def _to_ms(seconds: float) -> float:
    return round(seconds * 1000) / 1000  # twice as quick as round(seconds, 3)


def text_from_seconds(seconds: int | float, form: str) -> str:
    """The same in one of the text formats."""
    if form == "unixtimestamp":
        return str(seconds)
    stamp = datetime.fromtimestamp(seconds, UTC)
    if form == "rfc822":
        return format_datetime(stamp.replace(microsecond=0), usegmt=True)
    return stamp.isoformat(timespec="milliseconds" if stamp.microsecond else "seconds").replace("+00:00", "Z")
