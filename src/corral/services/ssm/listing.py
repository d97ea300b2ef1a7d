"""GetParametersByPath and DescribeParameters. Both have filters and pages. Only GetParametersByPath returns values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.model.parameter import Parameter
from corral.services.ssm import errors, public_parameters
from corral.services.ssm.parameter_names import LEVELS_MAX, NAME, PAGES, arn
from corral.services.ssm.parameters import metadata, parameter_response
from corral.store import Store

BY_PATH_MAX = 10
DESCRIBED_MAX = 50
SCAN_CHUNK = 100  # parameters read at a time
SCANNED_MAX = 1_000  # parameters read for one request; a page can therefore be short and still have a next token

# Filter key → its options. The first option is the default.
OPTIONS = {
    "Name": ("Equals", "BeginsWith", "Contains"),
    "Type": ("Equals", "BeginsWith"),
    "KeyId": ("Equals", "BeginsWith"),
    "Path": ("OneLevel", "Recursive"),
    "Label": ("Equals",),
    "Tier": ("Equals",),
    "DataType": ("Equals",),
    "tag": ("Equals",),
}
DESCRIBED_BY = ("Name", "Type", "KeyId", "Path", "Tier", "DataType", "tag")  # the filter keys of DescribeParameters
WITHIN_PATH = ("Type", "KeyId", "Label")  # the filter keys of GetParametersByPath

ParameterFilters = list[tuple[str, str, list[str]]]  # (key, option, values)
Source = Callable[[str, int], list[Parameter]]  # (after, limit) → parameters sorted by name, with names greater than `after`


def get_parameters_by_path(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    path = _path(params["Path"])
    limit = params.get("MaxResults", BY_PATH_MAX)
    filters = _filters(params.get("ParameterFilters", ()), WITHIN_PATH)
    labels = [values for key, _, values in filters if key == "Label"]
    rest = [each for each in filters if each[0] != "Label"]
    source = _under(tx, caller.region, path, recursive=params.get("Recursive", False))
    page, token = _page(tx, params, source, limit, rest)
    if labels:
        page = [version for parameter in page if (version := _labelled(tx, parameter, labels)) is not None]
    return {"Parameters": [parameter_response(tx, caller, parameter, params) for parameter in page], **token}


def describe_parameters(tx: Tx[Store], params: dict[str, Any], caller: Caller) -> dict[str, Any]:
    if params.get("Filters") and params.get("ParameterFilters"):
        raise errors.ValidationException("You can use either Filters or ParameterFilters in a single request.")
    old = [{**each, "Option": "BeginsWith" if each["Key"] == "Name" else "Equals"} for each in params.get("Filters", ())]
    filters = _filters(params.get("ParameterFilters") or old, DESCRIBED_BY)

    def all_parameters(after: str, count: int) -> list[Parameter]:
        return tx.store.parameters.listed(caller.region, "", after, count)

    limit = params.get("MaxResults", DESCRIBED_MAX)
    page, token = ([], dict[str, str]()) if params.get("Shared") else _page(tx, params, all_parameters, limit, filters)
    described = [{**metadata(each), "ARN": arn(caller.account, each.region, each.name)} for each in page]
    return {"Parameters": described, **token}


def _path(path: str) -> str:
    """Check the path, and return it with a slash at its end."""
    if not path.startswith("/") or not NAME.fullmatch(path) or "//" in path:
        raise errors.ValidationException(
            "The parameter doesn't meet the parameter name requirements. The parameter name must begin with a forward slash "
            '"/". It can\'t be prefixed with "aws" or "ssm" (case-insensitive). It must use only letters, numbers, or the '
            "following symbols: . (period), - (hyphen), _ (underscore). Special characters are not allowed. All sub-paths, if "
            'specified, must use the forward slash symbol "/". Valid example: /get/parameters2-/by1./path0_.'
        )
    if path.rstrip("/").count("/") > LEVELS_MAX:
        raise errors.HierarchyLevelLimitExceededException(f"A path may have at most {LEVELS_MAX} levels.")
    return path.rstrip("/") + "/"


def _under(tx: Tx[Store], region: str, path: str, *, recursive: bool) -> Source:
    if public_parameters.is_public(path):
        among = [each for each in public_parameters.under(region, path) if recursive or "/" not in each.name[len(path) :]]
        return lambda after, count: [each for each in among if each.name > after][:count]
    prefix = "" if path == "/" else path  # names without a slash are also below the root
    slashless = None if recursive else len(path)
    return lambda after, count: tx.store.parameters.listed(region, prefix, after, count, slashless=slashless)


def _page(
    tx: Tx[Store], params: dict[str, Any], source: Source, limit: int, filters: ParameterFilters
) -> tuple[list[Parameter], dict[str, str]]:
    after, found = PAGES.after(params), list[Parameter]()
    chunk = SCAN_CHUNK if filters else limit + 1
    for _ in range(0, SCANNED_MAX, chunk):
        scanned = source(after, chunk)
        for parameter in scanned:
            if _matches(tx, parameter, filters):
                if len(found) == limit:
                    return found, PAGES.more(found[-1].name)
                found.append(parameter)
        if len(scanned) < chunk:
            return found, {}
        after = scanned[-1].name
    return found, PAGES.more(after)


def _labelled(tx: Tx[Store], parameter: Parameter, labels: list[list[str]]) -> Parameter | None:
    for values in labels:
        for label in values:
            if (found := tx.store.parameters.labelled(parameter.region, parameter.name, label)) is not None:
                return found
    return None


def _filters(given: list[dict[str, Any]], allowed: tuple[str, ...]) -> ParameterFilters:
    filters: ParameterFilters = []
    for each in given:
        key = "tag" if each["Key"].startswith("tag:") else each["Key"]
        if key not in allowed:
            raise errors.InvalidFilterKey(
                f"The following filter key is not valid: {each['Key']}. Valid filter keys include: [{', '.join(allowed)}]."
            )
        option = each.get("Option", OPTIONS[key][0])
        if option not in OPTIONS[key]:
            raise errors.InvalidFilterOption(
                f"The following filter option is not valid: {option}. Valid options include: [{', '.join(OPTIONS[key])}]."
            )
        values = each.get("Values", [])
        if not values and key != "tag":
            raise errors.InvalidFilterValue(f"The following filter values are missing : null for filter key {each['Key']}.")
        filters.append((each["Key"], option, [_path(value) for value in values] if key == "Path" else values))
    return filters


def _matches(tx: Tx[Store], parameter: Parameter, filters: ParameterFilters) -> bool:
    return all(_matches_one(tx, parameter, key, option, values) for key, option, values in filters)


def _matches_one(tx: Tx[Store], parameter: Parameter, key: str, option: str, values: list[str]) -> bool:
    if key.startswith("tag:"):
        tag = (tx.store.parameters.tags(parameter.region, parameter.name) or {}).get(key[4:])
        return tag is not None and (not values or tag in values)
    if key == "Path":
        return any(_is_under(parameter.name, path, option) for path in values)
    has = parameter.name if key == "Name" else parameter.type if key == "Type" else parameter.details.get(key, "")
    if option == "BeginsWith":
        return any(has.startswith(value) for value in values)
    if option == "Contains":
        return any(value in has for value in values)
    return has in values


def _is_under(name: str, path: str, option: str) -> bool:
    name = name if name.startswith("/") else f"/{name}"
    return name.startswith(path) and (option == "Recursive" or "/" not in name[len(path) :])
