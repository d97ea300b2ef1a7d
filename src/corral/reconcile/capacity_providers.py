"""The reconciler `capacity-provider` scales the Auto Scaling group of a capacity provider, and stops tasks that wait too long.

The reconciler is called when a task of the provider begins to wait or no longer waits, when a task starts or ends on an instance of
the group, and after each call of the reconciler `group`. Its key names the group, which belongs to at most one capacity provider.
"""

from __future__ import annotations

from math import ceil

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import capacity_of, next_zone
from corral.decide.scaling.managed_scaling import (
    Decision,
    GroupState,
    Need,
    ScalingRules,
    desired_capacity,
    needed_instances,
)
from corral.model.group import Group, GroupMember, LifecycleState, provider_key
from corral.model.instance import InstanceState, cluster_pool
from corral.model.placement import TASK, Claim
from corral.model.task import StopCode
from corral.services.autoscaling import group_changes
from corral.services.autoscaling.launch_sources import SOURCES, LaunchRefused, next_launch
from corral.services.ecs.managed_scaling import (
    GroupProvider,
    LaunchShape,
    ScalingState,
    counted_members,
    future_attributes,
    host_attributes,
    instances_of,
    protect_members,
    provider_of_group,
    put_state,
    waiting_tasks,
)
from corral.services.ecs.task_description import why_claim_waits
from corral.services.ecs.task_progress import begin_stop
from corral.store import Store

STOPS_MAX = 20  # the most tasks that one transaction stops
PACE_S = 0.001  # the time until the next transaction continues
RETRY_S = 15.0  # if a waiting task would not fit on a new instance of the group, the next instance is checked again after this time


def reconcile_provider(tx: Tx[Store], key: str) -> None:
    region, _, name = key.partition("/")
    provider = provider_of_group(tx, region, name)
    if provider is None:
        return
    state, again = provider.state, list[float]()
    if state.paced_at_s == tx.now_s:
        tx.due(provider_key(region, name), tx.now_s + PACE_S)
        return
    if tx.settings.scaling.provisioning_wait_s:
        state = _stop_late_tasks(tx, provider, state, again)
    group = tx.store.groups.get(region, name)
    if group is not None and provider.scales_group(group):
        state = _scale(tx, provider, group, state, again)
    else:
        state = replace(state, low_since_s=None, is_stepping=False, desired=None, is_lowered=False)
    put_state(tx, provider, state)
    if again:
        tx.due(provider_key(region, name), min(again))


# Scaling


def _scale(tx: Tx[Store], provider: GroupProvider, group: Group, state: ScalingState, again: list[float]) -> ScalingState:
    members, waiting = counted_members(tx, group), waiting_tasks(tx, provider)
    if waiting:
        state = _with_launch(tx, group, members, state)
    new = state.launch.as_instance(group.region, group.name) if state.launch is not None and not state.refusal else None
    present = instances_of(tx, members)
    need = needed_instances(present, waiting, new)
    state = replace(state, is_lowered=_is_lowered(provider, group, members, state))
    if need.unfit:  # check again later: for example, a user may have created a new version of the launch template by then
        again.append(tx.now_s + RETRY_S)
    decision = Decision(group.desired)
    if "AlarmNotification" not in group.suspended:
        about = _group_state(tx, provider, group, members, need, state)
        decision = desired_capacity(about, need, _rules(tx, provider), state.low_since_s, tx.now_s)
    if decision.desired != group.desired:
        group = group_changes.set_desired(tx, group, decision.desired, _cause(provider, need))
    if provider.protects:
        protect_members(tx, group, members, need)
    again += [decision.again_s] if decision.again_s is not None else []
    return replace(state, low_since_s=decision.low_since_s, is_stepping=decision.is_stepping, desired=decision.desired)


def _is_lowered(provider: GroupProvider, group: Group, members: list[GroupMember], state: ScalingState) -> bool:
    """Whether a user or a policy has lowered the desired capacity, and the group still has to terminate instances."""
    was_lowered = state.is_lowered or (state.desired is not None and group.desired < state.desired)
    return was_lowered and not provider.protects and capacity_of(members) > group.desired


def _with_launch(tx: Tx[Store], group: Group, members: list[GroupMember], state: ScalingState) -> ScalingState:
    """Return the state with the instance that the group would launch next, or with the reason why it cannot launch one."""
    if group.desired >= group.max_size and state.launch is not None:
        return state  # the group launches nothing now, so the next instance does not matter
    zone = next_zone(group.settings["AvailabilityZones"], members)
    source = {member: group.settings[member] for member in SOURCES if member in group.settings}
    try:
        launch = next_launch(tx, group, source, members, zone, "")
    except LaunchRefused as refusal:
        return replace(state, refusal=str(refusal).rstrip("."))
    request = launch.request
    shape = LaunchShape(
        type=request.type,
        gpus=request.gpus,
        cpu_units=request.cpu_units,
        memory_mib=request.memory_mib,
        cluster=request.cluster,
        attributes=future_attributes(host_attributes(tx), request.type, request.gpus, request.details, request.attributes),
        weight=launch.weight,
    )
    return replace(state, launch=shape, refusal="")


def _group_state(
    tx: Tx[Store], provider: GroupProvider, group: Group, members: list[GroupMember], need: Need, state: ScalingState
) -> GroupState:
    present, weight = capacity_of(members), state.launch.weight if state.launch is not None else 1
    warm_up_s = provider.scaling["instanceWarmupPeriod"]
    ends = [(member.in_service_at_s or 0.0) + warm_up_s for member in members if member.state is LifecycleState.IN_SERVICE]
    ends = [end_s for end_s in ends if end_s > tx.now_s]
    starting = sum(member.state is not LifecycleState.IN_SERVICE for member in members)
    asked = ceil(max(0, group.desired - present) / weight)
    unneeded = (member for member in members if member.instance_id not in need.used)
    waiting = sum(
        member.weight
        for member in unneeded
        if (instance := tx.store.instances.get(member.instance_id)) is not None and instance.state is InstanceState.PENDING
    )
    return GroupState(
        desired=group.desired,
        min_size=group.min_size,
        max_size=group.max_size,
        present=present,
        used=sum(member.weight for member in members if member.instance_id in need.used),
        waiting=waiting,
        weight=weight,
        warming=starting + asked + len(ends),
        warm_at_s=min(ends, default=None),
        is_lowered=state.is_lowered,
    )


def _rules(tx: Tx[Store], provider: GroupProvider) -> ScalingRules:
    given = provider.scaling
    return ScalingRules(
        target_percent=given["targetCapacity"],
        min_step=given["minimumScalingStepSize"],
        max_step=given["maximumScalingStepSize"],
        scale_in_delay_s=tx.settings.scaling.capacity_provider_in_s,
    )


def _cause(provider: GroupProvider, need: Need) -> str:
    instances = f"{need.instances} instance{'s' * (need.instances != 1)}"
    return f"the capacity provider {provider.name}, whose tasks need {instances}, scaled the group,"


# Limit of the wait


def _stop_late_tasks(tx: Tx[Store], provider: GroupProvider, state: ScalingState, again: list[float]) -> ScalingState:
    """Stop the tasks that have waited for longer than the setting `provisioning_wait_s`, at most STOPS_MAX in each transaction."""
    limit_s, stopped = tx.settings.scaling.provisioning_wait_s, 0
    for pool in (cluster_pool(provider.region, cluster) for cluster in provider.clusters):
        for demand in [tasks.demand for tasks in waiting_tasks(tx, provider) if tasks.pool == pool]:
            why = ""  # computed once for all stopped tasks with this demand, because the computation is slow
            while (claim := tx.store.fleet.pool(pool).head(demand)) is not None:
                since_s = _since_s(tx, claim)
                if since_s + limit_s > tx.now_s:
                    again.append(since_s + limit_s)
                    break
                if stopped == STOPS_MAX:
                    again.append(tx.now_s + PACE_S)
                    return replace(state, paced_at_s=tx.now_s)
                why = why or why_claim_waits(tx, pool, claim)
                _stop(tx, claim, limit_s, why)
                stopped += 1
    return state


def _since_s(tx: Tx[Store], claim: Claim) -> float:
    task = tx.store.tasks.get(claim.id)
    assert task is not None and claim.kind == TASK, "a claim of a capacity provider that is not the claim of a task"
    return task.created_at_s


def _stop(tx: Tx[Store], claim: Claim, limit_s: float, why: str) -> None:
    task = tx.store.tasks.get(claim.id)
    assert task is not None
    text = f"Task failed to start: it waited for an instance for {limit_s:g} seconds (provisioning_wait_s): {why}"
    begin_stop(tx, task, StopCode.FAILED_TO_START, text)
