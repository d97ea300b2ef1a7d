"""`bench/spanning.py [--hosts 4] [--torch PYTHON]`: multi-node jobs that span hosts, in a lab of namespaces.

`aws batch submit-job` runs an MPI program on one node of each host, and then on two nodes, which fit on one host. With `--torch`, a
Python that has PyTorch also runs `torchrun` with gloo on all hosts. It needs root and mpirun, and exits with 1 if a job fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # before our own: bench/hosts.py has the name of a folder there

from eventually import eventually
from hosts.cluster import Cluster
from hosts.lab import Lab, why_not

EXAMPLES = Path(__file__).parent.parent / "examples"
MPI, TORCH = EXAMPLES / "mpi", EXAMPLES / "torch"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--hosts", type=int, default=4)
    options.add_argument("--torch", metavar="PYTHON", help="a Python that has PyTorch")
    given = options.parse_args()
    if reason := why_not():
        sys.exit(f"this script cannot run here: {reason}")
    with tempfile.TemporaryDirectory(prefix="corral-spanning-") as name, Lab(Path(name) / "lab") as lab:
        cluster = Cluster(Path(name), lab)
        try:
            machines = [lab.add(f"gpu-{number}") for number in range(given.hosts)]
            token = cluster.token("--uses", str(given.hosts))
            for machine in machines:
                cluster.join(machine, token)
            for machine in machines:
                cluster.until(machine, "UP")
            batch = cluster.corral.client("batch")
            batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
            order = [{"order": 1, "computeEnvironment": "here"}]
            batch.create_job_queue(jobQueueName="jobs", priority=1, computeEnvironmentOrder=order)
            mpi = [sys.executable, str(MPI / "mpi_nodes.py"), sys.executable, str(MPI / "allreduce.py")]
            lines = _run(cluster, "MPI", given.hosts, 2, mpi)
            assert sum("the sum of all ranks" in line for line in lines) == 2 * given.hosts, lines
            _run(cluster, "MPI on one host", 2, 1, mpi, one_host=True)
            if given.torch:
                torch = [given.torch, str(TORCH / "torchrun_nodes.py"), str(TORCH / "allreduce.py")]
                _run(cluster, "torchrun with gloo", given.hosts, 2, torch)
        except AssertionError as wrong:
            print(f"WRONG: {wrong}")
            return 1
        finally:
            cluster.corral.clear()
    return 0


def _run(cluster: Cluster, title: str, nodes: int, gpus: int, command: list[str], *, one_host: bool = False) -> list[str]:
    """Run a job. Check that it has one node on each host, or all nodes on one host. Return what its main node has printed."""
    batch, began = cluster.corral.client("batch"), time.monotonic()
    needs = {"VCPU": "1", "MEMORY": "512", "GPU": str(gpus)}
    variables = {"MPI_TOKEN": "a-token", "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMP_NUM_THREADS": "1"}
    container = {
        "image": "corral/host",
        "command": command,
        "resourceRequirements": [{"type": kind, "value": value} for kind, value in needs.items()],
        "environment": [{"name": name, "value": value} for name, value in variables.items()],
    }
    properties = {"numNodes": nodes, "mainNode": 0, "nodeRangeProperties": [{"targetNodes": "0:", "container": container}]}
    batch.register_job_definition(jobDefinitionName="job", type="multinode", nodeProperties=properties)
    submitted = cluster.corral.aws("batch", "submit-job", "--job-name", "job", "--job-queue", "jobs", "--job-definition", "job")
    job = submitted["jobId"]

    def ended() -> str | None:
        [found] = batch.describe_jobs(jobs=[job])["jobs"]
        return found["status"] if found["status"] in ("SUCCEEDED", "FAILED") else None

    status = eventually(ended, f"the end of {title}", 180.0)
    found = batch.describe_jobs(jobs=[f"{job}#{node}" for node in range(nodes)])["jobs"]
    tasks = [cluster.ecs.describe_tasks(tasks=[node["container"]["taskArn"]])["tasks"][0] for node in found]
    hosts = {task["containerInstanceArn"] for task in tasks}
    stream = found[0]["container"]["logStreamName"]
    events = cluster.logs.get_log_events(logGroupName="/aws/batch/job", logStreamName=stream, startFromHead=True)["events"]
    lines = [event["message"] for event in events]
    print(f"{title}: {nodes} nodes on {len(hosts)} hosts {status} after {time.monotonic() - began:.1f} s")
    print("\n".join(f"    {line}" for line in lines if "sum" in line))
    assert status == "SUCCEEDED", "\n".join(lines)
    assert len(hosts) == (1 if one_host else nodes), hosts
    return lines


if __name__ == "__main__":
    sys.exit(main())
