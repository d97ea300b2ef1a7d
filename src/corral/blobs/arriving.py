"""A blob on its way in: written and digested piece by piece, by threads that may block."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress

from corral.blobs.checksums import Checksum, checksum
from corral.model.blob import MD5, Arrived


class Arriving:
    """`write` and `digest` are given the same pieces and may run side by side; MD5 takes as long as all the rest."""

    def __init__(self, blob: str, path: str, final: str, fresh: set[str], algorithms: Iterable[str]) -> None:
        self._blob = blob
        self._path = path
        self._final = final
        self._fresh = fresh
        self._size = 0
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._checksums: dict[str, Checksum] = {algorithm: checksum(algorithm) for algorithm in algorithms}
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def write(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._size += len(piece)
            for running in self._checksums.values():
                running.update(piece)
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def digest(self, pieces: Sequence[bytes]) -> None:
        for piece in pieces:
            self._md5.update(piece)

    def seal(self) -> Arrived:
        """Make it durable and give it its name. A row must follow, or `Blobs.erase`."""
        os.fsync(self._fd)
        self._fresh.add(self._blob)  # before it has its name: whoever sees the file must know that its row is to come
        os.rename(self._path, self._final)
        sync_folder(os.path.dirname(self._final))
        os.close(self._fd)
        self._fd = -1
        digests = {algorithm: running.digest() for algorithm, running in self._checksums.items()}
        return Arrived(self._blob, self._size, {MD5: self._md5.digest(), **digests})

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
