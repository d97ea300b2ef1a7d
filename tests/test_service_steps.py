"""Services with many tasks: each transaction does a bounded number of steps, and counts in memory agree with the rows."""

from __future__ import annotations

from base64 import b64encode
from itertools import pairwise
from typing import Any

import pytest

from corral.errors import ApiError
from corral.model.run import Observed
from corral.reconcile.ecs_services import STARTS_MAX, STOPS_MAX
from corral.services import SERVICES, hosts
from corral.services.instances import ENDS_MAX
from corral.store.deployment_counts import DeploymentCounts
from groups.group_world import CALLER, GroupWorld, refused

CLUSTER = "default"
USER_DATA = b64encode(b"#!/bin/bash\necho ECS_CLUSTER=fleet >> /etc/ecs/ecs.config\n").decode()


class ServiceWorld(GroupWorld):
    def define(self, gpus: int = 0) -> None:
        container: dict[str, Any] = {"name": "c", "image": "corral/host", "command": ["true"], "memory": 6}
        if gpus:
            container["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
        self.call("RegisterTaskDefinition", "ecs", family="one", containerDefinitions=[container])

    def serve(self, cluster: str = CLUSTER, **more: Any) -> None:
        self.call("CreateService", "ecs", cluster=cluster, serviceName="web", taskDefinition="one", **more)

    def count(self, where: str) -> int:
        found: int = self.store.execute(f"SELECT count(*) FROM task WHERE {where}").fetchone()[0]
        return found

    def report(self) -> None:
        """The host starts and ends its tasks as it was ordered, with one report for each."""
        where = "state = 'PENDING' OR (state = 'RUNNING' AND desired = 'STOPPED')"
        for (task_id,) in self.store.execute(f"SELECT id FROM task WHERE {where} ORDER BY rowid").fetchall():
            task = self.store.tasks.get(task_id)
            assert task is not None
            now_s = self.clock.now_s()
            ended_s = now_s if task.desired.value == "STOPPED" else None
            runs = [Observed(run.attempt_id, 1, task.started_at_s or now_s, ended_s, 0 if ended_s else None) for run in task.runs]
            self.run(lambda tx, runs=runs: hosts.report(tx, "h", runs))
            self.check_counts()
        self.settle()

    def check_counts(self) -> None:
        for region, cluster, name in self.store.execute("SELECT region, cluster, name FROM ecs_service").fetchall():
            service = self.store.ecs_services.get(region, cluster, name)
            assert service is not None
            assert self.store.tasks.deployment_counts.of(service) == DeploymentCounts(self.store).of(service)

    def service(self, cluster: str = CLUSTER) -> Any:
        return self.call("DescribeServices", "ecs", cluster=cluster, services=["web"])["services"][0]

    def step(self) -> bool:
        """Run the next transaction that is due within milliseconds."""
        due_s = self.store.next_due_s()
        if due_s is None or due_s > self.clock.now_s() + 0.005:
            return False
        self.clock.advance(max(0.0, due_s - self.clock.now_s()) + 1e-6)
        outcome = self.core.batch([])
        assert not outcome.faults, outcome.faults[0]
        return True


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
    assert len(again) == ENDS_MAX and world.store.fleet.pool("hosts").free_gpus == ENDS_MAX
