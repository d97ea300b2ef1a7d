"""The schedule for lifecycle rules of S3. Each key and each upload to which rules apply has a row with its next evaluation time."""

from __future__ import annotations

from msgspec import Struct

from corral.core.database import Database
from corral.model.objects import ObjectVersion
from corral.store.object_rows import VERSION_COLUMNS, version_of


class ExpiryTarget(Struct, frozen=True):
    """A key or an upload that lifecycle rules apply to."""

    bucket_id: int
    key: str
    upload_id: str  # empty if the target is a key with all its versions


class Expiries:
    """The lifecycle schedule in the state store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, target: ExpiryTarget, at_s: float | None) -> None:
        """Schedule the next evaluation of the target. `at_s` None removes the target from the schedule."""
        row = (target.bucket_id, target.key.encode(), target.upload_id)
        if at_s is None:
            self._database.execute("DELETE FROM expiry WHERE bucket = ? AND key = ? AND upload = ?", row)
        else:
            self._database.execute("INSERT OR REPLACE INTO expiry (bucket, key, upload, at) VALUES (?, ?, ?, ?)", (*row, at_s))

    def due(self, now_s: float, limit: int) -> list[ExpiryTarget]:
        sql = "SELECT bucket, key, upload FROM expiry WHERE at <= ? ORDER BY at LIMIT ?"
        return [ExpiryTarget(bucket, key.decode(), upload) for bucket, key, upload in self._database.execute(sql, (now_s, limit))]

    def next_s(self) -> float | None:
        (at_s,) = self._database.execute("SELECT min(at) FROM expiry").fetchone()
        return None if at_s is None else float(at_s)

    # Versions of a key

    def version_count(self, bucket_id: int, key: str) -> int:
        sql = "SELECT count(*) FROM object_version WHERE bucket = ? AND key = ?"
        return int(self._database.execute(sql, (bucket_id, key.encode())).fetchone()[0])

    def oldest_versions(self, bucket_id: int, key: str, limit: int) -> list[ObjectVersion]:
        sql = f"SELECT {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key = ? ORDER BY number LIMIT ?"
        return [version_of(row) for row in self._database.execute(sql, (bucket_id, key.encode(), limit))]

    # The walk: it visits all uploads and keys of a bucket after the lifecycle rules of the bucket have changed

    def begin_walk(self, bucket_id: int) -> None:
        self._database.execute("INSERT OR REPLACE INTO expiry_walk (bucket, upload, key) VALUES (?, 0, x'')", (bucket_id,))

    def walk(self, bucket_id: int, limit: int) -> list[ExpiryTarget] | None:
        """The next uploads of the walk, and after all uploads the next keys. The list is empty at the end of the walk.

        Returns None if no walk is in progress.
        """
        row = self._database.execute("SELECT upload, key FROM expiry_walk WHERE bucket = ?", (bucket_id,)).fetchone()
        if row is None:
            return None
        sql = "SELECT content, key, id FROM upload WHERE bucket = ? AND content > ? ORDER BY content LIMIT ?"
        uploads = self._database.execute(sql, (bucket_id, row[0], limit)).fetchall()
        if uploads:
            self._database.execute("UPDATE expiry_walk SET upload = ? WHERE bucket = ?", (uploads[-1][0], bucket_id))
            return [ExpiryTarget(bucket_id, key.decode(), upload_id) for _, key, upload_id in uploads]
        keys = self._next_keys(bucket_id, row[1], limit)
        if keys:
            self._database.execute("UPDATE expiry_walk SET key = ? WHERE bucket = ?", (keys[-1], bucket_id))
        return [ExpiryTarget(bucket_id, key.decode(), "") for key in keys]

    def end_walk(self, bucket_id: int) -> None:
        self._database.execute("DELETE FROM expiry_walk WHERE bucket = ?", (bucket_id,))

    def _next_keys(self, bucket_id: int, after: bytes, limit: int) -> list[bytes]:
        """The next keys after the key `after`. Each key needs one index look-up, even if it has many versions."""
        found = list[bytes]()
        sql = "SELECT min(key) FROM object_version WHERE bucket = ? AND key > ?"
        while len(found) < limit:
            (following,) = self._database.execute(sql, (bucket_id, after)).fetchone()
            if following is None:
                break
            found.append(following)
            after = following
        return found
