"""Checks a data folder or a backup. It checks the databases, and compares the blob rows of state.db with the blobs."""

from __future__ import annotations

import os
import shutil
import sqlite3
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Protocol

from msgspec import Struct

from corral.backup.blob_copy import blob_path, damage_of, names_in
from corral.backup.manifest import BLOBS, LOCK, MANIFEST, STORES, BackupManifest, read_manifest, require_schemas
from corral.backup.progress import ProgressLines
from corral.backup.tar_backup import BlobsInTar, manifest_in, open_member, open_tar
from corral.blobs.blob_lock import hold_blobs
from corral.blobs.checksums import ALGORITHMS, checksum
from corral.blobs.files import DATE, QUARANTINE
from corral.core.clock import Clock
from corral.core.database import DAMAGE, is_missing, validate_file
from corral.core.database_snapshot import Snapshots, damage_in, file_digest, open_reader
from corral.core.errors import Refused
from corral.core.schema_origin import OtherSchema
from corral.process.data_folder import BLOBS_LOCK, DATABASES, is_in_use, unused, validate_folder
from corral.store.blob_rows import BlobRow, known_names, live_blobs, live_total, wrong_counts

OK, WARNING, FAILURE = "ok", "warning", "failure"
FRESH_S = 300.0  # if the server runs, a younger file without a row is not reported, because its row may not be committed yet
NAMED_MAX = 20  # the maximum number of damaged blobs in the report
PIECE_BYTES = 1024 * 1024


class CheckResult(Struct, frozen=True):
    check: str
    level: str
    found: str
    advice: str = ""


class BlobReader(Protocol):
    """Access to the blobs of a folder or of a tar file."""

    def place(self, row: BlobRow) -> str: ...

    def damage(self, row: BlobRow) -> str | None:
        """Return what is wrong with a blob, or None. Only its type and its size are checked."""
        ...

    def open(self, row: BlobRow) -> AbstractContextManager[IO[bytes]]: ...


class BlobsInFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def place(self, row: BlobRow) -> str:
        return blob_path(self._root, row.blob)

    def damage(self, row: BlobRow) -> str | None:
        return damage_of(row, self.place(row))

    @contextmanager
    def open(self, row: BlobRow) -> Iterator[IO[bytes]]:
        with open(os.open(self.place(row), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file:
            yield file


def check(folder: Path, clock: Clock, progress: ProgressLines, *, deep: bool) -> list[CheckResult]:
    """Check a data folder, or a backup in a folder or a tar file."""
    if folder.is_file():
        return list(_check_tar(folder, progress, deep))
    if (folder / LOCK).exists():
        return list(_check_backup(folder, progress, deep))
    validate_folder(folder)
    if is_missing(folder / "state.db"):
        raise Refused(f"{folder} has no state.db: it is not a data folder of Corral. Pass the data folder with --data.")
    held = hold_blobs(folder / BLOBS_LOCK)  # the server erases no blob during the check
    try:
        return list(_check_data(folder, clock, progress, deep))
    finally:
        os.close(held)


def _check_data(data: Path, clock: Clock, progress: ProgressLines, deep: bool) -> Iterator[CheckResult]:
    # List the files before the rows are read. Otherwise a blob whose row is committed in between would look like an orphan.
    files, before_s = names_in(data / BLOBS), clock.now_s()
    paths = [data / name for name in DATABASES if not is_missing(data / name)]
    unreadable = [finding for path in paths for finding in _unreadable(path)]
    yield from unreadable
    if unreadable:
        return
    try:
        snapshots = Snapshots(paths)
    except Refused as error:
        yield CheckResult("databases", FAILURE, str(error), "restore a backup: corral restore")
        return
    try:
        for path, connection in zip(paths, snapshots.connections, strict=True):
            progress.begin(path.name)
            yield from _check_database(path.name, path, connection)
        try:
            state = snapshots.connections[0]
            yield from _check_blobs(BlobsInFolder(data / BLOBS), state, progress, deep)
            fresh_s = before_s - FRESH_S if is_in_use(data) else None
            yield from _orphans(data / BLOBS, files, known_names(state), fresh_s)
        except DAMAGE as error:
            yield CheckResult(BLOBS, FAILURE, f"state.db cannot be read ({error})", "restore a backup: corral restore")
        yield from _quarantine(data / BLOBS)
    finally:
        snapshots.close()
        with suppress(Refused), unused(data):
            snapshots.remove_new_logs()


def _check_backup(backup: Path, progress: ProgressLines, deep: bool) -> Iterator[CheckResult]:
    manifest = read_manifest(backup)
    if manifest is None:
        yield _incomplete(backup)
        return
    if other := _other_schema(manifest, backup):
        yield other
        return
    blobs = BlobsInFolder(backup / BLOBS)
    for name, digest in manifest.files.items():
        path = backup / manifest.snapshot / name
        if not path.exists():
            yield _missing_file(name, path)
        elif file_digest(path) != digest:
            yield _wrong_file(name, path)
        elif name in DATABASES:
            yield from _check_copy(name, path, str(path), blobs, progress, deep)


def _check_tar(backup: Path, progress: ProgressLines, deep: bool) -> Iterator[CheckResult]:
    """Check a backup in a tar file. SQLite cannot read a database in a tar file, so each file is copied to a temporary folder."""
    with open_tar(backup) as tar:
        manifest = manifest_in(tar, backup)
        if manifest is None:
            yield _incomplete(backup)
            return
        if other := _other_schema(manifest, backup):
            yield other
            return
        members, blobs = {member.name: member for member in tar.getmembers()}, BlobsInTar(tar, backup)
        for name, digest in manifest.files.items():
            place = f"{name} in {backup}"
            member = members.get(f"{manifest.snapshot}/{name}")
            if member is None:
                yield _missing_file(name, place)
                continue
            with TemporaryDirectory(prefix="corral-check-") as folder, open_member(tar, member) as reader:
                copy = Path(folder) / "copy"
                with open(copy, "xb") as writer:
                    shutil.copyfileobj(reader, writer, PIECE_BYTES)
                if file_digest(copy) != digest:
                    yield _wrong_file(name, place)
                elif name in DATABASES:
                    yield from _check_copy(name, copy, place, blobs, progress, deep)


def _check_copy(name: str, path: Path, place: str, blobs: BlobReader, progress: ProgressLines, deep: bool) -> Iterator[CheckResult]:
    """Check a database of a backup, and for state.db also the blobs. `place` is the name of the database in messages."""
    progress.begin(name)
    with closing(open_reader(path, immutable=True)) as connection:
        yield from _check_database(name, place, connection)
        if name == "state.db":
            yield from _check_blobs(blobs, connection, progress, deep)


def _other_schema(manifest: BackupManifest, backup: Path) -> CheckResult | None:
    """Return a failure if this version of Corral cannot read the databases of a backup."""
    try:
        require_schemas(manifest, backup)
    except OtherSchema as error:
        return CheckResult("backup", FAILURE, str(error))
    return None


def _incomplete(backup: Path) -> CheckResult:
    return CheckResult("backup", FAILURE, f"{backup} has no {MANIFEST}: the backup is incomplete", "make the backup again.")


def _missing_file(name: str, place: object) -> CheckResult:
    return CheckResult(name, FAILURE, f"{place} does not exist", "make the backup again.")


def _wrong_file(name: str, place: object) -> CheckResult:
    return CheckResult(name, FAILURE, f"{place} does not have the SHA-256 in {MANIFEST}", "make the backup again.")


def _unreadable(path: Path) -> Iterator[CheckResult]:
    try:
        validate_file(path, STORES[path.name], checked=True)
    except OtherSchema as error:
        yield CheckResult(path.name, FAILURE, str(error))
    except Refused as error:
        yield CheckResult(path.name, FAILURE, str(error), "restore a backup: corral restore")


def _check_database(name: str, place: object, connection: sqlite3.Connection) -> Iterator[CheckResult]:
    damage = damage_in(connection)
    for each in damage:
        yield CheckResult(name, FAILURE, each, "restore a backup: corral restore")
    if not damage:
        yield CheckResult(name, OK, f"{place} is not damaged")


def _check_blobs(blobs: BlobReader, state: sqlite3.Connection, progress: ProgressLines, deep: bool) -> Iterator[CheckResult]:
    """Compare each row with its blob: check that the blob exists and has the right size. With `deep`, also compare the digests."""
    number, total = live_total(state)
    damaged = 0
    progress.begin(BLOBS)
    for row in live_blobs(state):
        found = blobs.damage(row) or (_wrong_digest(row, blobs) if deep else None)
        progress.add(row.size, total)
        if found is not None:
            damaged += 1
            if damaged <= NAMED_MAX:
                advice = "restore a backup, or copy the file from a backup."
                yield CheckResult(BLOBS, FAILURE, f"{blobs.place(row)} of {row.size} bytes is damaged: {found}", advice)
    if damaged > NAMED_MAX:
        yield CheckResult(BLOBS, FAILURE, f"{damaged - NAMED_MAX} more blobs are damaged", "restore a backup: corral restore")
    if wrong := wrong_counts(state):
        yield CheckResult(BLOBS, FAILURE, f"the reference counts of {wrong} blobs are wrong", "restore a backup: corral restore")
    if not damaged:
        how = "exist and have the right size" if not deep else "exist and have the right size and digests"
        yield CheckResult(BLOBS, OK, f"all {number} blobs ({total} bytes) of state.db {how}")


def _wrong_digest(row: BlobRow, blobs: BlobReader) -> str | None:
    expected = {name: b64decode(value) for name, value in row.checksums.items() if name in ALGORITHMS}
    if row.sha256 is not None:
        expected["SHA256"] = bytes.fromhex(row.sha256)
    running = {name: checksum(name) for name in expected}
    with blobs.open(row) as file:
        while piece := file.read(PIECE_BYTES):
            for each in running.values():
                each.update(piece)
    wrong = [name for name in expected if running[name].digest() != expected[name]]
    return f"its {wrong[0]} differs from the digest in its row" if wrong else None


def _orphans(root: Path, files: Sequence[str], known: set[str], older_than_s: float | None) -> Iterator[CheckResult]:
    """Report files without a row. A crash can leave some. The next start erases them, or quarantines them if there are many."""
    orphans = [name for name in files if name not in known and _is_older(blob_path(root, name), older_than_s)]
    if orphans:
        text = f"no row refers to {len(orphans)} files in {root} ({orphans[0]}{', ...' * (len(orphans) > 1)})"
        advice = "a crash can leave such files. The next start erases them, or quarantines them if there are many."
        yield CheckResult("orphans", WARNING, text, advice)


def _is_older(path: str, than_s: float | None) -> bool:
    try:
        return than_s is None or os.lstat(path).st_mtime < than_s
    except FileNotFoundError:
        return False


def _quarantine(root: Path) -> Iterator[CheckResult]:
    folder = root / QUARANTINE
    for date in sorted(os.listdir(folder)) if folder.is_dir() else ():
        if DATE.fullmatch(date):
            text = f"{len(os.listdir(folder / date))} blobs without a row are in {folder / date}"
            yield CheckResult("quarantine", WARNING, text, "Corral erases them one week after this date. To keep them, copy them.")
