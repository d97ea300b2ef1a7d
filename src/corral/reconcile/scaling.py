"""The reconciler `scaling` applies the policies of an Auto Scaling group that alarms request.

Each alarm keeps a request to a policy while it stays in the state that has the policy as an action. Each run decides about all
requests to the policies of a group. The largest wanted capacity wins, as on AWS. The result of a request is sent to the lane of
metrics, for the history of the alarm.
"""

from __future__ import annotations

from msgspec.structs import replace

from corral.core import Tx
from corral.decide.alarm_scaling import REPEAT_S, GroupCapacity, Verdict, decide_request
from corral.decide.group_capacity import COUNTED
from corral.model.alarm import Progress, ScalingRequest
from corral.model.group import DELETING, TERMINATION_STATES, Group, LifecycleState, Member, scaling_key
from corral.services.autoscaling import group_changes
from corral.services.autoscaling.names import POLICY, documents_of
from corral.services.autoscaling.scaling_policies import PREDICTIVE, SIMPLE, TRACKING, rule_of, warmup_s
from corral.services.cloudwatch.common import alarm_name
from corral.store import Store
from corral.store.stored_resources import Document

NO_GROUP = "Corral does not serve scaling policies of Application Auto Scaling yet: nothing was done."
Decided = tuple[str, ScalingRequest, Verdict]  # the ARN of the alarm, its request, and the decision about it


def reconcile_scaling(tx: Tx[Store], key: str) -> None:
    region, _, name = key.partition("/")
    requests = tx.store.scaling.of_group(region, name)
    if not requests:
        return
    group = tx.store.groups.get(region, name) if name else None
    policies = {each["PolicyARN"]: each for each in documents_of(tx, region, POLICY, name)} if group is not None else {}
    if group is not None:
        group = _note_other_changes(tx, group)
    decided: list[Decided] = []
    for alarm, request, progress in requests:
        policy = policies.get(request.policy)
        problem = _problem(group, policy, request)
        if problem or group is None or policy is None:
            verdict = Verdict(None, _of_request(progress, request), None, problem)
        else:
            verdict = _decide(tx, group, policy, request, progress)
        decided.append((alarm, request, verdict))
    applied = _apply(tx, group, policies, _agreed(policies, decided, group.desired)) if group is not None else None
    for each, (_, _, progress) in zip(decided, requests):
        _record(tx, each, progress, applied=each is applied)
    again = [verdict.again_s for _, _, verdict in decided if verdict.again_s is not None]
    if again:
        tx.due(scaling_key(region, name), min(again))


def _note_other_changes(tx: Tx[Store], group: Group) -> Group:
    """If something else has set the desired capacity, for example a user, policies are not applied again for a minute."""
    if group.policy_desired == group.desired:
        return group
    waits = {} if group.policy_desired is None else {"policies_wait_until_s": tx.now_s + REPEAT_S}
    group = group.but(policy_desired=group.desired, **waits)
    tx.store.groups.put(group)
    return group


def _problem(group: Group | None, policy: Document | None, request: ScalingRequest) -> str:
    """Return why a request has no effect, or an empty text."""
    if ":autoScalingGroupName/" not in request.policy:
        return NO_GROUP
    if group is None or policy is None or group.status == DELETING:
        return f"The scaling policy {request.policy} does not exist."
    if policy["PolicyType"] == PREDICTIVE:
        return f"The policy {policy['PolicyName']} is of the type {PREDICTIVE}, which alarms cannot apply."
    if not policy["Enabled"]:
        return f"The policy {policy['PolicyName']} is disabled."
    if "AlarmNotification" in group.suspended:
        return f"The process AlarmNotification of AutoScalingGroup {group.name} is suspended."
    return ""


def _of_request(progress: Progress, request: ScalingRequest) -> Progress:
    return progress if progress.since_s == request.since_s else Progress(request.since_s)


def _decide(tx: Tx[Store], group: Group, policy: Document, request: ScalingRequest, progress: Progress) -> Verdict:
    return decide_request(
        request,
        rule_of(policy, request.threshold),
        capacity_now(group, tx.store.groups.members(group.region, group.name), warmup_s(group, policy), tx.now_s),
        progress,
        tx.now_s,
        wait_until_s=group.policies_wait_until_s,
        block=group_changes.cooldown_block(tx, group) if policy["PolicyType"] == SIMPLE else None,
    )


def capacity_now(group: Group, members: list[Member], warm_up_s: float, now_s: float) -> GroupCapacity:
    """Return the capacity of a group. A launch that waits for GPUs is not in its warm-up, because it may wait for ever."""
    ready = present = 0
    warming, ends = False, []
    for member in members:
        if member.state in COUNTED or member.state in TERMINATION_STATES:
            present += member.weight
        if member.state is LifecycleState.PENDING_WAIT:
            warming = True
        if member.state is LifecycleState.IN_SERVICE:
            end_s = (member.in_service_at_s or 0.0) + warm_up_s
            if end_s > now_s:
                warming = True
                ends.append(end_s)
            else:
                ready += member.weight
    return GroupCapacity(group.desired, group.min_size, group.max_size, ready, present, warming, min(ends, default=None))


def _agreed(policies: dict[str, Document], decided: list[Decided], desired: int) -> list[Decided]:
    """Drop scale-ins of target tracking policies unless all target tracking policies that may scale in want it, as on AWS."""
    tracking = {arn for arn, policy in policies.items() if policy["Enabled"] and _tracks_in(policy)}
    scales_in = {
        request.policy
        for _, request, verdict in decided
        if request.policy in tracking and verdict.wanted is not None and verdict.wanted < desired
    }
    if scales_in == tracking:
        return decided
    return [each for each in decided if each[1].policy not in scales_in]


def _tracks_in(policy: Document) -> bool:
    return policy["PolicyType"] == TRACKING and not policy["TargetTrackingConfiguration"].get("DisableScaleIn")


def _apply(tx: Tx[Store], group: Group, policies: dict[str, Document], decided: list[Decided]) -> Decided | None:
    """Set the desired capacity to the largest wanted one. Return the request that caused a change."""
    wanting = [each for each in decided if each[2].wanted is not None]
    chosen = max(wanting, key=lambda each: each[2].wanted or 0, default=None)
    if chosen is None or chosen[2].wanted is None or chosen[2].wanted == group.desired:
        return None
    alarm, request, _ = chosen
    policy, desired = policies[request.policy], chosen[2].wanted
    cause = f"a monitor alarm {alarm_name(alarm)} in state {request.state} triggered policy {policy['PolicyName']}"
    cooldown = {"cooldown_s": policy.get("Cooldown")} if policy["PolicyType"] == SIMPLE else {}
    group_changes.set_desired(tx, group, desired, cause, policy_desired=desired, **cooldown)
    return chosen


def _record(tx: Tx[Store], decided: Decided, before: Progress, *, applied: bool) -> None:
    """Store the progress of a request. Report its first result, and the first success after a failure, to the alarm's history."""
    alarm, request, verdict = decided
    progress = verdict.progress if applied else _of_request(before, request)
    first = progress.told is None or (progress.told and not verdict.outcome)
    if verdict.outcome is not None and first:
        tx.hand_over("metrics", "action results", {"alarm": alarm, "action": request.policy, "error": verdict.outcome})
        progress = replace(progress, told=verdict.outcome)
    if progress != before:
        tx.store.scaling.set_progress(alarm, request.policy, progress)
