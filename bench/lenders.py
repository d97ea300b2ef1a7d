"""`bench/lenders.py [--jobs 500] [--rounds 12] [--seed 1]`: a real Slurm of two nodes in namespaces lends machines to Corral.

A group of instances goes from 0 to 2 and back, and the script prints how long that takes, next to `srun true`. An instance ends by
the time limit of its job. Then an array of Batch jobs runs on a compute environment of Slurm jobs. In each round a random event
happens: kill -9 of the server, a restart of slurmctld, or scancel of a job. At the end, each child of the array must have
succeeded, and Slurm must have no job and Corral no allocation. It needs root and Debian's slurm-wlm. It exits with 1 if something
is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # before our own: bench/hosts.py has the name of a folder there

from eventually import eventually
from hosts import lab as hosts_lab
from hosts.cluster import Cluster
from hosts.lab import Lab
from lenders import slurm_cluster
from lenders.slurm_cluster import SlurmCluster

GPUS = 2
WAIT_S = 300.0
IMAGE = "resolve:ssm:/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
USER_DATA = b64encode(b"#!/bin/bash\necho ECS_CLUSTER=lent >> /etc/ecs/ecs.config\n").decode()
SETTINGS = f"""
[lenders.slurm]
gpus = "sim:{GPUS}"
poll_s = 0.5
folder = "FOLDER"
allow = {{time_limit = ["1"]}}
[scaling]
environment_in_s = 5
[instance-types]
"lab.gpu" = {{gpus = {GPUS}, vcpus = 2, memory_gib = 2, lenders = ["slurm"]}}
"""


class Setting:
    def __init__(self, cluster: Cluster, slurm: SlurmCluster) -> None:
        self.corral, self.slurm = cluster.corral, slurm

    def client(self, name: str) -> Any:
        return self.corral.client(name)

    def allocations(self) -> list[dict[str, Any]]:
        return [each for lender in self.corral.own("ListLenders")["lenders"] for each in lender["allocations"]]

    def in_service(self) -> int:
        [group] = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["lent"])["AutoScalingGroups"]
        return sum(each["LifecycleState"] == "InService" for each in group["Instances"])

    def is_given_back(self) -> bool:
        return self.slurm.jobs() == [] and self.allocations() == []


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--jobs", type=int, default=500)
    options.add_argument("--rounds", type=int, default=12)
    options.add_argument("--seed", type=int, default=1)
    given = options.parse_args()
    if reason := hosts_lab.why_not() or slurm_cluster.why_not():
        sys.exit(f"this script cannot run here: {reason}")
    with tempfile.TemporaryDirectory(prefix="corral-lenders-") as name, Lab(Path(name) / "lab") as lab:
        Path(name).chmod(0o755)
        machines = [lab.add(f"node{number}") for number in (1, 2)]
        with slurm_cluster.slurm_cluster(Path(name) / "slurm", lab, machines, GPUS) as slurm:
            os.environ["SLURM_CONF"] = slurm.environment["SLURM_CONF"]
            cluster = Cluster(Path(name), lab, SETTINGS.replace("FOLDER", name))
            setting = Setting(cluster, slurm)
            try:
                _scale(setting)
                _end_by_time_limit(setting)
                _array(setting, given.jobs, given.rounds, random.Random(given.seed))
            except AssertionError as wrong:
                print(f"WRONG: {wrong}")
                return 1
            finally:
                slurm.run("scancel", "--user=root")
                eventually(lambda: slurm.jobs() == [], "no jobs")
                cluster.corral.clear()
    return 0


def _scale(setting: Setting) -> None:
    began = time.monotonic()
    setting.slurm.run("srun", "--quiet", "true")
    print(f"srun true: {time.monotonic() - began:.2f} s", flush=True)
    setting.client("ecs").create_cluster(clusterName="lent")
    data = {"ImageId": IMAGE, "InstanceType": "lab.gpu", "UserData": USER_DATA}
    setting.client("ec2").create_launch_template(LaunchTemplateName="lent", LaunchTemplateData=data)
    groups = setting.client("autoscaling")
    groups.create_auto_scaling_group(
        AutoScalingGroupName="lent", MinSize=0, MaxSize=4, AvailabilityZones=["us-east-1a"],
        LaunchTemplate={"LaunchTemplateName": "lent"},
    )  # fmt: skip
    for _ in range(3):
        began = time.monotonic()
        groups.set_desired_capacity(AutoScalingGroupName="lent", DesiredCapacity=2)
        eventually(lambda: setting.in_service() == 2, "two instances", WAIT_S)
        up_s, began = time.monotonic() - began, time.monotonic()
        groups.set_desired_capacity(AutoScalingGroupName="lent", DesiredCapacity=0)
        eventually(setting.is_given_back, "both jobs are given back", WAIT_S)
        print(f"0 to 2 instances: {up_s:.2f} s, 2 to 0: {time.monotonic() - began:.2f} s", flush=True)


def _end_by_time_limit(setting: Setting) -> None:
    """Start an instance with a time limit of a minute: it gets the notice, and is terminated before Slurm ends its job."""
    tags = [{"Key": "corral:slurm-time_limit", "Value": "1"}]
    launched = setting.client("ec2").run_instances(
        MinCount=1, MaxCount=1, ImageId=IMAGE, InstanceType="lab.gpu", UserData=USER_DATA,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )  # fmt: skip
    instance = launched["Instances"][0]["InstanceId"]
    began = time.monotonic()

    def state() -> str:
        found = setting.client("ec2").describe_instances(InstanceIds=[instance])
        return str(found["Reservations"][0]["Instances"][0]["State"]["Name"])

    eventually(lambda: state() == "terminated", "the end of an instance by its time limit", WAIT_S)
    eventually(setting.is_given_back, "its job is given back", WAIT_S)
    print(f"time limit of 60 s: the instance was terminated after {time.monotonic() - began:.1f} s", flush=True)


def _array(setting: Setting, jobs: int, rounds: int, rng: random.Random) -> None:
    batch, ec2 = setting.client("batch"), setting.client("ec2")
    [subnet, *_] = ec2.describe_subnets()["Subnets"]
    iam, role = setting.client("iam"), "ecsInstanceRole"
    iam.create_instance_profile(InstanceProfileName=role)
    batch.create_compute_environment(
        computeEnvironmentName="slurm", type="MANAGED",
        computeResources={
            "type": "EC2", "minvCpus": 0, "maxvCpus": 8, "instanceTypes": ["lab.gpu"], "subnets": [subnet["SubnetId"]],
            "instanceRole": role,
            "securityGroupIds": [ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]],
        },
    )  # fmt: skip
    environments = lambda: batch.describe_compute_environments(computeEnvironments=["slurm"])["computeEnvironments"]  # noqa: E731
    eventually(lambda: environments()[0]["status"] == "VALID", "the compute environment is VALID")
    batch.create_job_queue(jobQueueName="q", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "slurm"}])
    eventually(lambda: batch.describe_job_queues(jobQueues=["q"])["jobQueues"][0]["status"] == "VALID", "the queue is VALID")
    needs = [{"type": "GPU", "value": "1"}, {"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    properties = {"image": "corral/host", "command": ["sleep", "0.2"], "resourceRequirements": needs}
    batch.register_job_definition(
        jobDefinitionName="j", type="container", containerProperties=properties, retryStrategy={"attempts": 10}
    )
    began = time.monotonic()
    job = batch.submit_job(jobName="array", jobQueue="q", jobDefinition="j", arrayProperties={"size": jobs})["jobId"]

    def summary() -> dict[str, int]:
        with suppress(ClientError, OSError):
            found: dict[str, int] = setting.client("batch").describe_jobs(jobs=[job])["jobs"][0]["arrayProperties"]["statusSummary"]
            return found
        return {}

    for number in range(1, rounds + 1):
        goal = jobs * number // (rounds + 1)
        eventually(lambda: summary().get("SUCCEEDED", 0) >= goal, f"{goal} jobs", WAIT_S)  # noqa: B023
        event = rng.choice(("server", "slurmctld", "scancel"))
        if event == "server":
            setting.corral.kill("corral.server")
            setting.corral.start()
        elif event == "slurmctld":
            setting.slurm.stop_controller()
            setting.slurm.start_controller()
        elif handles := [each["handle"] for each in setting.allocations() if each["state"] == "running"]:
            setting.slurm.run("scancel", rng.choice(handles))
        print(f"{event} after {summary().get('SUCCEEDED')} jobs", flush=True)
    eventually(lambda: summary().get("SUCCEEDED", 0) == jobs, "all jobs succeed", WAIT_S)
    took_s = time.monotonic() - began
    eventually(setting.is_given_back, "all allocations are given back", WAIT_S)
    assert summary().get("FAILED", 0) == 0, summary()
    print(f"{jobs} jobs, each succeeded, in {took_s:.0f} s; no allocation is left", flush=True)


if __name__ == "__main__":
    sys.exit(main())
