"""Hosts that lenders give: how their pilots join, and what is left when their allocations have ended."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from corral.decide.allocations import AllocationReport
from corral.fleet import instances
from corral.fleet.instances import SHOWN_S, InstanceRequest
from corral.model.allocation import Phase
from corral.model.instance import host_instance_id
from corral.model.joined_host import JoinedHost
from corral.model.lender_settings import SlurmSettings
from corral.services.corral import joining, lending
from corral.services.corral.joining import JoinRefused, Redemption
from corral.services.ecs import host_reports
from services.test_host_life import MACHINE, Fleet
from simulation.clients import CALLER

SECRET = "secret"
SIZE = {"cluster": "", "type": "lab.gpu", "gpus": 2, "cpu_units": 1024, "memory_mib": 1024}
TAGS = {"Tags": [{"Key": "corral:lender", "Value": "slurm"}]}


class Lent(Fleet):
    def __init__(self) -> None:
        super().__init__(1, lenders={"slurm": SlurmSettings()})

    def launched(self, handle: str) -> str:
        """Launch an instance whose job runs, and return its id."""
        request = InstanceRequest(owner=CALLER.principal.arn, region=CALLER.region, details=TAGS, **SIZE)  # type: ignore[arg-type]
        instance_id = str(self.ask(lambda tx: instances.launch(tx, request)).id)
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
