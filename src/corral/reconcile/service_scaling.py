"""Decides about the requests of alarms to the scaling policies of ECS services. `reconcile/scaling.py` calls `ServicePolicies`.

This module also has the reconcilers of the scheduled actions and the scaling activities of scalable targets. A scalable target is
the registration of a service with Application Auto Scaling.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.scaling.alarm_scaling import REPEAT_S, Verdict
from corral.decide.scaling.service_scaling import ServiceCapacity, decide_scaling
from corral.decide.scaling.target_tracking import is_scale_in
from corral.model.alarm import Progress, ScalingRequest
from corral.model.ecs_service import EcsService
from corral.model.settings import Settings
from corral.services.applicationautoscaling import activities
from corral.services.applicationautoscaling.names import POLICY, documents_of, find_target, service_of
from corral.services.applicationautoscaling.policies import CONFIGURATION, PREDICTIVE, TRACKING, cooldown_s, rule_of
from corral.services.applicationautoscaling.scheduled_actions import run_due_actions
from corral.services.applicationautoscaling.targets import cooldowns_of, set_cooldowns
from corral.store import Store
from corral.store.stored_resources import Document

MEASURED_EVERY_S = 5.0  # Corral measures the CPU and memory of tasks at this interval, so the newest value may be this old
ACTIVITIES_MAX = 1000  # the most old activities that one transaction deletes


class ServicePolicies:
    """The policies of one ECS service. This class implements `Policies` in `reconcile/scaling.py`."""

    def __init__(self, tx: Tx[Store], region: str, resource: str, *, repeats: bool) -> None:
        self._tx, self._region, self._resource = tx, region, resource
        target = find_target(tx, region, resource)
        self._target: Document = target if target is not None else {}
        self._service = service_of(tx, region, resource) if target is not None else None
        if self._service is not None:
            before, least_s = cooldowns_of(self._target), _repeat_s(tx.settings)
            cooldowns = before.noting(tx.now_s, self._service.desired, repeats=repeats, least_s=least_s)
            if cooldowns != before:
                self._target = set_cooldowns(tx, region, self._target, cooldowns)
        self._capacity = _capacity(tx, self._target, self._service) if self._service is not None else None
        self.policies: dict[str, Document] = {each["PolicyARN"]: each for each in documents_of(tx, region, POLICY, resource)}

    @property
    def desired(self) -> int:
        return self._capacity.desired if self._capacity is not None else 0

    def problem(self, policy: Document | None, request: ScalingRequest) -> str:
        if not self._target or policy is None:
            return f"The scaling policy {request.policy} does not exist."
        if policy["PolicyType"] == PREDICTIVE:
            return f"The policy {policy['PolicyName']} is of the type {PREDICTIVE}, which alarms cannot apply."
        if self._service is None:
            return f"The service {self._resource} does not exist or is not ACTIVE."
        return ""

    def decide(self, policy: Document, request: ScalingRequest, progress: Progress) -> Verdict:
        rule, cooldowns = rule_of(policy, request.threshold), cooldowns_of(self._target)
        capacity = self._measured_capacity(policy, request) if rule.tracking else self._capacity
        assert capacity is not None
        return decide_scaling(request, rule, capacity, cooldowns, progress, self._tx.now_s)

    def _measured_capacity(self, policy: Document, request: ScalingRequest) -> ServiceCapacity:
        """Return the capacity, with the number of tasks that have started or stopped since the request's metric was measured."""
        tx, service, capacity = self._tx, self._service, self._capacity
        assert service is not None and capacity is not None
        out_s = tx.settings.scaling.target_tracking_out_s + MEASURED_EVERY_S
        if is_scale_in(request.threshold, policy[CONFIGURATION]["TargetValue"]):
            if capacity.desired > capacity.least and request.measured_s is not None:
                stopped = tx.store.ecs_services.stopped_since(service, request.measured_s - MEASURED_EVERY_S)
                return replace(capacity, stopped=stopped)
        elif capacity.desired < capacity.most:
            since_s = tx.now_s - out_s if request.measured_s is None else request.measured_s
            young, first_s = tx.store.ecs_services.started_since(service, since_s)
            mature_s = first_s + out_s if first_s is not None and request.measured_s is None else None
            return replace(capacity, young=young, mature_s=mature_s)
        return capacity

    def tracks_in(self, policy: Document) -> bool:
        return policy["PolicyType"] == TRACKING and not policy[CONFIGURATION].get("DisableScaleIn")

    def scale(self, policy: Document, wanted: int, cause: str) -> None:
        assert self._service is not None and self._capacity is not None
        lasts_s = cooldown_s(policy, out=wanted > self.desired)
        cooldowns = cooldowns_of(self._target).after(self._tx.now_s, self._capacity, wanted, lasts_s, _repeat_s(self._tx.settings))
        set_cooldowns(self._tx, self._region, self._target, cooldowns)
        activities.set_count(self._tx, self._service, self._resource, wanted, cause)

    def not_scaled(self, policy: Document, verdict: Verdict, cause: str) -> None:
        activities.record_not_scaled(self._tx, self._region, self._target, verdict.code, self.desired, cause, verdict.outcome or "")


def _repeat_s(settings: Settings) -> float:
    """Return the shortest time between two scalings by a policy, in seconds.

    With the timing `fast` of alarms, a policy uses the metric of the last `target_tracking_out_s` seconds. All these seconds must
    be after the start of the tasks that the policy has added last.
    """
    return REPEAT_S if settings.alarm_timing != "fast" else 2 * settings.scaling.target_tracking_out_s


def _capacity(tx: Tx[Store], target: Document, service: EcsService) -> ServiceCapacity:
    suspended = target["SuspendedState"]
    return ServiceCapacity(
        desired=service.desired,
        least=target["MinCapacity"],
        most=target["MaxCapacity"],
        running=activities.running_tasks(tx, service),
        stopping=tx.store.ecs_services.count_stopping(service),
        out_suspended=suspended["DynamicScalingOutSuspended"],
        in_suspended=suspended["DynamicScalingInSuspended"],
        is_deploying=len(service.deployments) > 1,
    )


def run_scheduled_actions(tx: Tx[Store], key: str) -> None:
    """Run the scheduled actions of a scalable target that are due, and schedule the next call."""
    region, _, resource = key.partition("/")
    next_s = run_due_actions(tx, region, resource)
    if next_s is not None:
        tx.due(f"target-schedule:{key}", tx.steps.steady_s(next_s))


def follow_activity(tx: Tx[Store], key: str) -> None:
    """End the activity of a scalable target when its service runs as many tasks as desired."""
    activities.follow_activity(tx, key)


def drop_old_activities(tx: Tx[Store], _: str) -> None:
    activities.drop_old_activities(tx, ACTIVITIES_MAX)
