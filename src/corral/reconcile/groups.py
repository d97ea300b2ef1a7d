"""The reconciler `group` launches and terminates instances until an Auto Scaling group has its desired capacity.

Each call of the reconciler first updates the members from their instances, then continues an instance refresh, and then launches
and terminates instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.transactions import Tx
from corral.decide.scaling.group_capacity import COUNTED, CapacityRequest, Why, capacity_of, plan_capacity
from corral.decide.scaling.instance_refresh import ACTIVE, CANCELLED, CANCELLING, FAILED, ROLLING_BACK, SUCCESSFUL, step_refresh
from corral.decide.scaling.termination_policies import ScaleIn
from corral.fleet.leaving_tasks import busy_of, named, still_awaited
from corral.model.compute_environment import environment_key
from corral.model.group import (
    ABANDON,
    DELETING,
    ENVIRONMENT,
    LAUNCH_STATES,
    TERMINATION_STATES,
    Group,
    GroupMember,
    InstanceRefresh,
    LifecycleState,
    TaskWait,
    provider_key,
)
from corral.model.instance import Instance, InstanceState
from corral.services.autoscaling import activities, group_changes
from corral.services.autoscaling.instance_refreshes import rolled_back
from corral.services.autoscaling.launch_sources import SOURCES, current_source, distribution_of, type_rank
from corral.services.autoscaling.lifecycle_hooks import verdict
from corral.services.autoscaling.scheduled_actions import run_due_actions
from corral.services.ecs.managed_scaling import ManagedDraining, need_of, protect_members, provider_of_group
from corral.store import Store

STEPS_MAX = 4  # the most launches, and the most terminations, in one transaction: about 5 ms of work
WAITING_MAX = 20  # at most this many launches of one group wait for GPUs at the same time
PACE_S = 0.001  # the time until the next transaction continues
ACTIVITIES_MAX = 100  # the most old activities that one transaction deletes
DRAIN_MAX_S = 48 * 3600.0  # how long an instance with managed draining waits for its tasks, as on AWS
IMPAIRED_MAX_S = 120.0  # an instance is impaired while its host does not report; after this time, the instance is replaced


def reconcile_group(tx: Tx[Store], key: str) -> None:
    region, _, name = key.partition("/")
    group = tx.store.groups.get(region, name)
    if group is None:
        return
    again: list[float] = []
    members: list[GroupMember] = []
    silent, failed = tx.store.hosts.silent_ids(), tx.store.hosts.failed_instances()
    draining = ManagedDraining(tx, region, name)
    for member in tx.store.groups.members(region, name):
        instance = tx.store.instances.get(member.instance_id)
        if _serves(member, instance, silent, failed):
            members.append(member)
        elif (followed := _follow(tx, group, member, instance, again, silent, failed, draining)) is not None:
            members.append(followed)
    group = tx.store.groups.get(region, name) or group
    owner = group.settings.get(ENVIRONMENT)
    if group.status == DELETING:
        if not members:
            group_changes.delete(tx, group)
            if owner:
                tx.mark(environment_key(region, owner))
        return
    again += _scale(tx, group, members)
    current = tx.store.groups.get(region, name)
    # A group that has reached STEPS_MAX is reconciled again at once, and marks the compute environment then.
    if owner and (current is None or current.paced_at_s != tx.now_s):
        tx.mark(environment_key(region, owner))
    tx.changed(f"group:{key}")
    tx.mark(provider_key(region, name))
    if again:
        tx.due(f"group:{key}", min(again))


# Members


def _serves(member: GroupMember, instance: Instance | None, silent: set[str], failed: Mapping[str, str]) -> bool:
    """Whether a member needs no update: it is in service, its instance runs, its host reports, and none of its GPUs has failed.

    This is true for most members of a large group.
    """
    return (
        member.state is LifecycleState.IN_SERVICE
        and instance is not None
        and instance.state is InstanceState.RUNNING
        and instance.host_id not in silent
        and instance.id not in failed
        and member.impaired_since_s is None
    )


def _follow(
    tx: Tx[Store],
    group: Group,
    member: GroupMember,
    instance: Instance | None,
    again: list[float],
    silent: set[str],
    failed: Mapping[str, str],
    draining: ManagedDraining,
) -> GroupMember | None:
    """Update a member from the state of its instance and of its lifecycle hooks. Return None if the member was dropped.

    Times when the group must be reconciled again are added to `again`.
    """
    gone = instance is None or instance.state is InstanceState.TERMINATED
    if gone and (member.state in TERMINATION_STATES or member.state in LAUNCH_STATES):
        group_changes.drop(tx, group, member)
        return None
    if member.state is LifecycleState.TERMINATING_WAIT:
        if member.task_wait is not None:
            return _follow_task_wait(tx, group, member, member.task_wait, again, draining)
        if _result(tx, member, again) is None:
            return member
        return group_changes.proceed(tx, group, member)
    if member.state in LAUNCH_STATES:
        assert instance is not None
        return _follow_launch(tx, group, member, instance, again)
    if member.state is LifecycleState.IN_SERVICE and not member.unhealthy and "HealthCheck" not in group.suspended:
        return _check_health(tx, group, member, instance, again, silent, failed)
    return member


def _follow_task_wait(
    tx: Tx[Store], group: Group, member: GroupMember, wait: TaskWait, again: list[float], draining: ManagedDraining
) -> GroupMember:
    """Continue the termination of an instance when it has waited long enough for its tasks.

    With managed draining, the instance first waits until its tasks have ended, except daemon tasks, and at most for DRAIN_MAX_S.
    Then it waits until its tasks are idle (`fleet/leaving_tasks.py`).
    """
    drained_s, instance = wait.since_s + DRAIN_MAX_S, tx.store.instances.get(member.instance_id)
    if wait.drains and tx.now_s < drained_s and instance is not None and draining.is_awaited(instance):
        again.append(drained_s)
        return member
    tasks = [task.id for task in tx.store.tasks.on(member.instance_id)]
    awaited, again_s = still_awaited(tx, dict.fromkeys(tasks, wait.since_s))
    if awaited:
        again += [again_s] if again_s is not None else []
        return member
    return group_changes.end_task_wait(tx, group, member, named(busy_of(tx, tasks)))


def _follow_launch(tx: Tx[Store], group: Group, member: GroupMember, instance: Instance, again: list[float]) -> GroupMember:
    if instance.state is InstanceState.PENDING:
        return member
    if instance.state is not InstanceState.RUNNING:
        text = f"an instance was taken out of service in response to {group_changes.TERMINATED_EARLY}."
        return group_changes.terminate(tx, group, member, activities.sentence(tx, text))[0]
    if member.state is LifecycleState.PENDING:
        member = group_changes.started(tx, group, member)
    if member.state is not LifecycleState.PENDING_WAIT:
        return member
    result = _result(tx, member, again)
    if result is None:
        return member
    if result == ABANDON:
        text = "an instance was taken out of service because a lifecycle hook abandoned its launch."
        return group_changes.terminate(tx, group, member, activities.sentence(tx, text))[0]
    return group_changes.enter_service(tx, group, member)


def _result(tx: Tx[Store], member: GroupMember, again: list[float]) -> str | None:
    """Return the result of a member's lifecycle hooks, or None while the member still waits for a hook.

    The time when the wait ends is added to `again`.
    """
    result, at_s = verdict(member.actions.values(), tx.now_s)
    again += [at_s] if at_s is not None else []
    return result


def _check_health(
    tx: Tx[Store],
    group: Group,
    member: GroupMember,
    instance: Instance | None,
    again: list[float],
    silent: set[str],
    failed: Mapping[str, str],
) -> GroupMember:
    """Update the health of a member.

    The member of a stopped or terminated instance is unhealthy at once. If a GPU of the instance has failed, the member becomes
    unhealthy, but not before the end of its grace period. If the host does not report for IMPAIRED_MAX_S, the member becomes
    unhealthy, also not before the end of its grace period.
    """
    if instance is None or instance.state is not InstanceState.RUNNING:
        return _put(tx, member.but(unhealthy=group_changes.TERMINATED_EARLY))
    grace_s = (member.in_service_at_s or 0.0) + group.settings.get("HealthCheckGracePeriod", 0)
    if instance.id in failed:
        if tx.now_s >= grace_s:
            return _put(tx, member.but(unhealthy=f"a failed GPU ({failed[instance.id]})"))
        again.append(grace_s)
        return member
    if instance.host_id not in silent:
        return member if member.impaired_since_s is None else _put(tx, member.but(impaired_since_s=None))
    since_s = member.impaired_since_s if member.impaired_since_s is not None else tx.now_s
    at_s = max(since_s + IMPAIRED_MAX_S, grace_s)
    unhealthy = "an EC2 instance status checks failure" if tx.now_s >= at_s else ""
    again += [] if unhealthy else [at_s]
    return _put(tx, member.but(impaired_since_s=since_s, unhealthy=unhealthy))


def _put(tx: Tx[Store], member: GroupMember) -> GroupMember:
    tx.store.groups.put_member(member)
    return member


# Capacity


def _scale(tx: Tx[Store], group: Group, members: list[GroupMember]) -> list[float]:
    """Launch missing instances and terminate surplus ones. Return the times when the group must be reconciled again."""
    again: list[float] = []
    settings, replace, surge, outdated = _refresh(tx, group, members, again)
    group = tx.store.groups.get(group.region, group.name) or group
    if group.paced_at_s == tx.now_s:
        return [*again, tx.now_s + PACE_S]
    waiting = frozenset(
        member.instance_id
        for member in members
        if member.state is LifecycleState.PENDING and _is_waiting(tx.store.instances.get(member.instance_id))
    )
    request = CapacityRequest(
        desired=group.desired,
        suspended=frozenset(group.suspended),
        policies=tuple(group.settings.get("TerminationPolicies", ())),
        max_lifetime_s=group.settings.get("MaxInstanceLifetime") or None,
        retry_at_s=group.retry_at_s,
        distribution=distribution_of(settings),
        replace=replace,
        outdated=outdated,
        surge=surge,
    )
    scale_in = ScaleIn(tx.now_s)
    if capacity_of(members) > group.desired + surge:  # only a scale-in needs these facts
        used = _used(tx, group, members)
        members = tx.store.groups.members(group.region, group.name)
        busy = tx.store.tasks.leaving.busy_instances((member.instance_id for member in members), tx.now_s)
        scale_in = ScaleIn(
            tx.now_s,
            current_source(tx, group.region, settings),
            type_rank=type_rank(tx, settings),
            busy=used | busy,
        )
    plan = plan_capacity(request, members, scale_in, waiting=waiting, limit=STEPS_MAX)
    if plan.again_s is not None:
        again.append(plan.again_s)
    present = {member.instance_id: member for member in members}
    causes = list(group.replacement_causes)
    for instance_id in plan.keep:
        present[instance_id] = group_changes.take_back(tx, group, present[instance_id])
    for instance_id, why in plan.terminate:
        ended = group_changes.terminate_for(tx, group, present[instance_id], why, list(present.values()))
        present[instance_id] = ended
        if why is not Why.SURPLUS:
            causes.append(group_changes.REPLACED_BY[why])
    room = WAITING_MAX - len(waiting - dict(plan.terminate).keys())
    done = _launch(tx, group, settings, list(present.values()), plan.missing, causes, room)
    if len(plan.terminate) == STEPS_MAX or not done:
        current = tx.store.groups.get(group.region, group.name) or group
        tx.store.groups.put(current.but(paced_at_s=tx.now_s))
        again.append(tx.now_s + PACE_S)
    return again


def _used(tx: Tx[Store], group: Group, members: list[GroupMember]) -> frozenset[str]:
    """Return the instances that the tasks of the group's capacity provider need. Without managed scaling, return no instances.

    A scale-in terminates these instances last. With managed termination protection, it never terminates them.
    """
    provider = provider_of_group(tx, group.region, group.name)
    if provider is None or not provider.scales_group(group):
        return frozenset()
    need = need_of(tx, provider, [member for member in members if member.state in COUNTED])
    if provider.protects:
        protect_members(tx, group, members, need)
    return need.used


def _launch(
    tx: Tx[Store], group: Group, settings: dict[str, Any], members: list[GroupMember], missing: int, causes: list[str], room: int
) -> bool:
    """Launch instances until no capacity is missing, or `room` launches wait for GPUs. Return False if more must be launched."""
    launched, failed = 0, False
    before = capacity_of(members)
    started = group_changes.STARTED.format(before, before + missing)
    while missing > 0 and launched < STEPS_MAX and room > 0 and not failed:
        member = group_changes.launch_one(tx, group, settings, members, causes[0] if causes else started)
        if member is None:
            failed = True
            continue
        causes = causes[1:]
        launched += 1
        missing -= member.weight
        room -= _is_waiting(tx.store.instances.get(member.instance_id))
        members.append(member)
    current = tx.store.groups.get(group.region, group.name)
    assert current is not None
    if launched and not failed:
        current = current.but(failures=0, retry_at_s=None)
    complete = missing <= 0 and capacity_of(members) >= current.desired
    settled = current.but(
        replacement_causes=() if complete else tuple(causes),
        cause="" if capacity_of(members) == current.desired else current.cause,
    )
    if settled != tx.store.groups.get(group.region, group.name):
        tx.store.groups.put(settled)
    return missing <= 0 or failed or room <= 0


def _is_waiting(instance: Instance | None) -> bool:
    return instance is not None and instance.state is InstanceState.PENDING


# Instance refreshes


def _refresh(
    tx: Tx[Store], group: Group, members: list[GroupMember], again: list[float]
) -> tuple[dict[str, Any], frozenset[str], int, frozenset[str]]:
    """Continue the instance refresh of the group, if one is active.

    Return the launch source (the settings that say what to launch), the instances to replace now, the surge (by how many units the
    group may exceed its desired capacity), and all instances that are not replaced yet.
    """
    own = {member: group.settings[member] for member in SOURCES if member in group.settings}
    none: frozenset[str] = frozenset()
    refresh = tx.store.groups.active_refresh(group.region, group.name)
    if refresh is None or "InstanceRefresh" in group.suspended:
        return own, none, 0, none
    if refresh.status == CANCELLING:
        if not any(member.state in LAUNCH_STATES | TERMINATION_STATES for member in members):
            tx.store.groups.put_refresh(refresh.but(status=CANCELLED, ended_at_s=tx.now_s))
        return own, none, 0, none
    source = refresh.previous if refresh.status == ROLLING_BACK else refresh.configuration
    if group.failures and refresh.status != ROLLING_BACK:
        refresh = _failed_refresh(tx, group, refresh)
        if refresh.status == FAILED:
            return own, none, 0, none
        source = refresh.previous
    step = step_refresh(refresh, group.desired, members, tx.now_s, _warmup_s(group, refresh))
    if step.refresh != refresh:
        tx.store.groups.put_refresh(step.refresh)
    if step.again_s is not None:
        again.append(step.again_s)
    if step.refresh.status == SUCCESSFUL and refresh.configuration:
        settings = {member: value for member, value in group.settings.items() if member not in SOURCES}
        tx.store.groups.put(group.but(settings={**settings, **refresh.configuration}))
    if step.refresh.status not in ACTIVE:
        return source or own, none, 0, none
    return source or own, step.replace, step.surge, frozenset(step.refresh.remaining)


def _failed_refresh(tx: Tx[Store], group: Group, refresh: InstanceRefresh) -> InstanceRefresh:
    """End a refresh because a launch failed. With the preference AutoRollback, roll it back instead."""
    failed = tx.store.groups.activities(group.region, group.name, ended=True, limit=1)
    reason = failed[0][1].message if failed else "An instance could not be launched."
    if refresh.preferences.get("AutoRollback"):
        ended = rolled_back(tx, refresh, reason)
        tx.store.groups.put(group.but(failures=0, retry_at_s=None))
    else:
        ended = refresh.but(status=FAILED, reason=reason, ended_at_s=tx.now_s)
    tx.store.groups.put_refresh(ended)
    return ended


def _warmup_s(group: Group, refresh: InstanceRefresh) -> float:
    for given in (refresh.preferences.get("InstanceWarmup"), group.settings.get("DefaultInstanceWarmup")):
        if given is not None and given >= 0:
            return float(given)
    return float(group.settings.get("HealthCheckGracePeriod", 0))


# Scheduled actions and old activities


def run_scheduled_actions(tx: Tx[Store], key: str) -> None:
    """Run the scheduled actions of a group that are due, and schedule the next call."""
    region, _, name = key.partition("/")
    next_s = run_due_actions(tx, region, name)
    if next_s is not None:
        tx.due(f"schedule:{key}", tx.steps.steady_s(next_s))


def drop_old_activities(tx: Tx[Store], _: str) -> None:
    """Delete activities that ended more than six weeks ago, at most ACTIVITIES_MAX in each transaction."""
    if tx.store.groups.drop_activities(tx.now_s - activities.SHOWN_S, ACTIVITIES_MAX) == ACTIVITIES_MAX:
        tx.due("activities:", tx.now_s)
    elif (oldest_s := tx.store.groups.oldest_activity_s()) is not None:
        tx.due("activities:", oldest_s + activities.SHOWN_S)
