"""The permissions that operations of Secrets Manager need, and the facts about secrets that policies can test."""

from __future__ import annotations

from corral.access.caller import Caller
from corral.access.permissions import Params, Permission, on_resources, request_tags, request_values, with_tags
from corral.access.resources import ResourceFacts
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.operations.listings import Listed
from corral.services.secretsmanager.secret_names import arn_for_permission, look_up
from corral.services.secretsmanager.versions import CURRENT
from corral.store import Store

# Operation → its condition keys, without their prefix and in lower case, and the members of the request that have their values
KEYS = {
    "CreateSecret": {"description": "Description", "kmskeyid": "KmsKeyId", "name": "Name"},
    "DeleteSecret": {"forcedeletewithoutrecovery": "ForceDeleteWithoutRecovery", "recoverywindowindays": "RecoveryWindowInDays"},
    "GetSecretValue": {"versionid": "VersionId", "versionstage": "VersionStage"},
    "PutResourcePolicy": {"blockpublicpolicy": "BlockPublicPolicy"},
    "RotateSecret": {
        "externalsecretrotationrolearn": "ExternalSecretRotationRoleArn",
        "rotateimmediately": "RotateImmediately",
        "rotationlambdaarn": "RotationLambdaARN",
    },
    "UpdateSecret": {"description": "Description", "kmskeyid": "KmsKeyId"},
    "UpdateSecretVersionStage": {"versionstage": "VersionStage"},
}


def _owner(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str:
    secret = look_up(tx, caller, element["ARN"])
    return secret.owner if secret is not None else ""


def _owner_of_failed(tx: Tx[Store], caller: Caller, params: Params, element: Params) -> str | None:
    """The owner of a secret whose value a request did not get. If the request names the secret, it is shown."""
    return _owner(tx, caller, params, {"ARN": element["SecretId"]}) if params.get("SecretIdList") is None else None


LISTED = {
    "BatchGetSecretValue": Listed(("Errors",), _owner_of_failed),
    "ListSecrets": Listed(("SecretList",), _owner),
}


def needed_permissions(tx: Tx[Store], caller: Caller, operation: str, params: Params) -> list[Permission]:
    """Return the permissions. BatchGetSecretValue itself checks the permission to read each secret."""
    given = params.get("SecretId") or (params.get("Name") if operation == "CreateSecret" else None)
    arns = [arn_for_permission(tx, caller, given)] if given else []
    needed = on_resources(f"secretsmanager:{operation}", arns, context_of(operation, params, arns))
    if operation == "CreateSecret":
        needed += with_tags("secretsmanager:TagResource", arns, params)
    if operation == "RotateSecret" and params.get("RotationLambdaARN"):
        needed.append(Permission("lambda:InvokeFunction", params["RotationLambdaARN"]))
    if operation == "BatchGetSecretValue" and params.get("Filters"):
        needed += on_resources("secretsmanager:ListSecrets", (), {})
    return needed


def context_of(operation: str, params: Params, arns: list[str]) -> Context:
    keys = {f"secretsmanager:{key}": member for key, member in KEYS.get(operation, {}).items()}
    context = {**request_tags(params), **request_values(params, keys)}
    if operation != "CreateSecret" and arns:
        context["secretsmanager:secretid"] = tuple(arns)
    if operation == "GetSecretValue" and "VersionId" not in params:
        context = {"secretsmanager:versionstage": (CURRENT,), **context}
    if operation == "RotateSecret":
        context["secretsmanager:modifyrotationrules"] = (str("RotationRules" in params).lower(),)
    return context


def resource_facts(tx: Tx[Store], caller: Caller, permission: Permission) -> ResourceFacts:
    secret = look_up(tx, caller, permission.resource)
    if secret is None:
        return ResourceFacts()
    return ResourceFacts(secret.owner, secret.tags or {}, secret.policy or None)
