"""A blob on its way in: written and digested piece by piece, by threads that may block."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache

from corral.blobs.checksums import SLOWEST_FIRST, Checksum, checksum
from corral.model.blob import Arrived

AHEAD_BYTES = 8 * 1024 * 1024  # what is written goes to the disk so much at a time, not all of it when it is to be durable
_SYNC_FILE_RANGE_WRITE = 2


def create(path: str) -> int:
    """A new file for the bytes of a blob."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


def write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def start_writing(fd: int, start: int = 0, size: int = 0) -> None:
    """The disk begins to write these bytes (size 0: to the end). Whether it can is for `fsync` to say."""
    _sync_file_range()(fd, start, size, _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int]:
    import ctypes  # only who stores objects needs it

    function = ctypes.CDLL(None).sync_file_range  # Linux's; Python has no name for it
    function.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return function


class Arriving:
    """`write` and `digest` are given the same pieces and may run side by side.

    `digest` computes the slowest of the digests, `write` all others: MD5 takes as long as all the rest.
    """

    def __init__(self, blob: str, path: str, final: str, fresh: set[str], algorithms: Iterable[str]) -> None:
        self._blob = blob
        self._path = path
        self._final = final
        self._fresh = fresh
        self._size = 0
        self._begun = 0  # bytes that the disk has begun to write
        self._digests: dict[str, Checksum] = {algorithm: checksum(algorithm) for algorithm in algorithms}
        slowest = next((algorithm for algorithm in SLOWEST_FIRST if algorithm in self._digests), None)
        self._beside = [running for algorithm, running in self._digests.items() if algorithm == slowest]
        self._along = [running for algorithm, running in self._digests.items() if algorithm != slowest]
        self._fd = create(path)

    def write(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._size += len(piece)
            for running in self._along:
                running.update(piece)
            write_all(self._fd, piece)
            if self._size - self._begun >= AHEAD_BYTES:
                start_writing(self._fd, self._begun, self._size - self._begun)
                self._begun = self._size

    def digest(self, pieces: Sequence[bytes]) -> None:
        for running in self._beside:
            for piece in pieces:
                running.update(piece)

    def flush(self) -> None:
        """What was written is on disk: `seal` will find less to do."""
        os.fdatasync(self._fd)

    def seal(self) -> Arrived:
        """Make it durable and give it its name. A row must follow, or `Blobs.erase`."""
        os.fsync(self._fd)
        self._fresh.add(self._blob)  # before it has its name: whoever sees the file must know that its row is to come
        os.rename(self._path, self._final)
        sync_folder(os.path.dirname(self._final))
        os.close(self._fd)
        self._fd = -1
        return Arrived(self._blob, self._size, {algorithm: running.digest() for algorithm, running in self._digests.items()})

    def drop(self) -> None:
        """Nothing of it is wanted. After `seal` this does nothing: it has arrived."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        for path in (self._path, self._final):
            with suppress(FileNotFoundError):
                os.unlink(path)
        self._fresh.discard(self._blob)


def sync_folder(path: str) -> None:
    """The names in it are on disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
