"""ECS's names: ARNs and short forms, and finding what they name."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from corral.core import Tx
from corral.errors import api_error
from corral.model.instance import DEFAULT_CLUSTER
from corral.services.caller import Caller
from corral.services.ecs.slots import HOST_CLUSTER_DETAILS, has_host
from corral.services.pagination import Pagination
from corral.store import Store

ClientException = api_error("ClientException")
ClusterNotFoundException = api_error("ClusterNotFoundException")
ConflictException = api_error("ConflictException")
InvalidParameterException = api_error("InvalidParameterException")

PAGES = Pagination(InvalidParameterException, default=100, largest=100)


def arn(account: str, region: str, resource: str) -> str:
    return f"arn:aws:ecs:{region}:{account}:{resource}"


def short(name: str) -> str:
    """The last part of an ARN or path; a short name is itself."""
    return name.rpartition("/")[2]


def find_cluster(tx: Tx[Store], caller: Caller, given: str | None) -> tuple[str, dict[str, Any]]:
    """(name, details) of an active cluster. A request that names none means `default`."""
    name = short(given) if given else DEFAULT_CLUSTER
    found = cluster_record(tx, caller, name)
    if found is None or found[0] != "ACTIVE":
        raise ClusterNotFoundException("Cluster not found.")
    return name, found[1]


def cluster_record(tx: Tx[Store], caller: Caller, name: str) -> tuple[str, dict[str, Any]] | None:
    """(status, details) of a cluster, active or not."""
    found = tx.store.clusters.get(caller.region, name)
    if has_host(tx, name):
        return "ACTIVE", HOST_CLUSTER_DETAILS if found is None else {**HOST_CLUSTER_DETAILS, **found[1]}
    if found is None and exists_without_row(tx, caller.region, name):
        return "ACTIVE", {}
    return found


def exists_without_row(tx: Tx[Store], region: str, name: str) -> bool:
    """Whether a cluster exists that no request created: `default`, the cluster of this machine, or one that it left with tasks."""
    return name == DEFAULT_CLUSTER or has_host(tx, name) or tx.store.clusters.has_tasks(region, name)


@lru_cache(maxsize=1024)  # every task that is started or shown names its definition
def split_definition(given: str) -> tuple[str, int | None]:
    """family, family:revision or an ARN of either → (family, revision)."""
    name = short(given) if given.startswith("arn:") else given
    family, colon, revision = name.partition(":")
    if not colon:
        return family, None
    if not revision.isdigit() or int(revision) < 1:
        raise ClientException(f"Invalid revision number. Number: {revision}")
    return family, int(revision)


def find_definition(tx: Tx[Store], caller: Caller, given: str) -> tuple[int, str, dict[str, Any]]:
    """(revision, status, document)"""
    family, revision = split_definition(given)
    found = tx.store.definitions.get(caller.region, family, revision)
    if found is None:
        raise ClientException("TaskDefinition not found.")
    return found
