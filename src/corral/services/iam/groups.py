"""Groups, and the users that belong to them."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet.shares import membership_changed
from corral.model.limits import GROUP as LIMITED_GROUP
from corral.model.limits import NO_LIMITS
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, ResourceType, create, find, get, put, response_view
from corral.services.iam import errors
from corral.services.iam.principal_policies import PrincipalKind, check_without_policies
from corral.services.iam.style import IAM, PAGES, check, identity_of, selects_path
from corral.services.iam.users import USER_TYPE
from corral.store import Store

GROUPS_MAX, GROUPS_OF_USER_MAX = 300, 10
POLICIES_MAX, INLINE_MAX = 10, 5_120  # attached policies, and characters of all inline policies without white space


def members_of(tx: Tx[Store], group: str) -> list[Document]:
    """The users that belong to a group, sorted by name."""
    found = tx.store.stored.containing("iam", USER_TYPE.name, "", f'"{group}"')
    return [user for _, user in found if group in user["_groups"]]


def _group_removable(tx: Tx[Store], caller: Caller, group: Document) -> None:
    if members_of(tx, group["GroupName"]):
        raise errors.DeleteConflictException("Cannot delete entity, must remove users from group first.")
    check_without_policies(group)


GROUP = ResourceType(
    IAM,
    "group",
    id="GroupName",
    one="Group",
    many="Groups",
    new=identity_of("AGPA", "group", "GroupId"),
    defaults={
        "_inline": {},  # inline policies by name
        "_attached": [],  # ARNs of managed policies
    },
    check=check,
    check_delete=_group_removable,
    deleted=lambda tx, caller, group: tx.store.limits.put(f"{LIMITED_GROUP}/{group['GroupName']}", NO_LIMITS),
    selects=selects_path,
    list="ListGroups",
    delete="DeleteGroup",
)
GROUPS = PrincipalKind(
    GROUP, "Group", INLINE_MAX, POLICIES_MAX, has_boundary=False,
    changeable=lambda tx, params, caller: find(tx, caller, GROUP, params),
)  # fmt: skip


def create_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = create(tx, caller, GROUP, params)
    if tx.store.stored.count("iam", GROUP.name, "") > GROUPS_MAX:
        raise errors.LimitExceededException(f"Cannot exceed quota for GroupsPerAccount: {GROUPS_MAX}")
    return {"Group": response_view(tx, caller, GROUP, group)}


def get_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group = find(tx, caller, GROUP, params)
    users = {user["UserName"]: _listed(tx, caller, USER_TYPE, user) for user in members_of(tx, group["GroupName"])}
    found, token = PAGES.page(params, among(users))
    return {"Group": response_view(tx, caller, GROUP, group), "Users": found, **token}


def update_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Change the name and the path of a group. Its users stay in it."""
    group = find(tx, caller, GROUP, params)
    check(params)
    before = str(group["GroupName"])
    name = str(params.get("NewGroupName", before))
    path = params.get("NewPath", group["Path"])
    changed = {**group, "GroupName": name, "Path": path, "Arn": f"arn:aws:iam::{caller.account}:group{path}{name}"}
    if name == before:
        put(tx, caller, GROUP, changed)
        return {}
    stored = tx.store.stored
    if not stored.add("iam", GROUP.name, "", name, changed, tx.now_s, stored.owner("iam", GROUP.name, "", before)):
        raise GROUP.style.exists(GROUP.name, name)
    for user in members_of(tx, before):
        put(tx, caller, USER_TYPE, {**user, "_groups": [name if each == before else each for each in user["_groups"]]})
    stored.drop("iam", GROUP.name, "", before)
    if (limits := tx.store.limits.of.get(f"{LIMITED_GROUP}/{before}")) is not None:
        tx.store.limits.put(f"{LIMITED_GROUP}/{name}", limits)
        tx.store.limits.put(f"{LIMITED_GROUP}/{before}", NO_LIMITS)
        membership_changed(tx)
    return {}


def add_user_to_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    group, user = find(tx, caller, GROUP, params)["GroupName"], find(tx, caller, USER_TYPE, params)
    if group in user["_groups"]:
        return {}
    if len(user["_groups"]) >= GROUPS_OF_USER_MAX:
        raise errors.LimitExceededException(f"Cannot exceed quota for GroupsPerUser: {GROUPS_OF_USER_MAX}")
    put(tx, caller, USER_TYPE, {**user, "_groups": [*user["_groups"], group]})
    membership_changed(tx)
    return {}


def remove_user_from_group(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Remove a user from a group. As on AWS, this succeeds if the user does not belong to it."""
    group, user = find(tx, caller, GROUP, params)["GroupName"], find(tx, caller, USER_TYPE, params)
    put(tx, caller, USER_TYPE, {**user, "_groups": [other for other in user["_groups"] if other != group]})
    membership_changed(tx)
    return {}


def list_groups_for_user(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    groups = {group["GroupName"]: _listed(tx, caller, GROUP, group) for group in groups_of(tx, caller, params)}
    found, token = PAGES.page(params, among(groups))
    return {"Groups": found, **token}


def groups_of(tx: Tx[Store], caller: Caller, params: Params) -> list[Document]:
    """The groups to which the user in a request belongs, sorted by name."""
    names = sorted(find(tx, caller, USER_TYPE, params)["_groups"])
    return [group for name in names if (group := get(tx, caller, GROUP, name)) is not None]


def _listed(tx: Tx[Store], caller: Caller, type_: ResourceType, document: Document) -> Document:
    view = response_view(tx, caller, type_, document)
    return {member: value for member, value in view.items() if member not in type_.unlisted}
