"""What users, groups and roles have in common: inline policies, attached policies, and the permissions boundary.

A `PrincipalKind` declares one of the three kinds. `policy_handlers` returns its operations, for example PutUserPolicy and
AttachUserPolicy.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from corral.access.aws_policies import AWS_POLICY
from corral.access.caller import Caller
from corral.access.roles import document_of
from corral.core.transactions import Tx
from corral.operations.pagination import among
from corral.operations.services import Handler
from corral.operations.stored_resources import Document, Params, ResourceType, find, put
from corral.services.iam import errors
from corral.services.iam.policies import find_policy
from corral.services.iam.style import PAGES, SERVICE_PATH, characters_of, check, check_policy_arn, on_path
from corral.store import Store

BOUNDARY = re.compile(r"arn:aws[a-z-]*:iam::(?:\d{12}|aws):policy/.+")


class PrincipalKind(Struct, frozen=True):
    type: ResourceType
    word: str  # "Role", "User" or "Group": a part of the names of operations and members
    inline_max: int  # characters of all inline policies together, without white space
    attached_max: int | None  # None: no limit
    has_boundary: bool
    # Returns a principal that the request changes. Raises an error if only AWS may change it.
    changeable: Callable[[Tx[Store], Params, Caller], Document]

    @property
    def lower(self) -> str:
        return self.word.lower()


def policy_handlers(kind: PrincipalKind) -> dict[str, Handler]:
    """Return the handlers of the operations on the policies of a kind of principals."""
    type_, lower = kind.type, kind.lower

    def with_inline(tx: Tx[Store], params: Params, caller: Caller) -> tuple[Document, str]:
        document, name = find(tx, caller, type_, params), params["PolicyName"]
        if name not in document["_inline"]:
            raise errors.NoSuchEntityException(f"The {lower} policy with name {name} cannot be found.")
        return document, name

    def put_inline(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = kind.changeable(tx, params, caller)
        check(params)
        inline = {**document["_inline"], params["PolicyName"]: params["PolicyDocument"]}
        if sum(map(characters_of, inline.values())) > kind.inline_max:
            raise errors.LimitExceededException(
                f"Maximum policy size of {kind.inline_max} bytes exceeded for {lower} {document[type_.id]}"
            )
        put(tx, caller, type_, {**document, "_inline": inline})
        return {}

    def get_inline(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document, name = with_inline(tx, params, caller)
        text = quote(document["_inline"][name], safe="")
        return {type_.id: document[type_.id], "PolicyName": name, "PolicyDocument": text}

    def delete_inline(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document, name = with_inline(tx, params, caller)
        kind.changeable(tx, params, caller)
        left = {other: text for other, text in document["_inline"].items() if other != name}
        put(tx, caller, type_, {**document, "_inline": left})
        return {}

    def list_inline(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = find(tx, caller, type_, params)
        found, token = PAGES.page(params, among({name: name for name in document["_inline"]}))
        return {"PolicyNames": found, **token}

    def attach(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = kind.changeable(tx, params, caller)
        try:
            policy = find_policy(tx, params, caller)
        except errors.NoSuchEntityException:
            raise errors.NoSuchEntityException(f"Policy {params['PolicyArn']} does not exist or is not attachable.") from None
        if policy["Path"].startswith(SERVICE_PATH):
            raise errors.PolicyNotAttachableException("Cannot attach a Service Role Policy to a Customer Role.")
        attached = document["_attached"]
        if policy["Arn"] not in attached:
            if kind.attached_max is not None and len(attached) >= kind.attached_max:
                raise errors.LimitExceededException(f"Cannot exceed quota for PoliciesPer{kind.word}: {kind.attached_max}")
            put(tx, caller, type_, {**document, "_attached": [*attached, policy["Arn"]]})
        return {}

    def detach(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document, policy_arn = kind.changeable(tx, params, caller), check_policy_arn(params["PolicyArn"])
        if policy_arn not in document["_attached"]:
            raise errors.NoSuchEntityException(f"Policy {policy_arn} was not found.")
        put(tx, caller, type_, {**document, "_attached": [other for other in document["_attached"] if other != policy_arn]})
        return {}

    def list_attached(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = find(tx, caller, type_, params)
        policies = {policy_arn: find_policy(tx, {"PolicyArn": policy_arn}, caller) for policy_arn in document["_attached"]}
        named = {policy_arn: attached_policy(policy) for policy_arn, policy in policies.items() if on_path(params, policy)}
        found, token = PAGES.page(params, among(named))
        return {"AttachedPolicies": found, **token}

    def put_boundary(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = kind.changeable(tx, params, caller)
        check_boundary(tx, params["PermissionsBoundary"])
        put(tx, caller, type_, {**document, "PermissionsBoundary": params["PermissionsBoundary"]})
        return {}

    def delete_boundary(tx: Tx[Store], params: Params, caller: Caller) -> dict[str, Any]:
        document = kind.changeable(tx, params, caller)
        if "PermissionsBoundary" not in document:
            raise errors.NoSuchEntityException(f"The {lower} with name {document[type_.id]} has no permissions boundary.")
        put(tx, caller, type_, {member: value for member, value in document.items() if member != "PermissionsBoundary"})
        return {}

    word = kind.word
    boundary = {f"Put{word}PermissionsBoundary": put_boundary, f"Delete{word}PermissionsBoundary": delete_boundary}
    return {
        f"Put{word}Policy": put_inline,
        f"Get{word}Policy": get_inline,
        f"Delete{word}Policy": delete_inline,
        f"List{word}Policies": list_inline,
        f"Attach{word}Policy": attach,
        f"Detach{word}Policy": detach,
        f"ListAttached{word}Policies": list_attached,
        **(boundary if kind.has_boundary else {}),
    }


def check_boundary(tx: Tx[Store], policy_arn: str) -> None:
    if not BOUNDARY.fullmatch(policy_arn):
        raise errors.InvalidInputException(f"ARN {policy_arn} is not valid.")
    if not policy_arn.startswith(AWS_POLICY) and document_of(tx, policy_arn) is None:
        raise errors.NoSuchEntityException(f"Scope ARN: {policy_arn} does not exist or is not attachable.")


def check_without_policies(document: Document) -> None:
    """Raise an error if a principal that is to be deleted has policies."""
    if document["_attached"]:
        raise errors.DeleteConflictException("Cannot delete entity, must detach all policies first.")
    if document["_inline"]:
        raise errors.DeleteConflictException("Cannot delete entity, must delete policies first.")


def attached_policy(policy: Document) -> Document:
    return {"PolicyName": policy["PolicyName"], "PolicyArn": policy["Arn"]}


def shown(principal: Document) -> Document:
    """A principal as responses show it: without empty tags, and with the type of its permissions boundary."""
    view = {member: value for member, value in principal.items() if member != "Tags" or value}
    if "PermissionsBoundary" in principal:
        boundary = {"PermissionsBoundaryType": "Policy", "PermissionsBoundaryArn": principal["PermissionsBoundary"]}
        view["PermissionsBoundary"] = boundary
    return view
