"""Tasks in the task queue: tasks whose queue options (`model/queue_options.py`) must be known after their launch.

A task in the task queue gets a claim only when nothing holds the task back. Four things can hold it back: the tag `corral:hold`, a
start time, tasks and arrays that it waits for, and the limit of its array. A chain is a task and the tasks that replace it after
failures (requeues). A task that waits for a task of a chain waits for the end of the whole chain. The id of a chain is the id of
its first task.
"""

from __future__ import annotations

from enum import StrEnum

from corral.model.principal import ROOT
from corral.model.queue_options import ARRAY_PREFIX
from corral.model.task import Changeable


class QueueState(StrEnum):
    WAITING = "waiting"  # it is held, its time has not come, or tasks that it waits for have not ended
    READY = "ready"  # only the limit of its array holds it back
    ADMITTED = "admitted"  # it has got its claim, so it waits for capacity or runs


class QueuedTask(Changeable, frozen=True):
    """A task in the task queue. It leaves the queue when it has ended."""

    task_id: str
    chain: str  # the id of the first task of the chain
    state: QueueState
    held: bool = False
    not_before_s: float | None = None  # None: no time, or the time has passed
    unmet: int = 0  # the number of tasks and arrays that it still waits for
    array: str = ""  # the key of its array; empty: none
    index: int = 0  # the index in its array
    requeues: int = 0  # how many more tasks may follow in the chain
    attempt: int = 0  # the number of earlier tasks in the chain
    roams: bool = False  # its claim can move to another pool of its cluster


class TaskArray(Changeable, frozen=True):
    """An array: tasks that were launched with the same array id. A member is one task, or a chain of requeued tasks."""

    key: str  # REGION/ID of the root user, or REGION/user/NAME/ID
    limit: int  # how many members can be admitted at the same time; 0: no limit
    waiting: int = 0  # members that are WAITING or READY
    admitted: int = 0
    succeeded: int = 0
    failed: int = 0  # members that ended in any other way

    @property
    def id(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def size(self) -> int:
        return self.waiting + self.admitted + self.succeeded + self.failed

    @property
    def has_ended(self) -> bool:
        return self.waiting == 0 and self.admitted == 0

    @property
    def has_room(self) -> bool:
        """Whether another member can be admitted."""
        return self.limit == 0 or self.admitted < self.limit


class EndNotice(Changeable, frozen=True):
    """The end of a chain or an array, stored until all tasks that wait for this end have been informed.

    A notice can also report the failure of a member before its array has ended.
    """

    needed: str  # the id of a chain, or array:KEY
    succeeded: bool
    final: bool  # False: a member of an array has failed, and other members have not ended
    reason: str  # the text about the task that failed; empty if none failed


def array_key(region: str, owner: str, array_id: str) -> str:
    """Return the key of an array: ids of arrays are unique in a region, among the arrays of an owner."""
    return f"{region}/{array_id}" if owner == ROOT else f"{region}/{owner}/{array_id}"


def needed_array(key: str) -> str:
    """Return the name by which tasks that wait for an array refer to it: array:KEY."""
    return f"{ARRAY_PREFIX}{key}"
