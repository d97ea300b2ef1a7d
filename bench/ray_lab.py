"""`bench/ray_lab.py [--ray FOLDER] [--jobs 60] [--parts scale,...]`: a real Ray of three nodes in namespaces gives instances.

Ray is not installed with Corral: `python3 -m venv FOLDER && FOLDER/bin/pip install "ray[default]"`, with any Python that Ray
supports. The script needs root. It prints how long a group of instances takes from 0 to 2 and back, next to a Ray task alone. Then
it kills the agent, the actor, the raylet of a node, and the head, removes a placement group while another Ray task waits for its
GPUs, and lets the fake autoscaler bring nodes. Each program that has a GPU locks a file of this GPU, so a GPU that is given twice
is found. In the end, Ray must have no placement group, and Corral no allocation. It exits with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from botocore.exceptions import ClientError

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))  # before our own: bench/hosts.py has the name of a folder there

from eventually import eventually
from harness import container
from hosts import lab as hosts_lab
from hosts.cluster import Cluster
from hosts.lab import Lab, Machine

GPUS = 2
WAIT_S = 400.0
PARTS = ("scale", "agent", "group", "raylet", "head", "jobs", "autoscaler")
IMAGE = "resolve:ssm:/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
USER_DATA = b64encode(b"#!/bin/bash\necho ECS_CLUSTER=lent >> /etc/ecs/ecs.config\n").decode()
SETTINGS = f"""
[lenders.ray]
kind = "ray"
dashboard = "DASHBOARD"
ray_python = "RAY/bin/python"
gpus = "sim:{GPUS}"
poll_s = 0.5
folder = "FOLDER"
python = "PYTHON"
[scaling]
environment_in_s = 5
[instance-types]
"lab.gpu" = {{gpus = {GPUS}, vcpus = 2, memory_gib = 0.5, lenders = ["ray"]}}
"""
# Holds the lock of each of its GPUs for some seconds. If another program has one of them, it writes that the GPU was given twice.
HOLDER = """
import fcntl, os, sys, time
folder, seconds, held = sys.argv[1], float(sys.argv[2]), []
for index, _ in enumerate(os.environ["CUDA_VISIBLE_DEVICES"].split(",")):  # a program has all GPUs of its machine
    file = open(f"{folder}/gpu-{os.uname().nodename}-{index}", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        open(f"{folder}/TWICE-{os.uname().nodename}-{index}-{time.time()}", "w").write(" ".join(sys.argv))
        sys.exit("this GPU is in use")
    held.append(file)
print("holds", os.uname().nodename, flush=True)
time.sleep(seconds)
"""
STRANGER = """
import ray, runpy, sys
ray.init(address="auto", namespace="stranger", log_to_driver=False)
@ray.remote(num_gpus=2, max_retries=0)
def hold(words):
    sys.argv = words
    runpy.run_path(words[0])
print("asks", flush=True)
ray.get(hold.remote(sys.argv[1:]))
"""
# Ray's fake provider gives the memory of a type to its nodes as a custom resource, which Ray refuses. Its nodes have all memory.
PROVIDER = """
from ray.autoscaler._private.fake_multi_node.node_provider import FakeMultiNodeProvider
class Provider(FakeMultiNodeProvider):
    def _create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        resources = {name: value for name, value in resources.items() if name != "memory"}
        super()._create_node_with_resources_and_labels(node_config, tags, count, resources, labels)
"""
REMOVE = """
import ray, sys
from ray.util.placement_group import get_placement_group, remove_placement_group
ray.init(address="auto", namespace="corral", log_to_driver=False)
remove_placement_group(get_placement_group(sys.argv[1]))
"""


class RayCluster:
    def __init__(self, ray: Path, folder: Path, machines: list[Machine]) -> None:
        self.folder = folder
        self._ray = ray
        self.head, self.nodes = machines[0], machines[1:]
        self.dashboard = f"http://{self.head.address}:8265"
        self._raylets: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            "PATH": f"{ray}/bin:{os.environ['PATH']}", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1",
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        }  # fmt: skip
        self._temporary = folder / "ray"  # the same path on each machine
        self._temporary.mkdir()
        for machine in machines:
            own = machine.folder / "ray"
            own.mkdir()
            machine.run("mount", "--bind", str(own), str(self._temporary))

    def start(self, machine: Machine, *more: str) -> None:
        """Start Ray on a machine. On a machine that is too busy, Ray gives up, so it is started again."""
        words = [
            "ray",
            "start",
            "--block",
            f"--node-ip-address={machine.address}",
            "--object-store-memory=80000000",
            "--num-cpus=4",
        ]
        if machine is self.head:
            words += ["--head", "--port=6379", f"--dashboard-host={machine.address}", "--dashboard-port=8265", "--num-gpus=0"]
            words += [f"--temp-dir={self._temporary}"]
        else:
            words += [f"--address={self.head.address}:6379", f"--num-gpus={GPUS}"]
        for _ in range(5):
            log = self.folder / f"{machine.name}-ray.log"
            fake = (
                {"RAY_FAKE_CLUSTER": "1", "PYTHONPATH": str(self.folder)} if more else {}
            )  # the fake autoscaler knows its head node by a fixed id
            started = machine.start("nice", "-n", "-5", *words, *more, log=log, environment=self._environment | fake)
            self._raylets[machine.name] = started
            until_s = time.monotonic() + 90.0
            while started.poll() is None and time.monotonic() < until_s:
                if machine.address in self.alive():
                    return
                time.sleep(0.5)
            self.kill(machine)
        raise AssertionError(f"Ray does not start on {machine.name}: see {log}")

    def kill(self, machine: Machine, program: str = "") -> None:
        """kill -9 the processes of Ray on a machine, or those whose command contains `program`."""
        for pid in self.processes(machine, program):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not program:
            self._raylets.pop(machine.name).wait()

    def processes(self, machine: Machine, program: str = "") -> list[int]:
        found, namespace = [], os.stat(f"/proc/{machine.init}/ns/pid").st_ino
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                is_ray = str(self._ray) in command or "ray::" in command
                if is_ray and program in command and os.stat(path / "ns/pid").st_ino == namespace and "corral.node" not in command:
                    found.append(int(path.name))
        return found

    def request(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(
            Request(self.dashboard + path, data, {"Content-Type": "application/json"}, method=method), timeout=60
        ) as answer:
            return json.loads(answer.read())

    def listed(self, kind: str) -> list[dict[str, Any]]:
        return list(self.request("GET", f"/api/v0/{kind}?limit=10000&detail=1")["data"]["result"]["result"])

    def alive(self) -> list[str]:
        """The addresses of the nodes that Ray calls alive."""
        with suppress(OSError, ValueError, KeyError):
            return [each["node_ip"] for each in self.listed("nodes") if each["state"] == "ALIVE"]
        return []

    def groups(self) -> list[str]:
        return [each["name"] for each in self.listed("placement_groups") if each["state"] != "REMOVED"]

    def run(self, program: str, *words: str) -> str:
        """Submit a job, and return its id."""
        command = shlex.join([f"{self._ray}/bin/python", "-c", program, *words])
        return str(self.request("POST", "/api/jobs/", {"entrypoint": command})["submission_id"])

    def job(self, job: str) -> str:
        return str(self.request("GET", f"/api/jobs/{job}")["status"])

    def end_job(self, job: str) -> None:
        eventually(lambda: self.job(job) not in ("PENDING", "RUNNING"), "the end of a job of Ray", WAIT_S)


class Setting:
    def __init__(self, cluster: Cluster, ray: RayCluster) -> None:
        self.corral, self.ray, self.folder = cluster.corral, ray, ray.folder
        (self.folder / "locks").mkdir()
        self.holder = self.folder / "holder.py"
        self.holder.write_text(HOLDER)

    def client(self, name: str) -> Any:
        return self.corral.client(name)

    def allocations(self) -> list[dict[str, Any]]:
        return [each for lender in self.corral.own("ListLenders")["lenders"] for each in lender["allocations"]]

    def handles(self) -> set[str]:
        return {each["handle"] for each in self.allocations()}

    def has_another(self, before: set[str]) -> bool:
        """Whether the group has one instance in service, whose allocation is a new one."""
        found = self.allocations()
        return self.in_service() == 1 and len(found) == 1 and found[0]["hostId"] is not None and not self.handles() & before

    def in_service(self) -> int:
        [group] = self.client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=["lent"])["AutoScalingGroups"]
        return sum(each["LifecycleState"] == "InService" for each in group["Instances"])

    def scale(self, count: int) -> float:
        began = time.monotonic()
        self.client("autoscaling").set_desired_capacity(AutoScalingGroupName="lent", DesiredCapacity=count)
        if count:
            eventually(lambda: self.in_service() == count, f"{count} instances: {self.allocations()}", WAIT_S)
        else:
            eventually(self.is_given_back, "all is given back", WAIT_S)
        return time.monotonic() - began

    def is_given_back(self) -> bool:
        return self.allocations() == [] and self.ray.groups() == []

    def hold(self) -> str:
        """Start a task that holds the GPUs of an instance, and return its ARN."""
        command = ["python3", str(self.holder), f"{self.folder}/locks", "3600"]
        ecs = self.client("ecs")
        ecs.register_task_definition(family="hold", containerDefinitions=[container(command, GPUS)])
        return str(ecs.run_task(cluster="lent", taskDefinition="hold")["tasks"][0]["taskArn"])

    def task(self, arn: str) -> dict[str, Any]:
        [found] = self.client("ecs").describe_tasks(cluster="lent", tasks=[arn])["tasks"]
        return dict(found)

    def until(self, arn: str, status: str) -> None:
        eventually(lambda: self.task(arn)["lastStatus"] == status, f"a task {status}", WAIT_S)

    def machine_of(self, arn: str) -> Machine:
        """The machine on which a task holds its GPUs."""
        return eventually(lambda: [each for each in self.ray.nodes if self.holders(each)], "a holder")[0]

    def holders(self, machine: Machine) -> list[int]:
        namespace = os.stat(f"/proc/{machine.init}/ns/pid").st_ino
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if str(self.holder).encode() in (path / "cmdline").read_bytes() and os.stat(path / "ns/pid").st_ino == namespace:
                    found.append(int(path.name))
        return found

    def check(self) -> None:
        twice = list((self.folder / "locks").glob("TWICE*"))
        assert not twice, f"a GPU was given twice: {twice}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--ray", type=Path, default=Path("ray-venv"), help="the folder of the virtual environment with Ray")
    options.add_argument("--jobs", type=int, default=60)
    options.add_argument("--parts", default=",".join(PARTS))
    given = options.parse_args()
    if reason := hosts_lab.why_not():
        sys.exit(f"this script cannot run here: {reason}")
    ray_folder = given.ray.resolve()
    if not (ray_folder / "bin/ray").exists():
        sys.exit(f'there is no Ray in {ray_folder}: python3 -m venv {ray_folder} && {ray_folder}/bin/pip install "ray[default]"')
    with tempfile.TemporaryDirectory(prefix="corral-ray-") as name, Lab(Path(name) / "lab") as lab:
        Path(name).chmod(0o755)
        machines = [lab.add(each) for each in ("head", "node1", "node2")]
        ray = RayCluster(ray_folder, Path(name), machines)
        for machine in machines:
            ray.start(machine)
        say(f"Ray runs on {', '.join(each.name for each in machines)}")
        settings = (
            SETTINGS.replace("FOLDER", name)
            .replace("DASHBOARD", ray.dashboard)
            .replace("PYTHON", sys.executable)
            .replace("RAY", str(ray_folder))
        )
        cluster = Cluster(Path(name), lab, settings=settings)
        setting = Setting(cluster, ray)
        try:
            _create(setting)
            for part in given.parts.split(","):
                began = time.monotonic()
                {
                    "scale": _scale, "agent": _kill_agent, "group": _remove_group, "raylet": _kill_raylet, "head": _kill_head,
                    "jobs": lambda each: _jobs(each, given.jobs), "autoscaler": _autoscale,
                }[part](setting)  # fmt: skip
                setting.check()
                say(f"{part}: right ({time.monotonic() - began:.0f} s)")
        except AssertionError as wrong:
            say(f"WRONG: {wrong}")
            return 1
        finally:
            cluster.corral.clear()
    return 0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def _create(setting: Setting) -> None:
    setting.client("ecs").create_cluster(clusterName="lent")
    data = {"ImageId": IMAGE, "InstanceType": "lab.gpu", "UserData": USER_DATA}
    setting.client("ec2").create_launch_template(LaunchTemplateName="lent", LaunchTemplateData=data)
    setting.client("autoscaling").create_auto_scaling_group(
        AutoScalingGroupName="lent", MinSize=0, MaxSize=4, AvailabilityZones=["us-east-1a"],
        LaunchTemplate={"LaunchTemplateName": "lent"},
    )  # fmt: skip


def _scale(setting: Setting) -> None:
    for _ in range(3):
        began = time.monotonic()
        setting.ray.end_job(setting.ray.run(STRANGER, str(setting.holder), f"{setting.folder}/locks", "0"))
        say(f"a Ray task with {GPUS} GPUs, as a job: {time.monotonic() - began:.1f} s")
        up_s = setting.scale(2)
        say(f"0 to 2 instances: {up_s:.1f} s, 2 to 0: {setting.scale(0):.1f} s")


def _kill_agent(setting: Setting) -> None:
    setting.scale(1)
    task = setting.hold()
    machine, before = setting.machine_of(task), setting.handles()
    pids = setting.holders(machine)
    machine.kill("corral.node")
    eventually(lambda: machine.processes("corral.node"), "the next agent")
    eventually(lambda: all(host["connected"] for host in setting.corral.own("DescribeHosts")["hosts"]), "the host is back", WAIT_S)
    assert setting.holders(machine) == pids and setting.task(task)["lastStatus"] == "RUNNING", "the task has not survived its agent"
    assert setting.handles() == before
    say("agent killed: the task goes on, and the allocation is the same")
    began = time.monotonic()
    setting.ray.kill(machine, "ray::HeldPilot")
    eventually(lambda: not setting.holders(machine), "the end of the task", WAIT_S)
    say(f"actor killed: its task has ended after {time.monotonic() - began:.2f} s")
    setting.until(task, "STOPPED")
    eventually(lambda: setting.has_another(before), "another instance", WAIT_S)
    say(f"another instance is in service after {time.monotonic() - began:.1f} s")
    setting.scale(0)


def _remove_group(setting: Setting) -> None:
    """Let somebody remove the placement group while another Ray task waits for its GPUs."""
    setting.scale(2)
    tasks = [setting.hold(), setting.hold()]
    eventually(lambda: all(setting.holders(each) for each in setting.ray.nodes), "two holders", WAIT_S)
    stranger = setting.ray.run(STRANGER, str(setting.holder), f"{setting.folder}/locks", "5")
    eventually(lambda: "asks" in str(setting.ray.request("GET", f"/api/jobs/{stranger}/logs")), "another Ray task", WAIT_S)
    setting.ray.run(REMOVE, setting.ray.groups()[0])
    setting.ray.end_job(stranger)
    assert setting.ray.job(stranger) == "SUCCEEDED", setting.ray.request("GET", f"/api/jobs/{stranger}/logs")["logs"]
    eventually(lambda: setting.in_service() == 2, "two instances again", WAIT_S)
    assert sorted(setting.task(each)["lastStatus"] for each in tasks) == ["RUNNING", "STOPPED"]
    setting.scale(0)


def _kill_raylet(setting: Setting) -> None:
    setting.scale(1)
    task = setting.hold()
    machine, began, before = setting.machine_of(task), time.monotonic(), setting.handles()
    setting.ray.kill(machine)
    eventually(lambda: not setting.holders(machine), "the end of the task", WAIT_S)
    say(f"raylet killed: its task has ended after {time.monotonic() - began:.2f} s")
    setting.until(task, "STOPPED")
    eventually(lambda: setting.has_another(before), "another instance", WAIT_S)
    say(f"another instance is in service after {time.monotonic() - began:.1f} s")
    setting.ray.start(machine)
    setting.scale(0)


def _kill_head(setting: Setting) -> None:
    """Without a store of its own, a new head knows nothing, and the nodes end themselves."""
    setting.scale(2)
    tasks = [setting.hold(), setting.hold()]
    eventually(lambda: all(setting.holders(each) for each in setting.ray.nodes), "two holders", WAIT_S)
    began = time.monotonic()
    setting.ray.kill(setting.ray.head)
    eventually(lambda: setting.corral.own("ListLenders")["lenders"][1]["problem"], "the lender does not answer", WAIT_S)
    assert setting.in_service() == 2, "Corral has given up instances although Ray does not answer"
    eventually(lambda: not any(setting.holders(each) for each in setting.ray.nodes), "the nodes end themselves", WAIT_S)
    say(f"head killed: the tasks have ended after {time.monotonic() - began:.0f} s, with their nodes")
    for each in tasks:
        setting.until(each, "STOPPED")
    for machine in setting.ray.nodes:
        setting.ray.kill(machine)
    for machine in (setting.ray.head, *setting.ray.nodes):
        setting.ray.start(machine)
    eventually(lambda: setting.in_service() == 2, "two instances again", WAIT_S)
    setting.scale(0)


def _jobs(setting: Setting, jobs: int) -> None:
    """Run an array of Batch jobs on a compute environment of Ray, while processes are killed."""
    batch, ec2 = setting.client("batch"), setting.client("ec2")
    [subnet, *_] = ec2.describe_subnets()["Subnets"]
    setting.client("iam").create_instance_profile(InstanceProfileName="ecsInstanceRole")
    batch.create_compute_environment(
        computeEnvironmentName="ray", type="MANAGED",
        computeResources={
            "type": "EC2", "minvCpus": 0, "maxvCpus": 4, "instanceTypes": ["lab.gpu"], "subnets": [subnet["SubnetId"]],
            "instanceRole": "ecsInstanceRole",
            "securityGroupIds": [ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]],
        },
    )  # fmt: skip
    environments = lambda: batch.describe_compute_environments(computeEnvironments=["ray"])["computeEnvironments"]  # noqa: E731
    eventually(lambda: environments()[0]["status"] == "VALID", "the compute environment is VALID")
    batch.create_job_queue(jobQueueName="q", priority=1, computeEnvironmentOrder=[{"order": 1, "computeEnvironment": "ray"}])
    eventually(lambda: batch.describe_job_queues(jobQueues=["q"])["jobQueues"][0]["status"] == "VALID", "the queue is VALID")
    needs = [{"type": "GPU", "value": "1"}, {"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]
    properties = {"image": "corral/host", "command": ["sleep", "2"], "resourceRequirements": needs}
    batch.register_job_definition(
        jobDefinitionName="j", type="container", containerProperties=properties, retryStrategy={"attempts": 10}
    )
    job = batch.submit_job(jobName="array", jobQueue="q", jobDefinition="j", arrayProperties={"size": jobs})["jobId"]

    def summary() -> dict[str, int]:
        with suppress(ClientError, OSError):
            found: dict[str, int] = setting.client("batch").describe_jobs(jobs=[job])["jobs"][0]["arrayProperties"]["statusSummary"]
            return found
        return {}

    for number, event in enumerate(("agent", "server", "actor", "raylet"), 1):
        goal = jobs * number // 6
        eventually(lambda: summary().get("SUCCEEDED", 0) >= goal, f"{goal} jobs", WAIT_S)  # noqa: B023
        machine = eventually(lambda: [each for each in setting.ray.nodes if each.processes("corral.node")], "a pilot", WAIT_S)[0]
        if event == "agent":
            machine.kill("corral.node")
        elif event == "server":
            setting.corral.kill("corral.server")
            setting.corral.start()
        elif event == "actor":
            setting.ray.kill(machine, "ray::HeldPilot")
        else:
            setting.ray.kill(machine)
            setting.ray.start(machine)
        say(f"{event} killed after {summary().get('SUCCEEDED')} jobs")
    eventually(lambda: summary().get("SUCCEEDED", 0) == jobs, "all jobs succeed", WAIT_S)
    assert summary().get("FAILED", 0) == 0, summary()
    eventually(setting.is_given_back, "all is given back", WAIT_S)


def _autoscale(setting: Setting) -> None:
    """Let the fake autoscaler of Ray bring nodes to the head node, which has no GPU."""
    ray = setting.ray
    for machine in (*ray.nodes, ray.head):
        ray.kill(machine)
    file = setting.folder / "autoscaler.yaml"
    types = {
        "ray.head.default": {"resources": {"CPU": 4}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 4, "GPU": GPUS, "memory": 4 * 2**30}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    }
    (setting.folder / "lab_provider.py").write_text(PROVIDER)
    provider = {
        "type": "external", "module": "lab_provider.Provider", "head_resources": {"CPU": 4}, "cache_stopped_nodes": False,
        "disable_node_updaters": True,  # nodes are ready when Ray starts on them: nothing is installed by SSH
        "use_node_id_as_ip": True,  # all nodes have the same address, and Ray takes an idle node by this key
    }  # fmt: skip
    config = {
        "cluster_name": "fake", "max_workers": 2, "idle_timeout_minutes": 0.2, "provider": provider, "auth": {}, "docker": {},
        "available_node_types": types, "head_node_type": "ray.head.default", "file_mounts": {}, "cluster_synced_files": [],
        "file_mounts_sync_continuously": False, "rsync_exclude": [], "rsync_filter": [], "initialization_commands": [],
        "setup_commands": [], "head_setup_commands": [], "worker_setup_commands": [], "head_start_ray_commands": [],
        "worker_start_ray_commands": [], "upscaling_speed": 1.0,
    }  # fmt: skip
    file.write_text(json.dumps(config))
    ray.start(ray.head, f"--autoscaling-config={file}")
    up_s = setting.scale(2)
    assert len(ray.alive()) == 3, f"the head and two nodes: {ray.alive()}"
    say(f"0 to 2 instances on nodes that the autoscaler brings: {up_s:.1f} s")
    began = time.monotonic()
    down_s = setting.scale(0)
    eventually(lambda: len(ray.alive()) == 1, "the autoscaler takes its nodes", WAIT_S)
    say(f"2 to 0: {down_s:.1f} s; the autoscaler has taken its nodes after {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    sys.exit(main())
