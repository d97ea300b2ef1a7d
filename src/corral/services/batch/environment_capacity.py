"""Reads the capacity of a compute environment and the demands of its waiting jobs, for `decide/scaling/environment_scaling.py`.

A member is an instance of one of the environment's Auto Scaling groups. A generation is a set of these groups with equal settings:
an infrastructure update begins a new generation.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.placement.slot_fit import amounts
from corral.decide.scaling.environment_scaling import (
    EnvironmentSize,
    FreeShape,
    JobLine,
    ScalingPlan,
    fits_when_empty,
    plan_scaling,
)
from corral.decide.scaling.group_capacity import COUNTED
from corral.decide.scaling.instance_choice import BEST_FIT, CPU_UNITS, WITHOUT_LIMIT, TypeShape, fits_on, kinds_of, room_on
from corral.fleet.clusters import host_pools
from corral.fleet.instances import reason_of_wait
from corral.fleet.shares import Startable, update_limits
from corral.model.compute_environment import ENABLED, ComputeEnvironment
from corral.model.group import GroupMember
from corral.model.instance import InstanceState
from corral.model.job_line import WaitingLine
from corral.model.task import Demand
from corral.services.batch.consumable_resources import find_resource
from corral.services.batch.environment_groups import EnvironmentState, is_lent, launchable, state_of, types_of, why_never
from corral.services.batch.environments import SERVICE, TYPE, find_environment, pool_of
from corral.services.batch.job_queues import JobQueue, queues_of_environment
from corral.store import Store

LIVING = (InstanceState.RUNNING, InstanceState.PENDING)


class Present(Struct):
    """The instances of the current generation: they run, they start, or the desired capacity of a group demands their launch."""

    shapes: list[FreeShape]
    ids: list[list[str]]  # for each shape, the ids of its instances; instances that the group has not launched yet have no id
    members: dict[str, GroupMember]  # instance id → member of a group
    wanted: dict[str, int]  # group → how many instances of its desired capacity it has not launched yet
    vcpus: int = 0  # of all these instances
    gpus: int = 0  # of all these instances


def present_in(tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState) -> Present:
    """Read the instances of an environment. Draining instances are omitted, because they take no jobs and will be replaced."""
    pool, get = tx.store.fleet.pool(pool_of(tx, environment)), tx.store.instances.get
    here = Present([], [], {}, {})
    starting: list[tuple[FreeShape, list[str]]] = []
    for type_, name in state.groups.items():
        group, present = tx.store.groups.get(environment.region, name), 0
        found: dict[tuple[int, int, int, int, bool], list[str]] = {}  # free GPUs, CPU, memory, all GPUs, is empty → instances
        pending: dict[tuple[int, int, int], list[str]] = {}  # GPUs, CPU, memory → instances
        for member in tx.store.groups.members(environment.region, name):
            if member.state not in COUNTED:
                continue
            present += member.weight
            instance = get(member.instance_id)
            if instance is None or instance.state not in LIVING:
                continue
            if instance.id in pool:
                slot = pool.slot(instance.id)
                if slot.draining:
                    continue
                if slot.connected:  # without reports of its host, an instance takes no jobs, but its vCPUs count below
                    is_empty = not (slot.running or slot.pending)
                    free = len(slot.gpus), slot.cpu_units, slot.memory_mib, slot.total.gpus, is_empty
                    found.setdefault(free, []).append(instance.id)
            elif instance.state is InstanceState.PENDING:
                pending.setdefault((instance.gpus, instance.cpu_units, instance.memory_mib), []).append(instance.id)
            else:
                continue  # the instance was deregistered from the cluster
            here.vcpus += instance.cpu_units // CPU_UNITS
            here.gpus += instance.gpus
            here.members[instance.id] = member
        for (gpus, cpu_units, memory_mib, all_gpus, is_empty), ids in found.items():
            here.shapes.append(FreeShape(gpus, cpu_units, memory_mib, all_gpus, len(ids), type_, is_empty))
            here.ids.append(ids)
        starting += [
            (FreeShape(gpus, cpu_units, memory_mib, gpus, len(ids), type_, is_starting=True), ids)
            for (gpus, cpu_units, memory_mib), ids in pending.items()
        ]
        missing = max(0, group.desired - present) if group is not None else 0
        known = next((each for each in types_of(tx, environment) if each.name == type_), None) if missing else None
        if known is not None:
            shape = FreeShape(known.gpus, known.cpu_units, known.memory_mib, known.gpus, missing, type_, is_starting=True)
            starting.append((shape, []))
            here.wanted[name] = missing
            here.vcpus += known.vcpus * missing
            here.gpus += known.gpus * missing
    for shape, ids in starting:  # after the running instances, because jobs use running instances first
        here.shapes.append(shape)
        here.ids.append(ids)
    return here


def plan_of(
    tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState, here: Present, seen: tuple[str, ...] = ()
) -> tuple[ScalingPlan, list[TypeShape]]:
    """Return how many instances an environment should launch for its waiting jobs, and the types that it may launch.

    `lines_for` explains `seen`.
    """
    types, _ = launchable(tx, environment)
    lines = lines_for(tx, environment, seen)
    return plan_scaling(lines, here.shapes, types, size_of(tx, environment, state, here), _strategy(environment)), types


def _strategy(environment: ComputeEnvironment) -> str:
    return str(environment.document["computeResources"].get("allocationStrategy", BEST_FIT))


def size_of(tx: Tx[Store], environment: ComputeEnvironment, state: EnvironmentState, here: Present) -> EnvironmentSize:
    lent = is_lent(tx, environment)
    most = None if lent else tx.store.hosts.all_gpus()
    free = [group.gpus for name in host_pools(tx) for group in tx.store.fleet.pool(name).groups()]
    return EnvironmentSize(
        min_vcpus=environment.min_vcpus,
        max_vcpus=environment.max_vcpus,
        present=here.vcpus,
        gpus=here.gpus,
        gpus_left=WITHOUT_LIMIT if most is None else max(0, most - here.gpus),
        gpus_now=WITHOUT_LIMIT if lent else max(free, default=0),
        asked=state.asked,
        is_enabled=environment.state == ENABLED,
    )


def lines_for(tx: Tx[Store], environment: ComputeEnvironment, seen: tuple[str, ...] = ()) -> list[JobLine]:
    """Return the waiting jobs for which an environment should have room, in the order in which they get capacity.

    Jobs that wait for a limit of their owner are left out, unless the owner of the environment has submitted them: the launch of an
    instance waits for the limits of its own owner.

    If a queue has several environments, a later environment serves only the jobs for which the earlier environments have no room.
    So this function also computes the plans of the earlier environments. `seen` has the names of the environments whose plans are
    being computed. They are not computed again: otherwise two queues that order the same environments differently would cause an
    endless recursion.
    """
    found: list[JobLine] = []
    pool = pool_of(tx, environment)
    update_limits(tx, pool)
    lender, startable = tx.store.stored.owner(SERVICE, TYPE, environment.region, environment.name), Startable(tx)
    queues = queues_of_environment(tx, environment.region, environment.name)
    for queue in sorted(queues, key=lambda each: (-each.priority, each.created_at_s, each.name)):
        lines = [line for line in tx.store.job_lines.lines_of(queue.region, queue.name) if pool in dict(line.pools)]
        left = _left_by_earlier(tx, queue, environment, (*seen, environment.name)) if lines else {}
        for line in sorted(lines, key=lambda each: (each.first.priority, each.since_s, each.id)):
            count = min(left.get(str(line.id), line.count), _startable(tx, line))
            if line.key.owner != lender and tx.store.limits.of:  # the GPUs of the lender's jobs are those of its instances
                claim = tx.store.job_lines.claims_of(line.id)[pool]
                is_open = tx.store.fleet.pool(pool).is_open(claim)
                count = startable.take(line.key.owner, line.demand, count) if is_open and count > 0 else 0
            if count > 0:
                found.append(JobLine(str(line.id), line.demand, count))
    return found


def _left_by_earlier(tx: Tx[Store], queue: JobQueue, environment: ComputeEnvironment, seen: tuple[str, ...]) -> dict[str, int]:
    """Return, for each line of a queue, the number of its jobs for which the earlier environments of the queue have no room.

    The result is empty if the queue has no earlier environment that launches instances.
    """
    left: dict[str, int] = {}
    for name in queue.environments:
        if name == environment.name:
            return left
        earlier = find_environment(tx, queue.region, name)
        if earlier is None or not earlier.scales or not earlier.takes_jobs or name in seen:
            continue
        state = state_of(tx, earlier.region, earlier.name)
        plan, _ = plan_of(tx, earlier, state, present_in(tx, earlier, state), seen)
        for line in tx.store.job_lines.lines_of(queue.region, queue.name):
            unserved = plan.left.get(str(line.id), 0)
            left[str(line.id)] = min(left.get(str(line.id), line.count), unserved)
    return left


def _startable(tx: Tx[Store], line: WaitingLine) -> int:
    """Return how many jobs of a line could start with the consumable resources that are available."""
    count = line.count
    for name, quantity in line.key.resources:
        resource = find_resource(tx, line.key.region, name)
        available = (resource.total if resource is not None else 0) - tx.store.job_holdings.in_use(line.key.region, name)
        if quantity:
            count = min(count, max(0, available) // quantity)
    return count


# Reasons


class Misfit(Struct, frozen=True):
    """Why an environment can never have room for a job."""

    text: str  # a part of a sentence that people read
    is_limit: bool = False  # the reason is the environment's maximum of vCPUs


def misfit_of(tx: Tx[Store], environment: ComputeEnvironment, demand: Demand) -> Misfit | None:
    """Return why an environment that scales can never have room for a job. Return None if it could have room."""
    named = f"the compute environment {environment.name}"
    types, why = launchable(tx, environment)
    if why:
        return Misfit(f"{named} cannot launch an instance: {why}")
    too_large = next((node for node, _ in kinds_of(demand) if not fits_on(types, node)), None)
    if too_large is not None:
        known = next((each for each in types_of(tx, environment) if room_on(each, too_large)), None)
        if known is not None:
            return Misfit(f"a {known.name} is large enough, but {why_never(tx, environment, known)}")
        largest = max(types, key=lambda each: (each.gpus, each.memory_mib, each.cpu_units))
        size = Demand(largest.gpus, largest.cpu_units, largest.memory_mib)
        needs = f"the job needs {amounts(too_large)}, and a {largest.name} has {amounts(size)}"
        return Misfit(f"no instance type of {named} is large enough: {needs}")
    size_alone = EnvironmentSize(0, environment.max_vcpus, 0)
    most = None if is_lent(tx, environment) else tx.store.hosts.all_gpus()
    if not fits_when_empty(demand, types, size_alone, _strategy(environment)):
        text = f"the instances that the job needs have more vCPUs than {named} may have: maxvCpus is {environment.max_vcpus}"
        return Misfit(text, is_limit=True)
    if most is not None and not fits_when_empty(demand, types, replace(size_alone, gpus_left=most), _strategy(environment)):
        return Misfit(f"the instances that the job needs have more GPUs than all hosts together, which have {most}")
    return None


def why_no_room(tx: Tx[Store], environment: ComputeEnvironment, demand: Demand) -> str:
    """Explain what an environment does for a waiting job. The text is a part of a sentence that people read.

    Return "" if the environment accepts jobs, but does not launch instances.
    """
    named = f"the compute environment {environment.name}"
    if not environment.takes_jobs:
        return f"{named} is {environment.state} and {environment.status}: {environment.status_reason}".rstrip(": ")
    if not environment.scales:
        return ""
    misfit = misfit_of(tx, environment, demand)
    if misfit is not None:
        return misfit.text
    state = state_of(tx, environment.region, environment.name)
    if state.refusal:
        return f"{named} could not launch an instance: {state.refusal}"
    here = present_in(tx, environment, state)
    for instance_id in (each for ids in here.ids for each in ids):
        instance = tx.store.instances.get(instance_id)
        if instance is not None and instance.state is InstanceState.PENDING:
            return f"{named} launches an instance of the type {instance.type}, and the launch waits: {reason_of_wait(tx, instance)}"
    if here.wanted:
        count = sum(here.wanted.values())
        return f"{named} launches {count} instance{'s' * (count != 1)}"
    types, _ = launchable(tx, environment)
    smallest = min(each.vcpus for each in types if any(room_on(each, node) for node, _ in kinds_of(demand)))
    if here.vcpus + smallest > environment.max_vcpus:
        return f"{named} has {here.vcpus} of at most {environment.max_vcpus} vCPUs (maxvCpus), and its instances are busy"
    return f"the instances of {named} are busy, and the hosts have no GPUs for further instances"
