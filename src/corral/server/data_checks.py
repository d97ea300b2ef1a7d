"""The checks of a data folder before the server starts on it. They change nothing."""

from __future__ import annotations

from pathlib import Path

from corral.blobs.files import count_blobs
from corral.core.database import is_missing, validate_file
from corral.core.errors import Refused
from corral.node.host import kernel_boot_id, stored_host_id
from corral.process.data_folder import JOINED, RESTORING, require_unused, running_original, validate_folder
from corral.server.blob_gc import ERASED_ORPHANS_MAX
from corral.store import Store
from corral.store.blob_rows import never_had_blobs
from corral.telemetry import LogStore, MetricStore


def validate_data(data: Path, runtime: str, *, discard_blobs: bool) -> None:
    """Refuse a data folder that cannot be used, for example because it is in use or damaged. Nothing is changed."""
    require_unused(data)
    validate_folder(data)
    if (data / JOINED).exists():
        raise Refused(
            f"{data} belongs to a host that has joined another server (`corral join`). Choose another folder with --data."
        )
    if (data / RESTORING).exists():
        raise Refused(f"a restore into {data} did not finish. Run `corral restore` again, with the same folder.")
    for kind, path in ((Store, data / "state.db"), (LogStore, data / "logs.db"), (MetricStore, data / "metrics.db")):
        validate_file(path, kind)
    if not discard_blobs:
        _require_state_of_blobs(data)
    if runtime != "process" and (original := running_original(data)) is not None:
        raise Refused(
            f"{data} was restored from a backup of {original}, which is in use. Both are the same host and would stop each other's "
            f"containers. Stop the other one with `corral down --data {original}`, or start this one with --runtime process."
        )


def _require_state_of_blobs(data: Path) -> None:
    """Refuse to start if blobs (files with the bytes of objects) exist, but state.db is missing or has never had a blob.

    Corral would treat all these blobs as orphans. If state.db exists, up to ERASED_ORPHANS_MAX blobs are accepted, because a crash
    can leave so many.
    """
    path, found = data / "state.db", count_blobs(data / "blobs", ERASED_ORPHANS_MAX + 1)
    if not found or (not is_missing(path) and (found <= ERASED_ORPHANS_MAX or not never_had_blobs(path))):
        return
    what = "is missing" if not path.exists() else "is empty" if is_missing(path) else "knows no object"
    raise Refused(
        f"{path} {what}, but {data / 'blobs'} contains the bytes of objects. Nothing was changed. Put state.db back, or restore a "
        "backup into another folder (`corral restore`), or move the folder blobs away. With --discard-blobs, Corral starts without "
        "these objects, moves their bytes to blobs/quarantine, and erases them after a week."
    )


def check_node(folder: Path) -> None:
    """Refuse to start if files of the agent or the spawner of this host are damaged. Nothing is changed."""
    if (folder / "host.json").exists():
        stored_host_id(folder / "host.json")
    if (folder / "journal").exists():
        from corral.node.run_journal import replay  # imported only when needed: a new data folder has no journal

        replay(folder / "journal", kernel_boot_id())
