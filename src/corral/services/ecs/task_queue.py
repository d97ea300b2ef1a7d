"""The task queue: unfinished tasks that are held back, members of arrays, and tasks that Corral may replace after a failure.

A task that is held back gets no claim yet. A task is held back while the user holds it, while its start time has not come, while a
task or an array that it needs has not ended, or while its array already runs as many members as it allows. Queue options are tags
of a task (`model/queue_options.py`). Only RunTask reads them: tasks of services and of Batch jobs never enter the task queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.tasks.task_queue import next_state, outcome, recorded_outcome
from corral.fleet.limits import limited_time_s, why_refused
from corral.fleet.shares import PRIORITIES
from corral.model.ecs_service import STARTED_BY as STARTED_BY_SERVICE
from corral.model.job import STARTED_BY as STARTED_BY_BATCH
from corral.model.placement import TASK, Rank, claim_rank
from corral.model.queue_options import (
    AFTER_ANY_TAG,
    AFTER_TAG,
    ARRAY_PREFIX,
    ARRAY_TAG,
    HOLD_TAG,
    NO_OPTIONS,
    NOT_BEFORE_TAG,
    PREFIX,
    PRIORITY_TAG,
    REQUEUE_TAG,
    REQUEUED_AS_TAG,
    QueueOptionError,
    QueueOptions,
    is_fixed_at_launch,
    queue_options,
)
from corral.model.task import INDEX_VARIABLE, Task, TaskState
from corral.model.task_queue import QueuedTask, QueueState, TaskArray, array_key, needed_array
from corral.services.ecs.errors import InvalidParameterException
from corral.services.ecs.queue_reasons import name_of_run
from corral.services.ecs.task_progress import mark_provider
from corral.services.ecs.task_spec import FENCE_TAG, TIME_LIMIT_TAG, fence_s, longest_time_of, spec_of, time_limit_s
from corral.store import Store

TIMES = "start-times:"  # the key of the reconciler that gives claims to tasks whose start time has come
ARRAYS = "old-arrays:"  # the key of the reconciler that deletes old arrays
REQUEUED_AS = "requeuedAs"  # the member of Task.details with the id of the task that replaces a failed task
# The member of Task.details of a task that replaces one which was stopped for another claim: when the first of them was requested.
FIRST_SUBMITTED = "firstSubmittedAt"
ARRAY_VARIABLE = "CORRAL_ARRAY_ID"

Tag = Mapping[str, str]


def read_options(tags: Iterable[Tag], count: int = 1) -> QueueOptions:
    """Read the queue options from the tags of a task, and convert errors to those of ECS."""
    try:
        return queue_options(tags, count)
    except QueueOptionError as error:
        raise InvalidParameterException(str(error)) from error


def check_start_options(tags: Iterable[Tag]) -> None:
    """Refuse queue options in StartTask, which starts tasks at once and does not let them wait."""
    if read_options(tags) is not NO_OPTIONS:
        raise InvalidParameterException(
            f"The tags have queue options ({PREFIX}...), but StartTask starts tasks at once: use RunTask, or remove these tags."
        )


def array_reconciler(key: str) -> str:
    return f"task-array:{key}"


def start_time_s(tx: Tx[Store], options: QueueOptions) -> float | None:
    """Return the start time in the tags of a task as a steady time. In the tags it is a wall time."""
    return tx.steps.steady_s(options.not_before_s) if options.not_before_s is not None else None


# Launch


class LaunchQueue(Struct):
    options: QueueOptions
    needs: dict[str, bool]  # id of an unfinished chain, or array:KEY of an array → whether the tasks also start if it fails
    not_before_s: float | None
    array: TaskArray | None  # its counts include the tasks of this request that have been added so far

    def entry(self, at: int, now_s: float, *, roams: bool) -> QueuedTask:
        """Return the queue entry of the task with the index `at` in the request. The task has no id yet."""
        options, array = self.options, self.array
        queued = QueuedTask(
            task_id="",
            chain="",
            state=QueueState.WAITING,
            held=options.held,
            not_before_s=self.not_before_s,
            unmet=len(self.needs),
            array=array.key if array is not None else "",
            index=options.array.index(at) if options.array is not None else 0,
            requeues=options.requeues,
            roams=roams,
        )
        return queued.but(state=next_state(queued, array, now_s))

    def details(self, at: int, details: dict[str, Any]) -> dict[str, Any]:
        """Return the details of a task. The member of an array gets its index, as a tag and as a variable."""
        members = self.options.array
        if members is None:
            return details
        tags = [{"key": ARRAY_TAG, "value": members.tag_value(at)} if tag["key"] == ARRAY_TAG else tag for tag in details["tags"]]
        variables = {INDEX_VARIABLE: str(members.index(at)), ARRAY_VARIABLE: members.id}
        return {**details, "tags": tags, "jobEnvironment": variables}

    def add(self, tx: Tx[Store], entry: QueuedTask, task_id: str) -> None:
        """Store a launched task in the queue, if it is held back, is a member of an array, or may be replaced after a failure."""
        if entry.state is QueueState.ADMITTED and not entry.array and not entry.requeues:
            return
        tx.store.task_queue.add(entry.but(task_id=task_id, chain=task_id), self.needs.items())
        if self.array is not None:
            admitted = entry.state is QueueState.ADMITTED
            self.array = self.array.but(admitted=self.array.admitted + admitted, waiting=self.array.waiting + (not admitted))

    def close(self, tx: Tx[Store]) -> None:
        """Write the counts of the array, after all tasks of the request have been added."""
        if self.array is not None:
            tx.store.task_queue.put_array(self.array, tx.now_s)
        if self.not_before_s is not None:
            tx.due(TIMES, self.not_before_s)


def open_queue(tx: Tx[Store], region: str, owner: str, options: QueueOptions, *, may_wait: bool) -> LaunchQueue | None:
    """Check the options of a request, and find the tasks and arrays for which its tasks wait. Return None without options.

    Raise an error if such a task or array is unknown, or if it must succeed but has failed.
    """
    if options is NO_OPTIONS:
        return None
    if not may_wait and (options.waits or (options.array is not None and options.array.limit)):
        raise InvalidParameterException(
            f"The tags {HOLD_TAG}, {NOT_BEFORE_TAG}, {AFTER_TAG}, {AFTER_ANY_TAG} and a limit in {ARRAY_TAG} let tasks wait, but "
            "tasks with the launch type EC2 fail if they cannot start at once: leave launchType out."
        )
    needs: dict[str, bool] = {}
    for given, any_end in [*((each, False) for each in options.after), *((each, True) for each in options.after_any)]:
        find = _unfinished_array if given.startswith(ARRAY_PREFIX) else _unfinished_chain
        needed = find(tx, region, owner, given, any_end)
        if needed is not None:
            needs[needed] = needs.get(needed, True) and any_end
    not_before_s = start_time_s(tx, options)
    return LaunchQueue(
        options=options,
        needs=needs,
        not_before_s=not_before_s if not_before_s is not None and not_before_s > tx.now_s else None,
        array=_array(tx, region, owner, options, needs),
    )


def _array(tx: Tx[Store], region: str, owner: str, options: QueueOptions, needs: Mapping[str, bool]) -> TaskArray | None:
    """Return the array to which the tasks of a request belong, or None.

    Raise an error if tasks wait for the end of this array, because it then gets no more members, or if it has another limit.
    """
    if options.array is None:
        return None
    key, limit = array_key(region, owner, options.array.id), options.array.limit
    array = tx.store.task_queue.array(key) or TaskArray(key, limit)
    if needed_array(key) in needs or tx.store.task_queue.is_needed(needed_array(key)):
        raise InvalidParameterException(
            f"The array {array.id} gets no more tasks, because tasks wait for its end: use the id of a new array in {ARRAY_TAG}."
        )
    if array.limit != limit:
        raise InvalidParameterException(
            f"The tag {ARRAY_TAG} has the limit {limit}, but the array {array.id} was created with the limit {array.limit}: use "
            "the same limit, or the id of a new array."
        )
    return array


def _unfinished_array(tx: Tx[Store], region: str, owner: str, given: str, any_end: bool) -> str | None:
    """Return array:KEY of an array in the dependencies. Return None if the array has ended.

    Raise an error if the array is unknown. Unless `any_end`, also raise an error if a task of the array has failed.
    """
    array_id = given.removeprefix(ARRAY_PREFIX)
    array = tx.store.task_queue.array(array_key(region, owner, array_id))
    if array is None:
        raise InvalidParameterException(
            f"The tag {_tag(any_end)} names the array '{array_id}', which Corral does not know: launch the tasks of the array "
            f"first, with the tag {ARRAY_TAG}."
        )
    if array.failed and not any_end:
        raise _already_failed(
            f"the array {array_id}", f"has {array.failed} task{'s' * (array.failed != 1)} that did not end with exit code 0"
        )
    return None if array.has_ended else needed_array(array.key)


def _unfinished_chain(tx: Tx[Store], region: str, owner: str, task_id: str, any_end: bool) -> str | None:
    """Return the id of a task's chain. Return None if the chain has ended. Unless `any_end`, raise an error if it has failed.

    If a task is only in the history, one of its tags names the task that replaced it. Users can also set this tag, so two tasks can
    name each other. Therefore each task is read only once.
    """
    following: str | None = task_id
    seen = set[str]()
    while following is not None and following not in seen:
        seen.add(following)
        last, queued, task = following, tx.store.task_queue.get(following), tx.store.tasks.get(following)
        if task is None:
            recorded = tx.store.tasks.history.get(following)
            if recorded is None or recorded.region != region:
                raise _unknown_task(task_id, any_end)
            tags = {tag["key"]: tag["value"] for tag in recorded.record.tags}
            ended, following = recorded_outcome(recorded.record.stop_code, recorded.failed), tags.get(REQUEUED_AS_TAG)
        elif task.region != region:
            raise _unknown_task(task_id, any_end)
        elif queued is not None:
            return queued.chain
        elif task.state is not TaskState.STOPPED:
            return task.id
        else:
            ended, following = outcome(task), task.details.get(REQUEUED_AS)
    if not ended.succeeded and not any_end:
        raise _already_failed(name_of_run(task) if task is not None else f"the task {last}", ended.text)
    return None


def _unknown_task(task_id: str, any_end: bool) -> ApiError:
    return InvalidParameterException(
        f"The tag {_tag(any_end)} names the task '{task_id}', which Corral does not know: give the id of a task that has not "
        "ended, or that `corral history` shows."
    )


def _tag(any_end: bool) -> str:
    return AFTER_ANY_TAG if any_end else AFTER_TAG


def _already_failed(name: str, how: str) -> ApiError:
    return InvalidParameterException(
        f"The task would never start: {name}, which the tag {AFTER_TAG} names, {how}. Use the tag {AFTER_ANY_TAG} to start "
        "even after a failure, or remove the name."
    )


# Changes of a task in the queue


def settle(tx: Tx[Store], queued: QueuedTask) -> QueueState:
    """Write a task of the queue, and move it to the state that it should have now: add its claim, or withdraw the claim.

    `queued.state` is the stored state. The other members of `queued` may have changed. Return the new state.
    """
    array = tx.store.task_queue.array(queued.array) if queued.array else None
    if queued.not_before_s is not None and queued.not_before_s <= tx.now_s:
        queued = queued.but(not_before_s=None)
    if queued.not_before_s is not None:
        tx.due(TIMES, queued.not_before_s)
    state = next_state(queued, array, tx.now_s)
    moves = QueueState.ADMITTED in (queued.state, state) and queued.state is not state
    task = tx.store.tasks.get(queued.task_id) if moves else None
    if moves and (task is None or task.state is not TaskState.PROVISIONING):
        state = queued.state  # the task has just ended, and its reconciler removes it from the queue
    tx.store.task_queue.change(queued.but(state=state))
    if task is None or state is queued.state:
        return state
    admitted = state is QueueState.ADMITTED
    if array is not None:
        change = 1 if admitted else -1
        array = array.but(admitted=array.admitted + change, waiting=array.waiting - change)
        tx.store.task_queue.put_array(array, tx.now_s)
    if admitted and task.pause is not None and task.pause.turn_s:
        tx.store.tasks.turn_lines.join(task.id, task.pool, task.owner)
    elif admitted:
        longest_s = longest_time_of(task, spec_of(tx, task))
        tx.store.tasks.enqueue(task, rank_of(task, _priority(task)), roams=queued.roams, longest_s=longest_s)
        if tx.store.limits.of:
            tx.mark(PRIORITIES)
    else:
        tx.store.tasks.forget_pause(task.id)  # it does not wait for a turn now
        tx.store.claims.remove(TASK, task.id)
        if array is not None:
            tx.mark(array_reconciler(array.key))
    tx.store.tasks.raise_version(task)
    tx.mark(f"pool:{task.pool}")
    mark_provider(tx, task)
    tx.changed(f"task:{task.id}")
    return state


def rank_of(task: Task, priority: int) -> Rank:
    """Return the rank of a task's claim. The members of an array with the same age are served in the order of their indexes."""
    index = task.array_index
    since_s = float(task.details.get(FIRST_SUBMITTED, task.created_at_s))
    return claim_rank(since_s, priority, order=() if index is None else (index,))


def _priority(task: Task) -> int:
    return queue_options(task.details.get("tags", ())).priority


def tags_changed(tx: Tx[Store], task: Task, before: Iterable[Tag]) -> None:
    """Apply changed queue options to a task that has not ended. `before` has the earlier tags."""
    queued = tx.store.task_queue.get(task.id)
    is_started_by_corral = (task.started_by or "").startswith((STARTED_BY_SERVICE, STARTED_BY_BATCH))
    if task.state is TaskState.STOPPED or (is_started_by_corral and queued is None):  # RunTask launched the tasks in the queue
        return
    old, new = ({tag["key"]: tag["value"] for tag in tags} for tags in (before, task.details.get("tags", ())))
    changed = {key for key in old.keys() | new.keys() if key.startswith(PREFIX) and old.get(key) != new.get(key)}
    if not changed:
        return
    for key in sorted(changed):
        if is_fixed_at_launch(key):
            raise InvalidParameterException(
                f"The tag {key} of a task cannot be changed before the task has ended: stop the task, and run another one."
            )
    options = read_options(task.details["tags"])
    if changed & {TIME_LIMIT_TAG, PRIORITY_TAG}:
        why = why_refused(tx, task.owner, task.demand, time_limit_s(task.details["tags"]), options.priority)
        if why is not None:
            raise InvalidParameterException(why)
    requeues = options.requeues if REQUEUE_TAG in changed or queued is None else queued.requeues
    if task.state is not TaskState.PROVISIONING and TIME_LIMIT_TAG in changed:
        raise InvalidParameterException(f"The tag {TIME_LIMIT_TAG} of a task that has started cannot be changed: it has no effect.")
    if FENCE_TAG in changed:
        if task.state is not TaskState.PROVISIONING:
            raise InvalidParameterException(f"The tag {FENCE_TAG} of a task that has started cannot be changed: it has no effect.")
        fence_s(task.details["tags"])  # raises an error if the value is not valid
    if task.state is not TaskState.PROVISIONING:  # the other options count again only if the task is requeued
        if queued is not None:
            tx.store.task_queue.change(queued.but(requeues=requeues))
        elif requeues:
            tx.store.task_queue.add(QueuedTask(task.id, task.id, QueueState.ADMITTED, requeues=requeues))
        return
    if TIME_LIMIT_TAG in changed:
        task = _with_time_limit(tx, task)
    after = queued or QueuedTask(task.id, task.id, QueueState.ADMITTED, roams=tx.store.claims.roams(TASK, task.id))
    if NOT_BEFORE_TAG in changed:
        after = after.but(not_before_s=start_time_s(tx, options))
    after = after.but(held=options.held, requeues=requeues)
    if queued is not None or requeues or next_state(after, None, tx.now_s) is QueueState.WAITING:
        if queued is None:
            tx.store.task_queue.add(after.but(held=False))
        settle(tx, after)
    claim, rank = tx.store.claims.get(TASK, task.id), rank_of(task, _priority(task))
    if claim is not None and claim.rank != rank:
        tx.store.claims.change(claim, claim._replace(rank=rank))
        tx.mark(f"pool:{task.pool}")


def _with_time_limit(tx: Tx[Store], task: Task) -> Task:
    """Apply the changed time limit in the tags of a task that waits."""
    spec, limit_s = spec_of(tx, task), limited_time_s(tx, task.owner, time_limit_s(task.details["tags"]))
    after = task.but(time_limit_s=limit_s, plain=spec.is_plain and limit_s is None)
    tx.mark(f"pool:{task.pool}")  # with a shorter time limit, it may start before a large task that waits
    return tx.store.tasks.change_waiting(task, after, longest_time_of(after, spec))


def requeue_once(tx: Tx[Store], task: Task) -> None:
    """Replace a task after its end, once more than its tags say. It is about to be stopped for a claim with a higher priority."""
    if (task.started_by or "").startswith((STARTED_BY_SERVICE, STARTED_BY_BATCH)):
        return  # its service or its job starts another one
    queued = tx.store.task_queue.get(task.id)
    if queued is None:
        tx.store.task_queue.add(QueuedTask(task.id, task.id, QueueState.ADMITTED, requeues=1))
    else:
        tx.store.task_queue.change(queued.but(requeues=queued.requeues + 1))


def forbid_requeue(tx: Tx[Store], task: Task) -> None:
    """Do not replace a task after its end. The server calls this before it sends a user's signal to the program of the task."""
    queued = tx.store.task_queue.get(task.id)
    if queued is not None and queued.requeues:
        tx.store.task_queue.change(queued.but(requeues=0))
