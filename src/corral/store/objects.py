"""Versions of objects and their contents: their only SQL. The bytes themselves are files (`blobs/`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corral.model.blob import Slice
from corral.model.objects import Part, Version
from corral.store.object_rows import PART_COLUMNS, VERSION_COLUMNS, dumps, part_of, version_of
from corral.store.uploads import Uploads

NEWEST = "SELECT number FROM object_version WHERE bucket = ? AND key = ? ORDER BY number DESC LIMIT 1"


class Objects(Uploads):
    """A part of the state store: it shares the store's connection, transactions and savepoints."""

    # Of a whole bucket

    def holds_versions(self, bucket_id: int) -> bool:
        """Whether any version or delete marker is in the bucket."""
        return self._database.execute("SELECT 1 FROM object_version WHERE bucket = ? LIMIT 1", (bucket_id,)).fetchone() is not None

    def drop_uploads(self, bucket_id: int) -> bool:
        """Those that were not completed. True: there were some."""
        uploads = self._database.execute("DELETE FROM upload WHERE bucket = ? RETURNING content", (bucket_id,)).fetchall()
        self._database.executemany("UPDATE content SET refs = 0 WHERE id = ?", uploads)
        self._drop_empty({content for (content,) in uploads})
        return bool(uploads)

    # Versions

    def latest(self, bucket_id: int, key: str) -> Version | None:
        """The newest version of a key, which may be a delete marker."""
        sql = f"SELECT {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key = ? ORDER BY number DESC LIMIT 1"
        row = self._database.execute(sql, (bucket_id, key.encode())).fetchone()
        return version_of(row) if row else None

    def version(self, bucket_id: int, key: str, version_id: str) -> Version | None:
        sql = f"SELECT {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key = ? AND id = ?"
        row = self._database.execute(sql, (bucket_id, key.encode(), version_id)).fetchone()
        return version_of(row) if row else None

    def next_number(self) -> int:
        """The number that the next version will have."""
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'object_version'").fetchone()
        return int(row[0]) + 1 if row else 1

    def add_version(self, bucket_id: int, version: Version, *, is_first: bool = False) -> None:
        """It becomes the latest of its key; nothing else of its id may be there. A reference to its content becomes its own.

        `is_first`: its key is known to have no other version.
        """
        key = version.key.encode()
        if not is_first:
            self._database.execute(f"UPDATE object_version SET latest = 0 WHERE number = ({NEWEST})", (bucket_id, key))
        self._database.execute(
            f"INSERT INTO object_version (bucket, {VERSION_COLUMNS}) VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?)",
            (bucket_id, version.number, key, version.id, version.content, version.size, version.etag, version.modified_at_s,
             dumps(version.details), version.upload_id),
        )  # fmt: skip

    def drop_version(self, bucket_id: int, version: Version) -> bool:
        """The newest of those that are left becomes the latest. True: nobody refers to its bytes any more."""
        self._database.execute("DELETE FROM object_version WHERE number = ?", (version.number,))
        if version.latest:
            sql = f"UPDATE object_version SET latest = 1 WHERE number = ({NEWEST})"
            self._database.execute(sql, (bucket_id, version.key.encode()))
        return version.content is not None and self.release(version.content)

    def set_details(self, number: int, details: Mapping[str, Any]) -> None:
        self._database.execute("UPDATE object_version SET details = ? WHERE number = ?", (dumps(details), number))

    def version_of_upload(self, upload_id: str) -> tuple[int, Version] | None:
        """(bucket, version) that a completed upload has made, as long as it is there."""
        sql = f"SELECT bucket, {VERSION_COLUMNS} FROM object_version WHERE upload_id = ?"
        row = self._database.execute(sql, (upload_id,)).fetchone()
        return (row[0], version_of(row[1:])) if row else None

    # Contents

    def add_content(self, part: Part) -> int:
        """A content of one part, and the first reference to it: that of a version or of a layer, which must follow."""
        content = self._new_content(1)
        self._put_part(content, part)
        return content

    def parts(self, content: int, *, after: int = 0, limit: int = -1) -> list[Part]:
        sql = f"SELECT {PART_COLUMNS} FROM content_part WHERE content = ? AND number > ? ORDER BY number LIMIT ?"
        return [part_of(row) for row in self._database.execute(sql, (content, after, limit))]

    def part_count(self, content: int) -> int:
        return int(self._database.execute("SELECT count(*) FROM content_part WHERE content = ?", (content,)).fetchone()[0])

    def slices(self, content: int, start: int, size: int) -> tuple[Slice, ...]:
        """The blobs that hold these bytes of a content."""
        found, at, end = [], 0, start + size
        for blob, length in self._database.execute(
            "SELECT blob, size FROM content_part WHERE content = ? ORDER BY number", (content,)
        ):
            first, last = max(start, at), min(end, at + length)
            if first < last:
                found.append(Slice(blob, first - at, last - first))
            at += length
            if at >= end:
                break
        return tuple(found)

    # Blobs that nobody refers to any more

    def garbage(self, limit: int) -> list[str]:
        rows = self._database.execute(
            "SELECT blob FROM content JOIN content_part ON content_part.content = content.id WHERE content.refs = 0 LIMIT ?",
            (limit,),
        )
        return [blob for (blob,) in rows]

    def drop_garbage(self, blobs: Iterable[str]) -> None:
        """Their files are gone."""
        sql = "DELETE FROM content_part WHERE blob = ? RETURNING content"
        rows = (self._database.execute(sql, (blob,)).fetchone() for blob in blobs)
        self._drop_empty({row[0] for row in rows if row is not None})

    def known_blobs(self, blobs: Sequence[str]) -> set[str]:
        """Those of them that a row refers to."""
        sql = f"SELECT blob FROM content_part WHERE blob IN ({', '.join('?' * len(blobs))})"
        return {blob for (blob,) in self._database.execute(sql, blobs)}

    def refer_to(self, content: int) -> None:
        """One more does: a version of an object must follow."""
        self._database.execute("UPDATE content SET refs = refs + 1 WHERE id = ?", (content,))

    def release(self, content: int) -> bool:
        """One refers to it no more. True: nobody does, and its files are garbage."""
        sql = "UPDATE content SET refs = refs - 1 WHERE id = ? RETURNING refs"
        return bool(self._database.execute(sql, (content,)).fetchone()[0] == 0)
