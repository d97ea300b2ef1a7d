"""Keep the output of runs of `corral run` as plain files in the folder `<data>/outputs`.

The engine writes the output of a run to `<data>/node/output/<run id>`. If the output is kept, this file has a second name in the
folder, so nothing is written twice. A file with two names may be larger than others (`output_bounds.py`), and the agent frees no
part of it that has been shipped. When the run is forgotten, only the second name is left. If the output is too long, the file is
written anew without the beginning, and its first line says how much is missing.

The oldest files are deleted if there are too many, if they are too large together, or if they are too old. Files of living runs are
not deleted.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct

from corral.core.clock import Clock
from corral.model.agent_protocol import OutputLimits
from corral.node.output_bounds import KEPT_LIMIT, first_data

FILES_MAX = 100_000
SWEEP_S = 60.0  # the time between two searches for old files
AGE_STEPS = 100  # if there is no new file, old files are searched this many times in the time after which they are too old
LINE_MAX_BYTES = 64 * 1024  # the kept part of an output begins with a complete line, unless its first line is longer
MISSING = "corral: the first {:,} bytes of this output are missing: it is longer than outputs.file_mib in corral.toml allows.\n"


class KeptFile(Struct, frozen=True):
    path: Path
    written_s: float
    disk_bytes: int


class KeptOutputs:
    def __init__(self, node: Path, clock: Clock) -> None:
        self._output = node / "output"
        self._limit = node / KEPT_LIMIT
        self._folder = node.parent / "outputs"
        self._clock = clock
        self._limits: OutputLimits | None = None  # None: the core has not sent the limits yet
        self._names: dict[str, str] = {}  # run id → name of its file, for the runs that this agent has started
        self._swept_s = float("-inf")
        self._has_new = True

    def set_limits(self, limits: OutputLimits) -> None:
        self._limits = limits
        fresh = self._limit.with_suffix(".new")
        with _create(fresh) as file:
            file.write(b"%d\n" % limits.file_bytes)
        fresh.rename(self._limit)
        self._has_new = True

    def begin(self, run_id: str, name: str) -> None:
        """Create the output file of a run that is about to start, with a second name. If that fails, the output is not kept."""
        with suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            os.close(os.open(self._output / run_id, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600))
            os.link(self._output / run_id, self._folder / name)
            self._names[run_id] = name

    def keeps(self, run_id: str) -> bool:
        """Whether the output of a run is kept. If it is, call `finish` at the end of the run."""
        try:
            return run_id in self._names or os.stat(f"{self._output}/{run_id}").st_nlink > 1
        except OSError:
            return False

    def is_too_long(self, run_id: str) -> bool:
        """Whether the kept output of an ended run must lose its beginning, or has lost it. Then `finish` takes time."""
        try:
            about = os.stat(self._output / run_id)
        except OSError:
            return False
        if about.st_nlink == 1 or not about.st_size:
            return False
        return about.st_size > self._file_bytes or self._first_byte(run_id) > 0

    @property
    def _file_bytes(self) -> int:
        return (self._limits or OutputLimits()).file_bytes

    def _first_byte(self, run_id: str) -> int:
        """Return the offset of the first byte of the output that the kept file may have."""
        with open(self._output / run_id, "rb") as file:
            return max(first_data(file.fileno(), 0), os.fstat(file.fileno()).st_size - self._file_bytes)

    def finish(self, run_id: str) -> None:
        """Complete the file of an ended run, before the run is forgotten. An empty file is deleted."""
        name = self._names.pop(run_id, None)
        try:
            about = os.stat(self._output / run_id)
        except OSError:
            return
        if name is None and about.st_nlink > 1:  # an earlier agent has started the run
            name = next((entry.name for entry in os.scandir(self._folder) if entry.inode() == about.st_ino), None)
        if name is None:
            return
        self._has_new = True
        kept = self._folder / name
        with suppress(OSError):
            if about.st_nlink == 1:  # the engine has created the file again, for example after a restart of the spawner
                kept.unlink(missing_ok=True)
                os.link(self._output / run_id, kept)
            if not about.st_size:
                kept.unlink()
            elif self.is_too_long(run_id):
                fresh = kept.with_suffix(".new")
                _write_rest(self._output / run_id, fresh, self._first_byte(run_id))
                fresh.rename(kept)

    def sweep(self) -> None:
        """Delete the files that exceed the limits."""
        # A file is too old if it is by both clocks, so no step of the wall clock deletes it.
        now_s, limits = min(self._clock.now_s(), self._clock.wall_s()), self._limits
        if limits is None or (not self._has_new and now_s < self._swept_s + limits.max_age_s / AGE_STEPS):
            return
        self._swept_s, self._has_new = now_s, False
        for path in beyond_limits(_ended_files(self._folder), limits, now_s):
            path.unlink(missing_ok=True)


def _create(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def beyond_limits(files: list[KeptFile], limits: OutputLimits, now_s: float) -> list[Path]:
    """Return the files to delete: those that are too old, and the oldest of those that are too large together or too many."""
    files = sorted(files, key=lambda file: file.written_s, reverse=True)
    deleted, total = [], 0
    for number, file in enumerate(files):
        total += file.disk_bytes
        if total > limits.total_bytes or number >= FILES_MAX or file.written_s < now_s - limits.max_age_s:
            deleted += [each.path for each in files[number:]]
            break
    return deleted


def _ended_files(folder: Path) -> list[KeptFile]:
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                about = entry.stat(follow_symlinks=False)
                if entry.is_file(follow_symlinks=False) and about.st_nlink == 1:
                    found.append(KeptFile(folder / entry.name, about.st_mtime, about.st_blocks * 512))
    return found


def _write_rest(source: Path, target: Path, start: int) -> None:
    """Write a copy of an output that begins with the first line after `start`. A line before it says how many bytes are missing.

    The copy has the modification time of the source.
    """
    with open(source, "rb") as rest, _create(target) as file:
        rest.seek(start - 1)
        if not rest.readline(LINE_MAX_BYTES).endswith(b"\n"):
            rest.seek(start)
        file.write(MISSING.format(rest.tell()).encode())
        shutil.copyfileobj(rest, file, 1024 * 1024)
    shutil.copystat(source, target)
