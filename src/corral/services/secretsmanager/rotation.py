"""Rotation of secrets. It is stored only: Corral invokes no function to rotate a secret."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.secretsmanager import errors
from corral.services.secretsmanager.secret_names import change, find, named
from corral.services.secretsmanager.versions import given_token
from corral.store import Store

STORED = ("RotationLambdaARN", "RotationRules", "ExternalSecretRotationMetadata", "ExternalSecretRotationRoleArn")
NO_FUNCTION = "No Lambda rotation function ARN is associated with this secret."


def rotate_secret(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Store how a secret should be rotated. Return no VersionId, because no rotation begins."""
    given_token(params, errors.InvalidParameterException)
    secret = find(tx, caller, params["SecretId"])
    rules = params.get("RotationRules") or {}
    if rules.get("AutomaticallyAfterDays") is not None and rules.get("ScheduleExpression") is not None:
        raise errors.InvalidParameterException(
            "You can set the rotation schedule with either AutomaticallyAfterDays or ScheduleExpression, but not both."
        )
    details = secret.details | {member: params[member] for member in STORED if params.get(member)}
    if not details.get("RotationLambdaARN") and not details.get("ExternalSecretRotationRoleArn"):
        raise errors.InvalidRequestException(NO_FUNCTION)
    change(tx, secret, details={**details, "RotationEnabled": True})
    return named(caller, secret)


def cancel_rotate_secret(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    if "RotationEnabled" not in secret.details:
        raise errors.InvalidRequestException(NO_FUNCTION)
    change(tx, secret, details={**secret.details, "RotationEnabled": False})
    return named(caller, secret)
