"""Instances: launch, stop, start, reboot and terminate them, and let them join ECS clusters.

Services, such as EC2 and Auto Scaling, and reconcilers call these functions. A launch that finds no free GPUs waits as a claim, an
entry in the waiting list of the hosts. Every change of the state, the cluster or the group of an instance ends with a call of
`_changed`. This function wakes the requests that wait for the instance, and runs the reconcilers of the group and of DAEMON
services.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.placement.shortages import why_waiting
from corral.fleet import newcomers
from corral.fleet.clusters import host_pools, is_active_cluster
from corral.fleet.lenders import Lending, lending_of, why_lent_later
from corral.fleet.newcomers import find_room, taking_capacity
from corral.fleet.shares import held_less
from corral.model.allocation import LOCAL, Allocation, AllocationState, allocation_cluster
from corral.model.ecs_service import service_of_task
from corral.model.group import provider_key
from corral.model.instance import GROUP_TAG, Instance, InstanceState, host_instance_id, host_pool
from corral.model.placement import INSTANCE, Claim, Placement, Unplaceable, claim_rank
from corral.model.task import Demand
from corral.store import Store

# Why tasks of an instance were stopped
TERMINATED = "the instance was terminated"
STOPPED = "the instance was stopped"
REBOOTED = "the instance was rebooted: RebootInstances"
DEREGISTERED = "the container instance was deregistered"
HOST_SIZES = "host-sizes"  # `Tx.changed` gets this key when a host connects, changes or no longer reports
ENDS_MAX = 20  # the most instances of one request whose termination is completed in one transaction
PACE_S = 0.01  # the time until the next of these transactions
USAGE_SHOWN_S = 400 * 86_400.0  # how long `corral cost` reports the hours of an instance: a year and a month
SHOWN_S = 2 * 3600.0  # how long a terminated instance is shown: longer than a stopped task, because the task names its instance


class InstanceRequest(Struct, frozen=True, kw_only=True):
    """An instance to launch, with the size of its type."""

    owner: str
    region: str
    cluster: str  # the ECS cluster that it joins; empty: none
    type: str
    gpus: int
    cpu_units: int
    memory_mib: int
    attributes: dict[str, str] = field(default_factory=dict)  # custom attributes of the container instance
    group: str = ""  # the name of its Auto Scaling group
    reason: str = ""  # why the instance is launched, as a sentence for people
    details: dict[str, Any] = field(default_factory=dict)  # `Instance.details`


# Launch


def launch(tx: Tx[Store], request: InstanceRequest) -> Instance:
    """Launch an instance now if GPUs are free and no older claim waits for them. Otherwise the launch waits as a claim.

    An instance with lenders waits until a lender gives it a machine.
    """
    lending = lending_of(tx, request.type, request.details)
    if not lending.is_local:
        placed = place_now(tx, request)
        assert isinstance(placed, Instance), "the caller has not checked the lenders: `fits_ever`"
        return placed
    return _add(tx, request, *find_room(tx, host_pools(tx, request.cluster), request.owner, Demand(request.gpus)))


def place_now(tx: Tx[Store], request: InstanceRequest) -> Instance | Unplaceable:
    """Launch an instance that does not wait, or return why there is no room for it. A machine of a lender comes later."""
    lending = lending_of(tx, request.type, request.details)
    if lending.refusal:
        return Unplaceable("LENDER", lending.refusal)
    if not lending.is_local:
        return _launch_lent(tx, request, lending)
    pool, found = newcomers.place_now(tx, host_pools(tx, request.cluster), request.owner, Demand(request.gpus))
    return found if isinstance(found, Unplaceable) else _add(tx, request, pool, found)


def fits_ever(tx: Tx[Store], request: InstanceRequest) -> str | None:
    """Return None if a host has enough GPUs for the instance, or if a lender may have them.

    Otherwise return a message that says how to change the type, the lender or its options.
    """
    lending = lending_of(tx, request.type, request.details)
    if lending.refusal or not lending.is_local:
        return lending.refusal or None
    pools = [tx.store.fleet.pool(name) for name in host_pools(tx)]
    if any(total.gpus >= request.gpus for pool in pools for total in pool.totals()):
        return None
    most = tx.store.hosts.most_gpus()  # unlike `totals`, this includes GPUs that a user has reserved
    if most is None or most >= request.gpus:
        return None
    has = f"{_gpus(most)} ({sum(pool.free_gpus for pool in pools)} free)"
    return (
        f"{request.type} needs {_gpus(request.gpus)}, and this machine has {has}. To run it here, write this to corral.toml"
        f" in the data folder and restart Corral: [instance-types] {request.type} = {{gpus = {most}}}"
    )


def grant(tx: Tx[Store], claim: Claim, placement: Placement) -> None:
    """Launch an instance whose claim was placed."""
    instance = tx.store.instances.get(claim.id)
    assert instance is not None, "the claim of an instance that does not exist"
    _run(tx, instance, placement)


def reason_of_wait(tx: Tx[Store], instance: Instance) -> str:
    if why := why_lent_later(tx, instance.id):
        return why
    claim, pool = tx.store.claims.get(INSTANCE, instance.id), tx.store.claims.pool_of(INSTANCE, instance.id)
    return why_waiting(tx.store.fleet.pool(pool), claim) if claim is not None and pool is not None else ""


def _launch_lent(tx: Tx[Store], request: InstanceRequest, lending: Lending) -> Instance:
    """Launch an instance whose lenders are asked in their order. It waits as the only claim in the pool of its own allocation.

    If `local` is the first lender, and a host has room now, the instance gets a part of this host.
    """
    first, *others = lending.lenders
    if first == LOCAL:
        pool, found = newcomers.place_now(tx, host_pools(tx, request.cluster), request.owner, Demand(request.gpus))
        if isinstance(found, Placement):
            return _add(tx, request, pool, found)
        first, *others = others
    instance_id = tx.ids.hex32()
    instance = _add(tx, request, host_pool(allocation_cluster(instance_id)), None, instance_id)
    tx.store.allocations.put(Allocation(instance_id, first, tuple(others), options=lending.options, created_at_s=tx.now_s))
    return instance


def ask_next_lender(tx: Tx[Store], instance: Instance, allocation: Allocation) -> None:
    """Ask the next lender for the machine of an instance, because the present one has refused.

    `local` gives the machine if a host has room now. As the last lender, it lets the instance wait for room.
    """
    lender, *others = allocation.others
    pool, found = find_room(tx, host_pools(tx, instance.joins), instance.owner, instance.demand) if lender == LOCAL else ("", None)
    if lender == LOCAL and found is None and others:
        lender, *others = others
    if lender != LOCAL:
        tx.store.allocations.put(replace(allocation, lender=lender, others=tuple(others), reason="", digest="", said=""))
        return
    tx.store.allocations.drop(instance.id)
    with taking_capacity(tx, pool) if found is not None else nullcontext():
        tx.store.instances.move_claim(instance, pool, claim_rank(tx.now_s))
        if found is not None:
            _run(tx, instance, found)
            return
    tx.mark(f"pool:{pool}")
    _changed(tx, instance)


def _add(tx: Tx[Store], request: InstanceRequest, pool: str, placement: Placement | None, instance_id: str = "") -> Instance:
    instance = Instance(
        id=instance_id or tx.ids.hex32(),
        region=request.region,
        cluster="",
        type=request.type,
        state=InstanceState.PENDING,
        gpus=request.gpus,
        cpu_units=request.cpu_units,
        memory_mib=request.memory_mib,
        created_at_s=tx.now_s,
        details=request.details,
        group=request.group,
        joins=request.cluster,
        launch_reason=request.reason,
        owner=request.owner,
    )
    with taking_capacity(tx, pool) if placement is not None else nullcontext():
        tx.store.instances.add(instance, pool, claim_rank(tx.now_s), request.attributes)
        if placement is not None:
            return _run(tx, instance, placement)
    tx.mark(f"pool:{pool}")
    _changed(tx, instance)
    return instance


def _run(tx: Tx[Store], instance: Instance, placement: Placement) -> Instance:
    """Give a pending instance its GPUs. If its cluster exists, it joins the cluster, and the scheduler can place tasks on it."""
    joined = instance.joins if instance.joins and is_active_cluster(tx, instance.region, instance.joins) else ""
    launched = tx.store.instances.launch(instance.but(cluster=joined), placement, tx.now_s)
    if launched.pool is not None:
        tx.mark(f"pool:{launched.pool}")
    _changed(tx, launched)
    return launched


# Stop, start, reboot, terminate


def stop(tx: Tx[Store], instance: Instance, reason: str) -> None:
    """Stop a running instance and its tasks. When the last task has ended, the host gets the GPUs back. Idempotent."""
    if instance.state is InstanceState.RUNNING:
        _begin_end(tx, instance, InstanceState.STOPPING, reason)


def start(tx: Tx[Store], instance: Instance, reason: str) -> Instance:
    """Launch a stopped instance again, or let it wait as a claim."""
    if instance.state is not InstanceState.STOPPED:
        return instance
    pool, found = find_room(tx, host_pools(tx, instance.joins), instance.owner, instance.demand)
    with taking_capacity(tx, pool) if found is not None else nullcontext():
        waiting, _ = tx.store.instances.restart(instance, pool, claim_rank(tx.now_s), reason)
        if found is not None:
            return _run(tx, waiting, found)
    tx.mark(f"pool:{pool}")
    _changed(tx, waiting)
    return waiting


def reboot(tx: Tx[Store], instance: Instance) -> None:
    """Stop the tasks of a running instance. The instance keeps its GPUs and stays in its cluster."""
    if instance.state is InstanceState.RUNNING:
        _stop_tasks(tx, instance)


def terminate(tx: Tx[Store], instance: Instance, reason: str, *, after: int = 0) -> None:
    """Terminate an instance and stop its tasks. When the last task has ended, the host gets the GPUs back. Idempotent.

    `after` is the number of instances that the same request terminates before this instance. If it is ENDS_MAX or more, a later
    transaction completes the termination, so that other requests do not have to wait.
    """
    assert not instance.is_host, "a host's own instance ends with the host"
    if instance.state in (InstanceState.PENDING, InstanceState.STOPPED):
        _terminate(tx, instance, reason)
    elif instance.state in (InstanceState.RUNNING, InstanceState.STOPPING):
        _begin_end(tx, instance, InstanceState.SHUTTING_DOWN, reason, after // ENDS_MAX * PACE_S)


def finish(tx: Tx[Store], instance: Instance) -> None:
    """Complete the stop, the termination or the deregistration of an instance whose last task has ended."""
    ends = instance.state in (InstanceState.SHUTTING_DOWN, InstanceState.STOPPING)
    if not ends and instance.status != "INACTIVE":
        return  # this is checked first, because every end of a task calls this function, and the next line reads rows
    if tx.store.tasks.on(instance.id):
        return
    if instance.state is InstanceState.SHUTTING_DOWN:
        _terminate(tx, instance, instance.end_reason)
    elif instance.state is InstanceState.STOPPING:
        _changed(tx, tx.store.instances.stop(instance, tx.now_s), instance.pool)
        _mark_hosts(tx, instance)
    elif instance.status == "INACTIVE" and instance.cluster:
        _changed(tx, tx.store.instances.leave(instance), instance.pool)


def _begin_end(tx: Tx[Store], instance: Instance, state: InstanceState, reason: str, delay_s: float = 0.0) -> None:
    ending = tx.store.instances.begin_end(instance, state, reason, tx.now_s)
    _stop_tasks(tx, instance)
    if delay_s:
        tx.due(f"instance:{instance.id}", tx.now_s + delay_s)
    else:
        tx.mark(f"instance:{instance.id}")
    _changed(tx, ending)


def _stop_tasks(tx: Tx[Store], instance: Instance) -> None:
    """Stop the tasks of an instance. The reconciler `eviction` stops them, in this transaction."""
    for task in tx.store.tasks.on(instance.id):
        tx.mark(f"eviction:{task.id}")


def why_tasks_stop(instance: Instance) -> str:
    ends = {InstanceState.STOPPING: STOPPED, InstanceState.SHUTTING_DOWN: TERMINATED}
    why = ends.get(instance.state, DEREGISTERED if instance.status == "INACTIVE" else REBOOTED)
    by_lender = instance.state is InstanceState.SHUTTING_DOWN and instance.end_reason.startswith("Server.")
    return f"{why}: {instance.end_reason.partition(': ')[2]}" if by_lender else why


def _terminate(tx: Tx[Store], instance: Instance, reason: str) -> None:
    _mark_hosts(tx, instance)
    ended = tx.store.instances.terminate(instance, tx.now_s, reason)
    if (allocation := tx.store.allocations.get(instance.id)) is not None:
        tx.store.allocations.put(replace(allocation, state=AllocationState.ENDING))
    tx.store.stored.drop("ecs", "container-instance", instance.region, instance.id)  # its tags in ECS
    tx.due("terminated:", tx.now_s + SHOWN_S)
    _changed(tx, ended, instance.pool)


# As container instances


def join_created_cluster(tx: Tx[Store], region: str, cluster: str) -> None:
    """Let instances join a new cluster that they waited for."""
    for instance in tx.store.instances.live(region):
        waits = instance.joins == cluster and not instance.cluster and instance.status != "INACTIVE"
        if waits and instance.state is InstanceState.RUNNING:
            joined = tx.store.instances.join(instance, cluster)
            tx.mark(f"pool:{joined.pool}")
            _changed(tx, joined)


def set_status(tx: Tx[Store], instance: Instance, status: str) -> None:
    """Set a container instance to ACTIVE or DRAINING.

    A draining instance gets no new tasks, and services replace their tasks on it.
    """
    tx.store.instances.set_status(instance.id, status)
    if instance.pool is not None:
        tx.mark(f"pool:{instance.pool}")  # a waiting task may fit on an instance that is active again
        tx.mark(f"daemons:{instance.pool}")
    if instance.group:
        tx.mark(provider_key(instance.region, instance.group))
    for task in tx.store.tasks.on(instance.id):
        if (service := service_of_task(task)) is not None:
            tx.mark(f"service:{service}")


def deregister(tx: Tx[Store], instance: Instance) -> None:
    """Stop the tasks of an instance. When they have ended, the instance leaves its cluster.

    The instance keeps its GPUs. After a stop and a start, it joins the cluster again.
    """
    tx.store.instances.set_status(instance.id, "INACTIVE")
    _stop_tasks(tx, instance)
    tx.mark(f"instance:{instance.id}")
    _changed(tx, instance)


def move_host(tx: Tx[Store], instance: Instance) -> None:
    """Move a host's own instance to the cluster that the options of the host name, unless tasks run on it.

    While they run, the instance gets no new tasks (`Slot.draining`), and services replace theirs. The end of the last task calls
    this function again.
    """
    if instance.joins == instance.cluster or instance.pool is None:
        return
    if on_host := tx.store.tasks.on(instance.id):
        for task in on_host:
            if (service := service_of_task(task)) is not None:
                tx.mark(f"service:{service}")
        return
    moved = tx.store.instances.move_host(instance)
    for pool in (instance.pool, moved.pool):
        tx.mark(f"pool:{pool}")
        tx.mark(f"daemons:{pool}")
    _let_instances_join(tx, moved.cluster)
    tx.changed(HOST_SIZES)


def host_joined(tx: Tx[Store], host_id: str) -> None:
    """Apply the cluster of a host that has connected: the first host of a cluster creates the cluster, in every region."""
    own = tx.store.instances.get(host_instance_id(host_id))
    assert own is not None, "a host that has not reported"
    move_host(tx, own)
    _let_instances_join(tx, own.cluster)


def _let_instances_join(tx: Tx[Store], cluster: str) -> None:
    for region in {each.region for each in tx.store.instances.slices() if each.joins == cluster and not each.cluster}:
        join_created_cluster(tx, region, cluster)


# Changes


def is_impaired(tx: Tx[Store], instance: Instance) -> bool:
    """Return True if the host of an instance does not report. Then tasks of the instance may be lost, and it gets no new tasks."""
    host = tx.store.hosts.get(instance.host_id) if instance.host_id is not None else None
    return host is not None and not host["connected"]


def host_changed(tx: Tx[Store], host_id: str) -> None:
    """Notify the groups of a host's instances, because the host has connected, has changed or no longer reports.

    Also reconcile the capacity providers of waiting tasks, because the hosts limit which instances a provider can launch. Compute
    environments that cannot launch an instance watch the key HOST_SIZES.
    """
    tx.changed(HOST_SIZES)
    for instance in tx.store.instances.on_host(host_id):
        _changed(tx, instance)
    mark_providers(tx)


def mark_providers(tx: Tx[Store]) -> None:
    """Reconcile the capacity providers of all waiting tasks."""
    for pool in tx.store.fleet.pools_with_claims():
        for peers in tx.store.fleet.pool(pool).waiting_lines.peers.values():
            if peers.demand.rules is not None and peers.demand.rules.instance_group:
                tx.mark(provider_key(pool.partition("/")[0], peers.demand.rules.instance_group))


def set_group(tx: Tx[Store], instance: Instance, group: str) -> None:
    """Set the Auto Scaling group of an instance; an empty name removes it. As on AWS, a tag contains the name of the group."""
    tags = [tag for tag in instance.details.get("Tags", ()) if tag["Key"] != GROUP_TAG]
    tags += [{"Key": GROUP_TAG, "Value": group}] if group else []
    changed = instance.but(details={**instance.details, "Tags": tags})
    attached = tx.store.instances.set_group(changed, group, tx.now_s)
    if attached.pool is not None:
        tx.mark(f"pool:{attached.pool}")  # a waiting task of a capacity provider may now fit
    _changed(tx, attached)


def put_details(tx: Tx[Store], instance: Instance, details: dict[str, Any]) -> Instance:
    """Replace the details of an instance, for example its tags and attributes."""
    changed = instance.but(details=details)
    tx.store.instances.put_row(changed)
    return changed


def _changed(tx: Tx[Store], instance: Instance, left_pool: str | None = None) -> None:
    """Wake requests that wait for an instance, and mark its group and the DAEMON services of its pool."""
    tx.changed(f"instance:{instance.id}")
    if instance.group:
        tx.mark(f"group:{instance.region}/{instance.group}")
    pool = left_pool or instance.pool
    if pool is not None:
        tx.mark(f"daemons:{pool}")
    if instance.gpus and not instance.is_host:
        for each in host_pools(tx):
            tx.mark(f"daemons:{each}")  # a host's own slot has lost or got GPUs


def _mark_hosts(tx: Tx[Store], instance: Instance) -> None:
    """Run the scheduler: an instance returns its GPUs to its host, or a slot was reserved for its launch."""
    own = tx.store.instances.get(host_instance_id(instance.host_id)) if instance.host_id is not None else None
    pool = own.pool if own is not None else tx.store.claims.pool_of(INSTANCE, instance.id)
    if pool is not None:
        tx.mark(f"pool:{pool}")
    held_less(tx)


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
