"""Users."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.fleet import passing
from corral.model.limits import NO_LIMITS
from corral.model.principal import USER, owner_of_user
from corral.operations.stored_resources import Document, Params, ResourceType, create, find, put, response_view
from corral.services.iam import errors
from corral.services.iam.principal_policies import PrincipalKind, check_boundary, check_without_policies, shown
from corral.services.iam.style import IAM_ROLES, check, identity_of, selects_path
from corral.store import Store
from corral.store.iam_index import entity_of

USERS_MAX = 5_000
POLICIES_MAX, INLINE_MAX = 10, 2_048  # attached policies, and characters of all inline policies without white space


def _user_removable(tx: Tx[Store], caller: Caller, user: Document) -> None:
    if user["_groups"]:
        raise errors.DeleteConflictException("Cannot delete entity, must remove users from group first.")
    check_without_policies(user)
    if tx.store.access_keys.count(user["UserName"]):
        raise errors.DeleteConflictException("Cannot delete entity, must delete access keys first.")


def _forget_user(tx: Tx[Store], caller: Caller, user: Document) -> None:
    tx.store.access_keys.forget_uses(entity_of(USER, user["UserName"]))
    tx.store.limits.put(owner_of_user(user["UserName"]), NO_LIMITS)


USER_TYPE = ResourceType(
    IAM_ROLES,
    USER,
    id="UserName",
    one="User",
    many="Users",
    new=identity_of("AIDA", "user", "UserId"),
    members=("PermissionsBoundary",),
    defaults={
        "_inline": {},  # inline policies by name
        "_attached": [],  # ARNs of managed policies
        "_groups": [],  # names of the groups to which the user belongs
    },
    unlisted=("Tags", "PermissionsBoundary"),
    check=check,
    check_delete=_user_removable,
    deleted=_forget_user,
    selects=selects_path,
    view=lambda tx, caller, user: shown(user),
    list="ListUsers",
    delete="DeleteUser",
    tag="TagUser",
    untag="UntagUser",
    list_tags="ListUserTags",
)
USERS = PrincipalKind(
    USER_TYPE, "User", INLINE_MAX, POLICIES_MAX, has_boundary=True,
    changeable=lambda tx, params, caller: find(tx, caller, USER_TYPE, params),
)  # fmt: skip


def named_user(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    """Return the user that a request names, or else the user that sends the request."""
    if "UserName" not in params:
        if caller.principal.kind != USER:
            raise errors.ValidationError("Must specify userName when calling with non-User credentials")
        params = {"UserName": caller.principal.name}
    return find(tx, caller, USER_TYPE, params)


def create_user(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if "PermissionsBoundary" in params:
        check_boundary(tx, params["PermissionsBoundary"])
    former = passing.record_of(tx, params["UserName"])
    if former is not None and passing.is_passing(former):
        raise errors.ConcurrentModificationException(
            f"What the removed user {params['UserName']} has left still passes to {former['to']}: try again in a moment."
        )
    user = create(tx, caller, USER_TYPE, params)
    if former is not None and former["to"]:
        passing.forget(tx, params["UserName"])
    if tx.store.stored.count("iam", USER, "") > USERS_MAX:
        raise errors.LimitExceededException(f"Cannot exceed quota for UsersPerAccount: {USERS_MAX}")
    return {"User": response_view(tx, caller, USER_TYPE, user)}


def get_user(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Return a user. For the root user, which has no name, return the account."""
    if caller.is_root and "UserName" not in params:
        return {"User": {"Path": "/", "UserId": caller.account, "Arn": caller.principal.arn}}
    return {"User": response_view(tx, caller, USER_TYPE, named_user(tx, params, caller))}


def update_user(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Change the path of a user. A name cannot change, because it is the owner of resources."""
    user = find(tx, caller, USER_TYPE, params)
    check(params)
    name, path = user["UserName"], params.get("NewPath", user["Path"])
    if params.get("NewUserName", name) != name:
        raise errors.ValidationError(
            f"Corral cannot rename the user {name}: the name is stored as the owner of the user's resources. Create another user."
        )
    put(tx, caller, USER_TYPE, {**user, "Path": path, "Arn": f"arn:aws:iam::{caller.account}:user{path}{name}"})
    return {}
