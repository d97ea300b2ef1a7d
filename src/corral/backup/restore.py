"""Restores a backup into a new data folder.

The file `restoring` exists in the data folder until the restore is complete. A server refuses to start on a folder with this file.
The next restore into the folder deletes its content and begins again.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import msgspec

from corral.backup.blob_copy import BlobCopier, blob_path, make_folder, require_whole
from corral.backup.manifest import (
    ARRIVING,
    BLOBS,
    MANIFEST,
    STORES,
    BackupManifest,
    read_manifest,
    require_schemas,
    write_synced,
)
from corral.backup.progress import ProgressLines
from corral.backup.save import FOLDER_OF
from corral.backup.tar_backup import blob_of, manifest_in, open_member, open_tar
from corral.blobs.blob_writer import sync_folder
from corral.core.database import validate_file
from corral.core.database_snapshot import open_reader
from corral.core.errors import Refused
from corral.process.data_folder import LOCK, RESTORED, RESTORING, close_to_others, lock_folder, require_unused, validate_folder
from corral.store.blob_rows import forget_boots, live_blobs

PIECE_BYTES = 1024 * 1024


def restore(backup: Path, data: Path, progress: ProgressLines) -> dict[str, Any]:
    """Create a data folder from a backup. Return a summary."""
    tar = None if backup.is_dir() else open_tar(backup)
    manifest = read_manifest(backup) if tar is None else manifest_in(tar, backup)
    if manifest is None:
        raise Refused(f"{backup} has no {MANIFEST}: it is not a backup, or it is incomplete. Use another backup.")
    require_schemas(manifest, backup)
    require_unused(data)
    validate_folder(data)
    if data.exists() and not (data / RESTORING).exists() and (left := sorted(set(os.listdir(data)) - {"lost+found"})):
        raise Refused(
            f"the data folder {data} is not empty ({left[0]}). Restore into a new folder with --data, or move this one away."
        )
    lock = lock_folder(data)
    try:
        close_to_others(data)
        _clear(data)
        write_synced(data / RESTORING, b"")
        if tar is None:
            counts = _from_folder(backup, manifest, data, progress)
        else:
            counts = _from_tar(tar, backup, manifest, data, progress)
        for name, kind in STORES.items():
            validate_file(data / name, kind)
        forget_boots(data / "state.db")
        write_synced(data / RESTORED, msgspec.json.encode({"data": manifest.data, "createdAt": manifest.created_at_s}))
        (data / RESTORING).unlink()
        sync_folder(str(data))
    finally:
        os.close(lock)
    return {
        "data": str(data), "backup": str(backup), "version": manifest.version, "createdAt": manifest.created_at_s,
        "blobs": manifest.blobs, "blobBytes": manifest.blob_bytes, **counts,
    }  # fmt: skip


def _clear(data: Path) -> None:
    """Delete the files of an incomplete restore. All files of the folder belong to that restore, because it began with an empty
    folder.
    """
    for name in os.listdir(data):
        if name not in (LOCK, RESTORING, "lost+found"):
            path = data / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _place(data: Path, name: str) -> Path:
    """Return the path in the data folder for a file of the snapshot. Create the folder in which the file belongs."""
    if name not in FOLDER_OF:
        return data / name
    make_folder(data / FOLDER_OF[name])
    return data / FOLDER_OF[name] / name


def _from_folder(backup: Path, manifest: BackupManifest, data: Path, progress: ProgressLines) -> dict[str, int]:
    for name in manifest.file_names:
        file = backup / name
        progress.begin(file.name)
        try:
            with open(file, "rb") as reader:
                _write(reader, file.stat().st_size, _place(data, file.name), manifest.files[file.name], file, progress)
        except FileNotFoundError:
            raise Refused(f"the backup is damaged: {file} does not exist. Use another backup.") from None
    copier = BlobCopier(backup / BLOBS, data / BLOBS, data / ARRIVING)
    progress.begin(BLOBS)
    state = open_reader(data / "state.db", immutable=True)
    try:
        copier.add_all(live_blobs(state), lambda size: progress.add(size, manifest.blob_bytes))
    finally:
        state.close()
    return {"linked": copier.linked, "copied": copier.copied}


def _write(reader: Any, size: int, target: Path, digest: str, source: Path, progress: ProgressLines) -> None:
    """Copy a file, sync it, and raise Refused if it does not have this digest."""
    found, done = hashlib.sha256(), 0
    with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as writer:
        while piece := reader.read(PIECE_BYTES):
            found.update(piece)
            writer.write(piece)
            done += len(piece)
            progress.at(done, size)
        writer.flush()
        os.fsync(writer.fileno())
    if found.hexdigest() != digest:
        raise Refused(f"the backup is damaged: {source} does not have the SHA-256 in {MANIFEST}. Use another backup.")


def _from_tar(tar: tarfile.TarFile, backup: Path, manifest: BackupManifest, data: Path, progress: ProgressLines) -> dict[str, int]:
    """Extract the files of the snapshot, and the blobs.

    For safety, the paths in the tar file do not determine where a file is written.
    """
    files, copied = {f"{manifest.snapshot}/{name}": name for name in manifest.files}, 0
    (data / BLOBS).mkdir(mode=0o700)
    for member in tar.getmembers():
        name = member.name.rpartition("/")[2]
        if member.name in files:
            progress.begin(name)
            with open_member(tar, member) as reader:
                _write(reader, member.size, _place(data, name), manifest.files[name], backup / name, progress)
        elif (blob := blob_of(member)) is not None:
            progress.begin(BLOBS)
            path = Path(blob_path(data / BLOBS, blob))
            make_folder(path.parent.parent)
            make_folder(path.parent)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(fd, "wb") as writer, open_member(tar, member) as reader:
                shutil.copyfileobj(reader, writer, PIECE_BYTES)
                writer.flush()
                os.fsync(writer.fileno())
            copied += 1
    state = open_reader(data / "state.db", immutable=True)
    try:
        for row in live_blobs(state):
            require_whole(row, blob_path(data / BLOBS, row.blob))
    finally:
        state.close()
    for folder in (data / BLOBS).rglob("*/"):
        sync_folder(str(folder))
    return {"linked": 0, "copied": copied}
