"""Dates in the format of HTTP headers, for example `Fri, 02 Jan 2026 03:04:05 GMT`.

Few requests contain such a date, so `email.utils`, which takes 0.4 MB of memory, is imported only for them.
"""

from __future__ import annotations

import time
from datetime import datetime
from functools import lru_cache

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")  # not strftime, which depends on the locale
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


@lru_cache(maxsize=1024)
def http_date(seconds: int) -> str:
    """Format a time for a header. The results are cached, because many objects of a bucket were written in the same second."""
    at = time.gmtime(seconds)
    date = f"{DAYS[at.tm_wday]}, {at.tm_mday:02} {MONTHS[at.tm_mon - 1]} {at.tm_year:04}"
    return f"{date} {at.tm_hour:02}:{at.tm_min:02}:{at.tm_sec:02} GMT"


def parse_http_date(text: str) -> datetime:
    """Parse a date. Raises a ValueError, TypeError, OverflowError or IndexError if the text is not a date."""
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(text)
