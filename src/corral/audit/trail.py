"""The files of the audit: one for each day, in UTC, with one line for each record.

A record is written with one call of `write` before the client gets its response. So it survives if the server is killed. Nothing
waits for the disk, so a power failure can lose the records of the last seconds.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec import Struct

from corral.audit.record import AuditRecord, decode, encode

KEPT_DAYS = 90
DAY_S = 86_400
BLOCK_BYTES = 64 * 1024
_FILE = re.compile(r"\d{4}-\d{2}-\d{2}\.jsonl")
log = logging.getLogger("corral.audit")


class Position(Struct, frozen=True):
    """The place of a record: its file, and the first byte of its line."""

    day: str
    offset: int


class AuditTrail:
    """Appends records. Any thread may call `append`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._day = -1  # of the open file, counted from 1970
        self._file = -1
        self._lost = 0  # records that could not be written since the start of the server
        self._problem = ""  # why the last record could not be written; empty: it was written

    def append(self, record: AuditRecord) -> None:
        line = encode(record)
        day = int(record.at_s // DAY_S)
        with self._lock:
            try:
                if day != self._day:
                    self._open(day)
                written = os.write(self._file, line)
                if written < len(line):  # the disk is full; end the line, so that the next record begins a new one
                    with suppress(OSError):
                        os.write(self._file, b"\n")
                    raise OSError(None, "the disk is full")
                self._problem = ""
            except OSError as error:
                self._lost += 1
                if not self._problem:
                    log.error("the audit cannot be written: %s", error.strerror)
                self._problem = error.strerror or str(error)

    def note_loss(self, why: str) -> None:
        """Count a record that could not be made."""
        with self._lock:
            self._lost += 1
            self._problem = why

    def problems(self) -> list[dict[str, Any]]:
        """Return whether records are being lost, for GetStatus. Any thread may call this method."""
        if not self._problem:
            return []
        text = f"cannot be written ({self._problem}): {self._lost} records are lost. Free space, or see server.log"
        return [{"part": "audit", "host": "", "problem": text}]

    def close(self) -> None:
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
            self._day, self._file = -1, -1

    def _open(self, day: int) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / f"{date_of(day * DAY_S)}.jsonl"
        opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._day, self._file = day, opened
        end_last_line(path, opened)
        self._delete_old(day)

    def _delete_old(self, day: int) -> None:
        oldest = date_of((day - KEPT_DAYS) * DAY_S)
        for each in days(self._folder):
            if each < oldest:
                (self._folder / f"{each}.jsonl").unlink(missing_ok=True)


def date_of(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d")


def end_last_line(path: Path, opened: int) -> None:
    """Write the end of a line that a power failure has cut off."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                os.write(opened, b"\n")


def days(folder: Path) -> list[str]:
    """Return the days that have records, the newest first."""
    try:
        return sorted((name.removesuffix(".jsonl") for name in os.listdir(folder) if _FILE.fullmatch(name)), reverse=True)
    except FileNotFoundError:
        return []


def records_back(folder: Path, from_s: float, until_s: float, before: Position | None) -> Iterator[tuple[Position, AuditRecord]]:
    """Yield the records of a time, the newest first. With `before`, begin with the record that precedes this position."""
    first, last = date_of(from_s), date_of(until_s)
    for day in days(folder):
        if day < first or day > last or (before is not None and day > before.day):
            continue
        end = before.offset if before is not None and day == before.day else None
        try:
            file = open(folder / f"{day}.jsonl", "rb")  # noqa: SIM115 (closed below)
        except FileNotFoundError:  # it has become too old meanwhile
            continue
        with file:
            for offset, line in _lines_back(file.fileno(), end):
                record = decode(line)
                if record is not None and from_s <= record.at_s <= until_s:
                    yield Position(day, offset), record


def _lines_back(file: int, end: int | None) -> Iterator[tuple[int, bytes]]:
    """Yield the lines before a byte of a file, with the place of each, the last one first."""
    at, rest = os.fstat(file).st_size if end is None else end, b""
    while at > 0:
        size = min(BLOCK_BYTES, at)
        at -= size
        head, *lines = (os.pread(file, size, at) + rest).split(b"\n")
        offset = at + len(head) + 1 + sum(len(line) + 1 for line in lines)
        for line in reversed(lines):
            offset -= len(line) + 1
            if line:
                yield offset, line
        rest = head
    if rest:
        yield 0, rest
