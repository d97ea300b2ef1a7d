"""How EC2 names its ids, errors, pages and tags."""

from __future__ import annotations

import hashlib
from typing import Any

from corral.core import Tx
from corral.errors import ApiError, api_error
from corral.services.caller import Caller
from corral.services.pages import Pages
from corral.services.stored import Document, Params, ServiceStyle
from corral.services.tags import TagRules
from corral.store import Store

DependencyViolation = api_error("DependencyViolation")
IdempotentParameterMismatch = api_error("IdempotentParameterMismatch")
InvalidGroupDuplicate = api_error("InvalidGroup.Duplicate")
InvalidKeyPairDuplicate = api_error("InvalidKeyPair.Duplicate")
InvalidNextToken = api_error("InvalidNextToken")
InvalidParameterCombination = api_error("InvalidParameterCombination")
InvalidParameterValue = api_error("InvalidParameterValue")
MissingParameter = api_error("MissingParameter")
ResourceAlreadyAssociated = api_error("Resource.AlreadyAssociated")
TagLimitExceeded = api_error("TagLimitExceeded")
UnsupportedOperation = api_error("UnsupportedOperation")

NOT_FOUND = {  # type → the error for an id that does not exist
    "vpc": ("InvalidVpcID.NotFound", "The vpc ID '{}' does not exist"),
    "subnet": ("InvalidSubnetID.NotFound", "The subnet ID '{}' does not exist"),
    "internet-gateway": ("InvalidInternetGatewayID.NotFound", "The internetGateway ID '{}' does not exist"),
    "route-table": ("InvalidRouteTableID.NotFound", "The routeTable ID '{}' does not exist"),
    "security-group": ("InvalidGroup.NotFound", "The security group '{}' does not exist"),
    "security-group-rule": ("InvalidSecurityGroupRuleId.NotFound", "The security group rule ID '{}' does not exist"),
    "elastic-ip": ("InvalidAllocationID.NotFound", "The allocation ID '{}' does not exist"),
    "natgateway": ("NatGatewayNotFound", "The Nat Gateway {} was not found"),
    "vpc-endpoint": ("InvalidVpcEndpointId.NotFound", "The Vpc Endpoint Id '{}' does not exist"),
    "key-pair": ("InvalidKeyPair.NotFound", "The key pair '{}' does not exist"),
    "network-acl": ("InvalidNetworkAclID.NotFound", "The networkAcl ID '{}' does not exist"),
    "dhcp-options": ("InvalidDhcpOptionID.NotFound", "The dhcpOption ID '{}' does not exist"),
    "association": ("InvalidAssociationID.NotFound", "The association ID '{}' does not exist"),
}


_NOT_FOUND = {type_: (api_error(code), text) for type_, (code, text) in NOT_FOUND.items()}
InvalidAssociationNotFound = _NOT_FOUND["association"][0]


def not_found(type_: str, name: str) -> ApiError:
    error, text = _NOT_FOUND[type_]
    return error(text.format(name))


def in_use(type_: str, name: str) -> ApiError:
    """The refusal to delete a resource that others depend on."""
    return DependencyViolation(f"The {type_} '{name}' has dependencies and cannot be deleted.")


def existing(tx: Tx[Store], caller: Caller, type_: str, name: str) -> Document:
    """A resource of another type that a request refers to."""
    document = tx.store.stored.get("ec2", type_, caller.region, name)
    if document is None:
        raise not_found(type_, name)
    return document


def every(tx: Tx[Store], caller: Caller, type_: str, **members: str) -> list[Document]:
    """The resources of a type that have these members."""
    found = (document for _, document in tx.store.stored.listed("ec2", type_, caller.region))
    return [document for document in found if all(document.get(name) == value for name, value in members.items())]


def new_id(tx: Tx[Store], prefix: str) -> str:
    """An id in EC2's form: a prefix and 17 hexadecimal digits that begin with 0."""
    return f"{prefix}-0{tx.ids.hex32()[:16]}"


def arn(caller: Caller, resource: str) -> str:
    return f"arn:aws:ec2:{caller.region}:{caller.account}:{resource}"


def required(params: Params, member: str) -> Any:
    """A member that the model does not require but the operation does."""
    if params.get(member) is None:
        raise MissingParameter(f"The request must contain the parameter {member}")
    return params[member]


def digest_of(text: str) -> str:
    """Hex digits that are always the same for a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _specified_tags(type_: str, params: Params) -> list[dict[str, str]]:
    """The tags of TagSpecifications, which name the type of resource that they are for."""
    tags = list[dict[str, str]]()
    for specification in params.get("TagSpecifications", ()):
        if specification.get("ResourceType") != type_:
            raise InvalidParameterValue(
                f"'{specification.get('ResourceType')}' is not a valid taggable resource type for this operation."
            )
        tags += specification.get("Tags", ())
    return tags


def _limit_out_of_range(member: str, limit: int, smallest: int, largest: int) -> ApiError:
    bound = f"greater than or equal to {smallest}" if limit < smallest else f"less than or equal to {largest}"
    return InvalidParameterValue(
        f"Value ( {limit} ) for parameter {member[0].lower()}{member[1:]} is invalid. Expecting a value {bound}."
    )


PAGES = Pages(
    InvalidNextToken, limit="MaxResults", token="NextToken", next_token="NextToken", default=None, smallest=5,
    invalid_limit=_limit_out_of_range,
)  # fmt: skip
TAGS = TagRules(
    InvalidParameterValue,
    errors={"count": TagLimitExceeded},
    texts={
        "count": "The maximum number of tags for a resource has been reached: {max}.",
        "reserved": "Value ( {key} ) for parameter key is invalid. Tag keys starting with 'aws:' are reserved for internal use",
        "removed": "Value ( {key} ) for parameter key is invalid. Tag keys starting with 'aws:' are reserved for internal use",
        "duplicate": "Duplicate tag key '{key}' specified.",
    },
    any_character=True,
)
EC2 = ServiceStyle(
    "ec2",
    exists=lambda type_, name: InvalidParameterValue(f"The {type_} '{name}' already exists."),
    missing=not_found,
    pages=PAGES,
    tags=TAGS,
    given_tags=_specified_tags,
    token_reused=lambda: IdempotentParameterMismatch(
        "Arguments on this idempotent request are inconsistent with arguments used in previous request(s)."
    ),
)
