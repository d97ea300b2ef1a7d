"""Find the notifications of a bucket that match an event, and notifications that overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

from msgspec import Struct


class Notification(Struct, frozen=True):
    id: str
    target: str  # the ARN of the destination
    events: tuple[str, ...]  # names or patterns, for example "s3:ObjectCreated:Put" and "s3:ObjectCreated:*"
    prefix: str = ""
    suffix: str = ""


def matching(notifications: Iterable[Notification], event: str, key: str) -> list[Notification]:
    """Return the notifications that match `event`, such as "s3:ObjectCreated:Put", on the object with this key."""
    return [
        each
        for each in notifications
        if key.startswith(each.prefix) and key.endswith(each.suffix) and any(_covers(pattern, event) for pattern in each.events)
    ]


def ambiguous(notifications: Sequence[Notification]) -> bool:
    """Whether one event could match two of these notifications. S3 refuses such a configuration."""
    return any(
        _overlap(one.prefix, other.prefix, str.startswith)
        and _overlap(one.suffix, other.suffix, str.endswith)
        and any(_covers(a, b) or _covers(b, a) for a in one.events for b in other.events)
        for one, other in combinations(notifications, 2)
    )


def _covers(pattern: str, event: str) -> bool:
    return pattern == event or (pattern.endswith("*") and event.startswith(pattern[:-1]))


def _overlap(one: str, other: str, has: Callable[[str, str], bool]) -> bool:
    return has(one, other) or has(other, one)
