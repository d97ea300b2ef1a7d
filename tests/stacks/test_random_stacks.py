"""Random stacks: whatever fails, operations end in a legal state, a rollback restores what was, and nothing is left at the end.

After kill -9 between any two transactions the operations end as if nothing had happened.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.core.errors import ApiError
from corral.model.stack import Stack, StackStatus
from corral.services.cloudformation import stack_operations
from memory_files import MEMORY
from stacks.random_templates import GPU_TYPE, Node, changed, graphs, template_of
from stacks.stack_world import CALLER, World

EXAMPLES = int(os.environ.get("CORRAL_EXAMPLES", "25"))
GPUS = 8
START_BATCHES = 4  # batches of `new_world`
SETTLE_S = 120.0  # longer than the timeout of signals
RANDOM = re.compile(r"-[A-Z0-9]{12}\b|[0-9a-f]{8,}")
COMPLETE = {"CREATE_COMPLETE", "UPDATE_COMPLETE"}

pairs = graphs().flatmap(lambda nodes: st.tuples(st.just(nodes), changed(nodes)))
quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


def new_world(folder: Path | None = None, **more: Any) -> World:
    world = World(folder, gpus=GPUS, **more)
    world.call("ec2", "DescribeVpcs")  # creates the default network
    world.call("autoscaling", "CreateLaunchConfiguration", LaunchConfigurationName="lc", ImageId="ami-1", InstanceType=GPU_TYPE)
    return world


def existing(world: World) -> dict[str, Any]:
    """Everything that resources of stacks can be, with the values that templates set."""
    rows = world.store.execute
    return {
        "stored": rows("SELECT service, type, name, document FROM stored_resource ORDER BY 1, 2, 3").fetchall(),
        "queues": _queues(world),
        "parameters": [
            (each["Name"], world.call("ssm", "GetParameter", Name=each["Name"])["Parameter"]["Value"])
            for each in world.call("ssm", "DescribeParameters").get("Parameters", [])
        ],
        "groups": rows("SELECT name, min_size, max_size, desired FROM scaling_group ORDER BY 1").fetchall(),
        "instances": world.running(),
        "free GPUs": world.free_gpus(),
        "logs": [
            (each["logGroupName"], each.get("retentionInDays")) for each in world.call("logs", "DescribeLogGroups")["logGroups"]
        ],
        "definitions": _definitions(world),
        "exports": world.store.stacks.exports("us-east-1"),
    }


def _queues(world: World) -> list[Any]:
    urls = sorted(world.call("sqs", "ListQueues").get("QueueUrls", []))
    names = ["DelaySeconds", "FifoQueue"]
    found = []
    for url in urls:
        attributes = world.call("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=names)["Attributes"]
        found.append((url, attributes, world.call("sqs", "ListQueueTags", QueueUrl=url).get("Tags")))
    return found


def _definitions(world: World) -> list[Any]:
    found = []
    for arn in world.call("ecs", "ListTaskDefinitions")["taskDefinitionArns"]:
        described = world.call("ecs", "DescribeTaskDefinition", taskDefinition=arn, include=["TAGS"])
        tags = {tag["key"]: tag["value"] for tag in described.get("tags", [])}  # their order has no meaning
        found.append((arn, described["taskDefinition"]["containerDefinitions"][0]["command"], tags))
    return found


def versions(world: World, stack: Stack) -> dict[str, Any]:
    return {key: row.version for key, row in world.rows(stack).items()}


def is_faulty(nodes: dict[str, Node]) -> bool:
    return any(node.faulty for node in nodes.values())


def settled(world: World, stack: Stack) -> Stack:
    world.settle()
    world.wait(SETTLE_S)
    stack = world.by_id(stack.id)
    world.check()
    return stack


@given(pairs)
@quick
def test_random_failures(pair: tuple[dict[str, Node], dict[str, Node]]) -> None:
    first, second = pair
    world = new_world()
    empty = existing(world)
    stack = settled(world, world.create(template_of(first)))
    if is_faulty(first):
        assert stack.status is StackStatus.ROLLBACK_COMPLETE
        assert existing(world) == empty
    else:
        assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)
        check_complete(world, stack, first)
        stack = update(world, stack, first, second)
    block_deletion(world, stack)
    stack = settled(world, world.delete())
    assert stack.status is StackStatus.DELETE_COMPLETE, world.events(stack)
    assert existing(world) == empty
    assert world.store.execute("SELECT count(*) FROM lease").fetchone() == (0,)


def block_deletion(world: World, stack: Stack) -> None:
    """If the stack has a VPC, something else uses it: then the stack cannot be deleted. Remove the other thing."""
    used = next((row for row in world.rows(stack).values() if row.type == "AWS::EC2::VPC" and row.status.value in COMPLETE), None)
    if used is None:
        return
    block = {"VpcId": used.physical_id, "CidrBlock": used.version.properties["CidrBlock"].replace("/16", "/24")}
    other = world.call("ec2", "CreateSubnet", **block)["Subnet"]["SubnetId"]
    stack = settled(world, world.delete())
    assert stack.status is StackStatus.DELETE_FAILED
    assert stack.status_reason == f"The following resource(s) failed to delete: [{used.logical_id}]. "
    rows, kept = world.rows(stack), {used.logical_id}
    for _ in rows:
        kept.update(each for key in list(kept) for each in rows[key].version.dependencies)
    assert {key for key, row in rows.items() if row.status.value != "DELETE_COMPLETE"} == kept, "what the VPC needs is kept, too"
    world.call("ec2", "DeleteSubnet", SubnetId=other)


def update(world: World, stack: Stack, first: dict[str, Node], second: dict[str, Node]) -> Stack:
    before, was, old = versions(world, stack), existing(world), stack.version
    try:
        stack = settled(world, world.update(template_of(second)))
    except ApiError as error:
        assert error.message == "No updates are to be performed."
        assert without_dependencies(first) == without_dependencies(second)
        return stack
    if is_faulty(second):
        assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE, world.events(stack)
        assert versions(world, stack) == before
        assert existing(world) == was
        assert stack.version == old and stack.stable is None
        assert {row.status.value for row in world.rows(stack).values()} <= COMPLETE
    else:
        assert stack.status is StackStatus.UPDATE_COMPLETE, world.events(stack)
        check_complete(world, stack, second)
    return stack


def without_dependencies(nodes: dict[str, Node]) -> dict[str, Any]:
    resources: dict[str, dict[str, Any]] = template_of(nodes)["Resources"]
    return {key: {name: value for name, value in declared.items() if name != "DependsOn"} for key, declared in resources.items()}


def check_complete(world: World, stack: Stack, nodes: dict[str, Node]) -> None:
    rows = world.rows(stack)
    assert set(rows) == set(nodes)
    for key, row in rows.items():
        assert row.status.value in COMPLETE and row.step is None and row.before is None and not row.is_new
        assert set(row.version.dependencies) == {each for each in (*nodes[key].needs, nodes[key].refers) if each in nodes}
    assert {name: value for name, value, _ in world.store.stacks.exports("us-east-1")} == {
        f"export-{key}": row.physical_id for key, row in rows.items()
    }
    wanted = sum(min(node.size, 2) for node in nodes.values() if node.kind == "group")
    assert world.free_gpus() == GPUS - min(wanted, GPUS)


@given(pairs, st.integers(0, 8), st.booleans(), st.booleans())
@settings(quick, max_examples=max(5, EXAMPLES // 2))
def test_interruptions(pair: tuple[dict[str, Node], dict[str, Node]], batches: int, preserve: bool, retries: bool) -> None:
    """An update is cancelled, or fails and is rolled back or tried again. A creation is deleted. Each after some batches."""
    first = {key: replace(node, faulty=False) for key, node in pair[0].items()}
    world = new_world()
    empty = existing(world)
    world.create(template_of(first), settle=False)
    for _ in range(batches):
        world.step()
    deleted = settled(world, world.delete(settle=False))
    assert deleted.status is StackStatus.DELETE_COMPLETE, world.events(deleted)
    assert existing(world) == empty
    stack = settled(world, world.create(template_of(first)))
    before, was = versions(world, stack), existing(world)
    second = pair[1]
    try:
        stack = world.update(template_of(second), settle=False, disable_rollback=preserve)
    except ApiError:
        return
    for _ in range(batches):
        world.step()
    is_cancelled = world.stack().status is StackStatus.UPDATE_IN_PROGRESS
    if is_cancelled:
        world.run(lambda tx: stack_operations.cancel_update(tx, world.stack()))
    stack = settled(world, stack)
    if stack.status is StackStatus.UPDATE_FAILED:
        assert preserve and (is_cancelled or is_faulty(second))
        if retries:
            retry(world, stack, second, empty)
            return
        world.run(lambda tx: stack_operations.rollback_stack(tx, CALLER, world.stack()))
        stack = settled(world, stack)
    if is_cancelled or is_faulty(second):
        assert stack.status is StackStatus.UPDATE_ROLLBACK_COMPLETE, world.events(stack)
        assert versions(world, stack) == before and existing(world) == was
    else:
        assert stack.status is StackStatus.UPDATE_COMPLETE
    assert settled(world, world.delete()).status is StackStatus.DELETE_COMPLETE
    assert existing(world) == empty


def retry(world: World, stack: Stack, second: dict[str, Node], empty: dict[str, Any]) -> None:
    """Update a stack whose update has failed to the same template without faults. Nothing of the failed update is left."""
    good = {key: replace(node, faulty=False) for key, node in second.items()}
    stack = settled(world, world.update(template_of(good)))
    assert stack.status is StackStatus.UPDATE_COMPLETE, world.events(stack)
    check_complete(world, stack, good)
    assert settled(world, world.delete()).status is StackStatus.DELETE_COMPLETE
    assert existing(world) == empty


@given(pairs, st.sets(st.integers(START_BATCHES + 1, START_BATCHES + 50), min_size=1, max_size=8))
@settings(quick, max_examples=max(5, EXAMPLES // 3))
def test_crashes_change_nothing(pair: tuple[dict[str, Node], dict[str, Node]], crashes: set[int]) -> None:
    assert history(*pair, crashes=crashes) == history(*pair, crashes=set())


def history(first: dict[str, Node], second: dict[str, Node], crashes: set[int]) -> list[Any]:
    """Create, update and delete a stack. Return what its owner sees, without random names.

    `crashes` has the numbers of the batches after which the process dies.
    """
    found: list[Any] = []
    with TemporaryDirectory(dir=MEMORY) as folder:
        world = new_world(Path(folder) if crashes else None, crashes=crashes.__contains__)
        stack = settled(world, world.create(template_of(first)))
        found.append(seen(world, stack))
        if stack.status is StackStatus.CREATE_COMPLETE:
            try:
                stack = settled(world, world.update(template_of(second)))
            except ApiError as error:
                found.append(error.message)
            found.append(seen(world, stack))
        found.append(seen(world, settled(world, world.delete())))
        assert world.restarts == sum(number <= world.batches for number in crashes)
        for core in world.cores.values():
            core.store.close()
    return found


def seen(world: World, stack: Stack) -> Any:
    crashes, batches = world.crashes, world.batches
    world.crashes = lambda number: False  # the calls below are no part of the history
    events = [(logical_id, status, RANDOM.sub("*", reason)) for logical_id, status, reason in world.events(stack)]
    rows = {key: (row.status, row.type, RANDOM.sub("*", str(row.version.properties))) for key, row in world.rows(stack).items()}
    counts = {kind: len(found) if isinstance(found, list) else found for kind, found in existing(world).items()}
    world.crashes, world.batches = crashes, batches
    return stack.status, sorted(events), rows, counts
