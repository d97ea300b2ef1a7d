"""Listings of CloudFormation have pages of 100 elements, as those of AWS. Callers cannot choose another size."""

from __future__ import annotations

from typing import Any

import orjson

from corral.operations.services import SERVICES
from stacks.stack_world import World

PAGE = 100
TOPIC = {"Type": "AWS::SNS::Topic"}
IMPORTER = {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Fn::ImportValue": "export000"}}}


def request(world: World, operation: str, template: dict[str, Any], **params: Any) -> Any:
    prepare = SERVICES["cloudformation"].prepare[operation]
    return world.call("cloudformation", operation, **prepare({"TemplateBody": orjson.dumps(template).decode(), **params}))


def pages(world: World, operation: str, listed: str, **params: Any) -> list[Any]:
    """Return the elements of both pages of a listing of 101 elements."""
    first = world.call("cloudformation", operation, **params)
    second = world.call("cloudformation", operation, **params, NextToken=first["NextToken"])
    assert (len(first[listed]), len(second[listed])) == (PAGE, 1) and "NextToken" not in second
    return [*first[listed], *second[listed]]


def test_exports_and_their_importers_come_in_pages() -> None:
    world = World()
    names = [f"export{at:03}" for at in range(PAGE + 1)]
    outputs = {f"O{name}": {"Value": name, "Export": {"Name": name}} for name in names}
    world.create({"Resources": {"T": TOPIC}, "Outputs": outputs}, "exporter")
    assert [each["Name"] for each in pages(world, "ListExports", "Exports")] == names
    world.create({"Resources": {"T": IMPORTER}}, "importer")
    copies = "SELECT id || ?1, region, name || ?1, status, created_at, NULL, '', owner, record FROM stack WHERE name = 'importer'"
    imports = "SELECT region, name, stack_id || ?1 FROM stack_import WHERE stack_id NOT LIKE '%-copy%'"
    numbers = [(f"-copy{at:03}",) for at in range(PAGE)]
    world.run(lambda tx: tx.store.executemany(f"INSERT INTO stack {copies}", numbers) and None)
    world.run(lambda tx: tx.store.executemany(f"INSERT INTO stack_import {imports}", numbers) and None)
    importers = ["importer", *(f"importer{number}" for (number,) in numbers)]
    assert pages(world, "ListImports", "Imports", ExportName="export000") == importers


def test_change_sets_and_their_changes_come_in_pages() -> None:
    world = World()
    world.create({"Resources": {"T": TOPIC}})
    names = [f"set{at:03}" for at in range(PAGE + 1)]
    for name in names:
        more = {f"More{at:03}": TOPIC for at in range(PAGE + 1 if name == "set000" else 1)}
        request(world, "CreateChangeSet", {"Resources": {"T": TOPIC, **more}}, StackName="s", ChangeSetName=name)
    world.settle()
    assert [each["ChangeSetName"] for each in pages(world, "ListChangeSets", "Summaries", StackName="s")] == names
    changes = pages(world, "DescribeChangeSet", "Changes", StackName="s", ChangeSetName="set000")
    assert {each["ResourceChange"]["LogicalResourceId"] for each in changes} == {f"More{at:03}" for at in range(PAGE + 1)}
