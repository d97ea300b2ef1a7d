"""AWS IAM: roles, policies and instance profiles, stored only. Policies are not enforced."""

from __future__ import annotations

import hashlib
import re
from base64 import b32encode
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson

from corral.core import Tx
from corral.errors import api_error
from corral.services.caller import Caller
from corral.services.pages import Pages, among
from corral.services.stored import (
    Document,
    Handler,
    Params,
    ResourceType,
    Selects,
    ServiceStyle,
    Update,
    create,
    every,
    find,
    handlers,
    put,
    shown,
)
from corral.services.tags import TagRules
from corral.store import Store

DeleteConflictException = api_error("DeleteConflictException", 409)
EntityAlreadyExistsException = api_error("EntityAlreadyExistsException", 409)
InvalidInputException = api_error("InvalidInputException")
LimitExceededException = api_error("LimitExceededException", 409)
MalformedPolicyDocumentException = api_error("MalformedPolicyDocumentException")
NoSuchEntityException = api_error("NoSuchEntityException", 404)
ValidationError = api_error("ValidationError")

NAME = re.compile(r"[\w+=,.@-]{1,128}", re.ASCII)
PATH = re.compile(r"/|/[!-\x7f]{0,510}/")
VERSIONS_MAX = 5
AWS_POLICY = "arn:aws:iam::aws:policy/"
SERVICE_ROLES = {  # names that are not simply made from the service's
    "autoscaling.amazonaws.com": "AutoScaling",
    "batch.amazonaws.com": "Batch",
    "ecs.amazonaws.com": "ECS",
    "ecs.application-autoscaling.amazonaws.com": "ApplicationAutoScaling_ECSService",
    "spot.amazonaws.com": "EC2Spot",
}
NAME_MEMBERS = ("RoleName", "PolicyName", "InstanceProfileName")
DOCUMENT_MEMBERS = ("AssumeRolePolicyDocument", "PolicyDocument")
EXISTS = {
    "role": "Role with name {} already exists.",
    "policy": "A policy called {} already exists. Duplicate names are not allowed.",
    "instance-profile": "Instance Profile {} already exists.",
}
MISSING = {
    "role": "The role with name {} cannot be found.",
    "policy": "Policy {} does not exist or is not attachable.",
    "instance-profile": "Instance Profile {} cannot be found.",
}


def _check(params: Params) -> None:
    for member in NAME_MEMBERS:
        if member in params and not NAME.fullmatch(params[member]):
            raise ValidationError(
                f"The specified value for {_lower(member)} is invalid. It must contain only alphanumeric characters and/or the "
                "following: +=,.@_-"
            )
    if not PATH.fullmatch(params.get("Path", "/")):
        raise ValidationError(
            "The specified value for path is invalid. It must begin and end with / and contain only ASCII characters."
        )
    if not 3600 <= params.get("MaxSessionDuration", 3600) <= 43_200:
        raise ValidationError("The requested MaxSessionDuration must be between 3600 and 43200 seconds.")
    for member in DOCUMENT_MEMBERS:
        if member in params:
            _check_policy(params[member])


def _check_policy(text: str) -> None:
    try:
        document = orjson.loads(text)
    except ValueError:
        raise MalformedPolicyDocumentException("Syntax errors in policy.") from None
    if not isinstance(document, dict) or "Statement" not in document:
        raise MalformedPolicyDocumentException("Syntax errors in policy: it has no Statement.")


def _identity(prefix: str, word: str, member: str) -> Callable[[Tx[Store], Params, Caller], Document]:
    """Id, ARN and date of a new one: `AROA…`, `arn:aws:iam::ACCOUNT:role/PATH/NAME`."""

    def identity(tx: Tx[Store], params: Params, caller: Caller) -> Document:
        path = params.get("Path", "/")
        return {
            "Path": path,
            member: prefix + b32encode(bytes.fromhex(tx.ids.hex32())).decode()[:17],
            "Arn": f"arn:aws:iam::{caller.account}:{word}{path}{params[member.removesuffix('Id') + 'Name']}",
            "CreateDate": tx.now_s,
        }

    return identity


def _on_path(params: Params, document: Document) -> bool:
    return str(document["Path"]).startswith(params.get("PathPrefix", "/"))


def _selects_path(tx: Tx[Store], caller: Caller, params: Params) -> Selects:
    return lambda document: _on_path(params, document)


def _lower(member: str) -> str:
    return member[0].lower() + member[1:]


PAGES = Pages(ValidationError, limit="MaxItems", token="Marker", next_token="Marker", truncated="IsTruncated")
IAM = ServiceStyle(
    "iam",
    exists=lambda word, name: EntityAlreadyExistsException(EXISTS[word].format(name)),
    missing=lambda word, name: NoSuchEntityException(MISSING[word].format(name)),
    pages=PAGES,
    tags=TagRules(
        InvalidInputException,
        errors={"count": LimitExceededException, "key": ValidationError, "value": ValidationError, "characters": ValidationError},
        texts={
            "count": "The number of tags has reached the maximum limit of {max}.",
            "duplicate": "Duplicate tag keys found. Please note that Tag keys are case insensitive.",
        },
        keys_ignore_case=True,
    ),
    regional=False,
)


# Roles


def _role_view(tx: Tx[Store], caller: Caller, role: Document) -> Document:
    view = {**role, "AssumeRolePolicyDocument": quote(role["AssumeRolePolicyDocument"], safe=""), "RoleLastUsed": {}}
    if "PermissionsBoundary" in role:
        boundary = {"PermissionsBoundaryType": "PermissionsBoundaryPolicy", "PermissionsBoundaryArn": role["PermissionsBoundary"]}
        view["PermissionsBoundary"] = boundary
    return view


def _role_removable(tx: Tx[Store], caller: Caller, role: Document) -> None:
    if role["_attached"]:
        raise DeleteConflictException("Cannot delete entity, must detach all policies first.")
    if role["_inline"]:
        raise DeleteConflictException("Cannot delete entity, must delete policies first.")
    if any(role["RoleName"] in profile["_roles"] for profile in every(tx, caller, PROFILE)):
        raise DeleteConflictException("Cannot delete entity, must remove roles from instance profile first.")


ROLE = ResourceType(
    IAM,
    "role",
    id="RoleName",
    one="Role",
    many="Roles",
    new=_identity("AROA", "role", "RoleId"),
    members=("AssumeRolePolicyDocument", "Description", "MaxSessionDuration", "PermissionsBoundary"),
    defaults={"MaxSessionDuration": 3600, "_inline": {}, "_attached": []},  # policies by name; ARNs of policies
    unlisted=("Tags", "PermissionsBoundary", "RoleLastUsed"),
    check=_check,
    check_delete=_role_removable,
    selects=_selects_path,
    view=_role_view,
    create="CreateRole",
    get="GetRole",
    list="ListRoles",
    delete="DeleteRole",
    update={
        "UpdateRole": Update({"Description": "Description", "MaxSessionDuration": "MaxSessionDuration"}),
        "UpdateRoleDescription": Update({"Description": "Description"}, returns_resource=True),
        "UpdateAssumeRolePolicy": Update({"PolicyDocument": "AssumeRolePolicyDocument"}),
    },
    tag="TagRole",
    untag="UntagRole",
    list_tags="ListRoleTags",
)


def find_role(tx: Tx[Store], name: str) -> Document | None:
    """A role as it is kept, for whoever acts in it."""
    return tx.store.stored.get(IAM.service, ROLE.name, "", name)


def create_service_linked_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    service = params["AWSServiceName"]
    name = "AWSServiceRoleFor" + SERVICE_ROLES.get(service, service.partition(".")[0].title())
    if "CustomSuffix" in params:
        name += f"_{params['CustomSuffix']}"
    trust = {"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}
    wanted = {
        "RoleName": name,
        "Path": f"/aws-service-role/{service}/",
        "AssumeRolePolicyDocument": orjson.dumps({"Version": "2012-10-17", "Statement": [trust]}).decode(),
        **({"Description": params["Description"]} if "Description" in params else {}),
    }
    try:
        role = create(tx, caller, ROLE, wanted)
    except EntityAlreadyExistsException:
        raise InvalidInputException(
            f"Service role name {name} has been taken in this account, please try a different suffix."
        ) from None
    return {"Role": shown(tx, caller, ROLE, role)}


def put_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    _check(params)
    put(tx, caller, ROLE, {**role, "_inline": {**role["_inline"], params["PolicyName"]: params["PolicyDocument"]}})
    return {}


def get_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, name = _with_inline(tx, params, caller)
    return {"RoleName": role["RoleName"], "PolicyName": name, "PolicyDocument": quote(role["_inline"][name], safe="")}


def delete_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, name = _with_inline(tx, params, caller)
    put(tx, caller, ROLE, {**role, "_inline": {other: text for other, text in role["_inline"].items() if other != name}})
    return {}


def list_role_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    found, token = PAGES.page(params, among({name: name for name in role["_inline"]}))
    return {"PolicyNames": found, **token}


def _with_inline(tx: Tx[Store], params: Params, caller: Caller) -> tuple[Document, str]:
    role, name = find(tx, caller, ROLE, params), params["PolicyName"]
    if name not in role["_inline"]:
        raise NoSuchEntityException(f"The role policy with name {name} cannot be found.")
    return role, name


# Managed policies. Those of AWS itself are known by their ARN alone: attached and shown, without their documents.


def _attachments(tx: Tx[Store], caller: Caller) -> Counter[str]:
    return Counter(policy_arn for role in every(tx, caller, ROLE) for policy_arn in role["_attached"])


def _policy_view(tx: Tx[Store], caller: Caller, policy: Document) -> Document:
    return {**policy, "AttachmentCount": _attachments(tx, caller)[policy["Arn"]]}


def _policy_removable(tx: Tx[Store], caller: Caller, policy: Document) -> None:
    if _attachments(tx, caller)[policy["Arn"]]:
        raise DeleteConflictException("Cannot delete a policy attached to entities.")
    if len(policy["_versions"]) > 1:
        raise DeleteConflictException(
            "This policy has more than one version. Before you delete a policy, you must delete the policy's versions. "
            "The default version is deleted with the policy."
        )


POLICY = ResourceType(
    IAM,
    "policy",
    id="PolicyName",
    one="Policy",
    many="Policies",
    new=lambda tx, params, caller: {
        **_identity("ANPA", "policy", "PolicyId")(tx, params, caller),
        "UpdateDate": tx.now_s,
        "DefaultVersionId": "v1",
        "_versions": {"v1": {"document": params["PolicyDocument"], "created_at": tx.now_s}},
        "_last_version": 1,
    },
    members=("Description",),
    defaults={"PermissionsBoundaryUsageCount": 0, "IsAttachable": True},
    by_arn=("PolicyArn", "Arn"),
    check=_check,
    check_delete=_policy_removable,
    view=_policy_view,
    create="CreatePolicy",
    delete="DeletePolicy",
    tag="TagPolicy",
    untag="UntagPolicy",
    list_tags="ListPolicyTags",
)


def _aws_policy(policy_arn: str) -> Document:
    path, _, name = policy_arn.removeprefix(AWS_POLICY).rpartition("/")
    digest = hashlib.sha256(policy_arn.encode()).digest()
    return {
        "PolicyName": name,
        "PolicyId": "ANPA" + b32encode(digest).decode()[:17],
        "Arn": policy_arn,
        "Path": f"/{path}/" if path else "/",
        "DefaultVersionId": "v1",
        "PermissionsBoundaryUsageCount": 0,
        "IsAttachable": True,
    }


def _policy(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    """A policy of AWS or one made here."""
    policy_arn = params["PolicyArn"]
    if policy_arn.startswith(AWS_POLICY) and NAME.fullmatch(policy_arn.rpartition("/")[2]):
        return _aws_policy(policy_arn)
    return find(tx, caller, POLICY, params)


def get_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return {"Policy": shown(tx, caller, POLICY, _policy(tx, params, caller))}


def list_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    """Own policies, and those of AWS that are attached to something: the others are not known here by name."""
    attached = _attachments(tx, caller)
    known = {policy["PolicyName"]: policy for policy in every(tx, caller, POLICY)} if params.get("Scope") != "AWS" else {}
    if params.get("Scope") != "Local":
        known |= {policy_arn: _aws_policy(policy_arn) for policy_arn in attached if policy_arn.startswith(AWS_POLICY)}
    chosen = {
        name: policy
        for name, policy in known.items()
        if _on_path(params, policy) and (attached[policy["Arn"]] or not params.get("OnlyAttached"))
    }
    found, token = PAGES.page(params, among(chosen))
    hidden = ("Tags", "Description")
    listed = [{member: value for member, value in policy.items() if member not in hidden and member[0] != "_"} for policy in found]
    return {"Policies": [{**policy, "AttachmentCount": attached[policy["Arn"]]} for policy in listed], **token}


def create_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = find(tx, caller, POLICY, params)
    _check(params)
    if len(policy["_versions"]) >= VERSIONS_MAX:
        raise LimitExceededException(
            f"A managed policy can have up to {VERSIONS_MAX} versions. Before you create a new version, you must delete an "
            "existing version."
        )
    number = policy["_last_version"] + 1
    version = {"document": params["PolicyDocument"], "created_at": tx.now_s}
    policy = {
        **policy,
        "_versions": {**policy["_versions"], f"v{number}": version},
        "_last_version": number,
        "UpdateDate": tx.now_s,
    }
    if params.get("SetAsDefault"):
        policy["DefaultVersionId"] = f"v{number}"
    put(tx, caller, POLICY, policy)
    return {"PolicyVersion": _version(policy, f"v{number}", document=False)}


def get_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    if params["PolicyArn"].startswith(AWS_POLICY):
        raise NoSuchEntityException(f"Corral does not have the documents of AWS's own policies: {params['PolicyArn']}.")
    policy = _with_version(tx, params, caller)
    return {"PolicyVersion": _version(policy, params["VersionId"], document=True)}


def list_policy_versions(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = find(tx, caller, POLICY, params)
    by_number = {f"{int(name[1:]):09d}": _version(policy, name, document=False) for name in policy["_versions"]}
    found, token = PAGES.page(params, among(by_number))
    return {"Versions": found, **token}


def delete_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = _with_version(tx, params, caller)
    if params["VersionId"] == policy["DefaultVersionId"]:
        raise DeleteConflictException("Cannot delete the default version of a policy.")
    left = {name: version for name, version in policy["_versions"].items() if name != params["VersionId"]}
    put(tx, caller, POLICY, {**policy, "_versions": left})
    return {}


def set_default_policy_version(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy = _with_version(tx, params, caller)
    put(tx, caller, POLICY, {**policy, "DefaultVersionId": params["VersionId"], "UpdateDate": tx.now_s})
    return {}


def _with_version(tx: Tx[Store], params: Params, caller: Caller) -> Document:
    policy = find(tx, caller, POLICY, params)
    if params["VersionId"] not in policy["_versions"]:
        raise NoSuchEntityException(
            f"Policy {params['PolicyArn']} version {params['VersionId']} does not exist or is not attachable."
        )
    return policy


def _version(policy: Document, name: str, *, document: bool) -> Document:
    version = policy["_versions"][name]
    return {
        "VersionId": name,
        "IsDefaultVersion": name == policy["DefaultVersionId"],
        "CreateDate": version["created_at"],
        **({"Document": quote(version["document"], safe="")} if document else {}),
    }


# What is attached to what


def attach_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, policy = find(tx, caller, ROLE, params), _policy(tx, params, caller)
    if policy["Arn"] not in role["_attached"]:
        put(tx, caller, ROLE, {**role, "_attached": [*role["_attached"], policy["Arn"]]})
    return {}


def detach_role_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role, policy_arn = find(tx, caller, ROLE, params), params["PolicyArn"]
    if policy_arn not in role["_attached"]:
        raise NoSuchEntityException(f"Policy {policy_arn} was not found.")
    put(tx, caller, ROLE, {**role, "_attached": [other for other in role["_attached"] if other != policy_arn]})
    return {}


def list_attached_role_policies(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    role = find(tx, caller, ROLE, params)
    policies = {policy_arn: _policy(tx, {"PolicyArn": policy_arn}, caller) for policy_arn in role["_attached"]}
    named = {
        policy_arn: {"PolicyName": policy["PolicyName"], "PolicyArn": policy_arn}
        for policy_arn, policy in policies.items()
        if _on_path(params, policy)
    }
    found, token = PAGES.page(params, among(named))
    return {"AttachedPolicies": found, **token}


def list_entities_for_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    policy_arn = _policy(tx, params, caller)["Arn"]
    wanted = params.get("EntityFilter", "Role") == "Role" and params.get("PolicyUsageFilter") != "PermissionsBoundary"
    roles = {
        role["RoleName"]: {"RoleName": role["RoleName"], "RoleId": role["RoleId"]}
        for role in (every(tx, caller, ROLE) if wanted else ())
        if policy_arn in role["_attached"] and _on_path(params, role)
    }
    found, token = PAGES.page(params, among(roles))
    return {"PolicyGroups": [], "PolicyUsers": [], "PolicyRoles": found, **token}


# Instance profiles


def _profile_view(tx: Tx[Store], caller: Caller, profile: Document) -> Document:
    roles = [find(tx, caller, ROLE, {"RoleName": name}) for name in profile["_roles"]]
    return {**profile, "Roles": [shown(tx, caller, ROLE, role) for role in roles]}


def _profile_removable(tx: Tx[Store], caller: Caller, profile: Document) -> None:
    if profile["_roles"]:
        raise DeleteConflictException("Cannot delete entity, must remove roles from instance profile first.")


PROFILE = ResourceType(
    IAM,
    "instance-profile",
    id="InstanceProfileName",
    one="InstanceProfile",
    many="InstanceProfiles",
    new=_identity("AIPA", "instance-profile", "InstanceProfileId"),
    defaults={"_roles": []},
    unlisted=("Tags",),
    check=_check,
    check_delete=_profile_removable,
    selects=_selects_path,
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
    profile, role = find(tx, caller, PROFILE, params), find(tx, caller, ROLE, params)
    if profile["_roles"]:
        raise LimitExceededException("Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
    put(tx, caller, PROFILE, {**profile, "_roles": [role["RoleName"]]})
    return {}


def remove_role_from_instance_profile(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    profile, name = find(tx, caller, PROFILE, params), params["RoleName"]
    if name not in profile["_roles"]:
        raise IAM.missing("role", name)
    put(tx, caller, PROFILE, {**profile, "_roles": []})
    return {}


def list_instance_profiles_for_role(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    name = find(tx, caller, ROLE, params)["RoleName"]
    profiles = {each["InstanceProfileName"]: each for each in every(tx, caller, PROFILE) if name in each["_roles"]}
    found, token = PAGES.page(params, among(profiles))
    return {"InstanceProfiles": [shown(tx, caller, PROFILE, profile) for profile in found], **token}


HANDLERS: dict[str, Handler] = {
    **handlers(ROLE),
    **handlers(POLICY),
    **handlers(PROFILE),
    "CreateServiceLinkedRole": create_service_linked_role,
    "PutRolePolicy": put_role_policy,
    "GetRolePolicy": get_role_policy,
    "DeleteRolePolicy": delete_role_policy,
    "ListRolePolicies": list_role_policies,
    "GetPolicy": get_policy,
    "ListPolicies": list_policies,
    "CreatePolicyVersion": create_policy_version,
    "GetPolicyVersion": get_policy_version,
    "ListPolicyVersions": list_policy_versions,
    "DeletePolicyVersion": delete_policy_version,
    "SetDefaultPolicyVersion": set_default_policy_version,
    "AttachRolePolicy": attach_role_policy,
    "DetachRolePolicy": detach_role_policy,
    "ListAttachedRolePolicies": list_attached_role_policies,
    "ListEntitiesForPolicy": list_entities_for_policy,
    "AddRoleToInstanceProfile": add_role_to_instance_profile,
    "RemoveRoleFromInstanceProfile": remove_role_from_instance_profile,
    "ListInstanceProfilesForRole": list_instance_profiles_for_role,
}
