"""Scheduling policies: create, describe, update and delete.

A policy divides the capacity of a job queue between share identifiers. Each job in such a queue has a share identifier.
"""

from __future__ import annotations

from functools import lru_cache

import orjson
from msgspec import Struct

from corral.core import Tx
from corral.services.batch.names import POLICY, SERVICE, short
from corral.store import Store

POLICIES_CACHED_MAX = 256
DECAY_DEFAULT_S = 600.0  # the decay of a policy with shareDecaySeconds 0
WEIGHT_DEFAULT = 1.0


class FairShare(Struct, frozen=True):
    """The rules of a scheduling policy."""

    decay_s: float = DECAY_DEFAULT_S  # the time in which past use of capacity loses its weight
    reservation: int = 0  # computeReservation, in percent: 0 to 99
    weights: tuple[tuple[str, float], ...] = ()  # a share identifier, or a prefix that ends with *, and its weight

    def weight_of(self, share: str) -> float:
        """Return the weight of a share identifier. A share with a lower weight gets more capacity."""
        for name, weight in self.weights:
            if name == share or (name.endswith("*") and share.startswith(name[:-1])):
                return weight
        return WEIGHT_DEFAULT


def fair_share(tx: Tx[Store], region: str, arn: str) -> FairShare:
    """Return the rules of a policy. The record is cached while the document of the policy is unchanged."""
    name = short(POLICY, region, arn)
    text = tx.store.stored.text(SERVICE, POLICY, region, name) if name else None
    return _read(text) if text is not None else FairShare()


@lru_cache(maxsize=POLICIES_CACHED_MAX)
def _read(text: str) -> FairShare:
    policy = orjson.loads(text)["fairsharePolicy"]
    return FairShare(
        decay_s=float(policy["shareDecaySeconds"] or DECAY_DEFAULT_S),
        reservation=policy["computeReservation"],
        weights=tuple((each["shareIdentifier"], each.get("weightFactor", WEIGHT_DEFAULT)) for each in policy["shareDistribution"]),
    )
