"""Listings of a bucket.

If a listing has a delimiter, keys that are equal up to the first delimiter after the prefix have a common prefix. The listing
shows only this common prefix, and skips all these keys with one index look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from corral.core.database import Database, Row
from corral.model.objects import ListingPage, MultipartUpload, ObjectVersion
from corral.store.object_rows import UPLOAD_COLUMNS, VERSION_COLUMNS, upload_of, version_of

BEYOND = b"\xff"  # a prefix plus this byte is greater than every key with the prefix, because UTF-8 never contains the byte
CURRENT = "AND latest = 1 AND content IS NOT NULL"
NEXT = b"\x00"  # a key plus this byte is the next possible key

T = TypeVar("T")


class ObjectListing:
    def __init__(self, database: Database) -> None:
        self._database = database

    def objects(self, bucket_id: int, *, prefix: str, delimiter: str, after: str, limit: int) -> ListingPage[ObjectVersion]:
        """Current objects and common prefixes that are greater than `after`. `after` is a key or a common prefix."""
        sql = f"SELECT key, {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key >= ? {CURRENT} ORDER BY key"
        walk = _Walk(lambda key: self._database.execute(sql, (bucket_id, key)), prefix, delimiter, version_of)
        return walk.page(walk.after(after), limit)

    def versions(
        self, bucket_id: int, *, prefix: str, delimiter: str, after: str, before_number: int | None, limit: int
    ) -> ListingPage[ObjectVersion]:
        """All versions after the key `after`, sorted by key. The newest version of a key is first.

        If `before_number` is given, the older versions of the key `after` are included.
        """
        sql = f"SELECT key, {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key >= ? ORDER BY key, number DESC"
        walk = _Walk(lambda key: self._database.execute(sql, (bucket_id, key)), prefix, delimiter, version_of)
        if before_number is None:
            return walk.page(walk.after(after), limit)
        older = (
            f"SELECT key, {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key = ? AND number < ? ORDER BY number DESC"
        )
        return walk.page(walk.after(after, self._database.execute(older, (bucket_id, after.encode(), before_number))), limit)

    def uploads(
        self, bucket_id: int, *, prefix: str, delimiter: str, after: str, after_number: int | None, limit: int
    ) -> ListingPage[MultipartUpload]:
        """Uploads after the key `after`, sorted by key. The oldest upload of a key is first.

        If `after_number` is given, the newer uploads of the key `after` are included.
        """
        sql = f"SELECT key, {UPLOAD_COLUMNS} FROM upload WHERE bucket = ? AND key >= ? ORDER BY key, content"
        walk = _Walk(lambda key: self._database.execute(sql, (bucket_id, key)), prefix, delimiter, upload_of)
        if after_number is None:
            return walk.page(walk.after(after), limit)
        newer = f"SELECT key, {UPLOAD_COLUMNS} FROM upload WHERE bucket = ? AND key = ? AND content > ? ORDER BY content"
        return walk.page(walk.after(after, self._database.execute(newer, (bucket_id, after.encode(), after_number))), limit)


class _Walk(Generic[T]):
    """Reads rows that are sorted by key, and replaces all keys with a common prefix by the prefix. A row begins with its key."""

    def __init__(self, seek: Callable[[bytes], Iterator[Row]], prefix: str, delimiter: str, convert: Callable[[Row], T]) -> None:
        self._seek = seek
        self._prefix = prefix.encode()
        self._delimiter = delimiter.encode()
        self._convert = convert

    def after(self, key: str, rest: Iterable[Row] = ()) -> Iterator[Row]:
        """The rows `rest` of a key, then the rows of later keys.

        If the key has a common prefix, an earlier page has shown this common prefix, so all keys with it are skipped.
        """
        start = key.encode()
        if start < self._prefix or not key:
            return self._seek(self._prefix)
        common = self._common(start) if start.startswith(self._prefix) else None
        if common is not None:
            return self._seek(common + BEYOND)
        return chain(rest, self._seek(start + NEXT))

    def page(self, rows: Iterator[Row], limit: int) -> ListingPage[T]:
        found: list[T | str] = []
        while True:
            for row in rows:
                if not row[0].startswith(self._prefix):
                    return ListingPage(found, more=False)
                if len(found) == limit:
                    return ListingPage(found, more=True)
                common = self._common(row[0])
                if common is not None:
                    found.append(common.decode())
                    rows = self._seek(common + BEYOND)
                    break
                found.append(self._convert(row[1:]))
            else:
                return ListingPage(found, more=False)

    def _common(self, key: bytes) -> bytes | None:
        at = key.find(self._delimiter, len(self._prefix)) if self._delimiter else -1
        return key[: at + len(self._delimiter)] if at >= 0 else None
