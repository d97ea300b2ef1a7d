"""From what a container wrote, as the engine keeps it, to the run's output file: every byte once, whoever died meanwhile.

The engine gives its log from any moment on, always in the same order. So what was appended already is told by the length of
the output file: after a restart the log is read again from the last mark, and just so many bytes are passed over. A mark is
only written now and then, so that a long log need not be read from its beginning.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from corral.node.docker_api import DockerApi

MARK_EVERY_BYTES = 4 * 1024 * 1024
FRAME_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """So much of the output comes from log entries before `since`, and from the first `entries` of exactly that moment."""

    offset: int = 0
    since: str = ""
    entries: int = 0


class Output:
    """The output file of one run, and how far the engine's log is in it."""

    def __init__(
        self, api: DockerApi, container_id: str, path: Path, mark_path: Path, *, has_terminal: bool = False,
        mark_every_bytes: int = MARK_EVERY_BYTES,
    ) -> None:  # fmt: skip
        self._api = api
        self._container_id = container_id
        self._path = path
        self._mark_path = mark_path
        self._has_terminal = has_terminal
        self._mark_every_bytes = mark_every_bytes
        self._mark = _read_mark(mark_path)
        self._marked = self._mark.offset  # as it is on disk
        self._lock = asyncio.Lock()

    async def copy(self, *, follow: bool) -> None:
        """Append what is new; with `follow` until the container ends or this is cancelled."""
        async with self._lock:
            mark = self._mark
            if mark.offset > self._length():
                mark = Mark()  # the file lost its end in a crash of the machine: all of it again
            since = since_epoch(mark.since) if mark.since else None
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                known = self._length() - mark.offset
                async with self._api.stream(
                    "GET",
                    f"/containers/{self._container_id}/logs",
                    follow=follow, stdout=True, stderr=True, timestamps=True, since=since,
                ) as parts:  # fmt: skip
                    await self._append(fd, entries(parts, has_terminal=self._has_terminal), known, mark)
            finally:
                os.close(fd)

    async def _append(self, fd: int, found: AsyncIterator[list[tuple[str, bytes]]], known: int, mark: Mark) -> None:
        """`known`: how many bytes after the mark are in the file already."""
        offset, since, count, passed, skip = mark.offset, mark.since, 0, mark.entries, known
        async for batch in found:
            fresh: list[bytes] = []
            for when, data in batch:
                if when == since:
                    count += 1
                    if count <= passed:
                        continue
                else:
                    since, count, passed = when, 1, 0
                offset += len(data)
                if skip >= len(data):
                    skip -= len(data)
                else:
                    fresh.append(data[skip:])
                    skip = 0
            text = b"".join(fresh)
            while text:
                text = text[os.write(fd, text) :]
            if not skip and count >= passed:
                self._mark = Mark(offset, since, count)
                if offset >= self._marked + self._mark_every_bytes:
                    self._write_mark()

    def _length(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _write_mark(self) -> None:
        fresh = self._mark_path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(self._mark))
        fresh.rename(self._mark_path)
        self._marked = self._mark.offset


async def entries(parts: AsyncIterator[bytes], *, has_terminal: bool) -> AsyncIterator[list[tuple[str, bytes]]]:
    """(when, bytes) of each entry of the log, in bunches as they come."""
    unread = b""
    async for part in parts:
        unread += part
        found, at = [], 0
        while True:
            end = _end_of_line(unread, at) if has_terminal else _end_of_frame(unread, at)
            if end is None:
                break
            start = at if has_terminal else at + FRAME_HEAD_BYTES
            found.append(_timed(unread[start:end]))
            at = end
        unread = unread[at:]
        if found:
            yield found
    if unread and has_terminal:
        yield [_timed(unread)]


def _timed(entry: bytes) -> tuple[str, bytes]:
    """It begins with its time and a blank."""
    when, _, text = entry.partition(b" ")
    return when.decode("ascii", "replace"), text


def _end_of_frame(data: bytes, at: int) -> int | None:
    """A frame is one entry: the stream it came from, its length, and the text."""
    if len(data) < at + FRAME_HEAD_BYTES:
        return None
    end = at + FRAME_HEAD_BYTES + int.from_bytes(data[at + 4 : at + 8], "big")
    return end if len(data) >= end else None


def _end_of_line(data: bytes, at: int) -> int | None:
    """A terminal's log has no frames."""
    newline = data.find(b"\n", at)
    return newline + 1 if newline >= 0 else None


def since_epoch(when: str) -> str:
    """Seconds, as many digits of them as a time has: Docker writes 2026-01-02T03:04:05.123456789Z, podman no fraction."""
    at = re.fullmatch(r"(.{19})(\.\d+)?(.*)", when)
    assert at is not None, when
    return f"{datetime.fromisoformat(at[1] + at[3]).timestamp():.0f}{at[2] or ''}"


def _read_mark(path: Path) -> Mark:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Mark)
    except (FileNotFoundError, ValueError):
        return Mark()
