"""The permissions that operations of IAM need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, pass_role, request_tags, role_arn
from corral.access.roles import find_user
from corral.core.transactions import Tx
from corral.decide.policies.policy import NO_RESOURCE, UNKNOWN_RESOURCE
from corral.store import Store

# Operations that concern the user that sends the request, if it does not name a user.
OF_CALLER = frozenset({"ChangePassword", "CreateAccessKey", "DeleteAccessKey", "GetUser", "ListAccessKeys", "UpdateAccessKey"})


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    path, context = params.get("Path", "/"), request_tags(params)
    if params.get("PolicyArn"):
        context = {**context, "iam:policyarn": (params["PolicyArn"],)}
    if "RoleName" in params and operation != "AddRoleToInstanceProfile" and operation != "RemoveRoleFromInstanceProfile":
        name = params["RoleName"]
        created = f"arn:aws:iam::{caller.account}:role{path}{name}"
        arns = [created if operation == "CreateRole" else role_arn(tx, caller, name)]
    elif "UserName" in params:
        name = params["UserName"]
        created = f"arn:aws:iam::{caller.account}:user{path}{name}"
        arns = [created if operation == "CreateUser" else (find_user(tx, name) or {"Arn": created})["Arn"]]
    elif operation in OF_CALLER:  # without a name, the user is the caller
        arns = [caller.principal.arn]
    elif "PolicyArn" in params:
        arns = [params["PolicyArn"]]
    elif "PolicyName" in params:
        arns = [f"arn:aws:iam::{caller.account}:policy{path}{params['PolicyName']}"]
    elif "InstanceProfileName" in params:
        arns = [UNKNOWN_RESOURCE]
    else:
        arns = [NO_RESOURCE if operation.startswith("List") else UNKNOWN_RESOURCE]
    needed = on_resources(f"iam:{operation}", arns, context)
    if operation == "AddRoleToInstanceProfile":
        needed.append(pass_role(tx, caller, params["RoleName"], "ec2"))
    return needed
