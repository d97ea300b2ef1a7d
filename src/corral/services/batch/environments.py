"""Finds compute environments, and the pool of each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from corral.core.transactions import Tx
from corral.fleet.clusters import fargate_pool, has_host
from corral.model.compute_environment import ComputeEnvironment
from corral.model.instance import cluster_pool, host_pool
from corral.store import Store

ENVIRONMENTS_CACHED_MAX = 256
SERVICE, TYPE = "batch", "compute-environment"  # the service and the type of the stored JSON documents


def find_environment(tx: Tx[Store], region: str, name_or_arn: str) -> ComputeEnvironment | None:
    """Return the compute environment with this name or ARN, or None if it does not exist. The parsed document is cached."""
    name = name_or_arn.rpartition("/")[2]
    text = tx.store.stored.text(SERVICE, TYPE, region, name)
    environment = _read(region, text) if text is not None else None
    return environment if environment is not None and name_or_arn in (name, environment.arn) else None


@lru_cache(maxsize=ENVIRONMENTS_CACHED_MAX)
def _read(region: str, text: str) -> ComputeEnvironment:
    return environment_of(region, orjson.loads(text))


def environments(tx: Tx[Store], region: str) -> list[ComputeEnvironment]:
    return [environment_of(region, document) for _, document in tx.store.stored.listed(SERVICE, TYPE, region)]


def pool_of(tx: Tx[Store], environment: ComputeEnvironment) -> str:
    if environment.is_fargate:
        return fargate_pool(tx, environment.cluster)
    if has_host(tx, environment.cluster):
        return host_pool(environment.cluster)
    return cluster_pool(environment.region, environment.cluster)


def environment_of(region: str, document: dict[str, Any]) -> ComputeEnvironment:
    resources = document.get("computeResources", {})
    return ComputeEnvironment(
        region=region,
        name=document["computeEnvironmentName"],
        arn=document["computeEnvironmentArn"],
        uuid=document["uuid"],
        type=document["type"],
        state=document["state"],
        status=document["status"],
        status_reason=document.get("statusReason", ""),
        cluster=document["ecsClusterArn"].rpartition("/")[2],
        min_vcpus=resources.get("minvCpus", 0),
        max_vcpus=resources.get("maxvCpus", 0),
        desired_vcpus=resources.get("desiredvCpus", 0),
        kind=resources.get("type", ""),
        document=document,
    )
