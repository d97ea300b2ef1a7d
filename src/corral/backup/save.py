"""Makes a backup of a data folder. The server may run meanwhile."""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from corral.backup.blob_copy import BlobCopier, blob_path, erase_except, require_whole
from corral.backup.manifest import (
    ARRIVING,
    BLOBS,
    FORMAT,
    LOCK,
    MANIFEST,
    SNAPSHOT,
    STORES,
    BackupManifest,
    folder_id,
    read_manifest,
    write_synced,
)
from corral.backup.progress import ProgressLines
from corral.blobs.blob_lock import hold_blobs
from corral.blobs.blob_writer import sync_folder
from corral.core.clock import Clock
from corral.core.database import is_missing, validate_file
from corral.core.database_snapshot import Snapshots, copy_database, file_digest, open_reader
from corral.core.errors import Refused
from corral.core.ids import Ids
from corral.core.schema_origin import read_origin, schema_version
from corral.process.data_folder import (
    AUTHORITY,
    BLOBS_LOCK,
    CONFIGURATION,
    DATABASES,
    DOOR,
    KEY_FILES,
    RESTORING,
    unused,
    validate_folder,
)
from corral.store.blob_rows import live_blobs, live_total
from corral.version import full_version

TAR = ".tar"  # if the name of a backup ends with this, the backup is one file
HOST_FILE = "host.json"
FOLDER_OF = {HOST_FILE: "node", AUTHORITY: DOOR}  # the files that are in a folder of the data folder


def save(data: Path, target: Path, clock: Clock, ids: Ids, progress: ProgressLines) -> dict[str, Any]:
    """Back up a data folder into a folder, or into a tar file. Return a summary."""
    validate_folder(data)
    if is_missing(data / "state.db"):
        raise Refused(f"{data} has no state.db: it is not a data folder of Corral. Pass the data folder with --data.")
    for name, kind in STORES.items():
        validate_file(data / name, kind, checked=True)
    if (data / RESTORING).exists():
        raise Refused(f"a restore into {data} did not finish, so there is nothing to back up. Run `corral restore` again.")
    if target == data or data in target.parents or target in data.parents:
        raise Refused(f"the backup {target} and the data folder {data} must not contain each other.")
    held = hold_blobs(data / BLOBS_LOCK)
    try:
        if target.suffix == TAR:
            return _save_file(data, target, clock, progress)
        with _locked_backup(target, folder_id(data)):
            return _save_folder(data, target, clock, ids, progress)
    finally:
        os.close(held)


@contextmanager
def _locked_backup(target: Path, of_folder: str) -> Iterator[None]:
    """Create the folder of a backup and lock it. Refuse a folder that contains other files, or a backup of another data folder."""
    if target.exists():
        if not target.is_dir():
            raise Refused(f"{target} is not a folder. A backup is a folder, or a file whose name ends with {TAR}.")
        if os.listdir(target) and not (target / LOCK).is_file():
            raise Refused(f"the folder {target} is not empty and is not a backup. Choose a new or an empty folder.")
    target.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chmod(target, 0o700)  # the folder will contain keys
    fd = os.open(target / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"another process writes the backup {target}. Wait until it ends, or choose another folder.") from None
        if (found := os.pread(fd, 200, 0).decode("ascii", "replace").strip()) and found != of_folder:
            raise Refused(f"{target} is a backup of another data folder. Choose a new or an empty folder.")
        os.pwrite(fd, of_folder.encode(), 0)
        yield
    finally:
        os.close(fd)


def _save_folder(data: Path, target: Path, clock: Clock, ids: Ids, progress: ProgressLines) -> dict[str, Any]:
    before = read_manifest(target)
    _remove_snapshots(target, before)
    snapshot = f"{SNAPSHOT}{ids.hex32()}"
    try:
        manifest = _take_snapshot(data, target / snapshot, snapshot, clock, progress)
        copier = BlobCopier(data / "blobs", target / BLOBS, target / ARRIVING)
        progress.begin(BLOBS)
        state = open_reader(target / snapshot / "state.db", immutable=True)
        try:
            names = copier.add_all(live_blobs(state), lambda size: progress.add(size, manifest.blob_bytes))
        finally:
            state.close()
        sync_folder(str(target))
        write_synced(target / MANIFEST, msgspec.json.encode(manifest))
    except BaseException:
        _remove_snapshots(target, before)
        raise
    _remove_snapshots(target, manifest)
    erased = erase_except(target / BLOBS, names)
    counts = {"linked": copier.linked, "copied": copier.copied, "present": copier.present, "erased": erased}
    return {"backup": str(target), **_summary(manifest), **counts}


def _remove_snapshots(target: Path, manifest: BackupManifest | None) -> None:
    """Delete the files of incomplete backups, and all snapshots except the one in the manifest."""
    for name in os.listdir(target):
        if name == ARRIVING or (name.startswith(SNAPSHOT) and (manifest is None or name != manifest.snapshot)):
            with suppress(OSError):
                shutil.rmtree(target / name)


def _take_snapshot(data: Path, folder: Path, name: str, clock: Clock, progress: ProgressLines) -> BackupManifest:
    """Copy the databases, the keys, the settings and the host's id into a new folder."""
    folder.mkdir(mode=0o700)
    paths = [data / each for each in DATABASES if not is_missing(data / each)]
    snapshots = Snapshots(paths)
    created_at_s = clock.now_s()
    digests = {}
    try:
        for path, connection in zip(paths, snapshots.connections, strict=True):
            progress.begin(path.name)
            digests[path.name] = copy_database(connection, folder / path.name, progress.at)
    finally:
        snapshots.close()
        with suppress(Refused), unused(data):
            snapshots.remove_new_logs()
    for source in (*(data / each for each in (*KEY_FILES, CONFIGURATION)), *(data / FOLDER_OF[each] / each for each in FOLDER_OF)):
        with suppress(FileNotFoundError):
            write_synced(folder / source.name, source.read_bytes())
            digests[source.name] = file_digest(folder / source.name)
    sync_folder(str(folder))
    schemas = {}
    for path in paths:
        with closing(open_reader(folder / path.name, immutable=True)) as copy:
            origin = read_origin(copy)
            schemas[path.name] = (schema_version(copy), origin.digest if origin is not None else "")
            if path.name == "state.db":
                number, size = live_total(copy)
    about = (str(data), folder_id(data), created_at_s, name, digests, number, size, schemas)
    return BackupManifest(FORMAT, full_version(), *about)


def _save_file(data: Path, target: Path, clock: Clock, progress: ProgressLines) -> dict[str, Any]:
    """Write a backup to a tar file. The file gets its final name after it is complete and synced."""
    if target.is_dir():
        raise Refused(f"{target} is a folder. Choose another name for the backup, or remove the folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.unfinished")
    unfinished.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise Refused(f"another process writes the backup {target}. Wait until it ends, or choose another name.") from None
    try:
        for left in os.listdir(unfinished):  # files of an earlier backup process that was killed
            shutil.rmtree(unfinished / left) if (unfinished / left).is_dir() else (unfinished / left).unlink()
        manifest = _take_snapshot(data, unfinished / SNAPSHOT, SNAPSHOT, clock, progress)
        _write_tar(unfinished / "tar", unfinished / SNAPSHOT, data / "blobs", manifest, progress)
        (unfinished / "tar").rename(target)
        sync_folder(str(target.parent))
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.close(fd)
    return {"backup": str(target), **_summary(manifest), "linked": 0, "copied": manifest.blobs, "present": 0, "erased": 0}


def _write_tar(path: Path, snapshot: Path, blobs: Path, manifest: BackupManifest, progress: ProgressLines) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name in manifest.files:
                tar.add(snapshot / name, f"{SNAPSHOT}/{name}")
            _add_blobs(tar, blobs, snapshot / "state.db", manifest, progress)
            content = msgspec.json.encode(manifest)
            about = tarfile.TarInfo(MANIFEST)
            about.size, about.mode = len(content), 0o600
            tar.addfile(about, io.BytesIO(content))
        file.flush()
        os.fsync(file.fileno())


def _add_blobs(tar: tarfile.TarFile, blobs: Path, state_path: Path, manifest: BackupManifest, progress: ProgressLines) -> None:
    progress.begin(BLOBS)
    state = open_reader(state_path, immutable=True)
    try:
        for row in live_blobs(state):
            path = blob_path(blobs, row.blob)
            require_whole(row, path)
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                about = tarfile.TarInfo(f"{BLOBS}/{row.blob[0]}/{row.blob[1]}/{row.blob}")
                about.size, about.mode = row.size, 0o600
                tar.addfile(about, file)
            progress.add(row.size, manifest.blob_bytes)
    finally:
        state.close()


def _summary(manifest: BackupManifest) -> dict[str, Any]:
    kept = ("data", "version", "created_at_s", "blobs", "blob_bytes")
    names = {"created_at_s": "createdAt", "blob_bytes": "blobBytes"}
    return {names.get(name, name): value for name, value in asdict(manifest).items() if name in kept}
