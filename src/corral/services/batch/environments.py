"""Finds compute environments, and the pools of their instances. A pool is a set of slots on which the scheduler places tasks."""

from __future__ import annotations

from typing import Any

from corral.core import Tx
from corral.model.compute_environment import ComputeEnvironment
from corral.model.instance import HOST_POOL, cluster_pool
from corral.services.ecs.lookup import has_host
from corral.store import Store

SERVICE, TYPE = "batch", "compute-environment"  # of the stored documents


def find_environment(tx: Tx[Store], region: str, name_or_arn: str) -> ComputeEnvironment | None:
    """Return the compute environment with this name or ARN, or None."""
    name = name_or_arn.rpartition("/")[2]
    document = tx.store.stored.get(SERVICE, TYPE, region, name)
    if document is None or name_or_arn not in (name, document["computeEnvironmentArn"]):
        return None
    return environment_of(region, document)


def environments(tx: Tx[Store], region: str) -> list[ComputeEnvironment]:
    """Return all compute environments of a region, sorted by name."""
    return [environment_of(region, document) for _, document in tx.store.stored.listed(SERVICE, TYPE, region)]


def pool_of(tx: Tx[Store], environment: ComputeEnvironment) -> str:
    """Return the pool in which the jobs of an environment are placed."""
    if environment.is_fargate or has_host(tx, environment.cluster):
        return HOST_POOL
    return cluster_pool(environment.region, environment.cluster)


def environment_of(region: str, document: dict[str, Any]) -> ComputeEnvironment:
    """Return the record of a stored document."""
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
