"""Node ranges of multi-node jobs: `0:3`, `4:`, `:2` or `5`.

A job definition gives properties to ranges of nodes. Ranges may be nested. The properties of the smallest range that contains a
node apply to the node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from corral.model.numbers import whole_number
from corral.services.batch.errors import ClientException

RANGE = re.compile(r"([0-9]*)(:?)([0-9]*)")
NODES_MAX = 1000


def node_range(text: str, nodes: int) -> tuple[int, int]:
    """Return the first and the last node of a range. An open range begins at node 0 (`:2`), or ends at the last node (`4:`)."""
    found = RANGE.fullmatch(text)
    first = whole_number(found[1] or "0", NODES_MAX) if found is not None and text else None
    last = None
    if found is not None and first is not None:
        last = first if not found[2] else whole_number(found[3], NODES_MAX) if found[3] else max(first, nodes - 1)
    if first is None or last is None or last < first:
        raise ClientException(f"targetNodes '{text[:100]}' is not valid: give a range of node indexes such as 0:3, 4: or :2.")
    return first, last


def is_open(text: str) -> bool:
    """Whether a range has no upper end, so that it grows with the number of nodes."""
    return text.endswith(":")


def owners(ranges: Sequence[str], nodes: int) -> list[int | None]:
    """Return for each node the position of the range that applies to it; None for a node that is in no range.

    The smallest range applies. Of two ranges with the same size, the later applies.
    """
    chosen: list[int | None] = [None] * nodes
    bounds = [node_range(text, nodes) for text in ranges]
    by_size = sorted(range(len(bounds)), key=lambda at: (bounds[at][0] - bounds[at][1], at))  # the largest range first
    for at in by_size:
        first, last = bounds[at]
        for node in range(first, min(last, nodes - 1) + 1):
            chosen[node] = at
    return chosen


def groups(owners_of_nodes: Sequence[object]) -> list[tuple[int, int]]:
    """Return (first, last) of each sequence of consecutive nodes with equal owners."""
    found: list[tuple[int, int]] = []
    for node, owner in enumerate(owners_of_nodes):
        if found and owners_of_nodes[found[-1][1]] == owner:
            found[-1] = (found[-1][0], node)
        else:
            found.append((node, node))
    return found
