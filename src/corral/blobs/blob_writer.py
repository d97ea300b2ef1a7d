"""Writes a blob piece by piece and computes its digests. Runs in threads, because it blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache

from corral.blobs.checksums import SLOWEST_FIRST, Checksum, checksum
from corral.model.blob import StoredBlob

WRITEBACK_BYTES = 8 * 1024 * 1024  # start writing to disk in steps of this size, so that the final fsync has little to do
_SYNC_FILE_RANGE_WRITE = 2


def create(path: str) -> int:
    """Create a file and return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def start_writing(fd: int, start: int = 0, size: int = 0) -> None:
    """Ask the kernel to start writing these bytes to disk (size 0: to the end). Only `fsync` reports errors."""
    _sync_file_range()(fd, start, size, _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int]:
    import ctypes  # imported late: only a server that stores objects needs it

    function = ctypes.CDLL(None).sync_file_range  # a Linux call that Python does not expose
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


class BlobWriter:
    """Writes one blob. `write` and `digest` get the same pieces and may run in parallel.

    `digest` computes the slowest digest and `write` all others, because MD5 takes as long as everything else together.
    """

    def __init__(self, blob: str, path: str, final: str, fresh: set[str], algorithms: Iterable[str]) -> None:
        self._blob = blob
        self._path = path
        self._final = final
        self._fresh = fresh
        self._size = 0
        self._writeback = 0  # bytes that the kernel was asked to write to disk
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
        """Sync the bytes written so far, so that `seal` has less to do."""
        os.fdatasync(self._fd)

    def seal(self) -> StoredBlob:
        """Sync the blob and rename it. The caller must then commit a row for it, or call `Blobs.erase`."""
        os.fsync(self._fd)
        self._fresh.add(self._blob)  # before the rename, so that a sweep that sees the file does not erase it
        os.rename(self._path, self._final)
        sync_folder(os.path.dirname(self._final))
        os.close(self._fd)
        self._fd = -1
        return StoredBlob(self._blob, self._size, {algorithm: running.digest() for algorithm, running in self._digests.items()})

    def drop(self) -> None:
        """Delete the unfinished blob. Does nothing after `seal`."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        for path in (self._path, self._final):
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._fresh.discard(self._blob)


def sync_folder(path: str) -> None:
    """Sync the names in a folder."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
