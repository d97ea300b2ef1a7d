"""Instance profiles and their roles."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, ResourceType, every, find, put, response_view
from corral.services.iam.errors import DeleteConflictException, LimitExceededException
from corral.services.iam.roles import ROLE
from corral.services.iam.style import IAM, PAGES, check, identity_of, selects_path
from corral.store import Store


def _profile_view(tx: Tx[Store], caller: Caller, profile: Document) -> Document:
    roles = [find(tx, caller, ROLE, {"RoleName": name}) for name in profile["_roles"]]
    return {**profile, "Roles": [response_view(tx, caller, ROLE, role) for role in roles]}


def _profile_removable(tx: Tx[Store], caller: Caller, profile: Document) -> None:
    if profile["_roles"]:
        raise DeleteConflictException("Cannot delete entity, must remove roles from instance profile first.")


INSTANCE_PROFILE = ResourceType(
    IAM,
    "instance-profile",
    id="InstanceProfileName",
    one="InstanceProfile",
    many="InstanceProfiles",
    new=identity_of("AIPA", "instance-profile", "InstanceProfileId"),
    defaults={"_roles": []},
    unlisted=("Tags",),
    check=check,
    check_delete=_profile_removable,
    selects=selects_path,
    view=_profile_view,
    create="CreateInstanceProfile",
    get="GetInstanceProfile",
    list="ListInstanceProfiles",
    delete="DeleteInstanceProfile",
    tag="TagInstanceProfile",
    untag="UntagInstanceProfile",
    list_tags="ListInstanceProfileTags",
)


def add_role_to_instance_profile(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    profile, role = find(tx, caller, INSTANCE_PROFILE, params), find(tx, caller, ROLE, params)
    if profile["_roles"]:
        raise LimitExceededException("Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
    put(tx, caller, INSTANCE_PROFILE, {**profile, "_roles": [role["RoleName"]]})
    return {}


def remove_role_from_instance_profile(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    profile, name = find(tx, caller, INSTANCE_PROFILE, params), params["RoleName"]
    if name not in profile["_roles"]:
        raise IAM.missing("role", name)
    put(tx, caller, INSTANCE_PROFILE, {**profile, "_roles": []})
    return {}


def list_instance_profiles_for_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name = find(tx, caller, ROLE, params)["RoleName"]
    profiles = {each["InstanceProfileName"]: each for each in every(tx, caller, INSTANCE_PROFILE) if name in each["_roles"]}
    found, token = PAGES.page(params, among(profiles))
    return {"InstanceProfiles": [response_view(tx, caller, INSTANCE_PROFILE, profile) for profile in found], **token}
