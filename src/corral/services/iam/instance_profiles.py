"""Instance profiles and their roles."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, ResourceType, create, every, find, put, response_view
from corral.services.iam.errors import DeleteConflictException, LimitExceededException, NoSuchEntityException
from corral.services.iam.roles import ROLE, changeable_role, created_role
from corral.services.iam.style import IAM, PAGES, check, identity_of, selects_path
from corral.store import Store


def _profile_view(tx: Tx[Store], caller: Caller, profile: Document) -> Document:
    roles = [find(tx, caller, ROLE, {"RoleName": name}) for name in profile["_roles"]]
    return {**profile, "Roles": [_without_tags(created_role(tx, caller, role)) for role in roles], "Tags": profile.get("Tags", [])}


def _without_tags(view: Document) -> Document:
    return {member: value for member, value in view.items() if member != "Tags"}


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
    get="GetInstanceProfile",
    list="ListInstanceProfiles",
    delete="DeleteInstanceProfile",
    tag="TagInstanceProfile",
    untag="UntagInstanceProfile",
    list_tags="ListInstanceProfileTags",
)


def create_instance_profile(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    profile = response_view(tx, caller, INSTANCE_PROFILE, create(tx, caller, INSTANCE_PROFILE, params))
    return {"InstanceProfile": profile if profile["Tags"] else _without_tags(profile)}


def add_role_to_instance_profile(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    profile, role = find(tx, caller, INSTANCE_PROFILE, params), changeable_role(tx, params, caller)
    if profile["_roles"]:
        raise LimitExceededException("Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
    put(tx, caller, INSTANCE_PROFILE, {**profile, "_roles": [role["RoleName"]]})
    return {}


def remove_role_from_instance_profile(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    profile, name = find(tx, caller, INSTANCE_PROFILE, params), find(tx, caller, ROLE, params)["RoleName"]
    if name not in profile["_roles"]:
        raise NoSuchEntityException(f"Role {name} in Instance Profile {profile['InstanceProfileName']} cannot be found.")
    put(tx, caller, INSTANCE_PROFILE, {**profile, "_roles": []})
    return {}


def list_instance_profiles_for_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name = find(tx, caller, ROLE, params)["RoleName"]
    profiles = {each["InstanceProfileName"]: each for each in every(tx, caller, INSTANCE_PROFILE) if name in each["_roles"]}
    found, token = PAGES.page(params, among(profiles))
    return {"InstanceProfiles": [_without_tags(response_view(tx, caller, INSTANCE_PROFILE, each)) for each in found], **token}
