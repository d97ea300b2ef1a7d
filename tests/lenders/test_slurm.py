"""An Auto Scaling group whose machines are jobs of a real Slurm, from zero and back."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from eventually import eventually
from harness import container
from hosts import lab as hosts_lab
from hosts.cluster import Cluster
from hosts.lab import Lab
from lenders import slurm_cluster
from lenders.slurm_cluster import SlurmCluster

WHY_NOT = hosts_lab.why_not() or slurm_cluster.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
IMAGE = "resolve:ssm:/aws/service/ecs/optimized-ami/amazon-linux-2/gpu/recommended/image_id"
USER_DATA = b"#!/bin/bash\necho ECS_CLUSTER=lent >> /etc/ecs/ecs.config\n"
GPUS = 2
# The first attempt of a job, and a task, run until SIGTERM. The traps are set before the line is printed.
SAVES = """
[ "$AWS_BATCH_JOB_ATTEMPT" != 2 ] || exit 0
trap 'sleep 1; echo saved; exit 7' TERM
echo "${AWS_BATCH_JOB_ATTEMPT:+job }${AWS_BATCH_JOB_ATTEMPT:-task} starts"
while :; do sleep 0.1; done
"""
SETTINGS = f"""
[lenders.slurm]
gpus = "sim:{GPUS}"
poll_s = 0.2
folder = "FOLDER"
log_folder = "FOLDER"
python = "{sys.executable}"
allow = {{partition = ["gpu", "spot", "brief"]}}
[lenders.bare]
gpus = "sim:{GPUS}"
poll_s = 0.2
folder = "FOLDER"
log_folder = "FOLDER"
[scaling]
environment_in_s = 1
[instance-types]
"lab.gpu" = {{gpus = {GPUS}, vcpus = 1, memory_gib = 1}}
"lab.large" = {{gpus = 9, vcpus = 1, memory_gib = 1}}
"""


class Setting:
    def __init__(self, cluster: Cluster, slurm: SlurmCluster) -> None:
        self.folder = cluster.folder
        self.corral, self.slurm, self.machines, self.cli = cluster.corral, slurm, cluster.lab.machines, cluster.cli
        self.ecs, self.groups, self.ec2, self.logs = (self.corral.client(name) for name in ("ecs", "autoscaling", "ec2", "logs"))
        self.batch, self.iam = self.corral.client("batch"), self.corral.client("iam")
        self.ecs.create_cluster(clusterName="lent")

    def create_group(self, name: str, type_: str = "lab.gpu", lender: str = "slurm", **tags: str) -> None:
        options = {f"corral:slurm-{option}": value for option, value in tags.items()}
        self.ec2.create_launch_template(
            LaunchTemplateName=name, LaunchTemplateData=launch(type_, {"corral:lender": lender} | options)
        )
        self.groups.create_auto_scaling_group(
            AutoScalingGroupName=name, MinSize=0, MaxSize=4, AvailabilityZones=["us-east-1a"],
            LaunchTemplate={"LaunchTemplateName": name},
        )  # fmt: skip

    def scale(self, name: str, count: int) -> None:
        self.groups.set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=count)

    def in_service(self, name: str) -> list[str]:
        [group] = self.groups.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return [each["InstanceId"] for each in group["Instances"] if each["LifecycleState"] == "InService"]

    def activity(self, name: str) -> dict[str, Any]:
        [found, *_] = self.groups.describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
        return {"StatusMessage": "", **found}

    def allocations(self) -> list[dict[str, Any]]:
        return [each for lender in self.corral.own("ListLenders")["lenders"] for each in lender["allocations"]]

    def handles(self) -> list[str]:
        return sorted(each["handle"] or "" for each in self.allocations())

    def start_tasks(self, count: int, command: str = "hostname; echo $CUDA_VISIBLE_DEVICES; exec sleep 600") -> list[str]:
        self.ecs.register_task_definition(
            family="t", containerDefinitions=[container(["sh", "-c", command], GPUS, log_prefix="lent")]
        )
        return [self.ecs.run_task(cluster="lent", taskDefinition="t")["tasks"][0]["taskArn"] for _ in range(count)]

    def tasks(self, arns: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ecs.describe_tasks(cluster="lent", tasks=arns)["tasks"]
        return found

    def submit_job(self, partition: str) -> str:
        """Submit a job to a compute environment of Slurm jobs. It is tried again only if its instance was terminated."""
        self.iam.create_instance_profile(InstanceProfileName="ecsInstanceRole")
        self.batch.create_compute_environment(
            computeEnvironmentName="slurm", type="MANAGED",
            computeResources={
                "type": "EC2", "minvCpus": 0, "maxvCpus": 1, "instanceTypes": ["lab.gpu"], "instanceRole": "ecsInstanceRole",
                "subnets": [self.ec2.describe_subnets()["Subnets"][0]["SubnetId"]],
                "securityGroupIds": [self.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]],
                "tags": {"corral:lender": "slurm", "corral:slurm-partition": partition},
            },
        )  # fmt: skip
        environments = lambda: self.batch.describe_compute_environments()["computeEnvironments"]  # noqa: E731
        eventually(lambda: environments()[0]["status"] == "VALID", "the compute environment")
        order = [{"order": 1, "computeEnvironment": "slurm"}]
        self.batch.create_job_queue(jobQueueName="q", priority=1, computeEnvironmentOrder=order)
        eventually(lambda: self.batch.describe_job_queues()["jobQueues"][0]["status"] == "VALID", "the queue")
        needs = {"GPU": str(GPUS), "VCPU": "1", "MEMORY": "64"}
        properties = {
            "image": "corral/host", "command": ["sh", "-c", SAVES],
            "resourceRequirements": [{"type": type_, "value": value} for type_, value in needs.items()],
            "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": "/tests"}},
        }  # fmt: skip
        rules = [{"onStatusReason": "Host EC2*", "action": "RETRY"}, {"onReason": "*", "action": "EXIT"}]
        self.batch.register_job_definition(
            jobDefinitionName="j", type="container", containerProperties=properties,
            retryStrategy={"attempts": 3, "evaluateOnExit": rules},
        )  # fmt: skip
        return str(self.batch.submit_job(jobName="j", jobQueue="q", jobDefinition="j")["jobId"])

    def job(self, job_id: str) -> dict[str, Any]:
        [found] = self.batch.describe_jobs(jobs=[job_id])["jobs"]
        return dict(found)

    def printed(self) -> list[str]:
        """The lines of all tasks."""
        if not self.logs.describe_log_groups(logGroupNamePrefix="/tests")["logGroups"]:
            return []
        return [each["message"] for each in self.logs.filter_log_events(logGroupName="/tests")["events"]]


def launch(type_: str, tags: dict[str, str]) -> dict[str, Any]:
    given = [{"Key": key, "Value": value} for key, value in tags.items()]
    specifications = [{"ResourceType": "instance", "Tags": given}]
    return {
        "ImageId": IMAGE, "InstanceType": type_, "UserData": b64encode(USER_DATA).decode(), "TagSpecifications": specifications,
    }  # fmt: skip


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder: Path = tmp_path_factory.mktemp("lent")
    with Lab(folder / "lab") as lab, pytest.MonkeyPatch.context() as patched:
        machines = [lab.add("node1"), lab.add("node2")]
        with slurm_cluster.slurm_cluster(folder / "slurm", lab, machines, gpus=GPUS) as slurm:
            patched.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
            cluster = Cluster(folder, lab, settings=SETTINGS.replace("FOLDER", str(folder)))
            try:
                yield Setting(cluster, slurm)
            finally:
                slurm.run("scancel", "--user=root")
                eventually(lambda: slurm.jobs() == [], "no jobs")
                cluster.corral.clear()


def test_a_group_of_jobs(setting: Setting) -> None:
    """0 to 2 and back: tasks run on the jobs, with their GPUs, also while Slurm's controller and Corral restart. No job is left.

    A job that somebody cancels is lost: its task is stopped, and the group gets another job.
    """
    setting.create_group("jobs")
    setting.scale("jobs", 2)
    eventually(lambda: len(setting.in_service("jobs")) == 2, "two instances", 60.0)
    setting.slurm.stop_controller()
    tasks = setting.start_tasks(2)
    eventually(lambda: len(setting.printed()) == 4, "the output of both", 60.0)
    assert {"node1", "node2"} < set(setting.printed())
    setting.corral.kill("corral.server")
    setting.corral.start()
    setting.slurm.start_controller()
    before = setting.handles()
    setting.slurm.run("scancel", before[0])
    eventually(lambda: setting.handles() not in (before, before[1:], ["", *before[1:]]), "another job", 60.0)
    eventually(lambda: len(setting.in_service("jobs")) == 2, "two instances again", 60.0)
    ended = [each for each in setting.tasks(tasks) if each["lastStatus"] == "STOPPED"]
    assert len(ended) == 1, [(each.get("stoppedReason"), each["containers"][0].get("reason")) for each in ended]
    [lost] = ended
    assert lost["containers"][0]["exitCode"] == 143, lost  # the agent of a job that was cancelled reports the ends of its tasks
    assert lost["stoppedReason"] == f"the instance was terminated: the lender slurm ends the allocation {before[0]}"
    setting.scale("jobs", 0)
    eventually(lambda: setting.slurm.jobs() == [] and setting.allocations() == [], "all jobs are given back", 60.0)
    eventually(lambda: {each["lastStatus"] for each in setting.tasks(tasks)} == {"STOPPED"}, "no task is left")


def test_preempted_jobs(setting: Setting) -> None:
    """Jobs of another partition take the machines of two jobs of Slurm. Their tasks start again when these jobs have ended.

    The service has the notice of a spot interruption before the grace time ends. The job of Batch gets only SIGTERM, has time to
    save its state, and is tried again by a rule for instances that were terminated.
    """
    setting.create_group("preempted", partition="spot")
    setting.scale("preempted", 1)
    setting.ecs.register_task_definition(family="kept", containerDefinitions=[container(["sh", "-c", SAVES], GPUS, "lent")])
    setting.ecs.create_service(cluster="lent", serviceName="kept", taskDefinition="kept", desiredCount=1)
    [task] = eventually(lambda: setting.ecs.list_tasks(cluster="lent", serviceName="kept")["taskArns"], "a task", 60.0)
    job = setting.submit_job("brief")
    eventually(lambda: {"job 1 starts", "task starts"} <= set(setting.printed()), "both run", 60.0)
    [spot], before = setting.in_service("preempted"), setting.handles()
    [on_spot] = [each["handle"] for each in setting.allocations() if each["instanceId"] == spot]
    # the usual scheduler of Slurm starts jobs without a limit, and the backfill scheduler sets a limit of a year
    setting.slurm.run("scontrol", "update", f"JobId={on_spot}", "TimeLimit=UNLIMITED")
    urgent = setting.slurm.submit("urgent", "--nodes=2", f"--gres=gpu:{GPUS}")
    eventually(lambda: setting.tasks([task])[0]["lastStatus"] == "STOPPED", "the end of the task", 60.0)
    [ended] = setting.tasks([task])
    assert ended["containers"][0]["exitCode"] == 7, ended
    assert ended["stoppedReason"] == f"the instance was terminated: Slurm job {on_spot} is preempted"
    eventually(lambda: setting.slurm.state(urgent) == "RUNNING", "the other job has both machines", 60.0)
    assert {setting.slurm.state(each) for each in before} <= {"PREEMPTED", "CANCELLED"}
    eventually(
        lambda: any("waits" in (each.get("reason") or "") for each in setting.allocations()), "another job of Slurm waits", 60.0
    )
    setting.slurm.run("scancel", urgent)
    eventually(lambda: setting.job(job)["status"] == "SUCCEEDED", "the second attempt", 60.0)
    [first, _] = setting.job(job)["attempts"]
    assert first["statusReason"].startswith("Host EC2 (instance i-") and first["container"]["exitCode"] == 7, first
    eventually(lambda: setting.printed().count("task starts") == 2, "another task of the service", 60.0)
    eventually(lambda: setting.printed().count("saved") == 2, "the output of both")
    setting.ecs.delete_service(cluster="lent", service="kept", force=True)
    setting.scale("preempted", 0)
    eventually(lambda: setting.slurm.jobs() == [] and setting.allocations() == [], "all jobs are given back", 60.0)
    assert [each.name for each in setting.folder.glob("corral-pilot.*") if each.is_dir()] == []


def test_machines_without_corral_get_it_from_the_server(setting: Setting) -> None:
    """The Python of the machines has neither Corral nor its dependencies. Its tasks do not see them either."""
    setting.create_group("bare", lender="bare")
    setting.scale("bare", 1)
    eventually(lambda: len(setting.in_service("bare")) == 1, "an instance", 60.0)
    [task] = setting.start_tasks(1, "python3 -c 'import msgspec' 2>&1 | tail -1; sleep 600")
    eventually(lambda: "ModuleNotFoundError: No module named 'msgspec'" in setting.printed(), "the output", 60.0)
    setting.scale("bare", 0)
    eventually(lambda: setting.slurm.jobs() == [] and setting.allocations() == [], "the job is given back", 60.0)
    eventually(lambda: setting.tasks([task])[0]["lastStatus"] == "STOPPED", "no task is left")


def test_nothing_is_left_of_a_job_whose_agent_was_killed(setting: Setting) -> None:
    """The spawner and a process in a session of its own end, too: the end of the job is the proof that they have."""

    def left() -> list[str]:
        lines = [line for each in setting.machines for line in each.run("ps", "-eo", "pid,args").splitlines()]
        return [line for line in lines if "corral.node" in line or "sleep 4242" in line]

    setting.create_group("killed")
    setting.scale("killed", 1)
    eventually(lambda: setting.in_service("killed"), "an instance", 60.0)
    [task] = setting.start_tasks(1, "setsid sleep 4242 & exec sleep 4242")
    eventually(lambda: sum("sleep 4242" in line for line in left()) == 2, "both processes")
    before = setting.handles()
    setting.groups.suspend_processes(AutoScalingGroupName="killed", ScalingProcesses=["Launch"])
    next(each for each in setting.machines if each.processes("corral.node")).kill("corral.node")
    eventually(lambda: setting.allocations() == [], "the end of the job", 60.0)
    assert left() == []
    [ended] = setting.tasks([task])
    assert ended["lastStatus"] == "STOPPED" and f"Slurm job {before[0]} has ended" in ended["containers"][0]["reason"]
    setting.scale("killed", 0)


def test_a_request_that_slurm_refuses_waits_with_its_reason(setting: Setting) -> None:
    """The task for which a capacity provider asks has the reason, too."""
    setting.create_group("large", "lab.large")
    provider = {"autoScalingGroupArn": "large", "managedScaling": {"status": "ENABLED"}}
    setting.ecs.create_capacity_provider(name="large-jobs", autoScalingGroupProvider=provider)
    setting.ecs.put_cluster_capacity_providers(
        cluster="lent", capacityProviders=["large-jobs"], defaultCapacityProviderStrategy=[]
    )  # fmt: skip
    setting.ecs.register_task_definition(family="large", containerDefinitions=[container(["true"], 9)])
    strategy = [{"capacityProvider": "large-jobs", "weight": 1}]
    [task] = setting.ecs.run_task(cluster="lent", taskDefinition="large", capacityProviderStrategy=strategy)["tasks"]
    eventually(lambda: "not available" in setting.activity("large")["StatusMessage"], "the reason of Slurm", 60.0)
    assert setting.activity("large")["StatusCode"] == "WaitingForInstanceId"
    listed = " ".join(setting.cli("ps", "--cluster", "lent", "--json").stdout.split())
    assert "the lender slurm refuses it" in listed and "is not available" in listed
    setting.ecs.stop_task(cluster="lent", task=task["taskArn"])
    setting.scale("large", 0)
    eventually(lambda: setting.allocations() == [], "the request is withdrawn", 60.0)


@pytest.mark.parametrize(
    "tags, text",
    [
        ({"corral:lender": "ray"}, "there is no lender 'ray'. corral.toml has these: bare, local, slurm."),
        ({"corral:slurm-partition": "debug"}, "corral:slurm-partition=debug is not allowed"),
        ({"corral:slurm-partition": "gpu --uid=0"}, "the value of the tag corral:slurm-partition is not valid"),
        ({"corral:slurm-reservation": "x"}, "the tag corral:slurm-reservation is unknown"),
    ],
)
def test_tags_that_are_not_allowed(setting: Setting, tags: dict[str, str], text: str) -> None:
    with pytest.raises(ClientError, match="InsufficientInstanceCapacity") as refused:
        setting.ec2.run_instances(MinCount=1, MaxCount=1, **launch("lab.gpu", {"corral:lender": "slurm"} | tags))
    assert text in refused.value.response["Error"]["Message"]
    assert setting.allocations() == []
