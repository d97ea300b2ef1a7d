"""Names and ARNs of ECS, and functions that find clusters, their container instances and task definitions."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.placement.strategies import zone_of
from corral.fleet.clusters import exists_without_row, has_host, pools_of
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.numbers import whole_number
from corral.model.placement import Slot
from corral.model.task import Task, ecs_arn
from corral.operations.pagination import Pagination
from corral.services.ecs import errors
from corral.store import Store

arn = ecs_arn
PAGES = Pagination(errors.InvalidParameterException, default=100, largest=100)
SEPARATORS = "Invalid identifier: Unexpected number of separators"
ID_LENGTHS = (32, 36)  # of tasks and container instances
CLUSTER_NAME = re.compile(r"[a-zA-Z0-9\-_]{1,255}")
REVISION_REQUIRED = "Task definition must include a revision: family:revision."

HOST_PROVIDER = "host"  # the capacity provider that is this machine; only the cluster of this machine can have it
HOST_CLUSTER_DETAILS: dict[str, Any] = {  # the details of the cluster of this machine, unless a caller has changed them
    "capacityProviders": [HOST_PROVIDER],
    "defaultCapacityProviderStrategy": [{"capacityProvider": HOST_PROVIDER, "weight": 1, "base": 0}],
}


def short(name: str) -> str:
    """Return the last part of an ARN or path. A short name is returned unchanged."""
    return name.rpartition("/")[2]


def name_in(caller: Caller, cluster: str, kind: str, given: str) -> str:
    """Return the name or id of a resource in a cluster. Refuse the ARN of another kind, cluster, region or account."""
    if "/" not in given and ":" not in given:
        return given
    path = _path(caller, kind, given)
    if len(path) > 2:
        raise errors.InvalidParameterException(SEPARATORS)
    if len(path) == 2 and path[0] != cluster:
        raise errors.InvalidParameterException(
            f"Invalid identifier: Identifier is for cluster {path[0]}. Your cluster is {cluster}"
        )
    return path[-1]


def task_id_in(caller: Caller, cluster: str, given: str) -> str:
    return _id(name_in(caller, cluster, "task", given), "taskId")


def instance_id_in(caller: Caller, cluster: str, given: str) -> str:
    return _id(name_in(caller, cluster, "container-instance", given), "instanceId")


def _id(given: str, member: str) -> str:
    if len(given) not in ID_LENGTHS:
        raise errors.InvalidParameterException(f"{member} length should be one of [{','.join(map(str, ID_LENGTHS))}]")
    return given


def _path(caller: Caller, kind: str, given: str) -> list[str]:
    """Split a name, or what follows the kind in an ARN, at its slashes."""
    fields = given.split(":", 5)
    path = fields[-1].split("/")
    if fields[0] != "arn":
        return given.split("/")
    if fields[2:5] != ["ecs", caller.region, caller.account] or path[0] != kind or len(path) < 2:
        raise errors.InvalidParameterException(
            f"Invalid identifier: {given} is not the ARN of a {kind} of this account in {caller.region}."
        )
    return path[1:]


# Clusters and their slots


def find_cluster(tx: Tx[Store], caller: Caller, given: str | None) -> tuple[str, dict[str, Any]]:
    """Return the name and the details of an active cluster. Without a name in the request, it is the cluster `default`."""
    name = cluster_name(caller, given) if given else DEFAULT_CLUSTER
    found = cluster_record(tx, caller, name)
    if found is None:
        raise errors.cluster_not_found()
    if found[0] != "ACTIVE":
        raise errors.ClusterNotFoundException("The referenced cluster was inactive.")
    return name, found[1]


def cluster_name(caller: Caller, given: str) -> str:
    """Return the name of a cluster that a request names by its name or ARN."""
    path = [given] if "/" not in given and ":" not in given else _path(caller, "cluster", given)
    if len(path) != 1:
        raise errors.InvalidParameterException(SEPARATORS)
    if not CLUSTER_NAME.fullmatch(path[0]):
        raise errors.InvalidParameterException(f"Cluster must match ^{CLUSTER_NAME.pattern}$, but was {path[0]}")
    return path[0]


def cluster_record(tx: Tx[Store], caller: Caller, name: str) -> tuple[str, dict[str, Any]] | None:
    """Return the status and the details of a cluster, active or not. Return None if it does not exist."""
    found = tx.store.clusters.get(caller.region, name)
    if has_host(tx, name):
        return "ACTIVE", HOST_CLUSTER_DETAILS if found is None else {**HOST_CLUSTER_DETAILS, **found[1]}
    if found is None and exists_without_row(tx, caller.region, name):
        return "ACTIVE", {}
    return found


def find_slot(tx: Tx[Store], region: str, cluster: str, slot_id: str) -> tuple[str, Slot] | None:
    """Return the pool and the slot of a container instance. Return None if the cluster has no such instance."""
    for name in pools_of(tx, region, cluster):
        pool = tx.store.fleet.pool(name)
        if slot_id in pool:
            return name, pool.slot(slot_id)
    return None


def zone_of_task(tx: Tx[Store], task: Task) -> str:
    """The zone of a task's instance. A host is in every region, in the first zone."""
    instance = tx.store.instances.get(task.instance_id) if task.instance_id is not None else None
    found = instance.details.get("Placement", {}).get("AvailabilityZone") if instance is not None else None
    return str(found) if found else zone_of(task.region)


# Task definitions

REVISION_MAX = 2**31 - 1


@lru_cache(maxsize=1024)  # every start and every description of a task splits the ARN of its definition
def split_definition(given: str) -> tuple[str, int | None]:
    """Split `family`, `family:revision` or an ARN of either into family and revision. The revision is None if it is not given."""
    name = short(given) if given.startswith("arn:") else given
    family, colon, revision = name.partition(":")
    if not colon:
        return family, None
    number = whole_number(revision, REVISION_MAX)
    if not number:
        raise errors.ClientException(f"Invalid revision number. Number: {revision}")
    return family, number


def find_definition(tx: Tx[Store], caller: Caller, given: str) -> tuple[int, str, dict[str, Any]]:
    """Return the revision, the status and the document of a task definition. Raise an error if it does not exist.

    Without a revision, it is the newest active revision that the caller's owner has registered, or else the newest of all.
    """
    family, revision = split_definition(given)
    found = tx.store.definitions.get(caller.region, family, revision, caller.owner)
    if found is None:
        raise errors.ClientException("TaskDefinition not found.")
    return found
