"""The operations of IAM and their handlers."""

from __future__ import annotations

from corral.aws.handlers import handlers_in
from corral.operations.services import Handler
from corral.operations.stored_resources import handlers
from corral.services.iam import (
    access_keys,
    account,
    groups,
    instance_profiles,
    last_accessed,
    policies,
    roles,
    service_linked_roles,
    simulation,
    users,
)
from corral.services.iam.principal_policies import policy_handlers

HANDLERS: dict[str, Handler] = handlers_in("iam", globals()) | {
    **handlers(users.USER_TYPE),
    **handlers(groups.GROUP),
    **handlers(roles.ROLE),
    **handlers(policies.POLICY),
    **handlers(instance_profiles.INSTANCE_PROFILE),
    **policy_handlers(users.USERS),
    **policy_handlers(groups.GROUPS),
    **policy_handlers(roles.ROLES),
}
# The details of many users and policies take long.
HEAVY = frozenset({"GetAccountAuthorizationDetails"})
