"""Operations on machine images (AMIs). Corral starts no image, so an image is only a record, and a launch accepts any id.

DescribeImages also lists the images in AWS's public parameters (`services/ssm/public_parameters.py`) as images of Amazon, so that
templates and scripts can find them.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Document, Params, ResourceType, create, delete, find
from corral.services.ec2.errors import InvalidAMIName
from corral.services.ec2.filters import filtered
from corral.services.ec2.instance_description import ROOT_DEVICE, find_instance
from corral.services.ec2.resources import EC2, PAGES, every, listed, new_id
from corral.services.ssm import public_parameters
from corral.store import Store

ECS_IMAGE = "corral-"  # the prefix of the names of ECS-optimized images
AMAZON = "591542846629"  # the account that owns the ECS-optimized images on AWS
STORED = (
    "Description", "Architecture", "KernelId", "RamdiskId", "RootDeviceName", "BlockDeviceMappings", "VirtualizationType",
    "SriovNetSupport", "EnaSupport", "BootMode", "TpmSupport", "ImdsSupport", "ImageLocation",
)  # fmt: skip
DEFAULTS = {
    "State": "available", "Public": False, "ImageType": "machine", "Architecture": "x86_64", "VirtualizationType": "hvm",
    "Hypervisor": "xen", "RootDeviceType": "ebs", "RootDeviceName": ROOT_DEVICE, "EnaSupport": True, "BlockDeviceMappings": [],
    "ProductCodes": [], "PlatformDetails": "Linux/UNIX", "UsageOperation": "RunInstances",
}  # fmt: skip


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    if every(tx, caller, "image", Name=params["Name"]):
        taken = every(tx, caller, "image", Name=params["Name"])[0]["ImageId"]
        raise InvalidAMIName(f"AMI name {params['Name']} is already in use by AMI {taken}")
    image_id = new_id(tx, "ami")
    return {
        "ImageId": image_id,
        "OwnerId": caller.account,
        "ImageLocation": params.get("ImageLocation") or f"{caller.account}/{params['Name']}",
        "CreationDate": datetime.fromtimestamp(tx.wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        **({"SourceInstanceId": params["InstanceId"]} if "InstanceId" in params else {}),
    }


SELECTS = filtered(
    {
        "architecture": "Architecture", "description": "Description", "ena-support": "EnaSupport", "hypervisor": "Hypervisor",
        "image-id": "ImageId", "image-type": "ImageType", "is-public": "Public", "kernel-id": "KernelId", "name": "Name",
        "owner-alias": "ImageOwnerAlias", "platform": "Platform", "ramdisk-id": "RamdiskId", "root-device-name": "RootDeviceName",
        "root-device-type": "RootDeviceType", "state": "State", "virtualization-type": "VirtualizationType",
        "creation-date": "CreationDate", "source-instance-id": "SourceInstanceId", "manifest-location": "ImageLocation",
        "block-device-mapping.volume-type": "BlockDeviceMappings[].Ebs.VolumeType",
        "block-device-mapping.device-name": "BlockDeviceMappings[].DeviceName", "platform-details": "PlatformDetails",
    }
)  # fmt: skip
IMAGE = ResourceType(
    EC2,
    "image",
    id="ImageId",
    one="Image",
    many="Images",
    new=_new,
    members=("Name", *STORED),
    defaults=DEFAULTS,
    ids="ImageIds",
    create="RegisterImage",
    create_response=lambda image: {"ImageId": image["ImageId"]},
)


def create_image(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Record an image of an instance. Nothing is copied."""
    instance = find_instance(tx, caller, params["InstanceId"])
    given = {"Architecture": instance.details.get("Architecture", "x86_64"), **params}
    given["TagSpecifications"] = [each for each in params.get("TagSpecifications", ()) if each.get("ResourceType") != "snapshot"]
    return {"ImageId": create(tx, caller, IMAGE, given)["ImageId"]}


def deregister_image(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    delete(tx, caller, IMAGE, find(tx, caller, IMAGE, params))
    return {"Return": True}


def describe_images(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe the stored images, and the images in AWS's public parameters."""
    images = {**_public(caller.region), **{each["ImageId"]: each for each in every(tx, caller, "image")}}
    owners, selects = set(params.get("Owners", ())), SELECTS(tx, caller, params)
    owners |= {caller.account} if "self" in owners else set()

    def chosen(image: Document) -> bool:
        return (not owners or image["OwnerId"] in owners or image.get("ImageOwnerAlias") in owners) and selects(image)

    found, more = listed(PAGES, params, IMAGE.name, images, params.get("ImageIds"), chosen)
    shown = [{member: value for member, value in image.items() if member[0] != "_"} for image in found]
    return {"Images": [{**image, "DeregistrationProtection": "disabled"} for image in shown], **more}


def is_on_record(tx: Tx[Store], caller: Caller, image_id: str) -> bool:
    return image_id in _public(caller.region) or tx.store.stored.get("ec2", "image", caller.region, image_id) is not None


def is_ecs_optimized(region: str, image_id: str) -> bool:
    """Return whether an image is ECS-optimized.

    The instances of such an image join the cluster `default`, unless their user data names another cluster.
    """
    image = _public(region).get(image_id)
    return image is not None and bool(image["_ecs"])


@lru_cache(maxsize=32)
def _public(region: str) -> dict[str, Document]:
    """Return the images in the public parameters of a region, by image id."""
    named: dict[str, str] = {}
    for parameter in public_parameters.under(region, public_parameters.LINUX):
        named[parameter.value] = parameter.name.rpartition("/")[2]
    for parameter in public_parameters.under(region, public_parameters.ECS):
        if parameter.name.endswith("/image_id"):
            variant = parameter.name.removeprefix(public_parameters.ECS).removesuffix("/recommended/image_id")
            named[parameter.value] = f"{ECS_IMAGE}{variant.replace('/', '-')}"
    created = datetime.fromtimestamp(public_parameters.PUBLISHED_AT_S, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return {
        image_id: {
            **DEFAULTS,
            "ImageId": image_id,
            "Name": name,
            "OwnerId": AMAZON,
            "ImageOwnerAlias": "amazon",
            "ImageLocation": f"amazon/{name}",
            "Public": True,
            "Architecture": "arm64" if "arm64" in name else "x86_64",
            "_ecs": name.startswith(ECS_IMAGE),
            "CreationDate": created,
        }
        for image_id, name in named.items()
    }
