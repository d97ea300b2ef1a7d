"""Scaling activities of ECS services: what changed a desired count, and why an alarm changed nothing.

An activity that changes a desired count is in progress until the service has this number of running tasks. If the desired count
changes again before that, the activity is overridden.
"""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.scaling.service_scaling import AT_DESIRED, AT_MAX, AT_MIN
from corral.model.ecs_service import EcsService
from corral.model.group import scaling_key
from corral.model.numbers import whole_number
from corral.operations.stored_resources import Params
from corral.services.applicationautoscaling.names import DIMENSION, NAMESPACE, PAGES, is_listed, resource_of, scaling_target
from corral.services.ecs.services import set_desired_count
from corral.store import Store
from corral.store.stored_resources import Document

SHOWN_S = 42 * 86_400.0  # six weeks, as on AWS
IN_PROGRESS, SUCCESSFUL, FAILED, OVERRIDDEN = "InProgress", "Successful", "Failed", "Overridden"
LAST_MAX = 100  # how many activities are read to find the activity in progress
ATTEMPT = "Attempting to scale due to alarm triggered"


def describe_scaling_activities(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe the activities of the last six weeks, newest first."""
    if not is_listed(params):
        return {"ScalingActivities": []}
    resource = resource_of(params) if "ResourceId" in params else None
    not_scaled = params.get("IncludeNotScaledActivities", False)

    def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
        before = PAGES.position(params, _position) if after else None
        rows = tx.store.scaling.activities(
            caller.region, resource, since_s=tx.now_s - SHOWN_S, before=before, not_scaled=not_scaled, limit=limit
        )
        return [(str(number), document) for number, document in rows]

    found, more = PAGES.page(params, candidates)
    return {"ScalingActivities": found, **more}


def _position(after: str) -> int:
    number = whole_number(after)
    if number is None:
        raise ValueError("not a position")
    return number


def set_count(tx: Tx[Store], service: EcsService, resource: str, count: int, cause: str) -> None:
    """Change the desired count of a service, and write the activity. `cause` names the policy or action that made the change."""
    _end_last(tx, service.region, resource, OVERRIDDEN, "The desired count was changed again before this number of tasks ran.")
    message = f"Successfully set desired count to {count}. Waiting for change to be fulfilled by ecs."
    activity = _activity(tx, resource, f"Setting desired count to {count}.", cause, IN_PROGRESS, message)
    _put(tx, service.region, activity)
    set_desired_count(tx, service, count)
    tx.watch(_key(service.region, resource), (f"service:{service.key}",))
    tx.mark(_key(service.region, resource))


def record_limits(tx: Tx[Store], region: str, resource: str, limits: str, cause: str) -> None:
    """Write the activity of a scheduled action, for example with the limits "min capacity to 1 and max capacity to 4"."""
    activity = _activity(tx, resource, f"Setting {limits}", cause, SUCCESSFUL, f"Successfully set {limits}")
    _put(tx, region, {**activity, "EndTime": tx.now_s})


def record_not_scaled(tx: Tx[Store], region: str, target: Document, code: str, current: int, cause: str, outcome: str) -> None:
    """Write an activity that says why an alarm changed nothing. Only requests with IncludeNotScaledActivities return it."""
    reason: Document = {"Code": code, "CurrentCapacity": current}
    if code in (AT_MAX, AT_DESIRED):
        reason["MaxCapacity"] = target["MaxCapacity"]
    if code in (AT_MIN, AT_DESIRED):
        reason["MinCapacity"] = target["MinCapacity"]
    activity = _activity(tx, target["ResourceId"], ATTEMPT, cause, FAILED, outcome)
    _put(tx, region, {**activity, "EndTime": tx.now_s, "NotScaledReasons": [reason]}, is_scaled=False)


def follow_activity(tx: Tx[Store], key: str) -> None:
    """End the activity of a target if its service runs the desired count of tasks or is deleted. `key` is REGION/RESOURCE."""
    region, _, resource = key.partition("/")
    _, cluster, name = resource.split("/")
    service = tx.store.ecs_services.get(region, cluster, name)
    running = running_tasks(tx, service) if service is not None else 0
    if service is None:
        _end_last(tx, region, resource, FAILED, "The service was deleted.")
    elif running == service.desired:
        done = f"Successfully set desired count to {running}. Change successfully fulfilled by ecs."
        _end_last(tx, region, resource, SUCCESSFUL, done)
    else:
        return
    tx.watch(_key(region, resource), ())
    tx.mark(scaling_key(region, scaling_target(resource)))  # all tasks run now, so a policy may want the next scale-out


def running_tasks(tx: Tx[Store], service: EcsService) -> int:
    return sum(count.running for count in tx.store.tasks.deployment_counts.of(service).values())


def _key(region: str, resource: str) -> str:
    return f"target-activity:{region}/{resource}"


def _activity(tx: Tx[Store], resource: str, description: str, cause: str, status: str, message: str) -> Document:
    return {
        "ActivityId": tx.ids.uuid(),
        "ServiceNamespace": NAMESPACE,
        "ResourceId": resource,
        "ScalableDimension": DIMENSION,
        "Description": description,
        "Cause": cause,
        "StartTime": tx.now_s,
        "StatusCode": status,
        "StatusMessage": message,
    }


def _put(tx: Tx[Store], region: str, activity: Document, *, is_scaled: bool = True) -> None:
    tx.store.scaling.put_activity(region, activity, is_scaled=is_scaled)
    tx.due("target-activities:", tx.now_s + SHOWN_S)


def _end_last(tx: Tx[Store], region: str, resource: str, status: str, message: str) -> None:
    """End the activity in progress of a target, if there is one. Only activities of scheduled actions can be newer than it."""
    for _, activity in tx.store.scaling.activities(region, resource, since_s=0.0, limit=LAST_MAX):
        if activity["StatusCode"] == IN_PROGRESS:
            ended = {**activity, "StatusCode": status, "StatusMessage": message, "EndTime": tx.now_s}
            tx.store.scaling.put_activity(region, ended)
            return


def drop_old_activities(tx: Tx[Store], limit: int) -> None:
    """Drop activities that began more than six weeks ago, a limited number at a time."""
    if tx.store.scaling.drop_activities(tx.now_s - SHOWN_S, limit) == limit:
        tx.due("target-activities:", tx.now_s)
    elif (oldest_s := tx.store.scaling.oldest_activity_s()) is not None:
        tx.due("target-activities:", oldest_s + SHOWN_S)
