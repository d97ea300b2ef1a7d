"""Splitting output into log events, and shipping them."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.clock import VirtualClock
from corral.model.run import LOG_EVENT_MAX_BYTES
from corral.node.log_shipper import LogShipper, split_events

MAX = LOG_EVENT_MAX_BYTES


@pytest.mark.parametrize(
    "data, final, used, texts",
    [
        (b"", False, 0, []),
        (b"a\nb\n", False, 4, ["a", "b"]),
        (b"a\nb", False, 2, ["a"]),  # waits for its newline
        (b"a\nb", True, 3, ["a", "b"]),
        (b"\n\na\n\n", False, 5, ["a"]),  # empty lines are passed over
        (b"a\0b\r\n", False, 5, ["a\0b\r"]),
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
    assert split_events(data, final=final) == (used, texts)


def test_invalid_bytes_do_not_exceed_the_limit():
    used, texts = split_events(b"\xff" * MAX, final=True)
    assert used == MAX
    assert all(len(text.encode()) <= MAX for text in texts)


def test_no_more_events_than_the_limit():
    assert split_events(b"a\nb\nc\n", final=True, max_events=2) == (4, ["a", "b"])
    assert split_events(b"a\n" + b"x" * (MAX + 5), final=True, max_events=2) == (2 + MAX, ["a", "x" * MAX])


LINE = st.text("ab é€😀\r\0", max_size=20)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(LINE, max_size=8), steps=st.lists(st.integers(1, 30), max_size=20), max_events=st.integers(1, 4))
def test_each_line_is_shipped_once_however_the_file_grows(lines, steps, max_events):
    data = "\n".join(lines).encode()
    got, at = [], 0
    for end in [*accumulate(steps), *[len(data)] * (len(lines) + 1)]:
        used, texts = split_events(data[at:end], final=end >= len(data), max_events=max_events)
        got += texts
        at += used
    assert got == [line for line in lines if line]


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
