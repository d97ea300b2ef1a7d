"""The stock AWS CDK on Corral, and a GPU service that follows its load: one task to three and back, with its instances.

The CDK is the version of examples/cdk-gpu-service, which `make test` installs there. Its processes may connect to Corral only.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from eventually import eventually
from harness import Corral
from session_plugin import Plugin

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "cdk-gpu-service"
SMALL_APP, BATCH_APP = (Path(__file__).parent / name for name in ("cdk_app", "cdk_batch_app"))
MODULES = EXAMPLE / "node_modules"
ENVIRONMENT = "aws://123456789012/us-east-1"
CLUSTER, SERVICE = "ecs-gpu-demo", "gpu-service"
LOAD = f"nice -n 19 {sys.executable} {EXAMPLE / 'image' / 'stress.py'}"
SCALING = "[scaling]\ntarget_tracking_in_s = 3\ncapacity_provider_in_s = 2\n"
COMMAND_S, SCALED_S = 120.0, 90.0

pytestmark = [
    pytest.mark.xdist_group("cdk"),
    pytest.mark.skipif(not (MODULES / "aws-cdk").exists(), reason="`make test` installs the CDK in examples/cdk-gpu-service"),
]


class Cdk:
    """The command `cdk`, with an assembly folder for each app."""

    def __init__(self, corral: Corral, folder: Path) -> None:
        self._folder = folder
        self._connections = folder / "connections"
        self._environment = {
            **corral.environment,
            "HOME": str(folder),
            "NODE_PATH": str(MODULES),
            "NODE_OPTIONS": f"--no-warnings --require {SMALL_APP / 'only_loopback.js'} --require {SMALL_APP / 'compile_cache.js'}",
            "COMPILED": str(folder),
            "CONNECTIONS": str(self._connections),
            "CDK_DISABLE_CLI_TELEMETRY": "1",
            "CDK_DISABLE_VERSION_CHECK": "1",
        }

    def __call__(self, *words: str, app: str, where: Path | None = None, code: int = 0) -> str:
        command = [str(MODULES / ".bin" / "cdk"), "--ci", "--no-notices", "--no-version-reporting", "--app", app, *words]
        done = subprocess.run(
            command, env=self._environment, cwd=where or self._folder, timeout=COMMAND_S, capture_output=True, text=True
        )
        assert done.returncode == code, f"cdk {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def synth(self, app: Path, *words: str) -> str:
        """Synthesize a copy of an app, next to which CDK writes its look-ups. Return the folder with the result.

        CDK's own validation of templates takes longer than all the rest.
        """
        copy, assembly = self._folder / app.name, str(self._folder / f"{app.name}.out")
        shutil.copytree(app, copy, ignore=shutil.ignore_patterns("node_modules"), dirs_exist_ok=True)
        self("synth", "--quiet", "--no-validation", "--output", assembly, *words, app="node app.js", where=copy)
        return assembly

    def connections(self) -> str:
        """The machines other than this one to which CDK wanted to connect."""
        return self._connections.read_text() if self._connections.exists() else ""


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    data = tmp_path_factory.mktemp("cdk") / "data"
    data.mkdir(mode=0o700)
    (data / "corral.toml").write_text(SCALING)
    started = Corral(data, "sim:4", "--runtime", "process").start()
    yield started
    started.clear()


@pytest.fixture(scope="module")
def cdk(corral: Corral, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cdk]:
    """The CDK, in an account that it has bootstrapped."""
    made = Cdk(corral, tmp_path_factory.mktemp("home"))
    made("bootstrap", ENVIRONMENT, app="")
    yield made
    assert made.connections() == ""


def outputs(corral: Corral, stack: str) -> dict[str, str]:
    [found] = corral.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in found.get("Outputs", ())}


def stacks(corral: Corral) -> list[str]:
    return [each["StackName"] for each in corral.client("cloudformation").describe_stacks()["Stacks"]]


def test_lookups_assets_and_differences(cdk: Cdk, corral: Corral) -> None:
    assembly = cdk.synth(SMALL_APP)
    cdk("deploy", "--require-approval", "never", app=assembly)
    found, ec2 = outputs(corral, "Lookups"), corral.client("ec2")
    [vpc] = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    subnets = ec2.describe_subnets(Filters=[{"Name": "vpc-id", "Values": [vpc["VpcId"]]}])["Subnets"]
    assert found["VpcOutput"] == vpc["VpcId"]
    assert set(found["SubnetsOutput"].split(",")) == {each["SubnetId"] for each in subnets}
    assert found["FirstZoneOutput"] in found["ZonesOutput"].split(",")
    assert ec2.describe_images(ImageIds=[found["ImageOutput"]])["Images"]
    bucket, _, key = found["AssetOutput"].removeprefix("s3://").partition("/")
    content = corral.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    assert zipfile.ZipFile(io.BytesIO(content)).read("note.txt") == b"an asset of the app\n"

    changed = cdk.synth(SMALL_APP, "--context", "size=large")
    difference = cdk("diff", "--fail", app=changed, code=1)
    assert "[~] AWS::SSM::Parameter Size" in difference and "large" in difference, difference
    cdk("deploy", "--require-approval", "never", "--parameters", "Large=yes", app=changed)
    assert corral.client("ssm").get_parameter(Name="/lookups/size")["Parameter"]["Value"] == "large"
    family, _, revision = outputs(corral, "Lookups")["TaskOutput"].rpartition(":")
    assert found["TaskOutput"] == f"{family}:1" and revision == "2"
    resources = corral.client("cloudformation").describe_stack_resources(StackName="Lookups")["StackResources"]
    assert "AWS::KMS::Key" in {each["ResourceType"] for each in resources}
    cloudformation = corral.client("cloudformation")  # the other test runs `cdk destroy`, which takes seconds
    cloudformation.delete_stack(StackName="Lookups")
    cloudformation.get_waiter("stack_delete_complete").wait(StackName="Lookups", WaiterConfig={"Delay": 1})


def test_batch_constructs(cdk: Cdk, corral: Corral) -> None:
    """Deploy a queue, run a job, deploy again without a change, see a failed update roll back, and destroy everything."""
    assembly, batch = cdk.synth(BATCH_APP), corral.client("batch")
    cdk("deploy", "--require-approval", "never", app=assembly)
    made = outputs(corral, "Jobs")
    job = batch.submit_job(jobName="cdk", jobQueue=made["QueueArn"], jobDefinition=made["DefinitionArn"])["jobId"]

    def status() -> str:
        [found] = batch.describe_jobs(jobs=[job])["jobs"]
        return str(found["status"])

    def environment() -> dict[str, Any]:
        [found] = batch.describe_compute_environments(computeEnvironments=[made["EnvironmentArn"]])["computeEnvironments"]
        return {member: value for member, value in found["computeResources"].items() if member != "desiredvCpus"}

    eventually(lambda: status() == "SUCCEEDED", "the job has succeeded", SCALED_S)
    before = environment()
    assert (before["instanceTypes"], before["maxvCpus"], before["type"]) == (["g5.xlarge"], 16, "EC2")
    assert "(no changes)" in cdk("deploy", "--require-approval", "never", app=assembly)
    cdk("diff", "--fail", app=assembly)
    failed = cdk("deploy", "--require-approval", "never", "--parameters", "Type=zz9.huge", app=assembly, code=1)
    assert "EC2 has no such instance type or family" in failed and environment() == before
    cdk("destroy", "--force", app=assembly)
    assert batch.describe_job_queues()["jobQueues"] == [] == batch.describe_compute_environments()["computeEnvironments"]
    assert batch.describe_job_definitions(status="ACTIVE")["jobDefinitions"] == []


class Shell:
    """A shell in a task, opened with ECS Exec."""

    def __init__(self, ecs: Any, task: str) -> None:
        opened = ecs.execute_command(cluster=CLUSTER, task=task, container="gpu", interactive=True, command="/bin/sh")
        self._plugin = Plugin(opened["session"])

    def run(self, command: str, expected: str) -> None:
        self._plugin.type(f"{command}\n".encode())
        self._plugin.until(expected.encode())

    def read(self) -> None:
        """Acknowledge output. Corral ends a session whose client does not."""
        with suppress(ConnectionError):  # the task has ended
            self._plugin.step(0)

    def interrupt(self) -> None:
        """End the program and the shell."""
        with suppress(ConnectionError):
            self._plugin.type(b"\x03")
            self._plugin.type(b"exit\n")
            self._plugin.until_closed()


class Service:
    """What a user sees of the service and its instances."""

    def __init__(self, corral: Corral) -> None:
        self.ecs, self.scaling = corral.client("ecs"), corral.client("autoscaling")
        self.shells: dict[str, Shell] = {}

    def tasks(self) -> dict[str, list[str]]:
        """The running tasks and their GPUs."""
        arns = self.ecs.list_tasks(cluster=CLUSTER, serviceName=SERVICE)["taskArns"]
        found = self.ecs.describe_tasks(cluster=CLUSTER, tasks=arns)["tasks"] if arns else []
        return {each["taskArn"]: each["containers"][0]["gpuIds"] for each in found if each["lastStatus"] == "RUNNING"}

    def instances(self) -> int:
        [group] = self.scaling.describe_auto_scaling_groups()["AutoScalingGroups"]
        return sum(each["LifecycleState"] == "InService" for each in group["Instances"])

    def count(self) -> tuple[int, int, int]:
        """The desired count, the running tasks and the instances."""
        [service] = self.ecs.describe_services(cluster=CLUSTER, services=[SERVICE])["services"]
        return service["desiredCount"], len(self.tasks()), self.instances()

    def load_new_tasks(self) -> None:
        """Open a shell in each new task, and start the load in it."""
        for task, gpus in self.tasks().items():
            if task not in self.shells:
                self.shells[task] = Shell(self.ecs, task)
                self.shells[task].run("echo on $CUDA_VISIBLE_DEVICES", f"on {gpus[0]}")
                self.shells[task].run(LOAD, "stressing")

    def grow(self) -> bool:
        self.load_new_tasks()
        for shell in self.shells.values():
            shell.read()
        return self.count() == (3, 3, 3)

    def stop_load(self) -> None:
        for shell in self.shells.values():
            shell.interrupt()


def test_a_service_follows_the_load_of_its_gpus(cdk: Cdk, corral: Corral) -> None:
    assembly = cdk.synth(EXAMPLE, "--context", "cooldown=4")
    cdk("deploy", "--require-approval", "never", app=assembly)
    service = Service(corral)
    assert service.count() == (1, 1, 1)
    assert outputs(corral, "GpuService")["ServiceName"] == SERVICE

    eventually(service.grow, "three busy tasks on three instances", SCALED_S)
    assert len({gpu for gpus in service.tasks().values() for gpu in gpus}) == 3
    alarms = corral.client("cloudwatch").describe_alarms(AlarmNamePrefix=f"TargetTracking-service/{CLUSTER}/{SERVICE}-")
    assert {each["AlarmName"].split("-Alarm")[1][:3] for each in alarms["MetricAlarms"]} == {"Hig", "Low"}
    service.stop_load()
    eventually(lambda: service.count() == (1, 1, 1), "one task on one instance", SCALED_S)

    cdk("destroy", "--force", app=assembly)
    assert_nothing_left(corral)


def assert_nothing_left(corral: Corral) -> None:
    assert stacks(corral) == ["CDKToolkit"]
    ecs = corral.client("ecs")
    active = ecs.describe_clusters(clusters=ecs.list_clusters()["clusterArns"])["clusters"]
    assert [each["clusterName"] for each in active if each["status"] == "ACTIVE"] in ([], ["default"])
    assert corral.client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"] == []
    live = [{"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopping", "stopped"]}]
    assert corral.client("ec2").describe_instances(Filters=live)["Reservations"] == []
    assert corral.client("cloudwatch").describe_alarms()["MetricAlarms"] == []
    assert corral.client("sns").list_topics()["Topics"] == []
    targets = corral.client("application-autoscaling").describe_scalable_targets(ServiceNamespace="ecs")
    assert targets["ScalableTargets"] == []
    repositories = corral.client("ecr").describe_repositories()["repositories"]
    assert [each["repositoryName"] for each in repositories] == ["cdk-hnb659fds-container-assets-123456789012-us-east-1"]
