"""No operation reads a whole queue: every SQL statement finds its rows through an index, in the order of the index."""

from __future__ import annotations

import json

from queues.queue_world import ACCOUNT, REGION, World

FULL_SCANS = {
    "SELECT max(id) FROM message",  # the last row of the table
    # At start only: the queues, and the index of each.
    "SELECT pile, (SELECT count(*) FROM place WHERE place.pile = queue.pile) FROM queue",
    "SELECT min(at) FROM due",
    "SELECT min(expires_ms) FROM deduplication",
    "SELECT min(expires_ms) FROM receive_attempt",
    "SELECT min(id) FROM pile WHERE owned = 0",
}


def everything(world: World, suffix: str) -> None:
    """Call each operation that reads or writes messages, and run the reconcilers that follow."""
    fifo = {"ContentBasedDeduplication": "true"} if suffix else {}
    group = {"MessageGroupId": "g"} if suffix else {}
    attempt = {"ReceiveRequestAttemptId": "x"} if suffix else {}
    world.queue(f"grave{suffix}", **fifo)
    grave = f"arn:aws:sqs:{REGION}:{ACCOUNT}:grave{suffix}"
    policy = json.dumps({"deadLetterTargetArn": grave, "maxReceiveCount": 2})
    url = world.queue(f"q{suffix}", VisibilityTimeout=1, MessageRetentionPeriod=60, RedrivePolicy=policy, **fifo)
    for at in range(3):
        world.call("SendMessage", QueueUrl=url, MessageBody=f"{at}", **group)
    world.call("SendMessageBatch", QueueUrl=url, Entries=[{"Id": str(at), "MessageBody": f"b{at}", **group} for at in range(10)])
    for _ in range(3):
        received = world.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10, **attempt)["Messages"]
        handle = {"QueueUrl": url, "ReceiptHandle": received[0]["ReceiptHandle"]}
        world.call("ChangeMessageVisibility", **handle, VisibilityTimeout=2)
        world.call("DeleteMessage", **handle)
        world.advance(2)
    world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=5)
    world.advance(5)
    world.call("StartMessageMoveTask", SourceArn=grave)
    world.call("ListMessageMoveTasks", SourceArn=grave)
    world.advance(1)
    world.call("GetQueueAttributes", QueueUrl=url, AttributeNames=["All"])
    world.call("ListQueues", QueueNamePrefix="q")
    world.call("ListDeadLetterSourceQueues", QueueUrl=url)
    world.run(lambda tx: tx.store.queues.activity(tx.now_s))
    world.run(lambda tx: tx.store.queues.held_by("t", 0))
    world.call("SendMessage", QueueUrl=url, MessageBody="old", **group)
    world.advance(400)
    world.call("SendMessage", QueueUrl=url, MessageBody="purged", **group)
    world.call("PurgeQueue", QueueUrl=url)
    world.settle()
    world.call("DeleteQueue", QueueUrl=url)
    world.settle()


def test_every_statement_finds_its_rows_by_an_index() -> None:
    world, seen = World(), dict[str, None]()
    world.store.connection.set_trace_callback(lambda statement: seen.setdefault(statement))
    for suffix in ("", ".fifo"):
        everything(world, suffix)
    world.store.queues.counters.rebuild()
    world.store.connection.set_trace_callback(None)
    looked_at = 0
    for statement in seen:
        if not statement.startswith(("SELECT", "UPDATE", "DELETE")):
            continue
        plan = [row[3] for row in world.store.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert not any("TEMP B-TREE" in step for step in plan), (statement, plan)
        scans = [step for step in plan if step.startswith("SCAN") and "CONSTANT" not in step and "SUBQUERY" not in step]
        assert not scans or statement in FULL_SCANS or "SCAN (subquery" in scans[0], (statement, plan)
        looked_at += 1
    assert looked_at > 40


def test_a_receive_touches_as_many_rows_on_a_deep_queue_as_on_a_shallow_one() -> None:
    """SQLite itself counts the steps of its virtual machine."""
    steps = {}
    for depth in (20, 2000):
        world = World()
        url = world.queue("q")
        for _ in range(depth // 10):
            world.call("SendMessageBatch", QueueUrl=url, Entries=[{"Id": str(at), "MessageBody": "m"} for at in range(10)])
        ticks = [0]

        def tick(ticks: list[int] = ticks) -> int:
            ticks[0] += 1
            return 0

        world.store.connection.set_progress_handler(tick, 10)
        world.call("SendMessage", QueueUrl=url, MessageBody="m")
        received = world.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
        entries = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(received)]
        world.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
        world.counts(url)
        world.run(lambda tx: tx.store.queues.activity(tx.now_s))
        world.store.connection.set_progress_handler(None, 0)
        steps[depth] = ticks[0]
    assert steps[2000] <= steps[20] * 1.1, steps


def test_ten_messages_are_received_and_deleted_with_few_statements() -> None:
    world, seen = World(), list[str]()
    url = world.queue("q")
    world.call("SendMessageBatch", QueueUrl=url, Entries=[{"Id": str(at), "MessageBody": "m"} for at in range(10)])
    world.store.connection.set_trace_callback(seen.append)
    received = world.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=10)["Messages"]
    entries = [{"Id": str(at), "ReceiptHandle": message["ReceiptHandle"]} for at, message in enumerate(received)]
    world.call("DeleteMessageBatch", QueueUrl=url, Entries=entries)
    world.store.connection.set_trace_callback(None)
    assert len(received) == 10
    assert [sum(statement.startswith(f"{verb} ") for statement in seen) for verb in ("UPDATE", "DELETE")] == [1, 2], seen


def test_messages_beyond_ten_are_dropped_and_unknown_and_repeated_ids_are_ignored() -> None:
    world = World()
    url, other = world.queue("q"), world.queue("other")
    for queue in (url, url, url, other):
        world.call("SendMessageBatch", QueueUrl=queue, Entries=[{"Id": str(at), "MessageBody": "m"} for at in range(10)])
    pile = world.store.queues.queue(REGION, "q").pile
    ids = [id for (id,) in world.store.execute("SELECT id FROM place ORDER BY id")]
    mine, others = ids[:30], ids[30:]
    world.run(lambda tx: tx.store.queues.drop(pile, [*mine[:25], mine[0], 1, others[0]], round(tx.now_s * 1000)))
    assert [id for (id,) in world.store.execute("SELECT id FROM place ORDER BY id")] == [*mine[25:], *others]
    assert [id for (id,) in world.store.execute("SELECT id FROM message ORDER BY id")] == [*mine[25:], *others]
    assert world.counts(url) == (5, 0, 0) and world.counts(other) == (10, 0, 0)
