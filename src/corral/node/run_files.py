"""The files of runs that are processes: the output file, whose lock all processes of a run hold, and the work folder.

The work folder of a run of another Unix account is not in the data folder (`account_folders.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from corral.node import lock_files
from corral.node.account_folders import AccountFolders
from corral.node.file_recycler import FileRecycler
from corral.node.process_launch import CannotSpawn
from corral.node.spawner_protocol import Launch


class RunFiles:
    def __init__(self, data: Path) -> None:
        self._outputs, self._work = f"{data}/output/", f"{data}/work/"
        self._accounts = AccountFolders(data)
        self.recycler = FileRecycler(str(data))

    def output(self, run_id: str) -> str:
        return self._outputs + run_id

    def open_output(self, launch: Launch) -> int:
        """Create the output file of a run, and lock it."""
        path = self.output(launch.run_id)
        try:
            if not launch.has_output_file:
                self.recycler.reuse_file(path)
            return lock_files.open_locked(path)
        except OSError as error:
            raise CannotSpawn(f"CannotStartContainerError: {error}") from None

    def directory(self, launch: Launch) -> str:
        """Return the working directory of a run. If the user has not chosen one, create a work folder."""
        directory = launch.working_directory or self._work + launch.run_id
        try:
            if launch.account:
                self._accounts.make()
                if launch.working_directory is None:
                    return self._accounts.make_work(launch.run_id)
            elif launch.working_directory is None:
                self.recycler.make_folder(directory)
        except OSError as error:
            raise CannotSpawn(f"CannotStartContainerError: {error}") from None
        return directory

    def remove(self, run_ids: Iterable[str]) -> None:
        for run_id in run_ids:
            try:
                self.recycler.release_file(self.output(run_id))
                self.recycler.release_folder(self._work + run_id)
                self.recycler.remove_later(self._accounts.release(run_id))
            except OSError as error:
                print(f"cannot remove the files of {run_id}: {error}", file=sys.stderr, flush=True)
        self.recycler.remove_trash()

    def remove_unknown(self, run_ids: Iterable[str], known: Collection[str]) -> None:
        """Remove the files that an earlier spawner left: those of these runs, and the work folders of runs that are not known."""
        self.remove(run_ids)
        self.recycler.move_to_spare()
        self.recycler.remove_later(self._accounts.unused(known))
        self.recycler.remove_trash()

    def close(self) -> None:
        self._accounts.close()
