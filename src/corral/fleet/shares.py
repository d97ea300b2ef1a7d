"""The line of several owners: their levels, what their limits allow them to take, and the texts that explain both.

`decide/shares.py` defines levels. The fleet index orders claims by them (`store/waiting_lines.py`), and skips claims that wait for
a limit. Levels and allowances are computed before claims of a pool are served. If only one owner waits, and there are no limits,
nothing is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import inf

from corral.core.transactions import Tx
from corral.decide.shares import decay_of, line_level, use_after, use_at
from corral.fleet.limits import SEE, groups_of, limits_of, members_of, weight_of
from corral.model.durations import DAY_S
from corral.model.job_line import ShareUse
from corral.model.limits import GROUP, NO_LIMITS, Allowance, SubjectLimits, limited_amounts, opened, shown_subject
from corral.model.placement import JOB, Claim, Pool
from corral.model.principal import OF_USER
from corral.model.task import ALL_GPUS, Demand
from corral.store import Store
from corral.store.owner_lines import UNUSED, place_of

WEEK_S = 7 * DAY_S
HOUR_S = 3600.0
SEE_LIMITS = SEE.removesuffix(".")
UNLIMITED = Allowance(inf, inf, inf, inf)
ALLOWANCES = "allowances:"  # the reconciler that looks again at what limits allow
PRIORITIES = "priorities:"  # the reconciler that lowers priorities above a limit
LOOK_AGAIN_S = 300.0  # a reservation may pass to another owner after this time, because levels have changed


def update_line(tx: Tx[Store], pool_name: str) -> None:
    """Bring levels and allowances up to date, before claims of a pool are served or a newcomer is placed."""
    owners = tx.store.fleet.pool(pool_name).waiting_lines.owners
    if len(owners) > 1:
        _update_levels(tx)
    if tx.store.limits.of or tx.store.fleet.allowances:
        _update_allowances(tx, owners, pool_name)


def update_limits(tx: Tx[Store], pool_name: str) -> None:
    """Compute again what the limits of the owners in a pool allow, and serve the pools in which claims may start now."""
    if tx.store.limits.of or tx.store.fleet.allowances:
        _update_allowances(tx, tx.store.fleet.pool(pool_name).waiting_lines.owners, "")


def limits_changed(tx: Tx[Store]) -> None:
    """Compute all levels and allowances again, and serve the claims that may start now."""
    uses = tx.store.owner_uses
    tx.store.owner_standings.forget(uses.present())
    tx.mark(ALLOWANCES)
    tx.mark(PRIORITIES)
    for name in tx.store.fleet.pools_with_claims():
        tx.mark(f"pool:{name}")


def membership_changed(tx: Tx[Store]) -> None:
    """A user has joined or left a group, whose limits and weight may hold for it."""
    if tx.store.limits.of:
        limits_changed(tx)


def held_less(tx: Tx[Store]) -> None:
    """Let claims start for which a limit of their owner has room now, in any pool."""
    if tx.store.limits.of:
        tx.mark(ALLOWANCES)


def update_allowances(tx: Tx[Store]) -> None:
    """Look again at what limits allow, and serve the pools in which claims may start now."""
    fleet = tx.store.fleet
    tx.store.owner_standings.look_again([owner for owner, allowance in fleet.allowances.items() if allowance.gpus <= 0])
    waiting = {owner for name in fleet.pools_with_claims() for owner in fleet.pool(name).waiting_lines.owners}
    _update_allowances(tx, sorted(waiting), "")


def look_again(tx: Tx[Store], pool_name: str) -> None:
    """Serve a pool again later, if free GPUs are reserved for the claim of one owner while others wait. Levels change with time."""
    pool = tx.store.fleet.pool(pool_name)
    if pool.free_gpus and len(pool.waiting_lines.owners) > 1:
        tx.due(f"pool:{pool_name}", tx.now_s + LOOK_AGAIN_S)


def _update_levels(tx: Tx[Store]) -> None:
    uses = tx.store.owner_uses
    for owner in tx.store.owner_standings.take_moved(tx.now_s, uses.holders):
        level = line_level(uses.use(owner), weight_of(tx, owner), decay_of(tx.settings.half_life_s), tx.now_s)
        tx.store.fleet.set_level(owner, level if level != UNUSED else None)


def level_after(tx: Tx[Store], owner: str, more_gpus: float) -> float:
    """Return the level that an owner would have if it held so many more GPUs."""
    decay_s = decay_of(tx.settings.half_life_s)
    use = use_after(tx.store.owner_uses.use(owner), more_gpus, tx.now_s, decay_s)
    return line_level(use, weight_of(tx, owner), decay_s, tx.now_s)


# Limits


def _update_allowances(tx: Tx[Store], waiting: Collection[str], pool_name: str) -> None:
    fleet = tx.store.fleet
    changed, unknown = tx.store.owner_standings.take_changed(waiting)
    due = dict.fromkeys([*changed, *unknown])
    limited = {name for owner in changed for name in groups_of(tx, owner) if f"{GROUP}/{name}" in tx.store.limits.of}
    if limited:  # what these owners hold counts for the other members, too
        others = {owner for name in fleet.pools_with_claims() for owner in fleet.pool(name).waiting_lines.owners}
        due |= dict.fromkeys(sorted(owner for owner in others if owner not in due and limited.intersection(groups_of(tx, owner))))
    places = _places_of_groups(tx)
    due |= dict.fromkeys([owner for owner, each in fleet.allowances.items() if each.until != places.get(owner)])
    due |= dict.fromkeys([owner for owner in places if owner not in fleet.allowances])
    for owner in due:
        before, after = fleet.allowances.get(owner), allowance_of(tx, owner)
        if after is not None:
            after = after._replace(until=places.get(owner))
        pools = fleet.set_allowance(owner, after)
        if after is None or before is None or after.gpus > before.gpus or after.memory_mib > before.memory_mib:
            for name in pools:
                if name != pool_name:
                    tx.mark(f"pool:{name}")


def _places_of_groups(tx: Tx[Store]) -> dict[str, tuple[float, float, Claim]]:
    """Return for the members of groups the first place in the line at which a claim waits for GPUs that the group may not take.

    Otherwise, small claims of other members could keep this claim waiting for ever.
    """
    found: dict[str, tuple[float, float, Claim]] = {}
    fleet, uses = tx.store.fleet, tx.store.owner_uses
    for subject, most in tx.store.limits.of.items():
        if most.gpus is None or not subject.startswith(f"{GROUP}/"):
            continue
        members = members_of(tx, subject)
        left = most.gpus - sum([uses.held(member) for member in members])
        places = []
        for name in fleet.pools_with_claims():
            pool = fleet.pool(name)
            for member in filter(pool.waiting_lines.counts_gpus, pool.waiting_lines.owners.keys() & members):
                own = tx.store.limits.of.get(member, NO_LIMITS).gpus
                own_left = inf if own is None else own - uses.held(member)
                for line in pool.waiting_lines.lines_of(member):
                    gpus = limited_amounts(line.peers.demand, pool.most_gpus())[0]
                    if left < gpus <= min(most.gpus, own_left):
                        places.append(place_of(line))
        if places:
            first = min(places)
            found |= {member: min(first, found.get(member, first)) for member in members}
    return found


def allowance_of(tx: Tx[Store], owner: str) -> Allowance | None:
    """Return what the limits of an owner allow it to take now. Return None if it has no limit that can let claims wait."""
    uses, found = tx.store.owner_uses, UNLIMITED
    for each in limits_of(tx, owner):
        most = each.limits
        if most.gpus is None and most.memory_mib is None and most.gpu_hours_per_week is None:
            continue
        members = members_of(tx, each.subject)
        if most.gpus is not None:
            left = most.gpus - sum([uses.held(member) for member in members])
            found = found._replace(gpus=min(found.gpus, left), most_gpus=min(found.most_gpus, most.gpus))
        if most.memory_mib is not None:
            left = most.memory_mib - sum([uses.memory_mib(member) for member in members])
            least = min(found.most_memory_mib, most.memory_mib)
            found = found._replace(memory_mib=min(found.memory_mib, left), most_memory_mib=least)
        if most.gpu_hours_per_week is not None and (more_s := _hours_left_at_s(tx, members, most.gpu_hours_per_week)) is not None:
            found = found._replace(gpus=min(found.gpus, 0.0))
            tx.due(ALLOWANCES, more_s)
    return found if found != UNLIMITED else None


def _hours_left_at_s(tx: Tx[Store], members: list[str], most_hours: float) -> float | None:
    """Return when owners have used less than a number of GPU-hours in a week, if they hold nothing until then. None: they have."""
    since_s = tx.now_s - WEEK_S
    over_s = tx.store.owner_uses.gpu_s(members, since_s, tx.now_s) - most_hours * HOUR_S
    if over_s < 0:
        return None
    by_hour: dict[int, float] = {}
    for member in members:
        for each in tx.store.owner_uses.hours(member, since_s, tx.now_s):
            by_hour[each.hour] = by_hour.get(each.hour, 0.0) + each.gpu_s
    for hour in sorted(by_hour):
        begins_s = max(since_s, hour * HOUR_S)
        gpu_s = by_hour[hour] * ((hour + 1) * HOUR_S - begins_s) / HOUR_S
        if gpu_s > over_s:
            return begins_s + WEEK_S + over_s / gpu_s * ((hour + 1) * HOUR_S - begins_s) + 1.0
        over_s -= gpu_s
    return tx.now_s + HOUR_S


class Startable:
    """How many waiting claims the limits of their owners let start, if those that were counted before have started."""

    def __init__(self, tx: Tx[Store]) -> None:
        self._tx = tx
        self._left: dict[str, tuple[float, float]] = {}  # subject → GPUs and memory in MiB that it may still take

    def take(self, owner: str, demand: Demand, most: int) -> int:
        """Return how many claims with this demand may start, at most `most`, and count them."""
        (gpus, memory_mib), count = limited_amounts(demand), float(most)
        subjects = limits_of(self._tx, owner)
        for each in subjects:
            left_gpus, left_mib = self._left.setdefault(each.subject, self._left_of(each))
            count = min(count, left_gpus // gpus if gpus else inf, left_mib // memory_mib if memory_mib else inf)
        count = max(0.0, count)
        for each in subjects:
            left_gpus, left_mib = self._left[each.subject]
            self._left[each.subject] = left_gpus - count * gpus, left_mib - count * memory_mib
        return int(count)

    def _left_of(self, each: SubjectLimits) -> tuple[float, float]:
        most, members, uses = each.limits, members_of(self._tx, each.subject), self._tx.store.owner_uses
        gpus = inf if most.gpus is None else most.gpus - sum([uses.held(member) for member in members])
        if most.gpu_hours_per_week is not None and _hours_left_at_s(self._tx, members, most.gpu_hours_per_week) is not None:
            gpus = 0.0
        return gpus, inf if most.memory_mib is None else most.memory_mib - sum([uses.memory_mib(member) for member in members])


def must_wait(tx: Tx[Store], pools: Iterable[str], owner: str, demand: Demand) -> bool:
    """Whether the limits of an owner let a newcomer wait, or an older claim of the owner waits for the same limit."""
    allowance = allowance_of(tx, owner) if tx.store.limits.of else None
    if allowance is None:
        return False
    pools, is_counted, all_gpus = list(pools), False, 0
    older = []
    for name in pools:
        pool = tx.store.fleet.pool(name)
        waiting, all_gpus = pool.waiting_lines, max(all_gpus, pool.most_gpus())
        is_counted |= waiting.counts_gpus(owner)
        older += [line.peers.demand for line in waiting.lines_of(owner) if not line.is_open]
    standing = tx.store.fleet.allowances.get(owner)
    until = None if standing is None else standing.until
    if until is not None and is_counted and limited_amounts(demand)[0]:
        level = tx.store.fleet.levels.get(owner, UNUSED)
        if until[:2] <= (0, level):  # the priority is not known here: a claim with a higher one is served at once
            return True
    allowed = allowance if is_counted else allowance.of_lender()
    return not opened(allowed, [*older, demand], all_gpus)[-1]


def most_spare_gpus(tx: Tx[Store], pool_name: str, owner: str, gpus: int) -> float:
    """Return how many GPUs a task may take besides the `gpus` that it needs, by the limits of its owner. Infinite: no limit."""
    counts = tx.store.limits.of and tx.store.fleet.pool(pool_name).waiting_lines.counts_gpus(owner)
    allowance = allowance_of(tx, owner) if counts else None
    return inf if allowance is None else max(0.0, allowance.gpus - gpus)


def why_too_many_wait(tx: Tx[Store], owner: str, more_gpus: float = 0.0) -> str | None:
    """Return why the limits of an owner refuse a request, if `more_gpus` more GPUs would be waited for. None: they do not."""
    for each in limits_of(tx, owner):
        most = each.limits.waiting_gpus
        if most is None:
            continue
        waiting = waiting_gpus(tx, members_of(tx, each.subject)) + more_gpus
        if waiting > most:
            name = shown_subject(each.subject)
            return f"{name} may wait for {most} GPUs. With this request, it would wait for {_number(waiting)}{SEE}"
    return None


def waiting_gpus(tx: Tx[Store], owners: Iterable[str]) -> float:
    """Return for how many GPUs the claims of owners wait.

    Tasks that their tags hold back, and jobs that depend on others, do not wait for GPUs yet.
    """
    owners, fleet, total = set(owners), tx.store.fleet, 0.0
    for name in fleet.pools_with_claims():
        pool = fleet.pool(name)
        for line in [line for owner in owners for line in pool.waiting_lines.lines_of(owner)]:
            tasks = sum([claim.kind != JOB for claim in line.claims()])
            total += tasks * limited_amounts(line.peers.demand, pool.most_gpus())[0]
    jobs = [line for line in tx.store.job_lines.all().values() if line.key.owner in owners]
    return total + sum([line.count * limited_amounts(line.demand)[0] for line in jobs])


def why_limited(tx: Tx[Store], pool_name: str, owner: str, demand: Demand) -> str:
    """Name the limit for which claims of an owner wait."""
    uses = tx.store.owner_uses
    gpus, memory_mib = limited_amounts(demand, tx.store.fleet.pool(pool_name).most_gpus())
    gpus = gpus if tx.store.fleet.pool(pool_name).waiting_lines.counts_gpus(owner) else 0.0
    for each in limits_of(tx, owner):
        name, most, members = shown_subject(each.subject), each.limits, members_of(tx, each.subject)
        held, used_mib = sum([uses.held(member) for member in members]), sum([uses.memory_mib(member) for member in members])
        if gpus and most.gpus is not None and held + gpus > most.gpus:
            all_gpus = f", and needs all {_number(gpus)} of a host" if demand.gpus == ALL_GPUS else ""
            return f"{name} may hold {most.gpus} GPUs at once, and holds {_number(held)}{all_gpus}{SEE_LIMITS}"
        if gpus and most.gpu_hours_per_week is not None:
            used_h = uses.gpu_s(members, tx.now_s - WEEK_S, tx.now_s) / HOUR_S
            if used_h >= most.gpu_hours_per_week:
                limit = _number(most.gpu_hours_per_week)
                return f"{name} may use {limit} GPU-hours in seven days, and has used {used_h:.1f}{SEE_LIMITS}"
        if most.memory_mib is not None and used_mib + memory_mib > most.memory_mib:
            return f"{name} may reserve {most.memory_mib} MiB of memory at once, and reserves {used_mib}{SEE_LIMITS}"
    return f"an older task of {owner.removeprefix(OF_USER)} waits for a limit{SEE_LIMITS}"


# Shares


def why_behind(tx: Tx[Store], pool: Pool, claim: Claim) -> str:
    """Say how much the owner of a claim and the owner of the first claim have used, if this is why the claim is behind."""
    heads = pool.heads()
    if not heads or heads[0].owner == claim.owner:
        return ""
    first, own = heads[0], pool.ranked(claim)
    if first.rank[0] != own.rank[0] or first.rank[1] >= own.rank[1]:
        return ""
    own_use, first_use = _use_now(tx, own.owner), _use_now(tx, first.owner)
    weights = [_number(weight_of(tx, owner)) for owner in (own.owner, first.owner)]
    return (
        f"behind {_name(first.owner)}: {_name(own.owner)} holds {_number(own_use.held)} GPUs and used {own_use.used / HOUR_S:.1f} "
        f"GPU-hours lately, {_name(first.owner)} {_number(first_use.held)} and {first_use.used / HOUR_S:.1f}"
        + (f" (weights {weights[0]} and {weights[1]})" if weights[0] != weights[1] else "")
    )


def _use_now(tx: Tx[Store], owner: str) -> ShareUse:
    return use_at(tx.store.owner_uses.use(owner), tx.now_s, decay_of(tx.settings.half_life_s))


def _name(owner: str) -> str:
    return owner.removeprefix(OF_USER)


def _number(value: float) -> str:
    return f"{round(value, 2):g}"
