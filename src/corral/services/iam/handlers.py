"""The operations of IAM and their handlers."""

from __future__ import annotations

from corral.aws.handlers import handlers_in
from corral.operations.services import Handler
from corral.operations.stored_resources import handlers
from corral.services.iam import access_keys, instance_profiles, policies, roles, service_linked_roles, simulation, users

HANDLERS: dict[str, Handler] = handlers_in("iam", globals()) | {
    **handlers(roles.ROLE),
    **handlers(policies.POLICY),
    **handlers(instance_profiles.INSTANCE_PROFILE),
}
