"""The reconciler `environment` scales a compute environment: it launches instances for waiting jobs and terminates idle instances.

It runs when the number of waiting jobs in one of the environment's queues changes, when a job ends, when an instance of the
environment changes, and when an instance has been idle for as long as the setting `environment_in_s` says. A generation is the set
of the environment's Auto Scaling groups that have the same settings. After an infrastructure update, the reconciler terminates the
instances of the old generation. If the environment is being deleted, the reconciler terminates all instances, and then deletes the
groups and the cluster.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.placement.reservations import is_reservable
from corral.decide.placement.slot_fit import amounts
from corral.decide.scaling.environment_scaling import IdleInstance, ScalingPlan, plan_scale_in
from corral.decide.scaling.instance_choice import CPU_UNITS, TypeShape
from corral.fleet import instances
from corral.fleet.clusters import host_pools
from corral.model.compute_environment import DELETING, ENABLED, INVALID, UPDATING, VALID, ComputeEnvironment, environment_key
from corral.model.instance import InstanceState
from corral.model.placement import INSTANCE
from corral.services.autoscaling import group_changes
from corral.services.batch.compute_environments import drop, put_document
from corral.services.batch.environment_capacity import Present, plan_of, present_in, size_of
from corral.services.batch.environment_groups import (
    HEALTHY,
    EnvironmentState,
    OldGroup,
    drop_group,
    end_member,
    launch,
    problem_of,
    put_state,
    state_of,
)
from corral.services.batch.environments import find_environment
from corral.services.batch.job_queues import queues_of_environment
from corral.store import Store

ENDS_MAX = 2  # the most instances that one transaction terminates: about 5 ms of work for a large environment
LOOK_AGAIN_S = 10.0  # the shortest time between two checks whether an older claim waits for GPUs (`_is_behind_older_claim`)
PACE_S = 0.001  # the time until the next transaction continues


def reconcile_environment(tx: Tx[Store], key: str) -> None:
    region, _, name = key.partition("/")
    environment = find_environment(tx, region, name)
    if environment is None:
        return
    before = state = state_of(tx, region, name)
    if state.paced_at_s == tx.now_s:
        tx.due(environment.key, tx.now_s + PACE_S)
        return
    if environment.status == DELETING:
        state = _delete(tx, environment, state)
    elif environment.scales:
        again: list[float] = []
        state, ended = _end_old(tx, environment, state, again)
        here = present_in(tx, environment, state)
        state = _scale(tx, environment, state, here, again, ENDS_MAX - ended)
        _describe(tx, environment, state, here.vcpus)
        if again:
            tx.due(environment.key, min(again))
    else:
        _describe(tx, environment, state)
    if find_environment(tx, region, name) is not None:
        put_state(tx, region, name, before, state)
        if state.is_full != before.is_full:
            _mark_later(tx, environment)


def _mark_later(tx: Tx[Store], environment: ComputeEnvironment) -> None:
    """Reconcile the environments that follow this one in its job queues, because it has become full or has room again."""
    for queue in queues_of_environment(tx, environment.region, environment.name):
        after = queue.environments[queue.environments.index(environment.name) + 1 :]
        for name in after:
            tx.mark(environment_key(environment.region, name))


# Scaling


def _scale(
    tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState, here: Present, again: list[float], limit: int
) -> EnvironmentState:
    """Launch and terminate instances. Update `here.vcpus` to the size that the environment will have."""
    plan, types = plan_of(tx, environment, state, here)
    state = replace(state, is_full=plan.is_full, unfit=", ".join(amounts(demand) for demand in plan.unfit[:3]))
    if environment.status != INVALID:
        state = _launch(tx, environment, state, here, plan, types)
    is_starting = any(shape.is_starting for shape in here.shapes)
    if environment.state != ENABLED or (not plan.launches and not is_starting):
        state = replace(state, asked=0)  # the environment has the desiredvCpus of the last request, or cannot reach it
    return _scale_in(tx, environment, state, here, plan, again, limit)


def _launch(
    tx: Tx[Store],
    environment: ComputeEnvironment,
    state: EnvironmentState,
    here: Present,
    plan: ScalingPlan,
    types: list[TypeShape],
) -> EnvironmentState:
    by_name = {each.name: each for each in types}
    cause = f"the compute environment {environment.name} scaled the group for its jobs,"
    for name, count in plan.launches.items():
        try:
            state = tx.attempt(partial(launch, tx, environment, state, by_name[name], count, cause))
        except ApiError as error:
            return replace(state, refusal=error.message)
        here.vcpus += by_name[name].vcpus * count
    return replace(state, refusal=_failure(tx, environment, state))


def _failure(tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState) -> str:
    """Return why the last launch failed, if a group retries a failed launch. Otherwise return an empty text."""
    for name in state.groups.values():
        group = tx.store.groups.get(environment.region, name)
        if group is not None and group.failures and group.desired:
            failed = tx.store.groups.activities(environment.region, name, ended=True, limit=1)
            return failed[0][1].message if failed else "a launch failed"
    return ""


def _scale_in(
    tx: Tx[Store],
    environment: ComputeEnvironment,
    state: EnvironmentState,
    here: Present,
    plan: ScalingPlan,
    again: list[float],
    limit: int,
) -> EnvironmentState:
    """Terminate instances that have been idle for long enough (`_delay_s`).

    Also cancel launches that no job needs: launches that have not begun, and instances that wait for GPUs. If the environment is
    disabled, cancel also the launches for its minimum size.
    """
    size, ended = size_of(tx, environment, state, here), 0
    spare = size.present - max(size.min_vcpus, state.asked)
    cancels_all = not size.is_enabled and any(shape.is_starting for shape in here.shapes)
    if spare <= 0 and not cancels_all:
        return replace(state, idle={}) if state.idle else state
    idle: list[IdleInstance] = []
    # If waiting jobs need room for instances of another type, idle instances are terminated at once.
    delay_s = 0.0 if plan.needs_room else _delay_s(tx, environment)
    held = _holds_empty_instances(here)
    gives_up = held and _is_behind_older_claim(tx, here)
    if held and not gives_up:
        again.append(tx.now_s + max(delay_s, LOOK_AGAIN_S))
    for shape, ids, used in zip(here.shapes, here.ids, plan.used, strict=True):
        if gives_up and shape.all_gpus and not shape.is_starting:
            used = 0
        vcpus, surplus = shape.cpu_units // CPU_UNITS, shape.count - used
        if not shape.is_empty or surplus <= 0:
            continue
        if not shape.is_starting:
            unused = sorted(ids, key=lambda each: (state.idle.get(each, tx.now_s), each))[:surplus]
            idle += [IdleInstance(each, vcpus, state.idle.get(each, tx.now_s)) for each in unused]
            continue
        surplus = min(surplus, spare // vcpus) if vcpus and size.is_enabled else surplus
        if not ids:
            _take_back(tx, environment, state, shape.type, surplus)
            here.vcpus -= surplus * vcpus
        for each in ids[: min(surplus, limit - ended)]:
            _end(tx, environment, here, each, "no job needs it any more")
            here.vcpus -= vcpus
            ended += 1
        spare -= surplus * vcpus
    kept = replace(size, present=spare + size.min_vcpus)
    chosen = plan_scale_in(idle, kept, delay_s, tx.now_s, limit=max(0, limit - ended))
    by_id = {each.id: each.vcpus for each in idle} if chosen.terminate else {}
    for each in chosen.terminate:
        _end(tx, environment, here, each, "it was idle")
        here.vcpus -= by_id[each]
    if chosen.again_s is not None:
        again.append(max(chosen.again_s, tx.now_s + PACE_S))
    is_paced = ended + len(chosen.terminate) >= limit
    if is_paced:
        again.append(tx.now_s + PACE_S)
    return replace(
        state,
        idle={each.id: each.since_s for each in idle if each.id not in chosen.terminate},
        paced_at_s=tx.now_s if is_paced else state.paced_at_s,
    )


def _holds_empty_instances(here: Present) -> bool:
    """Whether an environment has empty instances with GPUs while it launches more instances.

    This happens if a multi-node job needs the empty and the new instances, because such a job starts only when there is room for
    all its nodes.
    """
    is_launching = any(shape.is_starting and ids for shape, ids in zip(here.shapes, here.ids, strict=True))
    return is_launching and any(shape.is_empty and shape.all_gpus and not shape.is_starting for shape in here.shapes)


def _is_behind_older_claim(tx: Tx[Store], here: Present) -> bool:
    """Whether a claim that is not a launch of this environment is the first claim that waits for GPUs.

    The launches of the environment must wait for this claim. So the environment must terminate its empty instances. Otherwise two
    environments could each hold some GPUs, and each could wait for the GPUs of the other for ever.
    """
    own = {each for shape, ids in zip(here.shapes, here.ids, strict=True) if shape.is_starting for each in ids}
    names = {name for each in own if (name := tx.store.claims.pool_of(INSTANCE, each)) is not None}
    for name in names or host_pools(tx):
        pool = tx.store.fleet.pool(name)
        first = next((claim for claim in pool.heads() if claim.demand.gpus and is_reservable(pool, claim)), None)
        if first is not None and first.id not in own:
            return True
    return False


def _take_back(tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState, type_: str, surplus: int) -> None:
    """Cancel `surplus` launches that a group has not begun: lower its desired capacity."""
    group = tx.store.groups.get(environment.region, state.groups[type_])
    if group is not None and surplus > 0:
        cause = f"the compute environment {environment.name} scaled the group, because its jobs need fewer instances,"
        group_changes.set_desired(tx, group, max(0, group.desired - surplus), cause)


def _delay_s(tx: Tx[Store], environment: ComputeEnvironment) -> float:
    minutes: int = environment.document["computeResources"].get("scalingPolicy", {}).get("minScaleDownDelayMinutes", 0)
    return max(tx.settings.scaling.environment_in_s, minutes * 60.0)


def _end(tx: Tx[Store], environment: ComputeEnvironment, here: Present, instance_id: str, why: str) -> None:
    member = here.members[instance_id]
    group = tx.store.groups.get(environment.region, member.group)
    if group is not None:
        end_member(tx, group, member, f"{why} in the compute environment {environment.name}")


# Old generations and deletion


def _end_old(
    tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState, again: list[float]
) -> tuple[EnvironmentState, int]:
    """Terminate the instances of old generations that run no task, and all instances of a generation after its deadline.

    Return the state and the number of terminated instances.
    """
    left: list[OldGroup] = []
    ended = 0
    for old in state.old:
        group = tx.store.groups.get(environment.region, old.name)
        for member in tx.store.groups.members(environment.region, old.name) if group is not None else ():
            if ended >= ENDS_MAX:
                again.append(tx.now_s + PACE_S)
                break
            instance = tx.store.instances.get(member.instance_id)
            is_busy = instance is not None and instance.state is InstanceState.RUNNING and bool(tx.store.tasks.on(instance.id))
            if is_busy and tx.now_s < old.deadline_s:
                assert instance is not None
                if instance.status == "ACTIVE":
                    instances.set_status(tx, instance, "DRAINING")
            elif group is not None:
                why = f"the compute environment {environment.name} was updated"
                after = end_member(tx, group, member, why)
                ended += after != group
                group = after
        if not drop_group(tx, environment.region, old.name, old.template):
            left.append(old)
            if old.deadline_s > tx.now_s:
                again.append(old.deadline_s)
    return replace(state, old=tuple(left)), ended


def _delete(tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState) -> EnvironmentState:
    """Terminate all instances of an environment, at most ENDS_MAX in each transaction.

    When all instances have been terminated, delete the groups, the cluster and the document of the environment.
    """
    groups = [(name, state.templates[type_]) for type_, name in state.groups.items()]
    groups += [(old.name, old.template) for old in state.old]
    ended, is_left = 0, False
    for name, template in groups:
        group = tx.store.groups.get(environment.region, name)
        for member in tx.store.groups.members(environment.region, name):
            is_left = True
            if group is not None and ended < ENDS_MAX:
                after = end_member(tx, group, member, f"the compute environment {environment.name} was deleted")
                ended += after != group
                group = after
        if group is not None and group.desired and not tx.store.groups.members(environment.region, name):
            group_changes.set_desired(tx, group, 0, f"the compute environment {environment.name} was deleted,")
        if not drop_group(tx, environment.region, name, template):
            is_left = True
    if ended >= ENDS_MAX:
        tx.due(environment.key, tx.now_s + PACE_S)
        return replace(state, paced_at_s=tx.now_s)
    if not is_left:
        drop(tx, environment)
    return state


# Status


def _describe(tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState, vcpus: int = 0) -> None:
    """Write the status, the status reason and the vCPUs of an environment. A job that fits on no type changes only the reason."""
    # The requests that create or update an environment check it. Only an INVALID environment is checked again here.
    problem = problem_of(tx, environment) if environment.status == INVALID else ""
    status = INVALID if problem else UPDATING if state.old else VALID
    reason = problem or HEALTHY
    if not problem and state.refusal:
        reason = f"CLIENT_ERROR - {state.refusal}"
    elif not problem and state.unfit:
        reason = f"{HEALTHY}, but jobs wait for which no instance type is large enough: they need {state.unfit}"
    document = {**environment.document, "status": status, "statusReason": reason}
    if environment.scales:
        document["computeResources"] = {**document["computeResources"], "desiredvCpus": vcpus}
    watched = [instances.HOST_SIZES] if problem or state.unfit else []
    if bool(watched) != environment.document.get("_watches", False):
        tx.watch(environment.key, watched)
        document["_watches"] = bool(watched)
    put_document(tx, environment, document)
