"""What lenders report about the allocations of instances, and the pilots that join with them.

These functions are commands of the server's part of lenders (`server/lenders/`). They write what a lender has said; what should
happen to an instance follows from that.
"""

from __future__ import annotations

import hashlib
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.allocations import AllocationReport
from corral.fleet import instances, spot_interruptions
from corral.model.allocation import LOCAL, Allocation, AllocationState, Phase
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.services.ecs.host_loss import forget
from corral.store import Store

NOTICE_S = 120.0  # the tasks of an instance get this notice before its lender ends it, or less if the lender says it later


def request_of(tx: Tx[Store], instance_id: str, secret: str) -> tuple[Allocation, Instance] | None:
    """Store the secret with which the pilot of an allocation will join. Return None if the allocation is needed no more.

    The secret is stored before the lender gets the request. So a pilot whose request was answered, and the answer was lost, can
    join.
    """
    allocation, instance = tx.store.allocations.get(instance_id), tx.store.instances.get(instance_id)
    if allocation is None or instance is None or allocation.state is not AllocationState.WANTED or allocation.handle:
        return None
    tx.store.allocations.put(replace(allocation, digest=hashlib.sha256(secret.encode()).hexdigest()))
    return allocation, instance


def requested(tx: Tx[Store], instance_id: str, handle: str) -> None:
    """Store the handle of an allocation that the lender has accepted."""
    allocation = tx.store.allocations.get(instance_id)
    if allocation is not None and not allocation.handle:
        state = AllocationState.WAITING if allocation.state is AllocationState.WANTED else allocation.state
        tx.store.allocations.put(replace(allocation, handle=handle, state=state))
        _changed(tx, instance_id)


def refused(tx: Tx[Store], instance_id: str, why: str) -> bool:
    """Ask the next lender, because this one has refused. Return False if there is none: then the request is tried again later."""
    allocation, instance = tx.store.allocations.get(instance_id), tx.store.instances.get(instance_id)
    if allocation is None or instance is None or allocation.state is not AllocationState.WANTED:
        return True
    if not allocation.others:
        if allocation.reason != why:
            tx.store.allocations.put(replace(allocation, reason=why))
            _changed(tx, instance_id)
        return False
    instances.ask_next_lender(tx, instance, allocation)
    return True


def report(tx: Tx[Store], reports: tuple[AllocationReport, ...]) -> None:
    """Apply what a lender says about its allocations."""
    for each in reports:
        allocation = tx.store.allocations.get(each.instance_id)
        if allocation is None or allocation.handle not in ("", each.handle):
            continue
        if each.phase is Phase.ENDED:
            _ended(tx, allocation, each.reason)
            continue
        state = allocation.state
        if state is not AllocationState.ENDING:
            state = AllocationState.RUNNING if each.phase is not Phase.WAITING else AllocationState.WAITING
        began_s = allocation.running_at_s
        if state is AllocationState.RUNNING and began_s is None:
            began_s = tx.now_s
        after = replace(allocation, handle=each.handle, state=state, reason=each.reason, running_at_s=began_s)
        if after != allocation:
            tx.store.allocations.put(after)
            _changed(tx, each.instance_id)
        if each.ends_at_s is not None:
            _notice(tx, each.instance_id, each.ends_at_s)


def _ended(tx: Tx[Store], allocation: Allocation, reason: str) -> None:
    """Apply the end of an allocation: the lender has proved that no process of it is left."""
    tx.store.allocations.drop(allocation.instance_id)
    if allocation.host_id:
        forget(tx, allocation.host_id, reason)
        tx.store.hosts.set_old_runs(allocation.host_id, ())  # none of them is alive
        joined = tx.store.joined_hosts.find(allocation.host_id)
        if joined is not None and joined.revoked_at_s is None:
            tx.store.joined_hosts.put(replace(joined, revoked_at_s=tx.now_s, earlier_serial=""))
    instance = tx.store.instances.get(allocation.instance_id)
    if instance is not None and instance.state not in (InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED):
        instances.terminate(tx, instance, f"Server.{allocation.lender}: {reason}")


def _notice(tx: Tx[Store], instance_id: str, ends_at_s: float) -> None:
    """Give the instance the notice of a spot interruption shortly before its lender ends it."""
    instance = tx.store.instances.get(instance_id)
    left_s = tx.steps.steady_s(ends_at_s) - tx.now_s
    if instance is not None and instance.state is InstanceState.RUNNING and left_s <= NOTICE_S:
        spot_interruptions.give_notice(tx, instance, max(0.0, left_s))


def _changed(tx: Tx[Store], instance_id: str) -> None:
    tx.changed(f"instance:{instance_id}")
    instance = tx.store.instances.get(instance_id)
    if instance is not None and instance.group:
        tx.mark(f"group:{instance.region}/{instance.group}")


def list_lenders(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List the lenders, and their allocations with the instances that they are for."""
    problems = tx.settings.server.lender_problems()
    found = []
    for name in (LOCAL, *sorted(tx.settings.lenders)):
        allocations = [_described(tx, each) for each in tx.store.allocations.of_lender(name)]
        settings = tx.settings.lenders.get(name)
        found.append(
            {
                "name": name,
                "kind": settings.kind if settings is not None else LOCAL,
                "problem": problems.get(name),
                "allocations": allocations,
            }
        )
    return {"lenders": found}


def _described(tx: Tx[Store], allocation: Allocation) -> dict[str, Any]:
    instance = tx.store.instances.get(allocation.instance_id)
    return {
        "instanceId": ec2_id(allocation.instance_id),
        "instanceType": instance.type if instance is not None else None,
        "group": (instance.group or None) if instance is not None else None,
        "gpus": instance.gpus if instance is not None else 0,
        "state": allocation.state.value,
        "handle": allocation.handle or None,
        "reason": allocation.reason or None,
        "hostId": allocation.host_id or None,
        "createdAtS": tx.steps.wall_s(allocation.created_at_s),
    }
