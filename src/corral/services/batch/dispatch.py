"""Dispatch of Batch jobs: launch the first job of a line when the scheduler finds room for it.

The scheduler (`reconcile/scheduler.py`) gives free capacity to claims. A job holds vCPUs and consumable resources from its dispatch
until the end of its attempt.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.placement.place import room_for_claim, spare_gpus
from corral.decide.shares import is_idle, use_after
from corral.decide.tasks.job_order import vcpus_of, weighted_vcpus
from corral.model.compute_environment import ComputeEnvironment, environment_key
from corral.model.job import Job, JobKind, JobState
from corral.model.job_line import Holding, WaitingLine
from corral.model.placement import Claim, Placement
from corral.model.task import Task
from corral.services.batch import job_progress
from corral.services.batch.consumable_resources import consume
from corral.services.batch.environments import find_environment
from corral.services.batch.job_launch import launch_request
from corral.services.batch.job_queues import JobQueue, find_queue
from corral.services.batch.line_claims import Offer, affected, affected_by_end, line_key, offers, refresh_lines, takes
from corral.services.batch.node_addresses import hosts_of_nodes
from corral.services.batch.scheduling_policies import fair_share
from corral.services.batch.waiting_jobs import mark_limits
from corral.services.ecs.launch import launch_placed
from corral.store import Store

# If a launch raises one of these errors, its job fails. Other errors, such as those of the database, undo the transaction.
REFUSALS = (ApiError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)


def grant(tx: Tx[Store], claim: Claim, placement: Placement, *, pool: str, fails_job: bool) -> None:
    """Dispatch the first job of a line: the scheduler has found a placement for the claim of the line in `pool`.

    The job leaves the line. If `fails_job` is True, a job whose launch is refused fails with the reason. If `fails_job` is False,
    this function raises the error instead, and the caller must undo all changes. This is faster, because the launch needs no
    savepoint of its own.
    """
    line = tx.store.job_lines.line_of(claim)
    pool, claim, placement = _preferred(tx, line, pool, claim, placement)
    queue = find_queue(tx, line.key.region, line.queue)
    offered = offers(tx, queue)
    job, offer = tx.store.jobs.get(line.head), _offer(tx, line, offered, pool)
    if offer is None:  # the environments have changed since the claims were set
        tx.store.job_lines.set_claims(line, {})
        return
    tx.store.job_lines.remove(line.key, line.first, tx.now_s)
    if job is not None and job.state is JobState.RUNNABLE:
        try:
            launch = partial(_launch, tx, job, offer, claim, placement, line)
            tasks = tx.attempt(launch) if fails_job else launch()
        except REFUSALS as error:
            if not fails_job:
                raise
            job_progress.end(tx, job, JobState.FAILED, _text(error))
        else:
            _take(tx, job, line, queue, offer.environment)
            job_progress.started(tx, job, tasks, offer.environment.name)
    known = {(line.key.region, line.queue): (queue, offered)}
    refresh_lines(tx, affected(tx, line.key, queue, [each.environment for each in offered]), known)
    mark_limits(tx, queue)
    _leave_others(tx, line, pool, offered)


def _leave_others(tx: Tx[Store], line: WaitingLine, pool: str, offered: list[Offer]) -> None:
    """Run the scheduler for the other pools of a line, because other claims may use slots that were reserved for the dispatched
    job.

    Also run the reconcilers of the other environments of the queue, because they may have begun to launch instances for the job.
    """
    for name, _ in line.pools:
        if name != pool and tx.store.fleet.pool(name).has_claims():
            tx.mark(f"pool:{name}")
    for offer in offered:
        if offer.pool != pool and offer.environment.scales:
            tx.mark(offer.environment.key)


def attempt_ended(tx: Tx[Store], job: Job) -> None:
    """Free the vCPUs and consumable resources that an attempt of a job held. A second call for the same attempt does nothing."""
    holding = tx.store.job_holdings.get(job.id)
    if holding is None:
        return
    tx.store.job_holdings.drop(holding)
    if _may_be_idle(tx, job):
        tx.mark(environment_key(holding.region, holding.environment))
    queue = find_queue(tx, holding.region, holding.queue)
    _change_share(tx, queue, holding, -holding.weighted_vcpus)
    for name, quantity in holding.resources:
        consume(tx, holding.region, name, quantity)
    environment = find_environment(tx, holding.region, holding.environment)
    refresh_lines(tx, affected_by_end(tx, line_key(job, queue), queue, [environment] if environment is not None else []))


def _may_be_idle(tx: Tx[Store], job: Job) -> bool:
    """Whether the instance of an ended attempt may be idle now. An environment terminates idle instances."""
    task = tx.store.tasks.get(job.task_id)
    if task is None or task.instance_id is None or job.kind is JobKind.MULTI_NODE:
        return True
    pool = tx.store.fleet.pool(task.pool)
    if task.instance_id not in pool:
        return True
    slot = pool.slot(task.instance_id)
    return not slot.running and not slot.pending


def _preferred(tx: Tx[Store], line: WaitingLine, pool: str, claim: Claim, placement: Placement) -> tuple[str, Claim, Placement]:
    """Return the first pool of the line that has room, with the claim and the placement there.

    The pools of a line are in the order of its queue's environments. The scheduler has found room in `pool`. An earlier pool can
    also have room, because the order of the environments differs between queues, and the scheduler serves the pools in only one
    order.
    """
    for name, earlier in tx.store.job_lines.claims_of(line.id).items():
        if name == pool:
            break
        index = tx.store.fleet.pool(name)
        found = room_for_claim(index, index.ranked(earlier), tx.now_s) if index.is_open(earlier) else None
        if found is not None:
            return name, earlier, found
    return pool, claim, placement


def _offer(tx: Tx[Store], line: WaitingLine, offered: list[Offer], pool: str) -> Offer | None:
    """Return the first environment of the queue that uses this pool and may run the first job of the line, or None."""
    opened: dict[str, set[int]] = {}
    return next((offer for offer in offered if offer.pool == pool and takes(tx, line, offer, opened)), None)


def _launch(tx: Tx[Store], job: Job, offer: Offer, claim: Claim, placement: Placement, line: WaitingLine) -> list[Task]:
    """Launch the task of a job, or one task for each node of a multi-node job."""
    if not placement.nodes:
        request = launch_request(tx, job, offer.environment)
        free = _free_gpus(tx, offer, claim, placement, ()) if line.key.by_image else None
        return [launch_placed(tx, request, offer.pool, placement, claim, free_gpus=free)]
    tasks: list[Task] = []
    kept = frozenset(gpu_id for place in placement.nodes for gpu_id in place.gpu_ids)
    hosts = hosts_of_nodes(tx, offer.pool, placement.nodes)
    for node, place in enumerate(placement.nodes):
        request = launch_request(tx, job, offer.environment, node=node, hosts=hosts)
        # The placement of a node has no GPU if the node neither requires GPUs nor sets NVIDIA_VISIBLE_DEVICES.
        free = _free_gpus(tx, offer, claim, place, kept) if line.key.by_image and place.gpu_ids else None
        tasks.append(launch_placed(tx, request, offer.pool, place, claim, free_gpus=free, kept_gpus=kept))
    return tasks


def _free_gpus(tx: Tx[Store], offer: Offer, claim: Claim, placement: Placement, kept: Collection[str]) -> tuple[str, ...]:
    """Return the GPUs for a task of a job whose image or environment sets NVIDIA_VISIBLE_DEVICES.

    These are the GPUs of the placement, and the other free GPUs of the same instance that are not in `kept`. For a multi-node job,
    `kept` has the GPUs of all nodes. Fargate tasks get no GPUs.
    """
    if offer.environment.is_fargate:
        return ()
    spare = spare_gpus(tx.store.fleet.pool(offer.pool), placement, claim)
    return (*placement.gpu_ids, *(gpu_id for gpu_id in spare if gpu_id not in kept))


def _take(tx: Tx[Store], job: Job, line: WaitingLine, queue: JobQueue | None, environment: ComputeEnvironment) -> None:
    """Record the vCPUs and consumable resources that a dispatched job holds."""
    demand = line.demand
    holding = Holding(
        job.id, job.region, job.queue, line.share, environment.name, vcpus_of(demand), weighted_vcpus(demand), line.key.resources
    )
    tx.store.job_holdings.add(holding)
    _change_share(tx, queue, holding, holding.weighted_vcpus)


def _change_share(tx: Tx[Store], queue: JobQueue | None, holding: Holding, change: float) -> None:
    if queue is None or not queue.policy_arn:
        return
    decay_s, holdings = fair_share(tx, queue.region, queue.policy_arn).decay_s, tx.store.job_holdings
    uses = holdings.shares(queue.region, queue.name)
    if holding.share not in uses:
        for share in [share for share, use in uses.items() if is_idle(use, tx.now_s, decay_s)]:
            holdings.set_share(queue.region, queue.name, share, None)
    use = use_after(holdings.share(queue.region, queue.name, holding.share), change, tx.now_s, decay_s)
    holdings.set_share(queue.region, queue.name, holding.share, use)


def _text(error: Exception) -> str:
    if isinstance(error, ApiError):
        return f"The task could not be started: {error}"
    return f"The task could not be started, because of an internal error: {type(error).__name__}: {error}"
