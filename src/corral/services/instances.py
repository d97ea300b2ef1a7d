"""Instances: launch, stop, start, reboot and terminate them, and let them join ECS clusters.

EC2, Auto Scaling and ECS call these functions, and `reconcile/instances.py` calls `finish`. Every change of an instance passes
`_changed`.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from corral.core import Tx
from corral.decide.placement import claim_rank, place_newcomer, room_for_newcomer, why_waiting
from corral.model.instance import GROUP_TAG, HOST_POOL, Instance, InstanceState
from corral.model.placement import INSTANCE, Claim, Placement, Unplaceable
from corral.model.task import Demand, StopCode
from corral.services.ecs.lookup import is_active_cluster
from corral.services.ecs.task_progress import begin_stop
from corral.store import Store

TERMINATED = "the instance was terminated"  # reasons of the tasks that stop
STOPPED = "the instance was stopped"
REBOOTED = "the instance was rebooted"
DEREGISTERED = "the container instance was deregistered"
ENDS_MAX = 20  # instances that one transaction terminates for one request
PACE_S = 0.01  # until the next of these transactions
USAGE_SHOWN_S = 400 * 86_400.0  # how long `corral cost` has the hours of an instance: a year and a month
SHOWN_S = 2 * 3600.0  # how long a terminated instance is shown: longer than a stopped task, because the task names its instance


class InstanceRequest(Struct, frozen=True, kw_only=True):
    """An instance to launch, with the size of its type."""

    region: str
    cluster: str  # the ECS cluster that the instance joins; empty if it joins none
    type: str
    gpus: int
    cpu_units: int
    memory_mib: int
    attributes: dict[str, str] = field(default_factory=dict)  # custom attributes of the container instance
    group: str = ""  # the name of its Auto Scaling group
    reason: str = ""  # why it is launched: one sentence for people
    details: dict[str, Any] = field(default_factory=dict)  # `Instance.details`


# Launch


def launch(tx: Tx[Store], request: InstanceRequest) -> Instance:
    """Launch an instance in this transaction if GPUs are free and no older claim waits for them; else it waits as a claim."""
    return _add(tx, request, room_for_newcomer(tx.store.fleet.pool(HOST_POOL), Demand(request.gpus)))


def place_now(tx: Tx[Store], request: InstanceRequest) -> Instance | Unplaceable:
    """Launch an instance that does not wait, or return why there is no room for it."""
    found = place_newcomer(tx.store.fleet.pool(HOST_POOL), Demand(request.gpus))
    return found if isinstance(found, Unplaceable) else _add(tx, request, found)


def fits_ever(tx: Tx[Store], request: InstanceRequest) -> str | None:
    """None if a host could hold the instance; else what it needs, what this machine has, and how to map the type to that."""
    if any(total.gpus >= request.gpus for total in tx.store.fleet.pool(HOST_POOL).totals()):
        return None
    most = tx.store.hosts.most_gpus()  # also GPUs that a user has reserved for a while
    if most is None or most >= request.gpus:
        return None
    return (
        f"{request.type} needs {_gpus(request.gpus)}, and this machine has {_gpus(most)}. To run it here, write this to "
        f"corral.toml in the data folder and restart Corral: [instance-types] {request.type} = {{gpus = {most}}}"
    )


def grant(tx: Tx[Store], claim: Claim, placement: Placement) -> None:
    """Launch an instance whose claim was placed."""
    instance = tx.store.instances.get(claim.id)
    assert instance is not None, "the claim of an instance that does not exist"
    _run(tx, instance, placement)


def reason_of_wait(tx: Tx[Store], instance: Instance) -> str:
    """Why a pending instance waits."""
    claim = tx.store.claims.get(INSTANCE, instance.id)
    return why_waiting(tx.store.fleet.pool(HOST_POOL), claim) if claim is not None else ""


def _add(tx: Tx[Store], request: InstanceRequest, placement: Placement | None) -> Instance:
    instance = Instance(
        id=tx.ids.hex32(),
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
    )
    tx.store.instances.add(instance, HOST_POOL, claim_rank(tx.now_s), request.attributes)
    if placement is not None:
        return _run(tx, instance, placement)
    tx.mark(f"pool:{HOST_POOL}")
    _changed(tx, instance)
    return instance


def _run(tx: Tx[Store], instance: Instance, placement: Placement) -> Instance:
    """Give a pending instance its GPUs. It joins its cluster, and its slot may then serve waiting tasks."""
    joined = instance.joins if instance.joins and is_active_cluster(tx, instance.region, instance.joins) else ""
    launched = tx.store.instances.launch(instance.but(cluster=joined), placement, tx.now_s)
    if launched.pool is not None:
        tx.mark(f"pool:{launched.pool}")
    _changed(tx, launched)
    return launched


# Stop, start, reboot, terminate


def stop(tx: Tx[Store], instance: Instance, reason: str) -> None:
    """Stop the tasks of a running instance; when the last one has ended, its host gets the GPUs back. Idempotent."""
    if instance.state is InstanceState.RUNNING:
        _begin_end(tx, instance, InstanceState.STOPPING, reason, STOPPED)


def start(tx: Tx[Store], instance: Instance, reason: str) -> Instance:
    """Launch a stopped instance again, or let it wait as a claim."""
    if instance.state is not InstanceState.STOPPED:
        return instance
    found = room_for_newcomer(tx.store.fleet.pool(HOST_POOL), instance.demand)
    waiting, _ = tx.store.instances.restart(instance, HOST_POOL, claim_rank(tx.now_s), reason)
    if found is not None:
        return _run(tx, waiting, found)
    tx.mark(f"pool:{HOST_POOL}")
    _changed(tx, waiting)
    return waiting


def reboot(tx: Tx[Store], instance: Instance, reason: str) -> None:
    """Stop the tasks of a running instance, which stays as it is."""
    for task in tx.store.tasks.on(instance.id) if instance.state is InstanceState.RUNNING else ():
        begin_stop(tx, task, StopCode.TERMINATION, f"{REBOOTED}: {reason}" if reason else REBOOTED)


def terminate(tx: Tx[Store], instance: Instance, reason: str, *, after: int = 0) -> None:
    """Stop the tasks of an instance; when the last one has ended, its host gets the GPUs back. Idempotent.

    `after` is how many instances the same request terminates before this one. Later ones shut down until a later transaction, so
    that other requests do not wait for all of them.
    """
    assert not instance.is_host, "a host's own instance ends with the host"
    if instance.state in (InstanceState.PENDING, InstanceState.STOPPED):
        _terminate(tx, instance, reason)
    elif instance.state in (InstanceState.RUNNING, InstanceState.STOPPING):
        _begin_end(tx, instance, InstanceState.SHUTTING_DOWN, reason, TERMINATED, after // ENDS_MAX * PACE_S)


def finish(tx: Tx[Store], instance: Instance) -> None:
    """Complete what waits for the last task of an instance to end: its stop, its termination or its deregistration."""
    if tx.store.tasks.on(instance.id):
        return
    if instance.state is InstanceState.SHUTTING_DOWN:
        _terminate(tx, instance, instance.end_reason)
    elif instance.state is InstanceState.STOPPING:
        _changed(tx, tx.store.instances.stop(instance), instance.pool)
        tx.mark(f"pool:{HOST_POOL}")
    elif instance.status == "INACTIVE" and instance.cluster:
        _changed(tx, tx.store.instances.leave(instance), instance.pool)


def _begin_end(
    tx: Tx[Store], instance: Instance, state: InstanceState, reason: str, reason_of_tasks: str, delay_s: float = 0.0
) -> None:
    ending = tx.store.instances.begin_end(instance, state, reason, tx.now_s)
    for task in tx.store.tasks.on(instance.id):
        begin_stop(tx, task, StopCode.TERMINATION, reason_of_tasks)
    if delay_s:
        tx.due(f"instance:{instance.id}", tx.now_s + delay_s)
    else:
        tx.mark(f"instance:{instance.id}")
    _changed(tx, ending)


def _terminate(tx: Tx[Store], instance: Instance, reason: str) -> None:
    ended = tx.store.instances.terminate(instance, tx.now_s, reason)
    tx.store.stored.drop("ecs", "container-instance", instance.region, instance.id)  # its tags in ECS
    tx.mark(f"pool:{HOST_POOL}")  # it gave GPUs back, or a slot may have been reserved for it
    tx.due("terminated:", tx.now_s + SHOWN_S)
    _changed(tx, ended, instance.pool)


# As container instances


def join_created_cluster(tx: Tx[Store], region: str, cluster: str) -> None:
    """Let the running instances join that waited for this cluster to be created."""
    for instance in tx.store.instances.live(region):
        waits = instance.joins == cluster and not instance.cluster and instance.status != "INACTIVE"
        if waits and instance.state is InstanceState.RUNNING:
            joined = tx.store.instances.join(instance, cluster)
            tx.mark(f"pool:{joined.pool}")
            _changed(tx, joined)


def deregister(tx: Tx[Store], instance: Instance) -> None:
    """Take an instance out of its cluster after its tasks have ended. It keeps its GPUs, and joins again when it is started."""
    tx.store.instances.set_status(instance.id, "INACTIVE")
    for task in tx.store.tasks.on(instance.id):
        begin_stop(tx, task, StopCode.TERMINATION, DEREGISTERED)
    tx.mark(f"instance:{instance.id}")
    _changed(tx, instance)


# Changes


def is_impaired(tx: Tx[Store], instance: Instance) -> bool:
    """Whether the host of an instance does not report: its tasks may be lost, and it gets no new ones."""
    host = tx.store.hosts.get(instance.host_id) if instance.host_id is not None else None
    return host is not None and not host["connected"]


def host_changed(tx: Tx[Store], host_id: str) -> None:
    """A host connected or became silent, which decides whether its instances are impaired."""
    for instance in tx.store.instances.on_host(host_id):
        _changed(tx, instance)


def set_group(tx: Tx[Store], instance: Instance, group: str) -> None:
    """Attach an instance to an Auto Scaling group, or detach it with an empty name. A tag names the group, as on AWS."""
    tags = [tag for tag in instance.details.get("Tags", ()) if tag["Key"] != GROUP_TAG]
    tags += [{"Key": GROUP_TAG, "Value": group}] if group else []
    changed = instance.but(details={**instance.details, "Tags": tags})
    _changed(tx, tx.store.instances.set_group(changed, group, tx.now_s))


def put_details(tx: Tx[Store], instance: Instance, details: dict[str, Any]) -> Instance:
    """Replace what the request said about an instance: its tags, its attributes."""
    changed = instance.but(details=details)
    tx.store.instances.put_row(changed)
    return changed


def _changed(tx: Tx[Store], instance: Instance, left_pool: str | None = None) -> None:
    """Wake what depends on the state of an instance: waiting requests, its group, and the daemons of its slot's pool."""
    tx.changed(f"instance:{instance.id}")
    if instance.group:
        tx.mark(f"group:{instance.region}/{instance.group}")
    pool = left_pool or instance.pool
    if pool is not None:
        tx.mark(f"daemons:{pool}")


def _gpus(count: int) -> str:
    return f"{count} GPU{'s' * (count != 1)}"
