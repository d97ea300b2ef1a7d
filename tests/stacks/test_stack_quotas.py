"""The quotas of stacks bound what a template with nested stacks can create."""

from __future__ import annotations

from itertools import count

import pytest

from corral.model.stack import Stack
from corral.services.cloudformation import stack_operations
from corral.services.cloudformation.stack_quotas import NESTED_RESOURCES_MAX, NESTING_MAX, STACKS_MAX
from stacks.stack_world import CALLER, World, refused, spec_of

HANDLE = {"Type": "AWS::CloudFormation::WaitConditionHandle"}
NUMBERS = count()


@pytest.fixture
def world() -> World:
    return World()


def nested(world: World, parent: Stack, resources: int = 1, **parameters: str) -> Stack:
    declared = {name: {"Type": "String"} for name in parameters}
    template = {"Parameters": declared, "Resources": {f"R{at}": HANDLE for at in range(resources)}}
    spec = spec_of(f"nested-{next(NUMBERS)}", template, parameters)
    found: Stack = world.run(lambda tx: stack_operations.begin_create(tx, CALLER, spec, parent=parent))
    return found


def test_nested_stacks_are_bounded_in_depth(world: World) -> None:
    stack = world.create({"Resources": {"R": HANDLE}})
    for level in range(NESTING_MAX):
        stack = nested(world, stack, Level=str(level))
    assert f"at most {NESTING_MAX} levels" in refused(lambda: nested(world, stack, Level="more"))


def test_a_nested_stack_with_the_template_of_a_stack_above_it_needs_other_parameters(world: World) -> None:
    first = nested(world, world.create({"Resources": {"R": HANDLE}}), Level="1")
    below = nested(world, nested(world, first, Level="2"), Level="3")
    assert f"as the stack {first.name}, which contains it" in refused(lambda: nested(world, below, Level="1"))


def test_the_nested_stacks_of_one_operation_are_bounded_in_resources(world: World) -> None:
    root = world.create({"Resources": {"R": HANDLE}})
    for at in range(NESTED_RESOURCES_MAX // 500):
        nested(world, root, 500, Number=str(at))
    assert f"more than {NESTED_RESOURCES_MAX} new resources" in refused(lambda: nested(world, root))
    nested(world, world.update({"Resources": {"R": HANDLE, "S": HANDLE}}))


def test_a_region_has_at_most_two_thousand_stacks(world: World) -> None:
    copied = "SELECT id || ?, region, name || ?, status, created_at, NULL, '', owner, record FROM stack WHERE name = 's'"
    root = world.create({"Resources": {"R": HANDLE}})
    world.run(
        lambda tx: (
            tx.store.executemany(f"INSERT INTO stack {copied}", [(f"-{at}", f"-{at}") for at in range(STACKS_MAX - 1)]) and None
        )
    )
    for call in (lambda: world.create({"Resources": {"R": HANDLE}}, "another"), lambda: nested(world, root)):
        assert refused(call).startswith("Limit for stack has been exceeded")
