"""AWS::ImageBuilder::Image in CloudFormation templates. Corral builds nothing: it only stores the record of a machine image (AMI).

Fn::GetAtt of the attribute ImageId returns the id of the AMI, and launches accept this id. If the image has a container recipe, it
has a URI in ECR instead of an AMI. A stack only stores resources of the other types of Image Builder.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations import stored_resources
from corral.services.ec2.images import IMAGE
from corral.store import Store
from corral.store.stored_resources import Document
from corral.template_types.resource_types import Properties, TemplateType, ValidationError

SERVICE, TYPE = "imagebuilder", "image"
RECIPES = {"ImageRecipeArn": "image-recipe", "ContainerRecipeArn": "container-recipe"}
BUILDS_MAX = 10_000


def _create(tx: Tx[Store], caller: Caller, properties: Properties) -> str:
    """Record a build of a recipe, and return the ARN of the build.

    The ARN has the name and the version of the recipe, and the lowest build number that is free.
    """
    property_ = next((each for each in RECIPES if properties.get(each)), None)
    if property_ is None:
        raise ValidationError("AWS::ImageBuilder::Image needs ImageRecipeArn or ContainerRecipeArn.")
    name, version = _recipe(properties[property_], RECIPES[property_])
    path = f"image/{name}/{version}"
    build = next((number for number in range(1, BUILDS_MAX + 1) if _get(tx, caller, f"{path}/{number}") is None), None)
    if build is None:
        raise ValidationError(f"The recipe {properties[property_]} has {BUILDS_MAX} images: delete some of them.")
    document: Document = {"name": name, "version": version, "build": build, "imageId": "", "imageUri": ""}
    if property_ == "ImageRecipeArn":
        document["imageId"] = _record(tx, caller, name, properties)
    else:
        document["imageUri"] = f"{caller.account}.dkr.ecr.{caller.region}.amazonaws.com/{name}:{version}-{build}"
    tx.store.stored.put(SERVICE, TYPE, caller.region, f"{path}/{build}", document, tx.now_s)
    return f"arn:aws:{SERVICE}:{caller.region}:{caller.account}:{path}/{build}"


def _recipe(arn: str, kind: str) -> tuple[str, str]:
    parts = arn.rpartition(":")[2].split("/")
    if len(parts) < 3 or parts[0] != kind or not all(parts[:3]):
        raise ValidationError(f"{arn} is not the ARN of a recipe: it must end with {kind}/NAME/VERSION.")
    return parts[1], parts[2]


def _record(tx: Tx[Store], caller: Caller, name: str, properties: Properties) -> str:
    at = datetime.fromtimestamp(tx.wall_s, UTC).strftime("%Y-%m-%dT%H-%M-%S")
    request = {
        "Name": f"{name} {at} {tx.ids.hex32()[:8]}",
        "Description": f"Image Builder: {properties['ImageRecipeArn']}",
        "TagSpecifications": [
            {
                "ResourceType": "image",
                "Tags": [{"Key": key, "Value": value} for key, value in properties.get("Tags", {}).items()],
            }
        ],
    }
    return str(stored_resources.create(tx, caller, IMAGE, request)["ImageId"])


def _get(tx: Tx[Store], caller: Caller, path: str) -> Document | None:
    return tx.store.stored.get(SERVICE, TYPE, caller.region, path)


def _path(identity: str) -> str:
    return identity.split(":", 5)[-1]


def _attributes(tx: Tx[Store], caller: Caller, identity: str) -> dict[str, Any]:
    image = _get(tx, caller, _path(identity))
    if image is None:
        raise ValidationError(f"The image {identity} does not exist.")
    family = identity.rsplit("/", 2)[0]
    parts = f"{image['version']}.0.0".split(".")[:3]
    major, minor, patch = ("/".join([family, ".".join([*parts[:count], *["x"] * (3 - count)])]) for count in (1, 2, 3))
    latest = {"Arn": f"{family}/x.x.x", "Major": major, "Minor": minor, "Patch": patch}
    return {
        "Arn": identity,
        "Name": image["name"],
        "ImageId": image["imageId"],
        "ImageUri": image["imageUri"],
        "LatestVersion": latest,
        **{f"LatestVersion.{name}": value for name, value in latest.items()},
    }


def _update(tx: Tx[Store], caller: Caller, identity: str, old: Properties, new: Properties) -> None:
    """Do nothing.

    An update in place can change only the tags and the settings of the build. Corral tags an AMI only when it creates the AMI, and
    it builds nothing.
    """


def _delete(tx: Tx[Store], caller: Caller, identity: str, properties: Properties) -> None:
    """Delete the record of the image. As on AWS, its AMI stays, unless the template sets DeletionSettings."""
    image = _get(tx, caller, _path(identity))
    if image is None:
        return
    tx.store.stored.drop(SERVICE, TYPE, caller.region, _path(identity))
    ami = stored_resources.get(tx, caller, IMAGE, image["imageId"]) if image["imageId"] else None
    if ami is not None and properties.get("DeletionSettings"):
        stored_resources.delete(tx, caller, IMAGE, ami)


TEMPLATE_TYPES = (TemplateType("AWS::ImageBuilder::Image", _create, _attributes, _update, _delete, is_stored_only=True),)
