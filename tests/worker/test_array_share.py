"""Shares of array jobs: every item belongs to exactly one child, and items with a result are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.worker import WorkerError, item_key, share, share_of_list_file
from corral.worker.array_share import existing
from corral.worker.queue_lookup import read_environment_again
from harness import Corral

VARIABLES = (
    "AWS_BATCH_JOB_ARRAY_INDEX",
    "AWS_BATCH_JOB_ARRAY_SIZE",
    "ARRAY_SIZE",
    "CORRAL_ARRAY_INDEXES",
    "LIST_FILE_S3_PATH",
)
ITEMS = list("abcdefghij")


@pytest.fixture(autouse=True)
def no_array(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch):
    def put(**values: object) -> None:
        for name in VARIABLES[:4]:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))

    return put


@given(count=st.integers(0, 400), size=st.integers(1, 60))
def test_every_item_belongs_to_one_child(count: int, size: int) -> None:
    shares = [share(range(count), index=index, size=size) for index in range(size)]
    assert [item for each in shares for item in each] == list(range(count))  # once each, in order
    sizes = [len(each) for each in shares]
    assert max(sizes) - min(sizes) <= 1


@given(size=st.integers(1, 40), failed=st.data(), count=st.integers(0, 100), as_ranges=st.booleans())
def test_a_resubmission_has_the_shares_of_the_failed_children(size: int, failed, count: int, as_ranges: bool) -> None:
    indexes = sorted(failed.draw(st.sets(st.integers(0, size - 1), min_size=1)))
    text = ",".join(map(str, indexes))
    if as_ranges and indexes == list(range(indexes[0], indexes[-1] + 1)):
        text = f"{indexes[0]}-{indexes[-1]}"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("CORRAL_ARRAY_INDEXES", text)
        environment.setenv("ARRAY_SIZE", str(size))
        environment.setenv("AWS_BATCH_JOB_ARRAY_SIZE", str(len(indexes)))
        for position, original in enumerate(indexes):
            environment.setenv("AWS_BATCH_JOB_ARRAY_INDEX", str(position))
            assert share(range(count)) == share(range(count), index=original, size=size)


def test_the_index_and_size_come_from_the_environment(variables):
    assert share(ITEMS) == ITEMS  # not an array
    variables(ARRAY_SIZE=1)
    assert share(ITEMS) == ITEMS
    variables(AWS_BATCH_JOB_ARRAY_INDEX=1, AWS_BATCH_JOB_ARRAY_SIZE=4)
    assert share(ITEMS) == ["c", "d", "e"]
    variables(AWS_BATCH_JOB_ARRAY_INDEX=1, ARRAY_SIZE=4)
    assert share(iter(ITEMS)) == ["c", "d", "e"]
    variables(CORRAL_ARRAY_INDEXES="1", ARRAY_SIZE=4)  # one failed child is resubmitted without an array
    assert share(ITEMS) == ["c", "d", "e"]


@pytest.mark.parametrize(
    "values, text",
    [
        ({"AWS_BATCH_JOB_ARRAY_INDEX": 0}, "neither ARRAY_SIZE nor AWS_BATCH_JOB_ARRAY_SIZE is set"),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": 4, "ARRAY_SIZE": 4}, "from 0 to 3"),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "-1", "ARRAY_SIZE": 4}, "whole number"),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": "٣", "ARRAY_SIZE": 4}, "whole number"),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": 0, "ARRAY_SIZE": 0}, "from 1 to"),
        ({"AWS_BATCH_JOB_ARRAY_INDEX": 0, "ARRAY_SIZE": 4, "AWS_BATCH_JOB_ARRAY_SIZE": 2}, "lost or processed twice"),
        ({"ARRAY_SIZE": 4}, "3 of 4 shares would have no child"),
        ({"CORRAL_ARRAY_INDEXES": "1,2"}, "set ARRAY_SIZE to the size of the original array"),
        ({"CORRAL_ARRAY_INDEXES": "1,2", "ARRAY_SIZE": 4, "AWS_BATCH_JOB_ARRAY_INDEX": 2}, "has 2 indexes"),
        ({"CORRAL_ARRAY_INDEXES": "2,1", "ARRAY_SIZE": 4}, "ascending order"),
        ({"CORRAL_ARRAY_INDEXES": "1-4", "ARRAY_SIZE": 4}, "below ARRAY_SIZE=4"),
        ({"CORRAL_ARRAY_INDEXES": "1,x", "ARRAY_SIZE": 4}, "'x' is not valid"),
    ],
)
def test_values_that_would_lose_items_are_refused(variables, values, text):
    variables(**values)
    with pytest.raises(WorkerError, match=text):
        share(ITEMS)


def test_index_and_size_are_given_together():
    with pytest.raises(WorkerError, match="pass both"):
        share(ITEMS, index=1)


def test_keys_of_different_items_differ():
    assert item_key("s3://images/my dog.jpg") == "s3_images_my_dog.jpg-" + item_key("s3://images/my dog.jpg")[-16:]
    items = ["a b", "a_b", "a/b", "", "é" * 500, "x" * 5000, "x" * 5001]
    assert len({item_key(item) for item in items}) == len(items)
    assert all(len(item_key(item)) < 100 for item in items)


@given(st.sets(st.text("ab", min_size=1, max_size=6)), st.sets(st.text("ab", min_size=1, max_size=6)), st.integers(1, 5))
def test_existing_keys_are_found_with_few_requests(stored: set[str], wanted: set[str], page_size: int) -> None:
    requests = []

    def page_after(after: str) -> tuple[list[str], bool]:
        requests.append(after)
        rest = [key for key in sorted(stored) if key > after]
        return rest[:page_size], len(rest) > page_size

    assert existing(wanted, page_after) == stored & wanted
    assert len(requests) <= len(stored) // page_size + 1


@pytest.fixture
def bucket(corral: Corral, monkeypatch: pytest.MonkeyPatch):
    for name, value in corral.environment.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    read_environment_again()
    s3 = corral.client("s3")
    s3.create_bucket(Bucket="shares")
    monkeypatch.setenv("LIST_FILE_S3_PATH", "s3://shares/list.txt")
    yield s3
    for version in s3.list_objects_v2(Bucket="shares").get("Contents", ()):
        s3.delete_object(Bucket="shares", Key=version["Key"])
    s3.delete_bucket(Bucket="shares")


def test_a_list_file_is_shared_and_resumed(bucket, variables):
    lines = [f"python step.py --part {number}" for number in range(9)]
    bucket.put_object(Bucket="shares", Key="list.txt", Body="\n\n".join(lines[:4]) + "\r\n" + "\n".join(lines[4:]))
    children = []
    for index in range(4):
        variables(AWS_BATCH_JOB_ARRAY_INDEX=index, ARRAY_SIZE=4)
        children += share_of_list_file(results="s3://shares/done/")
    assert children == lines

    variables(AWS_BATCH_JOB_ARRAY_INDEX=3, ARRAY_SIZE=4)
    for other in ("done/" + item_key(lines[0]), "done/" + item_key(lines[7]) + "0", item_key(lines[7])):
        bucket.put_object(Bucket="shares", Key=other, Body=b"")
    assert share_of_list_file(results="s3://shares/done/") == lines[6:]  # the other keys belong to no item of this child
    bucket.put_object(Bucket="shares", Key="done/" + item_key(lines[7]), Body=b"")
    assert share_of_list_file(results="s3://shares/done/") == [lines[6], lines[8]]
    assert share_of_list_file() == lines[6:]
    assert (
        share_of_list_file(results="s3://shares/", result_key=lambda line: "list.txt" if line == lines[8] else line) == lines[6:8]
    )


def test_errors_of_list_files_say_what_to_do(bucket, monkeypatch, variables):
    with pytest.raises(WorkerError, match=r"s3://shares/list.txt cannot be read: .*NoSuchKey.* Correct the address"):
        share_of_list_file()
    bucket.put_object(Bucket="shares", Key="list.txt", Body=b"\xff\n")
    with pytest.raises(WorkerError, match="not valid UTF-8"):
        share_of_list_file()
    bucket.put_object(Bucket="shares", Key="list.txt", Body=b"a\n")
    with pytest.raises(WorkerError, match=r"cannot be listed: .*NoSuchBucket"):
        share_of_list_file(results="s3://missing/x")
    for wrong in ("/local/list.txt", "s3://", "https://shares/list.txt"):
        monkeypatch.setenv("LIST_FILE_S3_PATH", wrong)
        with pytest.raises(WorkerError, match="form s3://BUCKET/KEY"):
            share_of_list_file()
    monkeypatch.setenv("LIST_FILE_S3_PATH", "s3://shares/")
    with pytest.raises(WorkerError, match="has no key"):
        share_of_list_file()
    monkeypatch.delenv("LIST_FILE_S3_PATH")
    with pytest.raises(WorkerError, match="LIST_FILE_S3_PATH is not set"):
        share_of_list_file()
