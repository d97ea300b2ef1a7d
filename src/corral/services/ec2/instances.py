"""Operations on EC2 instances: run, describe, stop, start, reboot, terminate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet import instances
from corral.fleet.clusters import host_pools
from corral.fleet.instances import InstanceRequest
from corral.fleet.newcomers import place_now
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.model.placement import Unplaceable
from corral.operations.pagination import Candidates
from corral.operations.stored_resources import Document, Params
from corral.services.ec2 import client_tokens, errors
from corral.services.ec2.filters import filtered
from corral.services.ec2.instance_description import (
    SELECTS,
    UNMANAGED,
    find_instances,
    instance_view,
    reservations,
    state_of,
)
from corral.services.ec2.launch_specs import instance_request, merged, template_data, with_next_address
from corral.services.ec2.resources import PAGES
from corral.services.ec2.zones import zone_id
from corral.store import Store

LAUNCHES_MAX = 20  # instances that one request may launch; each launch delays other requests by about 0.4 ms
ROWS_PER_READ = 200
# Members of RunInstances that do not describe an instance.
NOT_OF_A_LAUNCH = ("MinCount", "MaxCount", "ClientToken", "DryRun", "LaunchTemplate")


# Run


def run_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Launch up to MaxCount instances. If fewer than MinCount instances fit now, launch none."""
    if (known := client_tokens.recall(tx, caller, "RunInstances", params)) is not None:
        again = [found for each in known if (found := tx.store.instances.get(each)) is not None]
        return _reservation(caller, again)
    least, most = params["MinCount"], params["MaxCount"]
    if not 1 <= least <= most:
        raise errors.InvalidParameterValue(
            f"Value ({least}) for parameter minCount is invalid. It must be at least 1 and at most maxCount ({most})."
        )
    if most > LAUNCHES_MAX:
        raise errors.InstanceLimitExceeded(
            f"A request can launch up to {LAUNCHES_MAX} instances, and this one has MaxCount {most}: use several requests."
        )
    data = {member: value for member, value in params.items() if member not in NOT_OF_A_LAUNCH}
    if given := params.get("LaunchTemplate"):
        data = merged(template_data(tx, caller, given), data)
    if most > 1 and data.get("PrivateIpAddress"):
        raise errors.InvalidParameterCombination(
            "PrivateIpAddress is the address of one instance: use MaxCount 1, or leave it out."
        )
    request = instance_request(tx, caller, data, reason=f"RunInstances of {caller.principal.arn}")
    launched: list[Instance] = []
    for index in range(most):
        details = request.details if index == 0 else with_next_address(tx, caller, request)
        token = {"_token": params["ClientToken"]} if params.get("ClientToken") else {}
        placed = instances.place_now(tx, replace(request, details={**details, "_index": index, **token}))
        if isinstance(placed, Unplaceable):
            if index < least:
                raise errors.InsufficientInstanceCapacity(_no_room(tx, request, placed, least, len(launched)))
            break
        launched.append(placed)
    client_tokens.remember(tx, caller, "RunInstances", params, [instance.id for instance in launched])
    return _reservation(caller, launched)


def _reservation(caller: Caller, launched: list[Instance]) -> dict[str, Any]:
    found = reservations(caller, [instance_view(instance, caller.account) for instance in launched])
    return found[0] if found else {"Instances": []}


def _no_room(tx: Tx[Store], request: InstanceRequest, why: Unplaceable, count: int, fitting: int) -> str:
    """Return the text of the error. `fitting` instances have got room, which the failed request gives back."""
    never = instances.fits_ever(tx, request)
    if never is not None:
        return f"There is not enough capacity for {request.type}: {never}"
    several, subject = (f"{count} instances of {request.type}", "each") if count > 1 else (request.type, "it")
    reason = f"there is room for {fitting} of them" if fitting else _clause(subject, why)
    return (
        f"There is not enough capacity for {several} now: {reason}. Stop tasks or terminate instances that hold "
        "GPUs, launch fewer instances, or use an Auto Scaling group, which waits for free GPUs."
    )


def _clause(subject: str, why: Unplaceable) -> str:
    """Return the detail of `why` as a clause for an error text. If the detail begins with `needs`, put `subject` before it."""
    return f"{subject} {why.detail}" if why.detail.startswith("needs ") else why.detail


# Describe

INSTANCE_PAGES = replace(PAGES, smallest=5, largest=1000)


def describe_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    chosen, options = SELECTS(tx, caller, params), tx.store.hosts.options()

    def view(instance: Instance) -> Document:
        shown = instance_view(instance, caller.account)
        stored = options.get(instance.host_id or "") if instance.is_host else None
        if stored is not None and stored.options.address:
            shown["PrivateIpAddress"] = stored.options.address  # a host's own instance has no subnet, but the address of the host
        return shown

    found, more = INSTANCE_PAGES.page(params, _candidates(tx, params, caller, view, chosen))
    return {"Reservations": reservations(caller, found), **more}


def _candidates(
    tx: Tx[Store], params: Params, caller: Caller, view: Callable[[Instance], Document], chosen: Callable[[Document], bool]
) -> Candidates[Document]:
    """Return a function that reads the instances that a request names or selects, sorted by id."""
    if given := params.get("InstanceIds"):
        if params.get("MaxResults") is not None:
            raise errors.InvalidParameterCombination("The parameter instancesSet cannot be used with the parameter maxResults")
        named = sorted(find_instances(tx, caller, given, hosts=True), key=lambda each: each.id)
        return lambda after, limit: [(each.id, shown) for each in named if chosen(shown := view(each))]

    def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
        found: list[tuple[str, Document]] = []
        while limit < 0 or len(found) < limit:
            rows = tx.store.instances.listed(caller.region, after, ROWS_PER_READ)
            found += [(each.id, shown) for each in rows if chosen(shown := view(each))]
            if len(rows) < ROWS_PER_READ:
                break
            after = rows[-1].id
            tx.step()
        return found if limit < 0 else found[:limit]

    return candidates


SELECTS_STATUS = filtered(
    {
        "availability-zone": "AvailabilityZone", "instance-state-code": "InstanceState.Code",
        "instance-state-name": "InstanceState.Name", "instance-status.reachability": "InstanceStatus.Details[].Status",
        "instance-status.status": "InstanceStatus.Status", "system-status.reachability": "SystemStatus.Details[].Status",
        "system-status.status": "SystemStatus.Status", "event.code": "Events[].Code",
    }
)  # fmt: skip


def describe_instance_status(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe the status of running instances. With IncludeAllInstances, describe all instances.

    An instance is impaired while the agent of its host is not connected.
    """
    every_state, selects = params.get("IncludeAllInstances", False), SELECTS_STATUS(tx, caller, params)

    def chosen(status: Document) -> bool:
        return (every_state or status["InstanceState"]["Name"] == InstanceState.RUNNING.value) and selects(status)

    silent = {host["id"]: host["seen_at"] for host in tx.store.hosts.all() if not host["connected"]}
    found, more = INSTANCE_PAGES.page(params, _candidates(tx, params, caller, lambda each: _status(each, silent), chosen))
    return {"InstanceStatuses": found, **more}


def _status(instance: Instance, silent_hosts: dict[str, float]) -> Document:
    status: Document = {"Status": "not-applicable"}
    zone = instance.details.get("Placement", {}).get("AvailabilityZone", "")
    if instance.state is InstanceState.RUNNING:
        is_impaired = instance.host_id in silent_hosts
        reachability: Document = {"Name": "reachability", "Status": "failed" if is_impaired else "passed"}
        if is_impaired:
            reachability["ImpairedSince"] = silent_hosts[str(instance.host_id)]
        status = {"Status": "impaired" if is_impaired else "ok", "Details": [reachability]}
    return {
        "InstanceId": ec2_id(instance.id),
        "AvailabilityZone": zone,
        "AvailabilityZoneId": zone_id(zone) if zone else None,
        "Operator": UNMANAGED,
        "InstanceState": state_of(instance.state),
        "InstanceStatus": status,
        "SystemStatus": status,
        "Events": [],
    }


# Stop, start, reboot, terminate


def terminate_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = find_instances(tx, caller, params["InstanceIds"])
    for instance in found:
        if instance.details.get("_disable_api_termination") and instance.state is not InstanceState.TERMINATED:
            raise errors.OperationNotPermitted(
                f"The instance '{ec2_id(instance.id)}' may not be terminated. Modify its 'disableApiTermination' instance "
                "attribute and try again."
            )
    before = count()
    reason = "Terminated by TerminateInstances"
    return {"TerminatingInstances": _each(tx, found, lambda each: instances.terminate(tx, each, reason, after=next(before)))}


def stop_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = find_instances(tx, caller, params["InstanceIds"])
    for instance in found:
        if instance.state not in (InstanceState.RUNNING, InstanceState.STOPPING, InstanceState.STOPPED):
            raise _wrong_state(instance, "stopped")
        _check_is_not_lent(tx, instance, InstanceState.RUNNING, "stopped")
        if instance.details.get("_disable_api_stop") and instance.state is InstanceState.RUNNING:
            raise errors.OperationNotPermitted(
                f"The instance '{ec2_id(instance.id)}' may not be stopped. Modify its 'disableApiStop' instance attribute and try "
                "again."
            )
    return {"StoppingInstances": _each(tx, found, lambda each: instances.stop(tx, each, "Stopped by StopInstances"))}


def start_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Start stopped instances. If too few GPUs are free for one of the instances, start no instance."""

    def start(instance: Instance) -> None:
        if instance.state is InstanceState.STOPPED:
            _, room = place_now(tx, host_pools(tx, instance.joins), instance.owner, instance.demand)
            if isinstance(room, Unplaceable):
                raise errors.InsufficientInstanceCapacity(
                    f"There is not enough capacity to start {ec2_id(instance.id)} ({instance.type}) now: {_clause('it', room)}. "
                    "Stop tasks or terminate instances that hold GPUs, and try again."
                )
            instances.start(tx, instance, "Started by StartInstances")

    found = find_instances(tx, caller, params["InstanceIds"])
    for instance in found:
        if instance.state not in (InstanceState.STOPPED, InstanceState.PENDING, InstanceState.RUNNING):
            raise _wrong_state(instance, "started")
        _check_is_not_lent(tx, instance, InstanceState.STOPPED, "started again")
    return {"StartingInstances": _each(tx, found, start)}


def reboot_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    found = find_instances(tx, caller, params["InstanceIds"])
    for instance in found:
        if instance.state in (InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED):
            raise _wrong_state(instance, "rebooted")
    for instance in found:
        instances.reboot(tx, instance)
    return {}


def _each(tx: Tx[Store], found: list[Instance], change: Callable[[Instance], object]) -> list[Document]:
    """Change each instance. Return the state of each instance before and after the change."""
    changes = []
    for instance in found:
        change(instance)
        after = tx.store.instances.get(instance.id)
        assert after is not None
        current, previous = state_of(after.state), state_of(instance.state)
        changes.append({"InstanceId": ec2_id(instance.id), "CurrentState": current, "PreviousState": previous})
    return changes


def _check_is_not_lent(tx: Tx[Store], instance: Instance, state: InstanceState, verb: str) -> None:
    """Refuse to change an instance whose machine a lender has given, as AWS refuses it for spot instances of one-time requests."""
    allocation = tx.store.allocations.get(instance.id)
    if allocation is not None and instance.state is state:
        raise errors.UnsupportedOperation(
            f"The instance '{ec2_id(instance.id)}' cannot be {verb}: the lender {allocation.lender} keeps no machine for stopped "
            "instances. Terminate the instance, and launch another one."
        )


def _wrong_state(instance: Instance, verb: str) -> Exception:
    return errors.IncorrectInstanceState(
        f"The instance '{ec2_id(instance.id)}' is not in a state from which it can be {verb}: it is {instance.state.value}."
    )
