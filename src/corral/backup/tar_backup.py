"""Reads a backup in a tar file: its manifest, its files and its blobs."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from corral.backup.manifest import BLOBS, MANIFEST, BackupManifest, parse_manifest
from corral.blobs.files import NAME
from corral.core.errors import Refused
from corral.store.blob_rows import BlobRow


def open_tar(backup: Path) -> tarfile.TarFile:
    if not backup.exists():
        raise Refused(f"the backup {backup} does not exist.")
    try:
        return tarfile.open(backup, "r:")
    except tarfile.TarError as error:
        raise Refused(f"{backup} is not a backup: {error}.") from None


def manifest_in(tar: tarfile.TarFile, backup: Path) -> BackupManifest | None:
    """Return the manifest, which is the last member of a complete backup. Return None if the tar file has no manifest."""
    try:
        members = tar.getmembers()
    except tarfile.TarError as error:
        raise Refused(f"the backup {backup} is incomplete or damaged ({error}). Use another backup.") from None
    if not members or members[-1].name != MANIFEST:
        return None
    file = tar.extractfile(members[-1])
    return parse_manifest(file.read(), backup) if file is not None else None


def blob_of(member: tarfile.TarInfo) -> str | None:
    """Return the name of the blob that a member contains, or None if the member is not a blob."""
    name = member.name.rpartition("/")[2]
    return name if member.name.startswith(f"{BLOBS}/") and NAME.fullmatch(name) else None


@contextmanager
def open_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[IO[bytes]]:
    file = tar.extractfile(member)
    if file is None:
        raise Refused(f"the backup is damaged: its member {member.name} is not a file.")
    with file:
        yield file


class BlobsInTar:
    def __init__(self, tar: tarfile.TarFile, backup: Path) -> None:
        self._tar = tar
        self._backup = backup
        self._members = {name: member for member in tar.getmembers() if (name := blob_of(member)) is not None}

    def place(self, row: BlobRow) -> str:
        return f"{row.blob} in {self._backup}"

    def damage(self, row: BlobRow) -> str | None:
        """Return what is wrong with a blob, or None. Only its type and its size are checked, not its bytes."""
        member = self._members.get(row.blob)
        if member is None:
            return "it does not exist"
        if not member.isreg():
            return "it is not a plain file"
        return f"it has {member.size} bytes" if member.size != row.size else None

    @contextmanager
    def open(self, row: BlobRow) -> Iterator[IO[bytes]]:
        with open_member(self._tar, self._members[row.blob]) as file:
            yield file
