"""The folders in which runs of other Unix accounts work.

Other accounts cannot reach the data folder. So the work folders of their runs are below ACCOUNT_WORK, in a folder for each node
folder. Others can pass these two folders, but not list or change them. Each work folder belongs to its account, which alone can
open it. A shipped folder is fetched by the run itself, so each account has its own cache of shipped files there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from corral.process.data_folder import ACCOUNT_WORK, account_work_folder

CACHES = ".shipped"  # no run has this id
TRASH = ".trash-"


def work_of(node: Path, run_id: str) -> str:
    return f"{account_work_folder(node)}/{run_id}"


def cache_of(node: Path, account: str) -> str:
    return f"{account_work_folder(node)}/{CACHES}/{account}"


class AccountFolders:
    def __init__(self, node: Path) -> None:
        self._folder = str(account_work_folder(node))
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
        for path in (ACCOUNT_WORK, self._folder, f"{self._folder}/{CACHES}"):
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
            for path in (f"{self._folder}/{CACHES}", self._folder, ACCOUNT_WORK):
                with suppress(OSError):
                    os.rmdir(path)
