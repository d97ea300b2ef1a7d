"""Effects of time on queues: delays, timeouts, long polls, retention, deduplication, rates of message moves."""

from __future__ import annotations

import json
from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.model.sqs_limits import IN_FLIGHT_MAX
from corral.services.sqs import receive_message
from queues.queue_world import ACCOUNT, REGION, ROOT, World, bodies


def arn(name: str) -> str:
    return f"arn:aws:sqs:{REGION}:{ACCOUNT}:{name}"


def dead_letters(name: str, most: int) -> str:
    return json.dumps({"deadLetterTargetArn": arn(name), "maxReceiveCount": most})


def receive(world: World, url: str, count: int = 10, **params: Any) -> list[dict[str, Any]]:
    return world.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=count, **params).get("Messages", [])


def send(world: World, url: str, *texts: str, **params: Any) -> None:
    for text in texts:
        world.call("SendMessage", QueueUrl=url, MessageBody=text, **params)


def test_a_delayed_message_becomes_visible_when_its_delay_ends() -> None:
    world = World()
    url = world.queue("q", DelaySeconds=5)
    send(world, url, "queue's")
    send(world, url, "own", DelaySeconds=2)
    send(world, url, "at once", DelaySeconds=0)
    assert world.counts(url) == (1, 0, 2)
    assert bodies({"Messages": receive(world, url)}) == ["at once"]
    world.advance(1.999)
    assert receive(world, url) == []
    world.advance(0.001)
    assert bodies({"Messages": receive(world, url)}) == ["own"]
    world.advance(3)
    assert bodies({"Messages": receive(world, url)}) == ["queue's"]
    assert world.counts(url) == (0, 3, 0)


def test_a_visibility_timeout_ends_can_be_changed_and_has_a_limit() -> None:
    world = World()
    url = world.queue("q", VisibilityTimeout=10)
    send(world, url, "m")
    [first] = receive(world, url)
    world.advance(9.999)
    assert receive(world, url) == []
    world.advance(0.001)
    [second] = receive(world, url, VisibilityTimeout=100, AttributeNames=["All"])
    assert second["Attributes"]["ApproximateReceiveCount"] == "2"
    assert int(second["Attributes"]["ApproximateFirstReceiveTimestamp"]) == 1_800_000_000_000
    assert second["ReceiptHandle"] != first["ReceiptHandle"]
    world.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"], VisibilityTimeout=100)
    change = {"QueueUrl": url, "ReceiptHandle": second["ReceiptHandle"]}
    world.call("ChangeMessageVisibility", **change, VisibilityTimeout=43_200)
    world.advance(3600)
    with pytest.raises(ApiError, match="beyond the limit"):
        world.call("ChangeMessageVisibility", **change, VisibilityTimeout=43_200)
    world.call("ChangeMessageVisibility", **change, VisibilityTimeout=0)
    assert world.counts(url) == (1, 0, 0)
    world.call("ChangeMessageVisibility", **change, VisibilityTimeout=1)  # the message is visible, and is hidden again
    assert (world.counts(url), receive(world, url)) == ((0, 1, 0), [])
    world.advance(1)
    [third] = receive(world, url)
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])  # any handle of the message deletes it
    assert world.counts(url) == (0, 0, 0)
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=third["ReceiptHandle"])


def test_a_fifo_queue_changes_the_visibility_only_of_messages_in_flight_and_by_the_latest_handle() -> None:
    world = World()
    url = world.queue("q.fifo", VisibilityTimeout=10, ContentBasedDeduplication="true")
    send(world, url, "m", MessageGroupId="a")
    [first] = receive(world, url)
    change = {"QueueUrl": url, "ReceiptHandle": first["ReceiptHandle"], "VisibilityTimeout": 5}
    world.advance(10)
    with pytest.raises(ApiError, match="in flight") as refusal:
        world.call("ChangeMessageVisibility", **change)
    assert refusal.value.code == "MessageNotInflight"
    receive(world, url)
    with pytest.raises(ApiError, match="not available for visibility timeout change"):
        world.call("ChangeMessageVisibility", **change)


def test_an_earlier_message_of_a_group_is_received_while_later_ones_are_in_flight() -> None:
    world = World()
    url = world.queue("q.fifo", VisibilityTimeout=30, ContentBasedDeduplication="true")
    send(world, url, "a1", "a2", "a3", MessageGroupId="a")
    send(world, url, "b1", MessageGroupId="b")
    first = receive(world, url, 2)
    assert bodies({"Messages": first}) == ["a1", "a2"]
    world.advance(0.001)
    world.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"], VisibilityTimeout=0)
    assert bodies({"Messages": receive(world, url)}) == ["b1", "a1"], "not a2, which is in flight, nor a3 before it"
    world.advance(30)
    assert sorted(bodies({"Messages": receive(world, url)})) == ["a1", "a2", "a3", "b1"]


def test_a_fifo_batch_with_an_entry_without_its_ids_is_refused_as_a_whole() -> None:
    world = World()
    url = world.queue("q.fifo")
    good = {"Id": "1", "MessageBody": "m", "MessageGroupId": "a", "MessageDeduplicationId": "1"}
    for name, code in (("MessageGroupId", "MissingParameter"), ("MessageDeduplicationId", "InvalidParameterValue")):
        bad = {key: value for key, value in good.items() if key != name} | {"Id": "2"}
        with pytest.raises(ApiError) as refusal:
            world.call("SendMessageBatch", QueueUrl=url, Entries=[good, bad])
        assert refusal.value.code == code
    assert world.counts(url) == (0, 0, 0)


def test_a_purge_forgets_deduplication_ids() -> None:
    world = World()
    url = world.queue("q.fifo", ContentBasedDeduplication="true")
    for _ in range(2):
        send(world, url, "m", "m", MessageGroupId="a")
        assert world.counts(url) == (1, 0, 0)
        world.call("PurgeQueue", QueueUrl=url)
        world.advance(60)


# Long polls


def test_a_long_poll_ends_with_a_message_or_with_its_time() -> None:
    world = World()
    url = world.queue("q")
    poll = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    world.advance(19.9)
    assert poll.answer is None
    send(world, url, "m")
    assert poll.bodies == ["m"]
    late = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=2)
    world.advance(2)
    assert late.answer == {}


def test_a_message_wakes_one_poll_only() -> None:
    world = World()
    url = world.queue("q")
    polls = [world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20) for _ in range(50)]
    statements: list[str] = []
    world.store.connection.set_trace_callback(statements.append)
    send(world, url, "m")
    world.store.connection.set_trace_callback(None)
    assert [poll.answer is not None for poll in polls] == [True] + [False] * 49
    assert sum("ORDER BY pile, visible_ms" in statement for statement in statements) == 2  # the next poll finds nothing
    entries = [{"Id": str(at), "MessageBody": str(at)} for at in range(10)]
    world.call("SendMessageBatch", QueueUrl=url, Entries=entries)
    assert sorted(poll.bodies[0] for poll in polls if poll.answer is not None) == sorted([*map(str, range(10)), "m"])


def test_a_poll_wakes_when_a_delay_or_timeout_ends() -> None:
    world = World()
    url = world.queue("q", VisibilityTimeout=5)
    poll = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    short = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=1)
    send(world, url, "delayed", DelaySeconds=3)
    world.advance(1)
    assert short.answer == {}
    world.advance(1.999)
    assert poll.answer is None
    world.advance(0.001)
    assert poll.bodies == ["delayed"]
    again = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)  # it is in flight for 5 s from now
    world.advance(4.999)
    assert again.answer is None
    world.advance(0.001)
    assert again.bodies == ["delayed"]
    patient = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    world.call(
        "ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=again.answer["Messages"][0]["ReceiptHandle"], VisibilityTimeout=0
    )
    assert patient.bodies == ["delayed"]


def test_a_poll_wakes_when_a_timeout_ends_that_began_after_it() -> None:
    """The message in flight was sent after the poll had begun to wait."""
    world = World()
    url = world.queue("q", VisibilityTimeout=5)
    poll = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    other = world.queue("other.fifo", ContentBasedDeduplication="true", VisibilityTimeout=5)
    send(world, url, "m")
    [message] = poll.answer["Messages"]
    polls = [world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=seconds) for seconds in (1, 20)]
    world.advance(5)
    assert [poll.bodies for poll in polls] == [[], ["m"]]
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    poll = world.ask("ReceiveMessage", QueueUrl=other, WaitTimeSeconds=20)
    send(world, other, "1", "2", MessageGroupId="g")
    assert poll.bodies == ["1"]
    poll = world.ask("ReceiveMessage", QueueUrl=other, WaitTimeSeconds=20)
    world.advance(5)
    assert poll.bodies == ["1"]


def test_a_poll_whose_client_has_disconnected_receives_nothing() -> None:
    world = World()
    url = world.queue("q")
    gone, there = (world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20) for _ in range(2))
    gone.gone = True
    send(world, url, "m")
    assert (gone.answer, there.bodies) == (None, ["m"])


def test_a_poll_of_a_deleted_queue_fails() -> None:
    world = World()
    url = world.queue("q")
    polls = [world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20) for _ in range(3)]
    world.call("DeleteQueue", QueueUrl=url)
    assert [poll.answer.code for poll in polls] == ["QueueDoesNotExist"] * 3


# Retention and purges


def test_expired_messages_are_deleted() -> None:
    world = World()
    url = world.queue("q", MessageRetentionPeriod=60)
    send(world, url, "old")
    world.advance(30)
    send(world, url, "young")
    world.advance(29.9)
    assert world.rows("message") == 2
    world.advance(1.2)
    assert (world.rows("message"), world.counts(url)) == (1, (1, 0, 0))
    world.advance(60)
    assert (world.rows("message"), world.rows("place"), world.counts(url)) == (0, 0, (0, 0, 0))
    send(world, url, "again")
    world.call("SetQueueAttributes", QueueUrl=url, Attributes={"MessageRetentionPeriod": "1209600"})
    world.advance(100_000)
    assert world.counts(url) == (1, 0, 0)
    world.call("SetQueueAttributes", QueueUrl=url, Attributes={"MessageRetentionPeriod": "60"})
    world.settle()
    assert world.counts(url) == (0, 0, 0)


def test_a_dead_letter_keeps_its_age() -> None:
    world = World()
    grave = world.queue("grave", MessageRetentionPeriod=60)
    url = world.queue("q", VisibilityTimeout=0, RedrivePolicy=dead_letters("grave", 1))
    send(world, url, "m")
    assert len(receive(world, url)) == 1
    world.advance(50)
    assert receive(world, url) == []
    assert world.counts(grave) == (1, 0, 0)
    world.advance(11)
    assert world.counts(grave) == (0, 0, 0)


def test_a_purge_hides_all_messages_at_once_and_deletes_them_in_steps() -> None:
    world = World()
    url = world.queue("q")
    for _ in range(100):
        world.call("SendMessageBatch", QueueUrl=url, Entries=[{"Id": str(at), "MessageBody": "m"} for at in range(10)])
    [held] = receive(world, url, 1)
    world.call("PurgeQueue", QueueUrl=url)
    assert world.counts(url) == (0, 0, 0)
    left = world.rows("message")
    assert 0 < left < 1000  # some batches have deleted a part
    send(world, url, "new")
    world.settle()
    assert (world.rows("message"), world.rows("place"), world.rows("pile")) == (1, 1, 1)
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])  # the message was purged: a no-op
    assert bodies({"Messages": receive(world, url)}) == ["new"]
    world.advance(59)
    with pytest.raises(ApiError, match="Only one PurgeQueue operation on q is allowed every 60 seconds"):
        world.call("PurgeQueue", QueueUrl=url)
    world.advance(1)
    world.call("PurgeQueue", QueueUrl=url)


def test_a_deleted_queue_leaves_nothing_and_its_name_is_free_at_once() -> None:
    world = World()
    url = world.queue("q.fifo", ContentBasedDeduplication="true")
    send(world, url, "m", MessageGroupId="g")
    world.call("DeleteQueue", QueueUrl=url)
    world.settle()
    assert [world.rows(table) for table in ("message", "place", "message_group", "pile", "queue")] == [0] * 5
    url = world.queue("q.fifo", ContentBasedDeduplication="true")
    send(world, url, "m", MessageGroupId="g")  # deduplication ids belong to one queue
    assert bodies({"Messages": receive(world, url)}) == ["m"]


# FIFO


def test_duplicates_within_five_minutes_are_dropped() -> None:
    world = World()
    url = world.queue("q.fifo")
    message = {"QueueUrl": url, "MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    first = world.call("SendMessage", **message)
    [received] = receive(world, url)
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=received["ReceiptHandle"])
    world.advance(299)
    again = world.call("SendMessage", **message | {"MessageGroupId": "other"})
    assert (again["MessageId"], again["SequenceNumber"]) == (first["MessageId"], first["SequenceNumber"])
    assert world.counts(url) == (0, 0, 0)
    world.advance(1)
    later = world.call("SendMessage", **message)
    assert later["SequenceNumber"] > first["SequenceNumber"]
    assert world.counts(url) == (1, 0, 0)
    world.advance(302)
    assert world.rows("deduplication") == 0
    by_group = world.queue("h.fifo", DeduplicationScope="messageGroup", FifoThroughputLimit="perMessageGroupId")
    for group in "aab":
        world.call("SendMessage", **message | {"QueueUrl": by_group, "MessageGroupId": group})
    assert world.counts(by_group) == (2, 0, 0)


def test_a_group_is_blocked_while_one_of_its_messages_is_in_flight() -> None:
    world = World()
    url = world.queue("q.fifo", ContentBasedDeduplication="true", VisibilityTimeout=10)
    send(world, url, "a1", "a2", "a3", MessageGroupId="a")
    send(world, url, "b1", MessageGroupId="b")
    first = receive(world, url, 2)
    assert bodies({"Messages": first}) == ["a1", "a2"]
    assert bodies({"Messages": receive(world, url)}) == ["b1"]
    assert world.counts(url) == (1, 3, 0)
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert receive(world, url) == []
    poll = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20, MaxNumberOfMessages=10)
    world.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=first[1]["ReceiptHandle"], VisibilityTimeout=0)
    assert poll.bodies == ["a2", "a3"]
    with pytest.raises(ApiError, match="The receipt handle has expired"):
        world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=first[1]["ReceiptHandle"])
    poll = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20, MaxNumberOfMessages=10)
    world.advance(10)
    assert poll.bodies in (["b1", "a2", "a3"], ["a2", "a3", "b1"])


def test_a_repeated_receive_attempt_returns_the_same_messages() -> None:
    world = World()
    url = world.queue("q.fifo", ContentBasedDeduplication="true", VisibilityTimeout=10)
    send(world, url, "1", "2", MessageGroupId="g")
    first = receive(world, url, ReceiveRequestAttemptId="x")
    world.advance(8)
    again = receive(world, url, ReceiveRequestAttemptId="x")
    assert [message["ReceiptHandle"] for message in again] == [message["ReceiptHandle"] for message in first]
    world.advance(8)  # the timeout began again
    assert receive(world, url) == []
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=again[0]["ReceiptHandle"])
    assert receive(world, url, ReceiveRequestAttemptId="x") == []  # its messages have become visible since
    world.advance(302)
    assert world.rows("receive_attempt") == 0


def test_a_fifo_queue_delays_as_a_whole() -> None:
    world = World()
    url = world.queue("q.fifo", ContentBasedDeduplication="true", DelaySeconds=5)
    poll = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20, MaxNumberOfMessages=10)
    send(world, url, "1", MessageGroupId="g")
    world.advance(2)
    send(world, url, "2", MessageGroupId="g")
    assert world.counts(url) == (0, 0, 2)
    world.advance(3)
    assert poll.bodies == ["1"]
    assert world.counts(url) == (0, 1, 1)


# Dead letters and message moves


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_message_that_is_received_too_often_becomes_a_dead_letter(suffix: str) -> None:
    world = World()
    more = {"ContentBasedDeduplication": "true"} if suffix else {}
    params = {"MessageGroupId": "g"} if suffix else {}
    grave = world.queue(f"grave{suffix}", **more)
    url = world.queue(f"q{suffix}", VisibilityTimeout=0, RedrivePolicy=dead_letters(f"grave{suffix}", 2), **more)
    send(world, url, "bad", **params)
    [sent] = receive(world, url, AttributeNames=["All"])
    send(world, url, "good", **params)
    receive(world, url)
    poll = world.ask("ReceiveMessage", QueueUrl=grave, WaitTimeSeconds=20, AttributeNames=["All"])
    while "bad" in bodies({"Messages": receive(world, url)}):
        pass
    [dead] = poll.answer["Messages"]
    assert (dead["Body"], dead["MessageId"]) == ("bad", sent["MessageId"])
    assert dead["Attributes"]["DeadLetterQueueSourceArn"] == arn(f"q{suffix}")
    assert dead["Attributes"]["ApproximateReceiveCount"] == "3"  # in both queues together
    assert world.counts(url)[0] + world.counts(grave)[1] == 2
    assert world.call("ListDeadLetterSourceQueues", QueueUrl=grave)["queueUrls"] == [url]


def test_many_dead_letters_do_not_stop_a_long_poll() -> None:
    world = World()
    grave = world.queue("grave")
    url = world.queue("q", VisibilityTimeout=0, RedrivePolicy=dead_letters("grave", 1))
    number = 2 * receive_message.CLEARED_MAX + 50
    for _ in range(number // 10):
        world.call("SendMessageBatch", QueueUrl=url, Entries=[{"Id": str(at), "MessageBody": "m"} for at in range(10)])
    for _ in range(number // 10):
        assert len(receive(world, url)) == 10
    poll = world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20)
    world.settle()
    assert (world.counts(url)[0], world.counts(grave)[0], poll.answer) == (0, number, None)
    send(world, url, "good")
    assert poll.bodies == ["good"]


def test_an_old_handle_does_not_delete_a_dead_letter() -> None:
    world = World()
    grave = world.queue("grave")
    url = world.queue("q", VisibilityTimeout=0, RedrivePolicy=dead_letters("grave", 1))
    send(world, url, "m")
    [message] = receive(world, url)
    assert receive(world, url) == []
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    assert bodies({"Messages": receive(world, grave)}) == ["m"]


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_dead_letters_are_moved_back(suffix: str) -> None:
    world = World()
    more = {"ContentBasedDeduplication": "true"} if suffix else {}
    grave = world.queue(f"grave{suffix}", **more)
    url = world.queue(f"q{suffix}", VisibilityTimeout=0, RedrivePolicy=dead_letters(f"grave{suffix}", 1), **more)
    for at in range(150):
        send(world, url, str(at), **({"MessageGroupId": f"g{at % 7}"} if suffix else {}))
    while receive(world, url) or world.counts(url)[0]:
        pass
    assert world.counts(grave) == (150, 0, 0)
    world.call("StartMessageMoveTask", SourceArn=arn(f"grave{suffix}"))
    world.settle()
    [task] = world.call("ListMessageMoveTasks", SourceArn=arn(f"grave{suffix}"))["Results"]
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"], task["ApproximateNumberOfMessagesToMove"]) == (
        "COMPLETED", 150, 150,
    )  # fmt: skip
    assert "TaskHandle" not in task
    assert (world.counts(grave), world.counts(url)) == ((0, 0, 0), (150, 0, 0))
    [message] = receive(world, url, 1, AttributeNames=["All"])
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_move_keeps_its_rate_and_can_be_cancelled() -> None:
    world = World()
    world.queue("grave")
    url = world.queue("q", RedrivePolicy=dead_letters("grave", 1))
    grave = f"http://x/{ACCOUNT}/grave"
    for at in range(30):
        send(world, grave, str(at))
    source = arn("grave")
    handle = world.call("StartMessageMoveTask", SourceArn=source, DestinationArn=arn("q"), MaxNumberOfMessagesPerSecond=4)[
        "TaskHandle"
    ]
    with pytest.raises(ApiError, match="already a task running"):
        world.call("StartMessageMoveTask", SourceArn=source, DestinationArn=arn("q"))
    world.advance(2)
    assert world.call("CancelMessageMoveTask", TaskHandle=handle) == {"ApproximateNumberOfMessagesMoved": 9}
    world.advance(5)
    assert (world.counts(grave)[0], world.counts(url)[0]) == (21, 9)
    [task] = world.call("ListMessageMoveTasks", SourceArn=source)["Results"]
    assert task["Status"] == "CANCELLED"
    with pytest.raises(ApiError, match="CANCELLED"):
        world.call("CancelMessageMoveTask", TaskHandle=handle)
    world.call("StartMessageMoveTask", SourceArn=source)  # back to the source queue; but these messages have none
    world.settle()
    [task] = world.call("ListMessageMoveTasks", SourceArn=source)["Results"]
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "CouldNotDetermineMessageSource")


# Messages of a task, and metrics


def test_the_messages_that_a_task_has_in_flight() -> None:
    world = World()
    url = world.queue("q", VisibilityTimeout=10)
    send(world, url, "1", "2", "3")
    worker = ROOT.__class__(ACCOUNT, REGION, ROOT.principal, task_id="t1")
    first = world.call("ReceiveMessage", worker, QueueUrl=url, MaxNumberOfMessages=2)["Messages"]
    receive(world, url)

    def held() -> int:
        return world.store.queues.held_by("t1", round(world.clock.now_s() * 1000))

    assert held() == 2
    world.call("DeleteMessage", worker, QueueUrl=url, ReceiptHandle=first[0]["ReceiptHandle"])
    assert held() == 1
    world.advance(10)
    assert held() == 0


def test_metrics_count_events_since_the_last_report() -> None:
    world = World()
    url = world.queue("q")
    world.queue("idle")
    send(world, url, "1", "22")
    [message] = receive(world, url, 1)
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    world.advance(7)

    def activity() -> list[Any]:
        return world.run(lambda tx: tx.store.queues.activity(tx.now_s))

    [queue] = activity()
    assert (queue.region, queue.name, queue.visible, queue.in_flight, queue.delayed) == (REGION, "q", 1, 0, 0)
    assert (queue.sent, queue.sent_bytes, queue.received, queue.deleted, queue.empty_receives) == (2, 3, 1, 1, 0)
    assert queue.oldest_age_s == pytest.approx(7, abs=0.01)
    [message] = receive(world, url)
    receive(world, url)
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
    [queue] = activity()
    assert (queue.sent, queue.received, queue.deleted, queue.empty_receives, queue.oldest_age_s) == (0, 1, 1, 1, 0.0)
    world.advance(6 * 3600 + 1)
    assert activity() == []
    world.store.queues.counters.rebuild()
    assert [queue.name for queue in activity()] == ["q", "idle"], "after a start: an alarm may wait for an empty queue"
    world.advance(6 * 3600 + 1)
    assert activity() == []


def test_the_number_of_messages_in_flight_is_bounded() -> None:
    world = World()
    url = world.queue("q", VisibilityTimeout=10)
    send(world, url, "1", "2", "3")
    [held] = receive(world, url, 1)
    world.run(lambda tx: tx.store.execute(  # as if other consumers had received a large number
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?) "
        "INSERT INTO place (pile, id, visible_ms, receives) SELECT pile, id - n, visible_ms + 60000, 1 FROM numbers, "
        "(SELECT * FROM place WHERE receives = 1)",
        (IN_FLIGHT_MAX - 1,),
    ))  # fmt: skip
    world.store.queues.counters.rebuild()
    assert world.counts(url) == (2, IN_FLIGHT_MAX, 0)
    with pytest.raises(ApiError) as refusal:
        receive(world, url)
    assert (refusal.value.code, refusal.value.status) == ("OverLimit", 403)
    polls = [world.ask("ReceiveMessage", QueueUrl=url, WaitTimeSeconds=20) for _ in range(2)]
    assert [poll.answer for poll in polls] == [None, None]
    world.call("DeleteMessage", QueueUrl=url, ReceiptHandle=held["ReceiptHandle"])
    assert (polls[0].bodies, polls[1].answer) == (["2"], None)
