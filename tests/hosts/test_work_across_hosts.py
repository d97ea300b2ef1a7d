"""Work that needs several hosts, in the lab: a multi-node job, a shipped folder, and the upgrade of a host."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.model.agent_protocol import PROTOCOL
from corral.version import full_version
from eventually import eventually
from hosts.cluster import Cluster, other_version
from hosts.lab import Lab, why_not

# A node prints what Batch tells it, and meets the other node on the same port.
NODE = """
import json, os, socket, time
own, main = os.environ["CORRAL_NODE_ADDRESS"], os.environ.get("AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS")
server = socket.create_server((own, 7070))
interfaces = [os.environ.get(name) for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")]
print(json.dumps([socket.gethostname(), own, main, *interfaces]), flush=True)
if main is None:
    server.accept()  # the end of the main node stops the other node, so wait until the other node has printed
while main is not None and socket.socket().connect_ex((main, 7070)):
    time.sleep(0.01)
"""


NEWER = f"9.9.9 (commit {'0' * 12})"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    if why := why_not():
        pytest.skip(why)
    with Lab(tmp_path / "lab") as lab:
        # The hosts are of this version, and announce the number of the protocol before that of the server.
        made = Cluster(tmp_path, lab, environment=other_version(tmp_path / "newer", "9.9.9", PROTOCOL + 1))
        try:
            yield made
        finally:
            made.corral.clear()


def run_nodes(cluster: Cluster, gpus: int) -> list[list[Any]]:
    """Run a job of two nodes with this many GPUs each. Return what each node has printed."""
    batch = cluster.corral.client("batch")
    needs = {"VCPU": "1", "MEMORY": "64", "GPU": str(gpus)}
    container = {
        "image": "corral/host",
        "command": [sys.executable, "-c", NODE],
        "resourceRequirements": [{"type": kind, "value": value} for kind, value in needs.items()],
        "environment": [{"name": "GLOO_SOCKET_IFNAME", "value": "mine"}],
    }
    ranges = [{"targetNodes": "0:", "container": container}]
    properties = {"numNodes": 2, "mainNode": 0, "nodeRangeProperties": ranges}
    batch.register_job_definition(jobDefinitionName="meet", type="multinode", nodeProperties=properties)
    job = batch.submit_job(jobName="meet", jobQueue="here", jobDefinition="meet")["jobId"]

    def ended() -> bool:
        [found] = batch.describe_jobs(jobs=[job])["jobs"]
        assert found["status"] != "FAILED", found
        return bool(found["status"] == "SUCCEEDED")

    eventually(ended, "the end of a multi-node job")
    nodes = batch.describe_jobs(jobs=[f"{job}#0", f"{job}#1"])["jobs"]
    streams = [node["container"]["logStreamName"] for node in nodes]
    logs = [cluster.logs.get_log_events(logGroupName="/aws/batch/job", logStreamName=stream) for stream in streams]
    return [json.loads(log["events"][0]["message"]) for log in logs]


def check_addresses(cluster: Cluster, addresses: dict[str, str]) -> None:
    """The container instances of hosts, and their own instances, have the addresses of the hosts."""
    arns = cluster.ecs.list_container_instances()["containerInstanceArns"]
    found = cluster.ecs.describe_container_instances(containerInstances=arns)["containerInstances"]
    attributes = [{each["name"]: each.get("value") for each in instance["attributes"]} for instance in found]
    assert {each["corral.host-name"]: each["corral.host-address"] for each in attributes} == addresses
    described = cluster.corral.client("ec2").describe_instances(InstanceIds=[each["ec2InstanceId"] for each in found])
    real = [instance["PrivateIpAddress"] for each in described["Reservations"] for instance in each["Instances"]]
    assert sorted(real) == sorted(addresses.values())


def test_jobs_folders_and_upgrades_across_hosts(cluster: Cluster, tmp_path: Path) -> None:
    batch = cluster.corral.client("batch")
    batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
    order = [{"order": 1, "computeEnvironment": "here"}]
    batch.create_job_queue(jobQueueName="here", priority=1, computeEnvironmentOrder=order)
    token = cluster.token("--uses", "2")
    machines = {name: cluster.lab.add(name) for name in ("gpu-one", "gpu-two")}
    for machine in machines.values():
        cluster.join(machine, token)
    for machine in machines.values():
        cluster.until(machine, "UP")
    addresses = {host["name"]: host["address"] for host in cluster.corral.own("DescribeHosts")["hosts"]}
    assert {name: addresses[name] for name in machines} == {name: machine.address for name, machine in machines.items()}
    assert cluster.lab.address in addresses.values()  # the server's host has the address of the door

    check_addresses(cluster, addresses)

    main, other = run_nodes(cluster, 2)
    assert {main[0], other[0]} == set(machines)
    assert main == [main[0], addresses[main[0]], None, "eth0", "mine"]
    assert other == [other[0], addresses[other[0]], addresses[main[0]], "eth0", "mine"]

    main, other = run_nodes(cluster, 1)
    assert main[0] == other[0] and main[1].startswith("127.") and other[2] == main[1] and main[3] is None

    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "where.sh").write_text("hostname; pwd\n")
    sent = cluster.cli("run", "--ship", "--host", "gpu-two", "-w", str(tmp_path / "project"), "--", "sh", "where.sh")
    host, folder = sent.stdout.split()
    assert host == "gpu-two" and folder.startswith(str(tmp_path / "gpu-two"))

    task = cluster.work(machines["gpu-one"])
    cluster.first_line(task)
    agents = lambda: {host["name"]: host["agent"] for host in cluster.corral.own("DescribeHosts")["hosts"]}  # noqa: E731
    assert {agents()[name] for name in machines} == {full_version()}
    for word in ("now", "already"):
        assert cluster.cli("hosts", "upgrade", "gpu-one").stdout == f"gpu-one has {NEWER} {word}\n"
    cluster.until_works(machines["gpu-one"])
    cluster.stop(machines["gpu-one"])
    cluster.until_stopped(machines["gpu-one"], task)
    cluster.check_all(machines["gpu-one"], task)
    sent = cluster.cli("run", "--ship", "--host", "gpu-one", "-w", str(tmp_path / "project"), "--", "sh", "where.sh")
    assert sent.stdout.startswith("gpu-one\n")
    machines["gpu-one"].kill("corral.node")
    cluster.join(machines["gpu-one"])
    cluster.until(machines["gpu-one"], "UP")
    assert agents()["gpu-one"] == NEWER  # `corral join` of the older installation continues with the upgrade
