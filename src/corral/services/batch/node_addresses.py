"""Addresses of the nodes of multi-node jobs.

On AWS, each node has an address of its own. The nodes of a job find each other by the address of the main node. If a job runs on
several hosts (`decide/placement/multi_node.py`), each host has one node, which has the address of the host. A container of such a
job uses the network of its host. If all nodes run on one host, a node is a plain process or a container:

- A plain process gets a loopback address, 127.x.y.z. Linux accepts the whole network 127.0.0.0/8 on the loopback interface. So the
  programs of several nodes can listen on the same port of one machine, each at its own address. A job gets a block of 1,024
  addresses when its first attempt is launched, and keeps the block until it ends. No two jobs have the same block at one time.
- A container has the address that Docker gives it (`services/ecs/run_spec.py`).
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from ipaddress import IPv4Address

from corral.core.transactions import Tx
from corral.fleet.host_options import runs_containers
from corral.model.agent_protocol import HostOptions
from corral.model.job import Job
from corral.model.placement import Placement
from corral.model.task import TaskState
from corral.services.batch.errors import ClientException
from corral.services.ecs import run_spec
from corral.services.ecs.task_progress import start_runs
from corral.services.ecs.task_spec import spec_of
from corral.store import Store

# The addresses of each job are a stored document with this service, type and region. The name of the document is the id of the job.
SERVICE, TYPE, ANY_REGION = "batch", "node-addresses", ""
LOOPBACK = int(IPv4Address("127.0.0.0"))
BLOCK_SIZE = 1024  # a job has at most 1,000 nodes
FIRST_BLOCK = 64  # 127.1.0.0. Programs of the machine use addresses below, for example 127.0.0.1, 127.0.0.53 and 127.0.1.1
BLOCKS = 2**24 // BLOCK_SIZE - FIRST_BLOCK


def node_address(tx: Tx[Store], job: Job, node: int) -> str:
    """Return the loopback address of a node of the multi-node job `job`. The address is the same in all attempts."""
    return str(IPv4Address(LOOPBACK + _block(tx, job) * BLOCK_SIZE + node + 1))


def main_node_address(tx: Tx[Store], job: Job) -> str:
    return node_address(tx, job, job.spec.main_node)


def hosts_of_nodes(tx: Tx[Store], pool_name: str, nodes: Sequence[Placement]) -> list[HostOptions] | None:
    """Return the options of the host of each node, which have its address. Return None if all nodes run on one host."""
    pool = tx.store.fleet.pool(pool_name)
    host_ids = [pool.slot(place.slot_id).host_id for place in nodes]
    if len(set(host_ids)) == 1:
        return None
    known = tx.store.hosts.options()
    return [known[host_id].options for host_id in host_ids]


def release(tx: Tx[Store], job: Job) -> None:
    """Give back the addresses of a multi-node job that has ended."""
    tx.store.stored.drop(SERVICE, TYPE, ANY_REGION, job.id)


def start_waiting_nodes(tx: Tx[Store], job: Job) -> None:
    """Start the nodes that wait for the address of the main node, if this address is known now.

    Only nodes in containers wait: `start_runs` does not start them while the address is not known.
    """
    if not runs_containers(tx):
        return
    for node in range(job.size):
        child = tx.store.jobs.get(f"{job.id}#{node}")
        task = tx.store.tasks.get(child.task_id) if child is not None and child.task_id else None
        if task is None or task.state is not TaskState.PENDING or task.desired is TaskState.STOPPED:
            continue
        spec = spec_of(tx, task)
        if run_spec.has_network(tx, task, spec) and run_spec.main_node_address(tx, task, spec):
            start_runs(tx, task, spec)


def _block(tx: Tx[Store], job: Job) -> int:
    given = tx.store.stored.get(SERVICE, TYPE, ANY_REGION, job.id)
    if given is not None:
        return int(given["block"])
    taken = {document["block"] for _, document in tx.store.stored.listed(SERVICE, TYPE, ANY_REGION)}
    if len(taken) >= BLOCKS:
        raise ClientException(f"{len(taken)} multi-node jobs have addresses, which is the maximum. Submit the job again later.")
    block = zlib.crc32(job.id.encode()) % BLOCKS
    while block + FIRST_BLOCK in taken:
        block = (block + 1) % BLOCKS
    tx.store.stored.put(SERVICE, TYPE, ANY_REGION, job.id, {"block": block + FIRST_BLOCK}, tx.now_s)
    return block + FIRST_BLOCK
