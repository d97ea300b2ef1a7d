"""The faults of a host's GPUs that the driver reports once, as an Xid. They are stored in a file, because the agent may restart.

A fault ends when the machine reboots, or when a user declares that the GPU works again (`corral gpu heal`). Faults that the driver
reports continuously are not stored here (`GpuHealth.conditions`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from corral.model.gpu_fault import xid_text

log = logging.getLogger("corral.node")


class GpuFaults:
    def __init__(self, path: Path, boot_id: str, gpu_ids: Collection[str]) -> None:
        self._path = path
        self.last_xids: dict[str, int] = {}  # GPU id → the last Xid since the agent started
        self._boot_id = boot_id
        self._texts = {gpu_id: text for gpu_id, text in _read(path, boot_id).items() if gpu_id in gpu_ids}

    @property
    def texts(self) -> Mapping[str, str]:
        """GPU id → the fault."""
        return self._texts

    def add(self, gpu_id: str, xid: int) -> None:
        text = xid_text(xid)
        self.last_xids[gpu_id] = xid
        log.warning("GPU %s: Xid %s%s", gpu_id, xid, "" if text else ", which does not set it aside")
        if text is not None and self._texts.get(gpu_id) != text:
            self._texts = {**self._texts, gpu_id: text}
            self._write()

    def heal(self, gpu_id: str) -> None:
        if gpu_id in self._texts:
            log.info("GPU %s was healed by hand: %s", gpu_id, self._texts[gpu_id])
            self._texts = {other: text for other, text in self._texts.items() if other != gpu_id}
            self._write()

    def _write(self) -> None:
        fresh = self._path.with_suffix(".new")
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump({"boot_id": self._boot_id, "faults": self._texts}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self._path)


def _read(path: Path, boot_id: str) -> dict[str, str]:
    """Return the faults of this boot. A damaged file counts as empty, because the driver reports most faults again."""
    try:
        stored = json.loads(path.read_text())
        return {str(gpu_id): str(text) for gpu_id, text in stored["faults"].items()} if stored["boot_id"] == boot_id else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
