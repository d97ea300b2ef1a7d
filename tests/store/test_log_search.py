"""A search in pages finds the same events as a scan of all streams, whatever the budget of a page."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.decide.logs.pattern import parse
from corral.telemetry import LogStore
from corral.telemetry.log_search import FIRST, LAST, EventFilter, EventPlace, FoundEvent, LogSearch, SearchBudget, SearchScope

LITTLE = SearchBudget(budget_bytes=1, chunk_min_rows=1, chunk_max_rows=3, chunk_max_bytes=200, held_max_bytes=8, listed_at_once=2)
EFFORTS = [LITTLE, SearchBudget(budget_bytes=10_000, listed_at_once=3), SearchBudget()]
messages = st.sampled_from(["ERROR a", "ERROR bb", "fine", "é" * 5, '{"a": 1}'])
batches = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.tuples(st.integers(0, 12), messages), min_size=1, max_size=6)), max_size=12
)


def filled(written: list[tuple[int, list[tuple[int, str]]]]) -> tuple[LogStore, int]:
    store = LogStore(None)
    store.add_group("r", "/g", {}, 0, "root")
    group = store.group("r", "/g")
    assert group is not None
    for now_ms, (stream, events) in enumerate(written):
        append(store, group.id, f"s{stream}", sorted(events), now_ms)
    return store, group.id


def append(store: LogStore, group_id: int, name: str, events: list[tuple[int, str]], now_ms: int) -> None:
    store.add_stream(group_id, name, now_ms, "root")
    stream = store.stream("r", "/g", name)
    assert stream is not None
    store.append(stream, events, now_ms)


def pages(store: LogStore, scope: SearchScope, effort: SearchBudget, wanted: EventFilter) -> Iterator[list[FoundEvent]]:
    """Each page starts where the previous page ended."""
    at: EventPlace | None = wanted.end if wanted.backwards else wanted.start
    seen = set()
    while at is not None:
        assert at not in seen, "no progress"
        seen.add(at)
        bounds = {"end": at} if wanted.backwards else {"start": at}
        page, at = LogSearch(store.connection, scope, replace(wanted, **bounds), effort).page()
        assert len(page) <= wanted.limit
        yield page


@settings(deadline=None)  # other work on the machine is no failure
@given(
    written=batches,
    pattern=st.sampled_from(["", "ERROR", "-ERROR", "%b+$%", "{ $.a = 1 }", "nothing"]),
    names=st.none() | st.lists(st.sampled_from(["s0", "s1", "s2"]), min_size=1, unique=True),
    bounds=st.tuples(st.integers(0, 13), st.integers(0, 13)),
    backwards=st.booleans(),
    limit=st.integers(1, 5),
    max_bytes=st.sampled_from([1, 12, 10_000]),
    effort=st.sampled_from(EFFORTS),
)
def test_pages_contain_every_match_once_and_in_order(written, pattern, names, bounds, backwards, limit, max_bytes, effort):
    store, group_id = filled(written)
    compiled = parse(pattern)
    start, end = (bounds[0], 0, 0), (bounds[1], 0, 0)
    wanted = EventFilter(
        compiled.hint,
        None if compiled.exact else compiled.matches,
        start,
        end,
        backwards=backwards,
        limit=limit,
        max_bytes=max_bytes,
    )
    found = [event for page in pages(store, SearchScope(group_id, names and tuple(names)), effort, wanted) for event in page]
    rows = store.execute(
        "SELECT e.at_ms, s.name, e.number, e.message FROM log_event e JOIN log_stream s ON s.id = e.stream_id ORDER BY 1, s.id, 3"
    )
    expected = [
        row for row in rows if bounds[0] <= row[0] < bounds[1] and (not names or row[1] in names) and compiled.matches(row[3])
    ]
    got = [(event.place[0], event.stream, event.place[2], event.message) for event in found]
    times = [row[0] for row in got]
    assert sorted(got) == sorted(expected) and len(set(got)) == len(got)
    assert times == sorted(times, reverse=backwards)
    store.close()


@settings(deadline=None)
@given(written=batches, before=st.integers(0, 14))
def test_counters_agree_with_the_stored_events(written, before):
    store, group_id = filled(written)
    store.set_retention(group_id, 1)
    now_ms = before + 86_400_000
    while (expiry := store.next_expiry()) is not None and expiry[1] < now_ms:
        store.expire(group_id, now_ms, 2, 40)
    left = store.execute(
        "SELECT min(at_ms), count(*), coalesce(sum(length(CAST(message AS BLOB)) + 26), 0) FROM log_event"
    ).fetchone()
    assert left[0] is None or left[0] >= before
    group = store.group_by_id(group_id)
    assert group is not None and group.bytes == left[2]
    assert store.execute("SELECT min(first_ms) FROM log_stream").fetchone() == left[:1]
    assert store.execute("SELECT coalesce(sum(stored), 0), coalesce(sum(bytes), 0) FROM log_stream").fetchone() == left[1:]
    for name in ("s0", "s1"):
        if stream := store.stream("r", "/g", name):
            store.drop_stream(stream)
            assert store.stream("r", "/g", name) is None and store.stream_by_id(stream.id) is None
    kept = store.execute("SELECT coalesce(sum(bytes), 0) FROM log_stream WHERE group_id = ?", (group_id,)).fetchone()[0]
    group = store.group_by_id(group_id)
    assert group is not None and group.bytes == kept
    store.drop_group(group_id)
    assert store.group("r", "/g") is None and store.add_group("r", "/g", {}, 1, "root")  # its name is free at once
    while store.purge(3, 60):
        pass
    assert store.execute("SELECT count(*) FROM log_event").fetchone() == (0,)
    assert store.execute("SELECT count(*) FROM log_stream").fetchone() == (0,)
    assert store.execute("SELECT count(*) FROM log_group").fetchone() == (1,)
    store.close()


@pytest.mark.parametrize("backwards", [False, True])
def test_one_page_reads_a_bounded_amount(backwards):
    """A match behind many events takes many pages, none of which reads all events."""
    store, group_id = filled([])
    for stream in range(50):
        append(store, group_id, f"s{stream}", [(stream * 10 + number, "hay") for number in range(100)], 0)
    append(store, group_id, "s25", [(300, "needle")], 1)
    steps = []
    store.connection.set_progress_handler(lambda: steps.append(1), 1_000)
    effort = SearchBudget(budget_bytes=50_000, chunk_max_rows=64)
    wanted = EventFilter(parse("needle").hint, start=FIRST, end=LAST, backwards=backwards)
    found, calls, most = [], 0, 0
    for page in pages(store, SearchScope(group_id), effort, wanted):
        found, calls, most = found + page, calls + 1, max(most, len(steps))
        steps.clear()
    assert [event.message for event in found] == ["needle"]
    assert calls > 5 and most < 60  # thousands of steps of the database's machine; all at once it would be some hundreds
    store.close()
