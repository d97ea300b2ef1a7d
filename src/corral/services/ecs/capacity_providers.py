"""Operations on capacity providers, and functions that find the capacity for the tasks of a request.

A request names a launch type or a capacity provider strategy. A capacity provider that a caller has created runs its tasks on the
instances of an Auto Scaling group. With managed scaling, `reconcile/capacity_providers.py` scales this group. Three providers are
built in: `host`, which is this machine, and the two Fargate providers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.clusters import fargate_pool, has_host, pools_of, slots_of
from corral.fleet.host_options import host_clusters
from corral.model.group import DELETING, Group, group_key, provider_key
from corral.model.instance import Instance, cluster_pool, host_pool
from corral.operations.pagination import among
from corral.services.ecs import errors
from corral.services.ecs.lookup import HOST_CLUSTER_DETAILS, HOST_PROVIDER, PAGES, arn, cluster_record, find_cluster, short
from corral.services.ecs.managed_scaling import group_name, provider_of_group, unprotect_members
from corral.services.ecs.tags import check_tags
from corral.services.ecs.task_capacity import Capacity
from corral.store import Store

FARGATE_PROVIDERS = ("FARGATE", "FARGATE_SPOT")
BUILT_IN_PROVIDERS = (*FARGATE_PROVIDERS, HOST_PROVIDER)
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
GROUP_IN_USE = (
    "The specified Auto Scaling group ARN is already being used by another capacity provider. Specify a unique Auto Scaling group "
    "ARN and try again."
)
NO_SUCH_PROVIDER = "The specified capacity provider does not exist. Specify a valid name or ARN and try again."
PROVIDER_IN_USE = "The specified capacity provider is in use and cannot be removed."
NO_INSTANCES = "No Container Instances were found in your cluster."


def create_capacity_provider(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params["name"]
    if name.lower().startswith(RESERVED_PREFIXES) or name in BUILT_IN_PROVIDERS:
        raise errors.ClientException(
            f"The specified capacity provider name is invalid: '{name}'. It cannot begin with aws, ecs or fargate, and cannot be "
            f"`{HOST_PROVIDER}`, which is this machine."
        )
    if "managedInstancesProvider" in params:
        raise errors.UnsupportedFeatureException("Corral does not serve managed instances; use an autoScalingGroupProvider.")
    if "autoScalingGroupProvider" not in params:
        raise errors.ClientException("An autoScalingGroupProvider must be specified when creating a capacity provider.")
    group = existing_group(tx, caller, params["autoScalingGroupProvider"]["autoScalingGroupArn"])
    if provider_of_group(tx, caller.region, group.name) is not None and not _exists(tx, caller, name):
        raise errors.ClientException(GROUP_IN_USE)
    given = {**params["autoScalingGroupProvider"], "autoScalingGroupArn": group.arn(tx.settings.account)}
    document = {
        "name": name,
        "status": "ACTIVE",
        "autoScalingGroupProvider": _group_settings({}, given, group),
        "updateStatus": "CREATE_COMPLETE",
        "tags": check_tags(params.get("tags", [])),
        "type": "EC2_AUTOSCALING",
    }
    if not tx.store.stored.add("ecs", "capacity-provider", caller.region, name, document, tx.now_s, caller.owner):
        raise errors.ClientException(
            "The specified capacity provider already exists. To change the configuration of an existing capacity provider, "
            "update the capacity provider."
        )
    tx.mark(provider_key(caller.region, group.name))
    return {"capacityProvider": _response(caller, document)}


def update_capacity_provider(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = short(params["name"])
    document = _created(tx, caller, name)
    group = tx.store.groups.get(caller.region, group_name(document))
    before = document["autoScalingGroupProvider"]
    settings = _group_settings(before, params.get("autoScalingGroupProvider", {}), group)
    turned_off = before["managedTerminationProtection"] == "ENABLED" != settings["managedTerminationProtection"]
    if turned_off and group is not None:
        unprotect_members(tx, group)
    document = _without_failure(document) | {"autoScalingGroupProvider": settings, "updateStatus": "UPDATE_COMPLETE"}
    tx.store.stored.change("ecs", "capacity-provider", caller.region, name, document)
    tx.mark(provider_key(caller.region, group_name(document)))
    # If the request has turned managed draining off, the group terminates instances that wait for the end of their tasks.
    tx.mark(group_key(caller.region, group_name(document)))
    return {"capacityProvider": _response(caller, document)}


def delete_capacity_provider(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = short(params["capacityProvider"])
    document = _created(tx, caller, name)
    if clusters := tx.store.clusters.with_provider(caller.region, name):
        reason = (
            f"The capacity provider cannot be deleted because it is associated with cluster: {clusters[0]}. "
            "Remove the capacity provider from the cluster and try again."
        )
        document |= {"updateStatus": "DELETE_FAILED", "updateStatusReason": reason}
        tx.store.stored.change("ecs", "capacity-provider", caller.region, name, document)
        return {"capacityProvider": _response(caller, document)}
    document = _without_failure(document)
    tx.store.stored.drop("ecs", "capacity-provider", caller.region, name)
    return {"capacityProvider": _response(caller, document | {"status": "INACTIVE", "updateStatus": "DELETE_COMPLETE"})}


def describe_capacity_providers(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    chosen = [short(given) for given in params.get("capacityProviders", ())]
    of_cluster: Collection[str] | None = None
    if "cluster" in params:
        of_cluster = find_cluster(tx, caller, params["cluster"])[1].get("capacityProviders", [])

    page, token = chosen, dict[str, Any]()
    if not chosen:
        created = [name for name, _ in tx.store.stored.listed("ecs", "capacity-provider", caller.region)]
        known = [*created, *BUILT_IN_PROVIDERS] if of_cluster is None else of_cluster
        page, token = PROVIDER_PAGES.page(params, among({name: name for name in known}))
    described, failures = [], []
    for name in page:
        document = _document(tx, caller, name)
        if document is None or (of_cluster is not None and name not in of_cluster):
            failures.append({"arn": _arn(caller, name), "reason": "MISSING"})
        else:
            described.append(_response(caller, document, tags="TAGS" in params.get("include", ())))
    return {"capacityProviders": described, "failures": failures, **token}


def check_providers(tx: Tx[Store], caller: Caller, cluster: str, names: list[str]) -> None:
    """Raise InvalidParameterException if one of these providers cannot belong to the cluster."""
    if len(set(names)) != len(names):
        raise errors.InvalidParameterException("The specified capacity providers contain a duplicate. Specify each of them once.")
    for name in names:
        if name == HOST_PROVIDER and not has_host(tx, cluster):
            clusters = " and ".join(f"`{each}`" for each in sorted(host_clusters(tx)))
            many = "clusters" if " and " in clusters else "cluster"
            raise errors.InvalidParameterException(
                f"The capacity provider `{HOST_PROVIDER}` is the hosts themselves. They belong to the {many} {clusters}, not to "
                f"`{cluster}`."
            )
        if _document(tx, caller, name) is None:
            raise errors.InvalidParameterException(
                f"The specified capacity provider '{name}' was not found. Specify a valid capacity provider and try again."
            )


def checked_strategy(strategy: list[dict[str, Any]], of_cluster: Collection[str]) -> list[dict[str, Any]]:
    """Return the strategy with default weights and bases added. Raise InvalidParameterException if it violates a rule of ECS."""
    full = [{"weight": 0, "base": 0, **item, "capacityProvider": short(item["capacityProvider"])} for item in strategy]
    names = [item["capacityProvider"] for item in full]
    if len(set(names)) != len(names):
        raise errors.InvalidParameterException("A capacity provider strategy can contain each capacity provider once.")
    for item in full:
        if item["capacityProvider"] not in of_cluster:
            raise errors.InvalidParameterException(
                "The specified capacity provider strategy cannot contain a capacity provider that is not associated with the "
                f"cluster: {item['capacityProvider']}. Associate the capacity provider with the cluster and try again."
            )
    if sum(item["base"] > 0 for item in full) > 1:
        raise errors.InvalidParameterException("Only one capacity provider of a strategy can have a base.")
    if len({name in FARGATE_PROVIDERS for name in names}) > 1:
        raise errors.InvalidParameterException(
            "A capacity provider strategy cannot contain a mix of capacity providers using Auto Scaling groups and Fargate "
            "providers. Specify one or the other and try again."
        )
    return full


def existing_group(tx: Tx[Store], caller: Caller, given: str) -> Group:
    """Find the Auto Scaling group of a request by its name or ARN."""
    group = tx.store.groups.get(caller.region, given.rpartition("autoScalingGroupName/")[2])
    if group is None or (given.startswith("arn:") and given != group.arn(tx.settings.account)) or group.status == DELETING:
        raise errors.ClientException(
            f"The specified Auto Scaling group '{given}' does not exist. Specify the name or ARN of an Auto Scaling group of "
            "this Region and try again."
        )
    return group


def _exists(tx: Tx[Store], caller: Caller, name: str) -> bool:
    return tx.store.stored.get("ecs", "capacity-provider", caller.region, name) is not None


def _without_failure(document: dict[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in document.items() if member != "updateStatusReason"}


def _group_settings(before: dict[str, Any], given: dict[str, Any], of_group: Group | None) -> dict[str, Any]:
    """Return an autoScalingGroupProvider. A member that is not in `given` comes from `before`, or else from AWS's defaults."""
    scaling = {**MANAGED_SCALING, **before.get("managedScaling", {}), **given.get("managedScaling", {})}
    if scaling["minimumScalingStepSize"] > scaling["maximumScalingStepSize"]:
        raise errors.ClientException("The managed scaling minimumScalingStepSize is larger than the maximumScalingStepSize.")
    group: dict[str, Any] = {**GROUP_DEFAULTS, **before, **given, "managedScaling": scaling}
    if group["managedTerminationProtection"] == "ENABLED" and scaling["status"] != "ENABLED":
        raise errors.ClientException(
            "The managed termination protection setting for the capacity provider is invalid. To enable managed termination "
            "protection for a capacity provider, enable managed scaling."
        )
    turned_on = group["managedTerminationProtection"] == "ENABLED" != before.get("managedTerminationProtection")
    if turned_on and of_group is not None and not of_group.settings.get("NewInstancesProtectedFromScaleIn"):
        raise errors.ClientException(
            "The managed termination protection setting for the capacity provider is invalid. To enable managed termination "
            "protection for a capacity provider, the Auto Scaling group must have instance protection from scale in enabled."
        )
    return group


def _created(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any]:
    """Return the document of a provider that a caller has created. Raise an error if it is built in or does not exist."""
    if name in BUILT_IN_PROVIDERS:
        raise errors.ClientException(f"The capacity provider {name} is reserved and cannot be changed or deleted.")
    document = tx.store.stored.get("ecs", "capacity-provider", caller.region, name)
    if document is None:
        raise errors.ClientException(NO_SUCH_PROVIDER)
    return document


def _document(tx: Tx[Store], caller: Caller, name: str) -> dict[str, Any] | None:
    if name in BUILT_IN_PROVIDERS:
        kind = {"type": name} if name in FARGATE_PROVIDERS else {}
        return {"name": name, "status": "ACTIVE", "tags": [], **kind}
    return tx.store.stored.get("ecs", "capacity-provider", caller.region, name)


def _response(caller: Caller, document: dict[str, Any], *, tags: bool = True) -> dict[str, Any]:
    shown = {member: value for member, value in document.items() if not member.startswith("_")}
    return {"capacityProviderArn": _arn(caller, document["name"]), **shown, "tags": document["tags"] if tags else []}


def _arn(caller: Caller, name: str) -> str:
    return arn(caller.account, caller.region, f"capacity-provider/{name}")


# Capacity of a request


def capacity_of(
    tx: Tx[Store],
    launch_type: str | None,
    strategy: list[dict[str, Any]] | None,
    region: str,
    cluster: str,
    cluster_details: dict[str, Any],
    count: int,
) -> Capacity:
    """Return the capacity for a request. If the request has no launch type and no strategy, use the cluster's default strategy.

    With a capacity provider or on Fargate, a task that does not fit at once waits. Otherwise it fails.
    """
    if launch_type and strategy:
        raise errors.InvalidParameterException("Specify either a launch type or a capacity provider strategy, not both.")
    if launch_type == "FARGATE":
        return Capacity("FARGATE", (fargate_pool(tx, cluster),), waits=True)
    if launch_type == "MANAGED_INSTANCES":
        raise errors.InvalidParameterException("Managed instances need a capacity provider strategy instead of a launch type.")
    if not launch_type and not strategy:
        strategy = cluster_details.get("defaultCapacityProviderStrategy")
        if strategy == HOST_CLUSTER_DETAILS["defaultCapacityProviderStrategy"]:  # the most frequent case, so it is handled first
            return Capacity("EC2", pools_of(tx, region, cluster)[:1], waits=True, providers=(HOST_PROVIDER,) * count)
    if strategy:
        return _provider_capacity(tx, strategy, region, cluster, cluster_details, count)
    if launch_type == "EXTERNAL" or not slots_of(tx, region, cluster):
        raise errors.InvalidParameterException(NO_INSTANCES)
    return Capacity("EC2", pools_of(tx, region, cluster), waits=False)


def providers_of_cluster(tx: Tx[Store], cluster: str, cluster_details: dict[str, Any]) -> set[str]:
    """The capacity providers that a strategy can name in this cluster."""
    own = [HOST_PROVIDER] if has_host(tx, cluster) else []
    return {*FARGATE_PROVIDERS, *cluster_details.get("capacityProviders", ()), *own}


def group_of_provider(tx: Tx[Store], region: str, name: str) -> str:
    """The name of the Auto Scaling group of a capacity provider. It is empty if the provider does not exist or has no group."""
    return group_name(tx.store.stored.get("ecs", "capacity-provider", region, name) or {})


def provider_of_instance(tx: Tx[Store], caller: Caller, instance: Instance, cluster: str) -> str | None:
    """The capacity provider to which an instance of the cluster belongs, or None."""
    if instance.is_host:
        return HOST_PROVIDER
    _, details = cluster_record(tx, caller, cluster) or ("", {})
    names = details.get("capacityProviders", ()) if instance.group else ()
    return next((name for name in names if group_of_provider(tx, instance.region, name) == instance.group), None)


def _provider_capacity(
    tx: Tx[Store], strategy: list[dict[str, Any]], region: str, cluster: str, cluster_details: dict[str, Any], count: int,
    skip: int = 0,
) -> Capacity:  # fmt: skip
    known = providers_of_cluster(tx, cluster, cluster_details)
    providers = [
        ProviderWeight(item["capacityProvider"], item["weight"], item["base"]) for item in checked_strategy(strategy, known)
    ]
    if len(providers) > 1 and not any(provider.weight for provider in providers):
        raise errors.InvalidParameterException(
            "There are no capacity providers with a weight value greater than zero defined in the capacity provider strategy. "
            "At least one capacity provider must have a weight value greater than zero specified."
        )
    chosen = tuple(distribute(providers, skip + count)[skip:])
    if providers[0].name in FARGATE_PROVIDERS:
        return Capacity("FARGATE", (fargate_pool(tx, cluster),), waits=True, providers=chosen)
    joined = cluster_pool(region, cluster)
    pools = {provider.name: host_pool(cluster) if provider.name == HOST_PROVIDER else joined for provider in providers}
    groups = {name: group for name in pools if (group := group_of_provider(tx, region, name))}
    return Capacity("EC2", tuple(dict.fromkeys(pools.values())), waits=True, providers=chosen, pool_of=pools, group_of=groups)


def service_capacity(
    tx: Tx[Store], settings: dict[str, Any], region: str, cluster: str, cluster_details: dict[str, Any], count: int, running: int
) -> Capacity:
    """The capacity for new tasks of a service. These tasks wait if no capacity is free.

    `running` is the number of tasks that the service already has. The strategy counts them as the first tasks that it distributes.
    """
    launch_type, strategy = settings.get("launchType"), settings.get("capacityProviderStrategy")
    if launch_type == "FARGATE":
        return Capacity("FARGATE", (fargate_pool(tx, cluster),), waits=True)
    if strategy:
        return _provider_capacity(tx, strategy, region, cluster, cluster_details, count, skip=running)
    return Capacity("EC2", pools_of(tx, region, cluster), waits=True)


class ProviderWeight(Struct, frozen=True):
    name: str
    weight: int = 0
    base: int = 0


def distribute(strategy: Sequence[ProviderWeight], count: int) -> list[str]:
    """Return the provider of each task.

    First each provider gets as many tasks as its base. The weights of the providers define their shares of the other tasks. Each of
    these tasks goes to the provider that is furthest below its share. If several providers are equally far below their shares, the
    first of them in the strategy gets the task. A provider with weight 0 gets only its base. If the strategy has only one provider,
    that provider gets all tasks.
    """
    names = [provider.name for provider in strategy for _ in range(provider.base)][:count]
    if len(strategy) == 1:
        return [strategy[0].name] * count
    weighed = [provider for provider in strategy if provider.weight]
    given = dict.fromkeys((provider.name for provider in weighed), 0)
    while weighed and len(names) < count:
        chosen = min(weighed, key=lambda provider: (given[provider.name] + 1) / provider.weight)
        given[chosen.name] += 1
        names.append(chosen.name)
    return names
