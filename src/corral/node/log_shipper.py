"""Log shipping: split the output of runs into chunks of log events. The agent sends the chunks to the core.

The engine writes the output of a run to a file. For each run, the core stores an offset: the number of bytes of output that it has
received. After a new connection, the agent does not know the offset of a run, so the first chunk of the run is empty and only
requests the offset. After that, each acknowledgement contains the new offset. The agent stores no state, so a crash of the agent
loses nothing. When the core has stored a part of the output, the agent frees the disk space of this part by making a hole in the
file, unless the file is kept (`kept_outputs.py`). So a service that logs for months does not fill the disk.

The output of a run that prints without end is shipped at a limited rate, so that it does not occupy the core. If the disk is almost
full, the rate is lower. All such runs together also have a maximum rate. Output beyond the bounds of `output_bounds.py` is dropped,
and an event in the log says how many bytes were dropped, and since when. Each report has a share for every run that has new output,
so no run waits for the backlog of another.

A progress line is a line that ends with a carriage return. Progress bars write such lines many times a second. So the shipper skips
progress lines that are followed by newer ones, and ships the newest progress line of a run at most once per second. The last
progress line before a newline, and before the end of the output, is always shipped. The offset passes a progress line only when the
line or a newer one is shipped. So a crash does not lose the newest progress line. The text of the event begins with a carriage
return, unless a newline follows the progress line. So a terminal can show the next text in its place.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from corral.core.clock import Clock
from corral.model.agent_protocol import LogChunk
from corral.model.run import LOG_EVENT_MAX_BYTES
from corral.node.output_bounds import bound_output, first_data, make_hole

EVENT_BYTES = 26  # the cost of an event in bytes is this number plus the length of its text, as CloudWatch Logs counts
REPORT_MAX_BYTES = 256 * 1024  # the maximum number of bytes of output in a report, over all runs
REPORT_MAX_EVENTS = 2_600  # the core stores so many in about 20 ms; other requests wait meanwhile
REPORT_MAX_FILES = 5_000  # at most this many files are read for one report
SHARE_MIN_BYTES = 32 * 1024  # each run may use this much of a report, even if there are many runs
SHARE_MIN_EVENTS = 325
BACKLOG_MAX_BYTES = 8 * 1024 * 1024  # if a run ends with more unshipped output, its end is reported before its output is shipped
BACKLOG_MAX_EVENTS = 60_000  # the same for events, which the core stores in about half a second
BURST_BYTES = 256 * 1024 * 1024  # output of a run up to this cost is shipped at full speed
RATE_BYTES_PER_S = 1024 * 1024  # the rate of a living run after its burst: one full batch of PutLogEvents per second
RATE_ALL_BYTES_PER_S = 4 * 1024 * 1024  # the rate of all runs together that have used up their burst
RATE_FULL_DISK_BYTES_PER_S = 10 * 1024  # the rate of a living run after its burst, if the disk is almost full
FREE_MIN_BYTES = 2 * 1024**3  # a disk with less free space is almost full
# The newest output of an ended run is shipped up to this cost plus the unused part of its burst. Older output is dropped.
ENDED_BYTES = 32 * 1024 * 1024
RESUME_BYTES = 256 * 1024  # a run that has reached its rate limit waits until it may ship this much
CUT_BYTES = 256 * 1024  # the cost of the output of an ended run is measured in steps of this size
RELEASE_BYTES = 16 * 1024 * 1024  # the smallest hole that is made in a file
DROPPED = "corral: {:,} bytes of output were dropped here{}: the task prints faster than its log is stored."
SINCE = " (since {})"  # the time when the output before the gap was read
# The time between two events with progress lines. An incomplete progress line is shipped if it has not changed for this time.
PROGRESS_S = 1.0
# How much is read if a line is long: enough to detect that it is too long for one event, and to split it between two characters.
ENLARGED_BYTES = LOG_EVENT_MAX_BYTES + 4


class SplitOutput(Struct, frozen=True):
    used: int  # the number of bytes that need not be read again
    texts: list[str]  # the texts of the events
    has_progress: bool = False  # the last text is a progress line that no newline follows yet
    is_withheld: bool = False  # a progress line after the used bytes waits for its time


_LINE_END = re.compile(rb"[\r\n]")


def split_events(data: bytes, *, final: bool, max_events: int = REPORT_MAX_EVENTS, progress_due: bool = True) -> SplitOutput:
    """Split output into log events.

    An incomplete last line is not used yet, unless it is too long or `final` is true. Empty lines are skipped, because CloudWatch
    refuses empty messages. Docker's awslogs driver skips them too. Of several progress lines without a newline between them, only
    the newest is used. If `progress_due` is false, this line is used only if a newline follows it, or if `final` is true. If other
    text follows it or will follow it on the same line, its text begins with a carriage return.
    """
    texts: list[str] = []
    at = 0
    has_returns = b"\r" in data
    has_progress = False
    while at < len(data) and len(texts) < max_events:
        newline = data.find(b"\n", at)
        line_end = end = newline if newline >= 0 else len(data)
        if has_returns:
            at, end = _newest_progress(data, at, line_end)
        is_progress = end < line_end
        is_open = newline < 0 and not final
        if is_progress and is_open and not progress_due:
            return SplitOutput(at, texts, is_withheld=True)
        is_replaced = is_progress and (is_open or bool(data[end:line_end].strip()))
        if is_progress:
            newline = end
            has_progress = is_open
        while end - at > LOG_EVENT_MAX_BYTES // 3 and len(texts) < max_events:
            if newline < 0 and not final and end - at <= LOG_EVENT_MAX_BYTES:
                return SplitOutput(at, texts, has_progress)
            length, text = _event_prefix(data[at:end])
            texts.append(text)
            at += length
        if len(texts) >= max_events or (newline < 0 and not final):
            break
        if end > at:
            texts.append(("\r" if is_replaced else "") + data[at:end].decode(errors="replace"))
        at = end + (newline >= 0)
    return SplitOutput(at, texts, has_progress)


def _newest_progress(data: bytes, start: int, end: int) -> tuple[int, int]:
    """Return the start and the end of the newest progress line in data[start:end], without its carriage return.

    Blank lines do not count, because programs write them to erase a progress line. If there is no progress line, return the start
    and the end of the text after the last carriage return.
    """
    last = data.rfind(b"\r", start, end)
    at = last
    while at >= start:
        before = data.rfind(b"\r", start, at)
        begin = before + 1 if before >= 0 else start
        if data[begin:at].strip():
            return begin, at
        at = before
    return (last + 1 if last >= 0 else start), end


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def cut_output(path: str, offset: int, max_cost: float) -> None:
    """Drop the output after the offset, except its newest part.

    This part costs about `max_cost`. Empty lines also have a cost.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        end = os.fstat(fd).st_size
        while end > offset and max_cost > 0:
            start = max(offset, end - CUT_BYTES)
            part = os.pread(fd, end - start, start)
            max_cost -= len(part) + EVENT_BYTES * part.count(b"\n")
            end = start
    finally:
        os.close(fd)
    if end > offset:
        make_hole(path, offset, end)


def _event_prefix(line: bytes) -> tuple[int, str]:
    """Return a prefix of the line that fits into one event: its length in bytes, and its text.

    An invalid byte is replaced by U+FFFD, which has three bytes in UTF-8. If the text of a prefix of LOG_EVENT_MAX_BYTES becomes
    too long by that, the prefix has a third of these bytes.
    """
    for limit in (LOG_EVENT_MAX_BYTES, LOG_EVENT_MAX_BYTES // 3):
        end = len(line)
        if end > limit:
            end = next((at for at in range(limit, limit - 4, -1) if line[at] & 0xC0 != 0x80), limit)
        text = line[:end].decode(errors="replace")
        if len(text.encode()) <= LOG_EVENT_MAX_BYTES:
            return end, text
    raise AssertionError("a third of the limit always fits")


class OutputTail(Struct, kw_only=True):
    offset: int = 0  # the start of the next chunk
    certain: bool = False  # False: the agent does not know how many bytes the core has stored
    ended: bool = False  # the run has ended, so the file is complete
    cut: bool = False  # the run has ended, and its output was reduced to the newest part
    done: bool = False  # the run has ended and all of its output is in a report
    released: int = 0  # the bytes before this offset were removed from the file
    allowance: float  # the cost of the output that may be shipped now
    allowed_at_s: float = 0.0  # when the allowance was computed
    held: bool = False  # the allowance is used up
    progress_at_s: float = float("-inf")  # when the last shipped progress line was read
    is_after_return: bool = False  # the byte before `offset` is a carriage return
    quiet_size: int = -1  # the size of the file when it ended with an incomplete progress line
    quiet_at_s: float = 0.0  # when the file had this size for the first time
    read_at_s: float | None = None  # when the output before `offset` was read; None: another agent has read it


def free_on_disk(path: Path) -> int:
    """Return the free bytes of the file system, without the bytes that only root can use."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


class LogShipper:
    def __init__(
        self, output: Path, clock: Clock, free_bytes: Callable[[Path], int] = free_on_disk, burst_bytes: int = BURST_BYTES
    ) -> None:
        self._output = output
        self._prefix = f"{output}/"  # text, because creating a Path takes longer than reading a short file
        self._clock = clock
        self._free_bytes = free_bytes
        self._burst_bytes = burst_bytes
        self._tails: dict[str, OutputTail] = {}
        self._ready: dict[str, None] = {}  # ids of runs whose file may have new output, least recently read first
        self._held: set[str] = set()  # ids of runs with a backlog that have reached their rate limit
        self._progress: dict[str, float] = {}  # id of a run with a progress line that waits → when the line is due

    @property
    def has_work(self) -> bool:
        return bool(self._ready)

    def progress_in_s(self) -> float | None:
        """Return the time until the next progress line is due, or None if no progress line waits."""
        if not self._progress:
            return None
        wait_s = min(self._progress.values()) - self._clock.now_s()
        return min(PROGRESS_S, max(0.0, wait_s))  # the clock may have been set back

    def follow(self, run_id: str, *, certain: bool) -> None:
        """Ship the output of this run from now on.

        `certain` means that the run is new, so the core has stored none of its output.
        """
        if run_id not in self._tails:
            read_at_s = self._clock.now_s() if certain else None
            self._tails[run_id] = OutputTail(certain=certain, allowance=self._burst_bytes, read_at_s=read_at_s)
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
        left = self._size(run_id) - tail.offset
        if left > BACKLOG_MAX_BYTES or left < BACKLOG_MAX_EVENTS:
            return left > BACKLOG_MAX_BYTES
        return self._read(run_id, tail.offset, left)[0].count(b"\n") > BACKLOG_MAX_EVENTS

    def announcement(self, run_id: str) -> LogChunk:
        """Return an empty chunk, by which the core learns how much output of an ended run will follow."""
        offset = self._tails[run_id].offset
        return LogChunk(run_id, offset, offset, [], size=self._size(run_id))

    def _is_kept(self, run_id: str) -> bool:
        """Whether the file has a second name, so that it is kept after the run (`kept_outputs.py`)."""
        try:
            return os.stat(self._prefix + run_id).st_nlink > 1
        except FileNotFoundError:
            return False

    def _size(self, run_id: str) -> int:
        try:
            return os.stat(self._prefix + run_id).st_size
        except FileNotFoundError:
            return 0

    def forget(self, run_id: str) -> None:
        self._tails.pop(run_id, None)
        self._ready.pop(run_id, None)
        self._held.discard(run_id)
        self._progress.pop(run_id, None)

    def disconnected(self) -> None:
        """Record that the connection was lost.

        All offsets become uncertain, because the core may or may not have stored the last chunks.
        """
        for run_id, tail in self._tails.items():
            tail.certain = tail.done = False
            self._ready[run_id] = None

    def chunks(self) -> list[LogChunk]:
        """Return the next chunks to ship, at most one per run, within the limits of a report."""
        now_s = self._clock.now_s()
        # Read the files of the runs whose progress line is due. If `due_s` is too far in the future, the clock was set back, and
        # the line is due too.
        for run_id in [each for each, due_s in self._progress.items() if not now_s < due_s <= now_s + PROGRESS_S]:
            self._ready[run_id] = None
        chunks = []
        bytes_left, events_left = REPORT_MAX_BYTES, REPORT_MAX_EVENTS
        turn = list(self._ready)[:REPORT_MAX_FILES]
        for i, run_id in enumerate(turn):
            if bytes_left <= 0 or events_left <= 0:
                break
            share = min(bytes_left, max(SHARE_MIN_BYTES, bytes_left // (len(turn) - i)))
            events = min(events_left, max(SHARE_MIN_EVENTS, events_left // (len(turn) - i)))
            chunk, read = self._chunk(run_id, share, events)
            if chunk is not None:
                chunks.append(chunk)
                bytes_left -= read
                events_left -= len(chunk.events)
        return chunks

    def _chunk(self, run_id: str, max_bytes: int, max_events: int) -> tuple[LogChunk | None, int]:
        """Return the next chunk of a run, or None if there is nothing to ship, and the number of bytes of the file in the chunk."""
        tail = self._tails[run_id]
        del self._ready[run_id]
        self._progress.pop(run_id, None)
        path = self._prefix + run_id
        if tail.ended and tail.certain and self._size(run_id) <= tail.offset:  # most runs print nothing after the last chunk
            tail.cut = tail.done = True
            self._held.discard(run_id)
            return None, 0
        bound_output(path)
        if not tail.certain:
            return self.announcement(run_id) if tail.ended else LogChunk(run_id, tail.offset, tail.offset, []), 0
        now_s = self._clock.now_s()
        if not tail.ended and self._is_held(run_id, tail, now_s):
            self._ready[run_id] = None
            return None, 0
        if tail.ended and not tail.cut:
            tail.cut = True
            cut_output(path, tail.offset, max(0.0, tail.allowance) + ENDED_BYTES)
        data, is_all, dropped = self._read(run_id, tail.offset, max_bytes)
        if tail.progress_at_s > now_s:  # the clock was set back
            tail.progress_at_s = float("-inf")
        progress_due = tail.ended or now_s >= tail.progress_at_s + PROGRESS_S
        split = split_events(data, final=tail.ended and is_all, max_events=max_events, progress_due=progress_due)
        used, texts = split.used, split.texts
        if split.has_progress:
            tail.progress_at_s = now_s
        if split.is_withheld:
            self._progress[run_id] = tail.progress_at_s + PROGRESS_S
        elif is_all and not tail.ended and self._is_quiet(run_id, tail, data, used, tail.offset + dropped + len(data), now_s):
            texts.append("\r" + data[used:].decode(errors="replace"))
            used = len(data)
        if is_all and not (texts or dropped or tail.ended):
            self._held.discard(run_id)
            return None, 0  # nothing to ship yet; empty lines are skipped together with the next line that is shipped
        tail.allowance -= used + EVENT_BYTES * len(texts)
        if dropped:
            since = "" if tail.read_at_s is None else SINCE.format(_utc(tail.read_at_s))
            texts.insert(0, DROPPED.format(dropped, since))
        tail.read_at_s = now_s
        tail.done = tail.ended and is_all and used == len(data)
        size = 0
        if not tail.done and (not is_all or (used < len(data) and len(texts) >= max_events)):
            self._ready[run_id] = None
            size = self._size(run_id)
        else:
            self._held.discard(run_id)
        if not used and not dropped:
            return None, 0
        now_ms = int(now_s * 1000)
        start, tail.offset = tail.offset, tail.offset + dropped + used
        if used:
            tail.is_after_return = data[used - 1] == 0x0D
        return LogChunk(run_id, start, tail.offset, [(now_ms, text) for text in texts], size, dropped), used

    def _is_quiet(self, run_id: str, tail: OutputTail, data: bytes, used: int, size: int, now_s: float) -> bool:
        """Whether the output ends with an incomplete progress line, and has not changed for PROGRESS_S.

        Many progress bars write the carriage return before the text. So without this rule, the newest progress line of a slow loop
        would be shipped only when the next progress line is written.
        """
        is_progress = data[used - 1] == 0x0D if used else tail.is_after_return
        rest = data[used:]
        if not is_progress or not rest.strip() or len(rest) > LOG_EVENT_MAX_BYTES // 3:
            return False
        if size != tail.quiet_size or tail.quiet_at_s > now_s:
            tail.quiet_size, tail.quiet_at_s = size, now_s
        due_s = max(tail.quiet_at_s, tail.progress_at_s) + PROGRESS_S
        if now_s < due_s:
            self._progress[run_id] = due_s
            return False
        tail.progress_at_s = now_s
        return True

    def _is_held(self, run_id: str, tail: OutputTail, now_s: float) -> bool:
        """Whether the output of the run must wait because of the rate limit."""
        rate = min(RATE_BYTES_PER_S, RATE_ALL_BYTES_PER_S / max(1, len(self._held)))
        if tail.allowance < RATE_BYTES_PER_S and self._free_bytes(self._output) < FREE_MIN_BYTES:
            rate = min(rate, RATE_FULL_DISK_BYTES_PER_S)
        tail.allowance = min(self._burst_bytes, tail.allowance + rate * max(0.0, now_s - tail.allowed_at_s))
        tail.allowed_at_s = now_s
        tail.held = tail.allowance < (RESUME_BYTES if tail.held else 0)
        if tail.held:
            self._held.add(run_id)
        return tail.held

    def _read(self, run_id: str, offset: int, max_bytes: int) -> tuple[bytes, bool, int]:
        """Read output from `offset`.

        Return the bytes, whether they reach the end of the file, and how many bytes between `offset` and them were dropped.
        """
        try:
            fd = os.open(self._prefix + run_id, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return b"", True, 0
        try:
            start = offset
            while True:
                data = os.pread(fd, max_bytes, start)
                if len(data) == max_bytes < ENLARGED_BYTES and not _LINE_END.search(data):
                    max_bytes = ENLARGED_BYTES
                    data = os.pread(fd, max_bytes, start)
                # Check this after the read, because the output guard (output_guard.py) may have made a hole during the read.
                kept = first_data(fd, start) if data else start
                if kept == start:
                    break
                start = kept
            is_all = len(data) < max_bytes
            if start > offset:  # the beginning of the first line was dropped, so drop the rest of it
                found = _LINE_END.search(data)
                cut = found.end() if found else 0
                data, start = data[cut:], start + cut
            return data, is_all, start - offset
        finally:
            os.close(fd)

    def acknowledged(self, chunks: list[LogChunk], shipped: Mapping[str, int]) -> None:
        """Process an acknowledgement of chunks. `shipped` is run id → the core's offset.

        The core returns no offset for a run without a log stream. The chunk of such a run counts as shipped.
        """
        for chunk in chunks:
            tail = self._tails.get(chunk.run_id)
            if tail is None:
                continue
            offset = shipped.get(chunk.run_id, chunk.end)
            if not tail.certain or offset != chunk.end:
                tail.offset, tail.certain, tail.done, tail.is_after_return = offset, True, False, False
                self._ready[chunk.run_id] = None
            elif offset >= tail.released + RELEASE_BYTES and not self._is_kept(chunk.run_id):
                make_hole(self._prefix + chunk.run_id, tail.released, offset)
                tail.released = offset
