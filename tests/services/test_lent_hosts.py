"""Hosts that lenders give: how their pilots join, and what is left when their allocations have ended."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.decide.allocations import AllocationReport
from corral.fleet import instances
from corral.fleet.instances import SHOWN_S, InstanceRequest
from corral.model.allocation import LENDER_TAG, Phase
from corral.model.instance import InstanceState, ec2_id, host_instance_id
from corral.model.joined_host import JoinedHost
from corral.model.lender_settings import SlurmSettings
from corral.services.corral import joining, lending
from corral.services.corral.joining import JoinRefused, Redemption
from corral.services.ec2 import errors
from corral.services.ec2.instances import start_instances, stop_instances
from corral.services.ecs import host_reports
from services.test_host_life import MACHINE, Fleet
from simulation.clients import CALLER

SECRET = "secret"
SIZE = {"cluster": "", "type": "lab.gpu", "gpus": 2, "cpu_units": 1024, "memory_mib": 1024}


class Lent(Fleet):
    def __init__(self, **settings: Any) -> None:
        super().__init__(1, lenders={"slurm": SlurmSettings(), "other": SlurmSettings()}, **settings)

    def requested(self, lenders: str = "slurm", gpus: int = 2, type_: str = "lab.gpu") -> str:
        """Launch an instance, and return its id."""
        size = SIZE | {"gpus": gpus, "type": type_, "details": {"Tags": [{"Key": LENDER_TAG, "Value": lenders}]}}
        request = InstanceRequest(owner=CALLER.principal.arn, region=CALLER.region, **size)  # type: ignore[arg-type]
        return str(self.ask(lambda tx: instances.launch(tx, request)).id)

    def refuses(self, instance_id: str) -> None:
        """Let the lender of an instance refuse it."""
        self.ask(lambda tx: lending.request_of(tx, instance_id, SECRET))
        self.ask(lambda tx: lending.refused(tx, instance_id, "no such partition"))

    def lender_of(self, instance_id: str) -> str | None:
        found = self.store.allocations.get(instance_id)
        return found.lender if found is not None else None

    def state(self, instance_id: str) -> InstanceState:
        found = self.store.instances.get(instance_id)
        assert found is not None
        return found.state

    def launched(self, handle: str, type_: str = "lab.gpu") -> str:
        """Launch an instance whose job runs, and return its id."""
        instance_id = self.requested(type_=type_)
        self.ask(lambda tx: lending.request_of(tx, instance_id, SECRET))
        self.ask(lambda tx: lending.requested(tx, instance_id, handle))
        self.reports(instance_id, handle, Phase.RUNNING)
        return instance_id

    def reports(self, instance_id: str, handle: str, phase: Phase) -> None:
        self.ask(lambda tx: lending.report(tx, (AllocationReport(instance_id, handle, phase, ""),)))

    def joins_with_token(self, instance_id: str, key: str) -> JoinedHost:
        request = Redemption(instance_id, SECRET, "pilot", key, "1", "10.0.0.9", MACHINE)
        found: JoinedHost = self.ask(lambda tx: joining.redeem(tx, request))
        return found

    def connects(self, host: JoinedHost, number: int) -> None:
        hello = replace(self.hello(number, 2), host_id=host.id, name=host.name)
        options = replace(hello.options, cluster=host.cluster)
        self.ask(lambda tx: host_reports.hello(tx, replace(hello, options=options)))

    def counts(self) -> dict[str, Any]:
        tables = ("host", "joined_host", "gpu", "instance", "allocation")
        return {name: self.store.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in tables}


def test_a_host_whose_name_is_that_of_a_job_stays() -> None:
    fleet = Lent()
    own = replace(fleet.store.joined_hosts.find("h0"), name="slurm-41")  # type: ignore[type-var]
    fleet.ask(lambda tx: tx.store.joined_hosts.put(own))
    lent = fleet.joins_with_token(fleet.launched("41"), "a")
    assert fleet.store.joined_hosts.find("h0") == own
    assert lent.name == f"slurm-41-{lent.id[:4]}"


def test_a_revoked_pilot_does_not_join_again() -> None:
    fleet = Lent()
    instance_id = fleet.launched("41")
    host = fleet.joins_with_token(instance_id, "a")
    assert fleet.joins_with_token(instance_id, "a").id == host.id  # it has not got the answer
    with pytest.raises(JoinRefused, match="is used up"):
        fleet.joins_with_token(instance_id, "b")
    fleet.ask(lambda tx: joining.revoke_host(tx, {"host": host.name}, CALLER))
    with pytest.raises(JoinRefused, match="was revoked"):
        fleet.joins_with_token(instance_id, "a")


def test_nothing_is_left_of_hosts_whose_allocations_have_ended() -> None:
    fleet = Lent()
    before = fleet.counts()
    for number in range(3):
        instance_id = fleet.launched(str(number))
        host = fleet.joins_with_token(instance_id, f"key of job {number}")
        fleet.connects(host, 10 + number)
        assert fleet.store.instances.host_of(instance_id) == host.id
        fleet.reports(instance_id, str(number), Phase.ENDED)
        assert fleet.store.instances.get(host_instance_id(host.id)) is not None  # as long as its instance is shown
    fleet.pass_silence(0)
    fleet.clock.advance(SHOWN_S)
    fleet.ask(lambda tx: None)
    never = fleet.launched("9")
    fleet.joins_with_token(never, "key of a job that ends before its agent starts")
    fleet.ask(lambda tx: instances.terminate(tx, tx.store.instances.get(never), "no longer needed"))  # type: ignore[arg-type]
    fleet.reports(never, "9", Phase.ENDED)
    fleet.clock.advance(SHOWN_S)
    fleet.ask(lambda tx: None)
    assert fleet.counts() == before
    assert set(fleet.store.joined_hosts.all()) == {"h0"} and fleet.store.joined_hosts.get(host.id) is None
    assert set(fleet.store.hosts.options()) == {"h0"}


def test_lenders_are_asked_in_their_order_and_local_waits_only_at_the_end() -> None:
    fleet = Lent()
    [in_the_middle, too_large, at_the_end] = [
        fleet.requested("slurm,local,other", 1), fleet.requested("slurm,local,other", 2), fleet.requested("slurm,local", 1),
    ]  # fmt: skip
    for instance_id in (in_the_middle, too_large, at_the_end):
        fleet.refuses(instance_id)
    assert fleet.lender_of(in_the_middle) is None and fleet.state(in_the_middle) is InstanceState.RUNNING
    assert fleet.lender_of(too_large) == "other"
    fleet.refuses(too_large)
    assert fleet.lender_of(too_large) == "other"  # it is the last, so its request is repeated
    assert fleet.lender_of(at_the_end) is None and fleet.state(at_the_end) is InstanceState.PENDING
    fleet.ask(lambda tx: instances.terminate(tx, tx.store.instances.get(in_the_middle), "no longer needed"))  # type: ignore[arg-type]
    assert fleet.state(at_the_end) is InstanceState.RUNNING


def test_an_instance_of_a_lender_is_neither_stopped_nor_started_again() -> None:
    fleet = Lent()
    instance_id = fleet.launched("41")
    fleet.connects(fleet.joins_with_token(instance_id, "a"), 10)
    params = {"InstanceIds": [ec2_id(instance_id)]}
    with pytest.raises(errors.UnsupportedOperation, match=r"cannot be stopped: the lender slurm keeps.*Terminate"):
        fleet.ask(lambda tx: stop_instances(tx, params, CALLER))
    assert fleet.state(instance_id) is InstanceState.RUNNING
    fleet.ask(lambda tx: start_instances(tx, params, CALLER))  # it runs
    fleet.ask(lambda tx: instances.stop(tx, tx.store.instances.get(instance_id), "by an earlier version"))  # type: ignore[arg-type]
    with pytest.raises(errors.UnsupportedOperation, match="cannot be started again"):
        fleet.ask(lambda tx: start_instances(tx, params, CALLER))
    local = fleet.requested("local", 1)
    fleet.ask(lambda tx: stop_instances(tx, {"InstanceIds": [ec2_id(local)]}, CALLER))
    assert fleet.state(local) is InstanceState.STOPPED
