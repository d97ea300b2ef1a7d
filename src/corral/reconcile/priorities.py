"""The reconciler `priorities` lowers the priorities of waiting tasks that are above the limits of their owners.

It runs when a limit changes, when a user joins a group, and when a task that its tags held back begins to wait for capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from corral.core.transactions import Tx
from corral.fleet.limits import highest_priority
from corral.fleet.shares import PRIORITIES
from corral.model.placement import TASK, Claim
from corral.services.ecs.waiting_changes import lower_priority
from corral.store import Store

CHANGES_MAX = 100  # tasks of one transaction: about 20 ms of work


def lower_priorities(tx: Tx[Store], _: str) -> None:
    found = list(islice(_too_high(tx), CHANGES_MAX))
    for claim, most in found:
        task = tx.store.tasks.get(claim.id)
        assert task is not None
        lower_priority(tx, task, most)
    if len(found) == CHANGES_MAX:
        tx.due(PRIORITIES, tx.now_s)


def _too_high(tx: Tx[Store]) -> Iterator[tuple[Claim, int]]:
    """Yield the claims of tasks with a priority above the limit, and the limit."""
    fleet = tx.store.fleet
    for name in fleet.pools_with_claims():
        for owner, groups in fleet.pool(name).waiting_lines.owners.items():
            most = highest_priority(tx, owner)
            if most is None:
                continue
            lines = [line for priority, group in groups.items() if -priority > most for line in group.lines]
            yield from ((claim, most) for line in lines for claim in line.claims() if claim.kind == TASK)
