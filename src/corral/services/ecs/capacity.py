"""Where the tasks of a request get their capacity: from a launch type or through capacity providers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corral.decide.providers import Provider, distribute
from corral.services.ecs.naming import DEFAULT_CLUSTER, DEFAULT_DETAILS, HOST_PROVIDER, InvalidParameterException
from corral.services.ecs.providers import FARGATE_PROVIDERS, checked_strategy
from corral.store import HOST_POOL

NO_INSTANCES = "No Container Instances were found in your cluster."


def pool_of(region: str, cluster: str) -> str:
    """`default` is the hosts, in every region. Every other cluster has a pool of its own, in which nothing is yet."""
    return HOST_POOL if cluster == DEFAULT_CLUSTER else f"{region}/{cluster}"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Where tasks get their capacity, and whether they wait for it."""

    launch_type: str  # EC2 or FARGATE
    pool: str
    waits: bool  # else a task that does not fit now fails
    providers: tuple[str, ...] = ()  # the capacity provider of each task; empty: a launch type was asked for


def capacity_of(
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
        return Capacity("FARGATE", HOST_POOL, waits=True)
    if launch_type == "MANAGED_INSTANCES":
        raise InvalidParameterException("Managed instances need a capacity provider strategy instead of a launch type.")
    if not launch_type and not strategy:
        strategy = about.get("defaultCapacityProviderStrategy")
        if strategy == DEFAULT_DETAILS["defaultCapacityProviderStrategy"]:  # as almost everybody has it
            return Capacity("EC2", HOST_POOL, waits=True, providers=(HOST_PROVIDER,) * count)
    if strategy:
        return _through_providers(strategy, region, cluster, about, count)
    if launch_type == "EXTERNAL" or cluster != DEFAULT_CLUSTER:
        raise InvalidParameterException(NO_INSTANCES)
    return Capacity("EC2", HOST_POOL, waits=False)


def _through_providers(strategy: list[dict[str, Any]], region: str, cluster: str, about: dict[str, Any], count: int) -> Capacity:
    known = {*FARGATE_PROVIDERS, *about.get("capacityProviders", ()), *([HOST_PROVIDER] if cluster == DEFAULT_CLUSTER else [])}
    providers = [Provider(item["capacityProvider"], item["weight"], item["base"]) for item in checked_strategy(strategy, known)]
    if len(providers) > 1 and not any(provider.weight for provider in providers):
        raise InvalidParameterException(
            "There are no capacity providers with a weight value greater than zero defined in the capacity provider strategy. "
            "At least one capacity provider must have a weight value greater than zero specified."
        )
    on_fargate = providers[0].name in FARGATE_PROVIDERS
    launch_type, pool = ("FARGATE", HOST_POOL) if on_fargate else ("EC2", pool_of(region, cluster))
    return Capacity(launch_type, pool, waits=True, providers=tuple(distribute(providers, count)))
