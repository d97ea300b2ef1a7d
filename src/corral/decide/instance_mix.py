"""Mixed instances policies: how capacity is divided between on-demand and spot instances, and in which order types are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from msgspec import Struct

from corral.model.group import ON_DEMAND, SPOT

BY_PRICE = ("lowest-price", "price-capacity-optimized")  # other strategies follow the order of the overrides


class TypeOption(Struct, frozen=True):
    """An override of a mixed instances policy."""

    type: str
    weight: int = 1
    at: int = 0  # its place among the overrides


def ordered(options: Sequence[TypeOption], strategy: str, prices: Mapping[str, float]) -> list[TypeOption]:
    """The options in the order in which launches try them: by price per unit, or as given. Types without a price come last."""
    if strategy not in BY_PRICE:
        return sorted(options, key=lambda option: option.at)
    return sorted(options, key=lambda option: (prices.get(option.type, inf) / option.weight, option.at))


def next_market(on_demand: int, spot: int, base: int, percentage_above: int) -> str:
    """The market of the next capacity unit, so that on-demand capacity follows its base and its share above the base."""
    return ON_DEMAND if on_demand < on_demand_share(on_demand + spot + 1, base, percentage_above) else SPOT


def surplus_market(on_demand: int, spot: int, base: int, percentage_above: int) -> str | None:
    """The market that one unit should be taken from."""
    if on_demand + spot == 0:
        return None
    return ON_DEMAND if on_demand > on_demand_share(on_demand + spot - 1, base, percentage_above) else SPOT


def on_demand_share(capacity: int, base: int, percentage_above: int) -> int:
    """The on-demand units of a capacity. A fraction above the base is rounded up in favour of on-demand."""
    above = max(0, capacity - base)
    return min(capacity, base) + -(-above * percentage_above // 100)
