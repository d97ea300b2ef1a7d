"""`python -m store.freeze` in tests/ freezes the present version of the data folder.

It writes to frozen/ a copy of each store's schema with some rows, and a data folder of a real server (`frozen_folder.py`). A frozen
version is never changed once it is released: it is what users have on disk. `test_migrations.py` opens every one. Before the
release, `--renew` writes the files of the present version again.
"""

from __future__ import annotations

import json
import os
import sys
import tarfile
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import corral
from corral.core.database import Database
from corral.model.placement import Placement
from corral.services.ecs.gpu_assignment import share_gpus
from corral.store import Store
from corral.telemetry import LogStore
from harness import Corral
from store.frozen_folder import STORES, fill, read
from store.rows import OWN, claim, hello

FROZEN = Path(__file__).with_name("frozen")
LEFT_OUT = ("lock", "server.log", "blobs.lock", "outputs")  # a server creates these files again


def fill_memory(store: Database) -> None:
    """A few rows that refer to each other."""
    if isinstance(store, Store):
        store.hosts.put(hello(), 1.0)
        store.clusters.put("r", "mine", "ACTIVE", {})
        store.definitions.add("r", "train", {"family": "train"}, "root")
        for name in ("placed", "waiting"):
            store.tasks.add(claim(name), (0, 1.0))
        placed = store.tasks.get("placed")
        assert placed is not None
        store.tasks.place(placed, Placement(OWN, ("GPU-h-0",)), share_gpus(placed.runs, ("GPU-h-0",)), 2.0)
    elif isinstance(store, LogStore):
        store.add_group("r", "/g", {}, 1, "root")
        group = store.group("r", "/g")
        assert group is not None
        store.add_stream(group.id, "s", 1, "root")


def freeze_schemas(renew: bool) -> None:
    for name, kind in STORES.items():
        path = FROZEN / f"{name}-{kind.schema_version()}.sql"
        store = kind(None)
        fill_memory(store)
        content = "\n".join(store.connection.iterdump()) + "\n"
        if path.exists() and path.read_text() != content and not renew:
            sys.exit(f"{path} differs. Add a migration to {kind.__name__}.MIGRATIONS. If its version is not released: --renew")
        path.write_text(content)


def freeze_folder(renew: bool) -> None:
    path = FROZEN / f"folder-{corral.__version__}.tar.xz"
    if path.exists() and not renew:
        return
    with TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        server = Corral(data, "sim:2").start()
        try:
            fill(server)
            server.stop()
        finally:
            server.clear()
        at_s = time.time()
        with tarfile.open(path, "w:xz") as tar:
            for name in sorted(set(os.listdir(data)) - set(LEFT_OUT) - {"node"}):
                tar.add(data / name, name)
            tar.add(data / "node" / "host.json", "node/host.json")
        said = {"at_s": at_s, "responses": read(data, at_s)}
    path.with_name(path.name.replace(".tar.xz", ".json")).write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    print(f"{path.name}: {path.stat().st_size} bytes")


def main(renew: bool) -> None:
    FROZEN.mkdir(exist_ok=True)
    freeze_schemas(renew)
    freeze_folder(renew)


if __name__ == "__main__":
    main("--renew" in sys.argv[1:])
