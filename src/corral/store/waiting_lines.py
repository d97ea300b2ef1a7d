"""The claims that wait in one pool, in the order in which they are served.

Claims with a higher priority are first, then those of the owner with the lowest level (`decide/shares.py`), then those that wait
longest. A line has the claims with equal demands, time limits, priorities and owners. So the order inside a line never changes, and
a new level of an owner moves whole lines. A line is closed while a limit of its owner keeps its first claim waiting: then its
claims are skipped, and are last in the order.

If the claims of a pool have several owners, every claim that leaves this index has the level of its owner in its rank, in place of
the stored share. Then the ranks of any two claims of the pool say which of them is served first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace, merge
from math import inf
from typing import NamedTuple

from corral.model.limits import Allowance, limited_amounts, opened
from corral.model.placement import EQUAL_SHARE, Claim, Rank
from corral.model.task import Demand
from corral.store.owner_lines import ENDED, OLD_MIN, UNUSED, Line, OwnerLines, Peers, UsedOwners, first_claim, place_of

DemandAndLimit = Demand | tuple[Demand, float]  # the key of peers: their demand and their `longest_s`, if any
STEPS_OF_KIND = 20  # the lines that one round of `turns` may look at, for each set of peers


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
        self.is_of_hosts = True
        self._lenders: dict[str, int] = {}  # owner → how many of the slots are its EC2 instances
        self.peers: dict[DemandAndLimit, Peers] = {}
        self.owners: dict[str, dict[float, OwnerLines]] = {}  # owner → priority → its lines
        self._used: dict[float, UsedOwners] = {}  # by priority, the first priority first
        # No `Peers.first` has a rank behind this one. So a level can change behind it without a look at the lines of its owner.
        self.reach: Rank = ()
        self._levels = levels  # of owners; shared by all pools of a fleet
        self._allowances = allowances  # of owners that have limits; shared by all pools of a fleet
        self._unused: dict[float, int] = {}  # by priority: how many groups of lines have owners who have used no GPU
        self._stretches: list[Stretch] | None = None  # None: not computed since the last change
        self.version = 0  # changes if a decision about the claims may differ

    def copy(self) -> WaitingLines:
        """Return a copy that never changes, for several threads."""
        found = WaitingLines(
            dict(self._levels) if self.is_contested else {}, dict(self._allowances), self._count_peers, self._most_gpus
        )
        found.is_of_hosts, found._lenders = self.is_of_hosts, dict(self._lenders)
        for owner, groups in self.owners.items():
            found.owners[owner] = {group.priority: OwnerLines(group.priority, owner, group.level) for group in groups.values()}
        for key, peers in self.peers.items():
            copied = found.peers[key] = Peers(peers.demand)
            copied.count = peers.count
            for line in peers.lines.values():
                group = found.owners[line.group.owner][line.group.priority]
                twin = copied.lines[group] = line.twin(copied, group)
                group.lines[twin] = None
            if len(copied.lines) == 1:
                copied.only = next(iter(copied.lines.values()))
        used: dict[float, list[OwnerLines]] = {priority: [] for priority in self._used}
        for groups in found.owners.values():
            for group in groups.values():
                if group.level == UNUSED:
                    found._join_order(group)
                else:
                    used[group.priority].append(group)
        found._used = {priority: UsedOwners(equal) for priority, equal in used.items()}
        return found

    def counts_gpus(self, owner: str) -> bool:
        """Whether tasks of an owner add to the GPUs that it holds. Those on its own EC2 instances do not."""
        return self.is_of_hosts or owner not in self._lenders

    def lend(self, owner: str, change: int) -> None:
        """Count the EC2 instances of an owner."""
        if not owner:
            return
        before = self._lenders.pop(owner, 0)
        if before + change:
            self._lenders[owner] = before + change
        if owner in self._allowances and bool(before) != bool(before + change):
            self.reopen(owner)

    @property
    def is_contested(self) -> bool:
        """Whether claims of several owners wait."""
        return len(self.owners) > 1

    def ranked(self, claim: Claim) -> Claim:
        """Return a claim with the level of its owner in its rank, if claims of several owners wait."""
        if len(self.owners) < 2:
            return claim
        return with_level(claim, self._levels.get(claim[5], UNUSED))

    def first_of(self, peers: Peers) -> Claim | None:
        """Return the first claim that no limit holds back. Callers look at `peers.first` before."""
        line = peers.only
        if line is None:
            line = self._first_line(peers)
        elif not line.is_open:
            return None
        if line is None:
            peers.first = None
            return None
        peers.first = found = self._shown(line)
        if found[0] > self.reach:
            self.reach = found[0]
        return found

    def turns(self, others: Callable[[set[Peers]], Iterator[Claim]]) -> Iterator[Claim]:
        """Yield the first open claims of all peers in order, as they are stored.

        If a claim no longer waits when the next is requested, its peers get another turn. After `STEPS_OF_KIND` lines for each set
        of peers, `others` yields the claims of the peers that are not in a set.

        With many owners, each grant changes which owner is the first of most peers. The lines of one owner follow each other in
        the order, so the next claims of all peers are found together.
        """
        passed: set[Peers] = set()
        left, version, at = STEPS_OF_KIND * len(self.peers), self.version, 0
        while left > 0:
            lines = self._lines_at(at)
            if lines is None:
                return
            at += 1
            left -= len(lines)
            for line in lines:
                peers = line.peers
                if peers in passed or not line.is_open:
                    continue
                claim = line.first
                yield claim
                if version != self.version:
                    if line.first is claim:
                        passed.add(peers)
                    version, at = self.version, 0
                    break
                passed.add(peers)
            else:
                if len(passed) >= len(self.peers) and passed.issuperset(self.peers.values()):
                    return
        yield from others(passed)

    def find_firsts(self) -> None:
        """Find the first claims of most peers together, as in `turns`. Callers look at `reach` after that."""
        unknown = {peers for peers in self.peers.values() if peers.first is None}
        left, at = STEPS_OF_KIND * len(unknown), 0
        while unknown and left > 0 and (lines := self._lines_at(at)) is not None:
            at += 1
            left -= len(lines)
            for line in lines:
                if line.is_open and line.peers in unknown:
                    unknown.remove(line.peers)
                    line.peers.first = self._shown(line)

    def _lines_at(self, at: int) -> Sequence[Line] | None:
        """Return the part of the order with this index. Return None if there are fewer parts.

        Of the lines whose owners have used no GPU, it has only the first open line for each set of peers.
        """
        unused, all_used = self._unused, self._used
        for priority in sorted(unused.keys() | all_used.keys()) if unused else all_used:
            if priority in unused:
                if not at:
                    found = filter(None, map(self._first_unused, self.peers.values()))
                    return sorted([line for line in found if line.group.priority == priority], key=first_claim)
                at -= 1
            if priority in all_used:
                if (lines := all_used[priority].lines(at)) is not None:
                    return lines
                at -= len(all_used[priority].groups)
        return None

    def open_counts(self) -> Iterator[tuple[Demand, int, Claim]]:
        """Yield the demand of each set of peers, the number of its claims that no limit holds back, and the first of these."""
        for peers in self.peers.values():
            first = peers.first or self.first_of(peers)
            if first is not None:
                closed = sum([len(line) for line in peers.lines.values() if not line.is_open]) if self._allowances else 0
                yield peers.demand, peers.count - closed, first

    def open_lines(self) -> list[tuple[Demand, str, int]]:
        """Return the demand, the owner and the number of claims of each line that no limit holds back."""
        lines = [line for peers in self.peers.values() for line in peers.lines.values() if line.is_open]
        return [(line.peers.demand, line.group.owner, len(line)) for line in lines]

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

    # Changes

    def add(self, claim: Claim) -> None:
        key = claim.demand if claim.longest_s is None else (claim.demand, claim.longest_s)
        peers = self.peers.get(key)
        if peers is None:
            peers = self.peers[key] = Peers(claim.demand)
            self._count_peers(claim, 1)
        groups = self.owners.get(claim[5])
        group = None if groups is None else groups.get(claim[0][0])
        line = None if group is None else peers.lines.get(group)
        changes_ranks = False
        if line is None:
            line, changes_ranks = self._new_line(peers, claim.rank[0], claim.owner)
        is_first = line.add(claim)
        peers.count += 1
        self._stretches = None
        if not is_first:
            return
        line.group.sorted = None
        if claim.owner in self._allowances:
            changes_ranks |= self.reopen(claim.owner)
        self._push(line)
        if changes_ranks or peers.only is line or peers.first is None or self._shown(line) < peers.first:
            peers.first = None
            self.version += 1  # a claim behind the first of its peers changes no decision

    def remove(self, claim: Claim) -> None:
        peers = self.peers[claim[3] if claim[4] is None else (claim[3], claim[4])]
        group = self.owners[claim[5]][claim[0][0]]
        line = peers.lines[group]
        was_first = line.remove(claim)
        peers.count -= 1
        self._stretches = None
        if not was_first:
            return
        self.version += 1
        peers.first = None
        if group.sorted is not None:
            group.sort_again(line, claim)
        if line.first is ENDED:
            self._drop_line(line, claim)
        elif peers.only is line and line.is_open and len(self.owners) < 2:
            peers.first = line.first
        if claim.owner in self._allowances:
            self.reopen(claim.owner)

    def reorder(self, owner: str, level: float) -> None:
        """Move the lines of an owner who has a new level."""
        self._stretches = None
        self.version += 1
        for group in self.owners[owner].values():
            used, before = group.used, group.level
            if used is None or level == UNUSED:
                self._leave_order(group)
                group.level = level
                self._join_order(group)
                self._forget_firsts(group, before)
            else:
                used.move(group, level)
                if self.reach:
                    self._forget_firsts(group, before)
        if owner in self._allowances:
            self.reopen(owner)

    def _forget_firsts(self, group: OwnerLines, before: float) -> None:
        """Forget which claims are the first of their peers, if this may differ because the owner had the level `before`."""
        priority, level = group.priority, group.level
        if level != UNUSED and (priority, level if level < before else before) > self.reach:
            return  # no line of the group is or was the first of its peers
        place = (priority, level) if level < before else (inf,)
        for line in group.lines:
            first = line.peers.first
            if first is not None and (first[5] == group.owner or first[0] > place):
                line.peers.first = None
            if level == UNUSED:
                self._push(line)

    def _join_order(self, group: OwnerLines) -> None:
        if group.level == UNUSED:
            self._unused[group.priority] = self._unused.get(group.priority, 0) + 1
            return
        used = self._used.get(group.priority)
        if used is None:
            used = self._used[group.priority] = UsedOwners()
            self._used = dict(sorted(self._used.items()))
        used.add(group)

    def _leave_order(self, group: OwnerLines) -> None:
        priority = group.priority
        if group.level == UNUSED:
            self._unused[priority] -= 1
            if not self._unused[priority]:
                del self._unused[priority]
            return
        used = self._used[priority]
        used.remove(group)
        if not used.groups:
            del self._used[priority]

    def lines_of(self, owner: str) -> list[Line]:
        """Return the lines of an owner, sorted by their first claims."""
        lines = [line for each in self.owners.get(owner, {}).values() for line in each.lines]
        lines.sort(key=first_claim)
        return lines

    def reopen(self, owner: str) -> bool:
        """Open or close the lines of an owner, because what its limits allow has changed."""
        changed, allowance = False, self._allowances.get(owner)
        if allowance is not None and not self.counts_gpus(owner):
            allowance = allowance.of_lender()
        lines = self.lines_of(owner)
        demands = [line.peers.demand for line in lines]
        are_open = [True] * len(lines) if allowance is None else opened(allowance, demands, self._most_gpus())
        until = None if allowance is None else allowance.until
        for line, fits in zip(lines, are_open):
            is_open = fits and (until is None or place_of(line) < until or not limited_amounts(line.peers.demand)[0])
            if is_open != line.is_open:
                line.is_open, changed = is_open, True
                self.version += 1
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
        line = peers.lines[group] = Line(peers, group)
        group.lines[line] = None
        group.sorted = None
        peers.only = line if len(peers.lines) == 1 else None
        return line, is_second

    def _drop_line(self, line: Line, last: Claim) -> None:
        peers, group = line.peers, line.group
        del peers.lines[group]
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
        self.reach = ()
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
        best = self._first_unused(peers)
        used = self._first_used(peers, inf if best is None else best.group.priority)
        return best if used is None else used

    def _first_unused(self, peers: Peers) -> Line | None:
        """Return the first open line whose owner has used no GPU."""
        unused = peers.unused
        if unused == []:
            return None
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
                return line
        return None

    def _first_used(self, peers: Peers, before: float) -> Line | None:
        """Return the first open line whose owner has used GPUs, and whose priority comes before the given one."""
        lines = peers.lines
        for priority, used in self._used.items():
            if priority >= before:
                break
            if len(lines) ** 2 < len(used.groups):  # few lines
                few = [line for line in lines.values() if line.is_open and line.group.priority == priority]
                found = min([line for line in few if line.group.level != UNUSED], key=place_of, default=None)
                if found is not None:
                    return found
                continue
            at = 0
            while (groups := used.with_level(at)) is not None:
                equal = [line for group in groups if (line := lines.get(group)) is not None and line.is_open]
                if equal:
                    return min(equal, key=first_claim)
                at += 1
        return None

    def _shown(self, line: Line) -> Claim:
        claim = line.first
        if len(self.owners) < 2:
            return claim
        shown, level = line.shown, line.group.level
        if shown is None or line.shown_of is not claim or shown[0][1] != level:
            shown = with_level(claim, level)
            line.shown, line.shown_of = shown, claim
        return shown

    def _line_of(self, claim: Claim) -> Line | None:
        peers = self.peers.get(claim.demand if claim.longest_s is None else (claim.demand, claim.longest_s))
        group = self.owners.get(claim.owner, {}).get(claim.rank[0])
        return None if peers is None or group is None else peers.lines.get(group)

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


def with_level(claim: Claim, level: float) -> Claim:
    rank = claim[0]
    return tuple.__new__(Claim, ((rank[0], level, *rank[2:]), *claim[1:]))  # faster than `_replace`
