"""Distributes the tasks of a request to capacity providers, according to a capacity provider strategy."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class ProviderWeight(Struct, frozen=True):
    name: str
    weight: int = 0
    base: int = 0


def distribute(strategy: Sequence[ProviderWeight], count: int) -> list[str]:
    """Return the provider of each task.

    First each provider gets as many tasks as its base. The weights of the providers define their shares of the other tasks. Each of
    these tasks goes to the provider that is furthest below its share. If several providers are equally far below their shares, the
    first of them in the strategy gets the task. A provider with weight 0 gets only its base. If the strategy has only one provider,
    that provider gets all tasks.
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
