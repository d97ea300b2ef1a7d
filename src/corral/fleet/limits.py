"""Which limits hold for an owner, and its weight.

A user has their own limits. For what these leave open, the limits of `everyone` hold, for each user separately. The limits of each
of the user's groups hold, too: a group counts what its members use together. Root has no limits, unless they name it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from corral.core.transactions import Tx
from corral.model.limits import EVERYONE, GROUP, NO_LIMITS, WEIGHT_DEFAULT, Limits, SubjectLimits
from corral.model.principal import OF_USER, USER
from corral.store import Store


def groups_of(tx: Tx[Store], owner: str) -> tuple[str, ...]:
    """Return the names of the groups of a user. The root user has none."""
    text = tx.store.stored.text("iam", USER, "", owner.removeprefix(OF_USER)) if owner.startswith(OF_USER) else None
    return _groups_in(text) if text is not None else ()


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
