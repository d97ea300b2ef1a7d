"""AWS STS: who asks, and sessions for those who want one.

Roles are stored only: their policies and trust are not enforced, so any role of this account may be assumed.
"""

from __future__ import annotations

import math
import re
from typing import Any

import orjson

from corral.core import Tx
from corral.errors import api_error
from corral.model.session import Credentials
from corral.services import sessions
from corral.services.caller import Caller

AccessDenied = api_error("AccessDenied", 403)
InvalidClientTokenId = api_error("InvalidClientTokenId", 403)
MalformedPolicyDocument = api_error("MalformedPolicyDocument")
PackedPolicyTooLarge = api_error("PackedPolicyTooLarge")
ValidationError = api_error("ValidationError")

ROLE_DURATION_S, ROLE_DURATION_MAX_S = 3600, 12 * 3600
TOKEN_DURATION_S = 12 * 3600
CHAINED_MAX_S = 3600  # a session made with a session's credentials
POLICY_MAX = 2048  # characters of a policy and tags together

_ROLE = re.compile(r"arn:aws[a-z-]*:iam::([0-9]{12}):role/((?:[!-.0-~]+/)*)([\w+=,.@-]{1,64})", re.ASCII)


def get_caller_identity(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"UserId": user_id(tx, caller), "Account": caller.account, "Arn": caller.principal}


def user_id(tx: Tx[Any], caller: Caller) -> str:
    """AWS's id for a principal: the account of its root, AROA…:session of a role, account:name of a federated user."""
    kind, _, name = caller.principal.rpartition(":")[2].partition("/")
    if kind == "assumed-role":
        role, _, session_name = name.partition("/")
        return f"{_role_id(tx, caller, role)}:{session_name}"
    return f"{caller.account}:{name}" if kind == "federated-user" else caller.account


def assume_role(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    role = _check_role(params["RoleArn"], caller)
    _check_mfa(params)
    duration_s = params.get("DurationSeconds", ROLE_DURATION_S)
    if caller.is_session and duration_s > CHAINED_MAX_S:
        raise ValidationError("The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining.")
    if duration_s > (_known_role(tx, role) or {}).get("MaxSessionDuration", ROLE_DURATION_MAX_S):
        raise ValidationError("The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
    name = params["RoleSessionName"]
    principal = sessions.role_session(caller.account, role, name)
    reply = {
        "Credentials": _shown(_issue(tx, principal, duration_s, caller)),
        "AssumedRoleUser": {"AssumedRoleId": f"{_role_id(tx, caller, role)}:{name}", "Arn": principal},
        **_packed_size(params),
    }
    return reply | ({"SourceIdentity": params["SourceIdentity"]} if "SourceIdentity" in params else {})


def get_session_token(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _check_long_lived(caller, "GetSessionToken")
    _check_mfa(params)
    duration_s = params.get("DurationSeconds", TOKEN_DURATION_S)
    return {"Credentials": _shown(_issue(tx, caller.principal, duration_s, caller))}


def get_federation_token(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _check_long_lived(caller, "GetFederationToken")
    duration_s = params.get("DurationSeconds", TOKEN_DURATION_S)
    principal = f"arn:aws:sts::{caller.account}:federated-user/{params['Name']}"
    return {
        "Credentials": _shown(_issue(tx, principal, duration_s, caller)),
        "FederatedUser": {"FederatedUserId": f"{caller.account}:{params['Name']}", "Arn": principal},
        **_packed_size(params),
    }


def get_access_key_info(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """Of a key that was made here, whether it still works or not."""
    access_key_id = params["AccessKeyId"]
    if access_key_id != caller.access_key_id and not sessions.is_our_key(tx.settings.session_key, access_key_id):
        raise InvalidClientTokenId("The access key ID provided does not exist in our records.")
    return {"Account": caller.account}


def _known_role(tx: Tx[Any], role: str) -> dict[str, Any] | None:
    from corral.services.iam.roles import find_role  # only here: every SDK asks who it is, and few make roles

    return find_role(tx, role)


def _role_id(tx: Tx[Any], caller: Caller, role: str) -> str:
    """As IAM shows it, where IAM knows the role."""
    known = _known_role(tx, role)
    return known["RoleId"] if known else sessions.derived_role_id(caller.account, role)


def _issue(tx: Tx[Any], principal: str, duration_s: int, caller: Caller) -> Credentials:
    """A session made by a task's program goes with the task."""
    nonce = bytes.fromhex(tx.ids.hex32())[: sessions.NONCE_BYTES]
    return sessions.issue(tx.settings.session_key, nonce, principal, int(tx.now_s) + duration_s, caller.task_id)


def _shown(credentials: Credentials) -> dict[str, Any]:
    return {
        "AccessKeyId": credentials.session.access_key_id,
        "SecretAccessKey": credentials.secret_key,
        "SessionToken": credentials.token,
        "Expiration": credentials.session.expires_at_s,
    }


# --- rules --------------------------------------------------------------------------------------------------------


def _check_role(role_arn: str, caller: Caller) -> str:
    """The role's name, without its path."""
    if not role_arn.startswith("arn:"):
        raise ValidationError(f"{role_arn} is invalid")
    match = _ROLE.fullmatch(role_arn)
    if match is None:
        raise ValidationError("Request ARN is invalid")
    if match[1] != caller.account:
        raise AccessDenied(f"User: {caller.principal} is not authorized to perform: sts:AssumeRole on resource: {role_arn}")
    return match[3]


def _check_mfa(params: dict[str, Any]) -> None:
    """There are no devices here whose code could be right."""
    if "SerialNumber" in params or "TokenCode" in params:
        raise AccessDenied("MultiFactorAuthentication failed with invalid MFA one time pass code.")


def _check_long_lived(caller: Caller, operation: str) -> None:
    if caller.is_session:
        raise AccessDenied(f"Cannot call {operation} with session credentials")


def _packed_size(params: dict[str, Any]) -> dict[str, int]:
    """How much of what a session may carry is taken, in percent; only when it carries something."""
    policy, tags, arns = params.get("Policy"), params.get("Tags", ()), params.get("PolicyArns", ())
    if policy is not None:
        try:
            document = orjson.loads(policy)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise MalformedPolicyDocument("The policy is not in the valid JSON format.")
    taken = len(policy or "") + sum(len(tag["Key"]) + len(tag["Value"]) for tag in tags)
    taken += sum(len(each.get("arn", "")) for each in arns)
    if taken > POLICY_MAX:
        raise PackedPolicyTooLarge(
            f"Packed policy consumes {math.ceil(100 * taken / POLICY_MAX)}% of allotted space, please use smaller policy."
        )
    return {"PackedPolicySize": math.ceil(100 * taken / POLICY_MAX)} if taken else {}


HANDLERS = {
    "AssumeRole": assume_role,
    "GetAccessKeyInfo": get_access_key_info,
    "GetCallerIdentity": get_caller_identity,
    "GetFederationToken": get_federation_token,
    "GetSessionToken": get_session_token,
}
