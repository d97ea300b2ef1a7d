"""Lines of Batch jobs, and the use of capacity by the shares of a job queue.

A line has the RUNNABLE jobs of one queue that need the same resources and have the same share identifier and owner. A share is the
part of a queue's jobs with one share identifier.
"""

from __future__ import annotations

from math import exp
from typing import NamedTuple

from msgspec import Struct

from corral.model.task import Changeable, Demand


class JobPlace(NamedTuple):
    """The place of a job in its line. The job with the smallest place is the first."""

    priority: int  # the negated scheduling priority; 0 in a FIFO queue
    number: int  # the number of the job, or of the array of a child; a job that was submitted later has a larger number
    position: int  # the index of a child of an array, otherwise 0
    job_id: str
    since_s: float  # when the job was created


class LineKey(Struct, frozen=True):
    """The properties that all jobs of a line have in common."""

    region: str
    queue: str
    share: str  # empty in a FIFO queue
    owner: str
    demand: Demand  # of one job; the amounts of a multi-node job are those of its largest node
    resources: tuple[tuple[str, int], ...] = ()  # the consumable resources of one job: name and quantity
    by_image: bool = False  # the image sets NVIDIA_VISIBLE_DEVICES: a job waits for one GPU, and gets all free GPUs of its instance


class WaitingLine(Changeable, frozen=True):
    """A line with at least one job. Only the first job is in memory, so a long line needs no more memory than a short one."""

    id: int
    key: LineKey
    count: int
    first: JobPlace
    # The pools (sets of slots) in which the line waits, in the order of the queue's compute environments. The second element is
    # True if the job gets no GPUs there, because the environment is on Fargate.
    pools: tuple[tuple[str, bool], ...] = ()

    @property
    def queue(self) -> str:
        return self.key.queue

    @property
    def share(self) -> str:
        return self.key.share

    @property
    def demand(self) -> Demand:
        return self.key.demand

    @property
    def nodes(self) -> int:
        """The number of nodes that each job needs at the same time."""
        return sum(count for _, count in self.key.demand.nodes) or 1

    @property
    def head(self) -> str:
        """The id of the first job."""
        return self.first.job_id

    @property
    def since_s(self) -> float:
        return self.first.since_s


class Holding(Struct, frozen=True):
    """The vCPUs and consumable resources that an attempt of a job holds from its dispatch until its end."""

    job_id: str
    region: str
    queue: str
    share: str
    environment: str
    vcpus: float
    weighted_vcpus: float  # the vCPUs that count for the share; a GPU counts as several vCPUs (`decide/tasks/job_order.py`)
    resources: tuple[tuple[str, int], ...] = ()


def decayed(used: float, held: float, elapsed_s: float, decay_s: float) -> float:
    """Return a use after some time in which the same amount was held. It approaches `held` times `decay_s`."""
    steady = held * decay_s
    return steady + (used - steady) * exp(-elapsed_s / decay_s)


class ShareUse(Struct, frozen=True):
    """The use of capacity by one share of a queue, in vCPUs, or by an owner, in GPUs. `decide/shares.py` computes it."""

    held: float = 0.0  # the weighted vCPUs, or the GPUs, that it holds now
    used: float = 0.0  # vCPU seconds or GPU-seconds until `at_s`; use of an earlier time counts less
    at_s: float = 0.0
