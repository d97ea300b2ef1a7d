"""Launch and termination of instances. No API operation launches instances yet. Tests call these functions."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from corral.core import Tx
from corral.decide.placement import claim_rank
from corral.model.instance import HOST_POOL, Instance, InstanceState
from corral.model.placement import Claim, Placement
from corral.model.task import StopCode
from corral.services.ecs.task_progress import begin_stop
from corral.store import Store

TERMINATED = "the instance was terminated"


class InstanceRequest(Struct, frozen=True, kw_only=True):
    """An instance to launch, with the size of its type."""

    region: str
    cluster: str  # the ECS cluster that the instance joins; empty if it joins none
    type: str
    gpus: int
    cpu_units: int
    memory_mib: int
    details: dict[str, Any] = field(default_factory=dict)


def launch(tx: Tx[Store], request: InstanceRequest) -> Instance:
    """Add an instance, and launch it in this transaction if there is capacity. Otherwise its claim waits for capacity.

    A claim that has waited longer is served first.
    """
    instance = Instance(
        id=tx.ids.hex32(),
        region=request.region,
        cluster=request.cluster,
        type=request.type,
        state=InstanceState.PENDING,
        gpus=request.gpus,
        cpu_units=request.cpu_units,
        memory_mib=request.memory_mib,
        created_at_s=tx.now_s,
        details=request.details,
    )
    tx.store.instances.add(instance, HOST_POOL, claim_rank(tx.now_s))
    tx.mark(f"pool:{HOST_POOL}")
    return instance


def grant(tx: Tx[Store], claim: Claim, placement: Placement) -> None:
    """Launch an instance after its claim was granted. Then place tasks that wait for the capacity of this instance."""
    instance = tx.store.instances.get(claim.id)
    assert instance is not None, "the instance of the claim does not exist"
    launched = tx.store.instances.launch(instance, placement)
    tx.changed(f"instance:{instance.id}")
    if launched.pool is not None:
        tx.mark(f"pool:{launched.pool}")
        tx.mark(f"daemons:{launched.pool}")


def terminate(tx: Tx[Store], instance: Instance) -> None:
    """Stop the tasks of an instance. When the last task has ended, the GPUs are returned to the host. This is idempotent."""
    assert not instance.is_host, "a host's own instance ends with the host"
    if instance.state is InstanceState.PENDING:
        tx.store.instances.terminate(instance, tx.now_s)
        tx.mark(f"pool:{HOST_POOL}")  # a slot that was reserved for this instance is free for other claims now
    elif instance.state is InstanceState.RUNNING:
        tx.store.instances.shut_down(instance)
        for task in tx.store.tasks.on(instance.id):
            begin_stop(tx, task, StopCode.TERMINATION, TERMINATED)
        tx.mark(f"instance:{instance.id}")
    tx.changed(f"instance:{instance.id}")
