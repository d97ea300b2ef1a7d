"""Message move tasks: move dead letters back to their source queues, or to another queue."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import orjson
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.json_documents import read_json
from corral.model.queue import MoveTask, Queue
from corral.services.sqs.errors import InvalidParameterValue, ResourceNotFoundException, UnsupportedOperation
from corral.services.sqs.queue_names import now_ms, queue_with_arn, wall_ms
from corral.store import Store

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
    task = task_with_handle(tx, params["TaskHandle"])
    if task.status != RUNNING:
        raise UnsupportedOperation(f"Only a task with status {RUNNING} can be cancelled: this task has status {task.status}.")
    tx.store.queues.change_move_task(replace(task, status="CANCELLED"))
    return {"ApproximateNumberOfMessagesMoved": task.moved}


def list_message_move_tasks(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    source, limit = _queue(tx, params["SourceArn"], "SourceArn"), params.get("MaxResults", 1)
    tasks = tx.store.queues.move_tasks(source, limit)
    return {"Results": [_description(tx, task) for task in tasks]} if tasks else {}


def task_with_handle(tx: Tx[Store], given: str) -> MoveTask:
    try:
        handle = read_json(urlsafe_b64decode(given.encode()))
        task_id, source_arn = str(handle["taskId"]), str(handle["sourceArn"])
    except (ValueError, KeyError, TypeError):
        raise InvalidParameterValue("Value for parameter TaskHandle is invalid.") from None
    _queue(tx, source_arn, "SourceArn")
    task = tx.store.queues.move_task(task_id)
    if task is None or task.source_arn != source_arn:
        raise ResourceNotFoundException("Task does not exist.")
    return task


def _queue(tx: Tx[Store], arn: str, parameter: str) -> Queue:
    queue = queue_with_arn(tx, arn)
    if queue is None:
        raise ResourceNotFoundException(f"The resource that you specified for the {parameter} parameter doesn't exist.")
    return queue


def _handle(task: MoveTask) -> str:
    return urlsafe_b64encode(orjson.dumps({"taskId": task.id, "sourceArn": task.source_arn})).decode()


def _description(tx: Tx[Store], task: MoveTask) -> dict[str, Any]:
    members: dict[str, Any] = {
        "TaskHandle": _handle(task) if task.status == RUNNING else None,
        "Status": task.status,
        "SourceArn": task.source_arn,
        "DestinationArn": task.destination_arn,
        "MaxNumberOfMessagesPerSecond": task.per_s,
        "ApproximateNumberOfMessagesMoved": task.moved,
        "ApproximateNumberOfMessagesToMove": task.to_move,
        "FailureReason": task.failure,
        "StartedTimestamp": int(wall_ms(tx.steps, task.started_ms)),
    }
    return {name: value for name, value in members.items() if value is not None}
