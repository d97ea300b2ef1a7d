"""Operations on launch configurations."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.instance import Instance
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, ResourceType, ServiceStyle, get, handlers, response_view
from corral.operations.tags import TagRules
from corral.services.autoscaling.errors import AlreadyExistsFault, LimitExceededFault, ResourceInUseFault, ValidationError
from corral.services.autoscaling.names import PAGES, SERVICE
from corral.store import Store

CONFIGURATIONS_MAX = 200
USER_DATA_MAX_BYTES = 16 * 1024
STYLE = ServiceStyle(
    SERVICE,
    exists=lambda type_, name: AlreadyExistsFault(
        f"Launch Configuration by this name already exists - A launch configuration already exists with the name {name}"
    ),
    missing=lambda type_, name: ValidationError(
        f"Launch configuration name not found - Launch configuration {name} not found"
    ),
    pages=PAGES,
    tags=TagRules(ValidationError),
)  # fmt: skip
MEMBERS = (
    "ImageId",
    "KeyName",
    "SecurityGroups",
    "ClassicLinkVPCId",
    "ClassicLinkVPCSecurityGroups",
    "UserData",
    "InstanceType",
    "KernelId",
    "RamdiskId",
    "BlockDeviceMappings",
    "InstanceMonitoring",
    "SpotPrice",
    "IamInstanceProfile",
    "EbsOptimized",
    "AssociatePublicIpAddress",
    "PlacementTenancy",
    "MetadataOptions",
    "_init",  # the metadata for cfn-init, from a stack
)


def _new(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    if len(tx.store.stored.listed(SERVICE, "launch-configuration", caller.region)) >= CONFIGURATIONS_MAX:
        raise LimitExceededFault(f"A region can have at most {CONFIGURATIONS_MAX} launch configurations: delete one first.")
    derived: Document = {}
    if "InstanceId" in params:
        derived = _of_instance(find_instance(tx, caller, params["InstanceId"]))
    given = {member: params[member] for member in MEMBERS if member in params}
    for member in ("ImageId", "InstanceType"):
        if not given.get(member) and not derived.get(member):
            raise ValidationError(f"Valid requests must contain either the InstanceID parameter or {member}.")
    _check_user_data(params.get("UserData"))
    name = params["LaunchConfigurationName"]
    return {
        **derived,
        **given,
        "LaunchConfigurationARN": f"arn:aws:autoscaling:{caller.region}:{caller.account}:launchConfiguration:{tx.ids.uuid()}"
        f":launchConfigurationName/{name}",
        "CreatedTime": tx.now_s,
    }


def _check_user_data(text: str | None) -> None:
    if text is None:
        return
    try:
        size = len(b64decode(text.encode(), validate=True))
    except ValueError:
        raise ValidationError("Invalid BASE64 encoding of user data.") from None
    if size > USER_DATA_MAX_BYTES:
        raise ValidationError(f"User data is limited to {USER_DATA_MAX_BYTES} bytes: it has {size}.")


def find_instance(tx: Tx[Store], caller: Caller, instance_id: str) -> Instance:
    instance = tx.store.instances.by_ec2_id(instance_id)
    if instance is None or instance.region != caller.region:
        raise ValidationError(f"Invalid Instance ID: the instance ID '{instance_id}' does not exist.")
    return instance


def _of_instance(instance: Instance) -> Document:
    """Return the members of a launch configuration that launches instances with the settings of this instance."""
    details = instance.details
    found = {member: details[member] for member in ("ImageId", "KeyName", "EbsOptimized") if details.get(member)}
    if groups := [group["GroupId"] for group in details.get("SecurityGroups", ())]:
        found["SecurityGroups"] = groups
    if profile := details.get("IamInstanceProfile", {}).get("Arn"):
        found["IamInstanceProfile"] = profile
    return {**found, "InstanceType": instance.type}


def _check_delete(tx: Tx[Store], caller: Caller, document: Document) -> None:
    name = document["LaunchConfigurationName"]
    for group in tx.store.groups.listed(caller.region):
        if group.settings.get("LaunchConfigurationName") == name:
            raise ResourceInUseFault(
                f"Cannot delete launch configuration {name} because it is attached to AutoScalingGroup {group.name}"
            )


CONFIGURATION_TYPE = ResourceType(
    STYLE,
    "launch-configuration",
    id="LaunchConfigurationName",
    one="LaunchConfiguration",
    many="LaunchConfigurations",
    new=_new,
    defaults={
        "KeyName": "",
        "SecurityGroups": [],
        "ClassicLinkVPCSecurityGroups": [],
        "UserData": "",
        "KernelId": "",
        "RamdiskId": "",
        "BlockDeviceMappings": [],
        "InstanceMonitoring": {"Enabled": True},
        "EbsOptimized": False,
    },
    create_response=lambda document: {},
    check_delete=_check_delete,
    create="CreateLaunchConfiguration",
    delete="DeleteLaunchConfiguration",
)


def describe_launch_configurations(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Describe launch configurations. Names that do not exist are ignored."""
    names = params.get("LaunchConfigurationNames")
    if names:
        named = {name: document for name in names if (document := get(tx, caller, CONFIGURATION_TYPE, name)) is not None}
        candidates = among(named)
    else:

        def candidates(after: str, limit: int) -> list[tuple[str, Document]]:
            return tx.store.stored.listed(SERVICE, "launch-configuration", caller.region, after, limit)

    found, more = PAGES.page(params, candidates)
    return {"LaunchConfigurations": [response_view(tx, caller, CONFIGURATION_TYPE, each) for each in found], **more}


HANDLERS = handlers(CONFIGURATION_TYPE)
