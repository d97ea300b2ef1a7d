"""The manifest of a backup, and the names of a backup's files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.blobs.blob_writer import sync_folder
from corral.core.database import Database
from corral.core.errors import Refused
from corral.core.schema_origin import Origin
from corral.process.data_folder import SECRETS
from corral.store import Store
from corral.telemetry import LogStore, MetricStore

MANIFEST = "backup.json"
LOCK = "backup.lock"
SNAPSHOT = "snapshot-"
BLOBS = "blobs"
ARRIVING = "arriving"
FORMAT = 1
STORES: dict[str, type[Database]] = {"state.db": Store, "logs.db": LogStore, "metrics.db": MetricStore}


class BackupManifest(Struct, frozen=True):
    format: int
    version: str  # the version of Corral
    data: str  # the path of the data folder
    folder_id: str  # the id of the data folder; a restored data folder has the same id
    created_at_s: float
    snapshot: str  # the folder that contains `files`
    files: dict[str, str]  # file name → SHA-256
    blobs: int  # the number of blobs
    blob_bytes: int
    schemas: dict[str, tuple[int, str]]  # file name of a database → version and digest of its schema (`core/schema_origin.py`)

    @property
    def file_names(self) -> list[str]:
        return [f"{self.snapshot}/{name}" for name in self.files]


def folder_id(data: Path) -> str:
    """Return the id of a data folder.

    It is a digest of the folder's encryption key, because the key never changes. The digest does not reveal the key.
    """
    try:
        key = bytes.fromhex(json.loads((data / SECRETS).read_bytes())["key"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Refused(f"{data / SECRETS} cannot be read ({error}): {data} is not a data folder of Corral.") from None
    return hashlib.sha256(b"data folder " + key).hexdigest()[:32]


def read_manifest(folder: Path) -> BackupManifest | None:
    """Return the manifest of a backup. Return None if the folder does not contain a complete backup."""
    try:
        content = (folder / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
    return parse_manifest(content, folder)


def parse_manifest(content: bytes, backup: Path) -> BackupManifest:
    try:
        if (found := json.loads(content)["format"]) != FORMAT:
            raise Refused(f"the backup {backup} has format {found}, and this version of Corral reads format {FORMAT}.")
        return msgspec.json.decode(content, type=BackupManifest)
    except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
        raise Refused(f"the manifest of the backup {backup} is damaged ({error}).") from None


def require_schemas(manifest: BackupManifest, backup: Path) -> None:
    """Raise OtherSchema if this version of Corral cannot read the databases of a backup."""
    for name, (version, digest) in manifest.schemas.items():
        STORES[name].require_version(f"{name} in {backup}", version, Origin(digest, manifest.version))


def write_synced(path: Path, content: bytes) -> None:
    """Replace a file atomically. After a crash it has either the old or the new content."""
    fresh = path.with_suffix(".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_folder(str(path.parent))
