"""A stack operation after one that has failed: what is tried again, and what is left of the first attempt."""

from __future__ import annotations

import pytest

from corral.model.stack import ResourceStatus, StackStatus
from corral.services.cloudformation import stack_operations, step_execution
from stacks.fleet_world import FleetWorld
from stacks.stack_world import CALLER, World, spec_of
from stacks.test_fleet_stacks import OTHER_4, fleet, instances
from stacks.test_stack_operations import cancel, queue, resources, send, waiting
from virtual_clock.group_world import GPUS_4


def names(world: World) -> list[str]:
    return sorted(url.rpartition("/")[2] for url in world.call("sqs", "ListQueues").get("QueueUrls", []))


@pytest.mark.parametrize("then", ["update", "restore", "roll back", "delete", "refused"])
def test_a_failed_replacement_keeps_the_old_resource(then: str) -> None:
    world = World()
    world.create(resources(Q=queue(QueueName="old")))
    before = world.row("Q").version
    world.call("sqs", "CreateQueue", QueueName="taken", Attributes={"DelaySeconds": "7"})
    stack = world.update(resources(Q=queue(QueueName="taken")), disable_rollback=True)
    assert stack.status is StackStatus.UPDATE_FAILED and world.row("Q").physical_id is None
    if then == "refused":
        world.update(resources(Q=queue(QueueName="new", DelaySeconds="x")), disable_rollback=True)
        assert world.row("Q").status is ResourceStatus.UPDATE_FAILED
    changes = world.run(
        lambda tx: stack_operations.planned_changes(tx, CALLER, world.stack(), spec_of("s", resources(Q=queue(QueueName="new"))))
    )
    assert [(each.action, each.physical_id) for each in changes] == [("Modify", before.physical_id)]
    if then in ("update", "refused"):
        stack = world.update(resources(Q=queue(QueueName="new")))
        assert stack.status is StackStatus.UPDATE_COMPLETE and names(world) == ["new", "taken"]
    elif then == "restore":
        stack = world.update(resources(Q=queue(QueueName="old")))
        assert stack.status is StackStatus.UPDATE_COMPLETE and names(world) == ["old", "taken"]
        assert world.row("Q").version == before
    elif then == "roll back":
        world.run(lambda tx: stack_operations.rollback_stack(tx, CALLER, world.stack()))
        world.settle()
        assert world.stack().status is StackStatus.UPDATE_ROLLBACK_COMPLETE and names(world) == ["old", "taken"]
    world.check()
    assert world.delete().status is StackStatus.DELETE_COMPLETE
    assert names(world) == ["taken"]


def test_a_failed_update_is_tried_again() -> None:
    """A rolling update is cancelled between two batches. The next update replaces the other instances."""
    world = World()
    template = fleet(UpdatePolicy={"AutoScalingRollingUpdate": {"MaxBatchSize": 1, "PauseTime": "PT5M"}})
    world.create(template)
    world.update(template, parameters={"Type": OTHER_4}, disable_rollback=True)
    cancel(world)
    assert world.stack().status is StackStatus.UPDATE_FAILED and world.row("Gpu").status is ResourceStatus.UPDATE_FAILED
    world.wait(1200)
    assert sorted(instances(world, "Gpu").values()) == sorted([GPUS_4, OTHER_4])
    stack = world.update(template, parameters={"Type": OTHER_4}, disable_rollback=True)
    world.wait(1200)
    assert world.stack().status is StackStatus.UPDATE_COMPLETE, world.events(stack)
    assert list(instances(world, "Gpu").values()) == [OTHER_4, OTHER_4]
    world.check()


INSTANCE = "AWS::EC2::Instance"


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_an_instance_whose_update_failed_gets_its_type_by_the_next_update(state: str) -> None:
    """The old and the new properties are the same, because the update that failed has recorded them."""
    world = FleetWorld()
    identity = world.create(INSTANCE, ImageId="ami-1", InstanceType="c5.large")
    world.until_settled(INSTANCE, world.step(identity))
    if state == "stopped":
        world.call("StopInstances", "ec2", InstanceIds=[identity])
        world.settle()
    same = {"ImageId": "ami-1", "InstanceType": "c5.xlarge"}
    world.until_settled(INSTANCE, world.step(identity, "UPDATE", properties=same, old_properties=same))
    found = world.store.instances.by_ec2_id(identity)
    assert found is not None and (found.type, found.state.value) == ("c5.xlarge", "running")


def test_an_update_leaves_what_the_template_does_not_set_and_a_stopped_instance() -> None:
    world = FleetWorld()
    identity = world.create(INSTANCE, ImageId="ami-1", InstanceType="c5.large")
    world.until_settled(INSTANCE, world.step(identity))
    world.call("StopInstances", "ec2", InstanceIds=[identity])
    world.settle()
    old, new = {"ImageId": "ami-1"}, {"ImageId": "ami-1", "Tags": [{"Key": "k", "Value": "v"}]}
    world.until_settled(INSTANCE, world.step(identity, "UPDATE", properties=new, old_properties=old))
    found = world.store.instances.by_ec2_id(identity)
    assert found is not None and (found.type, found.state.value) == ("c5.large", "stopped")


def test_a_new_attempt_to_create_a_resource_has_another_name() -> None:
    world = World()
    topic = waiting()
    template = resources(T={**topic, "Type": "AWS::SQS::Queue"})
    world.create(template, on_failure="DO_NOTHING")
    send(world, "T", "a", "FAILURE")
    first = world.row("T")
    assert first.status is ResourceStatus.CREATE_FAILED and first.physical_id is not None
    stack = world.update(template, disable_rollback=True)
    assert world.row("T").status is ResourceStatus.CREATE_IN_PROGRESS, world.events(stack)
    assert world.row("T").physical_id != first.physical_id
    send(world, "T", "a", "SUCCESS")
    assert world.stack().status is StackStatus.UPDATE_COMPLETE
    assert names(world) == [str(world.row("T").physical_id).rpartition("/")[2]]
    world.check()


def test_a_type_cannot_change_the_memory_of_a_stored_step() -> None:
    world = World()
    world.create(resources(Wait=waiting()))
    row = world.row("Wait")
    assert row.step is not None
    row = row.but(step=row.step.but(memory={"joined": ["a"]}))
    view = world.run(lambda tx: step_execution._step_view(tx, world.stack(), row))
    view.memory["joined"].append("b")
    assert row.step.memory == {"joined": ["a"]}


def test_a_creation_that_times_out_waits_for_other_lanes_without_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "_send", lambda *about: None)  # the other lane does not answer
    world = World()
    template = resources(Group={"Type": "AWS::Logs::LogGroup"})
    world.create(template, timeout_minutes=1, settle=False)
    world.step()
    step = world.row("Group").step
    assert step is not None and step.handed
    world.wait(61)
    assert world.stack().status is StackStatus.CREATE_IN_PROGRESS
    due_s = world.store.next_due_s()
    assert due_s is None or due_s > world.clock.now_s()
