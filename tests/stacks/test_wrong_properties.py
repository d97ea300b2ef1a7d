"""Random wrong properties of every resource type: a type refuses them with an error of the API, and never fails otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.template_types.lookup import resource_type
from stacks.resource_cases import Case
from stacks.resource_cases.stack import Stack
from stacks.test_resource_types import CASES, changed

WRONG = ("", 5, [], {}, "x", True, ["x"], {"a": "b"}, "a:b:c", -1)
PLACES_MAX = 12


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values in properties, except the inside of references."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        if key not in ("Ref", "GetAtt"):
            yield (*path, key)
            yield from places(each, (*path, key))


def with_wrong_value(properties: dict[str, Any], path: tuple[Any, ...], random: Random, *, keeps: bool) -> dict[str, Any]:
    """The properties with another value at the path, or without the value if `keeps` is false."""
    given: Any = deepcopy(properties)
    at = given
    for step in path[:-1]:
        at = at[step]
    if keeps or random.random() < 0.8:
        at[path[-1]] = deepcopy(random.choice(WRONG))
    else:
        del at[path[-1]]
    return dict(given)


@pytest.mark.parametrize("name", CASES)
def test_wrong_properties_are_refused_with_an_error_of_the_api(name: str):
    case, random, type_ = CASES[name], Random(name), resource_type(name)
    stack: Stack | None = None  # used until a resource is created in it
    for properties in (case.properties, changed(case)):
        found = list(places(properties))
        for path in random.sample(found, min(PLACES_MAX, len(found))):
            stack = stack or stack_with_needs(case)
            given = with_wrong_value(properties, path, random, keeps=path == (type_.name_property,))
            with suppress(ApiError):  # any other error fails the test
                stack.checked(name, "it", given)
                used, stack = stack, None
                used.create("it", name, given)
                used.attributes("it")
                used.delete("it")


def stack_with_needs(case: Case) -> Stack:
    stack = Stack()
    for key, needed in case.needs.items():
        type_name, needs = (needed, CASES[needed].properties) if isinstance(needed, str) else needed
        stack.create(key, type_name, needs)
    return stack
