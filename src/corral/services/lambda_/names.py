"""Names and ARNs of Lambda functions. Also finds and stores Lambda functions."""

from __future__ import annotations

import re
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.services.lambda_ import errors
from corral.store import Store
from corral.store.stored_resources import Document

SERVICE, FUNCTION, MAPPING = "lambda", "function", "event-source-mapping"
LATEST = "$LATEST"
NAME_MAX_CHARACTERS = 64
# NAME, ACCOUNT:function:NAME or the ARN, each with or without :QUALIFIER
REFERENCE = re.compile(
    r"(?:arn:aws[a-z-]*:lambda:)?(?:([a-z]{2}(?:-[a-z]+)+-\d):)?(?:(\d{12}):)?(?:function:)?([a-zA-Z0-9_-]+)(?::([$a-zA-Z0-9_-]+))?"
)


def function_arn(region: str, account: str, name: str) -> str:
    return f"arn:aws:lambda:{region}:{account}:function:{name}"


def mapping_arn(region: str, account: str, uuid: str) -> str:
    return f"arn:aws:lambda:{region}:{account}:event-source-mapping:{uuid}"


def change_key(arn: str) -> str:
    """The key that changes when the function with this ARN is created or changed."""
    return f"changed:{arn}"


def deletion_key(uuid: str) -> str:
    """The key that changes when an event source mapping no longer exists."""
    return f"deleted-mapping:{uuid}"


def named_function(caller: Caller, given: str, qualifier: str | None = None) -> str:
    """Return the name of the function that a request names.

    Raise an error if the request names another region, another account, or another version than $LATEST.
    """
    found = REFERENCE.fullmatch(given)
    if found is None:
        raise errors.InvalidParameterValueException(f"The function name is not valid: {given}")
    region, account, name, own_qualifier = found.groups()
    if region is not None and region != caller.region:
        raise errors.ResourceNotFoundException(f"Functions from '{region}' are not reachable in this region ('{caller.region}')")
    arn = function_arn(caller.region, account or caller.account, name)
    if account is not None and account != caller.account:
        raise errors.no_such_function(arn)
    version = qualifier or own_qualifier or LATEST
    if version != LATEST:
        raise errors.no_such_function(f"{arn}:{version}")
    return name


def find_function(tx: Tx[Store], caller: Caller, params: dict[str, Any], member: str = "FunctionName") -> Document:
    """Return the function that a request names. Raise the service's error if it does not exist, or has another RevisionId."""
    name = named_function(caller, params[member], params.get("Qualifier"))
    found = get_function(tx, caller.region, name)
    if found is None:
        raise errors.no_such_function(function_arn(caller.region, caller.account, name))
    check_revision(found, params, "GetFunction/GetAlias")
    return found


def check_revision(document: Document, params: dict[str, Any], operation: str) -> None:
    """Raise an error if a request is for another revision. `operation` returns the present one."""
    if params.get("RevisionId") not in (None, document["RevisionId"]):
        raise errors.PreconditionFailedException(
            "The Revision Id provided does not match the latest Revision Id. "
            f"Call the {operation} API to retrieve the latest Revision Id"
        )


def get_function(tx: Tx[Store], region: str, name: str) -> Document | None:
    return tx.store.stored.get(SERVICE, FUNCTION, region, name)


def function_with_arn(tx: Tx[Store], arn: str) -> Document | None:
    """Return the function with this ARN, in any region, or None if the account does not have it."""
    parts = arn.split(":")
    if len(parts) == 8 and parts[7] == LATEST:
        parts.pop()
    if len(parts) != 7:
        return None
    found = get_function(tx, parts[3], parts[6])
    return found if found is not None and found["FunctionArn"] == ":".join(parts) else None


def put_function(tx: Tx[Store], document: Document, owner: str = "") -> None:
    """Store a new or changed function. A function that exists keeps its owner."""
    tx.store.stored.put(SERVICE, FUNCTION, region_of(document), document["FunctionName"], document, tx.now_s, owner)


def region_of(document: Document) -> str:
    return str(document["FunctionArn"]).split(":")[3]
