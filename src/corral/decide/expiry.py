"""What a bucket's lifecycle rules do to the versions of a key and to unfinished uploads, and when.

Days are counted as S3 does: so many days after a moment, and then the next midnight UTC. A rule with a date acts on that
date; on what comes later, at the midnight after it came. A version that several rules want gone goes at the earliest time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Filter:
    prefix: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    larger_than: int | None = None  # bytes
    smaller_than: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    filter: Filter
    since_s: float  # when it was put: a date that had passed by then means at once
    days: int | None = None
    date_s: float | None = None
    lone_markers: bool = False  # ExpiredObjectDeleteMarker
    noncurrent_days: int | None = None
    newer_noncurrent: int = 0  # so many noncurrent versions are kept
    abort_days: int | None = None  # of uploads that nobody completed


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a key, as far as rules look at it."""

    id: str
    created_s: float
    size: int
    tags: Mapping[str, str]
    is_marker: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    expire: Rule | None  # the current version expires, by this rule
    drop: tuple[str, ...]  # versions that go for good
    next_s: float | None  # when time alone will change something


def midnight_after(at_s: float) -> float:
    return (at_s // DAY_S + 1) * DAY_S


def judge(
    rules: Sequence[Rule], key: str, versions: Sequence[Version], now_s: float, *, current: Version | None = None, unseen: int = 0
) -> Judgement:
    """What is to be done now with a key, whose versions come newest first; the first one is the current one.

    Of a key with very many versions these may be the oldest alone: then `current` is given, and so many newer than these are
    `unseen`. A version is noncurrent since the next newer one was made, so the first of them is not judged in that case.
    """
    expire: Rule | None = None
    drop: list[str] = []
    later: list[float] = []
    current, others = current or versions[0], versions[1:]
    if not current.is_marker:
        found = expiry(rules, key, current)
        if found is not None and found[0] <= now_s:
            expire = found[1]
        elif found is not None:
            later.append(found[0])
    for newer, (by, version) in enumerate(zip(versions, others), unseen):
        at_s = _noncurrent_expiry(rules, key, version, by.created_s, newer)
        if at_s is not None and at_s <= now_s:
            drop.append(version.id)
        elif at_s is not None:
            later.append(at_s)
    if current.is_marker and not unseen and len(drop) == len(others):
        at_s = _marker_expiry(rules, key, current)
        if at_s is not None and at_s <= now_s:
            drop.append(current.id)
        elif at_s is not None:
            later.append(at_s)
    return Judgement(expire, tuple(drop), min(later, default=None))


def expiry(rules: Iterable[Rule], key: str, version: Version) -> tuple[float, Rule] | None:
    """When the current version of a key expires, and by which rule."""
    times = ((at_s, rule) for rule in rules if _selects(rule.filter, key, version) for at_s in _times(rule, version.created_s))
    return min(times, key=lambda found: found[0], default=None)


def abortion(rules: Iterable[Rule], key: str, started_s: float) -> tuple[float, Rule] | None:
    """When an upload that is not completed is given up, and by which rule."""
    times = (
        (midnight_after(started_s + rule.abort_days * DAY_S), rule)
        for rule in rules
        if rule.abort_days is not None and key.startswith(rule.filter.prefix)
    )
    return min(times, key=lambda found: found[0], default=None)


def _times(rule: Rule, created_s: float) -> Iterator[float]:
    if rule.days is not None:
        yield midnight_after(created_s + rule.days * DAY_S)
    if rule.date_s is not None:
        yield rule.date_s if created_s < max(rule.date_s, rule.since_s) else midnight_after(created_s)


def _noncurrent_expiry(rules: Iterable[Rule], key: str, version: Version, since_s: float, newer: int) -> float | None:
    """When a noncurrent version goes that has so many newer noncurrent ones before it."""
    return min(
        (
            midnight_after(since_s + rule.noncurrent_days * DAY_S)
            for rule in rules
            if rule.noncurrent_days is not None and newer >= rule.newer_noncurrent and _selects(rule.filter, key, version)
        ),
        default=None,
    )


def _marker_expiry(rules: Iterable[Rule], key: str, marker: Version) -> float | None:
    """When a delete marker goes that hides nothing any more."""
    times: list[float] = []
    for rule in rules:
        of_all = not rule.filter.tags and rule.filter.larger_than is None and rule.filter.smaller_than is None
        if of_all and key.startswith(rule.filter.prefix):
            times += _times(rule, marker.created_s)
            if rule.lone_markers:
                times.append(midnight_after(marker.created_s))
    return min(times, default=None)


def _selects(which: Filter, key: str, version: Version) -> bool:
    return (
        key.startswith(which.prefix)
        and (which.larger_than is None or version.size > which.larger_than)
        and (which.smaller_than is None or version.size < which.smaller_than)
        and all(version.tags.get(name) == value for name, value in which.tags)
    )
