"""Which capacity provider each task of a request goes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProviderWeight:
    name: str
    weight: int = 0
    base: int = 0


def distribute(strategy: Sequence[ProviderWeight], count: int) -> list[str]:
    """A name per task: bases first, then each next task to whom it brings least above its weight; the first named wins a tie.

    A provider without weight gets its base alone. One that stands alone gets everything.
    """
    names = [provider.name for provider in strategy for _ in range(provider.base)][:count]
    if len(strategy) == 1:
        return [strategy[0].name] * count
    weighed = [provider for provider in strategy if provider.weight]
    given = dict.fromkeys((provider.name for provider in weighed), 0)
    while weighed and len(names) < count:
        following = min(weighed, key=lambda provider: (given[provider.name] + 1) / provider.weight)
        given[following.name] += 1
        names.append(following.name)
    return names
