"""`python -m store.freeze` in tests/ writes a copy of each store's present schema, with some rows, to released/.

A frozen file is never changed once its version is released: it is what users have on disk. `test_migrations.py` opens every one.
"""

from __future__ import annotations

from pathlib import Path

from corral.core.database import Database
from corral.model.placement import Placement
from corral.services.ecs.gpu_assignment import share_gpus
from corral.store import Store
from corral.telemetry import LogStore, MetricStore
from store.rows import OWN, claim, hello

RELEASED = Path(__file__).with_name("released")
STORES: dict[str, type[Store | LogStore | MetricStore]] = {"state": Store, "logs": LogStore, "metrics": MetricStore}


def version_of(kind: type[Store | LogStore | MetricStore]) -> int:
    return 1 + len(kind.MIGRATIONS)


def fill(store: Database) -> None:
    """A few rows that refer to each other."""
    if isinstance(store, Store):
        store.hosts.put(hello(), 1.0)
        store.clusters.put("r", "mine", "ACTIVE", {})
        store.definitions.add("r", "train", {"family": "train"})
        for name in ("placed", "waiting"):
            store.tasks.add(claim(name), (0, 1.0))
        placed = store.tasks.get("placed")
        assert placed is not None
        store.tasks.place(placed, Placement(OWN, ("GPU-h-0",)), share_gpus(placed.runs, ("GPU-h-0",)), 2.0)
    elif isinstance(store, LogStore):
        store.add_group("r", "/g", {}, 1)
        group = store.group("r", "/g")
        assert group is not None
        store.add_stream(group.id, "s", 1)


def main() -> None:
    RELEASED.mkdir(exist_ok=True)
    for name, kind in STORES.items():
        store = kind(None)
        fill(store)
        (RELEASED / f"{name}-{version_of(kind)}.sql").write_text("\n".join(store.connection.iterdump()) + "\n")


if __name__ == "__main__":
    main()
