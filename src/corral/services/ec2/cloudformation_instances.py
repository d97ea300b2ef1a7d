"""EC2 instances and launch templates in CloudFormation templates. A step creates, updates or deletes one resource of a stack."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.templates.stack_plan import signal_policy
from corral.decide.user_data import INIT
from corral.fleet import instances
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.operations.stored_resources import Document
from corral.services.ec2 import launch_templates
from corral.services.ec2.instance_description import instance_view
from corral.services.ec2.launch_specs import instance_profile
from corral.store import Store
from corral.template_types.api_calls import authorize, call, request_of
from corral.template_types.api_types import changed
from corral.template_types.resource_types import Properties, ResourceStep, TemplateType, ValidationError, Waiting

PLACEMENT = {  # property → member of Placement
    "AvailabilityZone": "AvailabilityZone",
    "Tenancy": "Tenancy",
    "Affinity": "Affinity",
    "HostId": "HostId",
    "HostResourceGroupArn": "HostResourceGroupArn",
    "PlacementGroupName": "GroupName",
}
NEEDS_STOP = ("InstanceType", "UserData")  # an update of these properties stops the instance and starts it again
FLAGS = {"DisableApiTermination": False, "SourceDestCheck": True, "EbsOptimized": False}  # boolean attribute → its default
STORED = ("CreditSpecification", "KernelId", "RamdiskId")  # an update stores these properties; they have no other effect
# A change of these properties forces a replacement of the instance.
REPLACED_BY = ("AdditionalInfo", "Affinity", "BlockDeviceMappings", "HostId", "PrivateDnsNameOptions", "Tenancy")
DEFAULT_TYPE = "m1.small"


# Instances


def find(tx: Tx[Store], caller: Caller, identity: str) -> Instance | None:
    """Return the instance with this EC2 id. Return None if the region has no such instance, or if the instance is terminated."""
    instance = tx.store.instances.by_ec2_id(identity)
    if instance is None or instance.region != caller.region or instance.state is InstanceState.TERMINATED:
        return None
    return instance


def _run_request(properties: Properties) -> dict[str, Any]:
    special = ("IamInstanceProfile", "Monitoring", "NetworkInterfaces", "BlockDeviceMappings")
    request = request_of("ec2", "RunInstances", {name: value for name, value in properties.items() if name not in special})
    request |= {"MinCount": 1, "MaxCount": 1}
    if placement := {member: properties[name] for name, member in PLACEMENT.items() if name in properties}:
        request["Placement"] = placement
    if "IamInstanceProfile" in properties:
        request["IamInstanceProfile"] = {"Name": properties["IamInstanceProfile"]}
    if "Monitoring" in properties:
        request["Monitoring"] = {"Enabled": properties["Monitoring"]}
    if "ElasticGpuSpecifications" in properties:
        request["ElasticGpuSpecification"] = properties["ElasticGpuSpecifications"]
    if "NetworkInterfaces" in properties:
        request["NetworkInterfaces"] = [
            {"Groups" if name == "GroupSet" else name: value for name, value in each.items()}
            for each in properties["NetworkInterfaces"]
        ]
    if "BlockDeviceMappings" in properties:
        request["BlockDeviceMappings"] = [
            {**each, **({"NoDevice": ""} if "NoDevice" in each else {})} for each in properties["BlockDeviceMappings"]
        ]
    if tags := properties.get("Tags"):
        request["TagSpecifications"] = [{"ResourceType": "instance", "Tags": tags}]
    return request


def _run(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    own: dict[str, Any] = {"_tags": [{"Key": key, "Value": value} for key, value in properties.get("_tags", {}).items()]}
    if init := init_of(properties):
        own["_init"] = init
    launched = call(tx, caller, "ec2", "RunInstances", {**_run_request(properties), **own})
    identity = str(launched["Instances"][0]["InstanceId"])
    if not _flag(properties, "SourceDestCheck"):
        _modify(tx, caller, identity, "SourceDestCheck", False)
    return identity


def init_of(properties: Properties) -> Document:
    """Return the metadata of a resource that cfn-init reads, or an empty document if the resource has no such metadata."""
    metadata = properties.get("_metadata") or {}
    return {INIT: metadata[INIT]} if INIT in metadata else {}


def _attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    instance = tx.store.instances.by_ec2_id(identity)
    if instance is None:
        raise ValidationError(f"The instance {identity} does not exist.")
    view = instance_view(instance, caller.account)
    return {
        "InstanceId": identity,
        "AvailabilityZone": view["Placement"]["AvailabilityZone"],
        "PrivateIp": view.get("PrivateIpAddress", ""),
        "PrivateDnsName": view.get("PrivateDnsName", ""),
        "PublicIp": view.get("PublicIpAddress", ""),
        "PublicDnsName": view["PublicDnsName"],
        "VpcId": view.get("VpcId", ""),
        "State": view["State"],
        "State.Code": str(view["State"]["Code"]),
        "State.Name": view["State"]["Name"],
    }


def _modify(tx: Tx[Store], caller: Caller, identity: str, attribute: str, value: Any) -> None:
    member = value if attribute == "Groups" else {"Value": value}
    call(tx, caller, "ec2", "ModifyInstanceAttribute", {"InstanceId": identity, attribute: member})


def _flag(properties: Properties, name: str) -> bool:
    return str(properties.get(name, FLAGS[name])).lower() == "true"


def _update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Update an instance in place, except its type and its user data.

    `_settled` changes the type and the user data, because the instance must stop first.
    """

    def is_changed(name: str) -> bool:
        return bool(old.get(name) != new.get(name))

    for name in filter(is_changed, FLAGS):
        _modify(tx, caller, identity, name, _flag(new, name))
    if is_changed("SecurityGroupIds"):
        _modify(tx, caller, identity, "Groups", new.get("SecurityGroupIds", []))
    if is_changed("InstanceInitiatedShutdownBehavior"):
        behavior = new.get("InstanceInitiatedShutdownBehavior", "stop")
        _modify(tx, caller, identity, "InstanceInitiatedShutdownBehavior", behavior)
    if is_changed("Monitoring"):
        operation = "MonitorInstances" if str(new.get("Monitoring")).lower() == "true" else "UnmonitorInstances"
        call(tx, caller, "ec2", operation, {"InstanceIds": [identity]})
    if is_changed("MetadataOptions"):
        request = {**new.get("MetadataOptions", {}), "InstanceId": identity}
        call(tx, caller, "ec2", "ModifyInstanceMetadataOptions", request_of("ec2", "ModifyInstanceMetadataOptions", request))
    set_tags(tx, caller, identity, old, new)
    instance = tx.store.instances.by_ec2_id(identity)
    assert instance is not None
    details = dict(instance.details)
    for name in filter(is_changed, STORED):
        details |= {name: new.get(name)}
    if is_changed("IamInstanceProfile"):
        details.pop("IamInstanceProfile", None)
        if "IamInstanceProfile" in new:
            given = {"IamInstanceProfile": {"Name": new["IamInstanceProfile"]}}
            authorize(tx, caller, "ec2", "AssociateIamInstanceProfile", given)
            details["IamInstanceProfile"] = instance_profile(tx, caller, {"Name": new["IamInstanceProfile"]})
    if (init := init_of(new)) != details.get("_init", {}):
        details["_init"] = init
    if details != instance.details:
        instances.put_details(tx, instance, details)


def set_tags(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Replace the tags in the old properties of a resource by the tags in its new properties."""
    before, after = ({tag["Key"]: tag["Value"] for tag in each.get("Tags", ())} for each in (old, new))
    if removed := sorted(before.keys() - after):
        call(tx, caller, "ec2", "DeleteTags", {"Resources": [identity], "Tags": [{"Key": key} for key in removed]})
    if added := [{"Key": key, "Value": value} for key, value in after.items() if before.get(key) != value]:
        call(tx, caller, "ec2", "CreateTags", {"Resources": [identity], "Tags": added})


def _settled(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    """Continue a step on an instance. Return None if the step is complete, and otherwise what the step waits for.

    A creation is complete when the instance runs and the signals of its CreationPolicy have arrived. An update of the type or the
    user data stops the instance, changes it and starts it again. Any other update is complete at once, unless it repeats a failed
    update: then the instance is started if it is stopped.
    """
    instance = find(tx, caller, step.physical_id)
    if instance is None:
        raise ValidationError(f"The instance {step.physical_id} was terminated.")
    waits = Waiting((f"instance:{instance.id}",), f"The instance {step.physical_id} is {instance.state.value}.")
    if step.action == "CREATE" and "ResourceSignal" in step.creation_policy:
        received = {**signals_of(step, [instance]), **step.received}
        if sum(status == "SUCCESS" for status in received.values()) < signals_wanted(step):
            return waits
    if step.action == "UPDATE":
        wrong = _wrong_attributes(instance, step)
        if not wrong and not step.memory.get("restarts") and not _is_retried(step):
            return None  # complete; the instance need not run, because a user may have stopped it
        step.memory["restarts"] = True
        if wrong and instance.state is InstanceState.RUNNING:
            call(tx, caller, "ec2", "StopInstances", {"InstanceIds": [step.physical_id]})
            return waits
        if instance.state is InstanceState.STOPPED:
            for name, value in wrong.items():
                _modify(tx, caller, step.physical_id, name, value)
            call(tx, caller, "ec2", "StartInstances", {"InstanceIds": [step.physical_id]})
            return waits
    return None if instance.state is InstanceState.RUNNING else waits


def _wrong_attributes(instance: Instance, step: ResourceStep) -> dict[str, Any]:
    """Return the attributes in NEEDS_STOP that the instance does not have yet, with the wanted values.

    If neither the old nor the new stack template sets an attribute, the attribute keeps its value, which can come from a launch
    template. If only the old stack template sets an attribute, the attribute gets its default value.
    """
    old, new = step.old_properties or {}, step.properties
    wanted = {"InstanceType": new.get("InstanceType", DEFAULT_TYPE), "UserData": b64decode(new.get("UserData", ""))}
    actual = {"InstanceType": instance.type, "UserData": b64decode(instance.details.get("_user_data") or "")}
    return {name: wanted[name] for name in NEEDS_STOP if (name in new or name in old) and wanted[name] != actual[name]}


def _is_retried(step: ResourceStep) -> bool:
    """Return whether the update changes no property.

    Then it repeats an update that has failed. The failed update can have stopped the instance.
    """
    return step.old_properties is not None and not changed(step.old_properties, step.properties)


def _terminate(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if find(tx, caller, identity) is not None:
        call(tx, caller, "ec2", "TerminateInstances", {"InstanceIds": [identity]})


def _gone(tx: Tx[Store], caller: Caller, step: ResourceStep) -> Waiting | None:
    instance = find(tx, caller, step.physical_id)
    if instance is None:
        return None
    return Waiting((f"instance:{instance.id}",), f"The instance {step.physical_id} is not terminated yet.")


def _signals(tx: Tx[Store], caller: Caller, step: ResourceStep) -> dict[str, str]:
    instance = find(tx, caller, step.physical_id)
    return signals_of(step, [instance] if instance is not None else [])


def signals_of(step: ResourceStep, found: list[Instance]) -> dict[str, str]:
    """Return a SUCCESS signal for each running instance that has joined its cluster, or whose user data names no cluster.

    When an instance is in the result for the first time, add a note to the step (`step.notes`).
    """
    signals: dict[str, str] = {}
    noted: list[str] = step.memory.setdefault("signalled", [])
    for instance in found:
        if instance.state is not InstanceState.RUNNING or (instance.joins and not instance.cluster):
            continue
        name = ec2_id(instance.id)
        signals[name] = "SUCCESS"
        if name not in noted:
            noted.append(name)
            how = f"joined cluster {instance.cluster}" if instance.cluster else "runs, and its user data names no cluster"
            step.notes.append(f"Instance {name} {how}: it counts as signalled.")
    return signals


def signals_wanted(step: ResourceStep) -> int:
    """Return how many SUCCESS signals the CreationPolicy of a resource requires."""
    return signal_policy(step.creation_policy).needed


def _replaces(old: Properties, new: Properties) -> list[str]:
    return [name for name in REPLACED_BY if old.get(name) != new.get(name)]


# Launch templates


def _create_template(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    request = {**request_of("ec2", "CreateLaunchTemplate", properties), "_init": init_of(properties)}
    return str(call(tx, caller, "ec2", "CreateLaunchTemplate", request)["LaunchTemplate"]["LaunchTemplateId"])


def _template_attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    template = launch_templates.find_template(tx, caller, {"LaunchTemplateId": identity})
    numbers = {name: str(template[name]) for name in ("DefaultVersionNumber", "LatestVersionNumber")}
    return {"LaunchTemplateId": identity, **numbers}


def _update_template(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Add a version if the data has changed. As on AWS, the default version stays the same."""
    members = ("LaunchTemplateData", "VersionDescription")
    if any(old.get(name) != new.get(name) for name in members) or init_of(old) != init_of(new):
        request = {name: new[name] for name in members if name in new} | {"LaunchTemplateId": identity}
        request = {**request_of("ec2", "CreateLaunchTemplateVersion", request), "_init": init_of(new)}
        call(tx, caller, "ec2", "CreateLaunchTemplateVersion", request)
    set_tags(tx, caller, identity, {"Tags": _template_tags(old)}, {"Tags": _template_tags(new)})


def _template_tags(properties: Properties) -> list[dict[str, str]]:
    given = properties.get("TagSpecifications", ())
    return [tag for each in given if each.get("ResourceType") == "launch-template" for tag in each.get("Tags", ())]


def _delete_template(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    if tx.store.stored.get("ec2", "launch-template", caller.region, identity) is not None:
        call(tx, caller, "ec2", "DeleteLaunchTemplate", {"LaunchTemplateId": identity})


INSTANCE_TYPES = (
    TemplateType(
        "AWS::EC2::Instance",
        _run,
        _attributes,
        _update,
        _terminate,
        settled=_settled,
        gone=_gone,
        signals=_signals,
        replaces=_replaces,
        checks_permissions=True,
    ),
    TemplateType(
        "AWS::EC2::LaunchTemplate",
        _create_template,
        _template_attributes,
        _update_template,
        _delete_template,
        "LaunchTemplateName",
        checks_permissions=True,
    ),
)
