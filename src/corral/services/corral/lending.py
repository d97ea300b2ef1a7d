"""What lenders report about the allocations of instances, and the pilots that join with them.

These functions are commands of the server's part of lenders (`server/lenders/`). They write what a lender has said; what should
happen to an instance follows from that.
"""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.decide.allocations import AllocationReport
from corral.fleet import instances, spot_interruptions
from corral.model.allocation import JOIN_MAX_S, Allocation, AllocationState, Phase
from corral.model.instance import INTERRUPTED_AT, Instance, InstanceState
from corral.services.corral.joining import check_pilot
from corral.services.ecs.host_loss import forget
from corral.store import Store

NOTICE_S = 120.0  # the tasks of an instance get this notice, or less if the lender says it later
SAID_MAX = 500  # characters of what a pilot says
STOP_S = 30.0  # so long before the end of its allocation, an instance is terminated


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


def refused(tx: Tx[Store], instance_id: str, why: str) -> None:
    """Ask the next lender, because this one has refused. If there is none, the keeper repeats the request later."""
    allocation, instance = tx.store.allocations.get(instance_id), tx.store.instances.get(instance_id)
    if allocation is None or instance is None or allocation.state is not AllocationState.WANTED:
        return
    if allocation.others:
        instances.ask_next_lender(tx, instance, allocation)
    elif allocation.reason != why:
        tx.store.allocations.put(replace(allocation, reason=why))
        _changed(tx, instance_id)


def report(tx: Tx[Store], reports: tuple[AllocationReport, ...]) -> list[str]:
    """Apply what a lender says about its allocations. Return the instances whose requests must be repeated later."""
    repeated = list[str]()
    for each in reports:
        allocation = tx.store.allocations.get(each.instance_id)
        if allocation is None or allocation.handle not in ("", each.handle):
            continue
        instance = tx.store.instances.get(each.instance_id)
        had_no_task = not allocation.host_id
        has_ended = each.phase is Phase.ENDED or (each.phase.is_useless and had_no_task)
        if has_ended and _is_pending(instance) and allocation.state is not AllocationState.ENDING:
            _repeat(tx, allocation, each.reason)
            repeated.append(each.instance_id)
        elif has_ended or _is_given_up(tx, allocation, instance, each.phase):
            _ended(tx, allocation, instance, each.reason, proved=has_ended)
        else:
            _progress(tx, allocation, each)
            if instance is not None and (each.phase.is_useless or (each.phase is Phase.ENDING and not _is_pending(instance))):
                instances.terminate(tx, instance, f"Server.{allocation.lender}: {each.reason}")
            elif each.ends_at_s is not None and instance is not None and instance.state is InstanceState.RUNNING:
                _notice(tx, instance, each.ends_at_s, f"Server.{allocation.lender}: {each.ends_why}")
    return repeated


def pilot_asks(tx: Tx[Store], token_id: str, secret: str, handle: str, failure: str) -> None:
    """Check the token of a pilot that asks for wheels, or says why it cannot join. Raise JoinRefused."""
    allocation = check_pilot(tx, tx.store.allocations.get(token_id), secret, handle)
    if failure and not allocation.host_id:
        tx.store.allocations.put(replace(allocation, said=_printable(failure)[:SAID_MAX]))
        _changed(tx, allocation.instance_id)


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)


def _progress(tx: Tx[Store], allocation: Allocation, found: AllocationReport) -> None:
    state, began_s = allocation.state, allocation.running_at_s
    if state is not AllocationState.ENDING:
        state = AllocationState.WAITING if found.phase is Phase.WAITING else AllocationState.RUNNING
    if state is AllocationState.RUNNING and began_s is None:
        began_s = tx.now_s
        tx.due(f"allocation:{allocation.instance_id}", began_s + JOIN_MAX_S)
    after = replace(
        allocation, handle=found.handle, state=state, reason=found.reason, running_at_s=began_s,
        machine=found.machine or allocation.machine,
        digest=allocation.digest if allocation.host_id else found.digest or allocation.digest,
    )  # fmt: skip
    if after != allocation:
        tx.store.allocations.put(after)
        _changed(tx, allocation.instance_id)


def _is_pending(instance: Instance | None) -> bool:
    return instance is not None and instance.state is InstanceState.PENDING


def _is_given_up(tx: Tx[Store], allocation: Allocation, instance: Instance | None, phase: Phase) -> bool:
    """Whether no task of an allocation can be left although its lender has not proved its end.

    The agent has reported the ends of the tasks, or the host is lost, which needs an order of the operator or the setting
    `lost_after`.
    """
    if instance is not None and instance.state is not InstanceState.TERMINATED:
        return False
    host = tx.store.hosts.get(allocation.host_id) if allocation.host_id else None
    return phase.is_useless or (phase is Phase.UNKNOWN and host is not None and host["lost_at"] is not None)


def _repeat(tx: Tx[Store], allocation: Allocation, reason: str) -> None:
    """Request an allocation that has ended before its host served the instance again, from the next lender if there is one."""
    _drop_host(tx, allocation, reason, proved=True)
    why = f"{reason}: {allocation.said}" if allocation.said else reason
    fresh = replace(
        allocation, state=AllocationState.WANTED, handle="", reason=why, digest="", host_id="", running_at_s=None, machine="",
    )  # fmt: skip
    instance = tx.store.instances.get(allocation.instance_id)
    if allocation.others and instance is not None:
        instances.ask_next_lender(tx, instance, fresh)
        return
    tx.store.allocations.put(fresh)
    _changed(tx, allocation.instance_id)


def _ended(tx: Tx[Store], allocation: Allocation, instance: Instance | None, reason: str, *, proved: bool) -> None:
    """Apply the end of an allocation. It is proved that no process of it is left, or the operator has given up its host."""
    tx.store.allocations.drop(allocation.instance_id)
    if instance is not None and instance.state not in (InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED):
        instances.terminate(tx, instance, f"Server.{allocation.lender}: {reason}")
    _drop_host(tx, allocation, reason, proved=proved)


def _drop_host(tx: Tx[Store], allocation: Allocation, reason: str, *, proved: bool) -> None:
    """Give up the host of an allocation that has ended. Its tasks are stopped with the reason, and its certificate is void.

    Without a proof, the runs of a host that was lost may be alive, so its GPUs move to no other host.
    """
    if not allocation.host_id:
        return
    forget(tx, allocation.host_id, f"{instances.TERMINATED}: {reason}")  # with this beginning, Batch says "Host EC2 … terminated."
    if proved:
        tx.store.hosts.set_old_runs(allocation.host_id, ())  # none of them is alive
    joined = tx.store.joined_hosts.find(allocation.host_id)
    if joined is not None and joined.revoked_at_s is None:
        tx.store.joined_hosts.put(replace(joined, revoked_at_s=tx.now_s, earlier_serial=""))
    if tx.store.hosts.get(allocation.host_id) is None:  # its agent has never connected. Others: `drop_terminated_instances`
        tx.store.joined_hosts.drop([allocation.host_id])


def leaves(tx: Tx[Store], host_id: str) -> None:
    """Terminate the instance of a host whose agent says that the allocation is over: the agent ends all runs."""
    joined = tx.store.joined_hosts.find(host_id)
    allocation = tx.store.allocations.get(joined.token_id) if joined is not None else None
    instance = tx.store.instances.get(allocation.instance_id) if allocation is not None else None
    if allocation is not None and allocation.host_id == host_id and instance is not None:
        instances.terminate(
            tx, instance, f"Server.{allocation.lender}: the lender {allocation.lender} ends the allocation {allocation.handle}"
        )


def _notice(tx: Tx[Store], instance: Instance, ends_at_s: float, why: str) -> None:
    """Give the instance the notice of a spot interruption before its lender ends it.

    The instance is terminated STOP_S earlier than the lender would end it, so that its tasks are stopped in order.
    """
    left_s = tx.steps.steady_s(ends_at_s) - STOP_S - tx.now_s
    before_s = instance.details.get(INTERRUPTED_AT)
    if left_s <= NOTICE_S and (before_s is None or tx.now_s + left_s < before_s - 1.0):
        spot_interruptions.give_notice(tx, instance, max(0.0, left_s), why)


def _changed(tx: Tx[Store], instance_id: str) -> None:
    tx.changed(f"instance:{instance_id}")
    instance = tx.store.instances.get(instance_id)
    if instance is not None and instance.group:
        tx.mark(f"group:{instance.region}/{instance.group}")
