"""Rows of objects and uploads, as they are in the tables and as the rest of Corral knows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from corral.database import Row
from corral.model.objects import Part, Upload, Version

VERSION_COLUMNS = "number, key, id, latest, content, size, etag, modified_at, details, upload_id"
PART_COLUMNS = "number, blob, size, etag, checksums, modified_at"
UPLOAD_COLUMNS = "content, id, bucket, key, initiated_at, details"


def version_of(row: Row) -> Version:
    number, key, version_id, latest, content, size, etag, at_s, details, upload_id = row
    return Version(number, key.decode(), version_id, bool(latest), content, size, etag, at_s, orjson.loads(details), upload_id)


def part_of(row: Row) -> Part:
    number, blob, size, etag, checksums, modified_at_s = row
    return Part(number, blob, size, etag, orjson.loads(checksums), modified_at_s)


def upload_of(row: Row) -> Upload:
    content, upload_id, bucket_id, key, initiated_at_s, details = row
    return Upload(content, upload_id, bucket_id, key.decode(), initiated_at_s, orjson.loads(details))


def dumps(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()
