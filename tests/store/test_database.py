"""The database file: locking, refused files, migrations, readers, a full disk, and kill -9."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from shutil import disk_usage

import pytest

from corral.core.checkpoints import CHECKPOINT_PAGES
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.database import APPLICATION_ID, NeedsWriter
from corral.core.errors import Refused, ServiceUnavailable
from corral.core.ids import SeededIds
from corral.model.settings import Settings
from corral.process.data_folder import lock_folder
from corral.store import Store
from store.rows import claim, hello

TESTS = Path(__file__).parent.parent


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def core_on(store: Store) -> Core[Store]:
    return Core(store, settings=Settings(), clock=VirtualClock(), ids=SeededIds(Random(0)))


def run(core: Core[Store], *names_and_bytes: tuple[str, int]) -> list[object]:
    """Add clusters of these sizes in one transaction. Return the results."""

    def adding(name: str, size: int) -> Command:
        return Command(lambda tx: tx.store.clusters.put("r", name, "ACTIVE", {"x": "y" * size}) or name, lambda answer: None)

    return [answer for _, answer in core.transact([adding(*each) for each in names_and_bytes]).answers]


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """A file that Corral wrote, with several pages."""
    path = tmp_path / "state.db"
    store = Store(path)
    store.hosts.put(hello(), 1.0)
    for number in range(50):
        store.tasks.add(claim(f"t{number}"), (1.0,))
        store.clusters.put("r", f"c{number}", "ACTIVE", {"text": "words " * 100})
    store.close()
    return path


# Locking the folder

HOLDER = """
import sys
from pathlib import Path
from corral.process.data_folder import lock_folder

lock_folder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_with_the_name_of_the_holder(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        before = contents(tmp_path)
        with pytest.raises(Refused, match=f"in use by corral, process {holder.pid}.*corral down --data"):
            lock_folder(tmp_path)
        assert contents(tmp_path) == before
        holder.kill()
        holder.wait()
    os.close(lock_folder(tmp_path))  # the lock ends with its process, although the file stays


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    os.close(lock_folder(tmp_path / "new" / "data"))
    assert (tmp_path / "new" / "data").stat().st_mode & 0o777 == 0o700
    store = Store(tmp_path / "new" / "data" / "state.db")
    store.close()
    assert (tmp_path / "new" / "data" / "state.db").stat().st_mode & 0o777 == 0o600


# Refused files


def no_database(path: Path) -> None:
    path.write_bytes(b"These are the notes of a person who keeps them in a file of this name.\n" * 50)


def foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text)")
    connection.commit()
    connection.close()


def foreign_in_wal(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    foreign(path)


def newer(path: Path) -> None:
    _with_ours(path, lambda connection: connection.execute("PRAGMA user_version=99"))


def newer_killed(path: Path) -> None:
    """A newer file as a crash leaves it: with a write-ahead log."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=99")
    left = {name: (path.parent / name).read_bytes() for name in (path.name, f"{path.name}-wal")}
    connection.close()
    for name, data in left.items():
        (path.parent / name).write_bytes(data)


def other_schema(path: Path) -> None:
    _with_ours(
        path, lambda connection: connection.execute("UPDATE schema_origin SET digest = 'other', corral = '0.9 (commit 12ab)'")
    )


def other_schema_of_these_files(path: Path) -> None:
    _with_ours(path, lambda connection: connection.execute("UPDATE schema_origin SET digest = 'other'"))


def unknown_schema(path: Path) -> None:
    """A file of the versions that did not store a digest of their schema."""
    _with_ours(path, lambda connection: connection.execute("DROP TABLE schema_origin"))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def cut_within_a_page(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1000)


def headers_flipped(path: Path) -> None:
    """Every page except the first has an invalid type."""
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        for offset in range(8):
            data[at + offset] ^= 0xFF
    path.write_bytes(data)


def first_page_flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for offset in range(100, 120):
        data[offset] ^= 0xFF
    path.write_bytes(data)


def zeroed(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:8192] + bytes(len(data) - 8192))


def _with_ours(path: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    change(connection)
    connection.close()


BAD = {
    no_database: "not a readable database",
    foreign: "was not written by Corral",
    foreign_in_wal: "was not written by Corral",
    newer: "written by a newer Corral .its schema is 99",
    newer_killed: "written by a newer Corral .its schema is 99",
    other_schema: r"written by Corral 0.9 \(commit 12ab\), .*schema differs.* Use that version \(`git checkout 12ab`\), .*--data",
    other_schema_of_these_files: "written by this version, .* with other local changes: its database schema differs",
    unknown_schema: "written by an earlier commit of Corral, whose database schema differs",
    truncated: "damaged|not a readable database",
    cut_within_a_page: "damaged|not a readable database",
    headers_flipped: "damaged|not a readable database",
    first_page_flipped: "damaged|not a readable database",
    zeroed: "damaged|not a readable database",
}


@pytest.fixture(params=BAD, ids=lambda make: make.__name__)
def bad(request: pytest.FixtureRequest, ours: Path) -> tuple[Path, str]:
    make = request.param
    if make in (no_database, foreign, foreign_in_wal):
        ours.unlink()
    make(ours)
    return ours, BAD[make]


def test_a_refused_file_is_not_changed(bad: tuple[Path, str]) -> None:
    path, why = bad
    before = contents(path.parent)
    with pytest.raises(Refused, match=why) as refusal:
        Store(path)
    assert str(path) in str(refusal.value)
    after = contents(path.parent)
    assert {name: after[name] for name in before if not name.endswith("-shm")} == {
        name: data for name, data in before.items() if not name.endswith("-shm")
    }


def test_a_refusal_creates_no_other_files(bad: tuple[Path, str]) -> None:
    path, _ = bad
    before = sorted(contents(path.parent))
    with pytest.raises(Refused):
        Store(path)
    assert sorted(contents(path.parent)) == before


def test_a_flipped_bit_leads_to_a_refusal_or_a_working_store(ours: Path) -> None:
    """The bit may be one that nothing reads. No bit may cause a traceback."""
    data, rng = ours.read_bytes(), Random(0)
    for _ in range(150):
        flipped = bytearray(data)
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        ours.write_bytes(flipped)
        try:
            Store(ours).close()
        except Refused:
            assert ours.read_bytes() == flipped
        for left in ("-wal", "-shm"):
            Path(f"{ours}{left}").unlink(missing_ok=True)


def test_an_empty_file_is_a_fresh_one(tmp_path: Path) -> None:
    (tmp_path / "state.db").touch()
    store = Store(tmp_path / "state.db")
    store.clusters.put("r", "c", "ACTIVE", {})
    assert store.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    store.close()


@pytest.mark.parametrize("name", ["state.db", "what? 100%.db", "a#b.db"])
def test_names_with_special_characters(tmp_path: Path, name: str) -> None:
    for expected in ([], ["c"]):
        store = Store(tmp_path / name)
        assert store.clusters.names("r", "", 10) == expected
        store.clusters.put("r", "c", "ACTIVE", {})
        store.close()
    assert {path.name for path in tmp_path.iterdir()} == {name}


# Migrations

NOW = 1 + len(Store.MIGRATIONS)


def _paint(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE cluster SET colour = 'green' WHERE name = 'c1'")


class Newer(Store):
    """The next version of the schema, and the one after it."""

    MIGRATIONS = (
        *Store.MIGRATIONS,
        "ALTER TABLE cluster ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey';",
        _paint,
    )


class Failing(Store):
    MIGRATIONS = (*Store.MIGRATIONS, "ALTER TABLE cluster ADD COLUMN colour TEXT;", "UPDATE no_such_table SET x = 1;")


def test_an_older_file_is_brought_up_to_date_once(ours: Path) -> None:
    for _ in range(2):
        store = Newer(ours)
        assert store.execute("PRAGMA user_version").fetchone() == (NOW + 2,)
        assert store.execute("SELECT name, colour FROM cluster WHERE name < 'c11' ORDER BY name").fetchall() == [
            ("c0", "grey"), ("c1", "green"), ("c10", "grey"),
        ]  # fmt: skip
        store.close()
    with pytest.raises(Refused, match="newer Corral"):
        Store(ours)


def test_a_migration_that_fails_half_way_leaves_the_old_version(ours: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        Failing(ours)
    store = Store(ours)
    assert store.execute("PRAGMA user_version").fetchone() == (NOW,)
    assert "colour" not in [column[1] for column in store.execute("PRAGMA table_info(cluster)")]
    store.close()


def test_the_wal_file_stays_short_although_commits_do_not_copy_its_pages(ours: Path) -> None:
    store = Store(ours)
    store.execute("PRAGMA wal_autocheckpoint=0")
    core = core_on(store)
    for number in range(150):
        run(core, *((f"c{number}-{at}", 2_000) for at in range(30)))
        if (copies := next((each for each in threading.enumerate() if each.name == "checkpoint"), None)) is not None:
            copies.join()
    pages = ours.with_name(f"{ours.name}-wal").stat().st_size // 4096
    assert pages < CHECKPOINT_PAGES
    store.close()


# Readers


def test_a_reader_sees_what_is_committed_and_cannot_write(ours: Path) -> None:
    store = Store(ours)
    reader = store.reader()
    store.begin()
    store.clusters.put("r", "new", "ACTIVE", {})
    assert reader.clusters.get("r", "new") is None
    store.commit()
    assert reader.clusters.get("r", "new") is not None
    reader.begin_reading()
    assert reader.clusters.get("r", "later") is None
    store.clusters.put("r", "later", "ACTIVE", {})
    assert reader.clusters.get("r", "later") is None, "all reads see one snapshot"
    reader.end_reading()
    assert reader.clusters.get("r", "later") is not None
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.clusters.put("r", "mine", "ACTIVE", {})
    with pytest.raises(NeedsWriter):
        _ = reader.fleet
    reader.close()
    store.close()


def test_a_database_in_memory_has_no_readers() -> None:
    with pytest.raises(ValueError, match="in memory"):
        Store(None).reader()


# A full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes, if this user may mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)  # lazily, because a failed test may still have files open


def test_a_full_disk_is_an_error_for_all_its_commands_until_there_is_space(small_disk: Path) -> None:
    store = Store(small_disk / "state.db")
    core = core_on(store)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(disk_usage(small_disk).free // 2))
    written: list[str] = []
    for number in range(20):
        names = [f"{kind}{number}" for kind in ("a", "big", "b")]
        answers = run(core, *zip(names, (10, 100_000, 10)))
        if answers != names:
            break
        written += names
    assert [type(answer) for answer in answers] == [ServiceUnavailable] * 3
    assert "full" in str(answers[0])
    assert sorted(store.clusters.names("r", "", 100)) == sorted(written)
    ballast.unlink()
    assert run(core, ("again", 10)) == ["again"]
    store.close()
    reopened = Store(small_disk / "state.db")
    assert sorted(reopened.clusters.names("r", "", 100)) == sorted([*written, "again"])
    reopened.close()


def test_a_transaction_that_sqlite_rolls_back_is_an_error_for_all_its_commands(ours: Path) -> None:
    """If the disk is full during a command, SQLite rolls back the whole transaction, not only that command."""
    store = Store(ours)
    core = core_on(store)
    before = list(store.connection.iterdump())
    (pages,) = store.execute("PRAGMA page_count").fetchone()
    store.execute(f"PRAGMA max_page_count={pages + 5}")
    for _ in range(3):
        answers = run(core, ("a", 10), ("big", 500_000), ("b", 10))
        assert [type(answer) for answer in answers] == [ServiceUnavailable] * 3
        assert list(store.connection.iterdump()) == before
    store.execute("PRAGMA max_page_count=100000")
    assert run(core, ("a", 10), ("big", 500_000), ("b", 10)) == ["a", "big", "b"]
    store.close()


# kill -9


def test_acknowledged_commands_survive_kill_9(tmp_path: Path) -> None:
    """Five processes use one file in turn. Each is killed after some acknowledgements, and the next finds all of them."""
    path, rng, acknowledged = tmp_path / "state.db", Random(0), -1
    for _ in range(5):
        command = [sys.executable, "-m", "store.writer", path, str(acknowledged + 1)]
        with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            wanted = acknowledged + rng.randint(1, 120)
            for line in writer.stdout:
                acknowledged = int(line)
                if acknowledged >= wanted:
                    break
            writer.send_signal(signal.SIGKILL)
            acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
        acknowledged = _check_after_kill(path, acknowledged)
    assert acknowledged > 5


def _check_after_kill(path: Path, acknowledged: int) -> int:
    """Check that all acknowledged transactions are complete and none is partial. Return the number of the last one."""
    store = Store(path)
    names = {int(name[1:]) for name in store.clusters.names("r", "", 100_000)}
    tasks = {int(row[0][1:]) for row in store.execute("SELECT id FROM task")}
    due = {int(row[0].partition(":")[2]) for row in store.execute("SELECT key FROM due")}
    assert names == tasks == due == set(range(len(names)))
    assert len(names) > acknowledged
    assert len(names) % 3 == 0
    assert store.fleet.pool("hosts:default").waiting() == len(tasks)
    store.close()
    return len(names) - 1
