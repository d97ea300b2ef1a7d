"""The resource policies of functions. Corral enforces them when another service, such as SNS, invokes a function."""

from __future__ import annotations

import re
from typing import Any

import orjson

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.decide.policies.policy import AccessRequest, PolicyDecision, PolicyError, evaluate, read_policy, service_principal
from corral.services.lambda_.errors import PolicyLengthExceededException, ResourceConflictException, ResourceNotFoundException
from corral.services.lambda_.names import check_revision, find_function, put_function
from corral.store import Store
from corral.store.stored_resources import Document

POLICY_MAX_BYTES = 20 * 1024
ACCOUNT = re.compile(r"\d{12}")
# Request member → the operator and the key of the condition
CONDITIONS = {
    "SourceAccount": ("StringEquals", "AWS:SourceAccount"),
    "SourceArn": ("ArnLike", "AWS:SourceArn"),
    "EventSourceToken": ("StringEquals", "lambda:EventSourceToken"),
    "FunctionUrlAuthType": ("StringEquals", "lambda:FunctionUrlAuthType"),
    "InvokedViaFunctionUrl": ("Bool", "lambda:InvokedViaFunctionUrl"),
    "PrincipalOrgID": ("StringEquals", "aws:PrincipalOrgID"),
}


def add_permission(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document, sid = _find(tx, caller, params), params["StatementId"]
    if any(statement["Sid"] == sid for statement in document["_policy"]):
        raise ResourceConflictException(
            f"The statement id ({sid}) provided already exists. Please provide a new statement id, or remove the existing "
            "statement."
        )
    conditions: dict[str, dict[str, str]] = {}
    for member, (operator, key) in CONDITIONS.items():
        if member in params:
            value = params[member]
            conditions.setdefault(operator, {})[key] = str(value).lower() if isinstance(value, bool) else value
    statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Principal": _principal(params["Principal"]),
        "Action": params["Action"],
        "Resource": document["FunctionArn"],
        **({"Condition": conditions} if conditions else {}),
    }
    changed = {**document, "_policy": [*document["_policy"], statement]}
    if len(_text(changed)) > POLICY_MAX_BYTES:
        raise PolicyLengthExceededException(f"The final policy size is bigger than the limit ({POLICY_MAX_BYTES}).")
    _put(tx, changed)
    return {"Statement": orjson.dumps(statement).decode()}


def remove_permission(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document, sid = _find(tx, caller, params), params["StatementId"]
    if not document["_policy"]:
        raise ResourceNotFoundException("No policy is associated with the given resource.")
    left = [statement for statement in document["_policy"] if statement["Sid"] != sid]
    if len(left) == len(document["_policy"]):
        raise ResourceNotFoundException(f"Statement {sid} is not found in resource policy.")
    _put(tx, {**document, "_policy": left})
    return {}


def get_policy(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    document = find_function(tx, caller, params)
    if not document["_policy"]:
        raise ResourceNotFoundException("The resource you requested does not exist.")
    return {"Policy": _text(document), "RevisionId": document["RevisionId"]}


def service_may_invoke(document: Document, service: str, source_arn: str, account: str) -> bool:
    """Whether the policy of a function allows an AWS service, such as sns.amazonaws.com, to invoke it for a resource."""
    context = {"aws:sourcearn": (source_arn,), "aws:sourceaccount": (account,)}
    request = AccessRequest(service_principal(service), "lambda:InvokeFunction", document["FunctionArn"], context)
    try:
        return evaluate(read_policy(_text(document)), request) is PolicyDecision.ALLOWED
    except PolicyError:  # the function has no policy
        return False


def policy_text(document: Document) -> str | None:
    """Return the text of the policy of a function, or None if it has none."""
    return _text(document) if document["_policy"] else None


def _find(tx: Tx[Store], caller: Caller, params: dict[str, Any]) -> Document:
    """Return the function whose policy a request changes. The revision of the request is that of GetPolicy."""
    document = find_function(tx, caller, {**params, "RevisionId": None})
    check_revision(document, params, "GetPolicy")
    return document


def _put(tx: Tx[Store], document: Document) -> None:
    """Store a function with a changed policy. As on AWS, it has a new revision."""
    put_function(tx, {**document, "RevisionId": tx.ids.uuid()})


def _principal(given: str) -> str | dict[str, str]:
    if given == "*":
        return given
    if ACCOUNT.fullmatch(given):
        return {"AWS": f"arn:aws:iam::{given}:root"}
    return {"AWS": given} if given.startswith("arn:") else {"Service": given}


def _text(document: Document) -> str:
    return orjson.dumps({"Version": "2012-10-17", "Id": "default", "Statement": document["_policy"]}).decode()
