"""Lengths of time in seconds (`_S`) and milliseconds (`_MS`)."""

from __future__ import annotations

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86_400
WEEK_S = 7 * DAY_S
MINUTE_MS = 1000 * MINUTE_S
HOUR_MS = 1000 * HOUR_S
DAY_MS = 1000 * DAY_S
