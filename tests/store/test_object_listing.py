"""The cost of listings: it depends on the entries that they return, not on those that they skip."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from corral.model.objects import ContentPart, ObjectVersion
from corral.store import Store


def filled(keys: list[str], *, older: int = 0) -> tuple[Store, int]:
    """A bucket with one current object for each key, and this number of older versions of each."""
    store = Store(None)
    store.begin()
    store.buckets.add("b", "r", 1.0, "root")
    bucket = store.buckets.get("b")
    assert bucket is not None
    for key in keys:
        for at in range(older + 1):
            number = store.objects.next_number()
            content = store.objects.add_content(ContentPart(1, f"blob{number}", 1, "e", {}, 1.0))
            store.objects.add_version(bucket.id, ObjectVersion(number, key, f"{at}", True, content, 1, "e", 1.0, {}))
    store.commit()
    return store, bucket.id


def steps(store: Store, work: Callable[[], object]) -> int:
    """The steps of SQLite's virtual machine, in hundreds."""
    made = [0]

    def count() -> int:
        made[0] += 1
        return 0

    store.connection.set_progress_handler(count, 100)
    work()
    store.connection.set_progress_handler(None, 0)
    return made[0]


@pytest.mark.parametrize("kind", ["objects", "versions"])
def test_a_common_prefix_costs_one_seek(kind: str):
    def cost(count: int) -> int:
        store, bucket_id = filled([f"{folder}/{at:05}" for folder in "abc" for at in range(count)])
        more = {"before_number": None} if kind == "versions" else {}

        def work() -> None:
            page = getattr(store.objects, kind)(bucket_id, prefix="", delimiter="/", after="", limit=10, **more)
            assert (page.found, page.more) == (["a/", "b/", "c/"], False)

        return steps(store, work)

    assert cost(3_000) <= cost(10) + 5


def test_older_versions_cost_nothing():
    def cost(older: int) -> int:
        store, bucket_id = filled([f"{at}" for at in range(10)], older=older)

        def work() -> None:
            page = store.objects.objects(bucket_id, prefix="", delimiter="", after="", limit=10)
            assert [version.key for version in page.found if isinstance(version, ObjectVersion)] == [str(at) for at in range(10)]
            latest = store.objects.latest(bucket_id, "5")
            assert latest is not None and latest.id == str(older)

        return steps(store, work)

    assert cost(300) <= cost(0) + 5


def test_a_page_in_the_middle_costs_as_much_as_the_first():
    store, bucket_id = filled([f"{at:05}" for at in range(3_000)])

    def page(after: str) -> None:
        assert len(store.objects.objects(bucket_id, prefix="", delimiter="", after=after, limit=10).found) == 10

    assert steps(store, lambda: page("02900")) <= steps(store, lambda: page("")) + 5


def test_bytes_are_garbage_when_the_last_copy_is_dropped():
    store, bucket_id = filled(["a"])
    store.begin()
    first = store.objects.latest(bucket_id, "a")
    assert first is not None and first.content is not None
    store.objects.refer_to(first.content)
    copy = ObjectVersion(store.objects.next_number(), "b", "0", True, first.content, 1, "e", 1.0, {})
    store.objects.add_version(bucket_id, copy)
    assert store.objects.drop_version(bucket_id, first) is False
    assert store.objects.garbage(10) == []
    assert store.objects.drop_version(bucket_id, copy) is True
    assert store.objects.garbage(10) == ["blob1"] and store.objects.known_blobs(["blob1", "other"]) == {"blob1"}
    store.objects.drop_garbage(["blob1"])
    assert store.execute("SELECT count(*) FROM content").fetchone() == (0,)
    store.rollback()


def test_the_cost_of_dropping_garbage_depends_on_the_garbage():
    def cost(count: int) -> int:
        store, bucket_id = filled([f"{kind}{at:05}" for kind in ("gone", "kept") for at in range(count)])
        store.begin()
        for version in store.objects.objects(bucket_id, prefix="gone", delimiter="", after="", limit=count).found:
            assert isinstance(version, ObjectVersion)
            store.objects.drop_version(bucket_id, version)

        def work() -> None:
            some = store.objects.garbage(20)
            assert len(some) == 20
            store.objects.drop_garbage(some)

        made = steps(store, work)
        store.rollback()
        return made

    assert cost(2_000) <= cost(20) + 5
