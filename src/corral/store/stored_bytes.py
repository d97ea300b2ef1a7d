"""SQL of the bytes that each owner stores. Triggers in `stored_bytes.sql` keep the sums."""

from __future__ import annotations

from collections.abc import Iterable

from corral.core.database import Database

# The sums, computed from the rows. The migration fills the table with them.
SUMS = (
    "SELECT owner, sum(size) FROM (SELECT owner, size FROM object_version JOIN bucket ON bucket.id = bucket WHERE size > 0 "
    "UNION ALL SELECT owner, size FROM upload JOIN content_part USING (content) JOIN bucket ON bucket.id = bucket "
    "UNION ALL SELECT owner, size FROM repository_layer JOIN layer USING (digest) JOIN repository ON repository.id = repository) "
    "GROUP BY owner"
)


class StoredBytes:
    def __init__(self, database: Database) -> None:
        self._execute = database.execute

    def of(self, owners: Iterable[str]) -> int:
        """Return the bytes that these owners store together."""
        sql = "SELECT bytes FROM stored_bytes WHERE owner = ?"
        rows = [self._execute(sql, (owner,)).fetchone() for owner in owners]
        return sum([row[0] for row in rows if row is not None])
