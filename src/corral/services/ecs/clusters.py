"""ECS clusters."""

from __future__ import annotations

import re
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.ecs import paging
from corral.services.ecs.naming import (
    DEFAULT_CLUSTER,
    HOST_PROVIDER,
    ClientException,
    InvalidParameterException,
    arn,
    find_cluster,
    short,
)
from corral.store import HOST_POOL, Store

ClusterContainsTasksException = api_error("ClusterContainsTasksException")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
KEPT = ("tags", "settings", "configuration", "capacityProviders", "defaultCapacityProviderStrategy", "serviceConnectDefaults")


def create_cluster(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name = params.get("clusterName", DEFAULT_CLUSTER)
    if not NAME.fullmatch(name):
        raise InvalidParameterException("Invalid cluster name: use up to 255 letters, digits, hyphens and underscores.")
    if "capacityProviders" in params or "defaultCapacityProviderStrategy" in params:
        raise ClientException("Corral does not serve capacity providers of your own yet; `default` has the provider `host`.")
    found = tx.store.cluster(caller.region, name)
    if found is None or found[0] != "ACTIVE":  # creating one that is there is no error, as on ECS
        tx.store.put_cluster(caller.region, name, "ACTIVE", {key: params[key] for key in KEPT if key in params})
    return {"cluster": _described(tx, caller, name, ("TAGS", "SETTINGS"))}


def delete_cluster(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    name, details = find_cluster(tx, caller, params["cluster"])
    if tx.store.active_tasks_of_cluster(caller.region, name):
        raise ClusterContainsTasksException("The Cluster cannot be deleted while Tasks are active.")
    if name == DEFAULT_CLUSTER:
        raise ClientException("The cluster `default` is this machine and stays.")
    tx.store.put_cluster(caller.region, name, "INACTIVE", details)
    return {"cluster": _described(tx, caller, name, ())}


def describe_clusters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    clusters, failures = [], []
    for given in params.get("clusters") or [DEFAULT_CLUSTER]:
        name = short(given)
        if name == DEFAULT_CLUSTER or tx.store.cluster(caller.region, name):
            clusters.append(_described(tx, caller, name, params.get("include", ())))
        else:
            failures.append({"arn": arn(caller.account, caller.region, f"cluster/{name}"), "reason": "MISSING"})
    return {"clusters": clusters, "failures": failures}


def list_clusters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    def names(after: str, limit: int) -> list[str]:
        found = tx.store.cluster_names(caller.region, after, limit)
        if after < DEFAULT_CLUSTER and DEFAULT_CLUSTER not in found:
            found = sorted([*found, DEFAULT_CLUSTER])[:limit]
        return found

    page, token = paging.page(params, names)
    return {"clusterArns": [arn(caller.account, caller.region, f"cluster/{name}") for name in page], **token}


def _described(tx: Tx[Store], caller: Caller, name: str, include: Any) -> dict[str, Any]:
    status, details = tx.store.cluster(caller.region, name) or ("ACTIVE", {})
    counts = tx.store.active_tasks_of_cluster(caller.region, name)
    is_default = name == DEFAULT_CLUSTER
    shown = {
        "clusterArn": arn(caller.account, caller.region, f"cluster/{name}"),
        "clusterName": name,
        "status": status,
        "registeredContainerInstancesCount": len(list(tx.store.fleet.pool(HOST_POOL).slots())) if is_default else 0,
        "runningTasksCount": counts.get("RUNNING", 0),
        "pendingTasksCount": counts.get("PENDING", 0) + counts.get("PROVISIONING", 0),
        "activeServicesCount": 0,
        "statistics": [],
        "tags": details.get("tags", []) if "TAGS" in include else [],
        "settings": details.get("settings", [{"name": "containerInsights", "value": "disabled"}]) if "SETTINGS" in include else [],
        "capacityProviders": [HOST_PROVIDER] if is_default else [],
        "defaultCapacityProviderStrategy": [{"capacityProvider": HOST_PROVIDER, "weight": 1, "base": 0}] if is_default else [],
    }
    if "CONFIGURATIONS" in include and "configuration" in details:
        shown["configuration"] = details["configuration"]
    return shown
