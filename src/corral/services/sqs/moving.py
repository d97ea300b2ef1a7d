"""Message move tasks: dead letters go back to the queues from which they came, or to another one."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import replace
from typing import Any

import orjson

from corral.core import Tx
from corral.model.queue import Draft, MoveTask, Queue
from corral.services.caller import Caller
from corral.services.sqs.delivery import put_all
from corral.services.sqs.naming import (
    InvalidParameterValue,
    ResourceNotFoundException,
    UnsupportedOperation,
    now_ms,
    queue_with_arn,
    wakes,
)
from corral.store import Store

MOVED_AT_ONCE = 100  # about 5 ms of work; the rest follows in the next batch
RUNNING = "RUNNING"


def start_message_move_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    source = _queue(tx, params["SourceArn"], "SourceArn")
    if not tx.store.queues.dead_letter_sources(source.region, params["SourceArn"], "", 1):
        raise InvalidParameterValue("Source queue must be configured as a Dead Letter Queue.")
    target = _queue(tx, params["DestinationArn"], "DestinationArn") if "DestinationArn" in params else None
    if target is not None and target.is_fifo != source.is_fifo:
        raise InvalidParameterValue("Source queue and destination queue must be of the same type, standard or FIFO.")
    if target is not None and target.id == source.id:
        raise InvalidParameterValue("Source queue and destination queue cannot be the same.")
    per_s = params.get("MaxNumberOfMessagesPerSecond")
    latest = tx.store.queues.move_tasks(source, 1)
    if latest and latest[0].status == RUNNING:
        raise InvalidParameterValue(
            "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
        )
    counts = tx.store.queues.counts(source, now_ms(tx))
    task = MoveTask(
        id=tx.ids.uuid(),
        source=source.id,
        source_arn=params["SourceArn"],
        destination_arn=params.get("DestinationArn"),
        per_s=per_s,
        status=RUNNING,
        to_move=counts.visible,
        moved=0,
        started_ms=now_ms(tx),
        failure=None,
    )
    tx.store.queues.add_move_task(task)
    tx.due(f"moves:{task.id}", tx.now_s)
    return {"TaskHandle": _handle(task)}


def cancel_message_move_task(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    try:
        named = orjson.loads(urlsafe_b64decode(params["TaskHandle"].encode()))
        task_id, source_arn = str(named["taskId"]), str(named["sourceArn"])
    except (ValueError, KeyError, TypeError):
        raise InvalidParameterValue("Value for parameter TaskHandle is invalid.") from None
    _queue(tx, source_arn, "SourceArn")
    task = tx.store.queues.move_task(task_id)
    if task is None:
        raise ResourceNotFoundException("Task does not exist.")
    if task.status != RUNNING:
        raise UnsupportedOperation(f"Only a task that is {RUNNING} can be cancelled; this one is {task.status}.")
    tx.store.queues.change_move_task(replace(task, status="CANCELLED"))
    return {"ApproximateNumberOfMessagesMoved": task.moved}


def list_message_move_tasks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    source, limit = _queue(tx, params["SourceArn"], "SourceArn"), params.get("MaxResults", 1)
    tasks = tx.store.queues.move_tasks(source, limit)
    return {"Results": [_shown(task) for task in tasks]} if tasks else {}


def move_messages(tx: Tx[Store], task_id: str) -> None:
    """Move some of a task's messages, as many as its rate allows by now, and come back for the rest."""
    store, task = tx.store.queues, tx.store.queues.move_task(task_id)
    if task is None or task.status != RUNNING:
        return
    source = store.queue_numbered(task.source)
    assert source is not None, "a deleted queue takes its tasks with it"
    allowed = MOVED_AT_ONCE
    if task.per_s is not None:
        elapsed_s = max(0.0, tx.now_s - task.started_ms / 1000)
        allowed = min(allowed, int(elapsed_s * task.per_s) + 1 - task.moved)
    moved, failure = _move_some(tx, source, task, allowed) if allowed > 0 else (0, None)
    task = replace(task, moved=task.moved + moved)
    if failure is not None:
        store.change_move_task(replace(task, status="FAILED", failure=failure))
    elif allowed > 0 and moved == 0:
        store.change_move_task(replace(task, status="COMPLETED"))
    else:
        store.change_move_task(task)
        next_s = tx.now_s if task.per_s is None else task.started_ms / 1000 + task.moved / task.per_s
        tx.due(f"moves:{task.id}", max(next_s, tx.now_s))


def _move_some(tx: Tx[Store], source: Queue, task: MoveTask, limit: int) -> tuple[int, str | None]:
    """How many, and why not more if something is wrong. A moved message is a new one, with a new id and age."""
    store, at_ms = tx.store.queues, now_ms(tx)
    if source.is_fifo:
        groups = store.ready_groups(source, limit, at_ms)
        found = store.heads(source, groups[0], limit, at_ms) if groups else []
    else:
        found = store.candidates(source, limit, at_ms)
    for moved, message in enumerate(found):
        arn = task.destination_arn or message.source_arn
        if arn is None:
            return moved, "CouldNotDetermineMessageSource"
        target = queue_with_arn(tx, arn)
        if target is None or target.is_fifo != source.is_fifo:
            return moved, "AWS.SimpleQueueService.NonExistentQueue"
        for group in store.drop(source.pile, [message.id], at_ms):
            store.settle_group(source.pile, group, at_ms)
        draft = Draft(
            message_id=tx.ids.uuid(),
            body=message.body,
            bytes=message.bytes,
            sender=message.sender,
            group_id=message.group_id,
            deduplication_id=message.deduplication_id,
            trace=message.trace,
            attributes=message.attributes,
        )
        put_all(tx, target, [draft], store.new_ids(tx.now_s, 1))
    if found:
        tx.changed(wakes(source))
    return len(found), None


def _queue(tx: Tx[Store], arn: str, parameter: str) -> Queue:
    queue = queue_with_arn(tx, arn)
    if queue is None:
        raise ResourceNotFoundException(f"The resource that you specified for the {parameter} parameter doesn't exist.")
    return queue


def _handle(task: MoveTask) -> str:
    return urlsafe_b64encode(orjson.dumps({"taskId": task.id, "sourceArn": task.source_arn})).decode()


def _shown(task: MoveTask) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "TaskHandle": _handle(task) if task.status == RUNNING else None,
        "Status": task.status,
        "SourceArn": task.source_arn,
        "DestinationArn": task.destination_arn,
        "MaxNumberOfMessagesPerSecond": task.per_s,
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "FailureReason": task.failure,
        "StartedTimestamp": task.started_ms,
    }
    return {name: value for name, value in shown.items() if value is not None}
