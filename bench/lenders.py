"""`bench/lenders.py [--parts PART,…] [--jobs 500] [--rounds 12] [--seed 1]`: a real Slurm of two nodes lends machines.

`scale`: a group of instances goes from 0 to 2 and back, and the script prints how long that takes, next to `srun true`.
`fleet`: the workers of a queue, as in tests/scenarios/test_queue_fleet_flow.py. `service`: a service with a capacity provider.
`agent`: the pilot or the agent in a job is killed, or the job is cancelled: none of its processes may be left. `start`: how long
a task takes to start on a lent instance, and on a host that has joined by itself. `limit`: an instance ends by the time limit of
its job. `array`: Batch jobs run on a compute environment of Slurm jobs. In each round a random event happens: kill -9 of the
server, a restart of slurmctld, or scancel of a job. At the end, each child of the array must have succeeded.

After each part, Slurm must have no job and Corral no allocation. The script needs root and Debian's slurm-wlm. It exits with 1
if something is wrong.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import statistics
import sys
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # before our own: bench/hosts.py has the name of a folder there

from command import parent_of
from eventually import eventually
from harness import container
from hosts import lab as hosts_lab
from hosts.cluster import Cluster
from hosts.lab import Lab, Machine
from lenders import slurm_cluster
from lenders.slurm_cluster import SlurmCluster
from scenarios import test_queue_fleet_flow as queue_fleet

GPUS = 2
WAIT_S = 300.0
STARTS = 60  # tasks on each machine
IMAGE = "resolve:ssm:/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
USER_DATA = b64encode(b"#!/bin/bash\necho ECS_CLUSTER=lent >> /etc/ecs/ecs.config\n").decode()
SETTINGS = f"""
[lenders.slurm]
gpus = "sim:{GPUS}"
poll_s = 0.5
folder = "FOLDER"
allow = {{time_limit = ["1"]}}
[lenders.ready]
gpus = "sim:{GPUS}"
poll_s = 0.2
folder = "FOLDER"
python = "{sys.executable}"
[scaling]
environment_in_s = 5
capacity_provider_in_s = 5
[instance-types]
"p2.xlarge" = {{lenders = ["ready"]}}
"lab.ready" = {{gpus = {GPUS}, vcpus = 2, memory_gib = 2, lenders = ["ready"]}}
"lab.gpu" = {{gpus = {GPUS}, vcpus = 2, memory_gib = 2, lenders = ["slurm"]}}
"""


class Setting:
    def __init__(self, cluster: Cluster, slurm: SlurmCluster, machines: list[Machine], options: argparse.Namespace) -> None:
        self.cluster, self.corral, self.slurm, self.machines, self.options = cluster, cluster.corral, slurm, machines, options
        self.client("ecs").create_cluster(clusterName="lent")

    def client(self, name: str) -> Any:
        return self.corral.client(name)

    def allocations(self) -> list[dict[str, Any]]:
        return [each for lender in self.corral.own("ListLenders")["lenders"] for each in lender["allocations"]]

    def create_group(self, name: str, type_: str, cluster: str = "lent") -> None:
        user_data = b64encode(f"#!/bin/bash\necho ECS_CLUSTER={cluster} >> /etc/ecs/ecs.config\n".encode()).decode()
        data = {"ImageId": IMAGE, "InstanceType": type_, "UserData": user_data}
        self.client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
        self.client("autoscaling").create_auto_scaling_group(
            AutoScalingGroupName=name, MinSize=0, MaxSize=4, AvailabilityZones=["us-east-1a"],
            LaunchTemplate={"LaunchTemplateName": name},
        )  # fmt: skip

    def scale(self, name: str, count: int) -> None:
        """Scale a group, and wait until it has exactly so many instances in service."""
        self.client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=count)
        eventually(lambda: len(self.in_service(name)) == count, f"{count} instances of {name}", WAIT_S)

    def in_service(self, name: str) -> list[str]:
        [group] = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return [each["InstanceId"] for each in group["Instances"] if each["LifecycleState"] == "InService"]

    def until_given_back(self) -> None:
        eventually(self.is_given_back, "all allocations are given back", WAIT_S)

    def task(self, arn: str, cluster: str) -> dict[str, Any]:
        [found] = self.client("ecs").describe_tasks(cluster=cluster, tasks=[arn])["tasks"]
        return dict(found)

    def is_given_back(self) -> bool:
        return self.slurm.jobs() == [] and self.allocations() == []


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--parts", default=",".join(PARTS))
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
            cluster = Cluster(Path(name), lab, settings=SETTINGS.replace("FOLDER", name))
            try:
                setting = Setting(cluster, slurm, machines, given)
                for part in given.parts.split(","):
                    PARTS[part](setting)
                    setting.until_given_back()
                    print(f"{part}: no allocation is left", flush=True)
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
    setting.create_group("lent", "lab.gpu")
    for _ in range(3):
        began = time.monotonic()
        setting.scale("lent", 2)
        up_s, began = time.monotonic() - began, time.monotonic()
        setting.scale("lent", 0)
        setting.until_given_back()
        print(f"0 to 2 instances: {up_s:.2f} s, 2 to 0: {time.monotonic() - began:.2f} s", flush=True)


def _fleet(setting: Setting) -> None:
    """The workers of a queue: 0 to 1 to 2 to 0 instances, and each message is processed once."""
    folder = setting.cluster.folder / "fleet"
    folder.mkdir()
    gate = queue_fleet.Gate(folder / "gate")
    began = time.monotonic()
    queue_fleet.make_queue_and_bucket(setting.corral)
    queue_fleet.make_service(setting.corral, gate, folder)
    queue_fleet.put_alarm(setting.corral)
    policy = queue_fleet.make_group(setting.corral)
    queue_fleet.put_alarm(setting.corral, AlarmActions=[policy], OKActions=[policy])
    fleet = queue_fleet.Fleet(
        setting.corral, queue_fleet.BUCKET, queue_fleet.QUEUE, queue_fleet.CLUSTER, queue_fleet.GROUP, queue_fleet.LOGS
    )
    fleet.until_zero()  # the metrics of the test event may have launched a worker
    queue_fleet.check_flow(fleet, gate)
    print(f"a fleet of workers went from 0 to 2 and back, with 151 messages, in {time.monotonic() - began:.1f} s", flush=True)


def _service(setting: Setting) -> None:
    """A service with a capacity provider. One of its jobs is cancelled, and then the service scales to zero."""
    ecs = setting.client("ecs")
    setting.create_group("provided", "lab.ready", "provided")
    scaling = {"autoScalingGroupArn": "provided", "managedScaling": {"status": "ENABLED"}}
    ecs.create_capacity_provider(name="slurm-jobs", autoScalingGroupProvider=scaling)
    ecs.create_cluster(clusterName="provided", capacityProviders=["slurm-jobs"])
    ecs.register_task_definition(family="serves", containerDefinitions=[container(["sleep", "3600"], GPUS)])
    began = time.monotonic()
    ecs.create_service(
        cluster="provided", serviceName="s", taskDefinition="serves", desiredCount=2,
        capacityProviderStrategy=[{"capacityProvider": "slurm-jobs", "weight": 1}],
    )  # fmt: skip

    def running() -> set[str]:
        arns = ecs.list_tasks(cluster="provided", serviceName="s")["taskArns"]
        return {arn for arn in arns if setting.task(arn, "provided")["lastStatus"] == "RUNNING"}

    eventually(lambda: len(running()) == 2, "both tasks run", WAIT_S)
    up_s, before = time.monotonic() - began, running()
    setting.slurm.run("scancel", setting.allocations()[0]["handle"])
    eventually(lambda: len(running()) == 2 and running() != before, "the lost task is replaced", WAIT_S)
    began = time.monotonic()
    ecs.update_service(cluster="provided", service="s", desiredCount=0)
    setting.until_given_back()
    print(f"service of a capacity provider: 0 to 2 tasks in {up_s:.1f} s, 2 to 0 in {time.monotonic() - began:.1f} s", flush=True)


def _agent_killed(setting: Setting) -> None:
    """The end of a job ends all of its processes, also those that have left their session, whatever ends it."""
    ecs = setting.client("ecs")
    setting.create_group("killed", "lab.ready", "killed")
    ecs.create_cluster(clusterName="killed")
    script = "setsid sleep 4242 & exec sleep 4242"
    ecs.register_task_definition(family="sleeps", containerDefinitions=[container(["sh", "-c", script], GPUS)])

    def left() -> list[str]:
        every = setting.machines[0].run("ps", "-eo", "pid,ppid,args") + setting.machines[1].run("ps", "-eo", "pid,ppid,args")
        return [line for line in every.splitlines() if "corral.node" in line or "sleep 4242" in line]

    for what in ("kill -9 of the agent", "kill -9 of the pilot", "scancel"):
        setting.scale("killed", 1)
        [instance] = setting.in_service("killed")
        arn = ecs.run_task(cluster="killed", taskDefinition="sleeps")["tasks"][0]["taskArn"]
        eventually(lambda: setting.task(arn, "killed")["lastStatus"] == "RUNNING", "the task runs", WAIT_S)  # noqa: B023
        eventually(lambda: sum("sleep 4242" in line for line in left()) >= 2, "both processes of the task")
        setting.client("autoscaling").suspend_processes(AutoScalingGroupName="killed", ScalingProcesses=["Launch"])
        began = time.monotonic()
        if what == "scancel":
            setting.slurm.run("scancel", setting.allocations()[0]["handle"])
        else:
            machine = next(each for each in setting.machines if each.processes("corral.node"))
            [agent] = machine.processes("corral.node")
            os.kill(agent if "agent" in what else parent_of(agent), signal.SIGKILL)
        setting.until_given_back()
        took_s = time.monotonic() - began
        eventually(lambda: not left(), f"the end of all processes after {what}")
        task = setting.task(arn, "killed")
        assert task["lastStatus"] == "STOPPED", task
        setting.client("autoscaling").set_desired_capacity(AutoScalingGroupName="killed", DesiredCapacity=0)
        setting.client("autoscaling").resume_processes(AutoScalingGroupName="killed")
        eventually(lambda: instance not in setting.in_service("killed"), "the instance has left its group")  # noqa: B023
        print(f"{what}: everything has ended after {took_s:.1f} s: {task['containers'][0].get('reason')}", flush=True)


def _start(setting: Setting) -> None:
    """Start tasks one by one, in turn on a lent instance and on a joined host, and print the medians of both."""
    ecs, pipe = setting.client("ecs"), setting.cluster.folder / "started"
    os.mkfifo(pipe)
    setting.create_group("quick", "lab.ready", "quick")
    ecs.create_cluster(clusterName="quick")
    setting.scale("quick", 1)
    machine = setting.cluster.lab.add("joined")
    setting.cluster.join(machine, setting.cluster.token())
    setting.cluster.until(machine, "UP")
    ecs.register_task_definition(family="starts", containerDefinitions=[container(["/usr/bin/touch", str(pipe)], 1)])

    def took_ms(cluster: str) -> float:
        ends = list[float]()
        reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # before the task, whose first act is to open and close the pipe
        poll = select.poll()
        poll.register(reader, select.POLLIN)

        def wait() -> None:
            poll.poll(1000 * WAIT_S)
            ends.append(time.perf_counter())

        thread = threading.Thread(target=wait)
        thread.start()
        began = time.perf_counter()
        placed = ecs.run_task(cluster=cluster, taskDefinition="starts")
        assert not placed["failures"], placed
        thread.join()
        os.close(reader)
        arn = placed["tasks"][0]["taskArn"]
        eventually(lambda: setting.task(arn, cluster)["lastStatus"] == "STOPPED", "the end of the task", WAIT_S)
        return 1000 * (ends[0] - began)

    found: dict[str, list[float]] = {"quick": [], "default": []}
    for _ in range(STARTS):
        for cluster, times in found.items():
            times.append(took_ms(cluster))
    lent_ms, joined_ms = (statistics.median(times[STARTS // 10 :]) for times in found.values())
    print(
        f"RunTask to the first act: {lent_ms:.1f} ms on a lent instance, {joined_ms:.1f} ms on a joined host (medians)", flush=True
    )
    setting.scale("quick", 0)


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
    setting.until_given_back()
    print(f"time limit of 60 s: the instance was terminated after {time.monotonic() - began:.1f} s", flush=True)


def _array(setting: Setting) -> None:
    jobs, rounds, rng = setting.options.jobs, setting.options.rounds, random.Random(setting.options.seed)
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
    setting.until_given_back()
    assert summary().get("FAILED", 0) == 0, summary()
    print(f"{jobs} jobs, each succeeded, in {took_s:.0f} s; no allocation is left", flush=True)


PARTS: dict[str, Callable[[Setting], None]] = {
    "scale": _scale, "fleet": _fleet, "service": _service, "agent": _agent_killed, "start": _start, "limit": _end_by_time_limit,
    "array": _array,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
