"""The operations of IAM and their handlers."""

from __future__ import annotations

from corral.operations.services import Handler
from corral.operations.stored_resources import handlers
from corral.services.iam import instance_profiles, policies, roles, simulation

HANDLERS: dict[str, Handler] = {
    **handlers(roles.ROLE),
    **handlers(policies.POLICY),
    **handlers(instance_profiles.INSTANCE_PROFILE),
    "CreateServiceLinkedRole": roles.create_service_linked_role,
    "DeleteRolePermissionsBoundary": roles.delete_role_permissions_boundary,
    "PutRolePolicy": roles.put_role_policy,
    "GetRolePolicy": roles.get_role_policy,
    "DeleteRolePolicy": roles.delete_role_policy,
    "ListRolePolicies": roles.list_role_policies,
    "GetPolicy": policies.get_policy,
    "ListPolicies": policies.list_policies,
    "CreatePolicyVersion": policies.create_policy_version,
    "GetPolicyVersion": policies.get_policy_version,
    "ListPolicyVersions": policies.list_policy_versions,
    "DeletePolicyVersion": policies.delete_policy_version,
    "SetDefaultPolicyVersion": policies.set_default_policy_version,
    "AttachRolePolicy": policies.attach_role_policy,
    "DetachRolePolicy": policies.detach_role_policy,
    "ListAttachedRolePolicies": policies.list_attached_role_policies,
    "ListEntitiesForPolicy": policies.list_entities_for_policy,
    "SimulateCustomPolicy": simulation.simulate_custom_policy,
    "SimulatePrincipalPolicy": simulation.simulate_principal_policy,
    "AddRoleToInstanceProfile": instance_profiles.add_role_to_instance_profile,
    "RemoveRoleFromInstanceProfile": instance_profiles.remove_role_from_instance_profile,
    "ListInstanceProfilesForRole": instance_profiles.list_instance_profiles_for_role,
}
