"""A blob on its way in: written and digested piece by piece, by threads that may block."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.blobs.checksums import Checksum, checksum
from corral.model.blob import MD5, Arrived

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.hashes import Hash


class Arriving:
    """`write` and `digest` are given the same pieces and may run side by side; MD5 takes as long as all the rest."""

    def __init__(self, blob: str, path: str, final: str, fresh: set[str], algorithms: Iterable[str]) -> None:
        self._blob = blob
        self._path = path
        self._final = final
        self._fresh = fresh
        self._size = 0
        self._md5 = _md5()
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
        return Arrived(self._blob, self._size, {MD5: self._md5.finalize(), **digests})

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


def _md5() -> Hash:
    """By an OpenSSL of its own: a third faster than hashlib where the system's is older, and MD5 is what a put waits for."""
    from cryptography.hazmat.primitives import hashes  # here, because it takes a while, and an idle Corral has no use for it

    return hashes.Hash(hashes.MD5())


def sync_folder(path: str) -> None:
    """The names in it are on disk."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
