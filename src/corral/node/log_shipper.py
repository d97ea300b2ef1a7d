"""Log shipping: split the output of runs into chunks of log events. The agent sends the chunks to the core.

A run is one container of a task on this host. The engine writes its output to a file. The core is the part of the server that
stores all state. For each run, it stores an offset: the number of bytes of output that it has received. After a new connection, the
agent does not know the offset, so the first chunk is empty and only requests it. After that, each acknowledgement contains the new
offset. The agent stores no state, so a crash of the agent loses nothing. When the core has stored a part of the output, the agent
frees its disk space by making a hole in the file. So a service that logs for months does not fill the disk.

The output of each run is shipped at a limited rate, so that a run that prints without end does not occupy the core. If the file of
a run exceeds the limits of `output_bounds.py`, its oldest bytes are dropped. A log event reports how many bytes were dropped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from corral.clock import Clock
from corral.model.run import LOG_EVENT_MAX_BYTES, LogChunk
from corral.node.output_bounds import OUTPUT_MAX_BYTES, bound_output, first_data, make_hole

REPORT_MAX_BYTES = 512 * 1024  # maximum total size of the chunks of all runs in one report
REPORT_MAX_EVENTS = 10_000
REPORT_MAX_FILES = 5_000  # maximum number of files that are read for one report
SHARE_MIN_BYTES = 32 * 1024  # minimum chunk size of each run, even if many runs have output
# If more output than this is left, the end of a run is reported before it is shipped. This much takes some seconds to ship.
BACKLOG_MAX_BYTES = 8 * 1024 * 1024
BURST_BYTES = OUTPUT_MAX_BYTES  # output up to this size is shipped without a rate limit
RATE_BYTES_PER_S = 2 * 1024 * 1024  # the rate limit of each living run, after the first BURST_BYTES
EVENT_BYTES = 100  # counted for each event against the rate limit, in addition to its text
RESUME_BYTES = 1024 * 1024  # a run that has reached the rate limit waits until it may ship this many bytes
RELEASE_BYTES = 16 * 1024 * 1024  # minimum size of a hole
DROPPED = "corral: {} bytes of output were dropped here: the task prints faster than its log is stored."
ENLARGED_BYTES = LOG_EVENT_MAX_BYTES + 4  # enough to recognize a line that is too long, and to split it between two characters


def split_events(data: bytes, *, final: bool, max_events: int = REPORT_MAX_EVENTS) -> tuple[int, list[str]]:
    """Split output into log events. Return how many bytes were used, and the texts of the events.

    An incomplete last line is not used yet, unless it is too long or `final` is true. Empty lines are skipped, because CloudWatch
    refuses empty messages. Docker's awslogs driver skips them too.
    """
    texts: list[str] = []
    at = 0
    while at < len(data) and len(texts) < max_events:
        newline = data.find(b"\n", at)
        end = newline if newline >= 0 else len(data)
        while end - at > LOG_EVENT_MAX_BYTES // 3 and len(texts) < max_events:
            if newline < 0 and not final and end - at <= LOG_EVENT_MAX_BYTES:
                return at, texts
            length, text = _event_prefix(data[at:end])
            texts.append(text)
            at += length
        if len(texts) >= max_events or (newline < 0 and not final):
            break
        if end > at:
            texts.append(data[at:end].decode(errors="replace"))
        at = end + (newline >= 0)
    return at, texts


def _event_prefix(line: bytes) -> tuple[int, str]:
    """Return the longest prefix that fits into one event.

    An invalid byte is replaced by U+FFFD, which has three bytes in UTF-8. So if the text becomes too long, a third of the limit is
    used.
    """
    for limit in (LOG_EVENT_MAX_BYTES, LOG_EVENT_MAX_BYTES // 3):
        end = len(line)
        if end > limit:
            end = next((at for at in range(limit, limit - 4, -1) if line[at] & 0xC0 != 0x80), limit)
        text = line[:end].decode(errors="replace")
        if len(text.encode()) <= LOG_EVENT_MAX_BYTES:
            return end, text
    raise AssertionError("a third of the limit always fits")


class OutputTail(Struct):
    offset: int = 0  # the start of the next chunk
    certain: bool = False  # True: the core has stored exactly `offset` bytes; False: that is unknown
    ended: bool = False  # the run has ended, so the file is complete
    done: bool = False  # the run has ended and all of its output is in a report
    released: int = 0  # the bytes before this offset were removed from the file
    allowance: float = BURST_BYTES  # bytes that may be shipped now
    allowed_at_s: float = 0.0  # when the allowance was computed
    held: bool = False  # the allowance is used up


class LogShipper:
    def __init__(self, output: Path, clock: Clock) -> None:
        self._output = output
        self._clock = clock
        self._tails: dict[str, OutputTail] = {}
        self._ready: dict[str, None] = {}  # ids of runs whose file may have new output, least recently read first

    @property
    def has_work(self) -> bool:
        return bool(self._ready)

    def follow(self, run_id: str, *, certain: bool) -> None:
        """Ship the output of this run from now on.

        `certain` means that the run is new, so the core has stored none of its output.
        """
        if run_id not in self._tails:
            self._tails[run_id] = OutputTail(certain=certain)
            if not certain:
                self._ready[run_id] = None

    def written(self, names: Iterable[str] | None) -> None:
        """Record that these files were written to. None means that any file may have been."""
        for name in self._tails if names is None else names:
            if name in self._tails:
                self._ready[name] = None

    def ended(self, run_id: str) -> None:
        tail = self._tails.get(run_id)
        if tail is not None and not tail.ended:
            tail.ended = True
            self._ready[run_id] = None

    def is_done(self, run_id: str) -> bool:
        """Whether all output of the run is in the current report or in an acknowledged report."""
        tail = self._tails.get(run_id)
        return tail is None or tail.done

    def is_far_behind(self, run_id: str) -> bool:
        """Whether so much output is left that the end of the run must be reported first, to release its GPUs."""
        tail = self._tails.get(run_id)
        if tail is None or tail.done:
            return False
        try:
            return os.stat(self._output / run_id).st_size - tail.offset > BACKLOG_MAX_BYTES
        except FileNotFoundError:
            return False

    def forget(self, run_id: str) -> None:
        self._tails.pop(run_id, None)
        self._ready.pop(run_id, None)

    def disconnected(self) -> None:
        """Record that the connection was lost.

        All offsets become uncertain, because the core may or may not have stored the last chunks.
        """
        for run_id, tail in self._tails.items():
            tail.certain = tail.done = False
            self._ready[run_id] = None

    def chunks(self) -> list[LogChunk]:
        """Return the next chunks to ship, at most one per run, within the limits of a report."""
        chunks = []
        bytes_left, events_left = REPORT_MAX_BYTES, REPORT_MAX_EVENTS
        turn = list(self._ready)[:REPORT_MAX_FILES]
        for i, run_id in enumerate(turn):
            if bytes_left <= 0 or events_left <= 0:
                break
            share = min(bytes_left, max(SHARE_MIN_BYTES, bytes_left // (len(turn) - i)))
            chunk = self._chunk(run_id, share, events_left)
            if chunk is not None:
                chunks.append(chunk)
                bytes_left -= chunk.end - chunk.start
                events_left -= len(chunk.events)
        return chunks

    def _chunk(self, run_id: str, max_bytes: int, max_events: int) -> LogChunk | None:
        tail = self._tails[run_id]
        del self._ready[run_id]
        bound_output(self._output / run_id)
        if not tail.certain:
            return LogChunk(run_id, tail.offset, tail.offset, [])
        now_s = self._clock.now_s()
        if not tail.ended and self._is_held(tail, now_s):
            self._ready[run_id] = None
            return None
        data, is_all, dropped = self._read(run_id, tail.offset, max_bytes)
        used, texts = split_events(data, final=tail.ended and is_all, max_events=max_events)
        tail.allowance -= used + EVENT_BYTES * len(texts)
        if dropped:
            texts.insert(0, DROPPED.format(f"{dropped:,}"))
        tail.done = tail.ended and is_all and used == len(data)
        if not tail.done and (not is_all or (used < len(data) and len(texts) == max_events)):
            self._ready[run_id] = None
        if not used and not dropped:
            return None
        now_ms = int(now_s * 1000)
        start, tail.offset = tail.offset, tail.offset + dropped + used
        return LogChunk(run_id, start, tail.offset, [(now_ms, text) for text in texts])

    def _is_held(self, tail: OutputTail, now_s: float) -> bool:
        """Whether the output of the run must wait because of the rate limit."""
        tail.allowance = min(BURST_BYTES, tail.allowance + RATE_BYTES_PER_S * max(0.0, now_s - tail.allowed_at_s))
        tail.allowed_at_s = now_s
        tail.held = tail.allowance < (RESUME_BYTES if tail.held else 0)
        return tail.held

    def _read(self, run_id: str, offset: int, max_bytes: int) -> tuple[bytes, bool, int]:
        """Read output from `offset`.

        Return the bytes, whether they reach the end of the file, and how many bytes were dropped before.
        """
        try:
            fd = os.open(self._output / run_id, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b"", True, 0
        try:
            start = offset
            while True:
                data = os.pread(fd, max_bytes, start)
                if len(data) == max_bytes < ENLARGED_BYTES and b"\n" not in data:
                    max_bytes = ENLARGED_BYTES
                    data = os.pread(fd, max_bytes, start)
                # Check this after the read, because the spawner may have made a hole during the read.
                kept = first_data(fd, start) if data else start
                if kept == start:
                    break
                start = kept
            is_all = len(data) < max_bytes
            if start > offset:  # the beginning of the first line was dropped, so drop the rest of it
                cut = data.find(b"\n") + 1
                data, start = data[cut:], start + cut
            return data, is_all, start - offset
        finally:
            os.close(fd)

    def acknowledged(self, chunks: list[LogChunk], shipped: Mapping[str, int]) -> None:
        """Process the core's offsets. The core returns no offset for a run without a log stream. Its chunk counts as shipped."""
        for chunk in chunks:
            tail = self._tails.get(chunk.run_id)
            if tail is None:
                continue
            offset = shipped.get(chunk.run_id, chunk.end)
            if not tail.certain or offset != chunk.end:
                tail.offset, tail.certain, tail.done = offset, True, False
                self._ready[chunk.run_id] = None
            elif offset >= tail.released + RELEASE_BYTES:
                make_hole(self._output / chunk.run_id, tail.released, offset)
                tail.released = offset
