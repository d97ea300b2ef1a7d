"""Where the tasks of a request get their capacity: from a launch type or through capacity providers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corral.core import Tx
from corral.decide.providers import Provider, distribute
from corral.model.instance import HOST_POOL
from corral.services.ecs.naming import InvalidParameterException
from corral.services.ecs.providers import FARGATE_PROVIDERS, checked_strategy
from corral.services.ecs.slots import HOST_CLUSTER_DETAILS, HOST_PROVIDER, has_host, pools_of, slots_of
from corral.store import Store

NO_INSTANCES = "No Container Instances were found in your cluster."


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where tasks get their capacity, and whether they wait for it."""

    launch_type: str  # EC2 or FARGATE
    pools: tuple[str, ...]  # a task that waits is a claim in the first; one that does not may take from each, in this order
    waits: bool  # else a task that does not fit now fails
    providers: tuple[str, ...] = ()  # the capacity provider of each task; empty: a launch type was asked for


def capacity_of(
    tx: Tx[Store],
    launch_type: str | None,
    strategy: list[dict[str, Any]] | None,
    region: str,
    cluster: str,
    about: dict[str, Any],
    count: int,
) -> Capacity:
    """With a launch type EC2 a task starts now or not at all; through a capacity provider, and on Fargate, it waits for room."""
    if launch_type and strategy:
        raise InvalidParameterException("Specify either a launch type or a capacity provider strategy, not both.")
    if launch_type == "FARGATE":
        return Capacity("FARGATE", (HOST_POOL,), waits=True)
    if launch_type == "MANAGED_INSTANCES":
        raise InvalidParameterException("Managed instances need a capacity provider strategy instead of a launch type.")
    if not launch_type and not strategy:
        strategy = about.get("defaultCapacityProviderStrategy")
        if strategy == HOST_CLUSTER_DETAILS["defaultCapacityProviderStrategy"]:  # the common case
            return Capacity("EC2", pools_of(tx, region, cluster)[:1], waits=True, providers=(HOST_PROVIDER,) * count)
    if strategy:
        return _through_providers(tx, strategy, region, cluster, about, count)
    if launch_type == "EXTERNAL" or not slots_of(tx, region, cluster):
        raise InvalidParameterException(NO_INSTANCES)
    return Capacity("EC2", pools_of(tx, region, cluster), waits=False)


def _through_providers(
    tx: Tx[Store], strategy: list[dict[str, Any]], region: str, cluster: str, about: dict[str, Any], count: int
) -> Capacity:
    known = {*FARGATE_PROVIDERS, *about.get("capacityProviders", ()), *([HOST_PROVIDER] if has_host(tx, cluster) else [])}
    providers = [Provider(item["capacityProvider"], item["weight"], item["base"]) for item in checked_strategy(strategy, known)]
    if len(providers) > 1 and not any(provider.weight for provider in providers):
        raise InvalidParameterException(
            "There are no capacity providers with a weight value greater than zero defined in the capacity provider strategy. "
            "At least one capacity provider must have a weight value greater than zero specified."
        )
    on_fargate = providers[0].name in FARGATE_PROVIDERS
    pools = (HOST_POOL,) if on_fargate else pools_of(tx, region, cluster)[:1]
    return Capacity("FARGATE" if on_fargate else "EC2", pools, waits=True, providers=tuple(distribute(providers, count)))
