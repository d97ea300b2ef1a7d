"""Converts timestamps. Corral uses float seconds since the epoch. In requests and responses, AWS uses three formats, which are
named unixtimestamp, rfc822 and iso8601.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from corral.aws.wire_errors import ParseError, WrongResult
from corral.model.http_dates import http_date, parse_http_date

HEADER_TIMESTAMP_FORMAT = "rfc822"  # the default for headers
TEXT_TIMESTAMP_FORMAT = "iso8601"  # the default for paths, query strings, forms and XML
EPOCH_MIN_S = -62135596800.0  # year 1; every timestamp between the two limits can be converted to a datetime
EPOCH_MAX_S = 253402300799.999  # year 9999


def seconds_from_number(value: float) -> float:
    """Return a number of seconds as a timestamp. Raises a ParseError if it is outside the years 1 to 9999."""
    if not EPOCH_MIN_S <= value <= EPOCH_MAX_S:  # also refuses NaN
        raise ParseError.wrong_type(f"{value} is not a timestamp between the years 1 and 9999")
    return float(value)


def seconds_from_text(text: str, form: str) -> float:
    """Parse a timestamp that was sent as text: in a header, a path, a query string, a form, XML or a JSON string."""
    try:
        if form == "unixtimestamp":
            return seconds_from_number(float(text))
        stamp = parse_http_date(text) if form == "rfc822" else datetime.fromisoformat(text)
        return seconds_from_number((stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)).timestamp())
    except (ValueError, TypeError, OverflowError, IndexError):  # the email package raises all of these exceptions
        raise ParseError.wrong_type(f"not a timestamp in the format {form}") from None


def seconds_from_result(value: Any) -> int | float:
    """Convert a timestamp in a handler's result to seconds, and round it to milliseconds as AWS does."""
    if value.__class__ is float:
        return _to_ms(value)
    if isinstance(value, datetime):
        value = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongResult(f"a timestamp must be seconds or a datetime, not {type(value).__name__}")
    return value if isinstance(value, int) else _to_ms(value)


def _to_ms(seconds: float) -> float:
    return round(seconds * 1000) / 1000  # twice as fast as round(seconds, 3)


def text_from_seconds(seconds: int | float, form: str) -> str:
    if form == "unixtimestamp":
        return str(seconds)
    if form == "rfc822":
        return http_date(int(seconds // 1))
    stamp = datetime.fromtimestamp(seconds, UTC)  # the text of a float always has milliseconds, as on AWS: 2026-01-01T00:00:00.000Z
    return stamp.isoformat(timespec="seconds" if seconds.__class__ is int else "milliseconds").replace("+00:00", "Z")
