"""Decides, for a mixed instances policy, whether an instance is on-demand or spot, and in which order launches try types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct

from corral.model.group import ON_DEMAND, SPOT

BY_PRICE = ("lowest-price", "price-capacity-optimized")  # all other strategies use the order of the overrides


class TypeOption(Struct, frozen=True):
    """An override of a mixed instances policy."""

    type: str
    weight: int = 1
    at: int = 0  # the index of this override in the policy


def ordered(options: Sequence[TypeOption], strategy: str, prices: Mapping[str, float]) -> list[TypeOption]:
    """Sort options in the order in which launches try them: by price per unit, or as given. Types without a price are last."""
    if strategy not in BY_PRICE:
        return sorted(options, key=lambda option: option.at)
    return sorted(options, key=lambda option: (prices.get(option.type, inf) / option.weight, option.at))


def next_market(on_demand: int, spot: int, base: int, percentage_above: int) -> str:
    """Return the market (on-demand or spot) of the next capacity unit, by the policy's on-demand base and percentage."""
    return ON_DEMAND if on_demand < on_demand_share(on_demand + spot + 1, base, percentage_above) else SPOT


def surplus_market(on_demand: int, spot: int, base: int, percentage_above: int) -> str | None:
    """Return the market that should lose the next unit, or None if the group has no units."""
    if on_demand + spot == 0:
        return None
    return ON_DEMAND if on_demand > on_demand_share(on_demand + spot - 1, base, percentage_above) else SPOT


def on_demand_share(capacity: int, base: int, percentage_above: int) -> int:
    """Return how many units of a capacity are on-demand: the base, and a percentage of the rest, rounded up."""
    above = max(0, capacity - base)
    return min(capacity, base) + -(-above * percentage_above // 100)
