"""The permissions that operations of EC2 need. The resources of a request are not derived."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, pass_profile, request_tags
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.services.ec2.launch_templates import template_data
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission for the operation, and to pass the role of the launch template from which an instance is launched."""
    needed = [Permission(f"ec2:{operation}", UNKNOWN_RESOURCE, request_tags(params))]
    if operation == "RunInstances" and not params.get("IamInstanceProfile"):
        return needed + pass_role_of_template(tx, caller, params.get("LaunchTemplate"))
    return needed


def pass_role_of_template(tx: Tx[Store], caller: Caller, template: Params | None) -> list[Permission]:
    """The permissions to pass the role of a launch template, given as a LaunchTemplateSpecification."""
    try:
        profile = template_data(tx, caller, {**template}).data.get("IamInstanceProfile") or {} if template else {}
    except ApiError:  # the handler raises the same error later, if the caller has the permissions
        return []
    return pass_profile(tx, caller, profile.get("Name") or profile.get("Arn") or "")
