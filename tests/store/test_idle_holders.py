"""The measured times in which GPUs do nothing. A rollback and a restart keep them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from corral.store import Store
from corral.store.idle_holders import GAP_MAX_S, IdleTime
from corral.store.owner_use import HOUR_S


def holds(holder: str) -> bool:
    return True


def test_a_busy_sample_of_any_gpu_ends_the_idle_time() -> None:
    idle = Store(None).idle_holders
    assert idle.add_sample("a", "t", 0.0, 100.0) == 0.0, "the first sample covers no known time"
    assert idle.add_sample("a", "t", 0.9, 101.0) == 1.0
    assert idle.add_sample("b", "t", 0.0, 101.0) == 0.0
    assert idle.since(100.0) == {"t": IdleTime(100.0)}
    assert idle.add_sample("b", "t", 1.0, 102.0) == 0.0
    assert idle.since(200.0) == {}
    assert idle.add_sample("a", "t", 0.0, 103.0) == 2.0
    assert idle.add_sample("a", "t", 0.0, 103.0 + GAP_MAX_S + 1) == 0.0, "nothing is known of a long gap"
    assert idle.since(200.0) == {"t": IdleTime(103.0)}
    assert list(idle.since(1e9)) == ["t"]


def test_idle_time_is_written_and_survives_a_restart(tmp_path: Path) -> None:
    with closing(Store(tmp_path / "state.db")) as store:
        store.idle_holders.add_sample("a", "t", 0.0, 100.0)
        store.idle_holders.add_sample("c", "new", 0.0, 290.0)
        store.idle_holders.add_idle("user/ann", 60.0, 3 * HOUR_S + 5.0)
        assert store.idle_holders.unsaved("user/ann") == {3: 60.0}
        store.begin()
        store.idle_holders.save(300.0, holds)
        store.idle_holders.note("t", 300.0)
        store.rollback()
        assert store.idle_holders.unsaved("user/ann") == {3: 60.0} and store.idle_holders.since(100.0) == {"t": IdleTime(100.0)}
        store.begin()
        store.idle_holders.save(300.0, holds)
        store.idle_holders.note("t", 300.0)
        store.commit()
        assert store.idle_holders.unsaved("user/ann") == {}
        assert [each.idle_gpu_s for each in store.owner_uses.hours("user/ann", 0.0, 4 * HOUR_S)] == [60.0]
    with closing(Store(tmp_path / "state.db")) as store:
        assert store.idle_holders.since(1_000.0) == {"t": IdleTime(100.0, 300.0)}, "shorter times are not written"
        store.begin()
        store.idle_holders.save(400.0, lambda holder: False)
        store.commit()
        assert store.idle_holders.since(1_000.0) == {} and not store.execute("SELECT * FROM idle_holder").fetchall()
