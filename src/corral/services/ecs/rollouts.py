"""Rollouts of ECS services: begin, fail, roll back, stop and complete a rollout.

A deployment (`Deployment`) is one version of a service; ECS also calls it a service revision. A rollout moves a service to a new
deployment; ECS calls it a service deployment. Only the first deployment in the list of a service starts tasks. A rollback moves the
last completed deployment to the first place in the list. The tasks of this deployment that still run continue.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.tasks.service_plan import SHORT_RUN_S
from corral.model.ecs_service import COMPLETED, FAILED, IN_PROGRESS, STARTED_BY, Deployment, EcsService, PauseHook, ServiceRollout
from corral.services.ecs.host_access import is_kept_from_host, may_use_account
from corral.services.ecs.lookup import find_definition
from corral.services.ecs.service_health import healthy_count
from corral.store import Store

BREAKER = "ECS deployment circuit breaker"
ID_LENGTH = 21
# Members of a service that belong to its revision, and have no effect on its tasks.
REVISION_MEMBERS = (
    "loadBalancers", "serviceRegistries", "serviceConnectConfiguration", "vpcLatticeConfigurations", "gatewayConnectors",
    "monitoring",
)  # fmt: skip


def write_event(tx: Tx[Store], service: EcsService, text: str) -> None:
    message = f"(service {service.name}) {text}"
    tx.store.ecs_services.add_event(service, tx.ids.uuid(), tx.now_s, message)


def new_deployment(
    tx: Tx[Store], caller: Caller, definition_arn: str, settings: dict[str, Any], *, of: Deployment | None = None
) -> Deployment:
    """Create a deployment. If it has the task definition of an earlier one (`of`), its tasks do not get more access to the host."""
    number = int(tx.ids.hex32()[:16], 16) % 10**19
    return Deployment(
        f"{STARTED_BY}{number:019d}",
        definition_arn,
        tx.now_s,
        tx.now_s,
        settings,
        only_in_docker=(of is not None and of.only_in_docker) or is_kept_from_host(tx, caller),
        as_account=may_use_account(caller) and (of is None or of.uses_account),
    )


def begin_rollout(tx: Tx[Store], caller: Caller, service: EcsService, sources: tuple[Deployment, ...] = ()) -> EcsService:
    """Begin a rollout to the first deployment of the service. A rollout that is still in progress is stopped."""
    abandon_rollout(tx, service, "A new deployment was started before this one was complete.")
    primary, details = service.primary, service.details
    _, _, document = find_definition(tx, caller, primary.definition_arn)
    images = [{"containerName": each["name"], "image": each["image"]} for each in document["containerDefinitions"]]
    revision = {
        "taskDefinition": primary.definition_arn,
        **primary.settings,
        **{member: details[member] for member in REVISION_MEMBERS if member in details},
        "containerImages": images,
        "createdAt": tx.now_s,
    }
    rollout = ServiceRollout(
        id=tx.ids.hex32()[:ID_LENGTH],
        target=primary.revision,
        sources=tuple(each.revision for each in sources),
        created_at_s=tx.now_s,
        updated_at_s=tx.now_s,
        configuration=details["deploymentConfiguration"],
        revision=revision,
    )
    tx.store.ecs_services.add_rollout(service.region, service.cluster, service.name, rollout)
    return service.but(rollout=rollout.id)


def current_rollout(tx: Tx[Store], service: EcsService) -> ServiceRollout | None:
    if not service.rollout:
        return None
    return tx.store.ecs_services.rollout(service.region, service.cluster, service.name, service.rollout)


def put(tx: Tx[Store], service: EcsService, rollout: ServiceRollout, **changes: Any) -> ServiceRollout:
    changed = rollout.but(**changes, updated_at_s=tx.now_s)
    tx.store.ecs_services.put_rollout(service, changed)
    return changed


# The end of a rollout


def complete_rollout(tx: Tx[Store], service: EcsService, rollout: ServiceRollout | None) -> EcsService:
    """Complete the first deployment of a service. If a later rollout is rolled back, the service returns to this deployment."""
    primary = replace(service.primary, rollout=COMPLETED, reason="", updated_at_s=tx.now_s)
    write_event(tx, service, f"(deployment {primary.id}) deployment completed.")
    if rollout is not None and rollout.is_ongoing:
        _end(tx, service, rollout, "ROLLBACK_SUCCESSFUL" if rollout.is_rollback else "SUCCESSFUL", rollout.reason)
    return service.but(deployments=(primary, *service.deployments[1:]), completed=primary)


def fail_rollout(
    tx: Tx[Store], service: EcsService, rollout: ServiceRollout, event: str, reason: str, *, rolls_back: bool, prefix: str = BREAKER
) -> EcsService:  # fmt: skip
    """Fail the first deployment of a service: it starts no more tasks.

    With `rolls_back`, the service returns to the last completed deployment, if it has one and this rollout is not a rollback.
    """
    write_event(tx, service, f"(deployment {service.primary.id}) deployment failed: {event}.")
    if rolls_back and not rollout.is_rollback and service.completed is not None and service.completed.id != service.primary.id:
        return roll_back(tx, service, rollout, reason, prefix)
    _end(tx, service, rollout, "ROLLBACK_FAILED" if rollout.is_rollback else "STOPPED", reason)
    failed = replace(service.primary, rollout=FAILED, reason=reason, updated_at_s=tx.now_s)
    changed = service.but(deployments=(failed, *service.deployments[1:]), is_steady=False)
    tx.store.ecs_services.put(changed)
    return changed


def roll_back(tx: Tx[Store], service: EcsService, rollout: ServiceRollout, reason: str, prefix: str) -> EcsService:
    """Make the last completed deployment the first deployment in the list of the service again."""
    failed = replace(service.primary, rollout=FAILED, reason=reason, updated_at_s=tx.now_s)
    others = service.deployments[1:]
    assert service.completed is not None
    target = next((each for each in others if each.id == service.completed.id), service.completed)
    text = f"{prefix}: rolling back to deploymentId {target.id}."
    write_event(tx, service, f"rolling back to deployment {target.id}.")
    primary = replace(target, rollout=IN_PROGRESS, reason=text, updated_at_s=tx.now_s)
    deployments = (primary, failed, *(each for each in others if each.id != target.id))
    changed = service.but(deployments=deployments, is_steady=False, problem="")
    hooks = tuple(_ended(hook, "FAILED") for hook in rollout.hooks)
    put(
        tx, service, rollout, status="ROLLBACK_IN_PROGRESS", reason=reason, stage="", hooks=hooks, bake_until_s=None,
        rollback_reason=reason, rollback_at_s=tx.now_s, rollback_to=target.revision, healthy=healthy_count(tx, changed),
        forgiven=tx.store.ecs_services.failed_count(changed, SHORT_RUN_S),
    )  # fmt: skip
    watch_alarms(tx, service, rollout, ())
    tx.store.ecs_services.put(changed)
    tx.mark(f"service:{service.key}")
    return changed


def abandon_rollout(tx: Tx[Store], service: EcsService, reason: str) -> None:
    rollout = current_rollout(tx, service)
    if rollout is not None and rollout.is_ongoing:
        _end(tx, service, rollout, "STOPPED", reason)


def _ended(hook: PauseHook, status: str) -> PauseHook:
    return replace(hook, status=status) if hook.status == "AWAITING_ACTION" else hook


def _end(tx: Tx[Store], service: EcsService, rollout: ServiceRollout, status: str, reason: str) -> ServiceRollout:
    count = tx.store.tasks.deployment_counts.of(service).get(f"{STARTED_BY}{rollout.target}")
    counts = {"requested": service.desired, "running": count.running if count is not None else 0}
    times: dict[str, Any] = {"finished_at_s": tx.now_s}
    if status == "STOPPED":
        times["stopped_at_s"] = tx.now_s
    hooks = tuple(_ended(hook, "FAILED") for hook in rollout.hooks)
    watch_alarms(tx, service, rollout, ())
    return put(tx, service, rollout, status=status, reason=reason, counts=counts, hooks=hooks, bake_until_s=None, **times)


# Alarms


def alarm_names(configuration: dict[str, Any]) -> tuple[str, ...]:
    """Return the alarms that can fail a deployment."""
    alarms = configuration.get("alarms") or {}
    return tuple(alarms.get("alarmNames", ())) if alarms.get("enable") else ()


def watch_alarms(tx: Tx[Store], service: EcsService, rollout: ServiceRollout, names: tuple[str, ...]) -> None:
    """Tell the metrics lane (the thread that evaluates alarms) to report the states of these alarms. Without names, it stops."""
    if alarm_names(rollout.configuration):
        watcher = f"{service.key}/{rollout.id}"
        tx.hand_over("metrics", "alarm watches", {"watcher": watcher, "region": service.region, "alarms": names}, key=watcher)


def receive_watched_alarms(tx: Tx[Store], payload: dict[str, Any]) -> None:
    """Store which alarms of a rollout were in the state ALARM. Ignore alarms that the first report shows in ALARM."""
    region, cluster, name, rollout_id = payload["watcher"].split("/")
    service = tx.store.ecs_services.get(region, cluster, name)
    if service is None or service.rollout != rollout_id:
        return
    rollout = current_rollout(tx, service)
    if rollout is None or not rollout.is_ongoing or rollout.is_rollback:
        return
    in_alarm = tuple(payload["in_alarm"])
    ignored = in_alarm if rollout.ignored_alarms is None else rollout.ignored_alarms
    triggered = tuple(dict.fromkeys((*rollout.triggered_alarms, *(each for each in in_alarm if each not in ignored))))
    put(tx, service, rollout, ignored_alarms=ignored, triggered_alarms=triggered, alarm_window_s=payload["window_s"])
    tx.mark(f"service:{service.key}")
