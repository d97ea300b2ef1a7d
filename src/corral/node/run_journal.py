"""The spawner's journal. Whenever a run changes, the spawner appends the state of the run as a JSON line.

The spawner starts the runs that are processes. The last line of a run in the journal has the present state of the run.

The journal is not synced to disk. It is needed only while the processes of the runs may be alive, and no process survives a power
failure. After a power failure, the boot id in the first line of the journal differs from the boot id of the machine. Then every
unfinished run has ended.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from corral.core.errors import Refused
from corral.node.spawner_protocol import SpawnedRun

VERSION = 1
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,199}")  # a run id is also used as a file name
ADVICE = "Restore it, or move it away: runs that are alive are found again, and exit codes that were not reported are lost."
COMPACT_MIN_BYTES = 4 * 1024 * 1024
COMPACT_GROWTH = 4  # the file is rewritten when it is this many times as large as after the last rewrite


@dataclass(frozen=True, slots=True)
class Replay:
    boot_id: str | None  # None: there was no journal
    runs: dict[str, SpawnedRun]


def replay(path: Path, boot_id: str) -> Replay:
    """Read the journal of an earlier spawner. Raises Refused if it cannot be read.

    An incomplete last line is ignored, because the spawner acts on a change only after the line is written.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Replay(None, {})
    except OSError as error:
        raise Refused(f"{path} cannot be read ({error.strerror}). {ADVICE}") from None
    lines = text.split(b"\n")[:-1]
    if not lines or not lines[0].strip(b"\0"):
        return Replay(None, {})  # the file was created but not yet written, or a power failure filled it with zeros
    written_by = _boot_id_of(path, lines[0])
    runs: dict[str, SpawnedRun] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            _apply(orjson.loads(line), runs)
        except (ValueError, TypeError, KeyError) as error:
            if written_by == boot_id:
                raise Refused(f"{path}: line {number} cannot be read ({error}). {ADVICE}") from None
            # A power failure may leave such lines. It also ended the runs that they describe.
    return Replay(written_by, runs)


def last_record(path: Path, run_id: str) -> SpawnedRun | None:
    """Return the last record of a run in the journal of a living spawner. Return None if there is none.

    If the run was forgotten, there is no record, or the record says that the run has ended.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    at = text.rfind(b'{"run":{"run_id":"%s",' % run_id.encode())
    end = text.find(b"\n", at)
    if at < 0 or end < 0:
        return None
    return SpawnedRun(**orjson.loads(text[at:end])["run"])


def _boot_id_of(path: Path, line: bytes) -> str:
    try:
        header = orjson.loads(line)
        if header["corral_journal"] == VERSION:
            return str(header["boot_id"])
        raise Refused(
            f"{path} has version {header['corral_journal']}, but this Corral reads version {VERSION}. Start the version that wrote "
            "it and wait until its tasks have ended."
        )
    except (ValueError, TypeError, KeyError):
        raise Refused(f"{path} is not a journal of Corral. {ADVICE}") from None


def _apply(record: dict[str, Any], runs: dict[str, SpawnedRun]) -> None:
    if "run" in record:
        run = SpawnedRun(**record["run"])
        if not RUN_ID.fullmatch(run.run_id):
            raise ValueError("not a run id")
        times = (run.stop_grace_s, run.started_at_s, run.started_boot_s, run.kill_at_boot_s, run.main_ended_at_s, run.stopped_at_s)
        if not all(isinstance(each, int | float | None) for each in (run.pid, run.exit_code, *times)):
            raise ValueError("not a number")
        runs[run.run_id] = run
    else:
        for run_id in record["forget"]:
            runs.pop(run_id, None)


class RunJournal:
    """The open journal. If a write fails, the record is buffered. It is written together with the next record."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._fd = -1
        self._size = 0
        self._compact_at = COMPACT_MIN_BYTES
        self._unwritten = b""

    @property
    def is_behind(self) -> bool:
        return bool(self._unwritten)

    @property
    def needs_rewrite(self) -> bool:
        return self._size > self._compact_at

    def put(self, run: SpawnedRun) -> bool:
        """Append a run. Return whether the write succeeded."""
        return self._append(b'{"run":' + orjson.dumps(run) + b"}\n")

    def put_later(self, run: SpawnedRun) -> None:
        """Append a run with the next write, because each write takes time. `catch_up` writes it if no other record follows."""
        if self._fd >= 0:
            self._unwritten += b'{"run":' + orjson.dumps(run) + b"}\n"

    def forget(self, run_ids: list[str]) -> bool:
        return self._append(orjson.dumps({"forget": run_ids}) + b"\n")

    def catch_up(self) -> None:
        """Write the buffered records. If this fails, call it again later."""
        if self._unwritten:
            self._append(b"")

    def _append(self, line: bytes) -> bool:
        if self._fd < 0:
            return True  # the spawner is recovering; `rewrite` writes every run at the end of the recovery
        line = self._unwritten + line
        try:
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        if written < len(line):
            os.ftruncate(self._fd, self._size)  # a partial line would corrupt the next one
            self._unwritten = line
            return False
        self._size += written
        self._unwritten = b""
        return True

    def rewrite(self, runs: dict[str, SpawnedRun]) -> None:
        """Replace the journal by a new file with one line per run. A rename replaces the old file, so a crash cannot lose both."""
        fresh = self._path.with_suffix(".new")
        header = orjson.dumps({"corral_journal": VERSION, "boot_id": self._boot_id}) + b"\n"
        text = header + b"".join(b'{"run":' + orjson.dumps(run) + b"}\n" for run in runs.values())
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, text) < len(text):
                raise OSError(f"{fresh}: the disk is full")
            fresh.rename(self._path)
        except OSError:
            os.close(fd)
            self._compact_at *= 2  # do not retry at once: the disk may be full
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._unwritten = fd, len(text), b""
        self._compact_at = max(COMPACT_MIN_BYTES, COMPACT_GROWTH * len(text))

    def close(self) -> None:
        os.close(self._fd)
