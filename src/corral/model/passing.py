"""The progress with which the resources of a removed user pass to another owner. It is a part of the key of a reconciler."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

PASSING = "passing"  # the reconciler, and the kind of the hand-overs between its lanes


class PassingStep(Struct, frozen=True, array_like=True):
    owner: str  # the removed user
    to: str
    table: int = 0  # the tables before this one were read in this round
    after: tuple[Any, ...] | None = None  # the key of the last row that was read; None: no row of the table was read
    passed: int = 0  # in this round; a round that passes nothing is the last
    total: int = 0

    @property
    def key(self) -> str:
        return f"{PASSING}:{msgspec.json.encode(self).decode()}"


def step_of(name: str) -> PassingStep:
    """Return the step that the key of the reconciler has after its colon."""
    return msgspec.json.decode(name, type=PassingStep)
