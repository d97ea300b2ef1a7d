"""Allocations of a lender that proves nothing: pilots with secrets of their own, and what ends with a lost allocation."""

from __future__ import annotations

import hashlib

import pytest
from msgspec.structs import replace

from corral.decide.allocations import AllocationReport
from corral.fleet import instances
from corral.fleet.instances import SHOWN_S, InstanceRequest
from corral.model.allocation import TOKEN_S, Allocation, Phase
from corral.model.instance import InstanceState
from corral.model.lender_settings import RaySettings
from corral.services.corral import joining, lending
from corral.services.corral.joining import JoinLater, JoinRefused, Redemption
from corral.services.ecs import host_reports
from services.test_host_life import MACHINE, Fleet
from simulation.test_claim_queue import definition

HANDLE, SECRET = "0mwm", "made by the pilot"
REQUEST = InstanceRequest(
    owner="root", region="us-east-1", cluster="lent", type="p3.8xlarge", gpus=2, cpu_units=2048, memory_mib=1024, group="",
    details={"Tags": [{"Key": "corral:lender", "Value": "ray"}]},
)  # fmt: skip


class Lent(Fleet):
    """An instance whose machine a Ray cluster gives."""

    def __init__(self) -> None:
        super().__init__(lenders={"ray": RaySettings(kind="ray")})
        self.call("RegisterTaskDefinition", **definition(2))
        self.call("CreateCluster", clusterName="lent")
        self.instance_id: str = self.ask(lambda tx: instances.launch(tx, REQUEST)).id
        self.ask(lambda tx: lending.request_of(tx, self.instance_id, "made by the server"))
        self.ask(lambda tx: lending.requested(tx, self.instance_id, HANDLE))

    @property
    def allocation(self) -> Allocation | None:
        return self.store.allocations.get(self.instance_id)

    @property
    def state(self) -> InstanceState:
        found = self.store.instances.get(self.instance_id)
        assert found is not None
        return found.state

    def says(self, phase: Phase, digest: str = "", handle: str = HANDLE) -> list[str]:
        report = AllocationReport(self.instance_id, handle, phase, f"Ray says {phase}", digest=digest)
        repeated: list[str] = self.ask(lambda tx: lending.report(tx, (report,)))
        return repeated

    def runs(self, secret: str = SECRET) -> None:
        self.says(Phase.RUNNING, hashlib.sha256(secret.encode()).hexdigest())

    def redeem(self, secret: str = SECRET, key: str = "key") -> str:
        request = Redemption(self.instance_id, secret, "pilot", key, "1", "10.0.0.1", MACHINE)
        return str(self.ask(lambda tx: joining.redeem(tx, request)).id)

    def serve(self) -> tuple[str, str]:
        """Let the pilot join and connect, and start a task. Return the ids of the host and of the task."""
        self.runs()
        host_id = self.redeem()
        joined = self.store.joined_hosts.find(host_id)
        assert joined is not None
        said = self.hello(0, 2)
        said = replace(said, host_id=host_id, name=joined.name, options=replace(said.options, cluster=joined.cluster))
        self.ask(lambda tx: host_reports.hello(tx, said))
        assert self.state is InstanceState.RUNNING
        [task] = self.call("RunTask", taskDefinition="needs-2", cluster="lent")["tasks"]
        task_id = str(task["taskArn"].rpartition("/")[2])
        self.ask(lambda tx: host_reports.report(tx, host_id, [self.run_of(task_id)]))
        return host_id, task_id

    def ends_another_instance(self) -> None:
        """Launch and terminate an instance, and let the time pass after which it is deleted."""
        other = self.ask(lambda tx: instances.launch(tx, REQUEST))
        self.ask(lambda tx: instances.terminate(tx, other, "no longer needed"))
        self.ask(lambda tx: lending.report(tx, (AllocationReport(other.id, "another", Phase.ENDED, ""),)))
        self.clock.advance(SHOWN_S)
        self.ask(lambda tx: None)
        assert self.store.instances.get(other.id) is None


def test_a_pilot_joins_with_its_own_secret_when_the_lender_has_told_its_digest() -> None:
    lent = Lent()
    with pytest.raises(JoinLater):
        lent.redeem()
    lent.runs()
    for secret in ("made by the server", "another"):
        with pytest.raises(JoinRefused, match="not valid"):
            lent.redeem(secret)
    host_id = lent.redeem()
    lent.runs("of somebody else")  # the host has joined, so nothing changes
    with pytest.raises(JoinRefused, match="not valid"):
        lent.redeem("of somebody else", "other key")
    with pytest.raises(JoinRefused, match="used up"):
        lent.redeem(key="other key")
    assert lent.redeem() == host_id
    lent.clock.advance(TOKEN_S + 1)
    with pytest.raises(JoinRefused, match="expired"):
        lent.redeem()


@pytest.mark.parametrize("phase", [Phase.BROKEN, Phase.OVER])
def test_an_allocation_that_is_lost_before_its_pilot_has_joined_is_requested_again(phase: Phase) -> None:
    lent = Lent()
    lent.runs()
    assert lent.says(phase) == [lent.instance_id]
    assert lent.state is InstanceState.PENDING
    assert lent.allocation is not None and (lent.allocation.handle, lent.allocation.digest) == ("", "")
    with pytest.raises(JoinLater):  # the pilot of the lost one
        lent.redeem()


@pytest.mark.parametrize("phase", [Phase.BROKEN, Phase.OVER])
def test_a_lost_allocation_ends_when_the_agent_has_reported_the_ends_of_its_tasks(phase: Phase) -> None:
    lent = Lent()
    host_id, task_id = lent.serve()
    lent.says(phase)
    assert lent.state is InstanceState.SHUTTING_DOWN and lent.task(task_id).state != "STOPPED"
    lent.says(phase)
    assert lent.allocation is not None, "the task may still run"
    lent.ask(lambda tx: host_reports.report(tx, host_id, [lent.run_of(task_id, stopped=True)]))
    assert lent.state is InstanceState.TERMINATED
    lent.says(phase)
    assert lent.allocation is None and lent.store.joined_hosts.is_revoked(host_id)


def test_a_lost_allocation_ends_by_order_and_its_tasks_count_as_old_runs() -> None:
    lent = Lent()
    host_id, task_id = lent.serve()
    lent.says(Phase.BROKEN)
    lent.pass_silence()
    lent.call("ForgetHost", host=host_id)
    assert lent.task(task_id).state == "STOPPED" and lent.state is InstanceState.TERMINATED
    lent.says(Phase.BROKEN)
    assert lent.allocation is None
    assert lent.store.hosts.old_runs(host_id), "the machine may still run it, so its GPUs must not move to another host"


def test_a_host_is_not_deleted_while_old_runs_may_be_alive_on_it() -> None:
    lent = Lent()
    host_id, _ = lent.serve()
    [gpu, _] = lent.store.hosts.gpus(host_id)
    lent.says(Phase.BROKEN)
    lent.pass_silence()
    lent.call("ForgetHost", host=host_id)
    lent.says(Phase.BROKEN)
    lent.ends_another_instance()
    assert lent.store.hosts.old_runs(host_id) and lent.store.joined_hosts.is_revoked(host_id)
    again = replace(lent.hello(0, 2), host_id="h7", name="box7")  # the same machine
    lent.ask(lambda tx: host_reports.hello(tx, again))
    assert lent.store.hosts.gpus_elsewhere([gpu.gpu_id], "") == {gpu.gpu_id: host_id}, (
        "another host has got a GPU on which a run may be alive"
    )
    lent.ask(lambda tx: host_reports.hello(tx, replace(again, boot_id="after a restart")))
    assert lent.store.hosts.gpus_elsewhere([gpu.gpu_id], "") == {gpu.gpu_id: "h7"}
    lent.ends_another_instance()
    assert lent.store.hosts.get(host_id) is None and lent.store.joined_hosts.find(host_id) is None


def test_an_agent_whose_allocation_is_over_gets_no_more_tasks() -> None:
    lent = Lent()
    host_id, task_id = lent.serve()
    lent.ask(lambda tx: lending.leaves(tx, "another host"))
    assert lent.state is InstanceState.RUNNING
    lent.ask(lambda tx: lending.leaves(tx, host_id))
    assert lent.state is InstanceState.SHUTTING_DOWN
    lent.ask(lambda tx: host_reports.report(tx, host_id, [lent.run_of(task_id, stopped=True)]))
    assert lent.state is InstanceState.TERMINATED


def test_a_launch_with_a_lender_that_does_not_exist_is_refused_although_this_machine_has_room() -> None:
    """Auto Scaling groups and compute environments ask this before each launch."""
    details = {"Tags": [{"Key": "corral:lender", "Value": "another"}]}
    refusal = Lent().ask(lambda tx: instances.fits_ever(tx, replace(REQUEST, gpus=0, details=details)))
    assert refusal is not None and "there is no lender 'another'" in refusal
