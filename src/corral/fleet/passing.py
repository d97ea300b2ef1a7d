"""What removed users have left, and its new owner.

A record in the state store has the name of a removed user, the new owner of its resources, and the lanes in which some still pass
(`reconcile/passing.py`). The record ends when a user gets the same name. Until all resources have passed, no user can get it.
"""

from __future__ import annotations

from typing import Any

from corral.core.transactions import Tx
from corral.model.passing import PassingStep
from corral.model.principal import owner_of_user
from corral.store import Store

KIND = "corral", "removed-user", ""
LANES = ("state", "logs", "metrics")


def record_of(tx: Tx[Store], name: str) -> dict[str, Any] | None:
    """Return what is known of a removed user: removedAt, to (empty: its resources stay under its name), left and passed."""
    return tx.store.stored.get(*KIND, name)


def is_passing(record: dict[str, Any] | None) -> bool:
    return record is not None and bool(record["left"])


def note_removed(tx: Tx[Store], name: str) -> None:
    """Note that a user was removed. Its resources stay under its name for now."""
    _put(tx, name, {"removedAt": tx.wall_s, "to": "", "left": [], "passed": 0})


def begin_passing(tx: Tx[Store], name: str, to: str) -> None:
    """Pass the resources of a removed user to another owner, in this transaction and in later ones."""
    before = record_of(tx, name)
    removed_at_s = before["removedAt"] if before is not None else tx.wall_s
    _put(tx, name, {"removedAt": removed_at_s, "to": to, "left": LANES, "passed": 0})
    tx.mark(PassingStep(owner_of_user(name), to).key)


def note_passed(tx: Tx[Store], name: str, lane: str, count: int) -> bool:
    """Note that a lane has passed all its resources. Return whether other lanes have not."""
    record = record_of(tx, name)
    assert record is not None, "the record stays while resources pass"
    left = [each for each in record["left"] if each != lane]
    _put(tx, name, {**record, "left": left, "passed": record["passed"] + count})
    return bool(left)


def forget(tx: Tx[Store], name: str) -> None:
    """Forget a removed user, because another user has its name now."""
    tx.store.stored.drop(*KIND, name)


def _put(tx: Tx[Store], name: str, record: dict[str, Any]) -> None:
    tx.store.stored.put(*KIND, name, record, tx.now_s)
