"""Sorts the nodes of a graph so that each node follows the nodes that it depends on."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def in_order(dependencies: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names in an order in which each name follows the names that it depends on.

    Names on a cycle are left out, and also names that depend on a cycle.
    """
    waiting = {name: len(needed) for name, needed in dependencies.items()}
    dependents: dict[str, list[str]] = {name: [] for name in dependencies}
    for name, needed in dependencies.items():
        for other in needed:
            dependents[other].append(name)
    ordered = [name for name, count in waiting.items() if not count]
    for name in ordered:  # the loop also handles the names that it appends
        for dependent in dependents[name]:
            waiting[dependent] -= 1
            if not waiting[dependent]:
                ordered.append(dependent)
    return ordered


def cyclic(dependencies: Mapping[str, Collection[str]]) -> list[str]:
    """Return the names on a cycle, or between two cycles. The list is empty if there is no cycle."""
    ordered = set(in_order(dependencies))
    left = [name for name in dependencies if name not in ordered]
    if not left:
        return []
    # `left` also has names that are not on a cycle, but depend on one. If all dependencies are reversed, these names depend on no
    # cycle, so `in_order` finds them.
    opposite: dict[str, list[str]] = {name: [] for name in left}
    for name in left:
        for other in dependencies[name]:
            if other in opposite:
                opposite[other].append(name)
    free = set(in_order(opposite))
    return sorted(name for name in left if name not in free)
