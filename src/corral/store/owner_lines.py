"""The parts of a line of claims: the lines of one owner, and those of peers, which have equal demands and time limits.

`store/waiting_lines.py` changes them, and has the order of the lines.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from math import inf

from corral.model.placement import Claim
from corral.model.task import Demand

UNUSED = -inf  # the level of an owner who has used no GPU


class OwnerLines:
    """The lines of one owner with the same priority."""

    __slots__ = ("level", "lines", "owner", "priority", "sorted")

    def __init__(self, priority: float, owner: str, level: float) -> None:
        self.priority = priority  # negated, as in ranks
        self.owner = owner
        self.level = level
        self.lines: dict[Line, None] = {}
        self.sorted: list[Line] | None = None  # by their first claims; None: a line is new, or has another first claim

    def in_order(self) -> list[Line]:
        """Return the lines, sorted by their first claims."""
        found = self.sorted
        if found is None:
            found = self.sorted = sorted(self.lines, key=first_claim) if len(self.lines) > 1 else list(self.lines)
        return found


class UsedOwners:
    """The groups of lines with one priority whose owners have used GPUs, sorted by level.

    The levels have a list of their own, because a search in a list of floats reads much less memory than one in a list of groups.
    """

    __slots__ = ("groups", "levels")

    def __init__(self) -> None:
        self.levels: list[float] = []
        self.groups: list[OwnerLines] = []

    def add(self, group: OwnerLines) -> None:
        at = bisect_left(self.levels, group.level)
        self.levels.insert(at, group.level)
        self.groups.insert(at, group)

    def remove(self, group: OwnerLines) -> None:
        at = self.groups.index(group, bisect_left(self.levels, group.level))
        del self.levels[at], self.groups[at]

    def move(self, group: OwnerLines, level: float) -> None:
        """Give a group another level."""
        levels, groups = self.levels, self.groups
        at = groups.index(group, bisect_left(levels, group.level))
        del levels[at], groups[at]
        at = bisect_left(levels, level)
        levels.insert(at, level)
        groups.insert(at, group)
        group.level = level

    def in_order(self) -> Iterator[list[Line]]:
        """Yield the lines of each level, sorted by their first claims."""
        at, levels, groups = 0, self.levels, self.groups
        while at < len(levels):
            end = at + 1
            if end == len(levels) or levels[end] != levels[at]:
                yield groups[at].in_order()
            else:
                while end < len(levels) and levels[end] == levels[at]:
                    end += 1
                yield sorted([line for group in groups[at:end] for line in group.lines], key=first_claim)
            at = end


class Line:
    """Claims with equal demands, time limits, priorities and owners, sorted by their stored ranks."""

    __slots__ = ("_begin", "_claims", "group", "is_open", "peers", "shown", "shown_of")

    def __init__(self, peers: Peers, group: OwnerLines) -> None:
        self.peers = peers
        self.group = group
        self._claims: list[Claim] = []
        # The line begins here: most claims leave at the front, and moving all others in the list each time would be slow.
        self._begin = 0
        self.is_open = True
        self.shown: Claim | None = None  # the first claim `shown_of` with a level in its rank
        self.shown_of: Claim | None = None

    def __lt__(self, other: Line) -> bool:
        """Entries of two lines are equal otherwise if one line has ended, and the other has its claim again after a rollback."""
        return False

    def __len__(self) -> int:
        return len(self._claims) - self._begin

    @property
    def first(self) -> Claim:
        return self._claims[self._begin]

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
        found.is_open, found.shown, found.shown_of = self.is_open, self.shown, self.shown_of
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
        return claims[begin] is claim

    def remove(self, claim: Claim) -> bool:
        """Return whether the claim was the first."""
        claims, begin = self._claims, self._begin
        at = begin if claims[begin] is claim else bisect_left(claims, claim, begin)
        assert claims[at].id == claim.id, "the claim does not wait"
        if at > begin:
            del claims[at]
            return False
        self._begin = begin = begin + 1
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


def first_claim(line: Line) -> Claim:
    return line.first


def place_of(line: Line) -> tuple[float, float, Claim]:
    return line.group.priority, line.group.level, line.first
