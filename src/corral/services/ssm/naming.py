"""Names of parameters, their rules, and the errors that all of the Parameter Store shares."""

from __future__ import annotations

import re
from typing import NamedTuple

from corral.core import Tx
from corral.errors import api_error
from corral.model.parameter import Parameter
from corral.services.caller import Caller
from corral.services.pagination import Pagination
from corral.services.ssm import public
from corral.store import Store

AccessDeniedException = api_error("AccessDeniedException")
HierarchyLevelLimitExceededException = api_error("HierarchyLevelLimitExceededException")
InvalidNextToken = api_error("InvalidNextToken")
ParameterNotFound = api_error("ParameterNotFound")
ParameterVersionNotFound = api_error("ParameterVersionNotFound")
ValidationException = api_error("ValidationException")

PAGES = Pagination(InvalidNextToken, "MaxResults", "NextToken", "NextToken", default=50, largest=50)
NAME = re.compile(r"[a-zA-Z0-9_.\-/]+")
RESERVED = ("aws", "ssm")
LEVELS_MAX = 15
ARN_MAX_CHARACTERS = 1011
SUB_PATHS = (
    "If formed as a path, it can consist of sub-paths divided by slash symbol; each sub-path can be formed as a mix of "
    "letters, numbers and the following 3 symbols .-_"
)


class Selected(NamedTuple):
    """What a caller asked for by name."""

    region: str
    name: str
    selector: str  # ":3", ":label", or nothing


def arn(account: str, region: str, name: str) -> str:
    owner = "" if public.is_public(name) else account
    return f"arn:aws:ssm:{region}:{owner}:parameter/{name.removeprefix('/')}"


def check_new_name(caller: Caller, name: str) -> None:
    """Refuse a name that no parameter may have."""
    first = name.removeprefix("/")
    if first.lower().startswith(RESERVED):
        if name.count("/") > 1 and first.lower().startswith("aws"):
            raise AccessDeniedException(f"No access to reserved parameter name: {name}.")
        reserved = '"ssm"' if name.count("/") > 1 else '"aws" or "ssm"'
        raise ValidationException(f"Parameter name: can't be prefixed with {reserved} (case-insensitive). {SUB_PATHS}")
    if not NAME.fullmatch(name) or name.endswith("/") or "//" in name:
        raise ValidationException(f'Parameter name: can\'t be prefixed with "ssm" (case-insensitive). {SUB_PATHS}')
    if "/" in name and not name.startswith("/"):
        raise ValidationException("Parameter name must be a fully qualified name.")
    if name.count("/") > LEVELS_MAX:
        raise HierarchyLevelLimitExceededException(f"A parameter name may have at most {LEVELS_MAX} levels.")
    if len(arn(caller.account, caller.region, name)) > ARN_MAX_CHARACTERS:
        raise ValidationException(f"Parameter ARN can't be longer than {ARN_MAX_CHARACTERS} characters.")


def select(caller: Caller, given: str) -> Selected:
    """By name or by ARN, with a version or a label after a colon. It says nothing of whether there is one."""
    region, name = caller.region, given
    if given.startswith("arn:"):
        parts = given.split(":", 5)
        if len(parts) != 6 or parts[2] != "ssm" or not parts[5].startswith("parameter/"):
            raise ValidationException(f"Invalid parameter ARN: {given}")
        region, name = parts[3], parts[5].removeprefix("parameter")
        if parts[4] not in ("", caller.account):
            raise ParameterNotFound(f"Parameter {given} not found.")
    name, colon, selector = name.partition(":")
    return Selected(region, name, colon + selector)


def find(tx: Tx[Store], caller: Caller, given: str) -> tuple[Parameter, str]:
    """The version that a name means, and the selector in it."""
    region, name, selector = select(caller, given)
    found = _latest(tx, region, name)
    if found is None and given.startswith("arn:"):  # the ARN of a name without a slash looks like that of one with it
        found = _latest(tx, region, name.removeprefix("/"))
    if found is None:
        raise ParameterNotFound(f"Parameter {given} not found.")
    if not selector:
        return found, ""
    word = selector[1:]
    if word.isdecimal():
        version = found if found.version == int(word) else tx.store.parameters.version(region, found.name, int(word))
        missing = f"Systems Manager could not find version {word} of {found.name}. Verify the version and try again."
    else:
        version = tx.store.parameters.labelled(region, found.name, word)
        missing = f"Systems Manager could not find label {word} of {found.name}. Verify the label and try again."
    if version is None:
        raise ParameterVersionNotFound(missing)
    return version, selector


def own(tx: Tx[Store], caller: Caller, name: str) -> Parameter:
    """The latest version of a parameter that the caller may change."""
    if public.is_public(name):
        raise AccessDeniedException(f"No access to reserved parameter name: {name}.")
    found = tx.store.parameters.latest(caller.region, name)
    if found is None:
        raise ParameterNotFound(f"Parameter {name} not found.")
    return found


def _latest(tx: Tx[Store], region: str, name: str) -> Parameter | None:
    return public.find(region, name) if public.is_public(name) else tx.store.parameters.latest(region, name)
