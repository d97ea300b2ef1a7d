"""SQL of the code and the invocations of Lambda functions."""

from __future__ import annotations

from corral.core.database import Database, Row
from corral.model.function import Invocation, InvocationState

COLUMNS = "id, region, function, is_async, state, payload, context, attempts, created_at, due_at, result, log"


class LambdaFunctions:
    """The code and the invocations of functions in the state store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # Code

    def add_code(self, code: bytes) -> int:
        (id,) = self._database.execute("INSERT INTO function_code (zip) VALUES (?) RETURNING id", (code,)).fetchone()
        return int(id)

    def code(self, id: int) -> bytes | None:
        row = self._database.execute("SELECT zip FROM function_code WHERE id = ?", (id,)).fetchone()
        return bytes(row[0]) if row else None

    def drop_code(self, id: int) -> None:
        self._database.execute("DELETE FROM function_code WHERE id = ?", (id,))

    # Invocations

    def add(self, invocation: Invocation) -> None:
        marks = ", ".join("?" * len(COLUMNS.split(",")))
        self._database.execute(f"INSERT INTO invocation ({COLUMNS}) VALUES ({marks})", _values(invocation))

    def put(self, invocation: Invocation) -> None:
        """Replace the row of an invocation. Do nothing if it no longer exists."""
        columns = ", ".join(f"{column} = ?" for column in COLUMNS.split(", "))
        self._database.execute(f"UPDATE invocation SET {columns} WHERE id = ?", (*_values(invocation), invocation.id))

    def get(self, id: str) -> Invocation | None:
        row = self._database.execute(f"SELECT {COLUMNS} FROM invocation WHERE id = ?", (id,)).fetchone()
        return _invocation(row) if row else None

    def drop(self, id: str) -> None:
        self._database.execute("DELETE FROM invocation WHERE id = ?", (id,))

    def queued(self, now_s: float, limit: int) -> list[Invocation]:
        """Return the queued invocations that are due, oldest first."""
        sql = f"SELECT {COLUMNS} FROM invocation WHERE state = 'queued' AND due_at <= ? ORDER BY due_at, number LIMIT ?"
        return [_invocation(row) for row in self._database.execute(sql, (now_s, limit))]

    def next_due_s(self) -> float | None:
        row = self._database.execute("SELECT min(due_at) FROM invocation WHERE state = 'queued'").fetchone()
        return float(row[0]) if row[0] is not None else None

    def count(self, state: InvocationState) -> int:
        return int(self._database.execute("SELECT count(*) FROM invocation WHERE state = ?", (state.value,)).fetchone()[0])

    def count_due(self, now_s: float, limit: int) -> int:
        """Return the number of queued invocations that are due, at most `limit`."""
        sql = "SELECT count(*) FROM (SELECT 1 FROM invocation WHERE state = 'queued' AND due_at <= ? LIMIT ?)"
        return int(self._database.execute(sql, (now_s, limit)).fetchone()[0])

    def requeue_running(self, now_s: float) -> None:
        """Queue the asynchronous invocations that ran when Corral ended.

        Delete the synchronous invocations, because their clients have disconnected.
        """
        self._database.execute("DELETE FROM invocation WHERE is_async = 0")
        self._database.execute("UPDATE invocation SET state = 'queued', due_at = ? WHERE state = 'running'", (now_s,))

    def drop_ended(self, before_s: float, limit: int) -> int:
        """Delete invocations that ended before a time. Return their number."""
        sql = (
            "DELETE FROM invocation WHERE number IN (SELECT number FROM invocation "
            "WHERE state IN ('succeeded', 'failed') AND due_at <= ? LIMIT ?)"
        )
        return self._database.execute(sql, (before_s, limit)).rowcount

    def first_ended_s(self) -> float | None:
        sql = "SELECT min(due_at) FROM invocation WHERE state IN ('succeeded', 'failed')"
        row = self._database.execute(sql).fetchone()
        return float(row[0]) if row[0] is not None else None


def _values(invocation: Invocation) -> tuple[str | int | float | bytes, ...]:
    return (
        invocation.id, invocation.region, invocation.function, int(invocation.is_async), invocation.state.value,
        invocation.payload, invocation.context, invocation.attempts, invocation.created_at_s, invocation.due_at_s,
        invocation.result, invocation.log,
    )  # fmt: skip


def _invocation(row: Row) -> Invocation:
    id, region, function, is_async, state, payload, context, attempts, created_at, due_at, result, log = row
    return Invocation(
        id, region, function, bool(is_async), InvocationState(state), bytes(payload), context, attempts, created_at, due_at,
        bytes(result), bytes(log),
    )  # fmt: skip
