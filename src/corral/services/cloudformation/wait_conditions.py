"""Wait conditions and their handles.

A handle is a URL of Corral with a secret. A program signals by a PUT of {Status, Reason, UniqueId, Data} to this URL, and needs no
other credentials. The server receives these requests (`server/wait_handles.py`). A wait condition is complete when its handle has
received enough signals. Corral does not execute user data. So an instance whose user data contains the URL counts as signalled
when it runs and has joined its cluster, as it does for a CreationPolicy.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.model.numbers import whole_number
from corral.services.cloudformation.errors import ValidationError
from corral.store import Store
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, Waiting, never_updated

PATH = "/cloudformation-waitcondition/{region}/{secret}"
SIGNAL_PATH = re.compile(r"/cloudformation-waitcondition/([a-z0-9-]{1,32})/([0-9a-f]{64})")
GROUP_TYPE = "AWS::AutoScaling::AutoScalingGroup"
SERVICE, HANDLE, CONDITION = "cloudformation", "wait-handle", "wait-condition"  # the service and the types of stored documents
SIGNALS_MAX = 1_000
REASON_MAX_CHARACTERS = 1_024
MEMBER_MAX_CHARACTERS = 4_096  # of UniqueId and of Data
TIMEOUT_MAX_S = 43_200
JOINED = "Instance {} joined its cluster, or needs none. It counts as signalled, because Corral does not execute user data."

WaitConditionFailed = api_error("WaitConditionFailed")
InvalidSignal = api_error("InvalidSignal")


# Handles


def create_handle(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    secret = tx.ids.hex32() + tx.ids.hex32()
    tx.store.stored.put(SERVICE, HANDLE, caller.region, secret, {"signals": {}}, tx.now_s)
    return tx.settings.endpoint_url + PATH.format(region=caller.region, secret=secret)


def delete_handle(tx: Tx[Store], caller: Caller, url: str, properties: Properties) -> None:
    if found := SIGNAL_PATH.search(url):
        tx.store.stored.drop(SERVICE, HANDLE, found[1], found[2])


def handle_exists(tx: Tx[Store], region: str, secret: str) -> bool:
    return tx.store.stored.get(SERVICE, HANDLE, region, secret) is not None


def receive_signal(tx: Tx[Store], region: str, secret: str, signal: Any) -> None:
    """Store the signal that a program has sent to a handle."""
    document = tx.store.stored.get(SERVICE, HANDLE, region, secret)
    if document is None:
        raise InvalidSignal("The wait condition handle does not exist.")
    if not isinstance(signal, dict) or signal.get("Status") not in ("SUCCESS", "FAILURE"):
        raise InvalidSignal('The body must be a JSON object. Its member Status must be "SUCCESS" or "FAILURE".')
    unique_id = str(signal.get("UniqueId") or "")
    if not unique_id:
        raise InvalidSignal("The body must have the member UniqueId.")
    data = str(signal.get("Data") or "")
    for member, value in (("UniqueId", unique_id), ("Data", data)):
        if len(value) > MEMBER_MAX_CHARACTERS:
            raise InvalidSignal(f"{member} must have at most {MEMBER_MAX_CHARACTERS} characters, but has {len(value)}.")
    signals = document["signals"]
    if len(signals) >= SIGNALS_MAX and unique_id not in signals:
        raise InvalidSignal(f"A wait condition handle accepts at most {SIGNALS_MAX} signals.")
    shown = {"status": signal["Status"], "reason": str(signal.get("Reason") or "")[:REASON_MAX_CHARACTERS]}
    signals[unique_id] = {**shown, "data": data}
    tx.store.stored.put(SERVICE, HANDLE, region, secret, {"signals": signals}, tx.now_s)
    tx.changed(_key(secret))


def _key(secret: str) -> str:
    return f"wait-handle:{secret}"


def _signals(tx: Tx[Store], handle: str) -> dict[str, dict[str, str]]:
    found = SIGNAL_PATH.search(handle)
    document = tx.store.stored.get(SERVICE, HANDLE, found[1], found[2]) if found is not None else None
    signals: dict[str, dict[str, str]] = document["signals"] if document is not None else {}
    return signals


# Conditions


def create_condition(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    if _timeout_s(properties) is None:
        raise WaitConditionFailed(f"Timeout must be a number of seconds from 0 to {TIMEOUT_MAX_S}: {properties['Timeout']}")
    tags = properties["_tags"]
    identity = f"{tags['aws:cloudformation:stack-id']}/{tags['aws:cloudformation:logical-id']}/{tx.ids.hex32()[:12]}"
    tx.store.stored.put(SERVICE, CONDITION, caller.region, identity, {"handle": properties.get("Handle", "")}, tx.now_s)
    return identity


def refuse_update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Raise an error if an update changes a property. AWS does not support this either."""
    if any(old.get(name) != new.get(name) for name in ("Count", "Handle", "Timeout")):
        raise ValidationError("Update to resource type AWS::CloudFormation::WaitCondition is not supported.")


def delete_condition(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    tx.store.stored.drop(SERVICE, CONDITION, caller.region, identity)


def condition_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    """Return the attributes of a wait condition. `Data` is a JSON object: unique id → the data of the signal."""
    document = tx.store.stored.get(SERVICE, CONDITION, caller.region, identity)
    signals = _signals(tx, document["handle"]) if document is not None else {}
    return {"Data": orjson.dumps({unique_id: signal["data"] for unique_id, signal in signals.items()}).decode()}


def condition_settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    if step.action != "CREATE" or "Handle" not in step.properties:
        return None  # without a handle, the condition has a CreationPolicy, whose signals the stack counts
    handle, count = str(step.properties["Handle"]), int(step.properties.get("Count", 1))
    received = _signals(tx, handle)
    for unique_id, signal in received.items():
        if signal["status"] == "FAILURE":
            raise WaitConditionFailed(f"WaitCondition received failed message: '{signal['reason']}' for uniqueId: {unique_id}")
    for unique_id, status in step.received.items():
        if status == "FAILURE":
            raise WaitConditionFailed(f"Received FAILURE signal with UniqueId {unique_id}")
    secret = handle.rpartition("/")[2]
    instances = _instances_with(tx, caller.region, secret)
    joined = {ec2_id(instance.id) for instance in instances if _has_joined(instance)}
    noted = step.memory.setdefault("joined", [])
    for instance_id in sorted(joined.difference(noted)):
        noted.append(instance_id)
        step.notes.append(JOINED.format(instance_id))
    signalled = len(received.keys() | step.received.keys() | joined)
    if signalled >= count:
        return None
    timeout_s = _timeout_s(step.properties)
    assert timeout_s is not None, "create_condition checks it"
    ends_s = step.started_s + timeout_s
    if tx.now_s >= ends_s:
        raise WaitConditionFailed(f"WaitCondition timed out. Received {signalled} conditions when expecting {count}")
    groups = [each for each in tx.store.stacks.resources(step.stack_id).values() if each.type == GROUP_TYPE and each.physical_id]
    # Wait for changes of the stack, too: the user data of an instance or group that it creates later may contain the URL.
    keys = [_key(secret), f"stack:{step.stack_id}", *(f"instance:{instance.id}" for instance in instances)]
    keys += [f"group:{caller.region}/{group.physical_id}" for group in groups]
    return Waiting(tuple(keys), f"{signalled} of {count} signals have arrived.", ends_s)


def _timeout_s(properties: Properties) -> int | None:
    """Return the timeout in seconds. Return None if it is not valid."""
    return whole_number(str(properties.get("Timeout", TIMEOUT_MAX_S)), TIMEOUT_MAX_S)


def _instances_with(tx: Tx[Store], region: str, secret: str) -> list[Instance]:
    """Return the instances of a region whose user data or metadata contains the secret of a handle."""
    if not secret:
        return []
    found = []
    for instance in tx.store.instances.live(region):
        text = b64decode(instance.details.get("_user_data") or "", validate=False)
        if secret.encode() in text or secret in str(instance.details.get("_init") or ""):
            found.append(instance)
    return found


def _has_joined(instance: Instance) -> bool:
    return instance.state is InstanceState.RUNNING and (not instance.joins or instance.cluster == instance.joins)


def _no_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    return {}


TEMPLATE_TYPES = (
    TemplateType("AWS::CloudFormation::WaitConditionHandle", create_handle, _no_attributes, never_updated, delete_handle),
    TemplateType(
        "AWS::CloudFormation::WaitCondition",
        create_condition,
        condition_attributes,
        refuse_update,
        delete_condition,
        settled=condition_settled,
    ),
)
