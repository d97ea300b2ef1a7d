"""Operations on service deployments and service revisions: list, describe, stop and continue.

A service deployment is a `ServiceRollout` in the code. It deploys a service revision, which is a `Deployment` and its
configuration.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.tasks.circuit_breaker import breaker_of, failure_threshold
from corral.model.ecs_service import STARTED_BY, EcsService, ServiceRollout, TaskCount
from corral.operations.pagination import Pagination
from corral.services.ecs import errors
from corral.services.ecs.lookup import arn, find_cluster
from corral.services.ecs.rollouts import alarm_names, put
from corral.services.ecs.service_description import deployment_arn, revision_arn, service_arn, shown_configuration
from corral.services.ecs.services import find_service
from corral.store import Store

PAGES = Pagination(errors.InvalidParameterException, default=20, largest=100)
NO_TARGET = "The service has no completed deployment to roll back to: use the stop type ABORT, or update the service."


def list_service_deployments(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    cluster, _ = find_cluster(tx, caller, params.get("cluster"))
    service = find_service(tx, caller, cluster, params["service"])
    created, statuses = params.get("createdAt") or {}, params.get("status")
    before = PAGES.position(params, lambda text: int(text) if text else 1 << 62)
    found = [
        (number, rollout)
        for number, rollout in tx.store.ecs_services.rollouts(caller.region, cluster, service.name, before)
        if (not statuses or rollout.status in statuses)
        and created.get("after", 0.0) <= rollout.created_at_s <= created.get("before", rollout.created_at_s)
    ]
    limit = PAGES.limit_of(params) or len(found)
    more = PAGES.more(str(found[limit - 1][0]) if len(found) > limit else None)
    return {"serviceDeployments": [_brief(caller, service, rollout) for _, rollout in found[:limit]], **more}


def describe_service_deployments(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    described, failures = [], []
    for given in params["serviceDeploymentArns"]:
        found = _find(tx, caller, given)
        if found is None:
            failures.append({"arn": given, "reason": "MISSING"})
        else:
            described.append(_description(tx, caller, *found))
    return {"serviceDeployments": described, "failures": failures}


def describe_service_revisions(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    described, failures = [], []
    for given in params["serviceRevisionArns"]:
        region, cluster, name, number = _parts(given, "service-revision")
        rollout = tx.store.ecs_services.rollout_of_revision(region, cluster, name, number)
        if rollout is None or region != caller.region:
            failures.append({"arn": given, "reason": "MISSING"})
            continue
        where = {
            "serviceRevisionArn": given,
            "serviceArn": service_arn(caller.account, region, cluster, name),
            "clusterArn": arn(caller.account, region, f"cluster/{cluster}"),
            "guardDutyEnabled": False,
        }
        described.append({**where, **rollout.revision})
    return {"serviceRevisions": described, "failures": failures}


def stop_service_deployment(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Stop a rollout in progress. ROLLBACK returns to the last completed deployment. ABORT leaves the tasks as they are."""
    service, rollout = _ongoing(tx, caller, params["serviceDeploymentArn"])
    stop_type = params.get("stopType", "ROLLBACK")
    if rollout.status in ("PENDING", "IN_PROGRESS"):
        if stop_type == "ROLLBACK":
            _request_rollback(tx, service, rollout, "Service deployment rolled back because of a StopServiceDeployment request.")
        else:
            put(tx, service, rollout, status="STOP_REQUESTED", reason="Service deployment stopped by a user.")
        tx.mark(f"service:{service.key}")
    return {"serviceDeploymentArn": params["serviceDeploymentArn"]}


def continue_service_deployment(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Continue a rollout that is paused by a lifecycle hook, or roll it back."""
    service, rollout = _ongoing(tx, caller, params["serviceDeploymentArn"])
    hook = rollout.paused
    if hook is None or hook.id != params["hookId"]:
        raise errors.InvalidParameterException(f"The service deployment is not paused by the hook {params['hookId']}.")
    rolls_back = params.get("action") == "ROLLBACK"
    status = "FAILED" if rolls_back else "SUCCEEDED"
    hooks = tuple(replace(each, status=status) if each is hook else each for each in rollout.hooks)
    rollout = put(tx, service, rollout, hooks=hooks, stage="SCALE_UP" if hook.stage == "PRE_SCALE_UP" else rollout.stage)
    if rolls_back:
        _request_rollback(tx, service, rollout, "Service deployment rolled back because of a ContinueServiceDeployment request.")
    tx.mark(f"service:{service.key}")
    return {"serviceDeploymentArn": params["serviceDeploymentArn"]}


def _request_rollback(tx: Tx[Store], service: EcsService, rollout: ServiceRollout, reason: str) -> None:
    if service.completed is None or service.completed.id == service.primary.id:
        raise errors.ConflictException(NO_TARGET)
    put(tx, service, rollout, status="ROLLBACK_REQUESTED", reason=reason)


# Find service deployments


def _parts(given: str, kind: str) -> tuple[str, str, str, str]:
    """Split an ARN into region, cluster, service and the last part."""
    fields = given.split(":", 5)
    path = fields[-1].split("/")
    if len(fields) != 6 or len(path) != 4 or path[0] != kind:
        raise errors.InvalidParameterException(f"{given} is not the ARN of a {kind}.")
    return fields[3], path[1], path[2], path[3]


def service_of_deployment(given: str) -> tuple[str, str]:
    """Return the cluster and the service in the ARN of a service deployment. Return empty texts if the ARN is not valid."""
    try:
        return _parts(given, "service-deployment")[1:3]
    except errors.InvalidParameterException:
        return "", ""


def _find(tx: Tx[Store], caller: Caller, given: str) -> tuple[EcsService, ServiceRollout] | None:
    region, cluster, name, rollout_id = _parts(given, "service-deployment")
    service = tx.store.ecs_services.get(region, cluster, name)
    rollout = tx.store.ecs_services.rollout(region, cluster, name, rollout_id)
    return (service, rollout) if service is not None and rollout is not None and region == caller.region else None


def _ongoing(tx: Tx[Store], caller: Caller, given: str) -> tuple[EcsService, ServiceRollout]:
    found = _find(tx, caller, given)
    if found is None:
        raise errors.ServiceDeploymentNotFoundException("The service deployment was not found.")
    if not found[1].is_ongoing:
        raise errors.ConflictException(f"The service deployment has already ended: its status is {found[1].status}.")
    return found


# Descriptions


def _brief(caller: Caller, service: EcsService, rollout: ServiceRollout) -> dict[str, Any]:
    return {
        "serviceDeploymentArn": deployment_arn(caller.account, service, rollout.id),
        "serviceArn": service_arn(caller.account, service.region, service.cluster, service.name),
        "clusterArn": arn(caller.account, service.region, f"cluster/{service.cluster}"),
        "targetServiceRevisionArn": revision_arn(caller.account, service, rollout.target),
        "createdAt": rollout.created_at_s,
        "startedAt": rollout.started_at_s,
        "finishedAt": rollout.finished_at_s,
        "status": rollout.status,
        "statusReason": rollout.reason or None,
    }


def _description(tx: Tx[Store], caller: Caller, service: EcsService, rollout: ServiceRollout) -> dict[str, Any]:
    brief = _brief(caller, service, rollout)
    del brief["targetServiceRevisionArn"]
    counts = tx.store.tasks.deployment_counts.of(service)

    def revision(number: str, requested: int) -> dict[str, Any]:
        count = counts.get(f"{STARTED_BY}{number}", TaskCount())
        ended = rollout.counts if number == rollout.target else {}
        return {
            "arn": revision_arn(caller.account, service, number),
            "requestedTaskCount": ended.get("requested", requested),
            "runningTaskCount": ended.get("running", count.running),
            "pendingTaskCount": 0 if ended else count.total - count.running,
        }

    described = {
        **brief,
        "updatedAt": rollout.updated_at_s,
        "stoppedAt": rollout.stopped_at_s,
        "sourceServiceRevisions": [revision(number, 0) for number in rollout.sources],
        "targetServiceRevision": revision(rollout.target, service.desired),
        "deploymentConfiguration": shown_configuration(service, rollout.configuration),
        "deploymentCircuitBreaker": _breaker(service, rollout),
        "alarms": _alarms(rollout),
        "lifecycleStage": rollout.stage or None,
        "lifecycleHookDetails": [
            {
                "hookId": hook.id,
                "targetType": "PAUSE",
                "status": hook.status,
                "expiresAt": hook.expires_at_s,
                "timeoutAction": hook.timeout_action,
            }
            for hook in rollout.hooks
        ],
    }
    if rollout.is_rollback:
        described["rollback"] = {
            "reason": rollout.rollback_reason,
            "startedAt": rollout.rollback_at_s,
            "serviceRevisionArn": revision_arn(caller.account, service, rollout.rollback_to),
        }
    return described


def _breaker(service: EcsService, rollout: ServiceRollout) -> dict[str, Any]:
    if breaker_of(rollout.configuration) is None:
        return {"status": "DISABLED", "failureCount": 0, "threshold": 0}
    threshold = failure_threshold(rollout.configuration, rollout.counts.get("requested", service.desired))
    status = "TRIGGERED" if rollout.failures >= threshold else _monitor(rollout)
    return {"status": status, "failureCount": rollout.failures, "threshold": threshold}


def _alarms(rollout: ServiceRollout) -> dict[str, Any]:
    names = alarm_names(rollout.configuration)
    status = "TRIGGERED" if rollout.triggered_alarms else _monitor(rollout)
    triggered = list(rollout.triggered_alarms)
    return {"status": status if names else "DISABLED", "alarmNames": list(names), "triggeredAlarmNames": triggered}


def _monitor(rollout: ServiceRollout) -> str:
    return "MONITORING" if rollout.is_ongoing and not rollout.is_rollback else "MONITORING_COMPLETE"
