"""The permissions that operations of STS need."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, assume_role_context, request_tags, role_arn
from corral.access.resources import ResourceFacts
from corral.access.roles import find_role
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import NO_RESOURCE
from corral.store import Store


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """The permission for the session, and those to give it tags and a source identity. The role must trust the caller for all."""
    if operation == "AssumeRole":
        resource = role_arn(tx, caller, params["RoleArn"])
    elif operation == "GetFederationToken":
        resource = f"arn:aws:sts::{caller.account}:federated-user/{params.get('Name', '')}"
    else:
        return [Permission(f"sts:{operation}", NO_RESOURCE)]
    context: Context = {**assume_role_context(params), **request_tags(params)}
    if params.get("TransitiveTagKeys"):
        context = {**context, "sts:transitivetagkeys": tuple(params["TransitiveTagKeys"])}
    actions = [operation]
    if params.get("Tags") or params.get("TransitiveTagKeys"):
        actions.append("TagSession")
    if params.get("SourceIdentity"):
        actions.append("SetSourceIdentity")
    return [Permission(f"sts:{each}", resource, context) for each in actions]


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    """The facts of a role. Its policy is its trust policy."""
    name = permission.resource.rpartition("/")[2]
    role = find_role(tx, name)
    if role is None or role["Arn"] != permission.resource:
        return ResourceFacts()
    tags = {tag["Key"]: tag["Value"] for tag in role.get("Tags", ())}
    return ResourceFacts(tx.store.stored.owner("iam", "role", "", name), tags, role["AssumeRolePolicyDocument"])
