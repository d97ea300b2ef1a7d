"""The claims that wait in one pool, in the order in which they are served.

Claims with a higher priority are first, then those of the owner with the lowest level (`decide/shares.py`), then those that wait
longest. A line has the claims with equal demands, time limits, priorities and owners. So the order inside a line never changes, and
a new level of an owner moves whole lines. A line is closed while a limit of its owner keeps its first claim waiting: then its
claims are skipped, and are last in the order.

If the claims of a pool have several owners, every claim that leaves this index has the level of its owner in its rank, in place of
the stored share. Then the ranks of any two claims of the pool say which of them is served first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace, merge
from math import inf
from typing import NamedTuple

from corral.model.limits import Allowance, limited_amounts
from corral.model.placement import EQUAL_SHARE, Claim
from corral.model.task import Demand

DemandAndLimit = Demand | tuple[Demand, float]  # the key of peers: their demand and their `longest_s`, if any
UNUSED = -inf  # the level of an owner who has used no GPU
OLD_MIN = 16  # `Peers.unused` is computed again if it has this many old entries, and more than there are lines


class OwnerLines:
    """The lines of one owner with the same priority."""

    __slots__ = ("level", "lines", "owner", "priority")

    def __init__(self, priority: float, owner: str, level: float) -> None:
        self.priority = priority  # negated, as in ranks
        self.owner = owner
        self.level = level
        self.lines: dict[Line, None] = {}


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
        self.lines: dict[tuple[float, str], Line] = {}
        self.count = 0  # of claims
        self.first: Claim | None = (
            None  # the first claim of the open lines, as it leaves the index; None: unknown, or there is none
        )
        self.only: Line | None = None  # the line, if it is the only one
        # A heap of the open lines whose owners have used no GPU, by priority and first claim. Many lines can have this level.
        # Entries can be old. None: not computed.
        self.unused: list[tuple[float, Claim, Line]] | None = None


class Stretch(NamedTuple):
    """The lines whose claims follow each other in the order, because they have equal priorities and levels."""

    key: tuple[bool, float, float]  # whether the lines are closed, their priority, and their level
    before: int  # the number of claims before these lines
    lines: list[list[Claim]]


class WaitingLines:
    def __init__(
        self,
        levels: Mapping[str, float],
        allowances: Mapping[str, Allowance],
        count_peers: Callable[[Claim, int], None],
        most_gpus: Callable[[], int],
    ) -> None:
        """`count_peers` is called with a claim and 1 if it is the first of new peers, and with -1 if it was the last of them.

        `most_gpus` returns the number of GPUs of the largest slot.
        """
        self._count_peers = count_peers
        self._most_gpus = most_gpus
        self.counts_gpus = True  # False: the slots are EC2 instances (`Allowance.of_instances`)
        self.peers: dict[DemandAndLimit, Peers] = {}
        self.owners: dict[str, dict[float, OwnerLines]] = {}  # owner → priority → its lines
        self._order: list[tuple[float, float, str]] = []  # priority, level and owner of each group with use, sorted
        self._levels = levels  # of owners; shared by all pools of a fleet
        self._allowances = allowances  # of owners that have limits; shared by all pools of a fleet
        self._stretches: list[Stretch] | None = None  # None: not computed since the last change

    def copy(self) -> WaitingLines:
        """Return a copy that never changes, for several threads."""
        found = WaitingLines(
            dict(self._levels) if self.is_contested else {}, dict(self._allowances), self._count_peers, self._most_gpus
        )
        for owner, groups in self.owners.items():
            found.owners[owner] = {group.priority: OwnerLines(group.priority, owner, group.level) for group in groups.values()}
        for key, peers in self.peers.items():
            copied = found.peers[key] = Peers(peers.demand)
            copied.count = peers.count
            for line_key, line in peers.lines.items():
                group = found.owners[line.group.owner][line.group.priority]
                twin = copied.lines[line_key] = line.twin(copied, group)
                group.lines[twin] = None
            if len(copied.lines) == 1:
                copied.only = next(iter(copied.lines.values()))
        found._order = self._order[:]
        return found

    @property
    def is_contested(self) -> bool:
        """Whether claims of several owners wait."""
        return len(self.owners) > 1

    def ranked(self, claim: Claim) -> Claim:
        """Return a claim with the level of its owner in its rank, if claims of several owners wait."""
        if len(self.owners) < 2:
            return claim
        rank = claim.rank
        return claim._replace(rank=(rank[0], self._levels.get(claim.owner, UNUSED), *rank[2:]))

    def first_of(self, peers: Peers) -> Claim | None:
        """Return the first claim that no limit holds back. Callers look at `peers.first` before."""
        line = peers.only
        if line is None:
            line = self._first_line(peers)
        elif not line.is_open:
            return None
        peers.first = found = None if line is None else self._shown(line)
        return found

    def open_counts(self) -> Iterator[tuple[Demand, int, Claim]]:
        """Yield the demand of each set of peers, the number of its claims that no limit holds back, and the first of these."""
        for peers in self.peers.values():
            first = peers.first or self.first_of(peers)
            if first is not None:
                closed = sum([len(line) for line in peers.lines.values() if not line.is_open]) if self._allowances else 0
                yield peers.demand, peers.count - closed, first

    def count(self) -> int:
        return sum([peers.count for peers in self.peers.values()])

    def is_open(self, claim: Claim) -> bool:
        """Whether no limit of its owner holds a waiting claim back."""
        line = self._line_of(claim)
        return line is None or line.is_open

    def in_order(self) -> Iterator[Claim]:
        is_contested = self.is_contested
        for stretch in self._in_stretches():
            claims = merge(*stretch.lines) if len(stretch.lines) > 1 else stretch.lines[0]
            yield from map(self.ranked, claims) if is_contested else claims

    def place(self, claim: Claim) -> int:
        """Return how many claims are before this claim."""
        line = self._line_of(claim)
        level = self._levels.get(claim.owner, UNUSED) if line is None else line.group.level
        key = (line is not None and not line.is_open, claim.rank[0], level)
        if self.is_contested:
            claim = claim._replace(rank=(claim.rank[0], EQUAL_SHARE, *claim.rank[2:]))
        stretches = self._in_stretches()
        at = bisect_left(stretches, key, key=_key)
        if at == len(stretches):
            return self.count()
        found = stretches[at]
        return found.before + (sum([bisect_left(claims, claim) for claims in found.lines]) if found.key == key else 0)

    # Changes. Each returns whether the first claim of any peers may have changed.

    def add(self, claim: Claim) -> bool:
        key = claim.demand if claim.longest_s is None else (claim.demand, claim.longest_s)
        peers = self.peers.get(key)
        if peers is None:
            peers = self.peers[key] = Peers(claim.demand)
            self._count_peers(claim, 1)
        line = peers.lines.get((claim.rank[0], claim.owner))
        changes_ranks = False
        if line is None:
            line, changes_ranks = self._new_line(peers, claim.rank[0], claim.owner)
        is_first = line.add(claim)
        peers.count += 1
        self._stretches = None
        if not is_first:
            return False
        if claim.owner in self._allowances:
            changes_ranks |= self.reopen(claim.owner)
        if peers.only is line:
            peers.first = None
            return True
        self._push(line)
        if not changes_ranks and peers.first is not None and peers.first < self._shown(line):
            return False
        peers.first = None
        return True

    def remove(self, claim: Claim) -> bool:
        peers = self.peers[claim.demand if claim.longest_s is None else (claim.demand, claim.longest_s)]
        line = peers.lines[claim.rank[0], claim.owner]
        was_first = line.remove(claim)
        peers.count -= 1
        self._stretches = None
        if not was_first:
            return False
        peers.first = None
        if not line:
            self._drop_line(line, claim)
        elif peers.only is line and line.is_open and len(self.owners) < 2:
            peers.first = line.first
        if self._allowances and claim.owner in self._allowances:
            self.reopen(claim.owner)
        return True

    def reorder(self, owner: str) -> bool:
        """Move the lines of an owner whose level has changed."""
        groups = self.owners.get(owner)
        if groups is None:
            return False
        self._stretches, level = None, self._levels.get(owner, UNUSED)
        for group in groups.values():
            self._leave_order(group)
            forward, group.level = level < group.level, level
            self._join_order(group)
            place = group.priority, level
            for line in group.lines:
                first = line.peers.first
                if first is not None and (first[5] == owner or (forward and first[0][:2] >= place)):
                    line.peers.first = None
                if level == UNUSED:
                    self._push(line)
        if owner in self._allowances:
            self.reopen(owner)
        return True

    def _join_order(self, group: OwnerLines) -> None:
        if group.level != UNUSED:
            insort(self._order, (group.priority, group.level, group.owner))

    def _leave_order(self, group: OwnerLines) -> None:
        if group.level != UNUSED:
            del self._order[bisect_left(self._order, (group.priority, group.level, group.owner))]

    def lines_of(self, owner: str) -> list[Line]:
        """Return the lines of an owner, sorted by their first claims."""
        lines = [line for each in self.owners.get(owner, {}).values() for line in each.lines]
        lines.sort(key=_first_claim)
        return lines

    def reopen(self, owner: str) -> bool:
        """Open or close the lines of an owner, because what its limits allow has changed."""
        changed, allowance = False, self._allowances.get(owner)
        if allowance is not None and not self.counts_gpus:
            allowance = allowance.of_instances()
        lines = self.lines_of(owner)
        demands = [line.peers.demand for line in lines]
        are_open = [True] * len(lines) if allowance is None else opened(allowance, demands, self._most_gpus())
        until = None if allowance is None else allowance.until
        for line, fits in zip(lines, are_open):
            is_open = fits and (until is None or place_of(line) < until or not limited_amounts(line.peers.demand)[0])
            if is_open != line.is_open:
                line.is_open, changed = is_open, True
                line.peers.first = None
                self._push(line)
        if changed:
            self._stretches = None
        return changed

    def _new_line(self, peers: Peers, priority: float, owner: str) -> tuple[Line, bool]:
        """Add a line that will get a claim. Also return whether the claims of the pool now have several owners."""
        groups, is_second = self.owners.get(owner), False
        if groups is None:
            groups = self.owners[owner] = {}
            is_second = len(self.owners) == 2 and self._forget_first()
        group = groups.get(priority)
        if group is None:
            group = groups[priority] = OwnerLines(priority, owner, self._levels.get(owner, UNUSED))
            self._join_order(group)
        line = peers.lines[priority, owner] = Line(peers, group)
        group.lines[line] = None
        peers.only = line if len(peers.lines) == 1 else None
        return line, is_second

    def _drop_line(self, line: Line, last: Claim) -> None:
        peers, group = line.peers, line.group
        del peers.lines[group.priority, group.owner]
        del group.lines[line]
        if not group.lines:
            self._leave_order(group)
            groups = self.owners[group.owner]
            del groups[group.priority]
            if not groups:
                del self.owners[group.owner]
                if len(self.owners) == 1:
                    self._forget_first()
        if not peers.lines:
            del self.peers[last.demand if last.longest_s is None else (last.demand, last.longest_s)]
            self._count_peers(last, -1)
        elif len(peers.lines) == 1:
            peers.only, peers.unused = next(iter(peers.lines.values())), None

    def _forget_first(self) -> bool:
        """Forget the first claims of all peers, because ranks have levels now, or no longer."""
        for peers in self.peers.values():
            peers.first = None
        return True

    # The first line of peers

    def _push(self, line: Line) -> None:
        """Note the place of a line that has moved forward, if its owner has used no GPU."""
        peers, group = line.peers, line.group
        unused = peers.unused
        if unused is None or not line.is_open or group.level != UNUSED:
            return
        if len(unused) > 2 * len(peers.lines) + OLD_MIN:
            peers.unused = None
        else:
            heappush(unused, (group.priority, line.first, line))

    def _first_line(self, peers: Peers) -> Line | None:
        """Return the first open line of peers that have several lines."""
        unused, best = peers.unused, None
        if unused == []:
            return self._first_used(peers, inf)
        if unused is None:
            found = [line for line in peers.lines.values() if line.is_open and line.group.level == UNUSED]
            unused = [(line.group.priority, line.first, line) for line in found]
            heapify(unused)
            peers.unused = unused  # only now, because several threads may use a copy, in which no entry is ever old
        while unused:
            priority, claim, line = unused[0]
            if not line or not line.is_open or line.group.level != UNUSED:
                heappop(unused)
            elif line.first is not claim:
                heapreplace(unused, (priority, line.first, line))
            else:
                best = line
                break
        used = self._first_used(peers, inf if best is None else best.group.priority)
        return best if used is None else used

    def _first_used(self, peers: Peers, before: float) -> Line | None:
        """Return the first open line whose owner has used GPUs, and whose priority comes before the given one."""
        lines, order = peers.lines, self._order
        if len(lines) ** 2 < len(order):  # few lines
            found = [
                line for line in lines.values() if line.is_open and line.group.level != UNUSED and line.group.priority < before
            ]
            return min(found, key=place_of, default=None)
        first: Line | None = None
        for priority, level, owner in order:
            if priority >= before or (first is not None and (first.group.level != level or first.group.priority != priority)):
                break
            line = lines.get((priority, owner))
            if line is not None and line.is_open and (first is None or line.first < first.first):
                first = line
        return first

    def _shown(self, line: Line) -> Claim:
        claim = line.first
        if len(self.owners) < 2:
            return claim
        shown, level = line.shown, line.group.level
        if shown is None or line.shown_of is not claim or shown[0][1] != level:
            rank, kind, claim_id, demand, longest_s, owner = claim
            shown = tuple.__new__(
                Claim, ((rank[0], level, *rank[2:]), kind, claim_id, demand, longest_s, owner)
            )  # as fast as possible
            line.shown, line.shown_of = shown, claim
        return shown

    def _line_of(self, claim: Claim) -> Line | None:
        peers = self.peers.get(claim.demand if claim.longest_s is None else (claim.demand, claim.longest_s))
        return None if peers is None else peers.lines.get((claim.rank[0], claim.owner))

    def _in_stretches(self) -> list[Stretch]:
        found = self._stretches
        if found is None:
            found, lines = [], dict[tuple[bool, float, float], list[list[Claim]]]()
            for peers in self.peers.values():
                for line in peers.lines.values():
                    key = not line.is_open, line.group.priority, line.group.level
                    lines.setdefault(key, []).append(line.claims())
            before = 0
            for key in sorted(lines):
                found.append(Stretch(key, before, lines[key]))
                before += sum([len(claims) for claims in lines[key]])
            self._stretches = found
        return found


def _key(stretch: Stretch) -> tuple[bool, float, float]:
    return stretch.key


def opened(allowance: Allowance, demands: Sequence[Demand], all_gpus: int = 1) -> list[bool]:
    """Whether each of an owner's demands may start, if only the earlier ones of them could start before it.

    What an earlier demand waits for is kept for it, because later ones could otherwise keep it waiting for ever. A demand that is
    larger than the limit keeps no other waiting.
    """
    found, gpus, memory_mib = [], allowance.gpus, allowance.memory_mib
    for demand in demands:
        needs_gpus, needs_mib = limited_amounts(demand, all_gpus)
        lacks_gpus, lacks_memory = needs_gpus > max(gpus, 0.0), needs_mib > max(memory_mib, 0.0)
        if needs_gpus <= allowance.most_gpus and needs_mib <= allowance.most_memory_mib:
            gpus, memory_mib = 0.0 if lacks_gpus else gpus, 0.0 if lacks_memory else memory_mib
        found.append(not lacks_gpus and not lacks_memory)
    return found


def _first_claim(line: Line) -> Claim:
    return line.first


def place_of(line: Line) -> tuple[float, float, Claim]:
    return line.group.priority, line.group.level, line.first
