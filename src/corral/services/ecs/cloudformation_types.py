"""ECS resource types of CloudFormation templates. A step creates, updates or deletes one resource of a stack."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.fleet.clusters import has_host
from corral.model.agent_protocol import DEFAULT_CLUSTER
from corral.model.ecs_service import FAILED, INACTIVE, EcsService
from corral.model.stack import StackStatus
from corral.services.ecs.capacity_providers import PROVIDER_IN_USE
from corral.services.ecs.errors import ResourceInUseException
from corral.services.ecs.lookup import HOST_PROVIDER, arn, cluster_record, short, split_definition
from corral.services.ecs.rollouts import BREAKER, current_rollout
from corral.services.ecs.tags import set_reserved_tags
from corral.store import Store
from corral.template_types.api_calls import call, request_of
from corral.template_types.api_types import AlreadyExists, Params, Tagging, api_type
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, Waiting

STOPS_MAX = 20  # the most tasks that one transaction stops
PACE_S = 0.001  # the time until the next transaction that stops tasks
STABILIZES_S = 3 * 3600.0  # CloudFormation waits three hours for a service to become stable
NotStabilized = api_error("NotStabilized")
TAGGING = Tagging(
    "TagResource",
    "UntagResource",
    lambda caller, resource: {"resourceArn": resource},
    tags="tags",
    keys="tagKeys",
    shape=lambda tags: [{"key": key, "value": value} for key, value in tags.items()],
    is_created=True,
)
# Property of a service → the value that UpdateService gets if an update of the stack removes the property.
SERVICE_DEFAULTS: dict[str, Any] = {
    "PlacementConstraints": [],
    "PlacementStrategies": [],
    "LoadBalancers": [],
    "ServiceRegistries": [],
    "CapacityProviderStrategy": [],
    "EnableExecuteCommand": False,
    "EnableECSManagedTags": False,
    "PropagateTags": "NONE",
    "HealthCheckGracePeriodSeconds": 0,
}


def _exists(tx: Tx[Store], caller: Caller, cluster: str) -> bool:
    found = tx.store.clusters.get(caller.region, cluster)
    return found is not None and found[0] == "ACTIVE"


# Clusters


def _cluster_arn(caller: Caller, name: str) -> str:
    return arn(caller.account, caller.region, f"cluster/{name}")


def _create_cluster(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    name = properties["ClusterName"]
    if _exists(tx, caller, name):
        raise AlreadyExists(f"Cluster {name} already exists")
    call(tx, caller, "ecs", "CreateCluster", _cluster_request("CreateCluster", properties))
    set_reserved_tags(tx, caller, _cluster_arn(caller, name), properties.get("_tags", {}))
    return str(name)


def _cluster_request(operation: str, properties: Properties) -> dict[str, Any]:
    settings = {"settings": properties["ClusterSettings"]} if "ClusterSettings" in properties else {}
    return request_of("ecs", operation, {**properties, **settings})


def _update_cluster(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    if "ClusterSettings" in old and "ClusterSettings" not in new:
        new = {**new, "ClusterSettings": [{"Name": "containerInsights", "Value": "disabled"}]}
    call(tx, caller, "ecs", "UpdateCluster", {**_cluster_request("UpdateCluster", new), "cluster": identity})
    providers = ("CapacityProviders", "DefaultCapacityProviderStrategy")
    if any(old.get(name) != new.get(name) for name in providers):
        _associate(tx, caller, identity, {name: new.get(name, []) for name in providers})
    TAGGING.change(tx, caller, "ecs", _cluster_arn(caller, identity), old, new)


def _delete_cluster(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if _exists(tx, caller, identity) and not has_host(tx, identity) and identity != DEFAULT_CLUSTER:
        call(tx, caller, "ecs", "DeleteCluster", {"cluster": identity})


def _associate(tx: Tx[Store], caller: Caller, cluster: str, properties: Properties) -> None:
    request = request_of("ecs", "PutClusterCapacityProviders", properties)
    given = {"capacityProviders": [], "defaultCapacityProviderStrategy": [], **request, "cluster": cluster}
    call(tx, caller, "ecs", "PutClusterCapacityProviders", given)


def _create_association(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    _associate(tx, caller, properties["Cluster"], properties)
    return str(properties["Cluster"])


def _update_association(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    _associate(tx, caller, identity, new)


def _delete_association(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if _exists(tx, caller, short(identity)) and not _tasks_of_providers(tx, caller, short(identity)):
        _associate(tx, caller, identity, {})


def _association_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Remove the capacity providers from the cluster. Return what the step waits for, or None if the providers are removed.

    ECS refuses to remove a capacity provider that runs tasks. If the stack is deleted or rolled back, stop these tasks first: the
    later deletion of the Auto Scaling group would stop them anyway. In any other case, raise ECS's error.
    """
    cluster = short(step.physical_id)
    if not _exists(tx, caller, cluster):
        return None
    tasks, stack = _tasks_of_providers(tx, caller, cluster), tx.store.stacks.get(step.stack_id)
    if tasks and (stack is None or stack.status not in (StackStatus.DELETE_IN_PROGRESS, StackStatus.ROLLBACK_IN_PROGRESS)):
        raise ResourceInUseException(PROVIDER_IN_USE)
    for task_id in tasks:
        request = {"cluster": cluster, "task": task_id, "reason": f"The stack {step.stack_name} is deleted"}
        call(tx, caller, "ecs", "StopTask", request)
    left = _tasks_of_providers(tx, caller, cluster)  # a task that waited for capacity has stopped at once
    if not left:
        _associate(tx, caller, cluster, {})
        return None
    again_s = tx.now_s + PACE_S if set(left) - set(tasks) else None
    return Waiting(tuple(f"task:{task_id}" for task_id in left), "the tasks of the capacity providers are stopping.", again_s)


def _tasks_of_providers(tx: Tx[Store], caller: Caller, cluster: str) -> list[str]:
    """Return the ids of at most STOPS_MAX unstopped tasks of a cluster's capacity providers. Ignore the provider `host`."""
    _, details = cluster_record(tx, caller, cluster) or ("", {})
    providers = [name for name in details.get("capacityProviders", ()) if name != HOST_PROVIDER]
    found = [task for name in providers for task in tx.store.clusters.tasks_on(caller.region, cluster, name, STOPS_MAX)]
    return found[:STOPS_MAX]


# Capacity providers


def _provider_arn(caller: Caller, name: str) -> str:
    return arn(caller.account, caller.region, f"capacity-provider/{name}")


def _create_provider(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    reply = call(tx, caller, "ecs", "CreateCapacityProvider", request_of("ecs", "CreateCapacityProvider", properties))
    name = str(reply["capacityProvider"]["name"])
    set_reserved_tags(tx, caller, _provider_arn(caller, name), properties.get("_tags", {}))
    return name


def _update_provider(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    group = {name: value for name, value in new["AutoScalingGroupProvider"].items() if name != "AutoScalingGroupArn"}
    request = request_of("ecs", "UpdateCapacityProvider", {"Name": identity, "AutoScalingGroupProvider": group})
    call(tx, caller, "ecs", "UpdateCapacityProvider", request)
    TAGGING.change(tx, caller, "ecs", _provider_arn(caller, identity), old, new)


def _delete_provider(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if tx.store.stored.get("ecs", "capacity-provider", caller.region, identity) is not None:
        reply = call(tx, caller, "ecs", "DeleteCapacityProvider", {"capacityProvider": identity})["capacityProvider"]
        if reply["updateStatus"] == "DELETE_FAILED":
            raise ResourceInUseException(reply["updateStatusReason"])


# Task definitions


def _definition_request(caller: Caller, properties: Properties) -> Params:
    request = request_of("ecs", "RegisterTaskDefinition", properties)
    if proxy := request.get("proxyConfiguration"):
        pairs = [{name.lower(): value for name, value in each.items()} for each in proxy.pop("ProxyConfigurationProperties", ())]
        request["proxyConfiguration"] = {**proxy, "properties": pairs}
    return request


def _is_registered(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> bool:
    family, revision = split_definition(identity)
    return revision is not None and tx.store.definitions.get(caller.region, family, revision) is not None


# Services


def _service(tx: Tx[Store], caller: Caller, identity: str) -> EcsService | None:
    """Find a service by its ARN, which ends with CLUSTER/NAME."""
    _, cluster, name = identity.rsplit("/", 2)
    return tx.store.ecs_services.get(caller.region, cluster, name)


def _service_request(operation: str, properties: Properties) -> dict[str, Any]:
    placement = {"PlacementStrategy": properties["PlacementStrategies"]} if "PlacementStrategies" in properties else {}
    others = {name: value for name, value in properties.items() if name != "ForceNewDeployment"}
    return request_of("ecs", operation, {**others, **placement})


def _create_service(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    request = _service_request("CreateService", properties)
    if request.get("schedulingStrategy", "REPLICA") == "REPLICA":
        request.setdefault("desiredCount", 1)
    return str(call(tx, caller, "ecs", "CreateService", request)["service"]["serviceArn"])


def _update_service(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    removed = {name: value for name, value in SERVICE_DEFAULTS.items() if name in old and name not in new}
    if any(old.get(name) != new.get(name) for name in {*old, *new} - {"Tags"} if not name.startswith("_")):
        forced = new.get("ForceNewDeployment", {})
        force = {"forceNewDeployment": True} if _is_forced(forced) and forced != old.get("ForceNewDeployment") else {}
        where = {"cluster": identity.rsplit("/", 2)[1], "service": identity}
        call(tx, caller, "ecs", "UpdateService", {**_service_request("UpdateService", {**removed, **new}), **where, **force})
    TAGGING.change(tx, caller, "ecs", identity, old, new)


def _is_forced(forced: dict[str, Any]) -> bool:
    return str(forced.get("EnableForceNewDeployment", False)).lower() == "true"


def _delete_service(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    service = _service(tx, caller, identity)
    if service is not None and service.status != INACTIVE:
        call(tx, caller, "ecs", "DeleteService", {"cluster": service.cluster, "service": service.name, "force": True})


def _service_settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Return None if the service runs the desired number of tasks and its deployment is complete. Otherwise return why it waits.

    Raise NotStabilized if the deployment has failed or takes longer than STABILIZES_S, or if the service was deleted.
    """
    service = _service(tx, caller, step.physical_id)
    if service is None or service.status == INACTIVE:
        raise NotStabilized(f"The service {step.physical_id} was deleted.")
    if (failure := _failure(tx, service, step)) is not None:
        raise NotStabilized(failure)
    if service.is_steady:
        return None
    until_s = step.started_s + STABILIZES_S
    reason = service.problem or f"not all {service.desired} tasks of the deployment run yet."
    text = f"(service {service.name}) {reason}"
    if tx.now_s >= until_s:
        raise NotStabilized(f"The service did not become stable within {STABILIZES_S / 3600:g} hours: {text}")
    return Waiting((f"service:{service.key}",), text, until_s)


def _failure(tx: Tx[Store], service: EcsService, step: ResourceStep) -> str | None:
    """Return why the deployment of this step has failed, or None. The rollback of an earlier deployment is no failure."""
    rollout = current_rollout(tx, service)
    if rollout is None or (rollout.is_ongoing and not rollout.is_rollback) or rollout.status == "SUCCESSFUL":
        return None
    if rollout.created_at_s < step.started_s and service.primary.rollout != FAILED:
        return None
    if rollout.reason.startswith(BREAKER):
        return "Error occurred during operation 'ECS Deployment Circuit Breaker was triggered'."
    return f"Error occurred during operation 'ECS deployment failed': {rollout.reason}"


def _service_gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Return None if the last task of a deleted service has ended. Otherwise return what the step waits for."""
    service = _service(tx, caller, step.physical_id)
    if service is None or service.status == INACTIVE:
        return None
    return Waiting((f"service:{service.key}",), f"(service {service.name}) its tasks are stopping.")


TEMPLATE_TYPES = (
    TemplateType(
        "AWS::ECS::Cluster",
        _create_cluster,
        lambda tx, caller, identity: {"Arn": _cluster_arn(caller, identity)},
        _update_cluster,
        _delete_cluster,
        "ClusterName",
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::ECS::ClusterCapacityProviderAssociations",
        _create_association,
        lambda tx, caller, identity: {},
        _update_association,
        _delete_association,
        gone=_association_gone,
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::ECS::CapacityProvider",
        _create_provider,
        lambda tx, caller, identity: {},
        _update_provider,
        _delete_provider,
        "Name",
        checks_permissions=True,
    ),
    api_type(
        "AWS::ECS::TaskDefinition",
        "ecs",
        identity_in="taskDefinition.taskDefinitionArn",
        target="taskDefinition",
        create="RegisterTaskDefinition",
        request=_definition_request,
        delete="DeregisterTaskDefinition",
        found=_is_registered,
        tagging=TAGGING,
        system_tags=set_reserved_tags,
        attributes=lambda tx, caller, identity: {"TaskDefinitionArn": identity},
        name_property="Family",
        has_versions=True,
    ),
    TemplateType(
        "AWS::ECS::Service",
        _create_service,
        lambda tx, caller, identity: {"Name": short(identity), "ServiceArn": identity},
        _update_service,
        _delete_service,
        "ServiceName",
        name_scope=("Cluster",),
        settled=_service_settled,
        gone=_service_gone,
        checks_permissions=True,
    ),
)
