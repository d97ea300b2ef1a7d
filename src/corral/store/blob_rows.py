"""Queries about blobs in a state.db, for `corral backup`, `corral restore`, `corral check` and the start of the server.

A content is a list of blobs. A content without references is garbage.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
from msgspec import Struct

from corral.core.database import quoted_path


class BlobRow(Struct, frozen=True):
    blob: str
    size: int
    checksums: dict[str, str]  # algorithm → checksum in base64
    sha256: str | None  # hexadecimal; only for image layers


def live_blobs(state: sqlite3.Connection) -> Iterator[BlobRow]:
    """The blobs whose files must exist, sorted by name.

    The blobs of garbage are left out, because their files are deleted before their rows.
    """
    rows = state.execute(
        "SELECT blob, content_part.size, checksums, digest FROM content_part JOIN content ON content.id = content_part.content "
        "LEFT JOIN (SELECT content, min(digest) AS digest FROM layer GROUP BY content) AS layers ON layers.content = content.id "
        "WHERE refs > 0 ORDER BY blob"
    )
    for blob, size, checksums, digest in rows:
        sha256 = digest.partition(":")[2] if digest is not None and digest.startswith("sha256:") else None
        yield BlobRow(blob, size, orjson.loads(checksums), sha256)


def live_total(state: sqlite3.Connection) -> tuple[int, int]:
    """The number and the total size in bytes of the blobs that `live_blobs` returns."""
    number, size = state.execute(
        "SELECT count(*), coalesce(sum(size), 0) FROM content_part JOIN content ON content.id = content_part.content WHERE refs > 0"
    ).fetchone()
    return int(number), int(size)


def known_names(state: sqlite3.Connection) -> set[str]:
    """The names of all blobs that have a row, including garbage."""
    return {blob for (blob,) in state.execute("SELECT blob FROM content_part")}


def wrong_counts(state: sqlite3.Connection) -> int:
    """Return the number of contents with a wrong reference count.

    Versions of objects, multipart uploads and image layers refer to contents.
    """
    (number,) = state.execute(
        "SELECT count(*) FROM content LEFT JOIN (SELECT content, count(*) AS n FROM ("
        "SELECT content FROM object_version WHERE content IS NOT NULL UNION ALL SELECT content FROM upload "
        "UNION ALL SELECT content FROM layer) GROUP BY content) AS found ON found.content = content.id "
        "WHERE refs != coalesce(n, 0)"
    ).fetchone()
    return int(number)


def never_had_blobs(path: Path) -> bool:
    """Whether this state.db never had a content. SQLite adds a table to `sqlite_sequence` with the first row of the table."""
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"file:{quoted_path(path)}?{mode}", uri=True)) as state:
        return state.execute("SELECT 1 FROM sqlite_sequence WHERE name = 'content'").fetchone() is None


def forget_boots(path: Path) -> None:
    """Make all hosts in a restored state.db appear rebooted.

    If a rebooted host does not report a run (a container of a task), Corral records the end of the run. Without the reboot, Corral
    would start the run again, unless the host has reported it as running before the backup (`services/ecs/host_reports.py`).
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as state:
        state.execute("UPDATE host SET boot_id = '', connected = 0")
