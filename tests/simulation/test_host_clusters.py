"""Hosts in several clusters: where tasks and instances are placed, which claims wait for which, and hosts that move."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.transactions import Tx
from corral.fleet import instances
from corral.model.agent_protocol import HostOptions
from corral.model.instance import Instance, InstanceState
from corral.model.placement import Unplaceable
from corral.services.ecs import host_reports
from corral.services.ecs.errors import ClusterNotFoundException
from corral.services.ecs.handlers import HANDLERS
from corral.services.ecs.task_description import why_claim_waits
from corral.store import Store
from simulation.clients import CALLER
from simulation.test_claim_queue import Small, definition, ends
from simulation.test_service_claims import create_service, launch, states
from store.rows import derived_index


def hello(small: Small, number: int, gpus: int, cluster: str) -> None:
    message = replace(Small.hello(number, gpus), options=HostOptions(cluster=cluster))
    small.transact(lambda tx: host_reports.hello(tx, message))


def lab(*gpus: int, default: int = 2) -> Small:
    """One host in the cluster `default`, and others in the cluster `research`."""
    small = Small(default)
    for number, has in enumerate(gpus, 1):
        hello(small, number, has, "research")
    for each in (2, 4, 0):
        small.transact(lambda tx, each=each: HANDLERS["RegisterTaskDefinition"](tx, definition(each), CALLER))
    return small


def run(small: Small, gpus: int, cluster: str, **more: Any) -> dict[str, Any]:
    params = {"taskDefinition": f"needs-{gpus}", "cluster": cluster, **more}
    return dict(small.transact(lambda tx: HANDLERS["RunTask"](tx, params, CALLER))[0]["tasks"][0])


def host_of(small: Small, task: dict[str, Any]) -> str:
    found = small.store.tasks.get(task["taskArn"].rpartition("/")[2])
    assert found is not None and found.instance_id is not None
    return small.store.instances.host_of(found.instance_id)


def reason(small: Small, task: dict[str, Any]) -> str:
    found = small.store.tasks.get(task["taskArn"].rpartition("/")[2])
    assert found is not None
    claim = small.store.claims.get("task", found.id)
    assert claim is not None
    return str(small.transact(lambda tx: why_claim_waits(tx, found.pool, claim))[0])


def instance_of(small: Small, instance: Instance) -> Instance:
    found = small.store.instances.get(instance.id)
    assert found is not None
    return found


def clusters(small: Small) -> dict[str, str]:
    return {str(each.host_id): each.cluster for number in range(5) for each in small.store.instances.on_host(f"h{number}")}


def same_index(small: Small) -> bool:
    fleet, claims = derived_index(small.store)
    return fleet.snapshot() == small.store.fleet.snapshot() and claims.roaming == small.store.claims.roaming


def test_tasks_run_only_on_hosts_of_their_cluster() -> None:
    small = lab(4)
    tasks = [run(small, 1, cluster) for cluster in ("research", "default", "research", "default")]
    assert [host_of(small, task) for task in tasks] == ["h1", "h0", "h1", "h0"]
    waiting = run(small, 1, "default")
    assert small.state(waiting) == "PROVISIONING", "research has two free GPUs"
    assert "holds 2 of 2 GPUs of cluster default" in reason(small, waiting)
    listed = small.transact(lambda tx: HANDLERS["ListContainerInstances"](tx, {"cluster": "research"}, CALLER))
    assert len(listed[0]["containerInstanceArns"]) == 1
    assert same_index(small)


def test_a_reason_names_the_cluster() -> None:
    small = lab(2, 2)
    for _ in range(2):
        run(small, 1, "research")
    run(small, 2, "research")
    waiting = run(small, 2, "research")
    assert "0 of 4 GPUs free on 2 hosts of cluster research" in reason(small, waiting)
    small.transact(lambda tx: tx.store.hosts.silent("h0"))
    run(small, 1, "default")
    assert "no host of cluster default is connected" in reason(small, run(small, 1, "default"))
    refused = small.transact(lambda tx: HANDLERS["RunTask"](
        tx, {"taskDefinition": "needs-8", "cluster": "research", "launchType": "EC2"}, CALLER))  # fmt: skip
    assert refused[0]["failures"][0]["reason"] == "RESOURCE:GPU"
    assert "the largest host of cluster research has only 2 GPUs" in reason(small, run(small, 8, "research"))
    only = Small(1)
    run_all = [only.transact(lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": "needs-1"}, CALLER))[0] for _ in range(2)]
    assert "cluster" not in reason(only, run_all[1]["tasks"][0])


def test_a_claim_that_reserves_a_host_does_not_delay_another_cluster() -> None:
    """Each cluster has a reservation of its own, so the large task of neither is overtaken."""
    small = lab(4, default=4)
    small_tasks = {cluster: run(small, 1, cluster) for cluster in ("default", "research")}
    large = {cluster: run(small, 4, cluster) for cluster in ("default", "research")}
    younger = {cluster: run(small, 1, cluster) for cluster in ("default", "research")}
    assert {small.state(task) for task in (*large.values(), *younger.values())} == {"PROVISIONING"}
    small.transact(ends(small_tasks["research"]))
    assert small.state(large["research"]) == "PENDING" and small.state(large["default"]) == "PROVISIONING"
    assert small.state(younger["default"]) == "PROVISIONING"
    small.transact(ends(small_tasks["default"]))
    assert small.state(large["default"]) == "PENDING"


def test_instances_get_gpus_of_any_host() -> None:
    small = lab(4)
    assert small.transact(launch(4))[0].host_id == "h1", "only that host is large enough"
    assert small.transact(launch(2))[0].host_id == "h0"
    waiting = small.transact(launch(1))[0]
    assert waiting.host_id is None and same_index(small)
    first = next(each for each in small.store.instances.slices() if each.gpus == 4)
    small.transact(lambda tx: instances.terminate(tx, instance_of(small, first), ""))
    assert instance_of(small, waiting).host_id == "h1", "it waits in the line of one cluster, and the GPUs came in the other"
    assert same_index(small)


def test_a_large_launch_is_not_overtaken_for_ever() -> None:
    small = lab(4, default=4)
    holders = {cluster: run(small, 1, cluster) for cluster in ("default", "research")}
    large = small.transact(launch(4))[0]
    younger = {cluster: run(small, 1, cluster) for cluster in ("default", "research")}
    assert sorted(map(small.state, younger.values())) == ["PENDING", "PROVISIONING"], "it reserves one host"
    kept = next(cluster for cluster, task in younger.items() if small.state(task) == "PROVISIONING")
    small.transact(ends(holders[kept]))
    assert instance_of(small, large).state is InstanceState.RUNNING


def test_an_instance_prefers_the_hosts_of_its_cluster() -> None:
    small = lab(2)
    request = instances.InstanceRequest(
        owner="root", region=CALLER.region, cluster="research", type="t", gpus=1, cpu_units=1, memory_mib=1
    )  # fmt: skip
    assert small.transact(lambda tx: instances.launch(tx, request))[0].host_id == "h1"
    assert small.transact(launch(1))[0].host_id == "h0"
    refused = small.transact(lambda tx: instances.place_now(tx, replace(request, gpus=3)))[0]
    assert isinstance(refused, Unplaceable)


def test_a_host_moves_when_its_tasks_have_ended() -> None:
    small = Small(2, 2)
    task = run(small, 1, "default")
    at = host_of(small, task)
    number = int(at[1:])
    hello(small, number, 2, "research")
    assert clusters(small)[at] == "default", "its task still runs"
    waiting, elsewhere = run(small, 1, "research"), [run(small, 1, "default") for _ in range(2)]
    assert {host_of(small, each) for each in elsewhere} == {f"h{1 - number}"}, "the host gets no new tasks"
    assert small.state(waiting) == "PROVISIONING" and same_index(small)
    small.transact(ends(task))
    assert clusters(small) == {at: "research", f"h{1 - number}": "default"}
    assert host_of(small, waiting) == at and same_index(small)


def test_a_host_without_tasks_moves_at_once_and_takes_its_instances_along() -> None:
    small = Small(2)
    instance = small.transact(launch(1))[0]
    hello(small, 0, 2, "research")
    assert small.store.instances.on_host("h0")[0].cluster == "research"
    assert instance_of(small, instance).cluster == "default", "an EC2 instance stays in the cluster of its user data"
    assert host_of(small, run(small, 1, "research")) == "h0"
    assert small.state(run(small, 1, "default", launchType="EC2")) == "PENDING", "on the instance"
    assert same_index(small)


def test_a_service_leaves_a_host_that_moves() -> None:
    small = Small(2)
    small.transact(create_service("s", 1, desiredCount=1, deploymentConfiguration={"minimumHealthyPercent": 0}))
    assert [state for state, _ in states(small, "s")] == ["PENDING"]
    hello(small, 0, 2, "research")
    tasks = small.store.execute("SELECT desired FROM task WHERE state = 'PENDING'").fetchall()
    assert tasks == [("STOPPED",)]


def test_the_first_host_creates_its_cluster() -> None:
    small = Small(2)
    with pytest.raises(ClusterNotFoundException):
        raise small.transact(lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": "needs-1", "cluster": "research"}, CALLER))[0]
    early = small.transact(lambda tx: instances.launch(tx, instances.InstanceRequest(
        owner="root", region="eu-west-1", cluster="research", type="t", gpus=1, cpu_units=1, memory_mib=1)))[0]  # fmt: skip
    assert instance_of(small, early).cluster == ""
    hello(small, 1, 2, "research")
    assert instance_of(small, early).cluster == "research", "it has waited for its cluster"
    assert host_of(small, run(small, 1, "research")) == "h1"
    found = small.transact(lambda tx: HANDLERS["ListClusters"](tx, {}, CALLER))[0]["clusterArns"]
    assert [arn.rpartition("/")[2] for arn in found] == ["default", "research"]


def test_fargate_uses_the_hosts_of_the_cluster_or_of_the_server() -> None:
    small = lab(1)
    network = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}

    def define(tx: Tx[Store]) -> Any:
        container = {"name": "c", "image": "corral/host", "command": ["true"]}
        params = {"family": "f", "containerDefinitions": [container], "cpu": "256", "memory": "512", "networkMode": "awsvpc",
                  "requiresCompatibilities": ["FARGATE"]}  # fmt: skip
        return HANDLERS["RegisterTaskDefinition"](tx, params, CALLER)

    small.transact(define)
    small.transact(lambda tx: HANDLERS["CreateCluster"](tx, {"clusterName": "other"}, CALLER))
    for cluster, host in (("research", "h1"), ("default", "h0"), ("other", "h0")):
        params = {"taskDefinition": "f", "cluster": cluster, "launchType": "FARGATE", "networkConfiguration": network}
        [answer] = small.transact(lambda tx, params=params: HANDLERS["RunTask"](tx, params, CALLER))
        assert host_of(small, answer["tasks"][0]) == host


def test_a_service_starts_when_the_hosts_of_its_cluster_are_back() -> None:
    """Its strategy is the hosts of the cluster. Meanwhile, there are none, and no claim waits for them."""
    small = Small()
    service = {"serviceName": "s", "taskDefinition": "needs-1", "desiredCount": 1}
    hello(small, 1, 2, "research")

    def create(tx: Tx[Store]) -> Any:  # at this moment, a host is in the cluster
        host_reports.hello(tx, Small.hello(0, 2))
        made = HANDLERS["CreateService"](tx, service, CALLER)
        host_reports.hello(tx, replace(Small.hello(0, 2), options=HostOptions(cluster="research")))
        return made

    small.transact(create)
    small.transact(lambda tx: None)
    assert states(small, "s") == []
    small.clock.advance(60.0)
    hello(small, 0, 2, "default")
    small.transact(lambda tx: None)
    assert states(small, "s") == [("PENDING", "hosts:default")]
