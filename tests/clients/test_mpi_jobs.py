"""The MPI example in a multi-node Batch job: `mpirun` on the main node starts ranks in the tasks of the other nodes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from test_tasks import messages

from harness import Corral, eventually

EXAMPLES = Path(__file__).parents[2] / "examples" / "mpi"
LINE = re.compile(r"rank (\d) of 4 on node (\d) has (GPU-\S+); the sum of all ranks is 6")
NODES = "/aws/batch/job"
ENDED = ("SUCCEEDED", "FAILED")


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral whose queue `mpi` uses this machine, with four GPUs."""
    running = Corral(tmp_path_factory.mktemp("four") / "data", "sim:4xT4").start()
    client = running.client("batch")
    client.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
    order = [{"order": 1, "computeEnvironment": "here"}]
    client.create_job_queue(jobQueueName="mpi", priority=1, computeEnvironmentOrder=order)
    yield running
    running.clear()


def run_nodes(corral: Corral, command: list[str], *, gpus: int = 0, main: int = 0) -> tuple[dict, list[list[str]]]:
    """Run a job with two nodes to its end. Return the job, and the log of each node."""
    client = corral.client("batch")
    needs = {"VCPU": "1", "MEMORY": "2048"} | ({"GPU": str(gpus)} if gpus else {})
    container = {
        "image": "corral/host",
        "command": command,
        "resourceRequirements": [{"type": kind, "value": value} for kind, value in needs.items()],
        "environment": [{"name": "MPI_TOKEN", "value": "a-token-of-the-test"}],
    }
    ranges = [{"targetNodes": "0:", "container": container}]
    properties = {"numNodes": 2, "mainNode": main, "nodeRangeProperties": ranges}
    client.register_job_definition(jobDefinitionName="mpi", type="multinode", nodeProperties=properties)
    job_id = client.submit_job(jobName="mpi", jobQueue="mpi", jobDefinition="mpi")["jobId"]

    def ended() -> Any:
        [job] = client.describe_jobs(jobs=[job_id])["jobs"]
        return job if job["status"] in ENDED else None

    job = eventually(ended, "the multi-node job ends")
    found = client.describe_jobs(jobs=[f"{job_id}#{node}" for node in range(2)])["jobs"]
    logs = corral.client("logs")
    return job, [messages(logs, node["container"]["logStreamName"], NODES) for node in found]


def test_ranks_run_on_all_nodes_with_their_own_gpus(batch):
    command = [sys.executable, str(EXAMPLES / "mpi_nodes.py"), sys.executable, str(EXAMPLES / "allreduce.py")]
    job, logs = run_nodes(batch, command, gpus=2)
    assert job["status"] == "SUCCEEDED", logs
    found = [matched.groups() for line in logs[0] if (matched := LINE.fullmatch(line))]
    assert sorted((rank, node) for rank, node, _ in found) == [("0", "0"), ("1", "0"), ("2", "1"), ("3", "1")], logs
    assert len({gpu for _, _, gpu in found}) == 4


def test_each_node_listens_at_its_own_address(batch):
    """All nodes use the same port of one machine. The main node's variable is not set in the main node itself."""
    program = """
import os, socket, time
own, main = os.environ["CORRAL_NODE_ADDRESS"], os.environ.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
server = socket.create_server((own, 7070))
print(own, main, flush=True)
if main is None:
    server.accept()  # the end of the main node stops the other node, so wait until the other node has printed
while main is not None and socket.socket().connect_ex((main, 7070)):
    time.sleep(0.01)
"""
    job, logs = run_nodes(batch, [sys.executable, "-c", program], main=1)
    assert job["status"] == "SUCCEEDED", logs
    own, main = zip(*(log[-1].split() for log in logs))
    assert len(set(own)) == 2 and all(ip_address(address).is_loopback for address in own) and "127.0.0.1" not in own
    assert main == (own[1], "None")
