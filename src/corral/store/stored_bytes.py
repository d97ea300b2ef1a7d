"""SQL of the bytes that each owner stores. Triggers in `stored_bytes.sql` keep the sums."""

from __future__ import annotations

from collections.abc import Iterable

from corral.core.database import Database
from corral.store.buckets import Buckets

# The sums, computed from the rows. The migration fills the table with them.
SUMS = (
    "SELECT owner, sum(size) FROM (SELECT owner, size FROM object_version JOIN bucket ON bucket.id = bucket WHERE size > 0 "
    "UNION ALL SELECT owner, size FROM upload JOIN content_part USING (content) JOIN bucket ON bucket.id = bucket "
    "UNION ALL SELECT owner, size FROM repository_layer JOIN layer USING (digest) JOIN repository ON repository.id = repository) "
    "GROUP BY owner"
)


class StoredBytes:
    def __init__(self, database: Database, buckets: Buckets) -> None:
        self._execute = database.execute
        self._forget_buckets = buckets.forget

    def pass_on(self, owner: str, to: str) -> int:
        """Pass all buckets and repositories of an owner to another one, and the sums. Return how many have passed.

        They pass together, because the sum of a single bucket is not stored.
        """
        values = to, owner
        tables = "bucket", "repository"
        passed = sum([self._execute(f"UPDATE {table} SET owner = ? WHERE owner = ?", values).rowcount for table in tables])
        if passed:
            self._forget_buckets()
            self._execute(
                "INSERT INTO stored_bytes SELECT ?, bytes FROM stored_bytes WHERE owner = ? "
                "ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes",
                values,
            )
            self._execute("DELETE FROM stored_bytes WHERE owner = ?", (owner,))
        return passed

    def of(self, owners: Iterable[str]) -> int:
        """Return the bytes that these owners store together."""
        sql = "SELECT bytes FROM stored_bytes WHERE owner = ?"
        rows = [self._execute(sql, (owner,)).fetchone() for owner in owners]
        return sum([row[0] for row in rows if row is not None])
