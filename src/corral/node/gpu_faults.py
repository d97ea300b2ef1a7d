"""The faults of a host's GPUs that the driver reports once, as an Xid (an error number of NVIDIA).

They are stored in a file, because the driver does not report them again to an agent that has restarted.

A fault ends when the machine reboots, or when a user declares that the GPU works again (`corral gpu heal`). Faults that the driver
reports continuously are not stored here (`GpuHealth.conditions`).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from corral.model.gpu import xid_text

log = logging.getLogger("corral.node")


class GpuFaults:
    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self.last_xids: dict[str, int] = {}  # GPU id → the last Xid since the agent started
        self._boot_id = boot_id
        self._texts = _read(path, boot_id)

    @property
    def texts(self) -> Mapping[str, str]:
        """GPU id → the fault. After a restart of the agent, this includes GPUs that the driver does not list any more."""
        return self._texts

    def add(self, gpu_id: str, xid: int) -> None:
        text = xid_text(xid)
        self.last_xids[gpu_id] = xid
        log.warning("GPU %s: Xid %s%s", gpu_id, xid, "" if text else "; tasks can still use this GPU")
        if text is not None and self._texts.get(gpu_id) != text:
            self._texts = {**self._texts, gpu_id: text}
            self._write()

    def heal(self, gpu_id: str) -> None:
        if gpu_id in self._texts:
            log.info("GPU %s was healed by hand: %s", gpu_id, self._texts[gpu_id])
            self._texts = {other: text for other, text in self._texts.items() if other != gpu_id}
            self._write()

    def _write(self) -> None:
        """Store the faults. If this fails, for example because the disk is full, they are forgotten when the agent restarts."""
        fresh = self._path.with_suffix(".new")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "w") as file:
                json.dump({"boot_id": self._boot_id, "faults": self._texts}, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self._path)
        except OSError as error:
            log.error("the faults of the GPUs could not be stored: %s", error)


def _read(path: Path, boot_id: str) -> dict[str, str]:
    """Return the faults of this boot. A damaged file counts as empty: a fault is then unknown until the driver reports an Xid."""
    try:
        stored = json.loads(path.read_text())
        return {str(gpu_id): str(text) for gpu_id, text in stored["faults"].items()} if stored["boot_id"] == boot_id else {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
