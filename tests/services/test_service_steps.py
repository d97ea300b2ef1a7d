"""Services with many tasks: each transaction does a bounded number of steps, and counts in memory agree with the rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from corral.core.errors import ApiError
from corral.fleet.instances import ENDS_MAX
from corral.model.ecs_service import SERVICE_TASKS_MAX
from corral.operations.services import SERVICES
from corral.reconcile.ecs_service_tasks import STARTS_MAX, STOPS_MAX
from corral.services.ecs.services import find_service, set_desired_count
from virtual_clock.group_world import CALLER, refused
from virtual_clock.service_world import CLUSTER, USER_DATA, ServiceWorld


@pytest.fixture
def world() -> ServiceWorld:
    return ServiceWorld()


def test_a_service_starts_and_stops_a_bounded_number_of_tasks_per_transaction(world: ServiceWorld) -> None:
    many = 3 * STARTS_MAX + 1
    world.define()
    world.serve(desiredCount=0)
    for desired, where, most in ((many, "desired = 'RUNNING'", STARTS_MAX), (0, "desired = 'STOPPED'", STOPS_MAX)):
        done = [0]
        world.call("UpdateService", "ecs", service="web", desiredCount=desired)
        done.append(world.count(where))
        while world.step():
            done.append(world.count(where))
            world.check_counts()
        assert done[-1] == many
        assert max(after - before for before, after in pairwise(done)) <= most and len(done) > 2
        world.report()
        shown = world.service()
        assert (shown["runningCount"], shown["pendingCount"]) == (desired, 0)
        assert shown["events"][0]["message"] == "(service web) has reached a steady state."
    assert world.count("state != 'STOPPED'") == 0


def test_a_large_scale_in_stops_the_newest_waiting_tasks_first_without_listing_all_tasks(world: ServiceWorld) -> None:
    many, left = 6 * STOPS_MAX, 10
    world.define(gpus=1)
    world.serve(desiredCount=many)
    world.settle()
    world.report()
    running = world.count("state = 'RUNNING'")
    waiting = [
        row[0] for row in world.store.execute("SELECT id FROM task WHERE state = 'PROVISIONING' ORDER BY created_at, id DESC")
    ]
    assert 0 < running < STOPS_MAX and len(waiting) == many - running
    world.call("UpdateTaskProtection", "ecs", cluster=CLUSTER, tasks=[waiting[-1]], protectionEnabled=True)
    statements: list[str] = []
    world.store.connection.set_trace_callback(statements.append)
    world.call("UpdateService", "ecs", service="web", desiredCount=running + left)
    while world.step():
        world.check_counts()
    world.store.connection.set_trace_callback(None)
    kept = {row[0] for row in world.store.execute("SELECT id FROM task WHERE state = 'PROVISIONING'")}
    assert kept == {*waiting[: left - 1], waiting[-1]} and world.count("state = 'RUNNING' AND desired = 'RUNNING'") == running
    steps = -(-(many - running - left) // STOPS_MAX)
    assert sum(each.startswith("SELECT id, started_by, state") for each in statements) <= 2 < steps


def test_scaling_stops_at_the_quota_of_tasks(world: ServiceWorld) -> None:
    world.define()
    world.serve(desiredCount=0)
    world.run(lambda tx: set_desired_count(tx, find_service(tx, CALLER, CLUSTER, "web"), 1_000_000) and None)
    assert world.service()["desiredCount"] == SERVICE_TASKS_MAX


def test_a_deleted_service_stops_a_bounded_number_of_tasks_per_transaction(world: ServiceWorld) -> None:
    many = 2 * STOPS_MAX + 1
    world.define()
    world.serve(desiredCount=many)
    world.settle()
    world.report()
    world.call("DeleteService", "ecs", service="web", force=True)
    assert 0 < world.count("desired = 'STOPPED'") < many
    world.settle()
    world.report()
    assert world.service()["status"] == "INACTIVE" and world.count("state != 'STOPPED'") == 0


def test_a_new_deployment_replaces_every_task(world: ServiceWorld) -> None:
    world.define()
    world.serve(desiredCount=5)
    world.settle()
    world.report()
    world.define()
    world.call("UpdateService", "ecs", service="web", taskDefinition="one")
    for _ in range(6):
        world.report()
    shown = world.service()
    assert [each["runningCount"] for each in shown["deployments"]] == [5] and shown["taskDefinition"].endswith("one:2")
    assert world.count("state = 'RUNNING' AND definition_arn LIKE '%:1'") == 0


def test_a_daemon_follows_its_instances(world: ServiceWorld) -> None:
    world.define(gpus=1)
    world.call("CreateCluster", "ecs", clusterName="fleet")
    world.serve("fleet", schedulingStrategy="DAEMON")
    world.configuration("joins", UserData=USER_DATA)
    world.group(LaunchConfigurationName="joins")
    for desired in (5, 8, 2, 6, 0):
        world.desire(desired)
        for _ in range(3):
            world.report()
        shown = world.service("fleet")
        assert (shown["desiredCount"], shown["runningCount"], shown["pendingCount"]) == (desired, desired, 0)
        assert world.count("state = 'RUNNING'") == desired
        used = world.store.execute("SELECT count(DISTINCT instance_id) FROM task WHERE state = 'RUNNING'").fetchone()[0]
        assert used == desired


def test_a_daemon_task_that_ends_is_replaced_and_one_that_does_not_fit_waits(world: ServiceWorld) -> None:
    world.define(gpus=1)
    world.call("CreateCluster", "ecs", clusterName="fleet")
    world.configuration("joins", UserData=USER_DATA)
    world.group(LaunchConfigurationName="joins", desired=2)
    other = world.call("RunTask", "ecs", cluster="fleet", taskDefinition="one", launchType="EC2")["tasks"][0]["taskArn"]
    world.serve("fleet", schedulingStrategy="DAEMON")
    world.settle()
    world.report()
    assert world.count("state = 'RUNNING'") == 2 and world.count("state = 'PROVISIONING'") == 1
    world.call("StopTask", "ecs", cluster="fleet", task=other)
    world.report()
    world.report()
    assert world.service("fleet")["runningCount"] == 2 and world.count("state = 'PROVISIONING'") == 0
    daemon = world.store.execute("SELECT id FROM task WHERE state = 'RUNNING'").fetchone()[0]
    world.call("StopTask", "ecs", cluster="fleet", task=daemon)
    for _ in range(3):
        world.report()
    assert world.service("fleet")["runningCount"] == 2 and world.count("state = 'RUNNING'") == 2


def test_a_refused_command_leaves_the_counts_as_they_were(world: ServiceWorld) -> None:
    world.define()
    world.serve(desiredCount=3)
    world.settle()
    before = world.count("desired = 'RUNNING'")
    [task_id, *_] = [row[0] for row in world.store.execute("SELECT id FROM task").fetchall()]

    def stop_and_fail(tx: Any) -> None:
        SERVICES["ecs"].operations["StopTask"](tx, {"cluster": CLUSTER, "task": task_id}, CALLER)
        raise ApiError("refused")

    error = refused(lambda: world.run(stop_and_fail))
    assert "refused" in str(error) and world.count("desired = 'RUNNING'") == before
    world.check_counts()


def test_one_request_terminates_a_bounded_number_of_instances_per_transaction() -> None:
    world = ServiceWorld(gpus=2 * ENDS_MAX)
    launch = {"ImageId": "ami-1", "InstanceType": "g5.xlarge", "MinCount": ENDS_MAX, "MaxCount": ENDS_MAX}
    made = [each["InstanceId"] for _ in range(2) for each in world.call("RunInstances", "ec2", **launch)["Instances"]]
    reply = world.call("TerminateInstances", "ec2", InstanceIds=made)["TerminatingInstances"]
    assert [each["CurrentState"]["Name"] for each in reply] == ["shutting-down"] * len(made)
    states = [each.state.value for each in world.store.instances.all() if not each.is_host]
    assert states.count("terminated") == states.count("shutting-down") == ENDS_MAX
    world.wait(1.0)
    assert {each.state.value for each in world.store.instances.all() if not each.is_host} == {"terminated"}
    again = world.call("RunInstances", "ec2", **launch)["Instances"]
    assert len(again) == ENDS_MAX and world.store.fleet.pool("hosts:default").free_gpus == ENDS_MAX
