"""Capacity providers. Records so far: nothing scales by them yet."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.ecs.naming import (
    PAGES,
    ClientException,
    InvalidParameterException,
    arn,
    find_cluster,
    short,
)
from corral.services.ecs.slots import HOST_PROVIDER, has_host
from corral.services.ecs.tags import check_tags
from corral.services.pagination import among
from corral.store import Store

ResourceInUseException = api_error("ResourceInUseException")
UnsupportedFeatureException = api_error("UnsupportedFeatureException")

FARGATE_PROVIDERS = ("FARGATE", "FARGATE_SPOT")
BUILT_IN = (*FARGATE_PROVIDERS, HOST_PROVIDER)  # there without being made
RESERVED_PREFIXES = ("aws", "ecs", "fargate")
PROVIDER_PAGES = replace(PAGES, default=10, largest=10)

MANAGED_SCALING = {
    "status": "DISABLED",
    "targetCapacity": 100,
    "minimumScalingStepSize": 1,
    "maximumScalingStepSize": 10_000,
    "instanceWarmupPeriod": 300,
}
GROUP_DEFAULTS = {"managedTerminationProtection": "DISABLED", "managedDraining": "ENABLED"}
NO_SUCH_PROVIDER = "The specified capacity provider does not exist. Specify a valid name or ARN and try again."


def create_capacity_provider(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["name"]
    if name.lower().startswith(RESERVED_PREFIXES) or name in BUILT_IN:
        raise ClientException(
            "The specified capacity provider name is invalid. Up to 255 letters, digits, underscores and hyphens are allowed, "
            "and it cannot begin with aws, ecs or fargate. `host` is this machine."
        )
    if "managedInstancesProvider" in params:
        raise UnsupportedFeatureException("Corral does not serve managed instances; use an autoScalingGroupProvider.")
    if "autoScalingGroupProvider" not in params:
        raise ClientException("An autoScalingGroupProvider must be specified when creating a capacity provider.")
    document = {
        "name": name,
        "status": "ACTIVE",
        "autoScalingGroupProvider": _group({}, params["autoScalingGroupProvider"]),
        "updateStatus": "CREATE_COMPLETE",
        "tags": check_tags(params.get("tags", [])),
        "type": "EC2_AUTOSCALING",
    }
    if not tx.store.stored.add("ecs", "capacity-provider", caller.region, name, document, tx.now_s):
        raise ClientException(
            "The specified capacity provider already exists. To change the configuration of an existing capacity provider, "
            "update the capacity provider."
        )
    return {"capacityProvider": _shown(caller, document)}


def update_capacity_provider(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = short(params["name"])
    document = _made(tx, caller, name)
    group = _group(document["autoScalingGroupProvider"], params.get("autoScalingGroupProvider", {}))
    document |= {"autoScalingGroupProvider": group, "updateStatus": "UPDATE_COMPLETE"}
    tx.store.stored.change("ecs", "capacity-provider", caller.region, name, document)
    return {"capacityProvider": _shown(caller, document)}


def delete_capacity_provider(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = short(params["capacityProvider"])
    document = _made(tx, caller, name)
    if tx.store.clusters.with_provider(caller.region, name) is not None:
        raise ResourceInUseException("The specified capacity provider is in use and cannot be removed.")
    tx.store.stored.drop("ecs", "capacity-provider", caller.region, name)
    return {"capacityProvider": _shown(caller, document | {"status": "INACTIVE", "updateStatus": "DELETE_COMPLETE"})}


def describe_capacity_providers(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    chosen = [short(given) for given in params.get("capacityProviders", ())]
    of_cluster: Collection[str] | None = None
    if "cluster" in params:
        of_cluster = find_cluster(tx, caller, params["cluster"])[1].get("capacityProviders", [])

    page, token = chosen, dict[str, Any]()
    if not chosen:
        made = [name for name, _ in tx.store.stored.listed("ecs", "capacity-provider", caller.region)]
        there = [*made, *BUILT_IN] if of_cluster is None else of_cluster
        page, token = PROVIDER_PAGES.page(params, among({name: name for name in there}))
    shown, failures = [], []
    for name in page:
        document = _document(tx, caller, name)
        if document is None or (of_cluster is not None and name not in of_cluster):
            failures.append({"arn": _arn(caller, name), "reason": "MISSING"})
        else:
            shown.append(_shown(caller, document, tags="TAGS" in params.get("include", ())))
    return {"capacityProviders": shown, "failures": failures, **token}


def check_providers(tx: Tx[Store], caller: Caller, cluster: str, names: list[str]) -> None:
    """Whether a cluster may have these providers."""
    if len(set(names)) != len(names):
        raise InvalidParameterException("The specified capacity providers contain a duplicate. Specify each of them once.")
    for name in names:
        if name == HOST_PROVIDER and not has_host(tx, cluster):
            raise InvalidParameterException(
                f"The capacity provider `host` is this machine, which belongs to the cluster `{tx.settings.cluster}`."
            )
        if _document(tx, caller, name) is None:
            raise InvalidParameterException(
                f"The specified capacity provider '{name}' was not found. Specify a valid capacity provider and try again."
            )


def checked_strategy(strategy: list[dict[str, Any]], of_cluster: Collection[str]) -> list[dict[str, Any]]:
    """A strategy by ECS's rules, with the weights and bases that it leaves out."""
    full = [{"weight": 0, "base": 0, **item, "capacityProvider": short(item["capacityProvider"])} for item in strategy]
    names = [item["capacityProvider"] for item in full]
    if len(set(names)) != len(names):
        raise InvalidParameterException("A capacity provider strategy can contain each capacity provider once.")
    for item in full:
        if item["capacityProvider"] not in of_cluster:
            raise InvalidParameterException(
                "The specified capacity provider strategy cannot contain a capacity provider that is not associated with the "
                f"cluster: {item['capacityProvider']}. Associate the capacity provider with the cluster and try again."
            )
    if sum(item["base"] > 0 for item in full) > 1:
        raise InvalidParameterException("Only one capacity provider of a strategy can have a base.")
    if len({name in FARGATE_PROVIDERS for name in names}) > 1:
        raise InvalidParameterException(
            "A capacity provider strategy cannot contain a mix of capacity providers using Auto Scaling groups and Fargate "
            "providers. Specify one or the other and try again."
        )
    return full


def _group(before: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """An Auto Scaling group provider: what was there, with what is given over it, and AWS's defaults under both."""
    scaling = {**MANAGED_SCALING, **before.get("managedScaling", {}), **given.get("managedScaling", {})}
    if scaling["minimumScalingStepSize"] > scaling["maximumScalingStepSize"]:
        raise ClientException("The managed scaling minimumScalingStepSize is larger than the maximumScalingStepSize.")
    group: dict[str, Any] = {**GROUP_DEFAULTS, **before, **given, "managedScaling": scaling}
    if group["managedTerminationProtection"] == "ENABLED" and scaling["status"] != "ENABLED":
        raise ClientException(
            "The managed termination protection setting for the capacity provider is invalid. To enable managed termination "
            "protection for a capacity provider, enable managed scaling."
        )
    return group


def _made(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any]:
    """The document of a provider that somebody made, and may change."""
    if name in BUILT_IN:
        raise ClientException(f"The capacity provider {name} is reserved and cannot be changed or deleted.")
    document = tx.store.stored.get("ecs", "capacity-provider", caller.region, name)
    if document is None:
        raise ClientException(NO_SUCH_PROVIDER)
    return document


def _document(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any] | None:
    if name in BUILT_IN:
        kind = {"type": name} if name in FARGATE_PROVIDERS else {}
        return {"name": name, "status": "ACTIVE", "tags": [], **kind}
    return tx.store.stored.get("ecs", "capacity-provider", caller.region, name)


def _shown(caller: Caller, document: dict[str, Any], *, tags: bool = True) -> dict[str, Any]:
    return {"capacityProviderArn": _arn(caller, document["name"]), **document, "tags": document["tags"] if tags else []}


def _arn(caller: Caller, name: str) -> str:
    return arn(caller.account, caller.region, f"capacity-provider/{name}")
