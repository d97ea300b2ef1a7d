"""Filters of the Describe operations, for all resource types.

A type declares each filter as a path into its document, for example `State` or `Attachments[].VpcId`. Every type also has filters
by tag. A resource is selected if it matches every filter of the request. It matches a filter if one of the filter's values matches
one of the values at the path. `*` and `?` are wildcards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from corral.access.caller import Caller
from corral.core.transactions import Tx
from corral.operations.stored_resources import Params, Selects
from corral.services.ec2.errors import InvalidParameterValue
from corral.store import Store

Selector = Callable[[Tx[Store], Caller, Params], Selects]
COMMON = {"owner-id": "OwnerId"}
# The wildcards, a backslash with the character that it makes plain, and "[", which has a meaning only for `fnmatchcase`.
SPECIAL = re.compile(r"\\[*?\\]|[*?\[]")


def filtered(paths: Mapping[str, str], member: str = "Filters", tags: str = "Tags") -> Selector:
    """Return the function for `ResourceType.selects`. It converts the filters of a request to a predicate on documents.

    `paths` has the path of each filter. `member` is the member of a request that contains the filters, and `tags` the member of a
    document that contains its tags.
    """
    known = {**COMMON, "tag-key": f"{tags}[].Key", **paths}

    def selects(tx: Tx[Store], caller: Caller, params: Params) -> Selects:
        tests = [_test(each.get("Name", ""), each.get("Values", ()), known, tags) for each in params.get(member, ())]
        return lambda document: all(test(document) for test in tests)

    return selects


def _test(name: str, values: list[str], paths: Mapping[str, str], tags: str) -> Selects:
    if not values:
        raise InvalidParameterValue(f"The filter '{name}' must have at least one value.")
    matches = [matcher(value) for value in values]
    if name.startswith("tag:"):
        key = name.removeprefix("tag:")
        return lambda document: any(match(tag["Value"]) for tag in document.get(tags, ()) if tag["Key"] == key for match in matches)
    if name not in paths:
        raise InvalidParameterValue(f"The filter '{name}' is invalid")
    steps = paths[name].split(".")
    return lambda document: any(match(value) for value in _values(document, steps) for match in matches)


def _values(value: Any, steps: list[str]) -> Iterator[str]:
    """Yield the values at a path as texts. A step `name[]` of the path leads to each element of the list `name`."""
    if not steps:
        if isinstance(value, bool):
            yield "true" if value else "false"
        elif value is not None:
            yield str(value)
        return
    name, is_list = steps[0].removesuffix("[]"), steps[0].endswith("[]")
    inner = value.get(name) if isinstance(value, dict) else None
    for each in (inner or ()) if is_list else (inner,):
        yield from _values(each, steps[1:])


def matcher(value: str) -> Callable[[str], bool]:
    """Return a function that compares a text with the value of a filter.

    A backslash before a wildcard or before another backslash makes this character a plain character.
    """
    if not SPECIAL.search(value):
        return value.__eq__
    pattern = SPECIAL.sub(lambda found: found[0] if found[0] in "*?" else f"[{found[0][-1]}]", value)
    return lambda text: fnmatchcase(text, pattern)
