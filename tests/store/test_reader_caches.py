"""What readers keep in memory for the check of permissions: queues, and the owners of tasks. Each commit of the writer counts."""

from __future__ import annotations

from pathlib import Path

from corral.model.principal import ROOT
from corral.store import Store
from store.rows import claim

ANN = "user/ann"


def pair(path: Path) -> tuple[Store, Store]:
    store = Store(path / "state.db")
    return store, store.reader()


def test_a_reader_sees_each_change_of_a_queue(tmp_path: Path) -> None:
    store, reader = pair(tmp_path)

    def owner() -> str | None:
        found = reader.queues.queue("r", "q")
        return found.owner if found is not None else None

    assert owner() is None
    store.begin()
    made = store.queues.add_queue("r", "q", {}, {}, 0, ANN)
    assert owner() is None, "it is not committed"
    store.commit()
    first = reader.queues.queue("r", "q")
    assert owner() == ANN and reader.queues.queue("r", "q") is first, "the second read needs no query"
    store.begin()
    store.queues.set_owner(made, ROOT)
    store.rollback()
    assert reader.queues.queue("r", "q") == first and store.queues.queue("r", "q") == first
    for change, expected in (
        (lambda: store.queues.set_owner(made, ROOT), ROOT),
        (lambda: store.queues.drop_queue(made), None),
        (lambda: store.queues.add_queue("r", "q", {}, {"a": "b"}, 0, ANN), ANN),
    ):
        store.begin()
        change()
        store.commit()
        assert owner() == expected
    last = reader.queues.queue("r", "q")
    assert last is not None and last.tags == {"a": "b"}
    store.close()


def test_a_snapshot_of_a_reader_has_the_queue_of_its_time(tmp_path: Path) -> None:
    store, reader = pair(tmp_path)
    store.begin()
    made = store.queues.add_queue("r", "q", {}, {}, 0, ANN)
    store.commit()
    reader.begin_reading()
    assert reader.queues.queue("r", "q") == made
    store.begin()
    store.queues.set_owner(made, ROOT)
    store.commit()
    assert reader.queues.queue("r", "q") == made
    reader.end_reading()
    later = reader.queues.queue("r", "q")
    assert later is not None and later.owner == ROOT
    store.close()


def test_the_owner_of_a_task_follows_the_commits(tmp_path: Path) -> None:
    store, reader = pair(tmp_path)
    task = claim("t" * 32).but(owner=ANN, details={"tags": [{"key": "a", "value": "b"}]})

    def owner() -> str | None:
        return reader.tasks.owners.of(task.id)

    store.begin()
    store.tasks.add(task)
    assert owner() is None
    store.rollback()
    assert owner() is None and store.tasks.owners.of_users() == {}
    store.begin()
    store.tasks.add(task)
    store.commit()
    assert owner() == ANN and store.tasks.owners.of_users() == {task.id: ANN}
    assert reader.tasks.owners.details(task.id) == task.details
    store.begin()
    store.tasks.set_owner(task, ROOT, {}, 1.0)
    store.commit()
    assert owner() == ROOT and store.tasks.owners.of_users() == {}
    store.close()
