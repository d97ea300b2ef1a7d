"""The permissions that operations of IAM need, and the facts about users, groups, roles, profiles and policies for policies."""

from __future__ import annotations

from contextlib import suppress

from corral.access.aws_policies import AWS_POLICY
from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, pass_role, request_tags, with_tags
from corral.access.resources import ResourceFacts
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import UNKNOWN_RESOURCE
from corral.operations.listings import Listed
from corral.services.iam.service_linked_roles import service_linked_role_name
from corral.store import Store
from corral.store.stored_resources import Document

# Operations that concern the user that sends the request, if it does not name a user.
OF_CALLER = frozenset({"ChangePassword", "CreateAccessKey", "DeleteAccessKey", "GetUser", "ListAccessKeys", "UpdateAccessKey"})
# Request member → the type of the resource that it names. The first member of a request counts: AddUserToGroup concerns the group,
# AddRoleToInstanceProfile the profile, and AttachRolePolicy the role.
NAMED_BY = {
    "InstanceProfileName": "instance-profile",
    "GroupName": "group",
    "RoleName": "role",
    "UserName": "user",
}
ARN_MEMBERS = ("PolicyArn", "PolicySourceArn", "Arn")  # members with the ARN of the resource
CREATED = {
    "CreateGroup",
    "CreateInstanceProfile",
    "CreatePolicy",
    "CreateRole",
    "CreateUser",
}  # operations whose request has a path
TAGGING = {  # operations that can create a resource with tags → the permission to tag it
    "CreateInstanceProfile": "iam:TagInstanceProfile", "CreatePolicy": "iam:TagPolicy", "CreateRole": "iam:TagRole",
    "CreateUser": "iam:TagUser",
}  # fmt: skip
LINKED_ROLES = "aws-service-role/"


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str | None:
    """The owner of an entity. The policies of AWS have none."""
    if element["Arn"].startswith(AWS_POLICY):
        return None
    type_, _, path = element["Arn"].partition(f"arn:aws:iam::{caller.account}:")[2].partition("/")
    return tx.store.stored.owner("iam", type_, "", path.rpartition("/")[2])


LISTED = {
    "GetAccountAuthorizationDetails": Listed(("UserDetailList", "GroupDetailList", "RoleDetailList", "Policies"), _owner),
    "ListGroups": Listed(("Groups",), _owner),
    "ListInstanceProfiles": Listed(("InstanceProfiles",), _owner),
    "ListPolicies": Listed(("Policies",), _owner),
    "ListRoles": Listed(("Roles",), _owner),
    "ListUsers": Listed(("Users",), _owner),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    arns = _arns(tx, caller, operation, params)
    needed = on_resources(f"iam:{operation}", arns, _context(tx, operation, params, arns))
    if operation in TAGGING:
        needed += with_tags(TAGGING[operation], arns, params)
    if operation == "AddRoleToInstanceProfile":
        needed.append(pass_role(tx, caller, params["RoleName"], "ec2"))
    return needed


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    """The owner and the tags. The trust policy of a role is no policy for these operations."""
    type_, _, path = permission.resource.partition(f"arn:aws:iam::{caller.account}:")[2].partition("/")
    name = path.rpartition("/")[2]
    found = tx.store.stored.get("iam", type_, "", name) if name else None
    if found is None or found["Arn"] != permission.resource:
        return ResourceFacts()
    return ResourceFacts(tx.store.stored.owner("iam", type_, "", name), {tag["Key"]: tag["Value"] for tag in found.get("Tags", ())})


def _arns(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[str]:
    """The ARN of the resource that the handler will find. It has the path that is stored, because handlers find it by its name."""
    account = f"arn:aws:iam::{caller.account}"
    for member, type_ in NAMED_BY.items():
        if member in params:
            arn = _arn_of(tx, caller, operation, type_, params[member], params)
            moved = _moved(arn, params)
            return [arn] if moved == arn else [arn, moved]
    if operation == "CreatePolicy":
        return [f"{account}:policy{params.get('Path') or '/'}{params.get('PolicyName', '')}"]
    if operation == "CreateServiceLinkedRole":
        name = "*"
        with suppress(ApiError, KeyError):  # the handler raises the error later, if the caller has the permissions
            name = service_linked_role_name(params)
        return [f"{account}:role/{LINKED_ROLES}{params.get('AWSServiceName', '')}/{name}"]
    if operation == "GetServiceLinkedRoleDeletionStatus":
        _, found, place = params.get("DeletionTaskId", "").partition(f"task/{LINKED_ROLES}")
        return [f"{account}:role/{LINKED_ROLES}{place.rpartition('/')[0]}" if found else UNKNOWN_RESOURCE]
    if operation == "GetAccessKeyLastUsed":
        key = tx.store.access_keys.get(params.get("AccessKeyId", ""))
        return [_arn_of(tx, caller, operation, "user", key.user, params) if key is not None else UNKNOWN_RESOURCE]
    given = next((params[member] for member in ARN_MEMBERS if params.get(member)), None)
    if given is not None and operation != "ListPolicies":
        return [given]
    return [caller.principal.arn] if operation in OF_CALLER else []


def _arn_of(tx: Tx[Store], caller: Caller, operation: str, type_: str, name: str, params: Params) -> str:
    found: Document | None = tx.store.stored.get("iam", type_, "", name)
    if found is not None:
        return str(found["Arn"])
    path = (params.get("Path") or "/") if operation in CREATED else "/"
    return f"arn:aws:iam::{caller.account}:{type_}{path}{name}"


def _moved(arn: str, params: Params) -> str:
    """The ARN that a user or a group will have after UpdateUser or UpdateGroup. As on AWS, these need permissions for both."""
    start, _, resource = arn.partition("/")
    path, _, name = resource.rpartition("/")
    new_path = params.get("NewPath") or (f"/{path}/" if path else "/")
    return f"{start}{new_path}{params.get('NewGroupName') or params.get('NewUserName') or name}"


def _context(tx: Tx[Store], operation: str, params: Params, arns: list[str]) -> Context:
    """The condition keys iam:PolicyARN, iam:AWSServiceName and iam:PermissionsBoundary.

    The boundary is that of the request, or else that of the user or the role that the request changes.
    """
    context = dict(request_tags(params))
    if params.get("PolicyArn"):
        context["iam:policyarn"] = (params["PolicyArn"],)
    if params.get("AWSServiceName"):
        context["iam:awsservicename"] = (params["AWSServiceName"],)
    boundary = params.get("PermissionsBoundary")
    for member in ("RoleName", "UserName") if boundary is None and arns else ():
        found = tx.store.stored.get("iam", NAMED_BY[member], "", params[member]) if params.get(member) else None
        boundary = found.get("PermissionsBoundary") if found is not None else None
        if boundary is not None:
            break
    return {**context, "iam:permissionsboundary": (boundary,)} if boundary is not None else context
