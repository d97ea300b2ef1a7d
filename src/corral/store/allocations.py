"""SQL of allocations, which lenders give to EC2 instances."""

from __future__ import annotations

from collections.abc import Callable

import orjson

from corral.core.database import Database, Row
from corral.model.allocation import Allocation, AllocationState

_COLUMNS = "instance_id, lender, state, handle, reason, digest, host_id, running_at, others, options, created_at, machine, said"


class Allocations:
    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_changed: Callable[[], object] = lambda: None  # called after a commit that adds an allocation, or begins its end

    def get(self, instance_id: str) -> Allocation | None:
        row = self._database.execute(f"SELECT {_COLUMNS} FROM allocation WHERE instance_id = ?", (instance_id,)).fetchone()
        return _allocation(row) if row else None

    def of_lender(self, lender: str) -> list[Allocation]:
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM allocation WHERE lender = ? ORDER BY created_at", (lender,))
        return [_allocation(row) for row in rows.fetchall()]

    def all(self) -> list[Allocation]:
        return [_allocation(row) for row in self._database.execute(f"SELECT {_COLUMNS} FROM allocation ORDER BY created_at")]

    def put(self, allocation: Allocation) -> None:
        self._database.execute(
            f"INSERT OR REPLACE INTO allocation ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (allocation.instance_id, allocation.lender, allocation.state.value, allocation.handle, allocation.reason,
             allocation.digest, allocation.host_id, allocation.running_at_s, orjson.dumps(allocation.others).decode(),
             orjson.dumps(allocation.options).decode(), allocation.created_at_s, allocation.machine, allocation.said),
        )  # fmt: skip
        if allocation.state in (AllocationState.WANTED, AllocationState.ENDING):
            self._database.undo_log.on_commit(self.on_changed)

    def drop(self, instance_id: str) -> None:
        self._database.execute("DELETE FROM allocation WHERE instance_id = ?", (instance_id,))


def _allocation(row: Row) -> Allocation:
    return Allocation(
        instance_id=row[0], lender=row[1], state=AllocationState(row[2]), handle=row[3], reason=row[4], digest=row[5],
        host_id=row[6], running_at_s=row[7], others=tuple(orjson.loads(row[8])), options=orjson.loads(row[9]),
        created_at_s=row[10], machine=row[11], said=row[12],
    )  # fmt: skip
