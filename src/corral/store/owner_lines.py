"""The parts of a line of claims: the lines of one owner, and those of peers, which have equal demands and time limits.

`store/waiting_lines.py` changes them, and has the order of the lines.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter

from corral.model.placement import Claim
from corral.model.task import Demand

UNUSED = -inf  # the level of an owner who has used no GPU
OLD_MIN = 16  # a heap is built again if it has this many old entries, and more than there are others
ENDED = Claim((), "", "", Demand())  # the first claim of a line without claims


class OwnerLines:
    """The lines of one owner with the same priority."""

    __slots__ = ("level", "lines", "owner", "priority", "sorted", "used")

    def __init__(self, priority: float, owner: str, level: float) -> None:
        self.priority = priority  # negated, as in ranks
        self.owner = owner
        self.level = level
        self.used: UsedOwners | None = None  # None: the owner has used no GPU
        self.lines: dict[Line, None] = {}
        self.sorted: list[Line] | None = None  # by their first claims; None: a line is new, or has another first claim

    def in_order(self) -> list[Line]:
        """Return the lines, sorted by their first claims."""
        found = self.sorted
        if found is None:
            found = self.sorted = sorted(self.lines, key=first_claim) if len(self.lines) > 1 else list(self.lines)
        return found

    def sort_again(self, line: Line, before: Claim) -> None:
        """Move a line whose first claim `before` has left."""
        lines = self.sorted
        if line.first is ENDED:
            self.sorted = None
        elif lines is not None and len(lines) > 1:
            del lines[bisect_left(lines, before, key=first_claim)]
            insort(lines, line, key=first_claim)


class UsedOwners:
    """The groups of lines with one priority whose owners have used GPUs, by level.

    Each start and each end of a task gives an owner another level. So only the first levels are sorted, as far as callers have
    looked. A level that no owner has any more is dropped when a caller comes to it.
    """

    __slots__ = ("_first", "_most", "_others", "groups")

    def __init__(self, groups: Iterable[OwnerLines] = ()) -> None:
        self.groups: dict[float, list[OwnerLines]] = {}  # level → the groups with this level
        for group in groups:
            self.groups.setdefault(group.level, []).append(group)
            group.used = self
        self._first = sorted(self.groups)  # the first levels, sorted; each once
        self._others: list[float] = []  # a heap of the other levels
        self._most = len(self._first) + OLD_MIN  # if the lists have more levels, they are built again

    def add(self, group: OwnerLines) -> None:
        group.used = self
        equal = self.groups.get(group.level)
        if equal is None:
            self.groups[group.level] = [group]
            self._add_level(group.level)
        else:
            equal.append(group)

    def remove(self, group: OwnerLines) -> None:
        group.used = None
        equal = self.groups[group.level]
        if len(equal) > 1:
            equal.remove(group)
        else:
            del self.groups[group.level]

    def move(self, group: OwnerLines, level: float) -> None:
        """Give a group another level."""
        groups, first = self.groups, self._first
        equal = groups[group.level]
        if len(equal) > 1 or level in groups:
            self.remove(group)
            group.level = level
            self.add(group)
            return
        del groups[group.level]
        group.level = level
        groups[level] = equal
        if first and level > first[-1] and len(self._others) < self._most:
            heappush(self._others, level)  # most levels: `_add_level` would do the same
        else:
            self._add_level(level)

    def _add_level(self, level: float) -> None:
        first = self._first
        if not first or level > first[-1]:
            heappush(self._others, level)
        elif first[at := bisect_left(first, level)] != level:
            first.insert(at, level)
        if len(first) + len(self._others) > self._most:
            self._first, self._others = [], list(self.groups)
            heapify(self._others)
            self._most = 2 * len(self.groups) + OLD_MIN

    def lines(self, at: int) -> list[Line] | None:
        """Return the lines with the level that has this index in the order, sorted by their first claims.

        Return None if there are fewer levels.
        """
        groups = self.with_level(at)
        if groups is None:
            return None
        if len(groups) == 1:
            return groups[0].sorted or groups[0].in_order()
        return sorted([line for group in groups for line in group.lines], key=first_claim)

    def with_level(self, at: int) -> list[OwnerLines] | None:
        """Return the groups with the level that has this index in the order. Return None if there are fewer levels."""
        first, groups = self._first, self.groups
        while at < len(first) or self._sort_more():
            if first[at] in groups:
                return groups[first[at]]
            del first[at]
        return None

    def _sort_more(self) -> bool:
        """Sort one more level. Return False if there is none."""
        first, others = self._first, self._others
        while others:
            level = heappop(others)
            if level in self.groups and (not first or level > first[-1]):
                first.append(level)
                return True
        return False


class Line:
    """Claims with equal demands, time limits, priorities and owners, sorted by their stored ranks."""

    __slots__ = ("_begin", "_claims", "first", "group", "is_open", "peers", "shown", "shown_of")

    def __init__(self, peers: Peers, group: OwnerLines) -> None:
        self.peers = peers
        self.group = group
        self._claims: list[Claim] = []
        # The line begins here: most claims leave at the front, and moving all others in the list each time would be slow.
        self._begin = 0
        self.first = ENDED
        self.is_open = True
        self.shown: Claim | None = None  # the first claim `shown_of` with a level in its rank
        self.shown_of: Claim | None = None

    def __lt__(self, other: Line) -> bool:
        """Entries of two lines are equal otherwise if one line has ended, and the other has its claim again after a rollback."""
        return False

    def __len__(self) -> int:
        return len(self._claims) - self._begin

    def claims(self) -> list[Claim]:
        """Return the claims in order. Callers do not change the list."""
        if self._begin:
            del self._claims[: self._begin]
            self._begin = 0
        return self._claims

    def twin(self, peers: Peers, group: OwnerLines) -> Line:
        """Return a copy for copies of the peers and the group."""
        found = Line(peers, group)
        found._claims = self._claims[self._begin :]
        found.first, found.is_open, found.shown, found.shown_of = self.first, self.is_open, self.shown, self.shown_of
        return found

    def add(self, claim: Claim) -> bool:
        """Return whether the claim is the first now."""
        claims, begin = self._claims, self._begin
        if not claims or claims[-1] < claim:
            claims.append(claim)
        elif begin and claim < claims[begin]:
            self._begin = begin = begin - 1
            claims[begin] = claim
        else:
            insort(claims, claim, begin)
        self.first = first = claims[begin]
        return first is claim

    def remove(self, claim: Claim) -> bool:
        """Return whether the claim was the first."""
        claims, begin = self._claims, self._begin
        at = begin if self.first is claim else bisect_left(claims, claim, begin)
        assert claims[at].id == claim.id, "the claim does not wait"
        if at > begin:
            del claims[at]
            return False
        self._begin = begin = begin + 1
        self.first = claims[begin] if begin < len(claims) else ENDED
        if 2 * begin >= len(claims):
            del claims[:begin]
            self._begin = 0
        return True


class Peers:
    """The lines of claims with equal demands and time limits."""

    __slots__ = ("count", "demand", "first", "lines", "only", "unused")

    def __init__(self, demand: Demand) -> None:
        self.demand = demand
        self.lines: dict[OwnerLines, Line] = {}
        self.count = 0  # of claims
        self.first: Claim | None = (
            None  # the first claim of the open lines, as it leaves the index; None: unknown, or there is none
        )
        self.only: Line | None = None  # the line, if it is the only one
        # A heap of the open lines whose owners have used no GPU, by priority and first claim. Many lines can have this level.
        # Entries can be old. None: not computed.
        self.unused: list[tuple[float, Claim, Line]] | None = None


first_claim = attrgetter("first")  # the first claim of a line


def place_of(line: Line) -> tuple[float, float, Claim]:
    return line.group.priority, line.group.level, line.first
