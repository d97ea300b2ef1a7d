"""Names and ARNs of parameters, functions that find a parameter, and the errors that several operations raise."""

from __future__ import annotations

import re
from typing import NamedTuple

from corral.access.caller import Caller
from corral.core.errors import ApiError
from corral.core.transactions import Tx
from corral.model.numbers import whole_number
from corral.model.parameter import Parameter
from corral.operations.pagination import Pagination
from corral.services.ssm import errors, public_parameters
from corral.store import Store

PAGES = Pagination(errors.InvalidNextToken, "MaxResults", "NextToken", "NextToken", default=50, largest=50)
NAME = re.compile(r"[a-zA-Z0-9_.\-/]+")
SPACES = " "  # AWS removes them from the start and the end of a name
RESERVED = ("aws", "ssm")
LEVELS_MAX = 15
ARN_MAX_CHARACTERS = 1011
SUB_PATHS = (
    "If formed as a path, it can consist of sub-paths divided by slash symbol; each sub-path can be formed as a mix of "
    "letters, numbers and the following 3 symbols .-_"
)


class ParameterReference(NamedTuple):
    """The name or ARN of a parameter in a request, parsed."""

    region: str
    name: str
    selector: str  # ":3" for a version, ":stable" for a label, or empty


def arn(account: str, region: str, name: str) -> str:
    owner = "" if public_parameters.is_public(name) else account
    return f"arn:aws:ssm:{region}:{owner}:parameter/{name.removeprefix('/')}"


def check_new_name(caller: Caller, name: str) -> None:
    """Raise the error that AWS would raise for the name of a new parameter."""
    first = name.removeprefix("/")
    if first.lower().startswith(RESERVED):
        if name.count("/") > 1 and first.lower().startswith("aws"):
            raise errors.AccessDeniedException(f"No access to reserved parameter name: {name}.")
        reserved = '"ssm"' if name.count("/") > 1 else '"aws" or "ssm"'
        raise errors.ValidationException(f"Parameter name: can't be prefixed with {reserved} (case-insensitive). {SUB_PATHS}")
    if not NAME.fullmatch(name) or name.endswith("/") or "//" in name:
        raise errors.ValidationException(f'Parameter name: can\'t be prefixed with "ssm" (case-insensitive). {SUB_PATHS}')
    if "/" in name and not name.startswith("/"):
        raise errors.ValidationException("Parameter name must be a fully qualified name.")
    if name.count("/") > LEVELS_MAX:
        raise errors.HierarchyLevelLimitExceededException(f"A parameter name may have at most {LEVELS_MAX} levels.")
    if len(arn(caller.account, caller.region, name)) > ARN_MAX_CHARACTERS:
        raise errors.ValidationException(f"Parameter ARN can't be longer than {ARN_MAX_CHARACTERS} characters.")


def is_well_formed(name: str) -> bool:
    return NAME.fullmatch(name) is not None and "//" not in name and ("/" not in name or name.startswith("/"))


def parse_reference(caller: Caller, given: str) -> ParameterReference:
    """Parse a name or an ARN. A version or a label can follow after a colon. The parameter need not exist."""
    region, name = caller.region, given
    if given.startswith("arn:"):
        parts = given.split(":", 5)
        if len(parts) != 6 or parts[2] != "ssm" or not parts[5].startswith("parameter/"):
            raise errors.ValidationException(f"Invalid parameter ARN: {given}")
        region, name = parts[3], parts[5].removeprefix("parameter")
        if parts[4] not in ("", caller.account):
            raise errors.ParameterNotFound(f"Parameter {given} not found.")
    name, colon, selector = name.partition(":")
    return ParameterReference(region, name, colon + selector)


def find(tx: Tx[Store], caller: Caller, given: str) -> tuple[Parameter, str]:
    """The version that a name or an ARN refers to, and its selector, such as `:3`. Without one, it is the latest version."""
    region, name, selector = parse_reference(caller, given)
    found = _latest(tx, region, name)
    if found is None:
        if not given.startswith("arn:") and not is_well_formed(name):
            raise errors.ValidationException(f'Parameter name: can\'t be prefixed with "ssm" (case-insensitive). {SUB_PATHS}')
        raise errors.ParameterNotFound(f"Parameter {given} not found.")
    if not selector:
        return found, ""
    selected = selector[1:]
    number = whole_number(selected)
    if number is not None:
        kind, version = "version", found if found.version == number else tx.store.parameters.version(region, found.name, number)
    else:
        kind, version = "label", tx.store.parameters.labelled(region, found.name, selected)
    if version is None:
        raise no_such_version(kind, selected, found.name)
    return version, selector


def no_such_version(kind: str, selected: str, name: str) -> ApiError:
    return errors.ParameterVersionNotFound(
        f"Systems Manager could not find {kind} {selected} of {name}. Verify the {kind} and try again."
    )


def find_own(tx: Tx[Store], caller: Caller, name: str) -> Parameter:
    """The latest version of a parameter of this account. AWS's public parameters are refused, because they are read-only."""
    if public_parameters.is_public(name):
        raise errors.AccessDeniedException(f"No access to reserved parameter name: {name}.")
    found = latest(tx, caller.region, name)
    if found is None:
        raise errors.ParameterNotFound(f"Parameter {name} not found.")
    return found


def latest(tx: Tx[Store], region: str, name: str) -> Parameter | None:
    """The latest version of a parameter of this account. `/name` and `name` are the same parameter, with the same ARN."""
    name = name.strip(SPACES)
    found = tx.store.parameters.latest(region, name)
    if found is None and "/" not in (root_name := name.removeprefix("/")):
        return tx.store.parameters.latest(region, root_name if root_name != name else f"/{name}")
    return found


def _latest(tx: Tx[Store], region: str, name: str) -> Parameter | None:
    return public_parameters.find(region, name) if public_parameters.is_public(name) else latest(tx, region, name)
