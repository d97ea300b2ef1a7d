"""Waiting tasks of services that may use two pools, and daemons: wrong behaviour that the simulation found, as small tests."""

from __future__ import annotations

from typing import Any

from corral.core.transactions import Tx
from corral.fleet import instances
from corral.fleet.instances import InstanceRequest
from corral.model.run import Observed
from corral.services.ecs import host_reports
from corral.services.ecs.handlers import HANDLERS
from corral.store import Store
from simulation.clients import CALLER
from simulation.test_claim_queue import Small
from store.rows import derived_index


def launch(gpus: int) -> Any:
    request = InstanceRequest(
        owner="root", region=CALLER.region, cluster="default", type="t", gpus=gpus, cpu_units=1024, memory_mib=1024
    )  # fmt: skip
    return lambda tx: instances.launch(tx, request)


def create_service(name: str, gpus: int, **more: Any) -> Any:
    params = {"serviceName": name, "taskDefinition": f"needs-{gpus}", "launchType": "EC2", **more}
    return lambda tx: HANDLERS["CreateService"](tx, params, CALLER)


def states(small: Small, name: str) -> list[tuple[str, str]]:
    sql = "SELECT state, pool FROM task WHERE task_group = ? AND desired = 'RUNNING' ORDER BY created_at"
    return small.store.execute(sql, (f"service:{name}",)).fetchall()


def test_a_task_that_both_pools_could_hold_is_placed_once() -> None:
    """The host and an instance of its cluster come in one transaction: the task must not move to and fro between their pools."""
    small = Small()
    small.transact(create_service("s", 1, desiredCount=1))

    def join(tx: Tx[Store]) -> None:
        host_reports.hello(tx, Small.hello(0, 2))
        launch(1)(tx)

    small.transact(join)
    assert [state for state, _ in states(small, "s")] == ["PENDING"]
    assert small.store.execute("SELECT key FROM due WHERE key LIKE 'pool:%'").fetchall() == []


def test_the_oldest_task_gets_the_capacity_of_the_other_pool_after_a_restart_too() -> None:
    """The rows of claims are in the order of their ids, which fall here: a rebuilt index must be in the order of age."""
    small = Small()
    for name in ("old", "young"):
        small.transact(create_service(name, 1, desiredCount=1))
    assert derived_index(small.store)[1].roaming == small.store.claims.roaming
    small.transact(lambda tx: host_reports.hello(tx, Small.hello(0, 1)))
    assert states(small, "old") == [("PENDING", "hosts:default")]
    assert states(small, "young")[0][0] == "PROVISIONING"


def test_a_task_waits_in_the_pool_that_can_hold_it() -> None:
    """It began to wait when there was no host. In the pool without slots it would wait behind all younger tasks."""
    small = Small()
    small.transact(create_service("large", 8, desiredCount=1))
    assert states(small, "large") == [("PROVISIONING", "us-east-1/default")]

    def busy(tx: Tx[Store]) -> None:
        host_reports.hello(tx, Small.hello(0, 8))

    small.transact(lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": "needs-1"}, CALLER))
    small.transact(busy)
    assert states(small, "large") == [("PROVISIONING", "hosts:default")]
    younger = small.transact(lambda tx: HANDLERS["RunTask"](tx, {"taskDefinition": "needs-1"}, CALLER))[0]["tasks"][0]
    assert small.state(younger) == "PROVISIONING", "the host is reserved for the large task"


def test_a_daemon_hears_that_an_instance_returns_its_gpus_to_the_host() -> None:
    small = Small(1)
    taken = small.transact(launch(1))[0]
    small.transact(create_service("d", 1, schedulingStrategy="DAEMON"))
    assert [pool for _, pool in states(small, "d")] == ["us-east-1/default"]
    small.transact(lambda tx: HANDLERS["DeleteService"](tx, {"service": "d"}, CALLER))
    small.transact(create_service("e", 1, schedulingStrategy="DAEMON"))

    def terminate(tx: Tx[Store]) -> None:
        instance = tx.store.instances.get(taken.id)
        assert instance is not None
        instances.terminate(tx, instance, "")

    small.transact(terminate)
    for (task_id,) in small.store.execute(
        "SELECT id FROM task WHERE state != 'STOPPED' AND instance_id = ?", (taken.id,)
    ).fetchall():
        run_id = small.store.execute("SELECT id FROM run WHERE task_id = ?", (task_id,)).fetchone()[0]
        small.transact(lambda tx, run_id=run_id: host_reports.report(tx, "h0", [Observed(run_id, 1, tx.now_s, tx.now_s, 0)]))
    assert states(small, "e") == [("PENDING", "hosts:default")]


def test_a_daemon_task_stays_when_its_slot_becomes_too_small() -> None:
    """A user reserves the GPU that the daemon has. The reservation holds for later tasks."""
    small = Small(1)
    small.transact(create_service("d", 1, schedulingStrategy="DAEMON"))
    hold = {"name": "corral.hold.GPU-0-0", "value": "mine", "targetId": host_slot(small), "targetType": "container-instance"}
    small.transact(lambda tx: HANDLERS["PutAttributes"](tx, {"attributes": [hold]}, CALLER))
    assert states(small, "d") == [("PENDING", "hosts:default")]


def host_slot(small: Small) -> str:
    return next(iter(small.store.fleet.pool("hosts:default").slots())).id


def test_a_deleted_service_is_active_until_tasks_of_an_earlier_deployment_have_stopped() -> None:
    small = Small(1)
    small.transact(create_service("s", 1, desiredCount=1))
    run_id = small.store.execute("SELECT id FROM run").fetchone()[0]
    small.transact(lambda tx: host_reports.report(tx, "h0", [Observed(run_id, 1, tx.now_s)]))
    update = {"service": "s", "forceNewDeployment": True, "desiredCount": 0}
    small.transact(lambda tx: HANDLERS["UpdateService"](tx, update, CALLER))
    described = small.transact(lambda tx: HANDLERS["DescribeServices"](tx, {"services": ["s"]}, CALLER))[0]["services"][0]
    assert len(described["deployments"]) == 1, "the earlier deployment is not shown any more"
    small.transact(lambda tx: HANDLERS["DeleteService"](tx, {"service": "s"}, CALLER))
    assert small.store.ecs_services.get("us-east-1", "default", "s").status == "DRAINING"
    small.transact(lambda tx: host_reports.report(tx, "h0", [Observed(run_id, 1, tx.now_s, tx.now_s, 0)]))
    assert small.store.ecs_services.get("us-east-1", "default", "s").status == "INACTIVE"
