"""The Range header."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.decide.objects.byte_range import Unsatisfiable, span_of


@pytest.mark.parametrize(
    ("header", "size", "span"),
    [
        ("bytes=0-0", 10, (0, 1)),
        ("bytes=3-", 10, (3, 7)),
        ("bytes=3-99", 10, (3, 7)),
        ("bytes=-4", 10, (6, 4)),
        ("bytes=-40", 10, (0, 10)),
        (" bytes=1-2 ", 10, (1, 2)),
        ("bytes=5-4", 10, None),
        ("bytes=-", 10, None),
        ("bytes=0-1,4-5", 10, None),
        ("rows=0-1", 10, None),
        ("bytes=٣-", 10, None),  # digits, but not ASCII
        ("bytes=" + "9" * 30 + "-", 10, None),
    ],
)
def test_ranges(header, size, span):
    assert span_of(header, size) == span


NOTHING = [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=-5", 0)]


@pytest.mark.parametrize(("header", "size"), NOTHING)
def test_unsatisfiable_ranges(header, size):
    with pytest.raises(Unsatisfiable):
        span_of(header, size)


@given(first=st.integers(0, 50), last=st.integers(0, 50), size=st.integers(0, 50))
def test_a_range_is_a_slice(first, last, size):
    body = bytes(range(size))
    try:
        span = span_of(f"bytes={first}-{last}", size)
    except Unsatisfiable:
        assert first >= size
        return
    if span is None:
        assert last < first
    else:
        assert body[span[0] : span[0] + span[1]] == body[first : last + 1]
