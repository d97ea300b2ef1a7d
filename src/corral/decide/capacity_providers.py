"""Capacity provider strategies: which provider each task of a request gets."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class ProviderWeight(Struct, frozen=True):
    name: str
    weight: int = 0
    base: int = 0


def distribute(strategy: Sequence[ProviderWeight], count: int) -> list[str]:
    """The provider of each task: bases first, then each task goes to the provider furthest below its share.

    On a tie the first provider of the strategy wins. A provider without weight gets only its base. If the strategy has only one
    provider, it gets all tasks.
    """
    names = [provider.name for provider in strategy for _ in range(provider.base)][:count]
    if len(strategy) == 1:
        return [strategy[0].name] * count
    weighed = [provider for provider in strategy if provider.weight]
    given = dict.fromkeys((provider.name for provider in weighed), 0)
    while weighed and len(names) < count:
        chosen = min(weighed, key=lambda provider: (given[provider.name] + 1) / provider.weight)
        given[chosen.name] += 1
        names.append(chosen.name)
    return names
