"""Log shipping: split the output files of runs into chunks of whole log events, which the agent sends to the core.

The core's offset is authoritative. After every new connection the offset of a run is uncertain, so the first chunk is empty
and requests it; from then on each acknowledgement contains the offset of the next chunk. No state here can be lost in a
crash: the file and the core's offset are sufficient. Bytes that the core has stored are removed from the file as holes, so
that a service that logs for months does not fill the disk.

A run that prints without end is shipped at a limited rate, so that it neither fills the disk nor occupies the core. Output beyond
the bounds of `output_bounds.py` is dropped, and an event in the log says how many bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from corral.clock import Clock
from corral.model.run import LOG_EVENT_MAX_BYTES, LogChunk
from corral.node.output_bounds import OUTPUT_MAX_BYTES, bound_output, first_data, make_hole

REPORT_MAX_BYTES = 512 * 1024  # the sum over all runs
REPORT_MAX_EVENTS = 10_000
REPORT_MAX_FILES = 5_000  # the files that are read for one report
SHARE_MIN_BYTES = 32 * 1024  # per run, regardless of how many there are
BACKLOG_MAX_BYTES = 8 * 1024 * 1024  # takes some seconds to ship
BURST_BYTES = OUTPUT_MAX_BYTES  # shipped at full speed; this much was never dropped
RATE_BYTES_PER_S = 2 * 1024 * 1024  # of each living run, after the burst
EVENT_BYTES = 100  # what an event costs, in addition to its text
RESUME_BYTES = 1024 * 1024  # a run that has reached the rate ships pieces of this size
RELEASE_BYTES = 16 * 1024 * 1024  # the smallest hole that is made in a file
DROPPED = "corral: {} bytes of output were dropped here: the task prints faster than its log is stored."
ENLARGED_BYTES = LOG_EVENT_MAX_BYTES + 4  # enough to detect a line that is too long, and to split it between characters


def split_events(data: bytes, *, final: bool, max_events: int = REPORT_MAX_EVENTS) -> tuple[int, list[str]]:
    """Split data into events. Return how many bytes were used, and the texts of the events.

    A line without a newline waits for it, unless it is too long or `final`. Empty lines are skipped: CloudWatch
    refuses empty messages, and Docker's awslogs driver drops them too.
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
    """The longest prefix that fits into one event. An invalid byte becomes U+FFFD, of three bytes, hence the second limit."""
    for limit in (LOG_EVENT_MAX_BYTES, LOG_EVENT_MAX_BYTES // 3):
        end = len(line)
        if end > limit:
            end = next((at for at in range(limit, limit - 4, -1) if line[at] & 0xC0 != 0x80), limit)
        text = line[:end].decode(errors="replace")
        if len(text.encode()) <= LOG_EVENT_MAX_BYTES:
            return end, text
    raise AssertionError("a third of the limit always fits")


class OutputTail(Struct):
    offset: int = 0  # where the next chunk starts
    certain: bool = False  # the core is known to have stored exactly this much
    ended: bool = False  # the run has ended, so the file is complete
    done: bool = False  # the run has ended and all of its output is in a report
    released: int = 0  # the file is a hole up to this offset
    allowance: float = BURST_BYTES  # bytes that may be shipped now
    allowed_at_s: float = 0.0  # when the allowance was computed
    held: bool = False  # the allowance is used up


class LogShipper:
    def __init__(self, output: Path, clock: Clock) -> None:
        self._output = output
        self._clock = clock
        self._tails: dict[str, OutputTail] = {}
        self._ready: dict[str, None] = {}  # runs whose file may have more output, the least recently read first

    @property
    def has_work(self) -> bool:
        return bool(self._ready)

    def follow(self, run_id: str, *, certain: bool) -> None:
        """Ship this run's output. `certain`: the run is new, so the core has stored none of it."""
        if run_id not in self._tails:
            self._tails[run_id] = OutputTail(certain=certain)
            if not certain:
                self._ready[run_id] = None

    def written(self, names: Iterable[str] | None) -> None:
        """Note that these files were written to; None: any may have been."""
        for name in self._tails if names is None else names:
            if name in self._tails:
                self._ready[name] = None

    def ended(self, run_id: str) -> None:
        tail = self._tails.get(run_id)
        if tail is not None and not tail.ended:
            tail.ended = True
            self._ready[run_id] = None

    def is_done(self, run_id: str) -> bool:
        """Whether all of the run's output is in this report or in an acknowledged one."""
        tail = self._tails.get(run_id)
        return tail is None or tail.done

    def is_far_behind(self, run_id: str) -> bool:
        """Whether so much output is left that the run's end, which releases its GPUs, should not wait for it."""
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
        """Mark all offsets as uncertain: the last chunks may or may not have been stored."""
        for run_id, tail in self._tails.items():
            tail.certain = tail.done = False
            self._ready[run_id] = None

    def chunks(self) -> list[LogChunk]:
        """The next chunks to ship, at most one per run, within the limits of a report."""
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
        """Whether the run has printed so much that its output has to wait."""
        tail.allowance = min(BURST_BYTES, tail.allowance + RATE_BYTES_PER_S * max(0.0, now_s - tail.allowed_at_s))
        tail.allowed_at_s = now_s
        tail.held = tail.allowance < (RESUME_BYTES if tail.held else 0)
        return tail.held

    def _read(self, run_id: str, offset: int, max_bytes: int) -> tuple[bytes, bool, int]:
        """Read from the offset on. Return the bytes, whether they reach the end, and how many before them were dropped."""
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
                kept = first_data(fd, start) if data else start  # after reading: holes grow from the start of the file
                if kept == start:
                    break
                start = kept
            is_all = len(data) < max_bytes
            if start > offset:  # the first line has lost its beginning
                cut = data.find(b"\n") + 1
                data, start = data[cut:], start + cut
            return data, is_all, start - offset
        finally:
            os.close(fd)

    def acknowledged(self, chunks: list[LogChunk], shipped: Mapping[str, int]) -> None:
        """Continue at the core's offsets. A run that the core does not mention has no log stream; its chunk counts as shipped."""
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
