"""Which blobs the rows of a state.db refer to: reads of other processes than the server (backups and checks)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import orjson
from msgspec import Struct

from corral.database import quoted_path


class BlobRow(Struct, frozen=True):
    blob: str
    size: int
    checksums: dict[str, str]  # by algorithm, in base64
    sha256: str | None  # hexadecimal, of a layer of an image


def live_blobs(state: sqlite3.Connection) -> Iterator[BlobRow]:
    """The blobs that must exist, by name. Garbage is left out: its files are erased before its rows."""
    rows = state.execute(
        "SELECT blob, content_part.size, checksums, digest FROM content_part JOIN content ON content.id = content_part.content "
        "LEFT JOIN (SELECT content, min(digest) AS digest FROM layer GROUP BY content) AS layers ON layers.content = content.id "
        "WHERE refs > 0 ORDER BY blob"
    )
    for blob, size, checksums, digest in rows:
        sha256 = digest.partition(":")[2] if digest is not None and digest.startswith("sha256:") else None
        yield BlobRow(blob, size, orjson.loads(checksums), sha256)


def live_total(state: sqlite3.Connection) -> tuple[int, int]:
    """(number, bytes) of the live blobs."""
    number, size = state.execute(
        "SELECT count(*), coalesce(sum(size), 0) FROM content_part JOIN content ON content.id = content_part.content WHERE refs > 0"
    ).fetchone()
    return int(number), int(size)


def known_names(state: sqlite3.Connection) -> set[str]:
    """All blobs with a row, also garbage."""
    return {blob for (blob,) in state.execute("SELECT blob FROM content_part")}


def wrong_counts(state: sqlite3.Connection) -> int:
    """The number of contents whose count of references differs from the versions, uploads and layers that refer to them."""
    (number,) = state.execute(
        "SELECT count(*) FROM content LEFT JOIN (SELECT content, count(*) AS n FROM ("
        "SELECT content FROM object_version WHERE content IS NOT NULL UNION ALL SELECT content FROM upload "
        "UNION ALL SELECT content FROM layer) GROUP BY content) AS found ON found.content = content.id "
        "WHERE refs != coalesce(n, 0)"
    ).fetchone()
    return int(number)


def never_had_blobs(path: Path) -> bool:
    """Whether this state.db never had a row of a blob. SQLite keeps the largest number that a table ever had."""
    mode = "mode=ro" if Path(f"{path}-wal").exists() else "immutable=1"
    with closing(sqlite3.connect(f"file:{quoted_path(path)}?{mode}", uri=True)) as state:
        return state.execute("SELECT 1 FROM sqlite_sequence WHERE name = 'content'").fetchone() is None


def forget_boots(path: Path) -> None:
    """Make hosts seem rebooted: the runs in a restored state.db that a host does not know are lost, not to be started again."""
    with closing(sqlite3.connect(path, isolation_level=None)) as state:
        state.execute("UPDATE host SET boot_id = '', connected = 0")
