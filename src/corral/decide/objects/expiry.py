"""Evaluate the lifecycle rules of an S3 bucket: which versions of a key expire, which uploads are aborted, and when.

S3 adds the rule's number of days to the creation time and rounds up to the next midnight UTC. This module does the same. A rule
with a date expires the versions that exist at that date, or when the rule is stored, if that is later. Each version that is created
afterwards expires at the next midnight after its creation. If several rules match, the earliest time counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

DAY_S = 86_400.0
LAST_MIDNIGHT_S = 253_402_214_400.0  # in the year 9999, the last year that Python's dates support


class LifecycleFilter(Struct, frozen=True):
    prefix: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    larger_than: int | None = None  # bytes
    smaller_than: int | None = None


class LifecycleRule(Struct, frozen=True):
    id: str
    filter: LifecycleFilter
    since_s: float  # when the rule was stored
    days: int | None = None
    date_s: float | None = None
    lone_markers: bool = False  # ExpiredObjectDeleteMarker: remove a delete marker that is the only version left
    noncurrent_days: int | None = None
    newer_noncurrent: int = 0  # the number of newest noncurrent versions to keep
    abort_days: int | None = None  # unfinished uploads are aborted after this many days


class CandidateVersion(Struct, frozen=True):
    """The properties of an object version that a rule can test."""

    id: str
    created_s: float
    size: int
    tags: Mapping[str, str]
    is_marker: bool = False


class ExpiryDecision(Struct, frozen=True):
    expire: LifecycleRule | None  # the rule that expires the current version now; None: it does not expire now
    drop: tuple[str, ...]  # ids of versions to delete permanently
    next_s: float | None  # when to evaluate again, if nothing else changes


def midnight_after(at_s: float) -> float:
    return min((at_s // DAY_S + 1) * DAY_S, LAST_MIDNIGHT_S)


def evaluate_key(
    rules: Sequence[LifecycleRule],
    key: str,
    versions: Sequence[CandidateVersion],
    now_s: float,
    *,
    current: CandidateVersion | None = None,
    unseen: int = 0,
) -> ExpiryDecision:
    """Decide which versions of a key expire now. `versions` are sorted newest first, so the first is the current version.

    For a key with very many versions, the caller may pass only the oldest ones. The caller then also passes the current version as
    `current`, and the number of versions that are newer than `versions` as `unseen`. In this case, the first of `versions` is not
    evaluated. It became noncurrent when the next newer version was created, and the caller did not pass that version.
    """
    expire: LifecycleRule | None = None
    drop: list[str] = []
    later: list[float] = []
    current, others = current or versions[0], versions[1:]
    if not current.is_marker:
        found = expiry_time(rules, key, current)
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
    return ExpiryDecision(expire, tuple(drop), min(later, default=None))


def expiry_time(rules: Iterable[LifecycleRule], key: str, version: CandidateVersion) -> tuple[float, LifecycleRule] | None:
    """Return when the current version of a key expires, and the rule that expires it. None means never."""
    times = ((at_s, rule) for rule in rules if _matches(rule.filter, key, version) for at_s in _times(rule, version.created_s))
    return min(times, key=lambda found: found[0], default=None)


def abort_time(rules: Iterable[LifecycleRule], key: str, started_s: float) -> tuple[float, LifecycleRule] | None:
    """Return when an unfinished upload is aborted, and the rule that aborts it. None means never."""
    times = (
        (midnight_after(started_s + rule.abort_days * DAY_S), rule)
        for rule in rules
        if rule.abort_days is not None and key.startswith(rule.filter.prefix)
    )
    return min(times, key=lambda found: found[0], default=None)


def _times(rule: LifecycleRule, created_s: float) -> Iterator[float]:
    if rule.days is not None:
        yield midnight_after(created_s + rule.days * DAY_S)
    if rule.date_s is not None:
        yield rule.date_s if created_s < max(rule.date_s, rule.since_s) else midnight_after(created_s)


def _noncurrent_expiry(
    rules: Iterable[LifecycleRule], key: str, version: CandidateVersion, since_s: float, newer: int
) -> float | None:
    """Return when a noncurrent version is deleted. None means never.

    `since_s` is when the version became noncurrent. `newer` is the number of newer noncurrent versions.
    """
    return min(
        (
            midnight_after(since_s + rule.noncurrent_days * DAY_S)
            for rule in rules
            if rule.noncurrent_days is not None and newer >= rule.newer_noncurrent and _matches(rule.filter, key, version)
        ),
        default=None,
    )


def _marker_expiry(rules: Iterable[LifecycleRule], key: str, marker: CandidateVersion) -> float | None:
    """Return when a delete marker is removed that is the only remaining version of its key. None means never."""
    times: list[float] = []
    for rule in rules:
        of_all = not rule.filter.tags and rule.filter.larger_than is None and rule.filter.smaller_than is None
        if of_all and key.startswith(rule.filter.prefix):
            times += _times(rule, marker.created_s)
            if rule.lone_markers:
                times.append(midnight_after(marker.created_s))
    return min(times, default=None)


def _matches(which: LifecycleFilter, key: str, version: CandidateVersion) -> bool:
    return (
        key.startswith(which.prefix)
        and (which.larger_than is None or version.size > which.larger_than)
        and (which.smaller_than is None or version.size < which.smaller_than)
        and all(version.tags.get(name) == value for name, value in which.tags)
    )
