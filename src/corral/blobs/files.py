"""The folder of blobs: each a file under a random name.

    blobs/arriving/ID       being written; emptied at every start
    blobs/f/0/f0…           whole; a row refers to it, or will in a moment, or has until a moment ago

The folders are made with the first blob: many who start a Corral never store one.

A crash leaves files that no row refers to, never a row without its file: a file is on disk, with its name, before its row is
committed, and loses its name after the commit that drops the row. `fresh` are those between name and row; a sweep leaves
them alone. A small blob is written under its name at once: as long as no row refers to it, nobody looks.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from corral.blobs.arriving import Arriving, create, start_writing, sync_folder, write_all
from corral.blobs.checksums import digest_of
from corral.ids import Ids
from corral.model.blob import Arrived, Slice

DIGITS = "0123456789abcdef"
NAME = re.compile(r"[0-9a-f]{32}")


class Blobs:
    """Called from the event loop, but for `begin` and what it makes, `store`, `read`, `erase` and `names`, which may block."""

    def __init__(self, root: Path, ids: Ids) -> None:
        """Nothing arrives yet: what was arriving when the last one ended is dropped."""
        self._root = str(root)
        self._ids = ids
        self.fresh: set[str] = set()
        self._readers: Counter[str] = Counter()
        self._doomed: set[str] = set()  # to be erased when their last reader has gone
        self._arriving = f"{self._root}/arriving"
        self._has_folders = os.path.exists(self._arriving)
        self._making = Lock()
        for name in os.listdir(self._arriving) if self._has_folders else ():
            os.unlink(f"{self._arriving}/{name}")

    def _make_folders(self) -> None:
        """Once and for all, so that no later blob has to wait for its folder; `arriving` comes last and says that all are there."""
        with self._making:
            if self._has_folders:  # another thread was first
                return
            for folder in self.folders():
                os.makedirs(folder, mode=0o700, exist_ok=True)
            for first in DIGITS:
                sync_folder(f"{self._root}/{first}")
            sync_folder(self._root)
            os.mkdir(self._arriving, mode=0o700)
            sync_folder(self._root)
            sync_folder(os.path.dirname(self._root))
            self._has_folders = True

    def path(self, blob: str) -> str:
        return f"{self._root}/{blob[0]}/{blob[1]}/{blob}"

    def folders(self) -> Iterator[str]:
        """The folders of whole blobs, for a sweep to go through."""
        return (f"{self._root}/{first}/{second}" for first in DIGITS for second in DIGITS)

    # In

    def begin(self, algorithms: Iterable[str]) -> Arriving:
        """A new blob, of which these digests are wanted."""
        if not self._has_folders:
            self._make_folders()
        blob = self._ids.hex32()
        return Arriving(blob, f"{self._arriving}/{blob}", self.path(blob), self.fresh, algorithms)

    def store(self, bodies: Sequence[tuple[bytes, Collection[str]]]) -> list[Arrived | OSError]:
        """Several small blobs at once, each with the digests that are wanted of it. A row must follow for each, or `erase`.

        They lie in one folder, so that one sync of it makes the names of all durable.
        """
        folder, fds, stored = self._ids.hex32()[:2], dict[str, int](), list[Arrived | OSError]()
        try:
            if not self._has_folders:
                self._make_folders()
            for data, algorithms in bodies:
                blob = folder + self._ids.hex32()[2:]
                self.fresh.add(blob)
                try:
                    fds[blob] = create(self.path(blob))
                    write_all(fds[blob], data)
                    start_writing(fds[blob])
                except OSError as error:
                    if blob in fds:
                        os.close(fds.pop(blob))
                    self.erase([blob])
                    stored.append(error)
                else:
                    stored.append(Arrived(blob, len(data), {algorithm: digest_of(algorithm, data) for algorithm in algorithms}))
            for fd in fds.values():
                os.fsync(fd)
            sync_folder(f"{self._root}/{folder[0]}/{folder[1]}")
        except OSError as error:  # nobody can say which of them are on disk
            self.erase(fds)
            return [error] * len(bodies)
        finally:
            for fd in fds.values():
                os.close(fd)
        return stored

    def settled(self, blob: str) -> None:
        """A row refers to it now."""
        self.fresh.discard(blob)

    # Out

    @contextmanager
    def reading(self, blobs: Sequence[str]) -> Iterator[None]:
        """While somebody reads them they are not erased, whatever happens to their rows."""
        self._readers.update(blobs)
        try:
            yield
        finally:
            self._readers.subtract(blobs)
            for blob in blobs:
                if not self._readers[blob]:
                    del self._readers[blob]
                    if blob in self._doomed:
                        self._doomed.discard(blob)
                        self.erase([blob])

    def read(self, slices: Iterable[Slice]) -> bytes:
        """Whoever is not certain that they are there must be `reading` them, and may get a FileNotFoundError all the same."""
        parts = []
        for each in slices:
            fd = os.open(self.path(each.blob), os.O_RDONLY | os.O_CLOEXEC)
            try:
                parts.append(os.pread(fd, each.size, each.start))
            finally:
                os.close(fd)
            if len(parts[-1]) != each.size:
                raise OSError(f"blob {each.blob} is shorter than it should be")
        return b"".join(parts)

    def not_read(self, blobs: Sequence[str]) -> list[str]:
        """Those that may be erased now. The others go when their last reader does; after a crash a sweep finds them."""
        self._doomed.update(blob for blob in blobs if blob in self._readers)
        return [blob for blob in blobs if blob not in self._readers]

    def erase(self, blobs: Iterable[str]) -> None:
        for blob in blobs:
            with suppress(FileNotFoundError):
                os.unlink(self.path(blob))
            self.fresh.discard(blob)

    def names(self, folders: Iterator[str]) -> list[str]:
        """The blobs of the next folder that has any; those on their way to a row are left out. Nothing: there are no more."""
        for folder in folders if self._has_folders else ():
            found = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
            if found := [name for name in found if name not in self.fresh]:
                return found
        return []
