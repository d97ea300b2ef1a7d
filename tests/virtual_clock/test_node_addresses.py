"""Addresses of the nodes of multi-node jobs, and the order in which nodes in containers start."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from corral.core.commands import Command
from corral.core.core import Outcome
from corral.model.agent_protocol import HostOptions, StartOrder
from corral.model.job import JobState
from corral.model.run import Observed
from corral.model.settings import Settings
from corral.services.batch import job_definitions, job_requests, node_addresses
from corral.services.batch.node_addresses import BLOCK_SIZE, BLOCKS
from corral.services.ecs import host_reports
from virtual_clock.job_world import JobWorld

OWN, MAIN = "CORRAL_NODE_ADDRESS", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


class NodeWorld(JobWorld):
    """Remembers the orders to start, by node."""

    def __init__(self, **more: Any) -> None:
        self.ordered: dict[str, StartOrder] = {}
        super().__init__(**more)
        self.queue("q")

    def transact(self, commands: Sequence[Command]) -> Outcome:
        outcome = super().transact(commands)
        for orders in outcome.orders.values():
            for order in orders.start:
                self.ordered[order.spec.environment["AWS_BATCH_JOB_ID"]] = order
        return outcome

    def nodes(self, image: str = "corral/host", nodes: int = 3, main: int = 1) -> str:
        """Submit a multi-node job."""
        needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
        container = {"image": image, "command": ["true"], "resourceRequirements": needs}
        ranges = [{"targetNodes": "0:", "container": container}]
        properties = {"numNodes": nodes, "mainNode": main, "nodeRangeProperties": ranges}
        name = f"nodes-{len(self.ordered)}"
        self.batch_call(
            job_definitions.register_job_definition, jobDefinitionName=name, type="multinode", nodeProperties=properties
        )
        return self.submit(definition=name)

    def environment_of(self, node: str) -> dict[str, str]:
        return self.ordered[node].spec.environment

    def report(self, node: str, **seen: Any) -> None:
        spec = self.ordered[node].spec
        self.run(lambda tx: host_reports.report(tx, "h", [Observed(spec.run_id, started_at_s=self.clock.now_s(), **seen)]))
        self.settle()


def test_each_node_has_an_address_and_knows_the_main_node() -> None:
    world = NodeWorld()
    first, second = world.nodes(), world.nodes()
    own = [world.environment_of(f"{job}#{node}")[OWN] for job in (first, second) for node in range(3)]
    assert len(set(own)) == 6 and all(ip_address(address).is_loopback for address in own)
    assert [world.environment_of(f"{first}#{node}").get(MAIN) for node in range(3)] == [own[1], None, own[1]]


def test_living_jobs_never_share_addresses() -> None:
    """A job whose block is taken gets the next one. The block is free again when its job has ended."""
    world = NodeWorld()
    job = world.job(world.nodes())
    block = zlib.crc32(job.id.encode()) % BLOCKS
    rival = next(name for name in map(str, range(10**6)) if zlib.crc32(name.encode()) % BLOCKS == block)

    def address(job_id: str) -> int:
        return int(ip_address(world.run(lambda tx: node_addresses.node_address(tx, job.but(id=job_id), 0))))

    assert address(rival) == address(job.id) + BLOCK_SIZE
    assert address(rival) == address(job.id) + BLOCK_SIZE  # both keep theirs
    world.finish(job.id)
    assert world.state(job.id) is JobState.SUCCEEDED
    other = next(name for name in map(str, range(int(rival) + 1, 10**6)) if zlib.crc32(name.encode()) % BLOCKS == block)
    assert address(other) == address(rival) - BLOCK_SIZE


def test_addresses_survive_a_restart(tmp_path: Any) -> None:
    world = NodeWorld(path=tmp_path / "state.db")
    job = world.job(world.nodes())
    before = world.environment_of(f"{job.id}#0")[OWN]
    world.restart()
    assert world.run(lambda tx: node_addresses.node_address(tx, job, 0)) == before


def test_nodes_in_containers_wait_for_the_address_of_the_main_node() -> None:
    world = NodeWorld(settings=Settings(host=HostOptions(runtime="docker")))
    job = world.nodes("busybox")
    assert set(world.ordered) == {f"{job}#1"}
    world.report(f"{job}#1", pid=1, about={"runtimeId": "c", "privateIpv4Address": "172.18.0.5"})
    assert set(world.ordered) == {f"{job}#{node}" for node in range(3)}
    assert [world.environment_of(f"{job}#{node}").get(MAIN) for node in range(3)] == ["172.18.0.5", None, "172.18.0.5"]
    assert not any(OWN in world.environment_of(f"{job}#{node}") for node in range(3))
    for node in (0, 2):
        world.report(f"{job}#{node}", pid=2)
    assert world.state(job) is JobState.RUNNING


def test_a_node_that_waits_for_the_main_node_can_be_terminated() -> None:
    world = NodeWorld(settings=Settings(host=HostOptions(runtime="docker")))
    job = world.nodes("busybox")
    world.batch_call(job_requests.terminate_job, jobId=job, reason="enough")
    world.finish(job)
    assert world.state(job) is JobState.FAILED
    assert set(world.ordered) == {f"{job}#1"}
