"""Operations on ECS services: create, update, delete, describe, list.

The operations store the service. `reconcile/ecs_services.py` starts and stops its tasks. A deployment is one version of a service.
A rollout moves the service to a new deployment (`rollouts.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.leaving_tasks import withdraw
from corral.model.ecs_service import ACTIVE, DAEMON, DRAINING, INACTIVE, REPLICA, SERVICE_TASKS_MAX, EcsService
from corral.model.group import scaling_key
from corral.operations.pagination import Pagination, names
from corral.services.ecs import errors, fargate
from corral.services.ecs.capacity_providers import checked_strategy, providers_of_cluster
from corral.services.ecs.lookup import arn, find_cluster, find_definition, name_in
from corral.services.ecs.placement_rules import placement_rules
from corral.services.ecs.rollouts import abandon_rollout, begin_rollout, current_rollout, new_deployment, put
from corral.services.ecs.service_description import service_arn, service_description
from corral.services.ecs.tags import check_tags
from corral.store import Store

SERVICE_PAGES = Pagination(errors.InvalidParameterException, default=10, largest=100)
# Members of requests that are stored. The members in STORED_ONLY have no effect on tasks.
EFFECTIVE = (
    "placementConstraints", "placementStrategy", "deploymentConfiguration", "enableECSManagedTags", "propagateTags",
    "enableExecuteCommand", "healthCheckGracePeriodSeconds",
)  # fmt: skip
STORED_ONLY = (
    "platformVersion", "loadBalancers", "serviceRegistries", "role", "availabilityZoneRebalancing", "serviceConnectConfiguration",
    "vpcLatticeConfigurations", "gatewayConnectors", "monitoring",
)  # fmt: skip
# Members of requests that belong to a deployment.
DEPLOYED = ("launchType", "capacityProviderStrategy", "platformVersion", "networkConfiguration")
DEFAULT_PERCENTAGES = {
    REPLICA: {"maximumPercent": 200, "minimumHealthyPercent": 100},
    DAEMON: {"maximumPercent": 100, "minimumHealthyPercent": 0},
}
# Members of a deployment configuration that UpdateService does not change in a rollout that is in progress.
FIXED_MEMBERS = ("alarms", "lifecycleHooks")
PAUSE_STAGES = ("PRE_SCALE_UP", "POST_SCALE_UP")
BAKE_MINUTES_MAX = 1440
NOT_IDEMPOTENT = "Creation of service was not idempotent."
STILL_DRAINING = "Unable to Start a service that is still Draining."
NO_DAEMON_COUNT = (
    "The daemon scheduling strategy does not support a desired count for services. Remove the desired count value and try again."
)


def create_service(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, about = find_cluster(tx, caller, params.get("cluster"))
    name, strategy = params["serviceName"], params.get("schedulingStrategy", REPLICA)
    _refuse_unserved(params)
    external = (params.get("deploymentController") or {}).get("type") == "EXTERNAL"
    if external:
        _check_external(params)
    elif not params.get("taskDefinition"):
        raise errors.InvalidParameterException("TaskDefinition cannot be empty.")
    if strategy == REPLICA and "desiredCount" not in params:
        raise errors.InvalidParameterException("A service with the scheduling strategy REPLICA needs a desiredCount.")
    if strategy == DAEMON:
        _check_daemon(params)
        params = {"launchType": "EC2", **params}  # DAEMON services have no provider, so the cluster's strategy does not apply
    settings = {} if external else deployment_settings(tx, params, about, caller, cluster)
    definition_arn = "" if external else definition_arn_of(tx, caller, params["taskDefinition"], settings, params)
    details = {key: params[key] for key in (*EFFECTIVE, *STORED_ONLY, "clientToken") if key in params}
    details["deploymentConfiguration"] = _deployment_configuration(params, strategy)
    details["tags"] = check_tags(params.get("tags", []))
    details["createdBy"] = caller.principal.arn
    details["deploymentController"] = params.get("deploymentController") or {"type": "ECS"}
    details["availabilityZoneRebalancing"] = _rebalancing(params, strategy, details)
    _check_placement(caller, cluster, name, details, settings)
    before = tx.store.ecs_services.get(caller.region, cluster, name)
    if before is not None and before.status == DRAINING:
        raise errors.InvalidParameterException(STILL_DRAINING)
    if before is not None and before.status == ACTIVE:
        if before.details.get("clientToken") and before.details["clientToken"] == params.get("clientToken"):
            return {"service": service_description(tx, before)}
        raise errors.InvalidParameterException(NOT_IDEMPOTENT)
    if before is not None:
        tx.store.ecs_services.drop_history(caller.region, cluster, name)
    service = EcsService(
        region=caller.region,
        cluster=cluster,
        name=name,
        status=ACTIVE,
        strategy=strategy,
        desired=params.get("desiredCount", 0),
        created_at_s=tx.now_s,
        deployments=() if external else (new_deployment(tx, caller, definition_arn, settings),),
        details=details,
        owner=caller.owner,
    )
    if not external:
        service = begin_rollout(tx, caller, service)
    _write(tx, service)
    return {"service": service_description(tx, service)}


def update_service(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, about = find_cluster(tx, caller, params.get("cluster"))
    service = find_service(tx, caller, cluster, params["service"])
    if service.status != ACTIVE:
        raise errors.ServiceNotActiveException("Service was not ACTIVE.")
    _refuse_unserved(params)
    if service.strategy == DAEMON:
        _check_daemon(params)
    details = {**service.details, **{key: params[key] for key in (*EFFECTIVE, *STORED_ONLY) if key in params}}
    if "deploymentConfiguration" in params:
        details["deploymentConfiguration"] = _deployment_configuration(params, service.strategy, service.details)
    if service.is_external:
        _check_external(params)
        _check_placement(caller, cluster, service.name, details, {})
        changed = set_desired_count(tx, service.but(details=details), params.get("desiredCount", service.desired))
        return {"service": service_description(tx, changed)}
    primary = service.primary
    settings = {**primary.settings, **deployment_settings(tx, params, about, caller, cluster, service)}
    if params.get("capacityProviderStrategy"):
        settings.pop("launchType", None)
    if not _is_fargate(settings):
        for member in ("platformVersion", "platformFamily"):
            settings.pop(member, None)
    given = params.get("taskDefinition") or primary.definition_arn
    definition_arn = definition_arn_of(tx, caller, given, settings, details, unchanged=not params.get("taskDefinition"))
    _check_placement(caller, cluster, service.name, details, settings)
    if params.get("availabilityZoneRebalancing"):
        _rebalancing(params, service.strategy, details)
    changed = service.but(details=details)
    if params.get("forceNewDeployment") or (definition_arn, settings) != (primary.definition_arn, primary.settings):
        counts = tx.store.tasks.deployment_counts.of(service)
        older = tuple(each for each in service.deployments if each is primary or each.id in counts)
        earlier = None if params.get("taskDefinition") else primary
        deployments = (new_deployment(tx, caller, definition_arn, settings, of=earlier), *older)
        changed = begin_rollout(tx, caller, changed.but(deployments=deployments), older)
    elif "deploymentConfiguration" in params:
        _reconfigure(tx, changed)
    changed = set_desired_count(tx, changed, params.get("desiredCount", service.desired))
    return {"service": service_description(tx, changed)}


def delete_service(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    service = find_service(tx, caller, cluster, params["service"])
    if service.status == INACTIVE:
        raise errors.ServiceNotFoundException("Service not found.")
    if service.status == ACTIVE:
        if service.strategy == REPLICA and service.desired and not params.get("force"):
            raise errors.InvalidParameterException("The service cannot be stopped while it is scaled above 0.")
        if params.get("force"):
            key = f"service:{service.key}"
            withdraw(tx, tx.store.tasks.leaving.chosen_by(key), key)  # do not wait for busy tasks (leaving_tasks.py)
        abandon_rollout(tx, service, "The service was deleted.")
        service = service.but(status=DRAINING, desired=0, is_steady=False)
        _write(tx, service)
    return {"service": service_description(tx, service)}


def describe_services(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    described, failures = [], []
    for name in [name_in(caller, cluster, "service", given) for given in params["services"]]:
        service = tx.store.ecs_services.get(caller.region, cluster, name)
        if service is None:
            failures.append({"arn": service_arn(caller.account, caller.region, cluster, name), "reason": "MISSING"})
        else:
            described.append(service_description(tx, service, tags="TAGS" in params.get("include", ())))
    return {"services": described, "failures": failures}


def list_services(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    if params.get("resourceManagementType") == "ECS":
        return {"serviceArns": []}  # the request lists Express services, which Corral does not have

    def listed(after: str, limit: int) -> list[str]:
        return tx.store.ecs_services.listed(
            caller.region, cluster, after, limit, params.get("schedulingStrategy"), params.get("launchType")
        )

    page, token = SERVICE_PAGES.page(params, names(listed))
    return {"serviceArns": [service_arn(caller.account, caller.region, cluster, name) for name in page], **token}


def set_desired_count(tx: Tx[Store], service: EcsService, count: int) -> EcsService:
    """Change how many tasks a service runs. UpdateService and scaling policies call this function."""
    changed = service.but(desired=min(count, SERVICE_TASKS_MAX), is_steady=False, problem="")
    _write(tx, changed)
    return changed


def find_service(tx: Tx[Store], caller: Caller, cluster: str, given: str) -> EcsService:
    service = tx.store.ecs_services.get(caller.region, cluster, name_in(caller, cluster, "service", given))
    if service is None:
        raise errors.ServiceNotFoundException("Service not found.")
    return service


def _write(tx: Tx[Store], service: EcsService) -> None:
    """Store a service and mark it. Its scaling policies are decided again too, because its desired count may have changed."""
    tx.store.ecs_services.put(service)
    tx.mark(f"service:{service.key}")
    tx.mark(scaling_key(service.region, service.scaling_target))


def _reconfigure(tx: Tx[Store], service: EcsService) -> None:
    """Apply a new deployment configuration to the rollout in progress. The alarms and hooks of the rollout do not change."""
    rollout = current_rollout(tx, service)
    if rollout is not None and rollout.is_ongoing:
        given = service.details["deploymentConfiguration"]
        kept = {member: rollout.configuration[member] for member in FIXED_MEMBERS if member in rollout.configuration}
        new = {member: value for member, value in given.items() if member not in FIXED_MEMBERS}
        put(tx, service, rollout, configuration={**new, **kept})


def deployment_settings(
    tx: Tx[Store], params: dict[str, Any], cluster_details: dict[str, Any], caller: Caller, cluster: str,
    service: EcsService | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Check the deployment settings of a request and return them.

    Without a launch type and a strategy, a new service gets the default strategy of its cluster, or else the launch type EC2.
    """
    settings = {key: params[key] for key in DEPLOYED if key in params}
    strategy = settings.get("capacityProviderStrategy")
    if settings.get("launchType") and strategy:
        raise errors.InvalidParameterException("Specify either a launch type or a capacity provider strategy, not both.")
    if settings.get("launchType") in ("EXTERNAL", "MANAGED_INSTANCES"):
        raise errors.UnsupportedFeatureException(f"Corral does not serve the launch type {settings['launchType']} for services.")
    if service is None and not settings.get("launchType") and not strategy:
        strategy = cluster_details.get("defaultCapacityProviderStrategy")
        if not strategy:
            settings["launchType"] = "EC2"
    if strategy:
        known = providers_of_cluster(tx, cluster, cluster_details)
        settings["capacityProviderStrategy"] = checked_strategy(strategy, known)
    known_settings = settings if service is None else {**service.primary.settings, **settings}
    if _is_fargate(known_settings):
        if "platformVersion" in settings or "platformVersion" not in known_settings:
            settings |= {"platformVersion": fargate.platform_version(settings.get("platformVersion")), "platformFamily": "Linux"}
    elif settings.get("platformVersion"):
        raise errors.InvalidParameterException("The platform version must be null when specifying an EC2 launch type.")
    return settings


def _check_daemon(params: dict[str, Any]) -> None:
    """Refuse settings that a DAEMON service cannot have, because it runs one task on each instance."""
    if "desiredCount" in params:
        raise errors.InvalidParameterException(NO_DAEMON_COUNT)
    if params.get("capacityProviderStrategy"):
        raise errors.InvalidParameterException(
            "The DAEMON scheduling strategy does not support a capacity provider strategy. Remove it; a placement constraint can "
            "choose the instances."
        )
    if params.get("placementStrategy"):
        raise errors.InvalidParameterException("The DAEMON scheduling strategy does not support placement strategies. Remove them.")
    if params.get("launchType") == "FARGATE":
        raise errors.InvalidParameterException("The Fargate launch type does not support the DAEMON scheduling strategy.")


def _check_external(params: dict[str, Any]) -> None:
    """Refuse settings that belong to the task sets of a service with the deployment controller EXTERNAL."""
    if params.get("schedulingStrategy", REPLICA) != REPLICA:
        raise errors.InvalidParameterException("The deployment controller EXTERNAL supports only the scheduling strategy REPLICA.")
    for member in ("taskDefinition", "forceNewDeployment", *DEPLOYED, "loadBalancers", "serviceRegistries"):
        if params.get(member):
            raise errors.InvalidParameterException(
                f"A service with the deployment controller EXTERNAL has no {member} of its own: pass it to CreateTaskSet."
            )


def _is_fargate(settings: dict[str, Any]) -> bool:
    strategy = settings.get("capacityProviderStrategy") or [{"capacityProvider": settings.get("launchType") or ""}]
    return str(strategy[0]["capacityProvider"]).startswith("FARGATE")


def definition_arn_of(
    tx: Tx[Store], caller: Caller, given: str, settings: dict[str, Any], targets: dict[str, Any], *, unchanged: bool = False
) -> str:  # fmt: skip
    """Check the task definition and return its ARN with the revision. If `unchanged` is True, it can be inactive.

    `targets` has the loadBalancers and the serviceRegistries, which name containers and ports of the definition.
    """
    revision, status, document = find_definition(tx, caller, given)
    if status != "ACTIVE" and not unchanged:
        raise errors.ClientException("TaskDefinition is inactive")
    network = (settings.get("networkConfiguration") or {}).get("awsvpcConfiguration")
    if _is_fargate(settings) and not unchanged:
        fargate.check_definition(document, settings["platformVersion"])
    for target in (*(targets.get("loadBalancers") or ()), *(targets.get("serviceRegistries") or ())):
        _check_target(document, target)
    if document.get("networkMode") == "awsvpc" and not network:
        raise errors.InvalidParameterException("Network Configuration must be provided when networkMode 'awsvpc' is specified.")
    if document.get("networkMode") != "awsvpc" and network:
        raise errors.InvalidParameterException(
            "Network Configuration is not valid for the given networkMode of this task definition."
        )
    return arn(caller.account, caller.region, f"task-definition/{document['family']}:{revision}")


def _check_target(document: dict[str, Any], target: dict[str, Any]) -> None:
    """Refuse a load balancer or a service registry with a container or a port that the task definition does not have."""
    name, port = target.get("containerName"), target.get("containerPort")
    if not name:
        return
    container = next((each for each in document["containerDefinitions"] if each["name"] == name), None)
    if container is None:
        raise errors.InvalidParameterException(f"The container {name} does not exist in the task definition.")
    if port is not None and port not in [mapping.get("containerPort") for mapping in container["portMappings"]]:
        raise errors.InvalidParameterException(f"The container {name} did not have a container port {port} defined.")


def _rebalancing(params: dict[str, Any], strategy: str, details: dict[str, Any]) -> str:
    """Return availabilityZoneRebalancing, which has no effect on one machine. By default it is on if ECS supports it."""
    given, placed = params.get("availabilityZoneRebalancing"), details.get("placementStrategy")
    spreads_zones = not placed or (placed[0].get("type"), placed[0].get("field")) == ("spread", "attribute:ecs.availability-zone")
    is_classic = any(each.get("loadBalancerName") for each in details.get("loadBalancers") or ())
    is_external = details["deploymentController"]["type"] == "EXTERNAL"
    grows = details["deploymentConfiguration"]["maximumPercent"] > 100
    is_possible = strategy == REPLICA and grows and spreads_zones and not is_classic and not is_external
    if given == "ENABLED" and not is_possible:
        raise errors.InvalidParameterException(
            "availabilityZoneRebalancing needs the scheduling strategy REPLICA, a maximumPercent above 100, no Classic Load "
            "Balancer, and no placement strategy before the one that spreads tasks across Availability Zones."
        )
    return given or ("ENABLED" if is_possible else "DISABLED")


def _deployment_configuration(params: dict[str, Any], strategy: str, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Check and return the deployment configuration of a request. Missing members come from `before`, or else from the defaults."""
    previous = (before or {}).get("deploymentConfiguration") or DEFAULT_PERCENTAGES[strategy]
    given = params.get("deploymentConfiguration") or {}
    full: dict[str, Any] = {**previous, **given}
    if full.get("strategy", "ROLLING") != "ROLLING":
        raise errors.UnsupportedFeatureException(
            f"Corral does not serve the deployment strategy {full['strategy']} yet: use ROLLING."
        )
    _check_hooks(full.get("lifecycleHooks") or ())
    _check_failure_detection(full)
    least, most = full["minimumHealthyPercent"], full["maximumPercent"]
    if least < 0 or most < 100:
        raise errors.InvalidParameterException("maximumPercent must be at least 100, and minimumHealthyPercent at least 0.")
    if strategy == DAEMON and most > 100:
        raise errors.InvalidParameterException(
            "The daemon scheduling strategy does not support values above 100 for maximumPercent on a deployment configuration. "
            "Change the maximumPercent value to 100, and try again"
        )
    if least > 100:
        raise errors.InvalidParameterException("minimumHealthyPercent must be at most 100.")
    if least == most:
        raise errors.InvalidParameterException(
            "maximumPercent must be larger than minimumHealthyPercent: otherwise a deployment can neither stop nor start a task."
        )
    return full


def _check_failure_detection(configuration: dict[str, Any]) -> None:
    alarms = configuration.get("alarms") or {}
    if alarms.get("enable") and not alarms.get("alarmNames"):
        raise errors.InvalidParameterException("alarms.alarmNames must name at least one alarm if the alarms are enabled.")
    threshold = (configuration.get("deploymentCircuitBreaker") or {}).get("thresholdConfiguration") or {}
    if threshold and threshold["value"] < 1:
        raise errors.InvalidParameterException("thresholdConfiguration.value must be at least 1.")
    if not 0 <= (configuration.get("bakeTimeInMinutes") or 0) <= BAKE_MINUTES_MAX:
        raise errors.InvalidParameterException(f"bakeTimeInMinutes must be between 0 and {BAKE_MINUTES_MAX}.")
    if (configuration.get("earlySuccessCriteria") or {}).get("enable"):
        raise errors.UnsupportedFeatureException("Corral does not serve earlySuccessCriteria: remove it, or set enable to false.")


def _check_hooks(hooks: Sequence[dict[str, Any]]) -> None:
    """Refuse lifecycle hooks that Corral does not implement."""
    for hook in hooks:
        if hook.get("targetType", "AWS_LAMBDA") != "PAUSE":
            raise errors.UnsupportedFeatureException("Corral does not serve lifecycle hooks of the type AWS_LAMBDA: use PAUSE.")
        for stage in hook.get("lifecycleStages", ()):
            if stage not in PAUSE_STAGES:
                raise errors.UnsupportedFeatureException(
                    f"Corral does not serve the lifecycle stage {stage}, because a rolling update shifts no traffic: use "
                    f"{' or '.join(PAUSE_STAGES)}."
                )


def _check_placement(caller: Caller, cluster: str, name: str, details: dict[str, Any], settings: dict[str, Any]) -> None:
    launch_type = "FARGATE" if _is_fargate(settings) else "EC2"
    placement_rules(
        details.get("placementConstraints", []), details.get("placementStrategy", []), launch_type,
        f"{caller.region}/{cluster}", f"service:{name}",
    )  # fmt: skip


def _refuse_unserved(params: dict[str, Any]) -> None:
    """Refuse settings that Corral does not implement and that would change the tasks."""
    controller = (params.get("deploymentController") or {}).get("type", "ECS")
    if controller not in ("ECS", "EXTERNAL"):
        raise errors.UnsupportedFeatureException(
            f"Corral does not serve the deployment controller {controller}: use ECS or EXTERNAL."
        )
    if params.get("volumeConfigurations"):
        raise errors.UnsupportedFeatureException("Corral does not serve volumeConfigurations yet.")
