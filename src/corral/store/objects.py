"""SQL of object versions, contents and multipart uploads. The bytes are in files (`blobs/`).

A content is a list of parts. Each part is one blob. Versions, uploads and image layers refer to contents. A content without
references is garbage. Its files are deleted first, then its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from corral.model.blob import Slice
from corral.model.objects import ContentPart, MultipartUpload, ObjectVersion
from corral.store.object_listing import ObjectListing
from corral.store.object_rows import PART_COLUMNS, UPLOAD_COLUMNS, VERSION_COLUMNS, dumps, part_of, upload_of, version_of

# `p.blob` is the blob of part 1 if this part has all bytes of the version, otherwise NULL.
LATEST_WITH_BLOB = (
    f"SELECT {', '.join(f'v.{column}' for column in VERSION_COLUMNS.split(', '))}, p.blob FROM object_version AS v "
    "LEFT JOIN content_part AS p ON p.content = v.content AND p.number = 1 AND p.size = v.size "
    "WHERE v.bucket = ? AND v.key = ? ORDER BY v.number DESC LIMIT 1"
)
NEWEST = "SELECT number FROM object_version WHERE bucket = ? AND key = ? ORDER BY number DESC LIMIT 1"


class Objects(ObjectListing):
    # Buckets

    def holds_versions(self, bucket_id: int) -> bool:
        """Whether the bucket has a version or a delete marker."""
        return self._database.execute("SELECT 1 FROM object_version WHERE bucket = ? LIMIT 1", (bucket_id,)).fetchone() is not None

    def drop_uploads(self, bucket_id: int) -> bool:
        """Delete the unfinished uploads of the bucket. Returns True if there were any: their parts are garbage now."""
        uploads = self._database.execute("DELETE FROM upload WHERE bucket = ? RETURNING content", (bucket_id,)).fetchall()
        self._database.executemany("UPDATE content SET refs = 0 WHERE id = ?", uploads)
        self._drop_empty({content for (content,) in uploads})
        return bool(uploads)

    # Versions

    def latest(self, bucket_id: int, key: str) -> ObjectVersion | None:
        """The newest version of a key, which may be a delete marker."""
        sql = f"SELECT {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key = ? ORDER BY number DESC LIMIT 1"
        row = self._database.execute(sql, (bucket_id, key.encode())).fetchone()
        return version_of(row) if row else None

    def latest_with_blob(self, bucket_id: int, key: str) -> tuple[ObjectVersion, str | None] | None:
        """The newest version of a key, and the blob that has all its bytes.

        The blob is None for a delete marker, and for an object of several parts, whose blobs `slices` returns. One statement reads
        the version and the blob, because almost every GetObject needs both.
        """
        row = self._database.execute(LATEST_WITH_BLOB, (bucket_id, key.encode())).fetchone()
        return (version_of(row[:-1]), row[-1]) if row else None

    def version(self, bucket_id: int, key: str, version_id: str) -> ObjectVersion | None:
        sql = f"SELECT {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key = ? AND id = ?"
        row = self._database.execute(sql, (bucket_id, key.encode(), version_id)).fetchone()
        return version_of(row) if row else None

    def next_number(self) -> int:
        row = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'object_version'").fetchone()
        return int(row[0]) + 1 if row else 1

    def add_version(self, bucket_id: int, version: ObjectVersion, *, is_first: bool = False) -> None:
        """Add a version, which becomes the latest version of its key. The id of the version must be new.

        The version takes over one reference to its content. `is_first` means that the key has no other version, which saves a
        query.
        """
        key = version.key.encode()
        if not is_first:
            self._database.execute(f"UPDATE object_version SET latest = 0 WHERE number = ({NEWEST})", (bucket_id, key))
        self._database.execute(
            f"INSERT INTO object_version (bucket, {VERSION_COLUMNS}) VALUES (?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?)",
            (bucket_id, version.number, key, version.id, version.content, version.size, version.etag, version.modified_at_s,
             dumps(version.details), version.upload_id, " ".join(version.writers) or None),
        )  # fmt: skip

    def drop_version(self, bucket_id: int, version: ObjectVersion) -> bool:
        """Delete a version. The newest remaining version becomes the latest. Returns True if the content is garbage now."""
        self._database.execute("DELETE FROM object_version WHERE number = ?", (version.number,))
        if version.latest:
            sql = f"UPDATE object_version SET latest = 1 WHERE number = ({NEWEST})"
            self._database.execute(sql, (bucket_id, version.key.encode()))
        return version.content is not None and self.release(version.content)

    def set_details(self, number: int, details: Mapping[str, Any]) -> None:
        self._database.execute("UPDATE object_version SET details = ? WHERE number = ?", (dumps(details), number))

    def version_of_upload(self, upload_id: str) -> tuple[int, ObjectVersion] | None:
        """The bucket id and the version that a completed upload created; None if the version no longer exists."""
        sql = f"SELECT bucket, {VERSION_COLUMNS} FROM object_version WHERE upload_id = ?"
        row = self._database.execute(sql, (upload_id,)).fetchone()
        return (row[0], version_of(row[1:])) if row else None

    # Multipart uploads

    def add_upload(self, upload_id: str, bucket_id: int, key: str, now_s: float, details: Mapping[str, Any]) -> None:
        self._database.execute(
            f"INSERT INTO upload ({UPLOAD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            (self._new_content(1), upload_id, bucket_id, key.encode(), now_s, dumps(details)),
        )

    def upload(self, upload_id: str) -> MultipartUpload | None:
        row = self._database.execute(f"SELECT {UPLOAD_COLUMNS} FROM upload WHERE id = ?", (upload_id,)).fetchone()
        return upload_of(row) if row else None

    def put_part(self, upload: MultipartUpload, part: ContentPart) -> bool:
        """Add a part. Returns True if it replaced a part with the same number. The blob of the replaced part is garbage then."""
        replaced = self._discard_parts(upload.number, [part.number])
        self._put_part(upload.number, part)
        return replaced

    def keep_parts(self, upload: MultipartUpload, unlisted: Iterable[int]) -> bool:
        """Complete an upload, and discard its unlisted parts. Returns True if this leaves garbage.

        The caller adds a version, which takes over the upload's reference to the content.
        """
        has_garbage = self._discard_parts(upload.number, unlisted)
        self._database.execute("DELETE FROM upload WHERE content = ?", (upload.number,))
        return has_garbage

    def drop_upload(self, upload: MultipartUpload) -> None:
        """Abort an upload. All its parts become garbage."""
        self._database.execute("DELETE FROM upload WHERE content = ?", (upload.number,))
        self._database.execute("UPDATE content SET refs = 0 WHERE id = ?", (upload.number,))
        self._drop_empty([upload.number])

    # Contents

    def add_content(self, part: ContentPart) -> int:
        """Add a content with one part and one reference. The reference is for the version or layer that the caller adds next."""
        content = self._new_content(1)
        self._put_part(content, part)
        return content

    def parts(self, content: int, *, after: int = 0, limit: int = -1) -> list[ContentPart]:
        sql = f"SELECT {PART_COLUMNS} FROM content_part WHERE content = ? AND number > ? ORDER BY number LIMIT ?"
        return [part_of(row) for row in self._database.execute(sql, (content, after, limit))]

    def part_count(self, content: int) -> int:
        return int(self._database.execute("SELECT count(*) FROM content_part WHERE content = ?", (content,)).fetchone()[0])

    def slices(self, content: int, start: int, size: int) -> tuple[Slice, ...]:
        """The slices of blobs that contain these bytes of a content."""
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

    def refer_to(self, content: int) -> None:
        """Add a reference to a content. The reference is for the version that the caller adds next."""
        self._database.execute("UPDATE content SET refs = refs + 1 WHERE id = ?", (content,))

    def release(self, content: int) -> bool:
        """Remove a reference. Returns True if it was the last reference, so that the content is garbage now."""
        sql = "UPDATE content SET refs = refs - 1 WHERE id = ? RETURNING refs"
        return bool(self._database.execute(sql, (content,)).fetchone()[0] == 0)

    # Garbage

    def garbage(self, limit: int) -> list[str]:
        """Blobs of contents that have no references."""
        rows = self._database.execute(
            "SELECT blob FROM content JOIN content_part ON content_part.content = content.id WHERE content.refs = 0 LIMIT ?",
            (limit,),
        )
        return [blob for (blob,) in rows]

    def drop_garbage(self, blobs: Iterable[str]) -> None:
        """Delete the rows of blobs whose files were deleted."""
        sql = "DELETE FROM content_part WHERE blob = ? RETURNING content"
        rows = (self._database.execute(sql, (blob,)).fetchone() for blob in blobs)
        self._drop_empty({row[0] for row in rows if row is not None})

    def known_blobs(self, blobs: Sequence[str]) -> set[str]:
        """Those of the given blobs that have a row."""
        sql = f"SELECT blob FROM content_part WHERE blob IN ({', '.join('?' * len(blobs))})"
        return {blob for (blob,) in self._database.execute(sql, blobs)}

    def _new_content(self, refs: int) -> int:
        (content,) = self._database.execute("INSERT INTO content (refs) VALUES (?) RETURNING id", (refs,)).fetchone()
        return int(content)

    def _drop_empty(self, contents: Iterable[int]) -> None:
        """Delete the contents that have neither references nor parts."""
        sql = "DELETE FROM content WHERE id = ? AND refs = 0 AND NOT EXISTS (SELECT 1 FROM content_part WHERE content = content.id)"
        self._database.executemany(sql, [(content,) for content in contents])

    def _put_part(self, content: int, part: ContentPart) -> None:
        self._database.execute(
            f"INSERT INTO content_part (content, {PART_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (content, part.number, part.blob, part.size, part.etag, dumps(part.checksums), part.modified_at_s, part.writer),
        )

    def _discard_parts(self, content: int, numbers: Iterable[int]) -> bool:
        """Move these parts to a new content without references. Returns True if any of the parts existed."""
        sql = "SELECT number FROM content_part WHERE content = ? AND number = ?"
        stored = [number for number in numbers if self._database.execute(sql, (content, number)).fetchone()]
        if stored:
            garbage = self._new_content(0)
            sql = "UPDATE content_part SET content = ? WHERE content = ? AND number = ?"
            self._database.executemany(sql, [(garbage, content, number) for number in stored])
        return bool(stored)
