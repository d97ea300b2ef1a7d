"""Which limits hold for an owner, and its weight.

A user has their own limits. For what these leave open, the limits of `everyone` hold, for each user separately. The limits of each
of the user's groups hold, too: a group counts what its members use together. Root has no limits, unless they name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import orjson

from corral.core.transactions import Tx
from corral.decide.tasks.lifecycle import duration_text
from corral.model.limits import EVERYONE, GROUP, NO_LIMITS, WEIGHT_DEFAULT, Limits, SubjectLimits, shown_subject
from corral.model.principal import OF_USER, USER, owner_of_user
from corral.model.task import Demand
from corral.store import Store

SEE = ": `corral limits` shows the limits."


def groups_of(tx: Tx[Store], owner: str) -> tuple[str, ...]:
    """Return the names of the groups of a user. The root user has none."""
    text = tx.store.stored.text("iam", USER, "", owner.removeprefix(OF_USER)) if owner.startswith(OF_USER) else None
    return _groups_in(text) if text is not None else ()


def members_of(tx: Tx[Store], subject: str) -> list[str]:
    """Return the owners whose use counts for a subject: the owner itself, or the members of the group."""
    kind, _, group = subject.partition("/")
    if kind != GROUP:
        return [subject]
    found = tx.store.stored.containing("iam", USER, "", f'"{group}"')
    return [owner_of_user(name) for name, user in found if group in user["_groups"]]


def limits_of(tx: Tx[Store], owner: str) -> list[SubjectLimits]:
    """Return the limits that hold for an owner: those of the owner first, and then those of its groups. All must hold."""
    stored = tx.store.limits.of
    if not stored:
        return []
    own = stored.get(owner, NO_LIMITS)
    if owner.startswith(OF_USER) and EVERYONE in stored:
        own = _overlaid(own, stored[EVERYONE])
    subjects = [f"{GROUP}/{name}" for name in groups_of(tx, owner)]
    found = [SubjectLimits(owner, own), *[SubjectLimits(each, stored[each]) for each in subjects if each in stored]]
    return [each for each in found if each.limits != NO_LIMITS]


def weight_of(tx: Tx[Store], owner: str) -> float:
    """Return the weight of an owner in the line: its own, or else the largest of its groups, or else that of everyone, or 1."""
    stored = tx.store.limits.of
    if not stored:
        return WEIGHT_DEFAULT
    own = stored.get(owner, NO_LIMITS).weight
    if own is not None:
        return own
    of_groups = [stored.get(f"{GROUP}/{name}", NO_LIMITS).weight for name in groups_of(tx, owner)]
    largest = max([each for each in of_groups if each is not None], default=None)
    if largest is None and owner.startswith(OF_USER):
        largest = stored.get(EVERYONE, NO_LIMITS).weight
    return largest if largest is not None else WEIGHT_DEFAULT


def _overlaid(own: Limits, default: Limits) -> Limits:
    values = {name: getattr(own, name) for name in Limits.__struct_fields__}
    return Limits(**{name: value if value is not None else getattr(default, name) for name, value in values.items()})


@lru_cache(maxsize=10_000)
def _groups_in(user: str) -> tuple[str, ...]:
    """Return the groups in the stored document of a user."""
    document: dict[str, Any] = orjson.loads(user)
    return tuple(document["_groups"])


def highest_priority(tx: Tx[Store], owner: str) -> int | None:
    """Return the highest priority that tasks of an owner may have. None: there is no limit."""
    return min([each.limits.priority for each in limits_of(tx, owner) if each.limits.priority is not None], default=None)


def why_refused(tx: Tx[Store], owner: str, demand: Demand, limit_s: float | None = None, priority: int = 0) -> str | None:
    """Return why the limits of an owner never allow a task with this demand, time limit and priority. None: they allow it."""
    gpus, memory_mib = _amounts(demand)
    for each in limits_of(tx, owner):
        name, most = shown_subject(each.subject), each.limits
        if most.longest_s is not None and limit_s is not None and limit_s > most.longest_s:
            longest = duration_text(most.longest_s)
            return f"The time limit is {duration_text(limit_s)}, but tasks of {name} may run for at most {longest}{SEE}"
        if most.priority is not None and priority > most.priority:
            return f"The priority is {priority}, but tasks of {name} may have at most {most.priority}{SEE}"
        if most.gpus is not None and gpus > most.gpus:
            return f"It needs {gpus} GPUs, but {name} may hold at most {most.gpus} at once{SEE}"
        if most.memory_mib is not None and memory_mib > most.memory_mib:
            return f"It needs {memory_mib} MiB of memory, but {name} may use at most {most.memory_mib} MiB at once{SEE}"
    return None


def why_too_large(
    tx: Tx[Store], owner: str, more_bytes: int, unfinished: Callable[[Collection[str]], int] = lambda owners: 0
) -> str | None:
    """Return why an owner may not store so many more bytes. None: it may.

    `unfinished` returns how many bytes of owners have arrived and are not stored yet. They count as more bytes.
    """
    for each in limits_of(tx, owner):
        most = each.limits.stored_bytes
        if most is None:
            continue
        members = members_of(tx, each.subject)
        stored, more = tx.store.stored_bytes.of(members), more_bytes + unfinished(members)
        if stored + more > most:
            name = shown_subject(each.subject)
            return f"{name} stores {stored} bytes, and may store {most}. {more} more bytes would exceed this limit{SEE}"
    return None


def _amounts(demand: Demand) -> tuple[int, int]:
    """Return the GPUs and the memory that a demand needs at least, of all nodes together. A part of a GPU counts as none."""
    nodes = demand.nodes or ((demand, 1),)
    gpus = sum([0 if node.gpu_memory_mib else node.least_gpus * count for node, count in nodes])
    return gpus, sum([node.memory_mib * count for node, count in nodes])


def limited_time_s(tx: Tx[Store], owner: str, given_s: float | None) -> float | None:
    """Return the time limit of a new task: the given one, but at most the longest that its owner may have."""
    allowed = [each.limits.longest_s for each in limits_of(tx, owner) if each.limits.longest_s is not None]
    return min([*allowed, given_s] if given_s is not None else allowed, default=None)
