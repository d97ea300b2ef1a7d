"""A capacity provider with managed scaling launches and terminates the instances of its group, as its tasks need them."""

from __future__ import annotations

from typing import Any

import pytest

from corral.model.settings import ScalingTimes
from corral.services.ecs.managed_scaling import provider_reservations
from virtual_clock.group_world import GPUS_4, GPUS_8, REGION
from virtual_clock.provider_world import DELAY_S, FLEET, ProviderWorld
from virtual_clock.service_world import USER_DATA

KEY = (REGION, FLEET, "gpus")


def reservation(world: ProviderWorld) -> float:
    return world.run(provider_reservations)[KEY]


# Scale-out


def test_a_waiting_task_launches_an_instance_in_the_same_transaction() -> None:
    world = ProviderWorld()
    assert reservation(world) == 100.0
    [task] = world.tasks(settle=False)
    assert world.shape() == (1, 1) and world.states_of(task) == ["PENDING"]
    world.report()
    assert world.states_of(task) == ["RUNNING"] and reservation(world) == 100.0
    [activity] = world.activities()
    cause = "the capacity provider gpus, whose tasks need 1 instance, scaled the group, changing the desired capacity from 0 to 1."
    assert cause in activity["Cause"]


def test_a_service_runs_on_an_empty_group() -> None:
    world = ProviderWorld()
    world.serve(FLEET, desiredCount=2)
    world.settle()
    world.report()
    assert world.shape() == (2, 2) and world.service(FLEET)["runningCount"] == 2


def test_all_needed_instances_are_launched_in_one_step_and_terminated_after_the_delay() -> None:
    world = ProviderWorld()
    tasks = world.tasks(5)
    assert world.shape() == (5, 5) and set(world.states_of(*tasks)) == {"RUNNING"}
    assert len([each for each in world.activities() if "from 0 to 5" in each["Cause"]]) == 5
    world.stop(*tasks)
    assert reservation(world) == 0.0
    world.wait(DELAY_S - 1)
    assert world.shape() == (5, 5)
    world.wait(2)
    assert world.shape() == (0, 0)
    assert "the capacity provider gpus, whose tasks need 0 instances, scaled the group," in world.activities()[0]["Cause"]


def test_several_tasks_share_an_instance() -> None:
    world = ProviderWorld(type_=GPUS_4)
    world.family("two", gpus=2)
    assert set(world.states_of(*world.tasks(2, "two"), *world.tasks(3))) == {"RUNNING"}
    assert world.shape() == (2, 2) and reservation(world) == 100.0
    world.tasks(1)
    assert world.shape() == (2, 2)  # the second instance had room


def test_the_group_grows_up_to_its_maximum_size_and_the_reason_says_so() -> None:
    world = ProviderWorld(most=2)
    tasks = world.tasks(5)
    waiting = world.waiting(tasks)
    assert world.shape() == (2, 2) and len(waiting) == 3
    assert "the group g of the capacity provider gpus has reached its maximum size 2" in world.reason(waiting[0])
    assert reservation(world) == 250.0
    world.stop(*set(tasks) - set(waiting))
    assert len(world.waiting(tasks)) == 1 and world.shape() == (2, 2)


def test_launches_wait_for_gpus_of_the_machine_and_the_reason_says_so() -> None:
    world = ProviderWorld(gpus=2)
    tasks = world.tasks(3)
    assert world.shape() == (3, 2)
    [waiting] = world.waiting(tasks)
    reason = world.reason(waiting)
    assert (
        "the capacity provider gpus has asked its group g for 1 instance, and the launch waits: 0 of 2 GPUs free on 1 host"
        in reason
    )


def test_launches_that_no_task_needs_give_up_their_place_in_line_at_once() -> None:
    world = ProviderWorld(gpus=2)
    first, second, third, fourth = world.tasks(4)
    assert (world.shape(), sorted(world.states())) == ((4, 2), ["InService", "InService", "Pending", "Pending"])
    world.stop(*world.waiting([first, second, third, fourth])[:1])
    assert (world.shape(), sorted(world.states())) == ((3, 2), ["InService", "InService", "Pending"])
    world.stop(*world.waiting([first, second, third, fourth]))
    assert (world.shape(), sorted(world.states())) == ((2, 2), ["InService", "InService"])
    world.stop(first, second, third, fourth)
    world.wait(DELAY_S - 1)
    assert world.shape() == (2, 2), "instances that run wait for the delay"
    world.wait(2)
    assert world.shape() == (0, 0)


@pytest.mark.parametrize("protection", [False, True])
def test_a_launch_that_a_task_needs_keeps_its_place_in_line_while_idle_instances_are_too_small(protection: bool) -> None:
    world = ProviderWorld(gpus=4, protection=protection)
    world.stop(*world.tasks(2))
    world.configuration("large", GPUS_4, UserData=USER_DATA)
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", LaunchConfigurationName="large")
    world.family("four", gpus=4)
    [task] = world.tasks(1, "four")
    [launch] = [each["InstanceId"] for each in world.shown()["Instances"] if each["LifecycleState"] == "Pending"]
    world.wait(DELAY_S - 1)
    assert (world.shape(), sorted(world.states())) == ((3, 2), ["InService", "InService", "Pending"])
    world.wait(2)
    world.report()
    assert (world.shape(), world.states_of(task), world.placed_on(task)) == ((1, 1), ["RUNNING"], launch)


@pytest.mark.parametrize(
    ("type_", "gpus", "text"),
    [
        (GPUS_4, 8, "cannot help: the task needs 8 GPUs, 6 MiB, and an instance of the type p3.8xlarge has 4 GPUs"),
        (GPUS_8, 1, "cannot launch an instance: p3.16xlarge needs 8 GPUs, and this machine has 4 GPUs"),
    ],
)
def test_a_task_that_fits_on_no_instance_of_the_group_scales_nothing(type_: str, gpus: int, text: str) -> None:
    world = ProviderWorld(gpus=4, type_=type_)
    world.family("large", gpus=gpus)
    [task] = world.tasks(1, "large")
    assert world.shape() == (0, 0) and world.activities() == [] and text in world.reason(task)
    if gpus > 4:
        assert reservation(world) == 100.0
        assert world.states_of(*world.tasks(1)) == ["RUNNING"]  # a smaller task is not affected


def test_constraints_that_no_instance_of_the_group_matches() -> None:
    world = ProviderWorld()
    constraint = {"type": "memberOf", "expression": "attribute:ecs.instance-type == p3.2xlarge"}
    [task] = world.tasks(1, placementConstraints=[constraint])
    assert world.shape() == (0, 0) and "do not match the placement constraints of the task" in world.reason(task)
    constraint["expression"] = "attribute:ecs.instance-type == g5.xlarge"
    assert world.states_of(*world.tasks(1, placementConstraints=[constraint])) == ["RUNNING"] and world.shape() == (1, 1)


def test_tasks_on_distinct_instances_need_one_instance_each() -> None:
    world = ProviderWorld(type_=GPUS_4)
    tasks = world.tasks(2, placementConstraints=[{"type": "distinctInstance"}], group="apart")
    assert world.shape() == (2, 2) and len({world.placed_on(task) for task in tasks}) == 2


def test_instances_that_do_not_join_the_cluster() -> None:
    world = ProviderWorld()
    world.configuration("alone")
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", LaunchConfigurationName="alone")
    [task] = world.tasks()
    assert world.shape() == (0, 0) and "its instances join no cluster; set ECS_CLUSTER=fleet in their user data" in world.reason(
        task
    )
    world.call("UpdateAutoScalingGroup", AutoScalingGroupName="g", LaunchConfigurationName="joins")
    world.settle()
    world.report()
    assert world.states_of(task) == ["RUNNING"]


def test_managed_scaling_can_be_turned_off_and_on() -> None:
    world = ProviderWorld(scaling={"status": "DISABLED"})
    [task] = world.tasks()
    assert world.shape() == (0, 0)
    assert "managed scaling of the capacity provider gpus is off; its group g wants 0 instances" in world.reason(task)
    turned_on = {"managedScaling": {"status": "ENABLED"}}
    world.call("UpdateCapacityProvider", "ecs", name="gpus", autoScalingGroupProvider=turned_on)
    world.settle()
    world.report()
    assert world.states_of(task) == ["RUNNING"]


# Step limits and spare capacity


def test_at_most_the_maximum_step_warms_up_at_a_time() -> None:
    world = ProviderWorld(scaling={"maximumScalingStepSize": 2, "instanceWarmupPeriod": 60})
    tasks = world.tasks(5)
    assert world.shape() == (2, 2)
    assert "at most 2 instances of the group g of the capacity provider gpus warm up at the same time, for 60 s each" in (
        world.reason(world.waiting(tasks)[0])
    )
    world.wait(59)
    assert world.shape() == (2, 2)
    world.wait(2)
    assert world.shape() == (4, 4)
    world.wait(60)
    assert world.shape() == (5, 5)
    world.report()
    assert set(world.states_of(*tasks)) == {"RUNNING"}


def test_the_minimum_step_launches_more_than_needed() -> None:
    world = ProviderWorld(scaling={"minimumScalingStepSize": 3})
    [task] = world.tasks()
    assert world.shape() == (3, 3)
    world.tasks(2)
    assert world.shape() == (3, 3)
    world.stop(task)
    world.wait(DELAY_S + 1)
    assert world.shape() == (2, 2)


def test_a_target_below_100_percent_keeps_spare_instances() -> None:
    world = ProviderWorld(scaling={"targetCapacity": 50})
    tasks = world.tasks(2)
    assert world.shape() == (4, 4) and reservation(world) == 50.0
    world.stop(tasks[0])
    world.wait(DELAY_S + 1)
    assert world.shape() == (2, 2)
    world.stop(tasks[1])
    world.wait(DELAY_S + 1)
    assert world.shape() == (0, 0)


# Scale-in


def test_a_scale_in_keeps_the_minimum_size() -> None:
    world = ProviderWorld(MinSize=1, desired=1)
    world.stop(*world.tasks(3))
    world.wait(DELAY_S + 1)
    assert world.shape() == (1, 1)


def test_a_short_pause_does_not_scale_in() -> None:
    world = ProviderWorld()
    first = world.tasks(2)
    world.stop(*first)
    world.wait(DELAY_S - 10)
    second = world.tasks(2)
    world.stop(*second)
    world.wait(DELAY_S - 10)
    assert world.shape() == (2, 2)
    world.wait(11)
    assert world.shape() == (0, 0)


def test_daemon_tasks_do_not_keep_an_instance() -> None:
    world = ProviderWorld()
    world.family("agent")
    world.call("CreateService", "ecs", cluster=FLEET, serviceName="agents", taskDefinition="agent", schedulingStrategy="DAEMON")
    [task] = world.tasks()
    world.report()
    assert world.shape() == (1, 1) and world.count("state = 'RUNNING'") == 2
    world.stop(task)
    world.wait(DELAY_S + 1)
    world.report()
    assert world.shape() == (0, 0) and world.count("state = 'RUNNING'") == 0


def test_the_delay_survives_a_restart(tmp_path: Any) -> None:
    world = ProviderWorld(path=tmp_path / "state.db")
    world.stop(*world.tasks(2))
    world.wait(DELAY_S - 5)
    world.restart()
    assert world.shape() == (2, 2)
    world.wait(6)
    assert world.shape() == (0, 0)


def test_idle_instances_leave_before_instances_with_tasks() -> None:
    world = ProviderWorld()
    tasks = world.tasks(3)
    world.stop(tasks[1], tasks[2])  # by default, the oldest instance would leave
    world.wait(DELAY_S + 1)
    assert world.shape() == (1, 1) and world.states_of(tasks[0]) == ["RUNNING"]


# Managed termination protection


def test_protection_is_taken_only_from_idle_instances_of_a_surplus() -> None:
    world = ProviderWorld(protection=True)
    tasks = world.tasks(3)

    def protected() -> dict[str, bool]:
        return {each["InstanceId"]: each["ProtectedFromScaleIn"] for each in world.shown()["Instances"]}

    assert list(protected().values()) == [True] * 3
    kept = world.placed_on(tasks[0])
    world.stop(tasks[1], tasks[2])
    assert list(protected().values()) == [True] * 3  # nothing is surplus before the delay has passed
    world.wait(DELAY_S + 1)
    assert protected() == {kept: True} and world.states_of(tasks[0]) == ["RUNNING"]


def test_a_user_cannot_scale_in_instances_with_tasks() -> None:
    world = ProviderWorld(protection=True)
    tasks = world.tasks(2)
    world.desire(0)
    world.wait(1)
    assert world.shape() == (2, 2) and set(world.states_of(*tasks)) == {"RUNNING"}


# Managed draining


def refresh(world: ProviderWorld) -> None:
    world.call("StartInstanceRefresh", AutoScalingGroupName="g", Preferences={"MinHealthyPercentage": 0, "InstanceWarmup": 0})
    world.settle()


def test_a_refresh_drains_the_instance_and_waits_for_its_tasks() -> None:
    world = ProviderWorld()
    [task] = world.tasks()
    leaving = world.placed_on(task)
    refresh(world)
    assert world.states_of(task) == ["RUNNING"]
    [container] = world.call("ListContainerInstances", "ecs", cluster=FLEET, status="DRAINING")["containerInstanceArns"]
    [activity] = [each for each in world.activities() if each["Description"] == f"Terminating EC2 instance: {leaving}"]
    assert activity["StatusMessage"] == f"Waiting until 1 task of the draining instance has ended: {task}."
    world.wait(3600)
    assert world.states_of(task) == ["RUNNING"] and container
    world.stop(task)
    assert leaving not in world.ids()


def test_the_tasks_of_a_service_are_replaced_before_the_instance_leaves() -> None:
    world = ProviderWorld()
    world.serve(FLEET, desiredCount=1)
    world.settle()
    world.report()
    [old] = [row[0] for row in world.store.execute("SELECT id FROM task").fetchall()]
    leaving = world.placed_on(old)
    refresh(world)
    assert world.states_of(old) == ["RUNNING"]
    for _ in range(4):
        world.report()
        world.wait(1)
    assert leaving not in world.ids() and world.service(FLEET)["runningCount"] == 1
    assert world.count("state = 'RUNNING' AND desired = 'RUNNING'") == 1


def test_without_managed_draining_a_refresh_stops_the_tasks() -> None:
    world = ProviderWorld(draining=False)
    [task] = world.tasks()
    refresh(world)
    world.report()
    assert world.states_of(task) == ["STOPPED"]


def test_draining_ends_after_two_days() -> None:
    world = ProviderWorld()
    [task] = world.tasks()
    refresh(world)
    world.wait(48 * 3600 - 10)
    assert world.states_of(task) == ["RUNNING"]
    world.wait(11)
    world.report()
    assert world.states_of(task) == ["STOPPED"]


# Limit of the wait


def test_a_task_that_waits_too_long_is_stopped_with_the_reason() -> None:
    world = ProviderWorld(most=1, times=ScalingTimes(provisioning_wait_s=60))
    tasks = world.tasks(30)
    late = world.waiting(tasks)
    world.wait(59)
    assert world.waiting(tasks) == late and len(late) == 29
    world.wait(2)
    assert world.states_of(*late) == ["STOPPED"] * 29 and world.count("state = 'RUNNING'") == 1
    [task] = world.call("DescribeTasks", "ecs", cluster=FLEET, tasks=late[-1:])["tasks"]
    assert task["stopCode"] == "TaskFailedToStart"
    waited = "Task failed to start: it waited for an instance for 60 seconds (provisioning_wait_s): 1 of 1 host match"
    assert task["stoppedReason"].startswith(waited)
    assert "has reached its maximum size 1" in task["stoppedReason"]


def test_without_a_limit_tasks_wait_for_ever() -> None:
    world = ProviderWorld(most=1)
    [waiting] = world.waiting(world.tasks(2))
    world.wait(30 * 86_400)
    assert world.states_of(waiting) == ["PROVISIONING"]


# Clusters and strategies


def test_a_provider_scales_only_for_the_clusters_that_have_it() -> None:
    world = ProviderWorld()
    world.call("CreateCluster", "ecs", clusterName="empty")
    none: dict[str, Any] = {"capacityProviders": [], "defaultCapacityProviderStrategy": []}
    world.desire(2)
    world.wait(DELAY_S - 1)
    world.call("PutClusterCapacityProviders", "ecs", cluster=FLEET, **none)
    world.wait(2 * DELAY_S)
    assert world.shape() == (2, 2)
    strategy = [{"capacityProvider": "gpus", "weight": 1}]
    given = {"capacityProviders": ["gpus"], "defaultCapacityProviderStrategy": strategy}
    world.call("PutClusterCapacityProviders", "ecs", cluster=FLEET, **given)
    world.wait(DELAY_S - 1)
    assert world.shape() == (2, 2)
    world.wait(2)
    assert world.shape() == (0, 0)


def test_base_and_weight_share_the_tasks_between_two_groups() -> None:
    world = ProviderWorld()
    world.group("h", LaunchConfigurationName="joins")
    settings = {"autoScalingGroupArn": "h", "managedScaling": {"status": "ENABLED"}}
    world.call("CreateCapacityProvider", "ecs", name="others", autoScalingGroupProvider=settings)
    strategy = [{"capacityProvider": "gpus", "base": 2, "weight": 1}, {"capacityProvider": "others", "weight": 3}]
    world.call(
        "PutClusterCapacityProviders", "ecs", cluster=FLEET, capacityProviders=["gpus", "others"],
        defaultCapacityProviderStrategy=strategy,
    )  # fmt: skip
    world.tasks(6)
    assert (len(world.ids("g")), len(world.ids("h"))) == (3, 3)
    world.serve(FLEET, desiredCount=2)
    world.settle()
    assert (len(world.ids("g")), len(world.ids("h"))) == (5, 3)  # the base of the service
