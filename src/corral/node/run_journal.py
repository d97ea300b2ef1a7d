"""The spawner's memory: JSON lines, the whole run each time it changes, so the last line about a run is the truth.

Nothing is fsynced. Records matter only for as long as the processes they tell of, and a power cut ends those: the boot
id in the first line then differs from the machine's, and every run that had not ended is ended by that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from corral.errors import Refused
from corral.node.spawner_protocol import Run

VERSION = 1
COMPACT_MIN_BYTES = 4 * 1024 * 1024
COMPACT_GROWTH = 4  # rewritten when it has grown this many times over what was worth keeping


@dataclass(frozen=True, slots=True)
class Replay:
    boot_id: str | None  # None: there was no journal
    runs: dict[str, Run]


def replay(path: Path, boot_id: str) -> Replay:
    """Read what an earlier spawner left. A torn last line was never acted on, so it is dropped."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Replay(None, {})
    lines = text.split(b"\n")[:-1]
    if not lines or not lines[0].strip(b"\0"):
        return Replay(None, {})  # made and not yet written, or blanked by a power cut
    written_by = _boot_id_of(path, lines[0])
    runs: dict[str, Run] = {}
    for number, line in enumerate(lines[1:], start=2):
        try:
            _apply(orjson.loads(line), runs)
        except (ValueError, TypeError, KeyError) as error:
            if written_by == boot_id:
                raise Refused(f"{path}, line {number} cannot be read ({error}); move the file away to go on") from None
            # a power cut may leave such lines, and what they told of has ended with it
    return Replay(written_by, runs)


def _boot_id_of(path: Path, line: bytes) -> str:
    try:
        header = orjson.loads(line)
        if header["corral_journal"] == VERSION:
            return str(header["boot_id"])
        raise Refused(f"{path} is of version {header['corral_journal']}, and this Corral reads version {VERSION}")
    except (ValueError, TypeError, KeyError):
        raise Refused(f"{path} is not a journal of Corral; move it away to go on") from None


def _apply(record: dict[str, Any], runs: dict[str, Run]) -> None:
    if "run" in record:
        run = Run(**record["run"])
        runs[run.run_id] = run
    else:
        for run_id in record["forget"]:
            runs.pop(run_id, None)


class Journal:
    """The open journal. A record that the disk refuses is kept and written before the next one."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path = path
        self._boot_id = boot_id
        self._fd = -1
        self._size = 0
        self._compact_at = COMPACT_MIN_BYTES
        self._unwritten = b""

    @property
    def behind(self) -> bool:
        return bool(self._unwritten)

    @property
    def overgrown(self) -> bool:
        return self._size > self._compact_at

    def put(self, run: Run) -> bool:
        """True when it is on disk."""
        return self._append(b'{"run":' + orjson.dumps(run) + b"}\n")

    def forget(self, run_ids: list[str]) -> bool:
        return self._append(orjson.dumps({"forget": run_ids}) + b"\n")

    def catch_up(self) -> bool:
        return self._append(b"")

    def _append(self, line: bytes) -> bool:
        if self._fd < 0:
            return True  # recovery: the rewrite that follows it writes everything
        line = self._unwritten + line
        try:
            written = os.write(self._fd, line)
        except OSError:
            written = 0
        if written < len(line):
            os.ftruncate(self._fd, self._size)  # half a line would spoil the next one
            self._unwritten = line
            return False
        self._size += written
        self._unwritten = b""
        return True

    def rewrite(self, runs: dict[str, Run]) -> None:
        """Start afresh with what is worth keeping; the old file stays until the new one has its name."""
        fresh = self._path.with_suffix(".new")
        header = orjson.dumps({"corral_journal": VERSION, "boot_id": self._boot_id}) + b"\n"
        text = header + b"".join(b'{"run":' + orjson.dumps(run) + b"}\n" for run in runs.values())
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, text) < len(text):
                raise OSError(f"{fresh}: no room")
            fresh.rename(self._path)
        except OSError:
            os.close(fd)
            self._compact_at *= 2  # not again at once: there may be no room for a second one
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._size, self._unwritten = fd, len(text), b""
        self._compact_at = max(COMPACT_MIN_BYTES, COMPACT_GROWTH * len(text))

    def close(self) -> None:
        os.close(self._fd)
