"""Listings of a bucket. A common prefix costs one index seek, however many keys it contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Generic, TypeVar

from corral.database import Database, Row
from corral.model.objects import ListingPage, MultipartUpload, ObjectVersion
from corral.store.object_rows import UPLOAD_COLUMNS, VERSION_COLUMNS, upload_of, version_of

BEYOND = b"\xff"  # appended to a prefix, sorts after every key with that prefix: UTF-8 never contains this byte
CURRENT = "AND latest = 1 AND content IS NOT NULL"
NEXT = b"\x00"  # appended to a key, gives the next possible key

T = TypeVar("T")


class ObjectListing:
    def __init__(self, database: Database) -> None:
        self._database = database

    def objects(self, bucket_id: int, *, prefix: str, delimiter: str, after: str, limit: int) -> ListingPage[ObjectVersion]:
        """Current objects and common prefixes after `after`, which is a key or a common prefix."""
        sql = f"SELECT key, {VERSION_COLUMNS} FROM object_version WHERE bucket = ? AND key >= ? {CURRENT} ORDER BY key"
        walk = _Walk(lambda key: self._database.execute(sql, (bucket_id, key)), prefix, delimiter, version_of)
        return walk.page(walk.after(after), limit)

    def versions(
        self, bucket_id: int, *, prefix: str, delimiter: str, after: str, before_number: int | None, limit: int
    ) -> ListingPage[ObjectVersion]:
        """All versions by key, newest first. With `before_number`, the key `after` is included with its older versions."""
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
        """Uploads by key, oldest first. With `after_number`, the key `after` is included with its newer uploads."""
        sql = f"SELECT key, {UPLOAD_COLUMNS} FROM upload WHERE bucket = ? AND key >= ? ORDER BY key, content"
        walk = _Walk(lambda key: self._database.execute(sql, (bucket_id, key)), prefix, delimiter, upload_of)
        if after_number is None:
            return walk.page(walk.after(after), limit)
        newer = f"SELECT key, {UPLOAD_COLUMNS} FROM upload WHERE bucket = ? AND key = ? AND content > ? ORDER BY content"
        return walk.page(walk.after(after, self._database.execute(newer, (bucket_id, after.encode(), after_number))), limit)


class _Walk(Generic[T]):
    """Walks through rows that are sorted by key and begin with it, and replaces common prefixes."""

    def __init__(self, seek: Callable[[bytes], Iterator[Row]], prefix: str, delimiter: str, convert: Callable[[Row], T]) -> None:
        self._seek = seek
        self._prefix = prefix.encode()
        self._delimiter = delimiter.encode()
        self._convert = convert

    def after(self, key: str, rest: Iterable[Row] = ()) -> Iterator[Row]:
        """The remaining rows of a key and the rows of later keys. A key inside a common prefix continues after that prefix."""
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
