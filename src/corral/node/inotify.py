"""Watch a folder with inotify, and report which files were written to."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

IN_MODIFY = 0x00000002
IN_Q_OVERFLOW = 0x00004000
READ_BYTES = 64 * 1024
_EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the file name that follows


class FolderWatch:
    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0 or libc.inotify_add_watch(self._fd, os.fsencode(folder), IN_MODIFY) < 0:
            raise OSError(ctypes.get_errno(), f"cannot watch {folder} ({os.strerror(ctypes.get_errno())})")

    def fileno(self) -> int:
        return self._fd

    def read(self) -> set[str] | None:
        """Return the names of the files that were written to since the last call.

        None means that the kernel's queue overflowed, so any file may have been written to.
        """
        names: set[str] = set()
        while True:
            try:
                data = os.read(self._fd, READ_BYTES)
            except BlockingIOError:
                return names
            at = 0
            while at < len(data):
                _, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size
                if mask & IN_Q_OVERFLOW:
                    return None  # the events that are still queued make the descriptor readable again
                names.add(os.fsdecode(data[at : at + length].rstrip(b"\0")))
                at += length

    def close(self) -> None:
        os.close(self._fd)
