"""Listings: a response leaves out the elements of owners whose resources the caller may not see.

The module `permissions` of a service may have a table LISTED: the operations that list resources, and where the owner of each
element is. Before the handler, such an operation counts as one on a resource of the caller. After it, the policies of a restricted
caller decide for each distinct owner, as if the operation were on a resource of this owner. So a policy that does not use the
condition key corral:Owner shows all elements, as on AWS. A page may be shorter than its limit, and still have a token. The token
contains the last element of the page, which may be one that is left out. So a restricted caller gets it encrypted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Any

from msgspec import Struct

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.encryption import CannotDecrypt, decrypt, encrypt
from corral.operations.services import MODULES

TOKENS = (
    "ContinuationToken",
    "Marker",
    "NextContinuationToken",
    "NextMarker",
    "NextToken",
    "nextToken",
)  # in requests and responses

# (transaction in the lane of the operation, caller, parameters, element) → the owner. None: the element is always shown.
OwnerOf = Callable[[Tx[Any], Caller, Mapping[str, Any], Any], str | None]


class Listed(Struct, frozen=True):
    members: tuple[str, ...]  # the lists in the response, for example "runs" or "frontOfQueue.jobs"
    owner: OwnerOf


@cache  # the number of entries is bounded, because the operations are those that are served
def listing_of(service: str, operation: str) -> Listed | None:
    """Return the row of the table LISTED for an operation. Return None if the operation lists nothing."""
    module = import_module(f"corral.services.{MODULES[service][1].partition('.')[0]}.permissions")
    found: Listed | None = getattr(module, "LISTED", {}).get(operation)
    return found


def visible(
    tx: Tx[Any],
    listing: Listed,
    caller: Caller,
    params: Mapping[str, Any],
    response: dict[str, Any],
    may_see: Callable[[str], bool],
) -> dict[str, Any]:
    """Return the response without the elements of owners for which `may_see` is False. It is called once for each owner."""
    decided: dict[str | None, bool] = {None: True}

    def is_shown(element: Any) -> bool:
        owner = listing.owner(tx, caller, params, element)
        if owner not in decided:
            decided[owner] = may_see(str(owner))
        return decided[owner]

    for path in listing.members:
        response = _filtered(response, path, is_shown)
    return response


def with_hidden_tokens(tx: Tx[Any], caller: Caller, response: dict[str, Any]) -> dict[str, Any]:
    """Encrypt the token of a response for its caller."""
    given = {member: response[member] for member in TOKENS if response.get(member)}
    hidden = {member: encrypt(tx.settings.secrets_key, text, _holder(caller)) for member, text in given.items()}
    return {**response, **hidden}


def with_open_tokens(tx: Tx[Any], caller: Caller, params: dict[str, Any]) -> dict[str, Any]:
    """Decrypt the token of a request. Leave another text as it is: the handler refuses it."""
    opened = dict[str, Any]()
    for member in TOKENS:
        if params.get(member):
            with suppress(CannotDecrypt, ValueError):
                opened[member] = decrypt(tx.settings.secrets_key, params[member], _holder(caller))
    return {**params, **opened}


def _holder(caller: Caller) -> str:
    return f"page token of {caller.principal.arn}"


def _filtered(response: dict[str, Any], path: str, is_shown: Callable[[Any], bool]) -> dict[str, Any]:
    member, _, rest = path.partition(".")
    found = response.get(member)
    if not found:
        return response
    return {**response, member: _filtered(found, rest, is_shown) if rest else [each for each in found if is_shown(each)]}
