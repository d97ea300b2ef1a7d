"""A thread copies the pages of the WAL file into the database, so that commits need not."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from corral.core.checkpoints import CHANGES_FIRST, THREAD_PAGES, Checkpoints

ROW = "INSERT INTO rows VALUES (zeroblob(9000))"  # about three pages
SMALL_ROW = "INSERT INTO rows VALUES (zeroblob(9))"  # each transaction writes one page


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


@pytest.fixture
def writer(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("PRAGMA wal_autocheckpoint=0")  # commits copy nothing
    connection.execute("CREATE TABLE rows (content BLOB)")
    yield connection
    connection.close()


def checkpoints_of(path: Path, writer: sqlite3.Connection) -> Checkpoints:
    return Checkpoints(f"file:{path}?mode=rw", path.with_name(f"{path.name}-wal"), writer)


def write(checkpoints: Checkpoints, writer: sqlite3.Connection, rows: int, row: str = ROW) -> None:
    for _ in range(rows):
        checkpoints.between_transactions()
        checkpoints.wait()
        writer.execute(row)


def copied_rows(path: Path) -> int:
    """Return the number of rows that checkpoints have copied into the database itself."""
    alone = path.with_name("alone.db")
    shutil.copyfile(path, alone)
    with closing(sqlite3.connect(alone)) as connection:
        return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])


def wal_pages(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size // 4096


def test_the_wal_file_stays_short_though_commits_copy_nothing(path: Path, writer: sqlite3.Connection) -> None:
    write(checkpoints_of(path, writer), writer, 5_000)
    assert THREAD_PAGES / 2 < wal_pages(path) < THREAD_PAGES * 1.2


def test_the_first_checkpoint_waits_until_the_wal_file_is_as_long_as_for_the_others(path: Path, writer: sqlite3.Connection) -> None:
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    checkpoints = checkpoints_of(path, writer)
    write(checkpoints, writer, 4 * CHANGES_FIRST, SMALL_ROW)
    assert copied_rows(path) == 0
    write(checkpoints, writer, 2 * CHANGES_FIRST, SMALL_ROW)
    assert copied_rows(path) > 4 * CHANGES_FIRST


def test_the_lane_copies_the_pages_that_the_thread_has_left(path: Path, writer: sqlite3.Connection) -> None:
    checkpoints = checkpoints_of(path, writer)
    write(checkpoints, writer, 600)  # the thread has run
    pages = wal_pages(path)
    for _ in range(5):
        checkpoints.between_transactions()
        writer.execute(ROW)
    assert wal_pages(path) == pages, "the WAL file was written from its beginning"
    assert writer.execute("SELECT count(*) FROM rows").fetchone() == (605,)


def test_a_snapshot_of_a_reader_outlives_checkpoints(path: Path, writer: sqlite3.Connection) -> None:
    checkpoints = checkpoints_of(path, writer)
    write(checkpoints, writer, 10)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (10,)
    write(checkpoints, writer, 2_000)
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (10,)
    reader.execute("COMMIT")
    assert reader.execute("SELECT count(*) FROM rows").fetchone() == (2_010,)
    reader.close()


def test_a_database_that_cannot_be_opened_again_is_written_nevertheless(path: Path, writer: sqlite3.Connection) -> None:
    checkpoints = checkpoints_of(path.with_name("missing.db"), writer)
    write(checkpoints, writer, 1_500)
    assert not path.with_name("missing.db").exists()
    assert writer.execute("SELECT count(*) FROM rows").fetchone() == (1_500,)


def test_without_another_thread_the_writer_continues(
    path: Path, writer: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    write(checkpoints_of(path, writer), writer, 1_000)
    assert writer.execute("SELECT count(*) FROM rows").fetchone() == (1_000,)
