"""Placement rules, capacity providers and StartTask: through boto3 on one host, and on many through the real handlers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from corral.access.caller import Caller
from corral.core.clock import VirtualClock
from corral.core.commands import Command
from corral.core.core import Core
from corral.core.errors import ApiError
from corral.core.ids import RandomIds
from corral.model.agent_protocol import Hello
from corral.model.gpu import GpuDevice
from corral.model.instance import host_instance_id
from corral.model.principal import root_user
from corral.model.run import Observed
from corral.model.settings import Settings
from corral.reconcile import STATE
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from corral.store import Store
from harness import container, eventually, wait_stopped
from store.rows import derived_fleet

CALLER = Caller("123456789012", "us-east-1", root_user("123456789012"))


@pytest.fixture
def ecs(client):
    return client("ecs")


@pytest.fixture
def instance(ecs):
    [arn] = ecs.list_container_instances()["containerInstanceArns"]
    return arn


def register(ecs, family, *containers, **more):
    return ecs.register_task_definition(family=family, containerDefinitions=list(containers), **more)["taskDefinition"]


def member_of(expression):
    return [{"type": "memberOf", "expression": expression}]


def test_member_of_with_launch_type_ec2(ecs, instance):
    register(ecs, "plain", container(["true"]))
    wanted = {"taskDefinition": "plain", "launchType": "EC2", "placementConstraints": member_of("attribute:room == lab")}
    [failure] = ecs.run_task(**wanted)["failures"]
    assert failure["reason"] == "MemberOf placement constraint unsatisfied."
    assert "none matches memberOf (attribute:room == lab)" in failure["detail"]
    ecs.put_attributes(attributes=[{"name": "room", "value": "lab", "targetId": instance}])
    [task] = ecs.run_task(**wanted)["tasks"]
    ecs.delete_attributes(attributes=[{"name": "room", "targetId": instance}])
    wait_stopped(ecs, [task["taskArn"]])


def test_a_task_waits_for_an_attribute(ecs, instance):
    register(ecs, "picky", container(["true"]), placementConstraints=member_of("attribute:floor in [1, 2]"))
    [task] = ecs.run_task(taskDefinition="picky")["tasks"]
    assert task["lastStatus"] == "PROVISIONING"
    assert "1 host, none matches memberOf (attribute:floor in [1, 2])" in task["containers"][0]["reason"]
    ecs.put_attributes(attributes=[{"name": "floor", "value": "2", "targetId": instance}])
    wait_stopped(ecs, [task["taskArn"]])
    ecs.delete_attributes(attributes=[{"name": "floor", "targetId": instance}])


def test_distinct_instance_on_one_host(ecs):
    register(ecs, "alone", container(["sleep", "600"]))
    apart = {"taskDefinition": "alone", "placementConstraints": [{"type": "distinctInstance"}], "count": 2}
    answer = ecs.run_task(launchType="EC2", **apart)
    [first] = answer["tasks"]
    assert [failure["reason"] for failure in answer["failures"]] == ["DistinctInstance placement constraint unsatisfied."]
    [other] = ecs.run_task(launchType="EC2", group="another", **{**apart, "count": 1})["tasks"]  # another group is allowed
    [waiting] = ecs.run_task(**{**apart, "count": 1})["tasks"]
    assert "with a task of family:alone already (distinctInstance)" in waiting["containers"][0]["reason"]
    ecs.stop_task(task=first["taskArn"])
    [started] = ecs.describe_tasks(tasks=[waiting["taskArn"]])["tasks"]
    assert started["lastStatus"] in ("PENDING", "RUNNING")  # a stopping task does not count, as on ECS
    for task in (other, waiting):
        ecs.stop_task(task=task["taskArn"])
    wait_stopped(ecs, [task["taskArn"] for task in (first, other, waiting)])


def test_member_of_a_task_group(ecs):
    """A task that must run on the host of a group waits until a task of the group runs."""
    register(ecs, "server", container(["sleep", "600"]))
    register(ecs, "follower", container(["true"]))
    [follower] = ecs.run_task(taskDefinition="follower", placementConstraints=member_of("task:group == store"))["tasks"]
    assert follower["lastStatus"] == "PROVISIONING"
    [server] = ecs.run_task(taskDefinition="server", group="store")["tasks"]
    wait_stopped(ecs, [follower["taskArn"]])
    ecs.stop_task(task=server["taskArn"])
    wait_stopped(ecs, [server["taskArn"]])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"placementConstraints": member_of("attribute:x = 1")}, "at character 13.*expected an operator"),
        ({"placementConstraints": member_of("x == 1")}, "'x' is not a subject"),
        ({"placementConstraints": [{"type": "memberOf"}]}, "memberOf expression should be specified"),
        (
            {"placementConstraints": [{"type": "distinctInstance", "expression": "attribute:x exists"}]},
            "distinctInstance expression should not be specified.",
        ),
        ({"placementConstraints": member_of("attribute:x exists") * 11}, "up to 10 placement constraints"),
        ({"placementStrategy": [{"type": "random"}] * 6}, "up to 5 placement strategies"),
        ({"placementStrategy": [{"type": "binpack", "field": "gpu"}]}, "cpu or memory"),
        ({"placementStrategy": [{"type": "spread"}]}, "instanceId, host or attribute:NAME"),
        ({"placementConstraints": [{"type": "elsewhere"}]}, "is not supported"),
        ({"launchType": "EC2", "platformVersion": "LATEST"}, "platform version must be null"),
        ({"launchType": "EXTERNAL"}, "No Container Instances were found in your cluster."),
        ({"launchType": "EC2", "capacityProviderStrategy": [{"capacityProvider": "host"}]}, "not both"),
        ({"capacityProviderStrategy": [{"capacityProvider": "mine"}]}, "not associated"),
        (
            {"capacityProviderStrategy": [{"capacityProvider": "host", "weight": 1}, {"capacityProvider": "FARGATE", "weight": 1}]},
            "cannot contain a mix",
        ),
        (
            {"capacityProviderStrategy": [{"capacityProvider": "FARGATE"}, {"capacityProvider": "FARGATE_SPOT"}]},
            "weight value greater than zero",
        ),
        (
            {
                "capacityProviderStrategy": [
                    {"capacityProvider": name, "weight": 1, "base": 1} for name in ("FARGATE", "FARGATE_SPOT")
                ]
            },
            "Only one capacity provider",
        ),
        (
            {"networkConfiguration": {"awsvpcConfiguration": {"subnets": ["s"]}}},
            "Network Configuration is not valid for the given networkMode",
        ),
    ],
)
def test_refusals(ecs, given, words):
    register(ecs, "refused", container(["true"]))
    with pytest.raises(ecs.exceptions.InvalidParameterException, match=words):
        ecs.run_task(taskDefinition="refused", **given)


def test_a_task_definition_can_have_member_of_only(ecs):
    with pytest.raises(ecs.exceptions.ClientException, match=r"constraint\.type 'distinctInstance' is not supported"):
        register(ecs, "wrong", container(["true"]), placementConstraints=[{"type": "distinctInstance"}])
    with pytest.raises(ecs.exceptions.ClientException, match="expected an operator"):
        register(ecs, "wrong", container(["true"]), placementConstraints=member_of("attribute:x"))


def test_strategies_are_accepted_on_one_host(ecs):
    register(ecs, "spread", container(["true"]))
    steps = [{"type": "spread", "field": "attribute:ecs.availability-zone"}, {"type": "binpack", "field": "MEMORY"}]
    tasks = ecs.run_task(taskDefinition="spread", count=3, placementStrategy=steps)["tasks"]
    tasks += ecs.run_task(taskDefinition="spread", placementStrategy=[{"type": "random"}])["tasks"]
    wait_stopped(ecs, [task["taskArn"] for task in tasks])


def test_start_task(ecs, aws, instance):
    register(ecs, "started", container(["sh", "-c", "exit 4"], 1), tags=[{"key": "of", "value": "definition"}])
    answer = ecs.start_task(
        taskDefinition="started",
        containerInstances=[instance, "0" * 32],
        group="mine",
        startedBy="me",
        referenceId="ref",
        tags=[{"key": "of", "value": "task"}],
        overrides={"containerOverrides": [{"name": "main", "command": ["sh", "-c", "exit 6"]}]},
    )
    [task] = answer["tasks"]
    assert (task["group"], task["startedBy"], task["launchType"]) == ("mine", "me", "EC2")
    assert task["containerInstanceArn"] == instance and len(task["containers"][0]["gpuIds"]) == 1
    assert "capacityProviderName" not in task
    [failure] = answer["failures"]
    assert failure["reason"] == "MISSING" and failure["arn"].endswith("0" * 32)
    [done] = wait_stopped(ecs, [task["taskArn"]])
    assert done["containers"][0]["exitCode"] == 6
    [task] = aws("ecs", "start-task", "--task-definition", "started", "--container-instances", instance.rpartition("/")[2])["tasks"]
    wait_stopped(ecs, [task["taskArn"]])
    for instances in ([], [instance] * 11):
        with pytest.raises(ecs.exceptions.InvalidParameterException, match="from 1 to 10"):
            ecs.start_task(taskDefinition="started", containerInstances=instances)


def test_start_task_never_waits(ecs, instance):
    register(ecs, "two-gpus", container(["sleep", "600"], 2))
    register(ecs, "much-memory", container(["true"], memory=10_000_000))
    [holder] = ecs.start_task(taskDefinition="two-gpus", containerInstances=[instance])["tasks"]
    for family, reason in (("two-gpus", "RESOURCE:GPU"), ("much-memory", "RESOURCE:MEMORY")):
        [failure] = ecs.start_task(taskDefinition=family, containerInstances=[instance])["failures"]
        assert (failure["arn"], failure["reason"]) == (instance, reason)
    ecs.update_container_instances_state(containerInstances=[instance], status="DRAINING")
    [failure] = ecs.start_task(taskDefinition="much-memory", containerInstances=[instance])["failures"]
    assert failure["reason"] == "DRAINING"
    ecs.update_container_instances_state(containerInstances=[instance], status="ACTIVE")
    ecs.stop_task(task=holder["taskArn"])
    wait_stopped(ecs, [holder["taskArn"]])


def test_other_clusters_have_no_instances_yet(ecs, instance):
    ecs.create_cluster(clusterName="later")
    register(ecs, "patient", container(["true"]))
    for given in ({}, {"launchType": "EC2"}):
        with pytest.raises(ecs.exceptions.InvalidParameterException, match="No Container Instances were found in your cluster"):
            ecs.run_task(cluster="later", taskDefinition="patient", **given)
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="not associated"):
        ecs.run_task(cluster="later", taskDefinition="patient", capacityProviderStrategy=[{"capacityProvider": "host"}])
    elsewhere = instance.rpartition("/")[2]
    [failure] = ecs.start_task(cluster="later", taskDefinition="patient", containerInstances=[elsewhere])["failures"]
    assert failure["reason"] == "MISSING"


def test_list_tasks_with_its_filters(ecs, aws, instance):
    register(ecs, "one", container(["sleep", "600"]))
    register(ecs, "two", container(["sleep", "600"]))
    [first] = ecs.run_task(taskDefinition="one", startedBy="tester")["tasks"]
    [second] = ecs.run_task(taskDefinition="two", startedBy="another")["tasks"]
    eventually(
        lambda: all(t["lastStatus"] == "RUNNING" for t in ecs.describe_tasks(tasks=[first["taskArn"], second["taskArn"]])["tasks"]),
        "both run",
    )
    for given, found in (
        ({"family": "one"}, [first]),
        ({"startedBy": "another"}, [second]),
        ({"family": "one", "launchType": "EC2", "containerInstance": instance}, [first]),
        ({"containerInstance": instance.rpartition("/")[2], "family": "two"}, [second]),
        ({"family": "one", "launchType": "FARGATE"}, []),
        ({"family": "one", "launchType": "EXTERNAL"}, []),
        ({"family": "one", "desiredStatus": "PENDING"}, []),
        ({"family": "one", "desiredStatus": "STOPPED"}, []),
        ({"family": "unknown"}, []),
        ({"containerInstance": "0" * 32}, []),
    ):
        assert ecs.list_tasks(**given)["taskArns"] == [task["taskArn"] for task in found], given
    assert aws("ecs", "list-tasks", "--started-by", "tester")["taskArns"] == [first["taskArn"]]
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="only filter"):
        ecs.list_tasks(startedBy="tester", family="one")
    with pytest.raises(ecs.exceptions.ServiceNotFoundException):
        ecs.list_tasks(serviceName="none")
    pages = ecs.get_paginator("list_tasks").paginate(containerInstance=instance, PaginationConfig={"PageSize": 1})
    assert {first["taskArn"], second["taskArn"]} <= set(pages.build_full_result()["taskArns"])
    for task in (first, second):
        ecs.stop_task(task=task["taskArn"])
    wait_stopped(ecs, [first["taskArn"], second["taskArn"]])


# Many hosts: the real core and handlers, with hosts that say hello and nothing else


class Plane:
    def __init__(self, count: int, gpus: int = 2) -> None:
        self.store = Store(None)
        self._clock = VirtualClock()
        self._core: Core[Store] = Core(self.store, settings=Settings(), clock=self._clock, ids=RandomIds(), reconcilers=STATE)
        self.hosts = {host_instance_id(name): name for name in (f"{at:032x}" for at in range(count))}  # by instance
        self.names = list(self.hosts)  # of the container instances
        for name in self.hosts.values():
            shown = [GpuDevice(f"GPU-{name}-{at}", at, "H100", 81_559, simulated=True) for at in range(gpus)]
            said = Hello(name, "boot", f"host-{name[-2:]}", 8192, 16_384, shown, [])
            self.transact(lambda tx, said=said: host_reports.hello(tx, said))

    def transact(self, handler: Any) -> Any:
        self._clock.advance(0.01)
        outbox = self._core.transact([Command(handler, lambda answer: None)])
        assert not outbox.faults, outbox.faults
        [(_, answer)] = outbox.answers
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def call(self, operation: str, **params: Any) -> Any:
        return self.transact(lambda tx: HANDLERS[operation](tx, params, CALLER))

    def tag(self, host: str, **attributes: str) -> None:
        for name, value in attributes.items():
            given = {"name": name, "value": value, "targetId": host, "targetType": "container-instance"}
            self.call("PutAttributes", attributes=[given])

    def register(self, family: str, gpus: int = 0, **more: Any) -> None:
        made = container(["true"], gpus)
        self.call("RegisterTaskDefinition", family=family, containerDefinitions=[made], **more)

    def end(self, task: dict[str, Any]) -> None:
        host_id, run_id = self.hosts[where(task)], task["containers"][0]["containerArn"].rpartition("/")[2]
        self.transact(lambda tx: host_reports.report(tx, host_id, [Observed(run_id, 1, tx.now_s, tx.now_s, 0)]))

    def again(self, task: dict[str, Any]) -> dict[str, Any]:
        return self.call("DescribeTasks", tasks=[task["taskArn"]])["tasks"][0]


def where(task: dict[str, Any]) -> str:
    return task["containerInstanceArn"].rpartition("/")[2]


def test_spread_over_racks_and_then_hosts() -> None:
    plane = Plane(6)
    for at, name in enumerate(plane.names):
        plane.tag(name, rack=str(at % 2))
    plane.register("spread")
    steps = [{"type": "spread", "field": "attribute:rack"}, {"type": "spread", "field": "host"}]
    tasks = [
        task for _ in range(3) for task in plane.call("RunTask", taskDefinition="spread", count=4, placementStrategy=steps)["tasks"]
    ]
    assert set(Counter(map(where, tasks)).values()) == {2}


def test_binpack_fills_one_host_before_the_next() -> None:
    plane = Plane(3, gpus=0)
    plane.register("small")
    pack = [{"type": "binpack", "field": "memory"}]
    tasks = plane.call("RunTask", taskDefinition="small", count=10, placementStrategy=pack)["tasks"]
    assert len({where(task) for task in tasks}) == 1


def test_distinct_instance_over_hosts_and_with_waiting_tasks() -> None:
    """Five tasks with distinctInstance on three hosts: two wait, and each starts on a host where another has stopped."""
    plane = Plane(3)
    plane.register("apart")
    tasks = plane.call("RunTask", taskDefinition="apart", count=5, placementConstraints=[{"type": "distinctInstance"}])["tasks"]
    placed = [task for task in tasks if task["containerInstanceArn"]]
    waiting = sorted((task for task in tasks if not task["containerInstanceArn"]), key=lambda task: task["taskArn"])  # equally old
    assert len({where(task) for task in placed}) == 3 and len(waiting) == 2
    plane.end(placed[1])
    assert where(plane.again(waiting[0])) == where(placed[1])
    assert plane.again(waiting[1])["lastStatus"] == "PROVISIONING"
    plane.call("StopTask", task=placed[2]["taskArn"])
    assert where(plane.again(waiting[1])) == where(placed[2])


def test_waiting_tasks_with_rules_survive_a_restart() -> None:
    plane = Plane(2)
    plane.register("gpu", 2)
    plane.tag(plane.names[0], rack="7")
    rack = {"taskDefinition": "gpu", "placementConstraints": member_of("attribute:rack == 7")}
    tasks = plane.call("RunTask", count=3, **rack)["tasks"]
    assert where(tasks[0]) == plane.names[0]
    before = plane.store.fleet.snapshot()
    assert derived_fleet(plane.store).snapshot() == before
    plane.end(tasks[0])
    placed, waiting = sorted((plane.again(task) for task in tasks[1:]), key=lambda task: task["lastStatus"])
    assert where(placed) == plane.names[0]
    assert "1 of 2 hosts match memberOf (attribute:rack == 7)" in waiting["containers"][0]["reason"]


def test_draining_hosts_get_no_new_tasks_and_keep_theirs() -> None:
    plane = Plane(2)
    plane.register("gpu", 2)
    [first] = plane.call("RunTask", taskDefinition="gpu")["tasks"]
    for name in plane.names:
        plane.call("UpdateContainerInstancesState", containerInstances=[name], status="DRAINING")
    [waiting] = plane.call("RunTask", taskDefinition="gpu")["tasks"]
    assert "every host is draining" in waiting["containers"][0]["reason"]
    assert plane.call("RunTask", taskDefinition="gpu", launchType="EC2")["failures"][0]["reason"] == "DRAINING"
    assert plane.again(first)["lastStatus"] == "PENDING"
    other = next(name for name in plane.names if name != where(first))
    plane.call("UpdateContainerInstancesState", containerInstances=[other], status="ACTIVE")
    assert where(plane.again(waiting)) == other


def test_the_providers_of_a_cluster_and_their_shares() -> None:
    plane = Plane(1)
    plane.store.begin()
    strategy = [{"capacityProvider": "spot", "weight": 3}, {"capacityProvider": "sure", "weight": 1, "base": 1}]
    about = {"capacityProviders": ["spot", "sure"], "defaultCapacityProviderStrategy": strategy}
    plane.store.clusters.put(CALLER.region, "mine", "ACTIVE", about)
    plane.store.commit()
    plane.register("any")
    tasks = plane.call("RunTask", cluster="mine", taskDefinition="any", count=5)["tasks"]
    assert Counter(task["capacityProviderName"] for task in tasks) == {"spot": 3, "sure": 2}
    assert {task["lastStatus"] for task in tasks} == {"PROVISIONING"}
    assert "the cluster has no container instances yet" in tasks[0]["containers"][0]["reason"]
    [task] = plane.call("RunTask", cluster="mine", taskDefinition="any", capacityProviderStrategy=[{"capacityProvider": "sure"}])[
        "tasks"
    ]
    assert task["capacityProviderName"] == "sure"
