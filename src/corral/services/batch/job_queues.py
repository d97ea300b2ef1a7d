"""The record of a job queue, and functions that find job queues. `queue_requests.py` has the operations.

A job queue is stored as a JSON document with the members of DescribeJobQueues. The reconciler `job-queue`
(`reconcile/job_queues.py`) runs after each change of a queue.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson
from msgspec import Struct

from corral.core.transactions import Tx
from corral.services.batch.names import ENABLED, QUEUE, SERVICE, VALID, short
from corral.store import Store
from corral.store.stored_resources import Document

QUEUES_CACHED_MAX = 256


class JobQueue(Struct, frozen=True):
    region: str
    name: str
    arn: str
    state: str  # ENABLED: the queue accepts new jobs; DISABLED: it refuses new jobs, but its earlier jobs still run
    status: str  # VALID, or DELETING while its jobs end
    status_reason: str
    priority: int  # if two queues have the same environment, the queue with the higher number gets capacity first
    environments: tuple[str, ...]  # the names of its compute environments, in the order in which they are tried
    policy_arn: str  # of the scheduling policy; empty for a FIFO queue
    created_at_s: float
    time_limits: tuple[dict[str, Any], ...] = ()  # jobStateTimeLimitActions
    tags: dict[str, str] = {}

    @property
    def accepts_jobs(self) -> bool:
        return self.state == ENABLED and self.status == VALID


def find_queue(tx: Tx[Store], region: str, name_or_arn: str) -> JobQueue | None:
    """Return the job queue with this name or ARN, or None if it does not exist. The parsed document is cached."""
    name = short(QUEUE, region, name_or_arn)
    text = tx.store.stored.text(SERVICE, QUEUE, region, name) if name else None
    return _read(region, text) if text is not None else None


def queues_of_environment(tx: Tx[Store], region: str, environment: str) -> list[JobQueue]:
    """Return the job queues that use a compute environment. `environment` is the name of the environment."""
    documents = (document for _, document in tx.store.stored.with_prefix(SERVICE, QUEUE, region, ""))
    return [
        queue_of(region, document)
        for document in documents
        if any(short_environment(each["computeEnvironment"]) == environment for each in document["computeEnvironmentOrder"])
    ]


def queue_of(region: str, document: Document) -> JobQueue:
    order = sorted(document["computeEnvironmentOrder"], key=lambda each: each["order"])
    return JobQueue(
        region=region,
        name=document["jobQueueName"],
        arn=document["jobQueueArn"],
        state=document["state"],
        status=document["status"],
        status_reason=document["statusReason"],
        priority=document["priority"],
        environments=tuple(short_environment(each["computeEnvironment"]) for each in order),
        policy_arn=document.get("schedulingPolicyArn", ""),
        created_at_s=document["_createdAt"],
        time_limits=tuple(document.get("jobStateTimeLimitActions", ())),
        tags=document["tags"],
    )


def short_environment(arn: str) -> str:
    return arn.rpartition("/")[2]


@lru_cache(maxsize=QUEUES_CACHED_MAX)
def _read(region: str, text: str) -> JobQueue:
    return queue_of(region, orjson.loads(text))
