"""Uploads in parts, and the parts themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from corral.model.objects import Part, Upload
from corral.store.object_listing import ObjectListing
from corral.store.object_rows import PART_COLUMNS, UPLOAD_COLUMNS, dumps, upload_of


class Uploads(ObjectListing):
    def add_upload(self, upload_id: str, bucket_id: int, key: str, now_s: float, details: Mapping[str, Any]) -> None:
        self._database.execute(
            f"INSERT INTO upload ({UPLOAD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            (self._new_content(1), upload_id, bucket_id, key.encode(), now_s, dumps(details)),
        )

    def upload(self, upload_id: str) -> Upload | None:
        row = self._database.execute(f"SELECT {UPLOAD_COLUMNS} FROM upload WHERE id = ?", (upload_id,)).fetchone()
        return upload_of(row) if row else None

    def put_part(self, upload: Upload, part: Part) -> bool:
        """True: it took the place of another of its number, whose blob is garbage now."""
        replaced = self._throw_away(upload.number, [part.number])
        self._put_part(upload.number, part)
        return replaced

    def keep_parts(self, upload: Upload, unwanted: Iterable[int]) -> bool:
        """The upload is complete without those parts: its reference is a version's now. True: there was garbage."""
        thrown_away = self._throw_away(upload.number, unwanted)
        self._database.execute("DELETE FROM upload WHERE content = ?", (upload.number,))
        return thrown_away

    def drop_upload(self, upload: Upload) -> None:
        """It was aborted: all its parts are garbage."""
        self._database.execute("DELETE FROM upload WHERE content = ?", (upload.number,))
        self._database.execute("UPDATE content SET refs = 0 WHERE id = ?", (upload.number,))
        self._drop_empty([upload.number])

    def _new_content(self, refs: int) -> int:
        (content,) = self._database.execute("INSERT INTO content (refs) VALUES (?) RETURNING id", (refs,)).fetchone()
        return int(content)

    def _drop_empty(self, contents: Iterable[int]) -> None:
        """Those that nobody refers to go when they have no parts left."""
        sql = "DELETE FROM content WHERE id = ? AND refs = 0 AND NOT EXISTS (SELECT 1 FROM content_part WHERE content = content.id)"
        self._database.executemany(sql, [(content,) for content in contents])

    def _put_part(self, content: int, part: Part) -> None:
        self._database.execute(
            f"INSERT INTO content_part (content, {PART_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (content, part.number, part.blob, part.size, part.etag, dumps(part.checksums), part.modified_at_s),
        )

    def _throw_away(self, content: int, numbers: Iterable[int]) -> bool:
        """Give those parts to a content of which nothing is wanted."""
        sql = "SELECT number FROM content_part WHERE content = ? AND number = ?"
        there = [number for number in numbers if self._database.execute(sql, (content, number)).fetchone()]
        if there:
            garbage = self._new_content(0)
            sql = "UPDATE content_part SET content = ? WHERE content = ? AND number = ?"
            self._database.executemany(sql, [(garbage, content, number) for number in there])
        return bool(there)
