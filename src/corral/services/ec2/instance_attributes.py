"""Operations on the attributes, the metadata options and the console output of EC2 instances."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet import instances
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.operations.stored_resources import Document, Params
from corral.services.ec2 import errors
from corral.services.ec2.filters import filtered
from corral.services.ec2.images import is_on_record
from corral.services.ec2.instance_description import ROOT_DEVICE, find_instance, find_instances
from corral.services.ec2.instance_types import size_of
from corral.services.ec2.launch_specs import METADATA_OPTIONS, agent_settings, cluster_to_join
from corral.services.ec2.resources import PAGES, existing, listed
from corral.store import HOLD_PREFIX, Store

FLAGS = {  # member of requests and responses → key in `Instance.details`
    "DisableApiTermination": "_disable_api_termination",
    "DisableApiStop": "_disable_api_stop",
    "SourceDestCheck": "SourceDestCheck",
    "EbsOptimized": "EbsOptimized",
    "EnaSupport": "_ena",
}
NAMES = {  # value of Attribute → member of the response
    "instanceType": "InstanceType", "kernel": "KernelId", "ramdisk": "RamdiskId", "userData": "UserData",
    "disableApiTermination": "DisableApiTermination", "instanceInitiatedShutdownBehavior": "InstanceInitiatedShutdownBehavior",
    "rootDeviceName": "RootDeviceName", "blockDeviceMapping": "BlockDeviceMappings", "productCodes": "ProductCodes",
    "sourceDestCheck": "SourceDestCheck", "groupSet": "Groups", "ebsOptimized": "EbsOptimized",
    "sriovNetSupport": "SriovNetSupport", "enaSupport": "EnaSupport", "enclaveOptions": "EnclaveOptions",
    "disableApiStop": "DisableApiStop",
}  # fmt: skip
SHUTDOWN_BEHAVIORS = ("stop", "terminate")
BURSTABLE = re.compile(r"t\d")
UNLIMITED = "unlimited"
BOOLEANS = {"true": True, "false": False}


def describe_instance_attribute(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    instance, member = find_instance(tx, caller, params["InstanceId"]), NAMES.get(params["Attribute"])
    if member is None:
        raise errors.invalid_value(params["Attribute"], "attribute", f"Valid values: {', '.join(NAMES)}.")
    return {"InstanceId": ec2_id(instance.id), **_attribute(instance, member)}


def _attribute(instance: Instance, member: str) -> Document:
    details = instance.details
    if member in FLAGS:
        default = member in ("SourceDestCheck", "EnaSupport")
        return {member: {"Value": details.get(FLAGS[member], default)}}
    values: Document = {
        "InstanceType": instance.type,
        "UserData": details.get("_user_data"),
        "InstanceInitiatedShutdownBehavior": details.get("_shutdown_behavior", "stop"),
        "RootDeviceName": ROOT_DEVICE,
        "KernelId": details.get("KernelId"),
        "RamdiskId": details.get("RamdiskId"),
        "SriovNetSupport": details.get("_sriov", "simple"),
    }
    if member in values:
        return {member: {"Value": values[member]} if values[member] is not None else {}}
    lists = {"Groups": details.get("SecurityGroups", []), "EnclaveOptions": details.get("EnclaveOptions", {"Enabled": False})}
    return {member: lists.get(member, [])}


def modify_instance_attribute(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Change one attribute. The instance must be stopped to change its type or its user data."""
    instance = find_instance(tx, caller, params["InstanceId"])
    given = _given(params)
    if len(given) != 1:
        raise errors.InvalidParameterCombination("A request must modify exactly one attribute of an instance.")
    ((member, value),) = given.items()
    details = dict(instance.details)
    if member in FLAGS:
        details[FLAGS[member]] = value
    elif member == "InstanceInitiatedShutdownBehavior":
        if value not in SHUTDOWN_BEHAVIORS:
            raise errors.invalid_value(value, "instanceInitiatedShutdownBehavior", "Valid values: stop, terminate.")
        details["_shutdown_behavior"] = value
    elif member == "Groups":
        groups = [existing(tx, caller, "security-group", group_id) for group_id in value]
        details["SecurityGroups"] = [{name: group[name] for name in ("GroupId", "GroupName")} for group in groups]
    elif member == "InstanceType":
        _require_stopped(instance, "instanceType")
        size = size_of(tx, value)
        instance = instance.but(type=value, gpus=size.gpus, cpu_units=size.cpu_units, memory_mib=size.memory_mib)
    elif member == "UserData":
        _require_stopped(instance, "userData")
        details["_user_data"] = value
        settings = agent_settings({"UserData": value, "_init": details.get("_init")})
        instance = instance.but(joins=cluster_to_join(caller.region, details["ImageId"], settings))
        _replace_attributes(tx, instance, settings.attributes)
    else:
        details[member] = value  # stored without effect
    instances.put_details(tx, instance, details)
    return {}


def _given(params: Params) -> Document:
    """Return the attributes that a request changes, and their new values.

    A request has a member with the name of the attribute, or has the members Attribute and Value.
    """
    found: Document = {}
    for member, value in params.items():
        if member in ("InstanceId", "DryRun", "Attribute", "Value"):
            continue
        if member == "UserData":
            raw = value.get("Value", b"")
            found[member] = b64encode(raw).decode() if isinstance(raw, bytes) else raw
        elif isinstance(value, dict) and member not in ("EnclaveOptions",):
            if "Value" not in value:
                raise errors.MissingParameter(f"The request must contain the parameter {member}.Value")
            found[{"Kernel": "KernelId", "Ramdisk": "RamdiskId"}.get(member, member)] = value["Value"]
        else:
            found[member] = value
    if "Attribute" in params:
        member, value = str(NAMES.get(params["Attribute"], params["Attribute"])), params.get("Value", "")
        if member in FLAGS:
            if value.lower() not in BOOLEANS:
                raise errors.invalid_value(value, params["Attribute"], "Valid values: true, false.")
            value = BOOLEANS[value.lower()]
        elif member not in ("InstanceType", "UserData", "InstanceInitiatedShutdownBehavior", "KernelId", "RamdiskId"):
            raise errors.InvalidParameterValue(
                f"The parameters Attribute and Value cannot modify the attribute {params['Attribute']}: use the parameter for it."
            )
        found[member] = value
    return found


def _require_stopped(instance: Instance, attribute: str) -> None:
    if instance.state is not InstanceState.STOPPED:
        raise errors.IncorrectInstanceState(
            f"The instance '{ec2_id(instance.id)}' is not in the 'stopped' state: it is {instance.state.value}. Stop it to modify "
            f"its {attribute}."
        )


def _replace_attributes(tx: Tx[Store], instance: Instance, attributes: dict[str, str]) -> None:
    # These are ECS attributes. Those that reserve GPUs (HOLD_PREFIX) stay.
    for name in tx.store.instances.attributes(instance.id):
        if not name.startswith(HOLD_PREFIX):
            tx.store.instances.drop_attribute(instance.id, name)
    for name, value in attributes.items():
        tx.store.instances.put_attribute(instance.id, name, value)


def modify_instance_metadata_options(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Store the metadata options. They have no effect, because the instances of Corral have no metadata service."""
    instance = find_instance(tx, caller, params["InstanceId"])
    changes = {member: params[member] for member in METADATA_OPTIONS if member in params}
    options = {**METADATA_OPTIONS, **instance.details.get("MetadataOptions", {}), **changes}
    instances.put_details(tx, instance, {**instance.details, "MetadataOptions": options})
    return {"InstanceId": ec2_id(instance.id), "InstanceMetadataOptions": options}


def monitor_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _set_monitoring(tx, params, caller, "enabled")


def unmonitor_instances(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _set_monitoring(tx, params, caller, "disabled")


def _set_monitoring(tx: Tx[Store], params: Params, caller: Caller, state: str) -> dict[str, Any]:
    """Store whether detailed monitoring is on. This setting has no effect."""
    found = find_instances(tx, caller, params["InstanceIds"])
    for instance in found:
        instances.put_details(tx, instance, {**instance.details, "Monitoring": {"State": state}})
    return {"InstanceMonitorings": [{"InstanceId": ec2_id(each.id), "Monitoring": {"State": state}} for each in found]}


SELECTS_CREDITS = filtered({"instance-id": "InstanceId"})


def describe_instance_credit_specifications(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe the credit option of burstable instances. It has no effect.

    As on EC2, a request without ids lists only the instances with the option `unlimited`.
    """
    ids = params.get("InstanceIds")
    found = find_instances(tx, caller, ids) if ids else tx.store.instances.live(caller.region)
    options = {ec2_id(each.id): _credit_option(each) for each in found if BURSTABLE.match(each.type)}
    known = {name: {"InstanceId": name, "CpuCredits": option} for name, option in options.items() if ids or option == UNLIMITED}
    items, more = listed(PAGES, params, "instance", known, None, SELECTS_CREDITS(tx, caller, params))
    return {"InstanceCreditSpecifications": items, **more}


def _credit_option(instance: Instance) -> str:
    default = "standard" if instance.type.startswith("t2.") else UNLIMITED
    return str(instance.details.get("_credits", {}).get("CpuCredits", default))


# Console output


def get_console_output(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Return a report about the launch. It lists the lines of the user data that Corral understood, and those that it skipped."""
    instance = find_instance(tx, caller, params["InstanceId"])
    text = "".join(f"{line}\n" for line in _console(tx, caller, instance))
    at_s = instance.launched_at_s or instance.created_at_s
    return {"InstanceId": ec2_id(instance.id), "Timestamp": at_s, "Output": b64encode(text.encode()).decode()}


def _console(tx: Tx[Store], caller: Caller, instance: Instance) -> list[str]:
    details = instance.details
    gpus = f"{instance.gpus} GPU{'s' * (instance.gpus != 1)}"
    lines = [
        f"Corral: {ec2_id(instance.id)} has the type {instance.type}, {gpus}, {instance.cpu_units} CPU units and "
        f"{instance.memory_mib} MiB. It is {instance.state.value}.",
    ]
    if instance.launch_reason:
        lines.append(f"Launched: {instance.launch_reason}")
    if instance.state is InstanceState.PENDING:
        lines.append(f"It waits: {instances.reason_of_wait(tx, instance)}.")
    if instance.end_reason:
        lines.append(f"Ended: {instance.end_reason}")
    image = details["ImageId"]
    if not is_on_record(tx, caller, image):
        lines.append(f"The image {image} is not on record here. Corral starts no image: tasks run on the host.")
    if instance.cluster:
        lines.append(f"It joined the ECS cluster {instance.cluster}.")
    elif instance.status == "INACTIVE":
        lines.append(
            f"It was deregistered from the ECS cluster {instance.joins}. To let it join the cluster again, stop and start it."
        )
    elif instance.joins and instance.state is InstanceState.RUNNING:
        lines.append(f"The ECS cluster {instance.joins} does not exist: the instance joins the cluster when you create it.")
    elif instance.joins:
        lines.append(f"It joins the ECS cluster {instance.joins} when it runs.")
    else:
        lines.append("Its user data sets no ECS_CLUSTER, so it joined no cluster and runs no tasks.")
    settings = agent_settings({"UserData": details.get("_user_data"), "_init": details.get("_init")})
    if settings.understood or settings.skipped:
        lines.append("User data was read and not executed.")
    if settings.gpu_support is not None:
        lines.append("ECS_ENABLE_GPU_SUPPORT has no effect: an instance always offers its GPUs.")
    lines += [f"understood: {line}" for line in settings.understood]
    lines += [f"skipped:    {line}" for line in settings.skipped]
    return lines
