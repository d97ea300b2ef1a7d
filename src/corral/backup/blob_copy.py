"""Copies blobs from one blob folder to another. It creates hard links instead of copies if the disk allows them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from corral.blobs.blob_writer import create, sync_folder, write_all
from corral.blobs.files import NAME
from corral.core.errors import Refused
from corral.store.blob_rows import BlobRow

COPIES_OPEN = 64  # the number of files that are copied before they are synced
COPY_BYTES = 1024 * 1024
# The errors of `link` after which the file is copied: another disk, too many links, or a file system without links.
NO_LINK = {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}


def blob_path(root: Path, blob: str) -> str:
    return f"{root}/{blob[0]}/{blob[1]}/{blob}"


def make_folder(path: Path) -> None:
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)


class BlobCopier:
    """Adds blobs to a folder.

    A copy gets its final name after it is complete and synced.
    """

    def __init__(self, source: Path, target: Path, arriving: Path, *, link: bool = True) -> None:
        self._source = source
        self._target = target
        self._arriving = arriving
        self._link = link
        self._copies: list[tuple[int, str, str]] = []  # (descriptor, temporary path, final path)
        self._folders: set[str] = set()  # the folders that must be synced
        self.linked = self.copied = self.present = 0

    def add_all(self, rows: Iterable[BlobRow], progress: Callable[[int], None]) -> set[str]:
        """Add the blobs of `rows` that the folder does not contain yet.

        Return the names of all blobs of `rows`. Call `progress` with the size of each.
        """
        names = set[str]()
        make_folder(self._target)
        make_folder(self._arriving)
        for row in rows:
            self._add(row)
            names.add(row.blob)
            progress(row.size)
        self._finish_copies()
        for folder in self._folders:
            sync_folder(folder)
        self._arriving.rmdir()
        sync_folder(str(self._target))
        return names

    def _add(self, row: BlobRow) -> None:
        source, target = blob_path(self._source, row.blob), blob_path(self._target, row.blob)
        try:
            if os.lstat(target).st_size == row.size:
                self.present += 1
                return
            os.unlink(target)
        except FileNotFoundError:
            pass
        require_whole(row, source)
        folder = os.path.dirname(target)
        if folder not in self._folders:
            make_folder(Path(folder).parent)
            make_folder(Path(folder))
            self._folders |= {folder, os.path.dirname(folder)}
        if self._link and self._linked(source, target):
            self.linked += 1
        else:
            self._copy(source, target, row)
            self.copied += 1

    def _linked(self, source: str, target: str) -> bool:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in NO_LINK:
                raise
            # After any other error than EMLINK, copy all later files, because the error would occur again.
            self._link = error.errno == errno.EMLINK
            return False
        return True

    def _copy(self, source: str, target: str, row: BlobRow) -> None:
        unfinished = f"{self._arriving}/{row.blob}"
        with suppress(FileNotFoundError):
            os.unlink(unfinished)
        with open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as reader:
            fd = create(unfinished)
            self._copies.append((fd, unfinished, target))
            while piece := reader.read(COPY_BYTES):
                write_all(fd, piece)
        if len(self._copies) >= COPIES_OPEN:
            self._finish_copies()

    def _finish_copies(self) -> None:
        for fd, unfinished, target in self._copies:
            os.fsync(fd)
            os.close(fd)
            os.rename(unfinished, target)
        self._copies = []


def damage_of(row: BlobRow, path: str) -> str | None:
    """Return why the file of a blob is damaged, or None. Only its type and size are checked."""
    try:
        about = os.lstat(path)
    except FileNotFoundError:
        return "it does not exist"
    if not stat.S_ISREG(about.st_mode):
        return "it is not a plain file"
    return f"it has {about.st_size} bytes" if about.st_size != row.size else None


def require_whole(row: BlobRow, path: str) -> None:
    if (damage := damage_of(row, path)) is not None:
        raise Refused(f"the blob {path} of {row.size} bytes is damaged: {damage}. `corral check` lists all damage.")


def erase_except(root: Path, names: set[str]) -> int:
    """Erase all blobs of a folder except these. Return the number of erased blobs."""
    erased = 0
    for folder in folders_of(root):
        for name in os.listdir(folder):
            if NAME.fullmatch(name) and name not in names:
                os.unlink(folder / name)
                erased += 1
    return erased


def folders_of(root: Path) -> list[Path]:
    """Return the folders below the root folder that contain blobs."""
    firsts = [root / name for name in sorted(os.listdir(root)) if len(name) == 1] if root.is_dir() else []
    return [first / name for first in firsts for name in sorted(os.listdir(first)) if len(name) == 1]


def names_in(root: Path) -> list[str]:
    return [name for folder in folders_of(root) for name in os.listdir(folder) if NAME.fullmatch(name)]
