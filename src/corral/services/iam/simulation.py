"""Policy simulation: decide whether policies allow actions on resources. The policies belong to a role or are in the request."""

from __future__ import annotations

from typing import Any

from corral.access.authorization import policies_of_role
from corral.access.caller import Caller
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
    read_policy,
)
from corral.operations.pagination import among
from corral.operations.stored_resources import Params, find
from corral.services.iam.errors import InvalidInputException
from corral.services.iam.roles import ROLE
from corral.services.iam.style import PAGES
from corral.store import Store

DECISIONS = {
    PolicyDecision.ALLOWED: "allowed",
    PolicyDecision.DENIED: "explicitDeny",
    PolicyDecision.NO_MATCH: "implicitDeny",
    PolicyDecision.OUTSIDE_BOUNDARY: "implicitDeny",
}


def simulate_principal_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    source = params["PolicySourceArn"]
    kind, _, path = source.rpartition(":")[2].partition("/")
    if kind != "role":
        raise InvalidInputException(f"Invalid Entity Arn: {source} does not name a role; users and groups are not served.")
    role = find(tx, caller, ROLE, {"RoleName": path.rpartition("/")[2]})
    found = policies_of_role(tx, caller.account, role["RoleName"])
    identity = found.identity
    if "PermissionsBoundaryPolicyInputList" in params:
        identity = IdentityPolicies(identity.policies, _read(params["PermissionsBoundaryPolicyInputList"][0]))
    more = tuple(_read(text) for text in params.get("PolicyInputList", ()))
    return _simulate(params, IdentityPolicies(identity.policies + more, identity.boundary), found.tags)


def simulate_custom_policy(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
    limits = params.get("PermissionsBoundaryPolicyInputList")
    policies = tuple(_read(text) for text in params["PolicyInputList"])
    return _simulate(params, IdentityPolicies(policies, _read(limits[0]) if limits else None), {})


def _simulate(params: Params, identity: IdentityPolicies, given: Context) -> dict[str, Any]:
    context = {**given} | {
        entry["ContextKeyName"].lower(): tuple(entry.get("ContextKeyValues", ()))
        for entry in params.get("ContextEntries", ())
        if "ContextKeyName" in entry
    }
    results: dict[str, dict[str, Any]] = {}
    for action in params["ActionNames"]:
        for resource in params.get("ResourceArns") or [NO_RESOURCE]:
            request = AccessRequest(PolicyPrincipal("AWS", ()), action, resource, context)
            decision = evaluate_identity(identity, request)
            result = {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": DECISIONS[decision]}
            if identity.boundary is not None:
                allowed = evaluate(identity.boundary, request) is PolicyDecision.ALLOWED
                result["PermissionsBoundaryDecisionDetail"] = {"AllowedByPermissionsBoundary": allowed}
            results[f"{len(results):06d}"] = result | {"MatchedStatements": [], "MissingContextValues": []}
    found, token = PAGES.page(params, among(results))
    return {"EvaluationResults": found, **token}


def _read(text: str) -> Policy:
    try:
        return read_policy(text)
    except PolicyError as error:
        raise InvalidInputException(f"Invalid Input: {error}") from None
