"""The content of the databases of a Corral, to see that refused requests have changed nothing."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

from eventually import eventually

# Tables that change by themselves, or that say when a key was used. Ids of deduplication are deleted after five minutes.
# `packed` and the like have the metrics of Corral itself.
ALIVE = {
    "state.db": {
        "access_key",
        "deduplication",
        "service_use",
        "due",
        "outbox",
        "inbox",
        "host",
        "task_gpu_use",
        "instance_usage",
        "sqlite_sequence",
    },
    "logs.db": {"due", "outbox", "inbox", "log_event", "log_stream", "shipment", "sqlite_sequence"},
    "metrics.db": {
        "series",
        "series_dimension",
        "packed",
        "flushed",
        "alarm_watch",
        "alarm_history",
        "due",
        "outbox",
        "inbox",
        "sqlite_sequence",
    },
}

# Tables of which only a part is compared: without the clock, and without the number of stored bytes
PARTS = {
    "stored_resource": "SELECT * FROM stored_resource WHERE service <> 'corral'",
    "alarm": "SELECT id, region, name, kind, config, actions_enabled, owner FROM alarm",
    # Corral itself writes the groups of Container Insights once a minute.
    "log_group": "SELECT id, region, name, retention_days, details, owner FROM log_group "
    "WHERE name IS NULL OR name NOT LIKE '/aws/ecs/containerinsights/%'",
}

SETTLED_S = 1.0
SHOWN = 100  # characters of a row

Contents = dict[str, Counter[str]]


def contents(data: Path) -> Contents:
    """Return the beginnings and the digests of all rows, by database and table."""
    found: Contents = {}
    for name, alive in ALIVE.items():
        database = sqlite3.connect(f"file:{data / name}?mode=ro", uri=True)
        try:
            tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            for table in sorted(set(tables) - alive):
                rows = database.execute(PARTS.get(table, f'SELECT * FROM "{table}"'))
                found[f"{name}:{table}"] = Counter(_shown(row) for row in rows)
        finally:
            database.close()
    return found


def _shown(row: tuple[object, ...]) -> str:
    text = repr(row)
    return f"{text[:SHOWN]}… {sha256(text.encode()).hexdigest()}"


def changes(before: Contents, after: Contents) -> list[str]:
    """Return the rows that are gone and the rows that are new, by table."""
    return [
        f"{table}: {what}: {row}"
        for table in before
        for what, rows in (("gone", before[table] - after[table]), ("new", after[table] - before[table]))
        for row in rows
    ]


def settled(data: Path) -> Contents:
    """Return the content as soon as it no longer changes by itself, for example because tasks end."""
    last, since_s = contents(data), time.monotonic()

    def is_settled() -> bool:
        nonlocal last, since_s
        now = contents(data)
        if now != last:
            last, since_s = now, time.monotonic()
        return time.monotonic() - since_s > SETTLED_S

    eventually(is_settled, "the databases settle", 90.0)
    return last
