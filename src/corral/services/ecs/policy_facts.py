"""The facts about resources of ECS that policies can test, and the condition keys of requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from corral.access.caller import Caller
from corral.access.permissions import Params, request_tags, request_values
from corral.access.resources import LateTags, ResourceFacts
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.fleet.clusters import exists_without_row
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.numbers import whole_number
from corral.model.principal import ROOT
from corral.operations.listings import Listed
from corral.services.ecs import lookup
from corral.services.ecs.lookup import REVISION_MAX, short
from corral.services.ecs.tags import instance_tags
from corral.store import Store

Names = list[str]  # the parts of an ARN after the kind of the resource


def facts_of_ecs(tx: Tx[Store], region: str, resource_arn: str) -> ResourceFacts:
    """Return the facts of a resource. Without an owner, there is no such resource."""
    kind, *names = resource_arn.split(":", 5)[-1].split("/")
    find = FINDERS.get(kind)
    return find(tx, region, names) if find is not None and names else ResourceFacts()


def _facts(owner: str, tags: Iterable[Mapping[str, str]]) -> ResourceFacts:
    return ResourceFacts(owner, {tag["key"]: tag["value"] for tag in tags})


def _cluster(tx: Tx[Store], region: str, names: Names) -> ResourceFacts:
    name = names[0]
    owner, found = tx.store.clusters.owner(region, name), tx.store.clusters.get(region, name)
    if owner is None and name and exists_without_row(tx, region, name):
        owner = ROOT
    return _facts(owner, found[1].get("tags", ()) if found is not None else ()) if owner is not None else ResourceFacts()


def _task(tx: Tx[Store], region: str, names: Names) -> ResourceFacts:
    owner = tx.store.tasks.owners.of(names[-1])
    return ResourceFacts(owner, LateTags(partial(_task_tags, tx, names[-1]))) if owner is not None else ResourceFacts()


def _task_tags(tx: Tx[Store], task_id: str) -> Mapping[str, str]:
    return {tag["key"]: tag["value"] for tag in tx.store.tasks.owners.details(task_id).get("tags", ())}


def _service(tx: Tx[Store], region: str, names: Names) -> ResourceFacts:
    """A service, or one of its task sets, deployments or revisions."""
    service = tx.store.ecs_services.get(region, names[0], names[1]) if len(names) > 1 else None
    if service is None or service.status == "INACTIVE":
        return ResourceFacts()
    return _facts(service.owner, service.details.get("tags", ()))


def _definition(tx: Tx[Store], region: str, names: Names) -> ResourceFacts:
    """A revision. A family has no owner: each user may register revisions of it."""
    family, _, revision = names[0].partition(":")
    number = whole_number(revision, REVISION_MAX) or 0
    owner = tx.store.definitions.owner(region, family, number)
    return _facts(owner, tx.store.definitions.document(region, family, number)["tags"]) if owner is not None else ResourceFacts()


def _instance(tx: Tx[Store], region: str, names: Names) -> ResourceFacts:
    instance = tx.store.instances.get(names[-1])
    return _facts(instance.owner, instance_tags(tx, region, instance.id)) if instance is not None else ResourceFacts()


def _provider(tx: Tx[Store], region: str, names: Names) -> ResourceFacts:
    document = tx.store.stored.get("ecs", "capacity-provider", region, names[0])
    if document is None:
        return ResourceFacts()
    return _facts(tx.store.stored.owner("ecs", "capacity-provider", region, names[0]), document.get("tags", ()))


FINDERS = {
    "capacity-provider": _provider,
    "cluster": _cluster,
    "container-instance": _instance,
    "service": _service,
    "service-deployment": _service,
    "service-revision": _service,
    "task": _task,
    "task-definition": _definition,
    "task-set": _service,
}


# Listings


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Any) -> str | None:
    resource_arn = element if isinstance(element, str) else element.get("capacityProviderArn", "")
    return facts_of_ecs(tx, caller.region, resource_arn).owner


def _owner_of_family(tx: Tx[Store], caller: Caller, params: Params, family: str) -> str | None:
    """The caller, if it has an active revision of the family, or else the owner of the newest revision."""
    found = tx.store.definitions.get(caller.region, family, None, caller.owner)
    return tx.store.definitions.owner(caller.region, family, found[0]) if found is not None else None


LISTED = {
    "DescribeCapacityProviders": Listed(("capacityProviders",), _owner),
    "ListClusters": Listed(("clusterArns",), _owner),
    "ListContainerInstances": Listed(("containerInstanceArns",), _owner),
    "ListServices": Listed(("serviceArns",), _owner),
    "ListTaskDefinitionFamilies": Listed(("families",), _owner_of_family),
    "ListTaskDefinitions": Listed(("taskDefinitionArns",), _owner),
    "ListTasks": Listed(("taskArns",), _owner),
}


# Condition keys

KEYS = {
    "ecs:account-setting": "name",
    "ecs:auto-assign-public-ip": "networkConfiguration.awsvpcConfiguration.assignPublicIp",
    "ecs:compute-compatibility": "requiresCompatibilities",
    "ecs:container-name": "container",
    "ecs:enable-ecs-managed-tags": "enableECSManagedTags",
    "ecs:enable-service-connect": "serviceConnectConfiguration.enabled",
    "ecs:fargate-ephemeral-storage-kms-key": "configuration.managedStorageConfiguration.fargateEphemeralStorageKmsKeyId",
    "ecs:namespace": "serviceConnectConfiguration.namespace",
    "ecs:propagate-tags": "propagateTags",
    "ecs:subnet": "networkConfiguration.awsvpcConfiguration.subnets",
}
# Operations that launch tasks. Without the member, a condition key of these has the value "false".
LAUNCHES = frozenset({"CreateService", "RunTask", "StartTask"})


def request_context(caller: Caller, operation: str, params: Params) -> Context:
    """Return the condition keys of AWS's service authorization reference whose values are in the request."""
    found: dict[str, Sequence[str]] = {**request_values(params, KEYS), **request_tags(params)}
    if operation in LAUNCHES or "enableExecuteCommand" in params:
        found["ecs:enable-execute-command"] = (_text(params.get("enableExecuteCommand")),)
    if operation in LAUNCHES:
        found["ecs:enable-ebs-volumes"] = (_text(params.get("volumeConfigurations")),)
        found["ecs:enable-vpc-lattice"] = (_text(params.get("vpcLatticeConfigurations")),)
    if operation == "RegisterTaskDefinition":
        containers = params.get("containerDefinitions") or ()
        found["ecs:privileged"] = (_text(any(each.get("privileged") for each in containers)),)
    sizes = params.get("overrides") or params
    for name in ("cpu", "memory"):
        if (size := whole_number(str(sizes.get(name) or ""))) is not None:
            found[f"ecs:task-{name}"] = (str(size),)
    for key, kind, given in (
        ("ecs:capacity-provider", "capacity-provider", _providers(params)),
        ("ecs:container-instances", f"container-instance/{_cluster_given(params)}", _given(params, "containerInstances")),
        ("ecs:service", f"service/{_cluster_given(params)}", _given(params, "service")),
        ("ecs:task", f"task/{_cluster_given(params)}", _given(params, "task")),
        ("ecs:task-definition", "task-definition", _given(params, "taskDefinition")),
    ):
        if given:
            arns = (lookup.arn(caller.account, caller.region, f"{kind}/{short(each)}") for each in given)
            found[key] = tuple(dict.fromkeys(arns))
    return found


def _cluster_given(params: Params) -> str:
    return short(params.get("cluster") or "") or DEFAULT_CLUSTER


def _text(value: Any) -> str:
    return "true" if value else "false"


def _given(params: Params, member: str) -> list[str]:
    found = params.get(member) or []
    return [found] if isinstance(found, str) else [each for each in found if isinstance(each, str)]


def _providers(params: Params) -> list[str]:
    strategies = (*(params.get("capacityProviderStrategy") or ()), *(params.get("defaultCapacityProviderStrategy") or ()))
    return [*_given(params, "capacityProviders"), *(each["capacityProvider"] for each in strategies if "capacityProvider" in each)]
