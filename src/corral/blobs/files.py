"""The folder that contains the blobs. Each blob is a file with a random name.

    blobs/arriving/ID       a blob that is being written; the next start of the server deletes it
    blobs/f/0/f0…           a complete blob
    blobs/quarantine/DATE/  orphans, which are blobs without a database row; they are erased after a week

The folders are created when the first blob is stored, because many servers never store a blob.

A crash can leave a file without a row, but never an object or a layer without its files. A row is committed only after its file is
synced and has its final name. A file is deleted only after a commit has removed the last reference to it. The garbage collection
erases files that have no row, except the blobs in `Blobs.fresh`, whose rows are not committed yet. A small blob is written under
its final name directly, because no reader can find it before its row is committed.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from corral.blobs.blob_writer import BlobWriter, create, start_writing, sync_folder, write_all
from corral.blobs.checksums import digest_of
from corral.core.ids import Ids
from corral.model.blob import Slice, StoredBlob

DIGITS = "0123456789abcdef"
NAME = re.compile(r"[0-9a-f]{32}")
QUARANTINE = "quarantine"
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


class Blobs:
    """The blobs of a data folder.

    Methods that read or change files block, so call them in threads. Call `reading` and all other methods in the event loop.
    """

    def __init__(self, root: Path, ids: Ids) -> None:
        """Delete the incomplete blobs of the previous process."""
        self._root = str(root)
        self._ids = ids
        self.fresh: set[str] = set()
        self._readers: Counter[str] = Counter()
        self._doomed: set[str] = set()  # blobs to erase when their last reader is done
        self._arriving = f"{self._root}/arriving"
        self._has_folders = os.path.exists(self._arriving)
        self._making = Lock()
        self._quarantine_counts: dict[str, tuple[int, int]] = {}  # date → when its folder changed (ns), and the number of blobs
        for name in os.listdir(self._arriving) if self._has_folders else ():
            os.unlink(f"{self._arriving}/{name}")

    def _make_folders(self) -> None:
        """Create all folders at once, so that later blobs do not have to wait.

        `arriving` is created last: if it exists, all folders exist.
        """
        with self._making:
            if self._has_folders:  # another thread has created them meanwhile
                return
            for folder in (self._root, *(f"{self._root}/{first}" for first in DIGITS), *self.folders()):
                with suppress(FileExistsError):
                    os.mkdir(folder, mode=0o700)
            for first in DIGITS:
                sync_folder(f"{self._root}/{first}")
            sync_folder(self._root)
            os.mkdir(self._arriving, mode=0o700)
            sync_folder(self._root)
            sync_folder(os.path.dirname(self._root))
            self._has_folders = True

    def path(self, blob: str) -> str:
        return _path(self._root, blob)

    def folders(self) -> Iterator[str]:
        """Yield the paths of all folders that may contain complete blobs."""
        return (f"{self._root}/{first}/{second}" for first in DIGITS for second in DIGITS)

    # Write

    def begin(self, algorithms: Iterable[str]) -> BlobWriter:
        """Start to write a new blob. The writer computes a digest with each of these algorithms."""
        if not self._has_folders:
            self._make_folders()
        blob = self._ids.hex32()
        return BlobWriter(blob, f"{self._arriving}/{blob}", self.path(blob), self.fresh, algorithms)

    def store(self, bodies: Sequence[tuple[bytes, Collection[str]]]) -> list[StoredBlob | OSError]:
        """Write several small blobs. A body has the bytes of a blob, and the algorithms of the digests to compute.

        The result has an error for each blob that could not be written. For each other blob, the caller must commit a row or call
        `erase`. All blobs are in the same folder, so that one sync of the folder is sufficient.
        """
        folder, fds, stored = self._ids.hex32()[:2], dict[str, int](), list[StoredBlob | OSError]()
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
                    stored.append(StoredBlob(blob, len(data), {algorithm: digest_of(algorithm, data) for algorithm in algorithms}))
            for fd in fds.values():
                os.fsync(fd)
            sync_folder(f"{self._root}/{folder[0]}/{folder[1]}")
        except OSError as error:  # it is unknown which blobs were written to disk
            self.erase(fds)
            return [error] * len(bodies)
        finally:
            for fd in fds.values():
                os.close(fd)
        return stored

    def committed(self, blob: str) -> None:
        """Record that the row of a blob is committed."""
        self.fresh.discard(blob)

    # Read

    @contextmanager
    def reading(self, blobs: Sequence[str]) -> Iterator[None]:
        """Do not erase these blobs while the caller reads them, even if their rows are deleted meanwhile."""
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

    def open(self, blob: str) -> int:
        """Open the blob for reading and return its descriptor. Do not follow a symbolic link."""
        return _open(self._root, blob)

    def read(self, slices: Iterable[Slice]) -> bytes:
        """Return the bytes of these slices.

        If the caller has read the rows in an earlier turn of the event loop, the blobs may have been erased meanwhile. Such a
        caller must use `reading` and handle FileNotFoundError.
        """
        return read_slices(self._root, slices)

    def erasable(self, blobs: Sequence[str]) -> list[str]:
        """Return the blobs that have no reader, so that the caller can erase them now.

        The others are erased when their last reader is done.
        """
        self._doomed.update(blob for blob in blobs if blob in self._readers)
        return [blob for blob in blobs if blob not in self._readers]

    def erase(self, blobs: Iterable[str]) -> None:
        for blob in blobs:
            with suppress(FileNotFoundError):
                os.unlink(self.path(blob))
            self.fresh.discard(blob)

    def names(self, folders: Iterator[str]) -> list[str]:
        """Return the names of the blobs in the next folder that has blobs. The blobs in `fresh` are left out.

        Return an empty list after the last folder.
        """
        for folder in folders if self._has_folders else ():
            found = [name for name in os.listdir(folder) if NAME.fullmatch(name)]
            if found := [name for name in found if name not in self.fresh]:
                return found
        return []

    # Quarantine

    def quarantine(self, blobs: Iterable[str], date: str) -> str:
        """Move orphans to the quarantine folder of a date, and return that folder. `take_back` can undo this."""
        folder = f"{self._root}/{QUARANTINE}/{date}"
        for each in (os.path.dirname(folder), folder):
            with suppress(FileExistsError):
                os.mkdir(each, mode=0o700)
        for blob in blobs:
            with suppress(FileNotFoundError):
                os.rename(self.path(blob), f"{folder}/{blob}")
        sync_folder(folder)
        return folder

    def quarantined(self) -> Iterator[tuple[str, list[str]]]:
        """Yield each date that has a quarantine folder, and the names of the blobs in this folder."""
        try:
            dates = sorted(date for date in os.listdir(f"{self._root}/{QUARANTINE}") if DATE.fullmatch(date))
        except FileNotFoundError:
            return
        for date in dates:
            yield date, [name for name in os.listdir(f"{self._root}/{QUARANTINE}/{date}") if NAME.fullmatch(name)]

    def count_quarantined(self) -> dict[str, int]:
        """Return date → number of blobs in the quarantine folder of this date. List a folder again only if it has changed."""
        folder, counts = f"{self._root}/{QUARANTINE}", dict[str, tuple[int, int]]()
        with suppress(FileNotFoundError):
            for date in sorted(date for date in os.listdir(folder) if DATE.fullmatch(date)):
                changed_ns = os.stat(f"{folder}/{date}").st_mtime_ns
                known = self._quarantine_counts.get(date)
                if known is None or known[0] != changed_ns:
                    known = changed_ns, sum(NAME.fullmatch(name) is not None for name in os.listdir(f"{folder}/{date}"))
                counts[date] = known
        self._quarantine_counts = counts
        return {date: number for date, (_, number) in counts.items() if number}

    def take_back(self, date: str, blobs: Collection[str]) -> None:
        """Move blobs back from the quarantine.

        This is necessary if the user has restored an earlier state.db, which refers to them.
        """
        for blob in blobs:
            os.rename(f"{self._root}/{QUARANTINE}/{date}/{blob}", self.path(blob))
        for folder in {os.path.dirname(self.path(blob)) for blob in blobs}:
            sync_folder(folder)

    def erase_quarantine(self, date: str) -> None:
        from shutil import rmtree  # imported here, because it is rarely needed

        rmtree(f"{self._root}/{QUARANTINE}/{date}")


def read_slices(root: str, slices: Iterable[Slice]) -> bytes:
    parts = list[bytes]()
    for each in slices:
        fd = _open(root, each.blob)
        try:
            parts.append(os.pread(fd, each.size, each.start))
        finally:
            os.close(fd)
        if len(parts[-1]) != each.size:
            raise OSError(f"blob {each.blob} is shorter than the size in its row")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _path(root: str, blob: str) -> str:
    return f"{root}/{blob[0]}/{blob[1]}/{blob}"


def _open(root: str, blob: str) -> int:
    return os.open(_path(root, blob), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def count_blobs(root: Path, limit: int) -> int:
    """Count the complete blobs. Stop counting at `limit`."""
    found = 0
    for first in (digit for digit in DIGITS if (root / digit).is_dir()):
        for second in DIGITS:
            with suppress(FileNotFoundError, NotADirectoryError):
                found += sum(NAME.fullmatch(name) is not None for name in os.listdir(f"{root}/{first}/{second}"))
            if found >= limit:
                return limit
    return found
