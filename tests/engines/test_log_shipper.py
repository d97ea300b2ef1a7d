"""Splitting output into log events, and shipping them."""

from __future__ import annotations

import re
from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.clock import VirtualClock
from corral.model.run import LOG_EVENT_MAX_BYTES
from corral.node.log_shipper import (
    ENDED_BYTES,
    EVENT_BYTES,
    FREE_MIN_BYTES,
    RATE_ALL_BYTES_PER_S,
    RATE_BYTES_PER_S,
    REPORT_MAX_BYTES,
    RESUME_BYTES,
    LogShipper,
    SplitOutput,
    split_events,
)
from corral.node.output_bounds import OUTPUT_MAX_BYTES

MAX = LOG_EVENT_MAX_BYTES
BURST = 64 * 1024 * 1024  # smaller than BURST_BYTES, so that the tests write less


@pytest.mark.parametrize(
    "data, final, used, texts",
    [
        (b"", False, 0, []),
        (b"a\nb\n", False, 4, ["a", "b"]),
        (b"a\nb", False, 2, ["a"]),  # waits for its newline
        (b"a\nb", True, 3, ["a", "b"]),
        (b"\n\na\n\n", False, 5, ["a"]),  # empty lines are passed over
        (b"a\0b\r\n", False, 5, ["a\0b"]),  # Windows' line end
        (b"a\r\r\nb\r\n", False, 7, ["a", "b"]),
        (b"1%\r2%\r3%\r", False, 9, ["\r3%"]),  # only the newest progress line
        (b"1%\r2%\r3%", False, 6, ["\r2%"]),
        (b"\r1%\r2%\r3%\nend\n", False, 14, ["\r2%", "3%", "end"]),  # the last one before a newline is kept
        (b"\r1%\r2%\r3%", True, 9, ["\r2%", "3%"]),
        (b"\r1%\r     \rnext\n", False, 15, ["\r1%", "next"]),  # blank text erases a bar
        (b"\r\r\r", False, 3, []),
        (b"\x1b[32m50%\x1b[0m\r\n", False, 14, ["\x1b[32m50%\x1b[0m"]),  # colours are kept
        (b"x" * (MAX + 1) + b"\ry", False, MAX + 2, ["x" * MAX, "\rx"]),
        (b"\xff\xfe\n", False, 3, ["��"]),
        (b"x" * MAX, False, 0, []),  # may yet be just long enough
        (b"x" * (MAX + 1), False, MAX, ["x" * MAX]),
        (b"x" * (MAX + 1), True, MAX + 1, ["x" * MAX, "x"]),
        (b"x" * MAX + b"\n", False, MAX + 1, ["x" * MAX]),
        (b"x" * (MAX - 1) + "é".encode() + b"\n", False, MAX + 2, ["x" * (MAX - 1), "é"]),
        ("😀".encode() * (MAX // 4 + 1), False, MAX // 4 * 4, ["😀" * (MAX // 4)]),
    ],
)
def test_split_events(data, final, used, texts):
    split = split_events(data, final=final)
    assert (split.used, split.texts) == (used, texts)


def test_invalid_bytes_do_not_exceed_the_limit():
    split = split_events(b"\xff" * MAX, final=True)
    assert split.used == MAX
    assert all(len(text.encode()) <= MAX for text in split.texts)


def test_no_more_events_than_the_limit():
    assert split_events(b"a\nb\nc\n", final=True, max_events=2) == SplitOutput(4, ["a", "b"])
    assert split_events(b"a\n" + b"x" * (MAX + 5), final=True, max_events=2) == SplitOutput(2 + MAX, ["a", "x" * MAX])
    assert split_events(b"1%\r2%\nc\n", final=True, max_events=1) == SplitOutput(3, ["\r1%"])


def test_a_progress_line_that_is_not_due_waits_for_a_newline():
    assert split_events(b"a\n1%\r2%\r3", final=False, progress_due=False) == SplitOutput(5, ["a"], is_withheld=True)
    assert split_events(b"2%\r3%\n", final=False, progress_due=False) == SplitOutput(6, ["\r2%", "3%"])
    assert split_events(b"2%\r3%\r", final=False) == SplitOutput(6, ["\r3%"], has_progress=True)


LINE = st.text("ab é€😀\0", max_size=20)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINE, max_size=8), steps=st.lists(st.integers(1, 30), max_size=20), max_events=st.integers(1, 4))
def test_each_line_is_shipped_once_however_the_file_grows(lines, steps, max_events):
    data = "\n".join(lines).encode()
    got, at = [], 0
    for end in [*accumulate(steps), *[len(data)] * (len(lines) + 1)]:
        split = split_events(data[at:end], final=end >= len(data), max_events=max_events)
        got += split.texts
        at += split.used
    assert got == [line for line in lines if line]


def shipper_at(tmp_path, clock, offset):
    """A new agent after a crash, which has received its offset."""
    shipper = LogShipper(tmp_path, clock)
    shipper.follow("one", certain=False)
    shipper.acknowledged(shipper.chunks(), {"one": offset})
    return shipper


STEP = st.tuples(st.text("ab\r\n ", max_size=12), st.sampled_from([0.0, 0.3, 1.0, 2.5]), st.sampled_from(["", "lost", "crash"]))


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, max_size=12))
def test_progress_lines_survive_crashes(tmp_path_factory, steps):
    """Each line that ends with a newline is shipped once. So is the last progress line before it. Offsets have no gaps."""
    folder, clock = tmp_path_factory.mktemp("output"), VirtualClock()
    path = folder / "one"
    path.touch()
    shipper = LogShipper(folder, clock)
    shipper.follow("one", certain=True)
    events, stored, data = [], 0, ""

    def ship(failure=""):
        nonlocal shipper, stored
        while chunks := shipper.chunks():
            [chunk] = chunks
            if failure:  # the chunk does not reach the core
                shipper = shipper_at(folder, clock, stored)
                failure = ""
                continue
            if chunk.end != chunk.start:
                assert chunk.start == stored
                stored = chunk.end
                events.extend((clock.now_s(), text) for _, text in chunk.events)
            shipper.acknowledged(chunks, {"one": stored})

    for text, pause_s, failure in steps:
        data += text
        path.write_text(data, newline="")
        if failure == "crash":
            shipper = shipper_at(folder, clock, stored)
        shipper.written(["one"])
        ship(failure if failure == "lost" else "")
        clock.advance(pause_s)
        ship()
    shipper.ended("one")
    ship()
    assert stored == len(data) and shipper.is_done("one")
    texts = [text for _, text in events]
    # Text after a carriage return may be shipped before its line is complete, and blank text is skipped. So compare the characters.
    shown, at = "".join(texts).replace(" ", "").replace("\r", ""), 0
    for line in data.split("\n"):
        *progress, last = line.split("\r")
        kept = next((part for part in reversed(progress) if part.strip()), "")
        for part in (kept.replace(" ", ""), last.replace(" ", "")):
            at = shown.index(part, at) + len(part)
    assert all("\r" not in text[1:] and "\n" not in text for text in texts)


def test_a_progress_bar_is_shown_once_a_second(tmp_path):
    clock = VirtualClock()
    shipper = LogShipper(tmp_path, clock)
    shipper.follow("one", certain=True)
    got = []
    with open(tmp_path / "one", "w", newline="") as file:
        for step in range(51):  # five seconds, ten steps a second, as tqdm writes them
            file.write(f"\r{2 * step}%")
            file.flush()
            shipper.written(["one"])
            got += [(round(clock.now_s() % 1000, 1), text) for text in shipped(shipper)[0]]
            clock.advance(0.1)
        file.write("\n")
    shipper.written(["one"])
    texts = [text.removeprefix("\r") for _, text in got]
    assert 4 <= len(texts) <= 6 and texts == sorted(texts, key=lambda text: int(text[:-1]))
    assert all(later - sooner >= 0.99 for (sooner, _), (later, _) in pairwise(got))
    assert shipped(shipper)[0] == ["\r98%", "100%"]


def test_the_newest_state_of_a_slow_loop_is_shown_after_a_second(tmp_path):
    clock = VirtualClock()
    shipper = LogShipper(tmp_path, clock)
    shipper.follow("one", certain=True)
    (tmp_path / "one").write_text("start\n\r 10%", newline="")
    shipper.written(["one"])
    assert shipped(shipper)[0] == ["start"]
    assert not shipper.has_work and 0 < shipper.progress_in_s() <= 1.0
    clock.advance(1.0)
    assert shipper.progress_in_s() == 0
    assert shipped(shipper)[0] == ["\r 10%"]
    assert shipper.progress_in_s() is None
    (tmp_path / "one").write_text("start\n\r 10%\r 20%", newline="")
    shipper.written(["one"])
    assert shipped(shipper)[0] == []
    clock.advance(1.0)
    assert shipped(shipper)[0] == ["\r 20%"]
    shipper.ended("one")
    assert shipped(shipper)[0] == [] and shipper.is_done("one")
    (tmp_path / "two").write_text("Password: ", newline="")  # an incomplete line that is no progress line waits for its end
    shipper.follow("two", certain=True)
    shipper.written(["two"])
    assert shipped(shipper, "two")[0] == [] and shipper.progress_in_s() is None


def test_a_clock_that_is_set_back_does_not_stop_a_progress_bar(tmp_path):
    clock = VirtualClock()
    shipper = LogShipper(tmp_path, clock)
    shipper.follow("one", certain=True)
    (tmp_path / "one").write_text("1%\r2%\r", newline="")
    shipper.written(["one"])
    assert shipped(shipper)[0] == ["\r2%"]
    with open(tmp_path / "one", "a", newline="") as file:
        file.write("3%\r")
    shipper.written(["one"])
    assert shipped(shipper)[0] == []
    clock.advance(-3600.0)
    assert shipper.progress_in_s() <= 1.0
    assert shipped(shipper)[0] == ["\r3%"]


def test_fair_and_bounded(tmp_path):
    """A run with much output does not delay the others."""
    shipper = LogShipper(tmp_path, VirtualClock())
    (tmp_path / "much").write_text("x" * 99 + "\n")
    with open(tmp_path / "much", "a") as file:
        file.write(("y" * 99 + "\n") * 100_000)
    for i in range(20):
        (tmp_path / f"little{i}").write_text(f"{i}\n")
    for name in ("much", *(f"little{i}" for i in range(20))):
        shipper.follow(name, certain=True)
    shipper.written(None)
    chunks = shipper.chunks()
    assert {chunk.run_id for chunk in chunks} == {"much", *(f"little{i}" for i in range(20))}
    assert sum(chunk.end - chunk.start for chunk in chunks) <= 600_000
    shipper.acknowledged(chunks, {chunk.run_id: chunk.end for chunk in chunks})
    again = shipper.chunks()
    assert [chunk.run_id for chunk in again] == ["much"]
    assert again[0].start == next(chunk.end for chunk in chunks if chunk.run_id == "much")


def test_an_adopted_run_requests_its_offset_first(tmp_path):
    shipper = LogShipper(tmp_path, VirtualClock())
    (tmp_path / "one").write_text("a\nb\nc")
    shipper.follow("one", certain=False)
    shipper.ended("one")
    (question,) = shipper.chunks()
    assert (question.start, question.end, question.events) == (0, 0, [])
    assert not shipper.is_done("one")
    shipper.acknowledged([question], {"one": 2})
    (chunk,) = shipper.chunks()
    assert (chunk.start, chunk.end, [text for _, text in chunk.events]) == (2, 5, ["b", "c"])
    assert shipper.is_done("one")
    shipper.acknowledged([chunk], {"one": 2})  # not taken after all
    assert not shipper.is_done("one")
    assert [(chunk.start, chunk.end) for chunk in shipper.chunks()] == [(2, 5)]


def test_the_disk_space_of_stored_output_is_freed(tmp_path):
    shipper = LogShipper(tmp_path, VirtualClock())
    line = "x" * 99_999
    (tmp_path / "one").write_text((line + "\n") * 400)
    before = (tmp_path / "one").stat()
    shipper.follow("one", certain=True)
    shipper.written(["one"])
    got = []
    while chunks := shipper.chunks():
        got += [text for _, text in chunks[0].events]
        shipper.acknowledged(chunks, {"one": chunks[0].end})
    after = (tmp_path / "one").stat()
    assert got == [line] * 400
    assert after.st_size == before.st_size == 40_000_000
    assert after.st_blocks < before.st_blocks / 2


def shipped(shipper, run_id="one"):
    """Ship until the run has to wait, or all is shipped. Return the texts and the last offset."""
    texts, end = [], None
    while chunks := shipper.chunks():
        texts += [text for _, text in chunks[0].events]
        end = chunks[0].end
        shipper.acknowledged(chunks, {run_id: end})
    return texts, end


def test_output_beyond_the_bound_is_dropped_and_the_log_says_how_much(tmp_path):
    line, count = "x" * 99_999, 1_000  # 100 MB
    with open(tmp_path / "one", "w") as file:
        file.write((line + "\n") * 2)
        file.flush()
        shipper = LogShipper(tmp_path, VirtualClock())
        shipper.follow("one", certain=True)
        shipper.written(["one"])
        assert shipped(shipper)[0] == [line] * 2
        for _ in range(count - 2):
            file.write(line + "\n")
    shipper.written(["one"])
    [chunk] = shipper.chunks()
    assert (tmp_path / "one").stat().st_blocks * 512 <= OUTPUT_MAX_BYTES
    told = chunk.events[0][1]
    found = re.fullmatch(r"corral: ([0-9,]+) bytes of output were dropped here \(since 2\d{3}-\d\d-\d\dT[\d:]{8}Z\): .*", told)
    dropped = int(found[1].replace(",", ""))
    assert chunk.start == 200_000 and chunk.dropped == dropped and dropped % 100_000 == 0 and chunk.end > chunk.start + dropped
    assert chunk.size == count * 100_000  # so the core knows that more follows
    again = LogShipper(tmp_path, VirtualClock())  # another agent, after a crash: the same bytes count as dropped
    again.follow("one", certain=False)
    again.ended("one")
    again.acknowledged(again.chunks(), {"one": chunk.start})
    texts, end = shipped(again)
    assert texts[0] == re.sub(r" \(since .*?\)", "", told)  # this agent does not know since when
    assert end == count * 100_000 and again.is_done("one")
    assert texts[1:] == [line] * (count - 2 - dropped // 100_000) and 100_000 * len(texts[1:]) > OUTPUT_MAX_BYTES // 2 - 200_000


def test_a_run_that_prints_without_end_is_shipped_at_a_limited_rate(tmp_path):
    clock = VirtualClock()
    shipper = LogShipper(tmp_path, clock, burst_bytes=BURST)
    shipper.follow("one", certain=True)
    shipper.follow("other", certain=True)
    end, line = 0, b"x" * 99_999 + b"\n"
    for _ in range(4):
        with open(tmp_path / "one", "ab") as file:
            file.write(line * 200)
        shipper.written(["one"])
        end = shipped(shipper)[1] or end
    assert BURST <= end < BURST + 1_000_000
    assert shipper.has_work and not shipper.chunks()
    (tmp_path / "other").write_text("hello\n")
    shipper.written(["other"])
    assert [chunk.run_id for chunk in shipper.chunks()] == ["other"]
    clock.advance(1.0)
    assert RESUME_BYTES < shipped(shipper)[1] - end < RATE_BYTES_PER_S + 1_000_000
    shipper.ended("one")  # the rest is bounded, so it is shipped at once
    assert shipped(shipper)[1] == 4 * 200 * 100_000 and shipper.is_done("one")


def flood(path, lines=1_000_000):
    with open(path, "ab") as file:
        file.write(b"y\n" * lines)


def test_short_lines_of_floods_leave_room_for_others(tmp_path):
    shipper = LogShipper(tmp_path, VirtualClock())
    for name in ("flood1", "flood2", "other"):
        shipper.follow(name, certain=True)
    for name in ("flood1", "flood2"):
        flood(tmp_path / name)
    shipper.written(["flood1", "flood2"])
    for number in range(5):
        (tmp_path / "other").write_text("hello\n" * (number + 1))
        shipper.written(["other"])
        chunks = shipper.chunks()
        assert {chunk.run_id for chunk in chunks} == {"flood1", "flood2", "other"}
        assert sum(len(chunk.events) for chunk in chunks) * EVENT_BYTES <= REPORT_MAX_BYTES
        shipper.acknowledged(chunks, {chunk.run_id: chunk.end for chunk in chunks})


def test_dropped_output_takes_no_room_of_others(tmp_path):
    shipper = LogShipper(tmp_path, VirtualClock())
    shipper.follow("flood", certain=True)
    shipper.follow("other", certain=True)
    flood(tmp_path / "flood", 50_000_000)
    (tmp_path / "other").write_text("hello\n")
    shipper.written(["flood"])
    shipper.written(["other"])
    dropped, other = shipper.chunks()
    assert dropped.end - dropped.start > REPORT_MAX_BYTES and "dropped" in dropped.events[0][1]
    assert other.events[0][1] == "hello"


def test_a_nearly_full_disk_gets_little_of_a_flood(tmp_path):
    clock, free = VirtualClock(), [FREE_MIN_BYTES - 1]
    shipper = LogShipper(tmp_path, clock, lambda path: free[0], BURST)
    shipper.follow("one", certain=True)
    end, line = 0, b"x" * 99_999 + b"\n"
    for _ in range(4):
        with open(tmp_path / "one", "ab") as file:
            file.write(line * 200)
        shipper.written(["one"])
        end = shipped(shipper)[1] or end
    assert BURST <= end < BURST + 1_000_000
    clock.advance(10.0)
    assert not shipper.chunks()
    free[0] = FREE_MIN_BYTES
    clock.advance(1.0)
    assert shipped(shipper)[1] > end


def test_all_floods_share_a_rate(tmp_path):
    clock, names = VirtualClock(), [f"flood{i}" for i in range(8)]
    shipper = LogShipper(tmp_path, clock, burst_bytes=BURST)
    line, ends = b"x" * 99_999 + b"\n", dict.fromkeys(names, 0)

    def ship():
        while chunks := shipper.chunks():
            ends.update({chunk.run_id: chunk.end for chunk in chunks})
            shipper.acknowledged(chunks, ends)

    for name in names:
        shipper.follow(name, certain=True)
        for _ in range(7):
            with open(tmp_path / name, "ab") as file:
                file.write(line * 110)
            shipper.written([name])
            ship()
    before = sum(ends.values())
    for _ in range(20):
        clock.advance(0.5)
        ship()
    shipped_bytes = sum(ends.values()) - before
    assert RATE_ALL_BYTES_PER_S * 5 < shipped_bytes < RATE_ALL_BYTES_PER_S * 10 + 8 * 600_000


def test_the_newest_output_of_a_flood_that_has_ended_is_stored(tmp_path):
    """Thirty million short lines would occupy the core for minutes."""
    shipper = LogShipper(tmp_path, VirtualClock(), burst_bytes=1_000_000)
    shipper.follow("one", certain=True)
    flood(tmp_path / "one", 15_000_000)
    with open(tmp_path / "one", "ab") as file:
        file.write(b"the end\n")
    shipper.written(["one"])
    shipper.ended("one")
    texts, end = shipped(shipper)
    assert end == 30_000_008 and shipper.is_done("one")
    assert "bytes of output were dropped" in texts[0] and texts[-1] == "the end"
    assert len(texts) * EVENT_BYTES < ENDED_BYTES + 10_000_000
