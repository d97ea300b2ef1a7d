"""Managed scaling of capacity providers: the inputs of its decisions, its metric, and the reason why a task of a provider waits.

The reconciler `capacity-provider` (`reconcile/capacity_providers.py`) scales the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.placement.slot_fit import amounts, covers
from corral.decide.scaling.group_capacity import COUNTED, capacity_of
from corral.decide.scaling.managed_scaling import GroupInstance, Need, WaitingTasks, needed_instances, reservation_percent
from corral.fleet.clusters import host_pools
from corral.fleet.instances import is_impaired, reason_of_wait
from corral.fleet.shares import Startable
from corral.model.group import DELETING, DRAINED, Group, GroupMember, LifecycleState
from corral.model.instance import Instance, InstanceState, cluster_pool
from corral.model.metric import Metric, Point
from corral.model.placement import Slot
from corral.model.task import Demand, Task
from corral.store import Store
from corral.store.instance_attributes import built_in_attributes, launch_attributes

TYPE = "capacity-provider"  # the type of the stored documents
ENABLED = "ENABLED"
NAMESPACE, RESERVATION = "AWS/ECS/ManagedScaling", "CapacityProviderReservation"
SCALING_STATE = "_scaling"  # the member of a provider's document that has its ScalingState


class LaunchShape(Struct, frozen=True):
    """The instance that the group would launch next."""

    type: str
    gpus: int
    cpu_units: int
    memory_mib: int
    cluster: str  # the cluster that it joins; empty: none
    attributes: dict[str, str] = field(default_factory=dict)
    weight: int = 1

    def as_instance(self, region: str, group: str) -> GroupInstance:
        slot = _empty_slot("", self.gpus, self.cpu_units, self.memory_mib, self.attributes, group)
        return GroupInstance(cluster_pool(region, self.cluster) if self.cluster else "", slot, self.weight)


class ScalingState(Struct, frozen=True):
    """The data that the reconciler of a capacity provider stores for its next call."""

    low_since_s: float | None = None  # since when the group has more capacity than needed; None: it has not
    launch: LaunchShape | None = None  # the instance that the group would have launched when tasks last waited
    refusal: str = ""  # why the group cannot launch an instance; empty: it can
    is_stepping: bool = False  # more instances are needed, but the instances of the last scaling step still warm up
    desired: int | None = None  # the desired capacity after the last decision
    is_lowered: bool = False  # a user or a policy has lowered `desired`, and the group still terminates instances
    paced_at_s: float | None = None  # when a transaction had stopped as many tasks as it may; a later transaction continues


class GroupProvider(Struct, frozen=True):
    region: str
    name: str
    group: str
    document: dict[str, Any]
    clusters: tuple[str, ...]  # the active clusters that have the provider

    @property
    def scaling(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.document["autoScalingGroupProvider"]["managedScaling"]
        return found

    @property
    def scales(self) -> bool:
        return bool(self.clusters) and self.scaling["status"] == ENABLED

    def scales_group(self, group: Group) -> bool:
        """Whether managed scaling is on. It pauses while the deletion of the group, or the update of a stack, empties the group."""
        return self.scales and group.status != DELETING and DRAINED not in group.settings

    @property
    def protects(self) -> bool:
        """Whether managed termination protection is on."""
        return self.scales and self.document["autoScalingGroupProvider"]["managedTerminationProtection"] == ENABLED

    @property
    def drains(self) -> bool:
        return bool(self.clusters) and self.document["autoScalingGroupProvider"]["managedDraining"] == ENABLED

    @property
    def state(self) -> ScalingState:
        return convert(self.document.get(SCALING_STATE, {}), ScalingState)


def group_name(document: Mapping[str, Any]) -> str:
    """The name of the Auto Scaling group in a provider's document. Empty if the document has none."""
    return str(document.get("autoScalingGroupProvider", {}).get("autoScalingGroupArn", "")).rpartition("autoScalingGroupName/")[2]


def provider_of_group(tx: Tx[Store], region: str, group: str) -> GroupProvider | None:
    for name, document in tx.store.stored.listed("ecs", TYPE, region):
        if group_name(document) == group:
            return GroupProvider(region, name, group, document, tuple(tx.store.clusters.with_provider(region, name)))
    return None


def put_state(tx: Tx[Store], provider: GroupProvider, state: ScalingState) -> None:
    if state != provider.state:
        document = {**provider.document, SCALING_STATE: to_builtins(state)}
        tx.store.stored.change("ecs", TYPE, provider.region, provider.name, document)


# Instances and tasks


def counted_members(tx: Tx[Store], group: Group) -> list[GroupMember]:
    """The members of a group that run or start, oldest first."""
    return [member for member in tx.store.groups.members(group.region, group.name) if member.state in COUNTED]


def instances_of(tx: Tx[Store], members: Iterable[GroupMember]) -> list[GroupInstance]:
    daemons: dict[str, list[str]] = {}
    of_host = cache(partial(host_attributes, tx))
    return [_instance_of(tx, member, daemons, of_host) for member in members]


def _instance_of(
    tx: Tx[Store], member: GroupMember, daemons: dict[str, list[str]], of_host: Callable[[], dict[str, str]]
) -> GroupInstance:
    instance = tx.store.instances.get(member.instance_id)
    if instance is None or instance.state is InstanceState.TERMINATED:
        return GroupInstance("", _empty_slot(member.instance_id, 0, 0, 0, {}, member.group), member.weight)
    pool_name = instance.pool
    pool = tx.store.fleet.pool(pool_name) if pool_name is not None else None
    if pool_name is None or pool is None or instance.id not in pool:
        starts = instance.state is InstanceState.PENDING and instance.joins
        joins = cluster_pool(instance.region, instance.joins) if starts else ""
        custom = tx.store.instances.attributes(instance.id) if starts else {}
        attributes = future_attributes(of_host(), instance.type, instance.gpus, instance.details, custom) if starts else {}
        size = instance.gpus, instance.cpu_units, instance.memory_mib
        return GroupInstance(joins, _empty_slot(instance.id, *size, attributes, member.group), member.weight)
    slot = pool.slot(instance.id)
    if instance.cluster not in daemons:
        daemons[instance.cluster] = daemon_groups(tx, instance.region, instance.cluster)
    return GroupInstance(pool_name, slot, member.weight, has_other_tasks(slot, daemons[instance.cluster]))


def daemon_groups(tx: Tx[Store], region: str, cluster: str) -> list[str]:
    """The keys of the task groups (`Task.group_key`) of a cluster's DAEMON services."""
    return [f"{region}/{cluster}/service:{name}" for _, name in tx.store.ecs_services.daemons(cluster, region)]


def has_other_tasks(slot: Slot, daemons: Iterable[str]) -> bool:
    """Whether tasks that are not daemon tasks start, run or stop on an instance."""
    tasks = slot.running + slot.pending
    return tasks > 0 and tasks > sum(slot.tasks.get(group, 0) for group in daemons)


class ManagedDraining:
    """Finds the tasks that must end before a group terminates an instance: with managed draining, all tasks except daemon tasks.

    An object is used in one transaction, and reads the capacity provider and the DAEMON services once for all instances.
    """

    def __init__(self, tx: Tx[Store], region: str, group: str) -> None:
        self._tx = tx
        self._provider = cache(partial(provider_of_group, tx, region, group))
        self._daemons = cache(partial(daemon_groups, tx, region))

    def is_awaited(self, instance: Instance) -> bool:
        """Whether the group waits for tasks on an instance.

        If the counters of the slot already show such a task, no rows of tasks are read.
        """
        pool = self._tx.store.fleet.pool(instance.pool) if instance.pool is not None and self._drains() else None
        if pool is not None and instance.id in pool and (slot := pool.slot(instance.id)).connected:
            daemons = self._daemons(instance.cluster)
            if any(group not in daemons for group in slot.tasks) or (not daemons and slot.running + slot.pending):
                return True
        return bool(self.awaited(instance))

    def awaited(self, instance: Instance) -> list[Task]:
        """The tasks on an instance that must end before the group terminates the instance."""
        if not instance.group or not instance.cluster or is_impaired(self._tx, instance) or not self._drains():
            return []
        daemons = self._daemons(instance.cluster)
        return [task for task in self._tx.store.tasks.on(instance.id) if task.group_key not in daemons]

    def _drains(self) -> bool:
        provider = self._provider()
        return provider is not None and provider.drains


def tasks_to_drain(tx: Tx[Store], instance: Instance) -> list[Task]:
    """The tasks that must end before a group terminates an instance."""
    return ManagedDraining(tx, instance.region, instance.group).awaited(instance)


def _empty_slot(id: str, gpus: int, cpu_units: int, memory_mib: int, attributes: Mapping[str, str], group: str) -> Slot:
    """The slot that an instance will have when it has joined its cluster. Its GPUs are not known yet, only their number."""
    total = Demand(gpus, cpu_units, memory_mib)
    return Slot(id, total, cpu_units, memory_mib, [""] * gpus, {}, attributes=dict(attributes), instance_group=group)


def host_attributes(tx: Tx[Store]) -> dict[str, str]:
    """The attributes that an instance has from its host. GPUs of other instances count too, because they can become free."""
    slots = (slot for pool in host_pools(tx) for slot in tx.store.fleet.pool(pool).slots())
    slot = next(slots, None)
    if slot is None:
        return {}
    models, is_simulated = tx.store.hosts.gpu_models(tx.store.instances.host_of(slot.id))
    return built_in_attributes("", slot.attributes["corral.host-name"], models, is_simulated=is_simulated)


def future_attributes(
    of_host: Mapping[str, str], type_: str, gpus: int, details: Mapping[str, Any], custom: Mapping[str, str]
) -> dict[str, str]:
    """The attributes that an instance will have when it has joined its cluster."""
    of_gpus = {} if gpus else {"corral.gpu-model": "", "corral.gpus-simulated": "false"}
    return {**of_host, **of_gpus, "ecs.instance-type": type_, **launch_attributes(details), **custom}


def waiting_tasks(tx: Tx[Store], provider: GroupProvider) -> list[WaitingTasks]:
    """Return the waiting tasks of a capacity provider that may start if they have room.

    Those that wait for a limit of their owner are left out. The launch of an instance waits for the limits of its own owner.
    """
    counts: dict[tuple[str, Demand], int] = {}
    group, startable = tx.store.groups.get(provider.region, provider.group), Startable(tx)
    for cluster in provider.clusters:
        pool = cluster_pool(provider.region, cluster)
        for demand, owner, count in tx.store.fleet.pool(pool).waiting_lines.open_lines():
            if demand.rules is not None and demand.rules.instance_group == provider.group:
                if tx.store.limits.of and (group is None or owner != group.owner):
                    count = startable.take(owner, demand, count)
                counts[pool, demand] = counts.get((pool, demand), 0) + count
    return [WaitingTasks(pool, demand, count) for (pool, demand), count in counts.items() if count]


# Termination protection


def protect_members(tx: Tx[Store], group: Group, members: Sequence[GroupMember], need: Need) -> None:
    """Set the scale-in protection of the members of a group.

    If the group has more capacity than desired, only the instances that tasks need (`need.used`) are protected. Otherwise all
    members are protected.
    """
    has_surplus = capacity_of(members) > group.desired
    opened = False
    for member in members:
        protected = member.instance_id in need.used or not has_surplus
        if member.state in COUNTED and member.protected != protected:
            tx.store.groups.put_member(member.but(protected=protected))
            opened = opened or not protected
    if opened:
        tx.mark(group.key)


def unprotect_members(tx: Tx[Store], group: Group) -> None:
    """Remove the scale-in protection of all members, because managed termination protection was turned off."""
    for member in counted_members(tx, group):
        if member.protected:
            tx.store.groups.put_member(member.but(protected=False))
    tx.mark(group.key)


# CapacityProviderReservation


def provider_reservations(tx: Tx[Store]) -> dict[tuple[str, str, str], float]:
    """CapacityProviderReservation of each provider with managed scaling, by (region, cluster, provider)."""
    found: dict[tuple[str, str, str], float] = {}
    for region in tx.store.clusters.regions():
        for name, document in tx.store.stored.listed("ecs", TYPE, region):
            provider = GroupProvider(
                region, name, group_name(document), document, tuple(tx.store.clusters.with_provider(region, name))
            )
            group = tx.store.groups.get(region, provider.group) if provider.scales else None
            if group is not None:
                members = counted_members(tx, group)
                percent = reservation_percent(need_of(tx, provider, members).instances, len(members))
                found |= {(region, cluster, name): percent for cluster in provider.clusters}
    return found


def need_of(tx: Tx[Store], provider: GroupProvider, members: Iterable[GroupMember]) -> Need:
    """The instances that the tasks of a provider need. New instances have the shape that the provider's reconciler has stored."""
    launch = provider.state.launch
    new = launch.as_instance(provider.region, provider.group) if launch is not None else None
    return needed_instances(instances_of(tx, members), waiting_tasks(tx, provider), new)


def reservation_points(percent: float, key: tuple[str, str, str], at_s: float, seconds: float) -> Iterator[Point]:
    region, cluster, name = key
    metric = Metric(region, NAMESPACE, RESERVATION, (("CapacityProviderName", name), ("ClusterName", cluster)))
    yield Point(metric, at_s, percent if seconds < 1.5 else [(percent, float(round(seconds)))], "Percent", 1)


# Reasons


def why_provider_waits(tx: Tx[Store], pool: str, demand: Demand) -> str:
    """Explain what the capacity provider of a waiting task does. The text is a part of a sentence that people read."""
    assert demand.rules is not None
    region, name = pool.partition("/")[0], demand.rules.instance_group
    provider, group = provider_of_group(tx, region, name), tx.store.groups.get(region, name)
    if provider is None:
        return f"no capacity provider has the group {name}"
    named = f"the group {name} of the capacity provider {provider.name}"
    if group is None:
        return f"{named} does not exist"
    if provider.scaling["status"] != ENABLED:
        return f"managed scaling of the capacity provider {provider.name} is off; its group {name} wants {_count(group.desired)}"
    state = provider.state
    if "AlarmNotification" in group.suspended or "Launch" in group.suspended:
        return f"{named} has suspended processes, so it launches no instances"
    if state.refusal:
        return f"{named} cannot launch an instance: {state.refusal}"
    if state.launch is not None and (problem := _cannot_help(state.launch, region, pool, name, demand)) is not None:
        return f"{named} cannot help: {problem}"
    members = counted_members(tx, group)
    starting = [member for member in members if member.state is not LifecycleState.IN_SERVICE]
    asked = max(0, group.desired - capacity_of(members)) + sum(member.weight for member in starting)
    if asked:
        text = f"the capacity provider {provider.name} has asked its group {name} for {_count(asked)}"
        return text + _why_launch_waits(tx, group, starting)
    if group.desired >= group.max_size:
        return f"{named} has reached its maximum size {group.max_size}"
    if state.is_stepping:
        scaling = provider.scaling
        step = f"at most {_count(scaling['maximumScalingStepSize'])} of {named} warm up at the same time"
        return f"{step}, for {scaling['instanceWarmupPeriod']} s each"
    return f"the capacity provider {provider.name} scales its group {name}"


def _cannot_help(launch: LaunchShape, region: str, pool: str, group: str, demand: Demand) -> str | None:
    """Return why a new instance of the group could not run a task. Return None if it could."""
    new = launch.as_instance(region, group)
    if new.pool != pool:
        joined = f"the cluster {launch.cluster}" if launch.cluster else "no cluster"
        return f"its instances join {joined}; set ECS_CLUSTER={pool.partition('/')[2]} in their user data"
    if not covers(new.slot.total, replace(demand, gpu_memory_mib=0)):  # the memory of the GPUs is not known before the launch
        return f"the task needs {amounts(demand)}, and an instance of the type {launch.type} has {amounts(new.slot.total)}"
    if needed_instances([], [WaitingTasks(pool, demand, 1)], new).unfit:
        return "its instances do not match the placement constraints of the task"
    return None


def _why_launch_waits(tx: Tx[Store], group: Group, starting: Sequence[GroupMember]) -> str:
    for member in starting:
        instance = tx.store.instances.get(member.instance_id)
        if instance is not None and instance.state is InstanceState.PENDING:
            return f", and the launch waits: {reason_of_wait(tx, instance)}"
    if group.failures:
        failed = tx.store.groups.activities(group.region, group.name, ended=True, limit=1)
        return f", and the last launch failed: {failed[0][1].message}" if failed else ""
    return ""


def _count(instances: int) -> str:
    return f"{instances} instance{'s' * (instances != 1)}"
