"""Finds instances by EC2's ids, and describes them as EC2's responses do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.instance_types import CPU_UNITS
from corral.model.instance import INTERRUPTED_AT, Instance, InstanceState, ec2_id
from corral.operations.stored_resources import Document
from corral.services.ec2.errors import not_found
from corral.services.ec2.filters import filtered
from corral.services.ec2.zones import zone_id
from corral.store import Store

CODES = {
    InstanceState.PENDING: 0,
    InstanceState.RUNNING: 16,
    InstanceState.SHUTTING_DOWN: 32,
    InstanceState.TERMINATED: 48,
    InstanceState.STOPPING: 64,
    InstanceState.STOPPED: 80,
}
ID = re.compile(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?")
ROOT_DEVICE = "/dev/xvda"
NETWORK = ("SubnetId", "VpcId", "PrivateIpAddress", "PrivateDnsName")  # members that a terminated instance does not have
UNMANAGED = {"Managed": False}  # `Operator`: no service of AWS manages the instance or the interface
DEFAULTS: dict[str, Document] = {  # settings that a launch can change; none has an effect
    "EnclaveOptions": {"Enabled": False},
    "HibernationOptions": {"Configured": False},
    "MaintenanceOptions": {"AutoRecovery": "default", "RebootMigration": "default"},
    "CapacityReservationSpecification": {"CapacityReservationPreference": "open"},
    "PrivateDnsNameOptions": {
        "HostnameType": "ip-name", "EnableResourceNameDnsARecord": False, "EnableResourceNameDnsAAAARecord": False,
    },
    "NetworkPerformanceOptions": {"BandwidthWeighting": "default"},
}  # fmt: skip
WAITS = {"Code": "Server.InsufficientInstanceCapacity", "Message": "It waits for free GPUs: `corral instances` says why."}
SELECTS = filtered(
    {
        "instance-id": "InstanceId", "instance-type": "InstanceType", "instance-state-name": "State.Name",
        "instance-state-code": "State.Code", "image-id": "ImageId", "architecture": "Architecture", "key-name": "KeyName",
        "availability-zone": "Placement.AvailabilityZone", "tenancy": "Placement.Tenancy", "affinity": "Placement.Affinity",
        "placement-group-name": "Placement.GroupName", "client-token": "ClientToken", "dns-name": "PublicDnsName",
        "hypervisor": "Hypervisor", "virtualization-type": "VirtualizationType", "kernel-id": "KernelId", "ramdisk-id": "RamdiskId",
        "iam-instance-profile.arn": "IamInstanceProfile.Arn", "iam-instance-profile.id": "IamInstanceProfile.Id",
        "instance-lifecycle": "InstanceLifecycle", "instance.group-id": "SecurityGroups[].GroupId",
        "instance.group-name": "SecurityGroups[].GroupName", "group-id": "SecurityGroups[].GroupId",
        "group-name": "SecurityGroups[].GroupName", "ip-address": "PublicIpAddress", "launch-index": "AmiLaunchIndex",
        "launch-time": "_launch_time", "owner-id": "_owner",
        "monitoring-state": "Monitoring.State", "private-dns-name": "PrivateDnsName",
        "private-ip-address": "PrivateIpAddress", "reason": "StateTransitionReason", "state-reason-code": "StateReason.Code",
        "reservation-id": "_reservation", "root-device-name": "RootDeviceName", "root-device-type": "RootDeviceType",
        "source-dest-check": "SourceDestCheck", "subnet-id": "SubnetId", "vpc-id": "VpcId", "platform-details": "PlatformDetails",
        "usage-operation": "UsageOperation", "metadata-options.http-tokens": "MetadataOptions.HttpTokens",
        "metadata-options.http-endpoint": "MetadataOptions.HttpEndpoint", "requester-id": "_requester",
        "network-interface.network-interface-id": "NetworkInterfaces[].NetworkInterfaceId",
        "network-interface.subnet-id": "NetworkInterfaces[].SubnetId", "network-interface.vpc-id": "NetworkInterfaces[].VpcId",
        "network-interface.group-id": "NetworkInterfaces[].Groups[].GroupId",
        "network-interface.addresses.private-ip-address": "NetworkInterfaces[].PrivateIpAddress",
        "network-interface.private-dns-name": "NetworkInterfaces[].PrivateDnsName",
        "network-interface.availability-zone": "Placement.AvailabilityZone",
        "network-interface.status": "NetworkInterfaces[].Status",
    }
)  # fmt: skip


def find_instances(tx: Tx[Store], caller: Caller, ids: Iterable[str], *, hosts: bool = False) -> list[Instance]:
    """Return the instances of a region that a request names. Raise EC2's error if one of them does not exist.

    With `hosts`, the request may also name the own instance of a host, which has all GPUs that no EC2 instance has. Clients get the
    id of this instance from ECS.
    """
    found: dict[str, Instance] = {}
    missing = []
    for given in ids:
        instance = tx.store.instances.by_ec2_id(given) if ID.fullmatch(given) else None
        if instance is None or not (instance.region == caller.region or (hosts and instance.is_host)):
            missing.append(given)
        else:
            found[instance.id] = instance
    if missing:
        raise not_found("instance", *missing)
    return list(found.values())


def find_instance(tx: Tx[Store], caller: Caller, given: str) -> Instance:
    return find_instances(tx, caller, [given])[0]


def state_of(state: InstanceState) -> Document:
    return {"Code": CODES[state], "Name": state.value}


def reservations(caller: Caller, views: Iterable[Document]) -> list[Document]:
    """Return EC2's reservations. A reservation has the views of the instances that one request launched."""
    grouped: dict[str, Document] = {}
    for view in views:
        name = view["_reservation"]
        if name not in grouped:
            grouped[name] = {"ReservationId": name, "OwnerId": caller.account, "Groups": [], "Instances": []}
            if view["_requester"]:
                grouped[name]["RequesterId"] = view["_requester"]
        grouped[name]["Instances"].append({member: value for member, value in view.items() if member[0] != "_"})
    return list(grouped.values())


def instance_view(instance: Instance, account: str) -> Document:
    """Describe an instance as DescribeInstances does. Filters and `reservations` use the extra members that begin with "_"."""
    details, is_terminated = instance.details, instance.state is InstanceState.TERMINATED
    launched_at_s = instance.launched_at_s or instance.created_at_s
    vcpus = instance.cpu_units // CPU_UNITS
    view: Document = {
        **DEFAULTS,
        **{member: value for member, value in details.items() if member[0] != "_"},
        "InstanceId": ec2_id(instance.id),
        "InstanceType": instance.type,
        "State": state_of(instance.state),
        "LaunchTime": launched_at_s,
        "AmiLaunchIndex": details.get("_index", 0),
        "ClientToken": details.get("_token", ""),
        "PublicDnsName": "",
        "ProductCodes": [],
        "BlockDeviceMappings": [],
        "RootDeviceName": ROOT_DEVICE,
        "RootDeviceType": "ebs",
        "VirtualizationType": "hvm",
        "Hypervisor": "xen",
        "PlatformDetails": "Linux/UNIX",
        "UsageOperation": "RunInstances",
        "EbsOptimized": details.get("EbsOptimized", False),
        "EnaSupport": True,
        "Operator": UNMANAGED,
        "SourceDestCheck": details.get("SourceDestCheck", True),
        "StateTransitionReason": instance.end_reason,
        "CpuOptions": {"CoreCount": max(1, vcpus // 2), "ThreadsPerCore": 2 if vcpus > 1 else 1, **details.get("CpuOptions", {})},
        "NetworkInterfaces": [] if is_terminated or "_eni" not in details else [interface_view(details, launched_at_s, account)],
        "_reservation": details.get("_reservation", f"r-0{instance.id[:16]}"),
        "_requester": "autoscaling.amazonaws.com" if instance.group else "",
        "_launch_time": datetime.fromtimestamp(launched_at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "_owner": account,
    }
    for member in DEFAULTS.keys() & details.keys():
        view[member] = {**DEFAULTS[member], **details[member]}
    if zone := details.get("Placement", {}).get("AvailabilityZone"):
        view["Placement"] = {**details["Placement"], "AvailabilityZoneId": zone_id(zone)}
    if instance.end_reason:
        code = "Server.SpotInstanceTermination" if INTERRUPTED_AT in details else "Client.UserInitiatedShutdown"
        view["StateReason"] = {"Code": code, "Message": instance.end_reason}
    elif instance.state is InstanceState.PENDING:
        view["StateReason"] = WAITS
    if is_terminated:
        view = {member: value for member, value in view.items() if member not in NETWORK}
        view["SecurityGroups"] = []
    return view


def interface_view(details: Document, attached_at_s: float, account: str) -> Document:
    address, name = details["PrivateIpAddress"], details["PrivateDnsName"]
    octets = [int(part) for part in address.split(".")]
    return {
        "NetworkInterfaceId": details["_eni"],
        "OwnerId": account,
        "SubnetId": details["SubnetId"],
        "VpcId": details["VpcId"],
        "Status": "in-use",
        "Description": "",
        "InterfaceType": "interface",
        "MacAddress": "0a:c0:" + ":".join(f"{octet:02x}" for octet in octets),
        "PrivateIpAddress": address,
        "PrivateDnsName": name,
        "PrivateIpAddresses": [{"Primary": True, "PrivateIpAddress": address, "PrivateDnsName": name}],
        "Groups": details["SecurityGroups"],
        "Ipv6Addresses": [],
        "Operator": UNMANAGED,
        "SourceDestCheck": details.get("SourceDestCheck", True),
        "Attachment": {
            "AttachmentId": details["_attachment"],
            "AttachTime": attached_at_s,
            "DeleteOnTermination": True,
            "DeviceIndex": 0,
            "NetworkCardIndex": 0,
            "Status": "attached",
        },
    }
