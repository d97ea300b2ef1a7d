"""The reconciler `scaling` applies the scaling policies that alarms request.

A policy can be an action of an alarm. While the alarm stays in the state of this action, the alarm keeps a request to the policy.
The target of a policy is what the policy scales: an Auto Scaling group or an ECS service. Each call decides about all requests to
the policies of one target. As on AWS, the target gets the largest capacity that one of its policies wants. The reconciler sends the
result of a request to the metrics lane, which adds it to the history of the alarm.
"""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.scaling.alarm_scaling import Verdict
from corral.model.alarm import Progress, ScalingRequest
from corral.model.group import scaling_key
from corral.services.cloudwatch.common import alarm_name
from corral.store import Store
from corral.store.stored_resources import Document

SERVICES = "ecs:"  # the target of the policies of an ECS service begins with this text
Decided = tuple[str, ScalingRequest, Verdict]  # the ARN of the alarm, its request, and the decision about it


class Policies(Protocol):
    """The policies of one target, by ARN, and the methods that apply them.

    A new kind of target needs a class with these members, a line in `_policies_of`, and a form of ARN in `target_of_policy`.
    """

    policies: dict[str, Document]

    @property
    def desired(self) -> int:
        """The current desired capacity of the target."""

    def problem(self, policy: Document | None, request: ScalingRequest) -> str:
        """Return why a request has no effect, or an empty text."""

    def decide(self, policy: Document, request: ScalingRequest, progress: Progress) -> Verdict:
        """Decide which capacity a policy wants because of a request."""

    def tracks_in(self, policy: Document) -> bool:
        """Return whether the policy is a target tracking policy that may scale in."""

    def scale(self, policy: Document, wanted: int, cause: str) -> None:
        """Set the desired capacity. `cause` names the alarm and the policy."""

    def not_scaled(self, policy: Document, verdict: Verdict, cause: str) -> None:
        """Record why a request has changed nothing. `_record` calls this method when the code of the reason changes.

        Not every reason has a code. AWS defines the codes.
        """


def reconcile_scaling(tx: Tx[Store], key: str) -> None:
    region, _, target = key.partition("/")
    requests = tx.store.scaling.of_target(region, target)
    if not requests:
        return
    repeats = any(progress.since_s == request.since_s for _, request, progress in requests)
    scaled = _policies_of(tx, region, target, repeats=repeats)
    decided: list[Decided] = []
    for alarm, request, progress in requests:
        policy = scaled.policies.get(request.policy)
        problem = scaled.problem(policy, request)
        if problem or policy is None:
            verdict = Verdict(None, _of_request(progress, request), None, problem)
        else:
            verdict = scaled.decide(policy, request, progress)
        decided.append((alarm, request, verdict))
    applied = _apply(scaled, _agreed(scaled, decided))
    for each, (_, _, progress) in zip(decided, requests):
        _record(tx, scaled, each, progress, applied=each is applied)
    again = [verdict.again_s for _, _, verdict in decided if verdict.again_s is not None]
    if again:
        tx.due(scaling_key(region, target), min(again))


def _policies_of(tx: Tx[Store], region: str, target: str, *, repeats: bool) -> Policies:
    """Return the policies of a target. `repeats` is whether one of the requests to them has been decided before.

    If something other than a policy has changed the desired capacity, repeated requests wait. A request that is decided for the
    first time does not wait, and the change must not delay its later repetitions.
    """
    if target.startswith(SERVICES):
        from corral.reconcile.service_scaling import ServicePolicies  # imported with the first policy of a service

        return ServicePolicies(tx, region, target.removeprefix(SERVICES), repeats=repeats)
    from corral.reconcile.group_scaling import GroupPolicies  # loads 90 modules, which takes up to 80 ms

    return GroupPolicies(tx, region, target, repeats=repeats)


def _of_request(progress: Progress, request: ScalingRequest) -> Progress:
    return progress if progress.since_s == request.since_s else Progress(request.since_s)


def _agreed(scaled: Policies, decided: list[Decided]) -> list[Decided]:
    """Drop the scale-ins that target tracking policies want, unless all target tracking policies that may scale in want one.

    This is the same as on AWS.
    """
    tracking = {arn for arn, policy in scaled.policies.items() if scaled.tracks_in(policy)}
    scales_in = {
        request.policy
        for _, request, verdict in decided
        if request.policy in tracking and verdict.wanted is not None and verdict.wanted < scaled.desired
    }
    if scales_in == tracking:
        return decided
    return [each for each in decided if each[1].policy not in scales_in]


def _apply(scaled: Policies, decided: list[Decided]) -> Decided | None:
    """Set the desired capacity to the largest wanted capacity. Return the request that caused a change, or None."""
    wanting = [each for each in decided if each[2].wanted is not None]
    chosen = max(wanting, key=lambda each: each[2].wanted or 0, default=None)
    if chosen is None or chosen[2].wanted is None or chosen[2].wanted == scaled.desired:
        return None
    policy = scaled.policies[chosen[1].policy]
    scaled.scale(policy, chosen[2].wanted, _cause(chosen, policy))
    return chosen


def _cause(decided: Decided, policy: Document) -> str:
    alarm, request, _ = decided
    return f"monitor alarm {alarm_name(alarm)} in state {request.state} triggered policy {policy['PolicyName']}"


def _record(tx: Tx[Store], scaled: Policies, decided: Decided, before: Progress, *, applied: bool) -> None:
    """Store the progress of a request. Send its first result, and the first success after a failure, to the alarm's history."""
    alarm, request, verdict = decided
    progress = verdict.progress if applied else _of_request(before, request)
    first = progress.told is None or (progress.told and not verdict.outcome)
    if verdict.outcome is not None and first:
        tx.hand_over("metrics", "action results", {"alarm": alarm, "action": request.policy, "error": verdict.outcome})
        progress = replace(progress, told=verdict.outcome)
    if verdict.code and verdict.code != progress.noted:
        scaled.not_scaled(scaled.policies[request.policy], verdict, _cause(decided, scaled.policies[request.policy]))
    if applied or verdict.code:
        progress = replace(progress, noted=verdict.code)
    if progress != before:
        tx.store.scaling.set_progress(alarm, request.policy, progress)
