"""Operations that create, update, delete, describe and list ECS clusters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.clusters import has_host, slots_of
from corral.fleet.host_options import host_clusters
from corral.fleet.instances import join_created_cluster
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.group import provider_key
from corral.operations.pagination import names
from corral.services.ecs import errors
from corral.services.ecs.account_settings import effective_value
from corral.services.ecs.capacity_providers import PROVIDER_IN_USE, check_providers, checked_strategy, group_of_provider
from corral.services.ecs.lookup import HOST_PROVIDER, PAGES, arn, cluster_name, cluster_record, find_cluster, short
from corral.services.ecs.tags import check_tags
from corral.store import Store

STORED_FIELDS = ("configuration", "serviceConnectDefaults")  # stored and returned, but without effect


def create_cluster(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params.get("clusterName", DEFAULT_CLUSTER)
    details = _checked_details(tx, caller, name, params)
    found = tx.store.clusters.get(caller.region, name)
    if found is None or found[0] != "ACTIVE":
        insights = [{"name": "containerInsights", "value": effective_value(tx, caller, "containerInsights")}]
        tx.store.clusters.put(caller.region, name, "ACTIVE", {"settings": insights, **details}, caller.owner)
        join_created_cluster(tx, caller.region, name)
        _mark_providers(tx, caller, details.get("capacityProviders", ()))
    elif any(found[1].get(key) != value for key, value in details.items()):
        raise errors.InvalidParameterException(
            "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
        )
    return {"cluster": _description(tx, caller, name, ("TAGS", "SETTINGS", "CONFIGURATIONS"))}


def update_cluster(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, _ = find_cluster(tx, caller, params["cluster"])
    _update(tx, caller, name, _checked_details(tx, caller, name, params))
    return {"cluster": _description(tx, caller, name, ("TAGS", "SETTINGS", "CONFIGURATIONS"))}


def put_cluster_capacity_providers(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, before = find_cluster(tx, caller, params["cluster"])
    details = _checked_details(tx, caller, name, params)
    removals = sorted(set(before.get("capacityProviders", ())) - set(details["capacityProviders"]))
    for removed in removals:
        used = tx.store.ecs_services.with_provider(caller.region, name, removed)
        if used or tx.store.clusters.runs_on(caller.region, name, removed):
            raise errors.ResourceInUseException(PROVIDER_IN_USE)
    _update(tx, caller, name, details)
    _mark_providers(tx, caller, removals)
    return {"cluster": _description(tx, caller, name, ("TAGS", "SETTINGS", "CONFIGURATIONS", "ATTACHMENTS"))}


def delete_cluster(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, details = find_cluster(tx, caller, params["cluster"])
    if tx.store.ecs_services.count(caller.region, name):
        raise errors.ClusterContainsServicesException("The Cluster cannot be deleted while Services are active.")
    if tx.store.clusters.active_tasks(caller.region, name):
        raise errors.ClusterContainsTasksException("The Cluster cannot be deleted while Tasks are active.")
    if has_host(tx, name) or name == DEFAULT_CLUSTER:
        raise errors.ClientException(f"The cluster `{name}` cannot be deleted: it exists in every region of this machine.")
    if slots_of(tx, caller.region, name):
        raise errors.ClusterContainsContainerInstancesException(
            "The Cluster cannot be deleted while Container Instances are active or draining."
        )
    tx.store.clusters.put(caller.region, name, "INACTIVE", details)
    return {"cluster": _description(tx, caller, name, ())}


def describe_clusters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    given = params.get("clusters") or [DEFAULT_CLUSTER]
    clusters, failures = [], []
    for name in [cluster_name(caller, each) for each in given]:
        if cluster_record(tx, caller, name):
            clusters.append(_description(tx, caller, name, params.get("include", ())))
        else:
            failures.append({"arn": arn(caller.account, caller.region, f"cluster/{name}"), "reason": "MISSING"})
    return {"clusters": clusters, "failures": failures}


def list_clusters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    def listed(after: str, limit: int) -> list[str]:
        built_in = {DEFAULT_CLUSTER, *host_clusters(tx), *tx.store.clusters.left_behind(caller.region)}
        created = tx.store.clusters.names(caller.region, after, limit)
        return sorted({*created, *(name for name in built_in if name > after)})[:limit]

    page, token = PAGES.page(params, names(listed))
    return {"clusterArns": [arn(caller.account, caller.region, f"cluster/{name}") for name in page], **token}


def _checked_details(tx: Tx[Store], caller: Caller, name: str, params: dict[str, Any]) -> dict[str, Any]:
    """Check the details of a cluster in a request, and return them in the form that is stored."""
    details: dict[str, Any] = {key: params[key] for key in STORED_FIELDS if key in params}
    if "tags" in params:
        details["tags"] = check_tags(params["tags"])
    if "settings" in params:
        details["settings"] = [_setting(given) for given in params["settings"]]
    if "capacityProviders" in params or "defaultCapacityProviderStrategy" in params:
        chosen = [short(given) for given in params.get("capacityProviders", ())]
        if has_host(tx, name) and HOST_PROVIDER not in chosen:  # this machine always belongs to its cluster
            chosen.insert(0, HOST_PROVIDER)
        check_providers(tx, caller, name, chosen)
        details["capacityProviders"] = chosen
        strategy = params.get("defaultCapacityProviderStrategy", [])
        details["defaultCapacityProviderStrategy"] = checked_strategy(strategy, chosen)
    return details


def _setting(given: dict[str, str]) -> dict[str, str]:
    if "name" not in given or "value" not in given:
        raise errors.InvalidParameterException("A cluster setting needs a name and a value.")
    return {"name": given["name"], "value": given["value"]}


def _update(tx: Tx[Store], caller: Caller, name: str, changes: dict[str, Any]) -> None:
    _, details = tx.store.clusters.get(caller.region, name) or ("ACTIVE", {})
    tx.store.clusters.put(caller.region, name, "ACTIVE", {**details, **changes})
    _mark_providers(tx, caller, changes.get("capacityProviders", ()))


def _mark_providers(tx: Tx[Store], caller: Caller, providers: Iterable[str]) -> None:
    """Reconcile capacity providers after a change of the list of providers of a cluster."""
    for provider in providers:
        if group := group_of_provider(tx, caller.region, provider):
            tx.mark(provider_key(caller.region, group))


def _description(tx: Tx[Store], caller: Caller, name: str, include: Any) -> dict[str, Any]:
    status, details = cluster_record(tx, caller, name) or ("ACTIVE", {})
    counts = tx.store.clusters.active_tasks(caller.region, name)
    running = counts.get("RUNNING", 0)
    description = {
        "clusterArn": arn(caller.account, caller.region, f"cluster/{name}"),
        "clusterName": name,
        "status": status,
        "registeredContainerInstancesCount": len(slots_of(tx, caller.region, name)),
        "runningTasksCount": running,
        "pendingTasksCount": sum(counts.values()) - running,
        "activeServicesCount": tx.store.ecs_services.count(caller.region, name),
        "statistics": _statistics(tx, caller, name) if "STATISTICS" in include else [],
        "tags": details.get("tags", []) if "TAGS" in include else [],
        "settings": details.get("settings", [{"name": "containerInsights", "value": "disabled"}]) if "SETTINGS" in include else [],
        "capacityProviders": details.get("capacityProviders", []),
        "defaultCapacityProviderStrategy": details.get("defaultCapacityProviderStrategy", []),
    }
    if "CONFIGURATIONS" in include and "configuration" in details:
        description["configuration"] = details["configuration"]
    if "serviceConnectDefaults" in details:
        description["serviceConnectDefaults"] = details["serviceConnectDefaults"]
    if "ATTACHMENTS" in include:  # on ECS, attachments are the scaling plans of capacity providers; Corral has none yet
        description |= {"attachments": [], "attachmentsStatus": "UPDATE_COMPLETE"}
    return description


def _statistics(tx: Tx[Store], caller: Caller, name: str) -> list[dict[str, str]]:
    """Count the tasks and services by launch type. The type EXTERNAL is missing, because Corral has no external instances."""
    counts = tx.store.clusters.task_statistics(caller.region, name)
    services = tx.store.ecs_services.statistics(caller.region, name)
    statistics: dict[str, int] = {}
    for launch_type, word in (("EC2", "EC2"), ("FARGATE", "Fargate")):
        of_type = {state: count for (its_type, state), count in counts.items() if its_type == launch_type}
        statistics[f"running{word}TasksCount"] = of_type.get("RUNNING", 0)
        statistics[f"pending{word}TasksCount"] = sum(of_type.values()) - of_type.get("RUNNING", 0)
        statistics[f"active{word}ServiceCount"] = services.get(("ACTIVE", launch_type), 0)
        statistics[f"draining{word}ServiceCount"] = services.get(("DRAINING", launch_type), 0)
    return [{"name": statistic, "value": str(value)} for statistic, value in statistics.items()]
