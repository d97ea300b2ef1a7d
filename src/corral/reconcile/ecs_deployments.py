"""The progress of a service deployment (a rollout): failures, alarms, pauses, the bake time and the end.

`reconcile/ecs_services.py` calls `check_rollout` before it plans, and `try_complete` when all tasks of the new deployment run.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.tasks.circuit_breaker import breaker_of, count_failures, failure_threshold
from corral.decide.tasks.service_plan import SHORT_RUN_S
from corral.model.durations import MINUTE_S
from corral.model.ecs_service import EcsService, PauseHook, ServiceRollout
from corral.services.ecs.rollouts import (
    BREAKER,
    alarm_names,
    complete_rollout,
    current_rollout,
    fail_rollout,
    put,
    roll_back,
    watch_alarms,
    write_event,
)
from corral.services.ecs.service_health import healthy_count
from corral.store import Store

TASKS_FAILED = "tasks failed to start"
PAUSE_MINUTES = 1440  # the default timeout of a PAUSE hook
PRE_SCALE_UP, POST_SCALE_UP = "PRE_SCALE_UP", "POST_SCALE_UP"


def check_rollout(tx: Tx[Store], service: EcsService) -> tuple[EcsService, bool]:
    """Start a new rollout, or end a rollout that a user has stopped or that has failed.

    Return the service, and whether the service may start and stop tasks of the new deployment. The second value is False only while
    the rollout is paused before it starts tasks (PRE_SCALE_UP).
    """
    rollout = current_rollout(tx, service)
    if rollout is None or not rollout.is_ongoing:
        return service, True
    if rollout.status == "STOP_REQUESTED":
        return fail_rollout(tx, service, rollout, "stopped by a user", rollout.reason, rolls_back=False), True
    if rollout.status == "ROLLBACK_REQUESTED":
        return roll_back(tx, service, rollout, rollout.reason, "ECS deployment"), True
    if rollout.status == "PENDING":
        rollout = put(tx, service, rollout, status="IN_PROGRESS", started_at_s=tx.now_s, stage="SCALE_UP")
        watch_alarms(tx, service, rollout, alarm_names(rollout.configuration))
    if rollout.triggered_alarms and not rollout.is_rollback:
        return _fail_by_alarm(tx, service, rollout), True
    if (breaker := breaker_of(rollout.configuration)) is not None:
        counted = _count(tx, service, rollout)
        if counted.failures >= failure_threshold(rollout.configuration, service.desired):
            rollout = put(tx, service, _shown(rollout, counted))
            reason = f"{BREAKER}: {TASKS_FAILED}."
            return fail_rollout(tx, service, rollout, TASKS_FAILED, reason, rolls_back=breaker.get("rollback", False)), True
        if (shown := _shown(rollout, counted)) != rollout:
            rollout = put(tx, service, shown)
    service, paused = _pause(tx, service, rollout, PRE_SCALE_UP)
    return service, not paused


def try_complete(tx: Tx[Store], service: EcsService) -> tuple[EcsService, bool]:
    """Complete the deployment of a service whose tasks all run. Return the service, and whether the deployment is complete.

    It is not complete while its bake time lasts or while it is paused, or if a pause has timed out and the deployment has failed.
    """
    rollout = current_rollout(tx, service)
    if rollout is None or not rollout.is_ongoing:
        return complete_rollout(tx, service, None), True
    if not rollout.is_rollback:
        service, paused = _pause(tx, service, rollout, POST_SCALE_UP)
        rollout = current_rollout(tx, service)
        assert rollout is not None
        if paused or rollout.is_rollback or not rollout.is_ongoing or _bakes(tx, service, rollout):
            return service, False
    return complete_rollout(tx, service, rollout), True


def _count(tx: Tx[Store], service: EcsService, rollout: ServiceRollout) -> ServiceRollout:
    """Update the number of failures of a rollout. `healthy_count` reads all tasks, so it is called only after new failures."""
    failed = tx.store.ecs_services.failed_count(service, SHORT_RUN_S)
    healthy = healthy_count(tx, service) if failed > rollout.forgiven else rollout.healthy
    return count_failures(rollout, failed, healthy)


def _shown(rollout: ServiceRollout, counted: ServiceRollout) -> ServiceRollout:
    """During a rollback, show the number of failures that caused the rollback."""
    return counted.but(failures=rollout.failures) if rollout.is_rollback else counted


def _fail_by_alarm(tx: Tx[Store], service: EcsService, rollout: ServiceRollout) -> EcsService:
    names = ", ".join(rollout.triggered_alarms)
    reason = f"ECS deployment failed: alarm detected ({names})."
    rolls_back = rollout.configuration["alarms"].get("rollback", False)
    return fail_rollout(tx, service, rollout, "alarm detected", reason, rolls_back=rolls_back, prefix="ECS deployment alarm")


def _bakes(tx: Tx[Store], service: EcsService, rollout: ServiceRollout) -> bool:
    """Return whether the bake time still lasts. By default, the bake time is as long as the longest window of the alarms."""
    minutes, watches = rollout.configuration.get("bakeTimeInMinutes"), bool(alarm_names(rollout.configuration))
    if watches and rollout.ignored_alarms is None:
        return True  # the states of the alarms are not known yet
    bake_s = MINUTE_S * minutes if minutes is not None else rollout.alarm_window_s
    if not bake_s:
        return False
    if rollout.bake_until_s is None:
        rollout = put(tx, service, rollout, bake_until_s=tx.now_s + bake_s, stage="BAKE_TIME")
    assert rollout.bake_until_s is not None
    if tx.now_s >= rollout.bake_until_s:
        return False
    tx.due(f"service:{service.key}", rollout.bake_until_s)
    return True


# Pauses


def _pause(tx: Tx[Store], service: EcsService, rollout: ServiceRollout, stage: str) -> tuple[EcsService, bool]:
    """Pause at a stage that has a PAUSE hook. Return the service, and whether the deployment is paused at this stage."""
    if rollout.is_rollback:
        return service, False
    known = next((hook for hook in rollout.hooks if hook.stage == stage), None)
    if known is None:
        configured = next(
            (each for each in rollout.configuration.get("lifecycleHooks", ()) if stage in each.get("lifecycleStages", ())), None
        )
        if configured is None:
            return service, False
        known = _new_hook(tx, stage, configured.get("timeoutConfiguration") or {})
        rollout = put(tx, service, rollout, hooks=(*rollout.hooks, known), stage=stage)
        text = f"deployment is paused at {stage}: call ContinueServiceDeployment with the hook {known.id}."
        write_event(tx, service, f"(deployment {service.primary.id}) {text}")
    if known.status != "AWAITING_ACTION":
        return service, False
    if tx.now_s < known.expires_at_s:
        tx.due(f"service:{service.key}", known.expires_at_s)
        return service, True
    timed_out = tuple(replace(hook, status="TIMED_OUT") if hook is known else hook for hook in rollout.hooks)
    rollout = put(tx, service, rollout, hooks=timed_out, stage="SCALE_UP" if stage == PRE_SCALE_UP else stage)
    if known.timeout_action == "CONTINUE":
        return service, False
    reason = f"The pause at {stage} timed out."
    return fail_rollout(tx, service, rollout, "a pause timed out", reason, rolls_back=True, prefix="ECS deployment"), False


def _new_hook(tx: Tx[Store], stage: str, timeout: dict[str, Any]) -> PauseHook:
    expires_s = tx.now_s + MINUTE_S * timeout.get("timeoutInMinutes", PAUSE_MINUTES)
    return PauseHook(f"ecs-pause-{tx.ids.hex32()}", stage, expires_s, timeout.get("action", "ROLLBACK"))
