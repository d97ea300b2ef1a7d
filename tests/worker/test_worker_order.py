"""FIFO queues: the order of each group is kept, whatever fails."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from corral.worker import Batch, Item, QueueWorker


def processed_by(queue: Any, fails: Any, **options: Any) -> dict[str, list[int]]:
    """Run a worker until the queue is empty. Return what it processed, in order, by group."""
    done: dict[str, list[int]] = defaultdict(list)

    def predict(batch: Batch) -> None:
        failed = set()
        for item in batch:
            assert item.group is not None
            if fails(item):
                item.fail("for the test")
                if item.receive_count < queue.receives_max:  # otherwise it becomes a dead letter
                    failed.add(item.group)
            elif item.group not in failed:
                done[item.group].append(int(item.body))

    QueueWorker(queue.name, predict, once=True, metrics=None, retry_delay_s=0, **options).run()
    return done


def fill(queue: Any, groups: str, count: int) -> None:
    for group in groups:
        queue.send(map(str, range(count)), group)


@pytest.mark.parametrize("processes", [0, 2])
def test_groups_keep_their_order(work, processes):
    queue = work(fifo=True, receives_max=5)
    fill(queue, "abc", 14)
    assert processed_by(queue, lambda item: False, batch_max=4, processes=processes) == {group: list(range(14)) for group in "abc"}
    assert queue.counts() == (0, 0)


@pytest.mark.parametrize("batch_max", [1, 2, 6])
def test_items_behind_a_failed_item_wait_for_it(work, batch_max):
    queue = work(fifo=True, receives_max=5)
    fill(queue, "ab", 6)

    def fails(item: Item) -> bool:
        return item.group == "a" and item.body == "1" and item.receive_count < 3

    assert processed_by(queue, fails, batch_max=batch_max) == {"a": list(range(6)), "b": list(range(6))}
    assert queue.counts() == (0, 0) and queue.dead_letters() == []


def test_items_behind_a_dead_letter_go_on(work):
    """The bad item and those behind it are received equally often: they must not follow it to the dead-letter queue."""
    queue = work(fifo=True, receives_max=2)
    fill(queue, "a", 5)
    assert processed_by(queue, lambda item: item.body == "1", batch_max=2) == {"a": [0, 2, 3, 4]}
    assert queue.dead_letters() == ["1"] and queue.counts() == (0, 0)


def test_a_decode_error_keeps_the_order_too(work):
    queue = work(fifo=True, receives_max=5)
    fill(queue, "a", 6)

    def decode(item: Item) -> int:
        if item.body == "2" and item.receive_count == 1:
            raise ValueError("for the test")
        return int(item.body)

    assert processed_by(queue, lambda item: False, decode=decode, batch_max=2) == {"a": list(range(6))}


def test_an_exception_keeps_the_order_too(work):
    queue = work(fifo=True, receives_max=5)
    fill(queue, "ab", 5)
    done: dict[str, list[int]] = defaultdict(list)

    def predict(batch: Batch) -> None:
        if any(item.group == "a" and item.body == "1" and item.receive_count == 1 for item in batch):
            raise RuntimeError("for the test")
        for item in batch:
            done[str(item.group)].append(int(item.body))

    QueueWorker(queue.name, predict, once=True, metrics=None, retry_delay_s=0, batch_max=5).run()
    assert done == {"a": list(range(5)), "b": list(range(5))}
