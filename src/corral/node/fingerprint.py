"""The fingerprint of this machine: with it, the server refuses a copy of the disk of a host that runs on another machine.

The values are digests, because the id of a machine is not to be shown to others.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

# The name of each source, and the files that may have it. Only root can read the two of the board.
SOURCES = {
    "machine-id": ("etc/machine-id", "var/lib/dbus/machine-id"),
    "board-uuid": ("sys/class/dmi/id/product_uuid",),
    "board-serial": ("sys/class/dmi/id/board_serial", "sys/firmware/devicetree/base/serial-number"),
}
UNSET = ("", "uninitialized", "none", "0", "default string", "to be filled by o.e.m.", "not specified", "not applicable", "unknown")
SIZE_MAX = 256


def fingerprint(root: Path = Path("/")) -> dict[str, str]:
    """Return a digest of each source that this process can read."""
    found = {}
    for source, names in SOURCES.items():
        for name in names:
            with suppress(OSError):
                value = (root / name).read_bytes()[:SIZE_MAX].decode(errors="replace").strip("\0 \n\t").lower()
                if value not in UNSET and set(value) - set("0-f"):
                    found[source] = hashlib.sha256(f"corral {source} {value}".encode()).hexdigest()[:32]
                    break
    return found


def given_or_found(given: str) -> dict[str, str]:
    """Return the fingerprint in a text such as `machine-id=a,board-uuid=b`. If it is empty, that of this machine."""
    return dict(each.split("=", 1) for each in given.split(",")) if given else fingerprint()
