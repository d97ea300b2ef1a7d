"""Decides about the requests of alarms to the scaling policies of Auto Scaling groups. `reconcile/scaling.py` calls this module."""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.scaling.alarm_scaling import REPEAT_S, GroupCapacity, Verdict, decide_request
from corral.decide.scaling.group_capacity import COUNTED
from corral.model.alarm import Progress, ScalingRequest
from corral.model.group import DELETING, TERMINATION_STATES, Group, GroupMember, LifecycleState
from corral.services.autoscaling import group_changes
from corral.services.autoscaling.names import POLICY, documents_of
from corral.services.autoscaling.scaling_policies import CONFIGURATION, PREDICTIVE, SIMPLE, TRACKING, rule_of, warmup_s
from corral.store import Store
from corral.store.stored_resources import Document


class GroupPolicies:
    """The policies of one group. This class implements `Policies` in `reconcile/scaling.py`."""

    def __init__(self, tx: Tx[Store], region: str, name: str, *, repeats: bool) -> None:
        group = tx.store.groups.get(region, name)
        self._tx, self._group = tx, _note_other_changes(tx, group, repeats) if group is not None else None
        found = documents_of(tx, region, POLICY, name) if group is not None else ()
        self.policies: dict[str, Document] = {each["PolicyARN"]: each for each in found}

    @property
    def desired(self) -> int:
        return self._group.desired if self._group is not None else 0

    def problem(self, policy: Document | None, request: ScalingRequest) -> str:
        group = self._group
        if group is None or policy is None or group.status == DELETING:
            return f"The scaling policy {request.policy} does not exist."
        if policy["PolicyType"] == PREDICTIVE:
            return f"The policy {policy['PolicyName']} is of the type {PREDICTIVE}, which alarms cannot apply."
        if not policy["Enabled"]:
            return f"The policy {policy['PolicyName']} is disabled."
        if "AlarmNotification" in group.suspended:
            return f"The process AlarmNotification of AutoScalingGroup {group.name} is suspended."
        return ""

    def decide(self, policy: Document, request: ScalingRequest, progress: Progress) -> Verdict:
        tx, group = self._tx, self._group
        assert group is not None
        rule = rule_of(policy, request.threshold)
        members = tx.store.groups.members(group.region, group.name)
        capacity = capacity_now(group, members, warmup_s(group, policy), tx.now_s)
        if rule.tracking and request.measured_s is not None:  # the metric includes instances that were terminated after measured_s
            ended = tx.store.groups.ended_since(group.region, group.name, request.measured_s)
            terminated = sum(each.description.startswith(group_changes.TERMINATING) for each in ended)
            capacity = replace(capacity, present=capacity.present + terminated)
        is_simple = policy["PolicyType"] == SIMPLE
        block = group_changes.cooldown_block(tx, group) or group_changes.waiting_block(tx, group) if is_simple else None
        return decide_request(
            request,
            rule,
            capacity,
            progress,
            tx.now_s,
            wait_until_s=group.policies_wait_until_s,
            block=block,
        )

    def tracks_in(self, policy: Document) -> bool:
        return policy["Enabled"] and policy["PolicyType"] == TRACKING and not policy[CONFIGURATION].get("DisableScaleIn")

    def scale(self, policy: Document, wanted: int, cause: str) -> None:
        assert self._group is not None
        cooldown = {"cooldown_s": policy.get("Cooldown")} if policy["PolicyType"] == SIMPLE else {}
        group_changes.set_desired(self._tx, self._group, wanted, f"a {cause}", policy_desired=wanted, **cooldown)

    def not_scaled(self, policy: Document, verdict: Verdict, cause: str) -> None:
        """Do nothing: the history of the alarm already says why the group was not scaled."""


def capacity_now(group: Group, members: list[GroupMember], warm_up_s: float, now_s: float) -> GroupCapacity:
    """Return the capacity of a group. A launch that waits for GPUs does not count as warming up, because it may wait for ever."""
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


def _note_other_changes(tx: Tx[Store], group: Group, repeats: bool) -> Group:
    """If something other than a policy, for example a user, has set the desired capacity, repeat no policy for REPEAT_S seconds."""
    if group.policy_desired == group.desired:
        return group
    waits = {"policies_wait_until_s": tx.now_s + REPEAT_S} if repeats and group.policy_desired is not None else {}
    group = group.but(policy_desired=group.desired, **waits)
    tx.store.groups.put(group)
    return group
