"""A capacity provider with managed scaling launches and terminates the instances of its group, as its tasks need them."""

from __future__ import annotations

from groups.provider_world import DELAY_S, FLEET, ProviderWorld


def test_a_waiting_task_launches_an_instance_in_the_same_transaction() -> None:
    world = ProviderWorld()
    [task] = world.tasks(settle=False)
    assert world.shape() == (1, 1) and world.states_of(task) == ["PENDING"]
    world.report()
    assert world.states_of(task) == ["RUNNING"]
    [activity] = world.activities()
    assert "the capacity provider gpus, whose tasks need 1 instance, scaled the group, changing the desired capacity from 0 to 1." in (
        activity["Cause"]
    )


def test_all_needed_instances_are_launched_in_one_step_and_terminated_after_the_delay() -> None:
    world = ProviderWorld()
    tasks = world.tasks(5)
    assert world.shape() == (5, 5) and set(world.states_of(*tasks)) == {"RUNNING"}
    world.stop(*tasks)
    world.wait(DELAY_S - 1)
    assert world.shape() == (5, 5)
    world.wait(2)
    assert world.shape() == (0, 0)
    assert "the capacity provider gpus, whose tasks need 0 instances, scaled the group," in world.activities()[0]["Cause"]
