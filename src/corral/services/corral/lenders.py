"""ListLenders: the lenders of machines, and what they have given to instances."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.instance_types import price_of
from corral.fleet.machine_cost import COST_DIGITS, HOUR_S
from corral.model.allocation import LOCAL, Allocation
from corral.model.instance import ec2_id
from corral.store import Store


def list_lenders(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """List the lenders, and their allocations with the instances that they are for."""
    problems, advice = tx.settings.server.lender_problems(), tx.settings.server.lender_advice()
    found = []
    all_allocations = tx.store.allocations.all()
    removed = {each.lender for each in all_allocations} - tx.settings.lenders.keys()
    problems = {**problems, **dict.fromkeys(removed, "corral.toml does not have it any more: its allocations end when it is back")}
    for name in (LOCAL, *sorted({*tx.settings.lenders, *removed})):
        allocations = [_described(tx, each) for each in all_allocations if each.lender == name]
        settings = tx.settings.lenders.get(name)
        found.append(
            {
                "name": name,
                "kind": settings.kind if settings is not None else LOCAL if name == LOCAL else "",
                "problem": problems.get(name),
                "advice": advice.get(name, []),
                "allocations": allocations,
            }
        )
    return {"lenders": found}


def _described(tx: Tx[Store], allocation: Allocation) -> dict[str, Any]:
    instance = tx.store.instances.get(allocation.instance_id)
    hours = 0.0 if allocation.running_at_s is None else (tx.now_s - allocation.running_at_s) / HOUR_S
    price = price_of(instance.type) if instance is not None else None
    return {
        "instanceId": ec2_id(allocation.instance_id),
        "instanceType": instance.type if instance is not None else None,
        "group": (instance.group or None) if instance is not None else None,
        "gpus": instance.gpus if instance is not None else 0,
        "state": allocation.state.value,
        "handle": allocation.handle or None,
        "reason": allocation.reason or None,
        "hostId": allocation.host_id or None,
        "machine": allocation.machine or None,
        "hours": hours,
        "onDemand": None if price is None or price.on_demand is None else round(hours * price.on_demand, COST_DIGITS),
        "createdAtS": tx.steps.wall_s(allocation.created_at_s),
    }
