"""The folders in which runs of other Unix accounts work.

Other accounts cannot reach the data folder. So the work folders of their runs are below `ROOT`, in a folder for each data folder.
Others can pass these two folders, but not list or change them. Each work folder belongs to its account, which alone can open it. A
shipped folder is fetched by the run itself, so each account has its own cache of shipped files there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

ROOT = "/var/lib/corral-work"
CACHES = ".shipped"  # no run has this id
TRASH = ".trash-"


def folder_of(data: Path) -> str:
    about = os.stat(data)
    return f"{ROOT}/{about.st_dev:x}-{about.st_ino:x}"


def work_of(data: Path, run_id: str) -> str:
    return f"{folder_of(data)}/{run_id}"


def cache_of(data: Path, account: str) -> str:
    return f"{folder_of(data)}/{CACHES}/{account}"


class AccountFolders:
    def __init__(self, data: Path) -> None:
        self._folder = folder_of(data)
        self._is_made = os.path.isdir(self._folder)
        self._count = 0

    def make_work(self, run_id: str) -> str:
        """Create the work folder of a run. It belongs to root until the child process of the spawner hands it over."""
        self.make()
        path = f"{self._folder}/{run_id}"
        os.mkdir(path, 0o700)
        return path

    def make(self) -> None:
        """Create the folders that the runs share. Raises OSError if another program has changed them."""
        for path in (ROOT, self._folder, f"{self._folder}/{CACHES}"):
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
                os.chmod(path, 0o711)
            about = os.lstat(path)
            if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
                raise PermissionError(f"{path} must be a folder that only root can change")
        self._is_made = True

    def release(self, run_id: str) -> list[str]:
        """Take the work folder of an ended run out of use. Return the path to remove, if there is one."""
        if not self._is_made:
            return []
        self._count += 1
        trash = f"{self._folder}/{TRASH}{os.getpid()}-{self._count}"
        try:
            os.rename(f"{self._folder}/{run_id}", trash)
        except FileNotFoundError:
            return []
        return [trash]

    def unused(self, known: Collection[str]) -> list[str]:
        """Return the paths of folders whose runs are not known."""
        if not self._is_made:
            return []
        return [f"{self._folder}/{name}" for name in os.listdir(self._folder) if name != CACHES and name not in known]

    def close(self) -> None:
        """Remove the folders that are empty."""
        if self._is_made:
            for path in (f"{self._folder}/{CACHES}", self._folder, ROOT):
                with suppress(OSError):
                    os.rmdir(path)
