"""Functions that all EC2 resource types share: lookup, ids and names, pagination and tags."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.operations.pagination import Pagination, among
from corral.operations.stored_resources import Document, Params, Selects, ServiceStyle
from corral.operations.tags import TagRules
from corral.services.ec2 import errors
from corral.store import Store

RESERVED_TAG_KEY = "Value ( {key} ) for parameter key is invalid. Tag keys starting with 'aws:' are reserved for internal use"


def existing(tx: Tx[Store], caller: Caller, type_: str, name: str) -> Document:
    """Return a resource that a request refers to. Raise EC2's error if it does not exist."""
    document = tx.store.stored.get("ec2", type_, caller.region, name)
    if document is None:
        raise errors.not_found(type_, name)
    return document


def every(tx: Tx[Store], caller: Caller, type_: str, **members: str) -> list[Document]:
    found = (document for _, document in tx.store.stored.listed("ec2", type_, caller.region))
    return [document for document in found if all(document.get(name) == value for name, value in members.items())]


def listed(
    pages: Pagination, params: Params, type_: str, known: Mapping[str, Document], ids: list[str] | None, chosen: Selects
) -> tuple[list[Document], dict[str, Any]]:
    """Return one page of the documents that a request names by their ids (`ids`) and selects. The documents need not be stored."""
    if missing := [each for each in ids or () if each not in known]:
        raise errors.not_found(type_, *missing)
    return pages.page(params, among({each: known[each] for each in ids or known if chosen(known[each])}))


def new_id(tx: Tx[Store], prefix: str) -> str:
    """Return a new id in the form of EC2: a prefix, a 0 and 16 hexadecimal digits."""
    return f"{prefix}-0{tx.ids.hex32()[:16]}"


def arn(caller: Caller, resource: str) -> str:
    return f"arn:aws:ec2:{caller.region}:{caller.account}:{resource}"


def required(params: Params, member: str) -> Any:
    """Return a member of a request. Raise an error if it is missing.

    The operation requires this member, although EC2's model declares it as optional.
    """
    if params.get(member) is None:
        raise errors.MissingParameter(f"The request must contain the parameter {member}")
    return params[member]


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _specified_tags(type_: str, params: Params) -> list[dict[str, str]]:
    """Return the tags in TagSpecifications. Each specification must have the type of the new resource."""
    tags = list[dict[str, str]]()
    for specification in params.get("TagSpecifications", ()):
        if specification.get("ResourceType") != type_:
            raise errors.InvalidParameterValue(
                f"'{specification.get('ResourceType')}' is not a valid taggable resource type for this operation."
            )
        tags += specification.get("Tags", ())
    return tags


def _limit_out_of_range(member: str, limit: int, smallest: int, largest: int) -> ApiError:
    bound = f"greater than or equal to {smallest}" if limit < smallest else f"less than or equal to {largest}"
    return errors.InvalidParameterValue(
        f"Value ( {limit} ) for parameter {member[0].lower()}{member[1:]} is invalid. Expecting a value {bound}."
    )


PAGES = Pagination(
    errors.InvalidNextToken, limit="MaxResults", token="NextToken", next_token="NextToken", default=None, smallest=5,
    invalid_limit=_limit_out_of_range,
)  # fmt: skip
TAGS = TagRules(
    errors.InvalidParameterValue,
    errors={"count": errors.TagLimitExceeded},
    texts={
        "count": "The maximum number of tags for a resource has been reached: {max}.",
        "reserved": RESERVED_TAG_KEY,
        "removed": RESERVED_TAG_KEY,
        "duplicate": "Duplicate tag key '{key}' specified.",
    },
    any_character=True,
)
NOT_BLOCKED = {"InternetGatewayBlockMode": "off"}  # BlockPublicAccessStates of VPCs and subnets: no setting blocks their gateways
EC2 = ServiceStyle(
    "ec2",
    exists=lambda type_, name: errors.InvalidParameterValue(f"The {type_} '{name}' already exists."),
    missing=errors.not_found,
    pages=PAGES,
    tags=TAGS,
    given_tags=_specified_tags,
    token_reused=lambda: errors.IdempotentParameterMismatch(
        "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
    ),
)
