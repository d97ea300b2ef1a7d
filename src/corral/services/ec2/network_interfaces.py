"""The network interfaces of instances, NAT gateways, VPC endpoints and tasks in awsvpc mode.

An interface is not stored: it exists as long as its owner has it. Clients cannot create or delete one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.task_interfaces import interface_of
from corral.model.instance import Instance, InstanceState, ec2_id
from corral.model.task import Task
from corral.operations.stored_resources import Document, Params
from corral.services.ec2.filters import filtered
from corral.services.ec2.instance_description import UNMANAGED, interface_view
from corral.services.ec2.resources import PAGES, every, listed
from corral.services.ec2.zones import zone_id
from corral.store import Store

TYPE = "network-interface"
SELECTS = filtered(
    {
        "network-interface-id": "NetworkInterfaceId", "subnet-id": "SubnetId", "vpc-id": "VpcId", "status": "Status",
        "availability-zone": "AvailabilityZone", "description": "Description", "group-id": "Groups[].GroupId",
        "group-name": "Groups[].GroupName", "interface-type": "InterfaceType", "mac-address": "MacAddress",
        "private-dns-name": "PrivateDnsName", "private-ip-address": "PrivateIpAddress", "requester-id": "RequesterId",
        "requester-managed": "RequesterManaged", "source-dest-check": "SourceDestCheck",
        "addresses.private-ip-address": "PrivateIpAddresses[].PrivateIpAddress",
        "addresses.primary": "PrivateIpAddresses[].Primary", "attachment.attachment-id": "Attachment.AttachmentId",
        "attachment.attach-time": "Attachment.AttachTime", "attachment.device-index": "Attachment.DeviceIndex",
        "attachment.delete-on-termination": "Attachment.DeleteOnTermination", "attachment.instance-id": "Attachment.InstanceId",
        "attachment.instance-owner-id": "Attachment.InstanceOwnerId", "attachment.status": "Attachment.Status",
        "association.allocation-id": "Association.AllocationId", "association.association-id": "Association.AssociationId",
        "association.public-ip": "Association.PublicIp", "association.ip-owner-id": "Association.IpOwnerId",
    },
    tags="TagSet",
)  # fmt: skip


def describe_network_interfaces(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    chosen = SELECTS(tx, caller, params)
    known = {each["NetworkInterfaceId"]: each for each in interfaces(tx, caller)}
    found, more = listed(PAGES, params, TYPE, known, params.get("NetworkInterfaceIds"), chosen)
    return {"NetworkInterfaces": found, **more}


def interfaces(tx: Tx[Store], caller: Caller) -> Iterator[Document]:
    """All interfaces of a region."""
    subnets = {subnet["SubnetId"]: subnet for subnet in every(tx, caller, "subnet")}
    associations = {
        address["NetworkInterfaceId"]: _association(caller, address)
        for address in every(tx, caller, "elastic-ip")
        if "NetworkInterfaceId" in address
    }
    for made in _of_owners(tx, caller):
        subnet = subnets.get(made["SubnetId"], {})
        association = associations.get(made["NetworkInterfaceId"])
        given = {"Association": association} if association else {}
        names = {member: made[member] for member in ("PrivateIpAddress", "PrivateDnsName") if made.get(member)}
        addresses = [{"Primary": True, **names, **given}] if "PrivateIpAddress" in made else []
        zone = subnet.get("AvailabilityZone", "")
        yield {
            "OwnerId": caller.account,
            "Status": "in-use",
            "InterfaceType": "interface",
            "SourceDestCheck": True,
            "RequesterManaged": False,
            "Ipv6Addresses": [],
            "TagSet": [],
            "Groups": [],
            "Operator": UNMANAGED,
            **({"VpcId": subnet["VpcId"], "AvailabilityZone": zone, "AvailabilityZoneId": zone_id(zone)} if subnet else {}),
            **made,
            "PrivateIpAddresses": addresses,
            **given,
        }


def _of_owners(tx: Tx[Store], caller: Caller) -> Iterator[Document]:
    for instance in tx.store.instances.listed(caller.region):  # from the rows, because a reader has not all instances in memory
        if "_eni" in instance.details and instance.state is not InstanceState.TERMINATED:
            yield _of_instance(caller, instance)
    for nat in every(tx, caller, "natgateway"):
        for address in nat["NatGatewayAddresses"]:
            yield {
                "NetworkInterfaceId": address["NetworkInterfaceId"],
                "SubnetId": nat["SubnetId"],
                "PrivateIpAddress": address["PrivateIp"],
                "Description": f"Interface for NAT Gateway {nat['NatGatewayId']}",
                "InterfaceType": "nat_gateway",
                "RequesterManaged": True,
                "SourceDestCheck": False,
            }
    for endpoint in every(tx, caller, "vpc-endpoint"):
        for interface_id, subnet_id in zip(endpoint["NetworkInterfaceIds"], endpoint["SubnetIds"], strict=False):
            yield {  # without an address, because the endpoint has none
                "NetworkInterfaceId": interface_id,
                "SubnetId": subnet_id,
                "Description": f"VPC Endpoint Interface {endpoint['VpcEndpointId']}",
                "InterfaceType": "vpc_endpoint",
                "RequesterManaged": True,
                "Groups": endpoint["Groups"],
            }
    groups = {group["GroupId"]: group["GroupName"] for group in every(tx, caller, "security-group")}
    for task in tx.store.tasks.placed():
        if task.region == caller.region and "networkConfiguration" in task.details:
            yield from _of_task(caller, task, groups)


def _of_instance(caller: Caller, instance: Instance) -> Document:
    view = interface_view(instance.details, instance.launched_at_s or instance.created_at_s, caller.account)
    owner = {"InstanceId": ec2_id(instance.id), "InstanceOwnerId": caller.account}
    return {**view, "Attachment": {**view["Attachment"], **owner}}


def _of_task(caller: Caller, task: Task, groups: dict[str, str]) -> Iterator[Document]:
    """The interface of a task. Its address is the one that the containers have, so it may be outside the block of the subnet."""
    interface = interface_of(task)
    if interface is None:
        return
    instance = {"InstanceId": ec2_id(task.instance_id)} if task.instance_id and task.launch_type == "EC2" else {}
    yield {
        "NetworkInterfaceId": interface.id,
        "SubnetId": interface.subnet_id,
        "PrivateIpAddress": interface.address,
        "PrivateDnsName": interface.dns_name,
        "MacAddress": interface.mac_address,
        "Description": f"arn:aws:ecs:{caller.region}:{caller.account}:attachment/{interface.attachment_id}",
        "RequesterManaged": True,
        "Groups": [{"GroupId": group_id, "GroupName": groups.get(group_id, "")} for group_id in interface.group_ids],
        "Attachment": {
            "AttachmentId": f"eni-attach-{task.id[:17]}",
            "AttachTime": task.placed_at_s,
            "DeleteOnTermination": False,
            "DeviceIndex": 1,
            "InstanceOwnerId": caller.account,
            "Status": "attached",
            **instance,
        },
    }


def _association(caller: Caller, address: Document) -> Document:
    return {
        "AllocationId": address["AllocationId"],
        "AssociationId": address["AssociationId"],
        "IpOwnerId": caller.account,
        "PublicDnsName": "",
        "PublicIp": address["PublicIp"],
    }
