"""The order of Batch jobs: which waiting job gets free capacity first.

If two job queues use the same capacity, jobs of the queue with the higher priority are first. In a fair share queue, the jobs with
the same share identifier are a share. The share with the lowest level is first. The level of a share is its weight, multiplied by
the vCPUs that it uses now or by its average use of vCPUs in the past, whichever is more. In one share, jobs with a higher
scheduling priority are first, then older jobs. `decide/shares.py` explains the use, and the levels of owners, which come before
all this.
"""

from __future__ import annotations

from collections.abc import Mapping

from corral.decide.shares import average_use
from corral.model.job_line import JobPlace, ShareUse
from corral.model.placement import EQUAL_SHARE, Rank, claim_rank
from corral.model.task import Demand
from corral.model.units import CPU_UNITS_PER_CORE

# AWS counts vCPUs only. A job with GPUs counts as if it had this many vCPUs per GPU, or its own vCPUs if they are more. So a share
# cannot take all GPUs with jobs that ask for few vCPUs. The smallest GPU instances of AWS have four vCPUs per GPU.
VCPUS_PER_GPU = 4


def weighted_vcpus(demand: Demand) -> float:
    """Return how many vCPUs a job counts as in the use of its share. All nodes of a multi-node job count."""
    if demand.nodes:
        return sum(weighted_vcpus(node) * count for node, count in demand.nodes)
    return max(demand.cpu_units / CPU_UNITS_PER_CORE, VCPUS_PER_GPU * max(0, demand.gpus))


def vcpus_of(demand: Demand) -> float:
    """Return the vCPUs that a job needs, on all its nodes."""
    if demand.nodes:
        return sum(vcpus_of(node) * count for node, count in demand.nodes)
    return demand.cpu_units / CPU_UNITS_PER_CORE


def share_level(use: ShareUse, weight: float, decay_s: float, now_s: float) -> float:
    """Return the level of a share. The share with the lowest level gets capacity first. As on AWS, the weight multiplies."""
    return weight * average_use(use, decay_s, now_s)


def share_may_start(share: str, vcpus: float, held: Mapping[str, float], most_vcpus: float, reservation: int) -> bool:
    """Whether a share may start a job now, according to the computeReservation of its policy (percent).

    `held` has the vCPUs that each share uses now. `most_vcpus` is the capacity of the queue. A part of the capacity is reserved for
    shares that run no job. As on AWS, this part is (reservation / 100) ** (number of shares that run jobs). A share that runs no
    job may use the reserved part.
    """
    active = sum(1 for each in held.values() if each > 0)
    if not reservation or held.get(share, 0.0) <= 0 or not active:
        return True
    return sum(held.values()) + vcpus <= most_vcpus * (1 - (reservation / 100) ** active)


def job_rank(seniority_s: float, queue_priority: int, level: float, place: JobPlace, share: float = EQUAL_SHARE) -> Rank:
    """Return the rank of the first job of a line in a pool. The job with the smallest rank gets capacity first.

    A line has jobs that need the same resources, and `place` is the place of its first job. The age in the rank is
    `seniority_s`, the time when the oldest waiting job of the pool was created. It is equal for all jobs of the pool, so the other
    elements sort the jobs: priority of the queue, level of the share, scheduling priority, and the order in which they were
    submitted.
    """
    return claim_rank(seniority_s, share=share, order=(-queue_priority, level, place.priority, place.number, place.position))
