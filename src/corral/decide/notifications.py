"""Which of a bucket's notifications an event is for, and which of them may not stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True, slots=True)
class Notification:
    id: str
    target: str  # the ARN of who is told
    events: tuple[str, ...]  # "s3:ObjectCreated:Put", "s3:ObjectCreated:*"
    prefix: str = ""
    suffix: str = ""


def matching(notifications: Iterable[Notification], event: str, key: str) -> list[Notification]:
    """Those who want to hear of `event` ("s3:ObjectCreated:Put") on an object of this key."""
    return [
        each
        for each in notifications
        if key.startswith(each.prefix) and key.endswith(each.suffix) and any(_covers(wanted, event) for wanted in each.events)
    ]


def ambiguous(notifications: Sequence[Notification]) -> bool:
    """Whether one event could be for two of them: S3 takes no such configuration."""
    return any(
        _overlap(one.prefix, other.prefix, str.startswith)
        and _overlap(one.suffix, other.suffix, str.endswith)
        and any(_covers(a, b) or _covers(b, a) for a in one.events for b in other.events)
        for one, other in combinations(notifications, 2)
    )


def _covers(wanted: str, event: str) -> bool:
    return wanted == event or (wanted.endswith("*") and event.startswith(wanted[:-1]))


def _overlap(one: str, other: str, has: Callable[[str, str], bool]) -> bool:
    return has(one, other) or has(other, one)
