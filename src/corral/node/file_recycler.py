"""Reuse or remove the files of ended runs. Small files are emptied and reused. Large files are removed in the background.

The spawner, which starts the processes of runs, uses this module. Reuse saves time. When ext4 creates a file, it examines every
inode that was freed in the last minutes. After thousands of short runs, creating a file takes 0.3 ms, as long as starting a
process. Renaming an existing file takes 0.02 ms. If runs are waiting to be started, the files of an ended run get their new names
directly. Otherwise they are moved to the folder `spare/` first.
"""

from __future__ import annotations

import fcntl
import os
import stat
import sys

SPARE_MAX = 2_000  # maximum number of spare files, and of spare folders
SMALL_OUTPUT_MAX_BYTES = 1024 * 1024  # a larger file is not reused, because truncating it would block the spawner's loop
REMOVE_MAX_PATHS = 200  # maximum number of paths that one child process removes

# Neither rm nor find follows links. The first rm fails if the owner has no write permission for a folder. So chmod adds the
# permission, and rm is tried again.
# Root needs no permission, and must not run chmod: another account could replace a folder by a link meanwhile.
_REMOVE = 'rm -rf -- "$@" 2>/dev/null && exit; find "$@" -type d ! -perm -700 -exec chmod u+rwx {} \\; ; rm -rf -- "$@"'
_REMOVE_AS_ROOT = 'rm -rf -- "$@" 2>/dev/null || rm -rf -- "$@"'


class FileRecycler:
    """`spare/` contains empty files and folders for reuse. A child process removes the contents of `trash/`.

    At most one child process runs at a time.
    """

    def __init__(self, data: str) -> None:
        self._spare = f"{data}/spare"
        self._trash = f"{data}/trash"
        names = os.listdir(self._spare)
        self._files = [f"{self._spare}/{name}" for name in names if name.startswith("file-")]
        self._folders = [f"{self._spare}/{name}" for name in names if name.startswith("folder-")]
        # The paths of empty files and folders of ended runs that are not in `spare/` yet. The values are not used.
        self._released_files: dict[str, None] = {}
        self._released_folders: dict[str, None] = {}
        self._removing = [f"{self._trash}/{name}" for name in os.listdir(self._trash)]
        self._count = 0
        self.pid: int | None = None  # the child process that removes files

    def reuse_file(self, path: str) -> None:
        """If there is an empty file, move it to `path`."""
        _reuse(path, self._released_files, self._files)

    def make_folder(self, path: str) -> None:
        """Move an empty folder to `path`, or create one. Raises OSError if `path` exists and is not empty."""
        if not _reuse(path, self._released_folders, self._folders):
            os.mkdir(path, 0o700)

    def release_file(self, path: str) -> None:
        if len(self._files) + len(self._released_files) < SPARE_MAX and _empty_file(path):
            self._released_files[path] = None
        elif _has_other_name(path):  # the file is kept under its other name (`kept_outputs.py`)
            os.unlink(path)
        else:
            self._move_to_trash(path)

    def release_folder(self, path: str) -> None:
        try:
            about = os.lstat(path)
        except FileNotFoundError:
            return  # the run has no folder in the data folder, because it used a folder of the user
        plain = stat.S_ISDIR(about.st_mode) and stat.S_IMODE(about.st_mode) == 0o700 and about.st_uid == os.geteuid()
        if len(self._folders) + len(self._released_folders) < SPARE_MAX and plain and not os.listdir(path):
            self._released_folders[path] = None
        else:
            self._move_to_trash(path)

    def move_to_spare(self) -> None:
        """Move the released files and folders to `spare/`. Call this when no run is waiting to be started."""
        while self._released_files:
            self._move(self._released_files.popitem()[0], self._files, "file")
        while self._released_folders:
            self._move(self._released_folders.popitem()[0], self._folders, "folder")

    def _move(self, path: str, spare: list[str], kind: str) -> None:
        target = f"{self._spare}/{self._new_name(kind)}"
        try:
            os.rename(path, target)
            spare.append(target)
        except OSError as error:  # the path stays in its folder, and the next spawner removes it
            print(f"cannot move {path} to {target}: {error}", file=sys.stderr, flush=True)

    def remove_trash(self) -> None:
        """Start a child process that empties the trash, unless one is running."""
        if self.pid is None and self._removing:
            batch, self._removing = self._removing[:REMOVE_MAX_PATHS], self._removing[REMOVE_MAX_PATHS:]
            script = _REMOVE if os.geteuid() else _REMOVE_AS_ROOT
            self.pid = os.posix_spawn("/bin/sh", ["sh", "-c", script, "sh", *batch], {"PATH": "/usr/bin:/bin"})

    def remove_later(self, paths: list[str]) -> None:
        """Let the next child process remove these files or folders, which are not in `trash/`."""
        self._removing += paths

    def child_ended(self) -> None:
        self.pid = None
        self.remove_trash()

    def _move_to_trash(self, path: str) -> None:
        target = f"{self._trash}/{self._new_name('old')}"
        try:
            os.rename(path, target)
        except FileNotFoundError:
            return
        self._removing.append(target)

    def _new_name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}-{os.getpid()}-{self._count}"


def _reuse(path: str, released: dict[str, None], spare: list[str]) -> bool:
    """Move a released or spare file or folder to `path`. Return False if there is none."""
    if path in released:  # an earlier run had the same id
        del released[path]
    elif released:
        os.rename(released.popitem()[0], path)
    elif spare:
        os.rename(spare.pop(), path)
    else:
        return False
    return True


def _has_other_name(path: str) -> bool:
    try:
        return os.lstat(path).st_nlink > 1
    except FileNotFoundError:
        return False


def _empty_file(path: str) -> bool:
    """Truncate a file if no other process can use it. Return whether it was truncated.

    The file must have only one name, and no other process may have it open. F_SETLEASE fails if another process has it open.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        about = os.fstat(fd)
        ours = stat.S_ISREG(about.st_mode) and stat.S_IMODE(about.st_mode) == 0o600 and about.st_uid == os.geteuid()
        if not ours or about.st_nlink != 1 or about.st_size > SMALL_OUTPUT_MAX_BYTES:
            return False
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        if about.st_size:
            os.ftruncate(fd, 0)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
