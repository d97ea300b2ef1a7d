"""Tasks that are chosen to stop, and the wait until they are idle.

A task is busy while it holds messages of SQS in flight, or is protected (UpdateTaskProtection). A task holds the messages that it
has received with its own credentials, until it deletes or returns them, or their visibility timeout ends. A scale-in, a rollout and
the end of an instance do not stop a busy task at once. They mark the task as leaving in the transaction of the decision. From then
on its ReceiveMessage calls return no messages, so it becomes idle. It stops when it is idle, or `busy_wait_s` (model/settings.py)
after the decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from time import gmtime, strftime
from typing import Any

from msgspec import Struct

from corral.core.transactions import Tx
from corral.model.task import TaskState
from corral.store import Store
from corral.store.messages import HeldMessages

NAMED_MAX = 3  # the maximum number of tasks that `named` describes


class BusyTask(Struct, frozen=True):
    id: str
    held: tuple[HeldMessages, ...]
    protected_until_s: float | None  # None: the task is not protected

    @property
    def idle_at_s(self) -> float:
        """When the task becomes idle if nothing changes: its visibility timeouts and its protection have ended."""
        return max([each.until_ms / 1000 for each in self.held] + [self.protected_until_s or 0.0])

    def __str__(self) -> str:
        reasons = [f"holds {_messages(each.messages)} of {each.queue}" for each in self.held]
        if self.protected_until_s is not None:
            reasons.append(f"is protected until {strftime('%Y-%m-%dT%H:%M:%SZ', gmtime(self.protected_until_s))}")
        return f"task {self.id}, which {' and '.join(reasons)}"


def _messages(count: int) -> str:
    return f"{count} message{'s' * (count != 1)}"


def named(busy: Sequence[BusyTask]) -> str:
    """Return the tasks and why they are busy, as a part of a sentence."""
    more = [f"{len(busy) - NAMED_MAX} more tasks"] if len(busy) > NAMED_MAX else []
    return "; ".join([*map(str, busy[:NAMED_MAX]), *more])


def busy_of(tx: Tx[Store], task_ids: Iterable[str]) -> list[BusyTask]:
    """Return the tasks that are busy now. A task that is already stopping is not busy."""
    busy = sorted(tx.store.tasks.leaving.busy_among(task_ids, tx.now_s))
    held = tx.store.queues.held_by_each(busy, round(tx.now_s * 1000))
    found = []
    for task_id in busy:
        task = tx.store.tasks.get(task_id)
        until_s = task.details.get("protectedUntil", 0.0) if task is not None else 0.0
        found.append(BusyTask(task_id, tuple(held.get(task_id, ())), until_s if until_s > tx.now_s else None))
    return found


def busy_on(tx: Tx[Store], instance_id: str) -> list[BusyTask]:
    return busy_of(tx, [task.id for task in tx.store.tasks.on(instance_id)])


def still_awaited(tx: Tx[Store], chosen: Mapping[str, float]) -> tuple[list[BusyTask], float | None]:
    """Return the chosen tasks to wait for, and when to check again (None: never). `chosen` has the time of each choice."""
    if not tx.settings.scaling.busy_wait_s:
        return [], None
    busy = [each for each in busy_of(tx, chosen) if tx.now_s < chosen[each.id] + tx.settings.scaling.busy_wait_s]
    again_s = min((min(each.idle_at_s, chosen[each.id] + tx.settings.scaling.busy_wait_s) for each in busy), default=None)
    return busy, again_s


def receives_nothing(tx: Tx[Store], task_id: str) -> bool:
    """Whether a task is leaving or stopping, so that it must not receive further messages."""
    if task_id in tx.store.tasks.leaving:
        return True
    task = tx.store.tasks.get(task_id)
    return task is not None and task.desired is TaskState.STOPPED


def choose(tx: Tx[Store], task_ids: Iterable[str], key: str) -> None:
    """Mark tasks as leaving. The reconciler with this key stops them. It runs again when one of the tasks is idle."""
    chosen = tx.store.tasks.leaving.chosen_by(key)
    for task_id in task_ids:
        if task_id not in chosen:
            tx.store.tasks.leaving.add(task_id, key, tx.now_s)


def withdraw(tx: Tx[Store], task_ids: Iterable[str], key: str) -> None:
    """Undo `choose`, because the tasks do not have to stop. Their waiting long polls can receive messages again."""
    for task_id in task_ids:
        tx.store.tasks.leaving.drop(task_id, key)
        tx.changed(wait_key(task_id))


def wait_key(task_id: str) -> str:
    """The key that long polls of a leaving task wait for."""
    return f"leaving:{task_id}"


def messages_gone(tx: Tx[Store], task_ids: Iterable[str]) -> None:
    """Run the reconcilers that chose a leaving task which no longer holds messages.

    The callers have deleted messages of these tasks.
    """
    for task_id in task_ids:
        if task_id in tx.store.tasks.leaving and not tx.store.queues.held_by(task_id, round(tx.now_s * 1000)):
            mark_leaving(tx, task_id)


def mark_leaving(tx: Tx[Any], task_id: str) -> None:
    """Run the reconcilers that chose a task, because the task or its messages have changed."""
    for key in tx.store.tasks.leaving.keys_of(task_id):
        tx.mark(key)
