"""AWS STS: the identity of the caller, and temporary credentials.

The root user may assume every role of this account, and so may its tasks that run as plain processes. For a restricted caller
(`Caller.is_restricted`), the role's trust policy decides (`access/authorization.py`). The policies of the role limit the session of
a restricted caller, and every session with session policies. Other sessions of the root user may do everything.
"""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec.structs import replace

from corral.access import sessions
from corral.access.caller import Caller
from corral.access.roles import document_of, find_role, id_of_role, session_epoch, user_id
from corral.core.clock import WallSeconds
from corral.core.errors import api_error
from corral.core.transactions import Tx
from corral.decide.policies.grammar import check_identity_grammar
from corral.decide.policies.policy import PolicyError
from corral.model.iam_rules import SESSION_MAX_S
from corral.model.json_documents import read_json
from corral.model.principal import FEDERATED_USER, Principal, role_session
from corral.model.session import Credentials, SessionTerms

AccessDenied = api_error("AccessDenied", 403)
InvalidClientTokenId = api_error("InvalidClientTokenId", 403)
InvalidParameterValue = api_error("InvalidParameterValue")
MalformedPolicyDocument = api_error("MalformedPolicyDocument")
PackedPolicyTooLarge = api_error("PackedPolicyTooLarge")
ValidationError = api_error("ValidationError")

ROLE_DURATION_S = 3600
TOKEN_DURATION_S = 12 * 3600
CHAINED_MAX_S = 3600  # the maximum duration if the caller itself uses temporary credentials (role chaining)
TOKEN_SESSION = "token"  # the session name of callers with credentials of GetSessionToken or GetFederationToken
TOKEN_MAX_BYTES = 4096
POLICY_MAX = 2048  # characters of session policies and tags together

_ROLE = re.compile(r"arn:aws[a-z-]*:iam::([0-9]{12}):role/((?:[!-.0-~]+/)*)([\w+=,.@-]{1,64})", re.ASCII)


def get_caller_identity(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    return {"UserId": user_id(tx, caller), "Account": caller.account, "Arn": caller.principal.arn}


def assume_role(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    role = _check_role(params["RoleArn"], caller)
    _check_mfa(params)
    duration_s = params.get("DurationSeconds", ROLE_DURATION_S)
    if caller.principal.session and duration_s > CHAINED_MAX_S:
        raise ValidationError("The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining.")
    known = find_role(tx, role)
    if duration_s > (known or {}).get("MaxSessionDuration", SESSION_MAX_S):
        raise ValidationError("The requested DurationSeconds exceeds the MaxSessionDuration set for this role.")
    name = params["RoleSessionName"]
    principal = role_session(caller.account, role, name, caller.principal.owner)
    terms = _terms(tx, params, caller, is_root=not caller.is_restricted and known is None)
    response = {
        **_issued(_issue(tx, principal, duration_s, caller, terms)),
        "AssumedRoleUser": {"AssumedRoleId": f"{id_of_role(known, caller.account, role)}:{name}", "Arn": principal.arn},
        **_packed_size(params),
    }
    return response | ({"SourceIdentity": terms.source_identity} if terms.source_identity else {})


def get_session_token(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _check_long_lived(caller, "GetSessionToken")
    _check_mfa(params)
    duration_s = params.get("DurationSeconds", TOKEN_DURATION_S)
    terms = SessionTerms(int(tx.wall_s))
    return _issued(_issue(tx, replace(caller.principal, session=TOKEN_SESSION), duration_s, caller, terms))


def get_federation_token(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    _check_long_lived(caller, "GetFederationToken")
    duration_s = params.get("DurationSeconds", TOKEN_DURATION_S)
    principal = Principal(caller.account, FEDERATED_USER, params["Name"], TOKEN_SESSION, caller.principal.owner)
    terms = _terms(tx, params, caller, is_root=not caller.is_restricted)
    return {
        **_issued(_issue(tx, principal, duration_s, caller, terms)),
        "FederatedUser": {"FederatedUserId": f"{caller.account}:{params['Name']}", "Arn": principal.arn},
        "PackedPolicySize": 0,  # always shown, unlike in the response of AssumeRole
        **_packed_size(params),
    }


def get_access_key_info(tx: Tx[Any], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    """The account of an access key that Corral issued. The key may have expired."""
    access_key_id = params["AccessKeyId"]
    if access_key_id != caller.access_key_id and not sessions.is_our_key(tx.settings.session_key, access_key_id):
        raise InvalidClientTokenId("The access key ID provided does not exist in our records.")
    return {"Account": caller.account}


def _issue(tx: Tx[Any], principal: Principal, duration_s: int, caller: Caller, terms: SessionTerms) -> Credentials:
    """Issue credentials. If the caller is a program of a task, the session ends with the task.

    If the caller is a program in a container (`confined`), the holder of the new session is one, too.
    """
    nonce = bytes.fromhex(tx.ids.hex32())[: sessions.NONCE_BYTES]
    return sessions.issue(
        tx.settings.session_key,
        nonce,
        principal,
        int(tx.wall_s) + duration_s,
        caller.task_id,
        confined=caller.confined,
        epoch=session_epoch(tx, caller),
        terms=terms,
    )


def _terms(tx: Tx[Any], params: dict[str, Any], caller: Caller, *, is_root: bool) -> SessionTerms:
    """Return what a request gives to a session. Tags that are transitive, and the source identity, come from the caller's session.

    `is_root` says that only session policies limit the new session.
    """
    _check_tags(params)
    earlier = caller.terms or SessionTerms()
    given, inherited = {tag["Key"]: tag["Value"] for tag in params.get("Tags", ())}, set(earlier.transitive)
    if conflicts := [key for key in given if key.lower() in inherited]:
        raise InvalidParameterValue(
            f"The tag {conflicts[0]} can't be set because it conflicts with a transitive tag from the calling session."
        )
    source_identity = params.get("SourceIdentity", earlier.source_identity)
    if earlier.source_identity and source_identity != earlier.source_identity:
        raise AccessDenied("The source identity of a session can't be changed: the calling session has another one.")
    policies = (params["Policy"],) if params.get("Policy") is not None else ()
    policy_arns = tuple(each["arn"] for each in params.get("PolicyArns", ()) if each.get("arn"))
    _check_policies(tx, params, policies, policy_arns)
    return SessionTerms(
        issued_at_s=int(tx.wall_s),
        policies=policies,
        policy_arns=policy_arns,
        tags=(*((key, value) for key, value in earlier.tags if key.lower() in inherited), *given.items()),
        transitive=(*earlier.transitive, *(key.lower() for key in params.get("TransitiveTagKeys", ()))),
        source_identity=source_identity,
        is_restricted=caller.is_restricted or bool(policies or policy_arns),
        is_root=is_root,
        for_owner=earlier.for_owner,
    )


def _issued(credentials: Credentials) -> dict[str, Any]:
    """Return the members of a response about new credentials."""
    size = len(credentials.token)
    return {
        "Credentials": {
            "AccessKeyId": credentials.session.access_key_id,
            "SecretAccessKey": credentials.secret_key,
            "SessionToken": credentials.token,
            "Expiration": WallSeconds(credentials.session.expires_at_s),
        },
        "SessionTokenSize": size,
        "SessionTokenUtilization": math.ceil(100 * size / TOKEN_MAX_BYTES),
    }


# --- checks -------------------------------------------------------------------------------------------------------


def _check_role(role_arn: str, caller: Caller) -> str:
    """Check the ARN of a role, and return the name of the role without its path."""
    parts = role_arn.split(":", 5)  # arn, partition, service, region, account, resource
    if len(parts) < 6 or parts[0] != "arn" or not (parts[1] and parts[2] and parts[5]):
        raise ValidationError(f"{role_arn} is invalid")
    match = _ROLE.fullmatch(role_arn)
    if match is None:
        raise ValidationError("Request ARN is invalid")
    if match[1] != caller.account:
        raise AccessDenied(f"User: {caller.principal.arn} is not authorized to perform: sts:AssumeRole on resource: {role_arn}")
    return match[3]


def _check_mfa(params: dict[str, Any]) -> None:
    """Refuse every MFA code, because Corral has no MFA devices."""
    if "SerialNumber" in params or "TokenCode" in params:
        raise AccessDenied("MultiFactorAuthentication failed with invalid MFA one time pass code.")


def _check_tags(params: dict[str, Any]) -> None:
    keys = [tag["Key"].lower() for tag in params.get("Tags", ())]
    if len(set(keys)) < len(keys):
        raise InvalidParameterValue("Duplicate tag keys found. Please note that Tag keys are case insensitive.")
    if not {key.lower() for key in params.get("TransitiveTagKeys", ())} <= set(keys):
        raise InvalidParameterValue("The specified transitive tag key must be included in the requested tags.")


def _check_long_lived(caller: Caller, operation: str) -> None:
    if caller.principal.session:
        raise AccessDenied(f"Cannot call {operation} with session credentials")


def _check_policies(tx: Tx[Any], params: dict[str, Any], policies: tuple[str, ...], policy_arns: tuple[str, ...]) -> None:
    """Refuse session policies that could not be enforced, and contexts of other identity providers."""
    for text in policies:
        try:
            is_object = isinstance(read_json(text), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise MalformedPolicyDocument("The policy is not in the valid JSON format.")
    _packed_size(params)  # refuses what is too long
    for text in policies:
        try:
            check_identity_grammar(text, is_managed=False)
        except PolicyError as error:
            raise MalformedPolicyDocument(str(error)) from None
    for each in policy_arns:
        if document_of(tx, each) is None:
            raise ValidationError(f"PolicyArns: the policy {each} does not exist in this account, or Corral has no document of it.")
    if params.get("ProvidedContexts"):
        raise ValidationError("Corral has no trusted context providers, so it creates no session with ProvidedContexts. Omit them.")


def _packed_size(params: dict[str, Any]) -> dict[str, int]:
    """The response member PackedPolicySize: the percentage of the limit that session policies and tags use.

    The member is omitted if the request has none.
    """
    used = len(params.get("Policy") or "") + sum(len(tag["Key"]) + len(tag["Value"]) for tag in params.get("Tags", ()))
    used += sum(len(each.get("arn", "")) for each in params.get("PolicyArns", ()))
    if used > POLICY_MAX:
        raise PackedPolicyTooLarge(
            f"Packed policy consumes {math.ceil(100 * used / POLICY_MAX)}% of allotted space, please use smaller policy."
        )
    return {"PackedPolicySize": math.ceil(100 * used / POLICY_MAX)} if used else {}


HANDLERS = {
    "AssumeRole": assume_role,
    "GetAccessKeyInfo": get_access_key_info,
    "GetCallerIdentity": get_caller_identity,
    "GetFederationToken": get_federation_token,
    "GetSessionToken": get_session_token,
}
QUICK = frozenset({"GetCallerIdentity", "GetAccessKeyInfo"})
OPEN_TO_CONTAINERS = frozenset({"GetCallerIdentity"})
