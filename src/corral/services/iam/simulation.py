"""Policy simulation: decide whether policies allow actions on resources.

The policies are in the request, or belong to a user and its groups, to a group or to a role.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.access.roles import document_of
from corral.core.transactions import Tx
from corral.decide.policies.conditions import Context
from corral.decide.policies.policy import (
    NO_RESOURCE,
    AccessRequest,
    IdentityPolicies,
    Policy,
    PolicyDecision,
    PolicyError,
    PolicyPrincipal,
    evaluate,
    evaluate_identity,
    matching_statements,
    read_policy,
)
from corral.decide.policies.policy_text import TextPosition, condition_keys, statement_spans, variables
from corral.model.json_documents import read_json
from corral.operations.pagination import among
from corral.operations.stored_resources import Document, Params, find
from corral.services.iam.errors import InvalidInputException
from corral.services.iam.groups import GROUP, groups_of
from corral.services.iam.roles import ROLE
from corral.services.iam.style import PAGES
from corral.services.iam.users import USER_TYPE
from corral.store import Store

DECISIONS = {
    PolicyDecision.ALLOWED: "allowed",
    PolicyDecision.DENIED: "explicitDeny",
    PolicyDecision.NO_MATCH: "implicitDeny",
    PolicyDecision.OUTSIDE_BOUNDARY: "implicitDeny",
}


class SourcePolicy(Struct, frozen=True):
    """A policy, and the name that results have for it."""

    id: str
    text: str
    policy: Policy


def simulate_principal_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    source = params["PolicySourceArn"]
    principal, policies = _source(tx, caller, source)
    boundary = _boundary(params)
    if boundary is None and "PermissionsBoundary" in principal:
        stored = _readable("", document_of(tx, principal["PermissionsBoundary"]) or "")
        boundary = stored.policy if stored is not None else Policy((), has_variables=False)
    return _simulate(params, [*policies, *_given(params)], boundary, _context(principal))


def _source(tx: Tx[Store], caller: Caller, source: str) -> tuple[Document, list[SourcePolicy]]:
    """Return the user, the group or the role with an ARN, and its policies. A user also has those of its groups."""
    kind, _, path = source.rpartition(":")[2].partition("/")
    name = path.rpartition("/")[2]
    if kind == "user":
        principal = find(tx, caller, USER_TYPE, {"UserName": name})
        owners = [("user", name, principal)]
        owners += [("group", group["GroupName"], group) for group in groups_of(tx, caller, {"UserName": name})]
    elif kind == "group":
        principal = find(tx, caller, GROUP, {"GroupName": name})
        owners = [("group", name, principal)]
    elif kind == "role":
        principal = find(tx, caller, ROLE, {"RoleName": name})
        owners = [("role", name, principal)]
    else:
        raise InvalidInputException(f"Invalid Entity Arn: {source} does not clearly define entity type and name.")
    texts: dict[str, str] = {}
    for word, owner, document in owners:
        texts |= {f"{word}_{owner}_{policy}": text for policy, text in document["_inline"].items()}
        texts |= {arn.rpartition("/")[2]: text for arn in document["_attached"] if (text := document_of(tx, arn)) is not None}
    return principal, [each for id, text in texts.items() if (each := _readable(id, text)) is not None]


def _context(principal: Document) -> Context:
    """Return the condition keys of a user or a role. They are the same for all its requests."""
    tags = {f"aws:principaltag/{tag['Key'].lower()}": (tag["Value"],) for tag in principal.get("Tags", ())}
    if "UserName" not in principal:
        return tags
    return {"aws:username": (principal["UserName"],), "aws:userid": (principal["UserId"],), **tags}


def simulate_custom_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return _simulate(params, _given(params), _boundary(params), {})


def get_context_keys_for_principal_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    _, policies = _source(tx, caller, params["PolicySourceArn"])
    return {"ContextKeyNames": _keys([*policies, *_given(params)])}


def get_context_keys_for_custom_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    return {"ContextKeyNames": _keys(_given(params))}


def _keys(policies: Iterable[SourcePolicy]) -> list[str]:
    """Return the condition keys and the variables of policies."""
    named = [key for source in policies for key in condition_keys(read_json(source.text))]
    named += [key for source in policies if source.policy.has_variables for key in variables(source.text)]
    return sorted({key.lower(): key for key in named}.values())


def _given(params: Params) -> list[SourcePolicy]:
    texts = enumerate(params.get("PolicyInputList", ()), 1)
    return [SourcePolicy(f"PolicyInputList.{number}", text, _read(text)) for number, text in texts]


def _boundary(params: Params) -> Policy | None:
    texts = params.get("PermissionsBoundaryPolicyInputList")
    return _read(texts[0]) if texts else None


def _simulate(params: Params, policies: list[SourcePolicy], boundary: Policy | None, given: Context) -> dict[str, Any]:
    context = {**given} | {
        entry["ContextKeyName"].lower(): tuple(entry.get("ContextKeyValues", ()))
        for entry in params.get("ContextEntries", ())
        if "ContextKeyName" in entry
    }
    missing = _missing_keys(policies, context)
    identity = IdentityPolicies(tuple(each.policy for each in policies), boundary)
    results: dict[str, dict[str, Any]] = {}
    for action in params["ActionNames"]:
        for resource in params.get("ResourceArns") or [NO_RESOURCE]:
            request = AccessRequest(PolicyPrincipal("AWS", ()), action, resource, context)
            decision = evaluate_identity(identity, request)
            matched = _matched(policies, request, decision)
            detail: dict[str, Any] = {}
            if boundary is not None:
                allowed = evaluate(boundary, request) is PolicyDecision.ALLOWED
                detail = {"PermissionsBoundaryDecisionDetail": {"AllowedByPermissionsBoundary": allowed}}
            result = {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": DECISIONS[decision], **detail}
            if resource == NO_RESOURCE:
                result |= {"MatchedStatements": matched, "MissingContextValues": missing}
            else:  # as on AWS, the results for the resources in a request have the missing keys
                one = {"EvalResourceName": resource, "EvalResourceDecision": DECISIONS[decision], **detail}
                specific = {**one, "MatchedStatements": matched, "MissingContextValues": missing}
                result |= {"MatchedStatements": matched, "MissingContextValues": [], "ResourceSpecificResults": [specific]}
            results[f"{len(results):06d}"] = result
    found, token = PAGES.page(params, among(results))
    return {"EvaluationResults": found, **token}


def _matched(policies: Iterable[SourcePolicy], request: AccessRequest, decision: PolicyDecision) -> list[dict[str, Any]]:
    """Return the statements that decide. Those with the effect Allow do not decide about a request that another one denies."""
    found = []
    for source in policies:
        for at, statement in matching_statements(source.policy, request):
            if statement.allows != (decision is PolicyDecision.DENIED):
                span = statement_spans(source.text)[at]
                found.append(
                    {
                        "SourcePolicyId": source.id,
                        "SourcePolicyType": "IAM Policy",
                        "StartPosition": _shown(span.start),
                        "EndPosition": _shown(span.end),
                    }
                )
    return found


def _shown(position: TextPosition) -> dict[str, int]:
    return {"Line": position.line, "Column": position.column}


def _missing_keys(policies: Iterable[SourcePolicy], context: Context) -> list[str]:
    """Return the condition keys of the policies for which the request has no values."""
    keys = {key.lower(): key for source in policies for key in condition_keys(read_json(source.text))}
    return sorted(key for lower, key in keys.items() if lower not in context)


def _readable(id: str, text: str) -> SourcePolicy | None:
    """Return a policy. Return None if it is not valid; such a policy allows nothing."""
    try:
        return SourcePolicy(id, text, read_policy(text))
    except PolicyError:
        return None


def _read(text: str) -> Policy:
    try:
        return read_policy(text)
    except PolicyError as error:
        raise InvalidInputException(f"Invalid Input: {error}") from None
