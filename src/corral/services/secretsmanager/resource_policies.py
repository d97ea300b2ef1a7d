"""Resource policies of secrets. They are checked and stored, and do not concern callers with credentials of this account."""

from __future__ import annotations

from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.policies.policy import ANYONE, Policy, PolicyError, read_policy
from corral.operations.pagination import among
from corral.services.secretsmanager import errors
from corral.services.secretsmanager.secret_names import change, find, named
from corral.services.secretsmanager.versions import PAGES
from corral.store import Store

NAME = "default"  # the only policy that a secret can have
IS_PUBLIC = "This resource policy allows broad access to the secret: a statement allows every principal and has no condition."


def put_resource_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    _check_name(params)
    policy = _read(params["ResourcePolicy"])
    if params.get("BlockPublicPolicy") and _is_public(policy):
        raise errors.PublicPolicyException(IS_PUBLIC)
    change(tx, secret, policy=params["ResourcePolicy"])
    return {**named(caller, secret), "PolicyName": NAME}


def get_resource_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    if params.get("PolicyName", NAME) != NAME:
        raise errors.ResourceNotFoundException("Secrets Manager can't find the specified resource policy.")
    return {**named(caller, secret), "ResourcePolicy": secret.policy or None, "PolicyName": NAME}


def list_resource_policies(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    page, token = PAGES.page(params, among({NAME: {"PolicyName": NAME}} if secret.policy else {}))
    return {"ResourcePolicies": page, **token}


def delete_resource_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    secret = find(tx, caller, params["SecretId"])
    _check_name(params)
    change(tx, secret, policy="")
    return {**named(caller, secret), "PolicyName": NAME}


def validate_resource_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if params.get("SecretId") is not None:
        find(tx, caller, params["SecretId"])
    errors_found = (
        [{"CheckName": "PUBLIC_POLICY", "ErrorMessage": IS_PUBLIC}] if _is_public(_read(params["ResourcePolicy"])) else []
    )
    return {"PolicyValidationPassed": not errors_found, "ValidationErrors": errors_found}


def _check_name(params: dict[str, Any]) -> None:
    if params.get("PolicyName", NAME) != NAME:
        raise errors.InvalidParameterException(f"The only policy name that you can use is {NAME}.")


def _read(text: str) -> Policy:
    try:
        policy = read_policy(text)
    except PolicyError as error:
        raise errors.MalformedPolicyDocumentException(f"This resource policy contains an error: {error}") from None
    if any(statement.principals is None for statement in policy.statements):
        raise errors.MalformedPolicyDocumentException("This resource policy contains an error: Missing required field Principal")
    return policy


def _is_public(policy: Policy) -> bool:
    return any(
        each.allows and not each.conditions and any(ANYONE in names for names in (each.principals or {}).values())
        for each in policy.statements
    )
