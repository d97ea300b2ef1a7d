"""The system calls `mount` and `umount2`, which Python does not have."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, NOATIME, NODIRATIME, BIND, REC = 1, 2, 4, 8, 32, 1024, 2048, 4096, 16384
UNBINDABLE, PRIVATE, RELATIME = 1 << 17, 1 << 18, 1 << 21
DETACH = 2
KEPT = {"ro": RDONLY, "noexec": NOEXEC, "noatime": NOATIME, "nodiratime": NODIRATIME, "relatime": RELATIME}

_libc = ctypes.CDLL(None, use_errno=True)


def bind_descriptor(descriptor: int, target: Path, *, read_only: bool) -> None:
    """Bind what a descriptor refers to, with all that is mounted below it. Programs of other owners and devices have no effect."""
    _mount(f"/proc/self/fd/{descriptor}", target, BIND | REC)
    _mount("none", target, PRIVATE | REC)
    for point, options in mounts_below(target):
        kept = sum(flag for name, flag in KEPT.items() if name in options)
        _mount("none", point, REMOUNT | BIND | NOSUID | NODEV | kept | (RDONLY if read_only else 0))


def bind_to_itself(folder: Path) -> None:
    """Make a folder a mount of its own, which no other mount copies. Otherwise a bind of `/` would contain all earlier binds."""
    _mount(str(folder), folder, BIND)
    _mount("none", folder, UNBINDABLE)


def unmount(folder: Path) -> None:
    """Unmount what is mounted on a path. A process that uses it keeps it until its end."""
    if _libc.umount2(os.fsencode(folder), DETACH):
        _fail(folder)


def is_mount(folder: Path) -> bool:
    return any(point == folder for point, _ in mounts_below(folder))


def mounts_below(folder: Path) -> list[tuple[Path, list[str]]]:
    """Return the mounts on a folder and below it, each with its options, in the order in which they were mounted."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields = line.split(b" ")
        point = Path(os.fsdecode(re.sub(rb"\\(\d{3})", lambda octal: bytes([int(octal[1], 8)]), fields[4])))
        if point.is_relative_to(folder):
            found.append((point, fields[5].decode().split(",")))
    return found


def _mount(source: str, target: Path, flags: int) -> None:
    if _libc.mount(os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None):
        _fail(target)


def _fail(path: Path) -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), str(path))
