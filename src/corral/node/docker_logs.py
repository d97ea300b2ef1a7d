"""Copy a container's log from the Docker engine to the output file of the run.

Every byte is copied exactly once, even if the agent or the engine restarts.

The engine can return the log from a given time, always in the same order. A position in the log is stored every few megabytes.
After a restart, the log is read again from the last stored position. The length of the output file shows how many bytes after that
position were already copied, and these bytes are skipped.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.node.docker_api import DockerApi
from corral.node.output_bounds import bound_output

STORE_EVERY_BYTES = 4 * 1024 * 1024
BOUND_EVERY_BYTES = 4 * 1024 * 1024  # `bound_output` trims the output file each time it has grown by this much
FRAME_HEAD_BYTES = 8


class LogPosition(Struct, frozen=True):
    """A position in the log, and the number of bytes before it.

    The first `offset` bytes of the output file contain all log entries before the time `since`, and the first `entries` entries
    with exactly that time.
    """

    offset: int = 0
    since: str = ""
    entries: int = 0


class OutputFile:
    """The output file of one run, and the position in the engine's log up to which the log has been copied."""

    def __init__(
        self, api: DockerApi, container_id: str, path: Path, position_path: Path, *, has_terminal: bool = False,
        store_every_bytes: int = STORE_EVERY_BYTES,
    ) -> None:  # fmt: skip
        self._api = api
        self._container_id = container_id
        self._path = path
        self._position_path = position_path
        self._has_terminal = has_terminal
        self._store_every_bytes = store_every_bytes
        self._position = _read_position(position_path)
        self._stored = self._position.offset  # the offset of the last position that was stored on disk
        self._lock = asyncio.Lock()

    async def copy(self, *, follow: bool) -> None:
        """Append new log entries to the file. With `follow`, continue until the container ends or the call is cancelled."""
        async with self._lock:
            position = self._position
            if position.offset > self._length():
                position = LogPosition()  # the machine crashed and the end of the file was lost, so start over
            since = since_epoch(position.since) if position.since else None
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                known = self._length() - position.offset
                async with self._api.stream(
                    "GET",
                    f"/containers/{self._container_id}/logs",
                    follow=follow, stdout=True, stderr=True, timestamps=True, since=since,
                ) as parts:  # fmt: skip
                    await self._append(fd, entries(parts, has_terminal=self._has_terminal), known, position)
            finally:
                os.close(fd)

    async def _append(self, fd: int, found: AsyncIterator[list[tuple[str, bytes]]], known: int, position: LogPosition) -> None:
        """Append the log entries after `position`, except the first `known` bytes, which are already in the file."""
        offset, since, count, passed, skip = position.offset, position.since, 0, position.entries, known
        bounded = offset
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
            if offset >= bounded + BOUND_EVERY_BYTES:
                bound_output(self._path)
                bounded = offset
            if not skip and count >= passed:
                self._position = LogPosition(offset, since, count)
                if offset >= self._stored + self._store_every_bytes:
                    self._store_position()

    def _length(self) -> int:
        try:
            return os.stat(self._path).st_size
        except FileNotFoundError:
            return 0

    def _store_position(self) -> None:
        fresh = self._position_path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(self._position))
        fresh.rename(self._position_path)
        self._stored = self._position.offset


async def entries(parts: AsyncIterator[bytes], *, has_terminal: bool) -> AsyncIterator[list[tuple[str, bytes]]]:
    """Yield (time, bytes) of each log entry, in batches as they arrive."""
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
    """Split an entry into its time and its text. A space separates them."""
    when, _, text = entry.partition(b" ")
    return when.decode("ascii", "replace"), text


def _end_of_frame(data: bytes, at: int) -> int | None:
    """Return the end of the frame at `at`, or None if it is incomplete. A frame is a header and the text of one log entry."""
    if len(data) < at + FRAME_HEAD_BYTES:
        return None
    end = at + FRAME_HEAD_BYTES + int.from_bytes(data[at + 4 : at + 8], "big")
    return end if len(data) >= end else None


def _end_of_line(data: bytes, at: int) -> int | None:
    """Return the end of the line at `at`, or None if it is incomplete.

    The log of a container with a terminal has no frames: each line is an entry.
    """
    newline = data.find(b"\n", at)
    return newline + 1 if newline >= 0 else None


def since_epoch(when: str) -> str:
    """Convert a time to seconds since the epoch, with all digits of its fraction.

    Docker writes times as 2026-01-02T03:04:05.123456789Z. Podman writes no fraction.
    """
    at = re.fullmatch(r"(.{19})(\.\d+)?(.*)", when)
    assert at is not None, when
    return f"{datetime.fromisoformat(at[1] + at[3]).timestamp():.0f}{at[2] or ''}"


def _read_position(path: Path) -> LogPosition:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LogPosition)
    except (FileNotFoundError, ValueError):
        return LogPosition()
