"""Computes what the recorded instance-hours would have cost on AWS. `corral cost` shows this report.

The report also has the GPU-hours of tasks that ran on this machine itself (`machine_cost.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from corral.core.transactions import Tx
from corral.fleet.instance_types import Price, price_of
from corral.fleet.machine_cost import COST_DIGITS, HOUR_S, machine_report
from corral.store import Store
from corral.store.instance_usage import UsageTotal


def cost_report(tx: Tx[Store], since_s: float | None, *, reads_tasks: bool = True, owner: str = "") -> dict[str, Any]:
    """Report the instance-hours since `since_s` (None: all of them) by group and by stack, and by owner, with their prices.

    With `owner`, report only what belongs to this owner.
    With `reads_tasks`, also report the GPU-hours of tasks. This reads the records of all tasks.
    """
    ledger, from_s = tx.store.instances.usage, since_s or 0.0
    groups = ledger.totals("group_name", from_s, tx.now_s, owner)
    tx.step()
    stacks = ledger.totals("stack", from_s, tx.now_s, owner)
    tx.step()
    prices = {each.type: price_of(each.type) for each in groups}
    known = next(filter(None, prices.values()), None)
    return {
        "fromS": since_s if since_s is not None else ledger.first_s(owner),
        "toS": tx.now_s,
        "prices": {"region": known.region, "date": known.date, "currency": "USD"} if known is not None else None,
        "groups": [_entry("group", name, found, prices) for name, found in _by_name(groups)],
        "stacks": [_entry("stack", name, found, prices) for name, found in _by_name(stacks)],
        "total": {"instances": ledger.instances(from_s, tx.now_s, owner), **_sums(groups, prices)},
        "withoutPrice": {
            "onDemand": sorted(name for name, price in prices.items() if price is None or price.on_demand is None),
            "spot": sorted(name for name, price in prices.items() if price is None or price.spot is None),
        },
        "machine": machine_report(tx, since_s, reads_tasks=reads_tasks, owner=owner),
    }


def _by_name(totals: Iterable[UsageTotal]) -> Iterable[tuple[tuple[str, str, str], list[UsageTotal]]]:
    """Return the usage of each group or stack, by owner, sorted by region and name. Usage without a group or stack is last."""
    found: dict[tuple[str, str, str], list[UsageTotal]] = {}
    for each in totals:
        found.setdefault((each.region, each.name, each.owner), []).append(each)
    return sorted(found.items(), key=lambda item: (not item[0][1], item[0]))


def _entry(kind: str, key: tuple[str, str, str], usage: list[UsageTotal], prices: dict[str, Price | None]) -> dict[str, Any]:
    region, name, owner = key
    types = [{"type": each.type, "instances": each.instances, **_sums([each], prices)} for each in usage]
    return {kind: name or None, "region": region, "owner": owner, **_sums(usage, prices), "types": types}


def _sums(usage: Iterable[UsageTotal], prices: dict[str, Price | None]) -> dict[str, float | None]:
    """Return the sums of hours and costs. Costs leave out types without a price. A cost is None if no type has a price."""
    usage = list(usage)
    on_demand, spot = list[float](), list[float]()
    for each in usage:
        price = prices[each.type]
        if price is not None and price.on_demand is not None:
            on_demand.append(each.billed_s / HOUR_S * price.on_demand)
        if price is not None and price.spot is not None:
            spot.append(each.billed_s / HOUR_S * price.spot)
    return {
        "hours": sum(each.billed_s for each in usage) / HOUR_S,
        "spotHours": sum(each.spot_s for each in usage) / HOUR_S,
        "gpuHours": sum(each.gpu_s for each in usage) / HOUR_S,
        "onDemand": round(sum(on_demand), COST_DIGITS) if on_demand else None,
        "spot": round(sum(spot), COST_DIGITS) if spot else None,
    }
