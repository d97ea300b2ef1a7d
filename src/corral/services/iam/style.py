"""Conventions of IAM: ids, pagination, tags, and checks of names, paths and policy documents."""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Callable, Mapping
from functools import partial

from msgspec.structs import replace

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.decide.policies.grammar import check_identity_grammar, check_trust_grammar
from corral.decide.policies.policy import PolicyError
from corral.model.iam_rules import INVALID_NAME, NAME_CHARACTERS, SESSION_MAX_S, SESSION_MIN_S
from corral.operations.pagination import Pagination
from corral.operations.stored_resources import Document, Params, Selects, ServiceStyle
from corral.operations.tags import TagRule, TagRules
from corral.services.iam import errors
from corral.store import Store

SERVICE_PATH = "/aws-service-role/"  # the path of service-linked roles and of their policies
POLICY_ARN = re.compile(r"arn:aws[a-z-]*:iam::(?:\d{12}|aws):policy/.+")
NAME = re.compile(NAME_CHARACTERS + "{1,128}", re.ASCII)
PATH = re.compile(r"/|/[!-\x7f]{0,510}/")
NAME_MEMBERS = ("RoleName", "UserName", "GroupName", "NewGroupName", "PolicyName", "InstanceProfileName")
PRINCIPAL_MEMBERS = ("RoleName", "UserName", "GroupName")
EXISTS = {
    "role": "Role with name {} already exists.",
    "user": "User with name {} already exists.",
    "group": "Group with name {} already exists.",
    "policy": "A policy called {} already exists. Duplicate names are not allowed.",
    "instance-profile": "Instance Profile {} already exists.",
}
MISSING = {
    "role": "The role with name {} cannot be found.",
    "user": "The user with name {} cannot be found.",
    "group": "The group with name {} cannot be found.",
    "policy": "Policy {} was not found.",
    "instance-profile": "Instance Profile {} cannot be found.",
}
POLICY_MAX = 6_144  # characters of a managed policy without white space


def check(params: Params) -> None:
    for member in NAME_MEMBERS:
        if member in params and not NAME.fullmatch(params[member]):
            raise errors.ValidationError(INVALID_NAME.format(member=_lower(member)))
    if not all(PATH.fullmatch(params.get(member, "/")) for member in ("Path", "NewPath")):
        raise errors.ValidationError(
            "The specified value for path is invalid. It must begin and end with / and contain only ASCII characters."
        )
    if not SESSION_MIN_S <= params.get("MaxSessionDuration", SESSION_MIN_S) <= SESSION_MAX_S:
        raise errors.ValidationError(
            f"The requested MaxSessionDuration must be between {SESSION_MIN_S} and {SESSION_MAX_S} seconds."
        )
    if "AssumeRolePolicyDocument" in params:
        _check_policy(params["AssumeRolePolicyDocument"], check_trust_grammar)
    if "PolicyDocument" in params:
        is_trust = params.keys().isdisjoint({"PolicyName", "PolicyArn"})
        check_identity = partial(check_identity_grammar, is_managed=params.keys().isdisjoint(PRINCIPAL_MEMBERS))
        _check_policy(params["PolicyDocument"], check_trust_grammar if is_trust else check_identity)


def _check_policy(text: str, check_grammar: Callable[[str], None]) -> None:
    try:
        check_grammar(text)
    except PolicyError as error:
        raise errors.MalformedPolicyDocumentException(str(error)) from None


def characters_of(document: str) -> int:
    """Return the size of a policy, as IAM counts it."""
    return len("".join(document.split()))


def check_managed_size(document: str) -> None:
    if characters_of(document) > POLICY_MAX:
        raise errors.LimitExceededException(f"Cannot exceed quota for PolicySize: {POLICY_MAX}")


def check_policy_arn(policy_arn: str) -> str:
    if not POLICY_ARN.fullmatch(policy_arn):
        raise errors.ValidationError(f"ARN {policy_arn} is not valid.")
    return policy_arn


def identity_of(prefix: str, kind: str, member: str) -> Callable[[Tx[Store], Params, Caller], Document]:
    """Return a function for `ResourceType.new`. It returns the path, id, ARN and creation date of a new resource.

    For example, `AROA…` is an id, and `arn:aws:iam::ACCOUNT:role/PATH/NAME` an ARN.
    """

    def identity(tx: Tx[Store], params: Params, caller: Caller) -> Document:
        path = params.get("Path", "/")
        return {
            "Path": path,
            member: prefix + b32encode(bytes.fromhex(tx.ids.hex32())).decode()[:17],
            "Arn": f"arn:aws:iam::{caller.account}:{kind}{path}{params[member.removesuffix('Id') + 'Name']}",
            "CreateDate": tx.now_s,
        }

    return identity


def on_path(params: Params, document: Document) -> bool:
    return str(document["Path"]).startswith(params.get("PathPrefix", "/"))


def selects_path(tx: Tx[Store], caller: Caller, params: Params) -> Selects:
    return lambda document: on_path(params, document)


def _lower(member: str) -> str:
    return member[0].lower() + member[1:]


PAGES = Pagination(errors.ValidationError, limit="MaxItems", token="Marker", next_token="Marker", truncated="IsTruncated")
_TAG_ERRORS: Mapping[TagRule, type[ApiError]] = {
    "count": errors.LimitExceededException,
    "key": errors.ValidationError,
    "value": errors.ValidationError,
    "characters": errors.ValidationError,
}
_TAG_COUNT = "The number of tags has reached the maximum limit of {max}."
IAM = ServiceStyle(
    "iam",
    exists=lambda type_, name: errors.EntityAlreadyExistsException(EXISTS[type_].format(name)),
    missing=lambda type_, name: errors.NoSuchEntityException(MISSING[type_].format(name)),
    pages=PAGES,
    tags=TagRules(errors.InvalidInputException, _TAG_ERRORS, {"count": _TAG_COUNT, "duplicate": "Duplicate tag keys found."}),
    regional=False,
)
# The tag keys of roles and users are the same in lower and upper case.
IAM_ROLES = replace(
    IAM,
    tags=replace(
        IAM.tags,
        texts={"count": _TAG_COUNT, "duplicate": "Duplicate tag keys found. Please note that Tag keys are case insensitive."},
        keys_ignore_case=True,
    ),
)
