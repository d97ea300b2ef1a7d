"""Interruptions of spot instances. `corral spot interrupt` takes a spot instance away, as EC2 does when it needs the capacity.

The instance gets a notice first, by default two minutes before it is terminated. Programs on the instance can read the notice from
the metadata endpoint of their task. After the notice, ECS places no new tasks on the instance.
"""

from __future__ import annotations

from datetime import UTC, datetime

from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.fleet import instances
from corral.model.instance import INTERRUPTED_AT, INTERRUPTED_WHY, Instance, InstanceState, ec2_id
from corral.store import Store

NOTICE_S = 120.0
NOTICE_MAX_S = 86_400.0
REASON = "Spot Instance interruption"

InstanceNotFound = api_error("InstanceNotFoundException", 404)
InvalidInterruption = api_error("InvalidRequestException", 400)


def key(instance: Instance) -> str:
    return f"spot-interruption:{instance.id}"


def interrupt(tx: Tx[Store], instance_id: str, notice_s: float = NOTICE_S) -> float:
    """Give a spot instance the notice of its interruption. Return when it will be terminated.

    A second notice can only make this time earlier.
    """
    instance = tx.store.instances.by_ec2_id(instance_id)
    if instance is None or instance.is_host:
        raise InstanceNotFound(f"Instance {instance_id} does not exist. `corral instances` lists the ids.")
    if instance.details.get("InstanceLifecycle") != "spot":
        raise InvalidInterruption(f"{instance_id} is an on-demand instance: only spot instances can be interrupted.")
    if instance.state is not InstanceState.RUNNING:
        raise InvalidInterruption(f"{instance_id} is {instance.state}: only a running instance can be interrupted.")
    if not 0 <= notice_s <= NOTICE_MAX_S:
        raise InvalidInterruption(f"A notice of {notice_s:g} seconds is not valid: use 0 to {NOTICE_MAX_S:g} seconds.")
    return give_notice(tx, instance, notice_s)


def give_notice(tx: Tx[Store], instance: Instance, notice_s: float, why: str = "") -> float:
    """Announce to the tasks of a running instance that it will be terminated, and place no more tasks on it.

    `why` is the reason of the termination; empty: it is an interruption of a spot instance.
    """
    at_s = min(tx.now_s + notice_s, instance.details.get(INTERRUPTED_AT, tx.now_s + notice_s))
    more = {INTERRUPTED_AT: at_s} | ({INTERRUPTED_WHY: why} if why else {})
    noticed = instances.put_details(tx, instance, {**instance.details, **more})
    if noticed.cluster and noticed.status == "ACTIVE":
        instances.set_status(tx, noticed, "DRAINING")
    if noticed.group:
        tx.mark(f"group:{noticed.region}/{noticed.group}")
    if at_s <= tx.now_s:
        tx.mark(key(noticed))
    else:
        tx.due(key(noticed), at_s)
    return float(at_s)


def notice_of(tx: Tx[Store], instance: Instance) -> dict[str, str] | None:
    """Return the notice as the page `spot/instance-action` of the instance metadata shows it. Return None if there is none."""
    at_s = instance.details.get(INTERRUPTED_AT)
    return {"action": "terminate", "time": stamp(tx.steps.wall_s(at_s))} if at_s is not None else None


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reason_of(instance: Instance) -> str:
    return str(instance.details.get(INTERRUPTED_WHY) or f"{REASON} of {ec2_id(instance.id)}")
