"""Writes a blob piece by piece and computes its digests. The methods block, so they run in threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache

from corral.blobs.checksums import SLOWEST_FIRST, Checksum, checksum
from corral.model.blob import StoredBlob

WRITEBACK_BYTES = 8 * 1024 * 1024  # start writing to disk in steps of this size, so that the final fsync is fast
_SYNC_FILE_RANGE_WRITE = 2


def create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def start_writing(fd: int, start: int = 0, size: int = 0) -> None:
    """Ask the kernel to start writing these bytes to disk. Size 0 means all bytes up to the end of the file.

    If a write fails, only a later `fsync` reports the error.
    """
    _sync_file_range()(fd, start, size, _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int]:
    import ctypes  # imported here, because only a server that stores objects needs it

    function = ctypes.CDLL(None).sync_file_range  # Python has no function for this Linux call
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


class BlobWriter:
    """Writes one blob. Call `write` and `digest` with the same pieces. Both calls can run at the same time, in two threads.

    `digest` computes only the slowest digest, and `write` computes all others. If the slowest digest is MD5, both methods take
    about the same time.
    """

    def __init__(self, blob: str, path: str, final: str, fresh: set[str], algorithms: Iterable[str]) -> None:
        # `path` is the path until `seal`, and `final` is the path afterwards. `fresh` has the blobs without a committed row.
        self._blob = blob
        self._path = path
        self._final = final
        self._fresh = fresh
        self._size = 0
        self._writeback = 0  # the kernel was asked to write this many bytes to disk
        self._digests: dict[str, Checksum] = {algorithm: checksum(algorithm) for algorithm in algorithms}
        slowest = next((algorithm for algorithm in SLOWEST_FIRST if algorithm in self._digests), None)
        self._slowest = [running for algorithm, running in self._digests.items() if algorithm == slowest]
        self._others = [running for algorithm, running in self._digests.items() if algorithm != slowest]
        self._fd = create(path)

    def write(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._size += len(piece)
            for running in self._others:
                running.update(piece)
            write_all(self._fd, piece)
            if self._size - self._writeback >= WRITEBACK_BYTES:
                start_writing(self._fd, self._writeback, self._size - self._writeback)
                self._writeback = self._size

    def digest(self, pieces: Sequence[bytes]) -> None:
        for running in self._slowest:
            for piece in pieces:
                running.update(piece)

    def flush(self) -> None:
        """Sync the bytes that were written so far, so that `seal` is faster."""
        os.fdatasync(self._fd)

    def seal(self) -> StoredBlob:
        """Sync the blob and give it its final name. Afterwards the caller must commit a row for the blob, or call `Blobs.erase`."""
        os.fsync(self._fd)
        # Do this before the rename. Otherwise the garbage collection could find the renamed file without a row, and erase it.
        self._fresh.add(self._blob)
        os.rename(self._path, self._final)
        sync_folder(os.path.dirname(self._final))
        os.close(self._fd)
        self._fd = -1
        return StoredBlob(self._blob, self._size, {algorithm: running.digest() for algorithm, running in self._digests.items()})

    def drop(self) -> None:
        """Delete the incomplete blob. Do nothing after `seal`."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        for path in (self._path, self._final):
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._fresh.discard(self._blob)


def sync_folder(path: str) -> None:
    """Sync a folder, so that the names of its files survive a crash."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
