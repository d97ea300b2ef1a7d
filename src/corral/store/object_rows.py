"""Conversion of rows to versions, parts and uploads (`model.objects`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from corral.core.database import Row
from corral.model.objects import ContentPart, MultipartUpload, ObjectVersion

VERSION_COLUMNS = "number, key, id, latest, content, size, etag, modified_at, details, upload_id, writers"
PART_COLUMNS = "number, blob, size, etag, checksums, modified_at, writer"
UPLOAD_COLUMNS = "content, id, bucket, key, initiated_at, details"


def version_of(row: Row) -> ObjectVersion:
    number, key, version_id, latest, content, size, etag, at_s, details, upload_id, writers = row
    return ObjectVersion(
        number, key.decode(), version_id, bool(latest), content, size, etag, at_s, orjson.loads(details), upload_id,
        tuple(writers.split()) if writers else (),
    )  # fmt: skip


def part_of(row: Row) -> ContentPart:
    number, blob, size, etag, checksums, modified_at_s, writer = row
    return ContentPart(number, blob, size, etag, orjson.loads(checksums), modified_at_s, writer)


def upload_of(row: Row) -> MultipartUpload:
    content, upload_id, bucket_id, key, initiated_at_s, details = row
    return MultipartUpload(content, upload_id, bucket_id, key.decode(), initiated_at_s, orjson.loads(details))


def dumps(value: Mapping[str, Any]) -> str:
    return orjson.dumps(value).decode()
