"""The claims of waiting Batch jobs: in which pools the first job of each line may run, and with which rank.

The jobs with one share identifier are a share. The scheduler serves the claim with the smallest rank first. The level of a share is
its use of vCPUs, multiplied by its weight (`decide/tasks/job_order.py`).

A line has a claim in the pool of each compute environment of its queue that accepts jobs now. But it has no claims while too little
of a consumable resource is available, or while the scheduling policy reserves the capacity for other shares. And a Fargate
environment gives it no claim while too few vCPUs are left.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.placement.find import could_hold
from corral.decide.tasks.job_order import job_rank, share_level, share_may_start, vcpus_of, weighted_vcpus
from corral.model.compute_environment import ComputeEnvironment
from corral.model.job import Job, JobKind
from corral.model.job_line import JobPlace, LineKey, WaitingLine
from corral.model.placement import EQUAL_SHARE, Rank
from corral.model.task import Demand
from corral.services.batch.consumable_resources import find_resource
from corral.services.batch.environments import find_environment, pool_of
from corral.services.batch.job_queues import JobQueue, find_queue, queues_of_environment
from corral.services.batch.names import DELETING, queue_key
from corral.services.batch.scheduling_policies import FairShare, fair_share
from corral.store import Store
from corral.store.owner_lines import UNUSED

# If a line must leave the capacity of an unmanaged environment to other shares, its claims are computed again after this time,
# because the environment may have grown.
LOOK_AGAIN_S = 5.0
# The ranks of all claims of a pool are computed at most once in this time. But the dispatch of a job updates the ranks of its share
# at once.
RANKED_S = 1.0


class Offer(Struct, frozen=True):
    """A compute environment that accepts jobs of a queue now, and the pool of the environment."""

    environment: ComputeEnvironment
    pool: str


# Region and name of a job queue → the queue, and its environments that accept jobs now
KnownQueues = dict[tuple[str, str], tuple[JobQueue | None, list[Offer]]]


class Shortage(Struct, frozen=True):
    """A consumable resource whose available quantity is too small for a job."""

    name: str
    needed: int
    available: int
    total: int


def line_key(job: Job, queue: JobQueue | None) -> LineKey:
    """Return the key of a job's line: the properties that all jobs of the line have in common."""
    spec, by_image = job.spec, job.spec.asks_for_gpus_by_image
    demand = _with_gpu(spec.demand) if by_image else spec.demand
    if job.kind is JobKind.MULTI_NODE:
        nodes = [
            (
                _with_gpu(group.demand) if group.asks_for_gpus_by_image else group.demand,
                min(group.last, job.size - 1) - group.first + 1,
            )
            for group in sorted(spec.nodes, key=lambda group: group.first)
        ]
        nodes = [(each, count) for each, count in nodes if count > 0]
        demand = Demand(
            max(each.gpus for each, _ in nodes),
            max(each.cpu_units for each, _ in nodes),
            max(each.memory_mib for each, _ in nodes),
            nodes=tuple(nodes),
        )
    share = spec.share if queue is not None and queue.policy_arn else ""
    return LineKey(job.region, job.queue, share, job.owner, demand, tuple(sorted(spec.resources)), by_image)


def job_place(job: Job, queue: JobQueue | None) -> JobPlace:
    """Return the place of a job in its line. As on AWS, only fair share queues use the scheduling priority."""
    priority = job.spec.priority if queue is not None and queue.policy_arn else 0
    return JobPlace(-priority, job.number, job.index or 0, job.id, job.created_at_s)


def _with_gpu(demand: Demand) -> Demand:
    return demand if demand.gpus else Demand(1, demand.cpu_units, demand.memory_mib, demand.rules)


def offers(tx: Tx[Store], queue: JobQueue | None) -> list[Offer]:
    """Return the compute environments of a queue that accept jobs now, in the order of the queue."""
    if queue is None or queue.status == DELETING:
        return []
    found = (find_environment(tx, queue.region, name) for name in queue.environments)
    return [Offer(each, pool_of(tx, each)) for each in found if each is not None and each.takes_jobs]


def shortage(tx: Tx[Store], line: WaitingLine) -> Shortage | None:
    """Return the first consumable resource whose available quantity is too small for the first job of a line, or None."""
    for name, quantity in line.key.resources:
        resource = find_resource(tx, line.key.region, name)
        total = 0 if resource is None else resource.total
        available = max(0, total - tx.store.job_holdings.in_use(line.key.region, name))
        if quantity > available:
            return Shortage(name, quantity, available, total)
    return None


def leaves_reservation(tx: Tx[Store], line: WaitingLine, queue: JobQueue) -> bool:
    """Whether enough capacity stays free for other shares if the first job of a line starts now.

    The scheduling policy reserves capacity for shares that have no running jobs.
    """
    policy = _policy(tx, queue)
    if policy is None or not policy.reservation:
        return True
    uses = tx.store.job_holdings.shares(queue.region, queue.name)
    held = {share: use.held for share, use in uses.items()}
    return share_may_start(line.share, weighted_vcpus(line.demand), held, most_vcpus(tx, queue), policy.reservation)


def most_vcpus(tx: Tx[Store], queue: JobQueue) -> float:
    """Return how many vCPUs the environments of a queue can have together.

    For an unmanaged environment, these are the vCPUs of its present instances.
    """
    total = 0.0
    for offer in offers(tx, queue):
        if offer.environment.max_vcpus:
            total += offer.environment.max_vcpus
        else:
            total += sum(weighted_vcpus(size) * count for size, count in tx.store.fleet.pool(offer.pool).sizes())
    return total


def open_lines(tx: Tx[Store], environment: ComputeEnvironment) -> set[int]:
    """Return the ids of the lines whose first job may start in a Fargate environment now, because enough vCPUs are left.

    The first line that lacks vCPUs keeps all later lines waiting: otherwise small jobs could keep a large job waiting for ever. A
    line that needs more than the maximum of the environment, or more than this machine has, keeps no other line waiting.
    """
    ranked: list[tuple[Rank, int, WaitingLine]] = []
    pool = tx.store.fleet.pool(pool_of(tx, environment))
    for queue in queues_of_environment(tx, environment.region, environment.name):
        for line in tx.store.job_lines.lines_of(queue.region, queue.name):
            if shortage(tx, line) is None and leaves_reservation(tx, line, queue) and not line.demand.nodes:
                level = tx.store.fleet.levels.get(line.key.owner, UNUSED)
                ranked.append((line_rank(tx, line, queue, 0.0, level), line.id, line))
    left = environment.max_vcpus - tx.store.job_holdings.vcpus(environment.region, environment.name)
    found: set[int] = set()
    for _, line_id, line in sorted(ranked, key=lambda each: each[:2]):
        vcpus = vcpus_of(line.demand)
        if vcpus > environment.max_vcpus:
            continue
        if vcpus > left and could_hold(pool, replace(line.demand, gpus=0)):
            break
        if vcpus > left:
            continue
        found.add(line_id)
    return found


def line_rank(tx: Tx[Store], line: WaitingLine, queue: JobQueue, seniority_s: float, share: float = EQUAL_SHARE) -> Rank:
    return job_rank(seniority_s, queue.priority, level_of(tx, queue, line.share), line.first, share)


def level_of(tx: Tx[Store], queue: JobQueue, share: str, more_vcpus: float = 0.0) -> float:
    """Return the level that a share of a queue would have if it held `more_vcpus` more. All jobs of a FIFO queue have level 0."""
    policy = _policy(tx, queue)
    if policy is None:
        return 0.0
    use, weight = tx.store.job_holdings.share(queue.region, queue.name, share), policy.weight_of(share)
    return share_level(use, weight, policy.decay_s, tx.now_s) + weight * more_vcpus


def refresh_lines(tx: Tx[Store], lines: Iterable[WaitingLine], known: KnownQueues | None = None) -> None:
    """Set the claims of lines, and call the scheduler for pools in which a claim begins, ends, or gets a better rank.

    `known` caches the job queues that this transaction has already read.
    """
    opened: dict[str, set[int]] = {}  # Fargate environment → the ids of the lines that may use it
    known = {} if known is None else known
    for line in lines:
        name = line.key.region, line.queue
        if name not in known:
            found = find_queue(tx, *name)
            known[name] = found, offers(tx, found)
        (queue, offered), wanted = known[name], dict[str, tuple[Rank, bool]]()
        may_start = queue is not None and shortage(tx, line) is None
        if may_start and queue is not None and not leaves_reservation(tx, line, queue):
            may_start = False
            if any(not offer.environment.kind for offer in offered):
                tx.due(queue_key(queue.region, queue.name), tx.now_s + LOOK_AGAIN_S)
        if may_start and queue is not None:
            for offer in offered:
                if offer.pool not in wanted and takes(tx, line, offer, opened):
                    without_gpus = line.key.by_image and offer.environment.is_fargate
                    wanted[offer.pool] = line_rank(tx, line, queue, _seniority(tx, offer.pool, line)), without_gpus
        for pool in tx.store.job_lines.set_claims(line, wanted):
            tx.mark(f"pool:{pool}")


def takes(tx: Tx[Store], line: WaitingLine, offer: Offer, opened: dict[str, set[int]]) -> bool:
    """Whether an environment may run the first job of a line if there is room for it. `opened` caches results of `open_lines`."""
    environment = offer.environment
    if not environment.is_fargate:
        return True
    if environment.name not in opened:
        opened[environment.name] = open_lines(tx, environment)
    return line.id in opened[environment.name]


def rank_claims(tx: Tx[Store], pool: str) -> None:
    """Compute the ranks of all job claims of a pool, at most once a second.

    The ranks change with time, because the use of a share grows while its jobs run, and past use decays.
    """
    lines = tx.store.job_lines.in_pool(pool)
    if not lines or tx.now_s < tx.store.job_lines.ranked_at.get(pool, -inf) + RANKED_S:
        return
    tx.store.job_lines.set_ranked(pool, min(line.since_s for line in lines), tx.now_s)
    refresh_lines(tx, lines)


def affected(tx: Tx[Store], key: LineKey, queue: JobQueue | None, environments: Iterable[ComputeEnvironment]) -> list[WaitingLine]:
    """Return the lines whose claims may change when a job of the line `key` begins or ceases to wait for these environments."""
    found = affected_by_end(tx, key, queue, environments)
    own = tx.store.job_lines.find(key)
    if own is not None and own not in found:
        found.append(own)
    return found


def affected_by_end(
    tx: Tx[Store], key: LineKey, queue: JobQueue | None, environments: Iterable[ComputeEnvironment]
) -> list[WaitingLine]:
    """Return the lines whose claims may change when a job that belonged to the line `key` ends in these environments.

    The end of the job changes the level of its share, the available consumable resources, and the free vCPUs of a Fargate
    environment.
    """
    found: dict[int, WaitingLine] = {}
    policy = None if queue is None else _policy(tx, queue)
    if policy is not None:
        lines = tx.store.job_lines.lines_of(key.region, key.queue)
        found |= {line.id: line for line in lines if policy.reservation or line.share == key.share}
    for name, _ in key.resources:
        found |= {line.id: line for line in tx.store.job_lines.with_resource(key.region, name)}
    for environment in environments:
        if environment.is_fargate:
            found |= {line.id: line for line in lines_of_environment(tx, environment)}
    return list(found.values())


def lines_of_environment(tx: Tx[Store], environment: ComputeEnvironment) -> list[WaitingLine]:
    queues = queues_of_environment(tx, environment.region, environment.name)
    return [line for queue in queues for line in tx.store.job_lines.lines_of(queue.region, queue.name)]


def _policy(tx: Tx[Store], queue: JobQueue) -> FairShare | None:
    return fair_share(tx, queue.region, queue.policy_arn) if queue.policy_arn else None


def _seniority(tx: Tx[Store], pool: str, line: WaitingLine) -> float:
    """Return the second element of the ranks of a pool's job claims: when the oldest waiting job of the pool was created.

    All job claims of a pool have the same value, until `rank_claims` computes it again. After a start of the server, the value is
    not known. Then this function computes it, and makes the next call of `rank_claims` compute all ranks of the pool.
    """
    lines, known = tx.store.job_lines.in_pool(pool), tx.store.job_lines.seniority.get(pool)
    if known is None or not lines:
        known = min(each.since_s for each in (line, *lines))
        tx.store.job_lines.set_ranked(pool, known, -inf if lines else tx.now_s)
    return known
