"""Finds out whether the last server of a data folder shut down, or was killed.

A server removes `server.json` when it shuts down. So this file of an earlier server means that it was killed, that it crashed, or
that the machine stopped.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

from corral.core.clock import Clock
from corral.node.procfs import boot_s
from corral.process.data_folder import DATABASES


def unfinished_server(data: Path, clock: Clock) -> str | None:
    """Return a text about the last server if it did not shut down. The caller must hold the lock of the folder."""
    path = data / "server.json"
    try:
        pid, started_s = json.loads(path.read_bytes())["pid"], path.stat().st_mtime
    except (OSError, ValueError, KeyError, TypeError):
        return None
    seen_s = _last_write_s(data, started_s)
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seen_s))
    if seen_s < clock.now_s() - boot_s():
        return f"this machine stopped after {when}, while Corral ran. No acknowledged write is lost. Its tasks have ended."
    return (
        f"the last server (process {pid}) was killed or crashed after {when}. No acknowledged write is lost, and tasks kept "
        f"running. If you did not kill it, see {data / 'server.log'} and `dmesg`."
    )


def _last_write_s(data: Path, started_s: float) -> float:
    """Return when the last server last wrote to a database. While it runs, it writes metrics at least once a minute."""
    found = [started_s]
    for name in (*DATABASES, *(f"{name}-wal" for name in DATABASES)):
        with suppress(OSError):
            found.append((data / name).stat().st_mtime)
    return max(found)
