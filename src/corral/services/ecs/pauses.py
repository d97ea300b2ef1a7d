"""Pauses of tasks: orders to hosts, their answers, and the way back.

A user begins a pause (`services/corral/pauses.py`), or the scheduler, because another claim takes the GPUs
(`reconcile/preemptions.py`). Then the host of the task moves the state of its processes out of the GPUs. The GPUs become free only
when the host has reported that every container is paused. A task that continues waits in line for its own GPUs, with a claim. The
record of a task (`model/pause.py`) has the number of the last order. The order is sent again after each hello of the host, so a
lost order or answer does no harm.
"""

from __future__ import annotations

from corral.core.transactions import Tx
from corral.fleet.shares import held_less
from corral.model.agent_protocol import PauseOrder
from corral.model.job import STARTED_BY as STARTED_BY_BATCH
from corral.model.pause import RETRY_FIRST_S, RETRY_MAX_S, Cause, Lends, Pause, PausePhase
from corral.model.placement import TASK, Claim, Placement, Rank, claim_rank
from corral.model.queue_options import queue_options
from corral.model.run import RunPause, RunState
from corral.model.task import Run, Task, TaskState
from corral.services.ecs.task_progress import host_of, mark_provider, mark_starter, place_waiting_task
from corral.services.ecs.task_queue import FIRST_SUBMITTED
from corral.store import Store

NOT_ALL = "other containers of the task could not be paused"


def why_not_pausable(tx: Tx[Store], task: Task) -> str | None:
    """Return why a task cannot be paused now. None: its host may try."""
    if task.state is not TaskState.RUNNING or task.desired is not TaskState.RUNNING:
        return f"it is {'stopping' if task.desired is TaskState.STOPPED else task.state.value}; only a RUNNING task can be paused"
    if any(run.gpu_memory_mib and run.gpu_ids for run in task.runs):
        return "it shares its GPU with other tasks; only tasks with whole GPUs can be paused"
    if "#" in (task.started_by or "") and (task.started_by or "").startswith(STARTED_BY_BATCH):
        return "it is a node of a multi-node job, whose other nodes would wait for it"
    if any(run.state is RunState.PENDING and not run.waits for run in task.runs):
        return "one of its containers is still starting"
    return None


def begin_pause(tx: Tx[Store], task: Task, cause: Cause, reason: str, claim: str = "") -> Task:
    """Order the host of a running task to pause it. The caller has checked `why_not_pausable`."""
    before = task.pause or Pause()
    gpu_ids = tuple(gpu_id for run in _running(task) for gpu_id in run.gpu_ids)
    pause = before.but(
        phase=PausePhase.PAUSING, number=before.number + 1, answers={}, cause=cause, reason=reason, claim=claim, since_s=tx.now_s,
        gpu_ids=gpu_ids, host_mib=0, why_not="", returns=False,
    )  # fmt: skip
    return _order(tx, task, pause)


def begin_return(tx: Tx[Store], task: Task) -> Task:
    """Let a paused task continue as soon as its GPUs are free. Its claim has the rank of its first launch."""
    assert task.pause is not None
    if task.pause.phase is not PausePhase.PAUSED or task.pause.returns:
        return task
    if not task.pause.gpu_ids:
        return _order(tx, task, _resuming(task.pause))
    task = tx.store.tasks.set_pause(task, task.pause.but(returns=True, why_not=""), tx.now_s)
    _wait_for_gpus(tx, task)
    return _tell(tx, task)


def stay_paused(tx: Tx[Store], task: Task, reason: str) -> Task:
    """Let a paused task no longer wait for its GPUs, until a user says that it continues."""
    assert task.pause is not None
    if task.pause.returns:
        tx.store.claims.remove(TASK, task.id)
        tx.mark(f"pool:{task.pool}")
    after = task.pause.but(returns=False, cause=Cause.USER, reason=reason)
    return _tell(tx, tx.store.tasks.set_pause(task, after, tx.now_s))


def grant(tx: Tx[Store], claim: Claim, placement: Placement) -> None:
    """Carry out the decision of the scheduler to grant the claim of a task, which starts or continues."""
    if claim.demand.own_gpus:
        _grant_return(tx, claim)
    else:
        place_waiting_task(tx, claim, placement)


def _grant_return(tx: Tx[Store], claim: Claim) -> None:
    """Lease the GPUs of a paused task again, and order its host to continue it."""
    task = tx.store.tasks.get(claim.id)
    assert task is not None and task.pause is not None, "a claim to return of a task that is not paused"
    tx.store.claims.remove(TASK, task.id)
    _order(tx, task, _resuming(task.pause))


def order_pauses_again(tx: Tx[Store], task: Task) -> None:
    """Send the last order for a task again, because its host has connected anew and may not have received it."""
    if task.pause is not None and task.pause.phase in (PausePhase.PAUSING, PausePhase.RESUMING):
        _send(tx, task, task.pause)


def apply_answers(tx: Tx[Store], task_id: str, answers: dict[str, RunPause]) -> None:
    """Apply the answers of a host to the last order (attempt id → answer), and go on when all containers have answered."""
    task = tx.store.tasks.get(task_id)
    if task is None or task.pause is None or task.pause.phase not in (PausePhase.PAUSING, PausePhase.RESUMING):
        return
    pause = before = task.pause
    for attempt_id, answer in answers.items():
        if answer.number == pause.number and attempt_id not in pause.answers:
            pause = _with_answer(pause, attempt_id, answer)
    living = _running(task)
    if task.desired is TaskState.STOPPED or not all(run.attempt_id in pause.answers for run in living):
        if pause is not before:
            tx.store.tasks.set_pause(task, pause, tx.now_s)
        return
    paused = [run for run in living if pause.answers[run.attempt_id]]
    if pause.phase is PausePhase.PAUSING:
        _out(tx, task, pause, paused, all_paused=len(paused) == len(living))
    else:
        _back(tx, task, pause, paused)


def _with_answer(pause: Pause, attempt_id: str, answer: RunPause) -> Pause:
    """Add the answer of one container. The containers of a task move at the same time, so the slowest one counts."""
    answers, is_first = {**pause.answers, attempt_id: answer.paused}, not pause.answers
    why_not = answer.why_not or pause.why_not
    if pause.phase is PausePhase.RESUMING:
        return pause.but(answers=answers, why_not=why_not, back_s=max(0.0 if is_first else pause.back_s, answer.took_s))
    moved_mib = -(-answer.moved_bytes // 2**20) if answer.paused else 0
    out_s = max(0.0 if is_first else pause.out_s, answer.took_s)
    return pause.but(answers=answers, why_not=why_not, out_s=out_s, host_mib=pause.host_mib + moved_mib)


def _out(tx: Tx[Store], task: Task, pause: Pause, paused: list[Run], *, all_paused: bool) -> None:
    """All containers have answered an order to pause them."""
    if not paused and not (all_paused and not pause.why_not):
        delay_s = min(RETRY_FIRST_S * 2.0**pause.failures, RETRY_MAX_S)
        failed = pause.but(phase=PausePhase.RUNNING, failures=pause.failures + 1, retry_at_s=tx.now_s + delay_s, host_mib=0)
        _tell(tx, tx.store.tasks.set_pause(task, failed, tx.now_s))
        tx.mark(f"pool:{task.pool}")  # another task may make room for the claim
    elif not all_paused:
        _order(tx, task, _resuming(pause).but(why_not=pause.why_not or NOT_ALL))
    else:
        out = pause.but(phase=PausePhase.PAUSED, pauses=pause.pauses + 1, failures=0)
        task = tx.store.tasks.set_pause(task, out, tx.now_s)
        tx.mark(f"pool:{task.pool}")
        held_less(tx)
        _tell(tx, task)  # the scheduler lets it return to the line, unless a user has paused it


def _back(tx: Tx[Store], task: Task, pause: Pause, paused: list[Run]) -> None:
    """All containers have answered an order to continue."""
    if not paused:
        after = pause.but(
            phase=PausePhase.RUNNING, resumed_at_s=tx.now_s, paused_s=pause.paused_s + max(0.0, tx.now_s - pause.since_s), claim=""
        )
        task = tx.store.tasks.set_pause(task, after, tx.now_s)
        tx.due(f"task:{task.id}", tx.now_s)  # its time limit counts again
        tx.mark(f"pool:{task.pool}")
        _tell(tx, task)
    elif len(paused) == len(_running(task)):
        out = pause.but(phase=PausePhase.PAUSED, returns=False, cause=Cause.USER)
        _tell(tx, tx.store.tasks.set_pause(task, out, tx.now_s))
        tx.mark(f"pool:{task.pool}")
        held_less(tx)
    else:  # pause the others again, so that the whole task is paused
        _order(tx, task, pause.but(phase=PausePhase.PAUSING, number=pause.number + 1, answers={}, cause=Cause.USER))


def _resuming(pause: Pause) -> Pause:
    return pause.but(phase=PausePhase.RESUMING, number=pause.number + 1, answers={}, returns=False, why_not="")


def _order(tx: Tx[Store], task: Task, pause: Pause) -> Task:
    task = tx.store.tasks.set_pause(task, pause, tx.now_s)
    _send(tx, task, pause)
    if not _running(task):
        apply_answers(tx, task.id, {})
    return _tell(tx, task)


def _send(tx: Tx[Store], task: Task, pause: Pause) -> None:
    host_id = host_of(tx, task)
    for run in _running(task):
        if run.attempt_id not in pause.answers:
            tx.order_once(host_id, PauseOrder(run.attempt_id, pause.number, pause.phase is PausePhase.PAUSING))


def _tell(tx: Tx[Store], task: Task) -> Task:
    tx.changed(f"task:{task.id}")
    mark_starter(tx, task)
    mark_provider(tx, task, task.instance_id)
    return task


def _running(task: Task) -> list[Run]:
    return [run for run in task.runs if run.state is RunState.RUNNING]


# The place in line of a task that returns


def _wait_for_gpus(tx: Tx[Store], task: Task) -> None:
    tx.store.claims.add(task.pool, Claim(_rank(tx, task), TASK, task.id, task.demand_to_return, None, task.owner))
    tx.mark(f"pool:{task.pool}")


def _rank(tx: Tx[Store], task: Task) -> Rank:
    """Return the rank of a task that returns: that of its first launch. A task whose turn is over begins to wait anew."""
    assert task.pause is not None
    if task.pause.cause is Cause.TURN:
        return claim_rank(tx.now_s, int(task.pause.priority[0]))
    index = task.array_index
    return claim_rank(first_submitted_s(tx, task), _priority(task), order=() if index is None else (index,))


def first_submitted_s(tx: Tx[Store], task: Task) -> float:
    """Return when a task was requested: its Batch job, or the first of the tasks that it replaces."""
    started_by = task.started_by or ""
    if started_by.startswith(STARTED_BY_BATCH):
        job = tx.store.jobs.get(started_by.removeprefix(STARTED_BY_BATCH).partition("#")[0])
        if job is not None:
            return job.created_at_s
    return float(task.details.get(FIRST_SUBMITTED, task.created_at_s))


def _priority(task: Task) -> int:
    if task.pause is not None and task.pause.lends is not Lends.NOT:
        return int(task.pause.priority[0])
    return queue_options(task.details.get("tags", ())).priority
