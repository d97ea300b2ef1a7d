"""The image of the pause container. It contains one small program that sleeps forever.

The pause container owns the network of a task, so that the network exists as long as the task. Corral builds the image itself, so
that a task in network mode awsvpc does not depend on a registry.
"""

from __future__ import annotations

import io
import struct

IMAGE = "corral/pause"
TAG = "1"
_BASE = 0x400000
_HEADERS_BYTES = 64 + 56
# For each architecture: the machine number of ELF, and code that calls ppoll(NULL, 0, NULL, NULL, 0) in a loop.
_CODE = {
    "x86_64": (
        62,
        bytes.fromhex("b80f010000" "31ff" "31f6" "31d2" "4d31d2" "4d31c0" "0f05" "ebeb"),
    ),
    "aarch64": (
        183,
        b"".join(
            struct.pack("<I", word)
            for word in (0xD2800928, 0xD2800000, 0xD2800001, 0xD2800002, 0xD2800003, 0xD2800004, 0xD4000001, 0x17FFFFF9)
        ),
    ),
}  # fmt: skip


def program(architecture: str) -> bytes:
    """Return an ELF executable: the two headers that Linux requires, and the code."""
    machine, code = _CODE[architecture]
    size = _HEADERS_BYTES + len(code)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _BASE + _HEADERS_BYTES, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code


def layer(architecture: str) -> bytes:
    """Return a tar archive with the program, for `docker import`."""
    import tarfile  # imported here to save memory, because most agents never build this image

    data = program(architecture)
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        about = tarfile.TarInfo("pause")
        about.size, about.mode = len(data), 0o755
        tar.addfile(about, io.BytesIO(data))
    return archive.getvalue()
