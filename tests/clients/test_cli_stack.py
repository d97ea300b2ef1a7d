"""The shipped templates, `corral stack`, `corral stack diff` and `corral down --purge`, as a user runs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import forkserver
from command import Cli
from corral.decide.templates import read_template
from eventually import eventually

TEMPLATES = Path(__file__).parent.parent.parent / "templates"
CLUSTER, TASKS = TEMPLATES / "gpu-cluster.yaml", TEMPLATES / "gpu-tasks.yaml"


def deploy(cli: Cli, name: str, template: Path, *words: str) -> None:
    command = [
        forkserver.program("aws"),
        "cloudformation",
        "deploy",
        "--stack-name",
        name,
        "--template-file",
        str(template),
        *words,
    ]
    done = subprocess.run(command, env={**cli.environment, **cli.json("env")}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_shipped_templates_pass_cfn_lint() -> None:
    files = [str(path) for path in sorted(TEMPLATES.rglob("*.yaml"))]
    done = subprocess.run([Path(sys.executable).with_name("cfn-lint"), *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_instances_of_the_shipped_cluster_start_when_the_internet_is_reachable() -> None:
    declared = read_template(CLUSTER.read_text())["Resources"]
    for group in ("CpuGroup", "GpuGroup"):
        assert set(declared[group]["DependsOn"]) == {"InternetRoute", "SubnetARoutes", "SubnetBRoutes"}


def test_the_shipped_cluster_from_deploy_to_purge(own: Cli, tmp_path: Path) -> None:
    own("up", "--detach", "--port", "0", "--gpus", "sim:4")
    assert own("stack").stdout == "No stacks. `aws cloudformation deploy` creates one.\n"
    deploy(own, "gpu-cluster", CLUSTER, "--capabilities", "CAPABILITY_IAM")
    deploy(own, "gpu-tasks", TASKS, "--parameter-overrides", "Image=corral/host", "Command=sleep 600")
    shown = own.json("stack", "gpu-cluster")
    assert shown["status"] == "CREATE_COMPLETE"
    found = {each["name"]: each for each in shown["resources"]}
    assert {each["status"] for each in found.values()} == {"CREATE_COMPLETE"}
    stored = {name for name, each in found.items() if each["storedOnly"]}
    assert {"Vpc", "SubnetA", "SecurityGroup", "RouteTable"} <= stored
    assert not stored & {"Cluster", "GpuGroup", "GpuLaunchTemplate", "GpuCapacity", "LogGroup", "Results", "Repository", "TaskRole"}
    [instance] = found["GpuGroup"]["instances"]
    assert (instance["type"], instance["state"]) == ("g5.xlarge", "InService")
    drawn = own("stack", "gpu-cluster").stdout
    assert instance["id"] in drawn and "stored only" in drawn and f"ClusterName = {found['Cluster']['id']}" in drawn
    assert [line.split()[:2] for line in own("stack").stdout.splitlines()[1:]] == [
        ["gpu-cluster", "CREATE_COMPLETE"],
        ["gpu-tasks", "CREATE_COMPLETE"],
    ]

    ecs, outputs = own.client("ecs"), own.json("stack", "gpu-tasks")["outputs"]
    cluster = shown["outputs"]["ClusterName"]
    [task] = ecs.run_task(cluster=cluster, taskDefinition=outputs["OneGpuTask"])["tasks"]
    described = eventually(
        lambda: next(
            (
                each
                for each in ecs.describe_tasks(cluster=cluster, tasks=[task["taskArn"]])["tasks"]
                if each["lastStatus"] == "RUNNING"
            ),
            None,
        ),
        "the task runs",
    )
    assert described["capacityProviderName"] == shown["outputs"]["GpuCapacityProvider"]
    assert len(described["containers"][0]["gpuIds"]) == 1

    changes = own.json("stack", "diff", str(CLUSTER), "--parameter", "GpuInstanceType=g5.12xlarge")
    actions = {each["name"]: (each["action"], each["because"]) for each in changes["changes"]}
    assert actions["GpuLaunchTemplate"] == ("change", ["LaunchTemplateData"])
    assert actions["GpuGroup"][0] == "replace" and actions["CpuGroup"] == ("keep", [])
    said = own("stack", "diff", str(CLUSTER))
    assert "would change nothing" in said.stderr
    assert (
        own("stack", "diff", str(CLUSTER), "-p", "Unknown=1", code=1).stderr == "corral: the template has no parameter Unknown.\n"
    )
    assert own("stack", "gpu-task", code=1).stderr == "corral: the stack gpu-task does not exist. Did you mean gpu-tasks?\n"
    assert "`corral stack` lists the stacks." in own("stack", "missing", code=1).stderr
    assert "corral stack has no command 'dif'" in own("stack", "dif", str(CLUSTER), code=2).stderr
    large = tmp_path / "large.yaml"
    large.write_text(CLUSTER.read_text() + "#" * 51_200)
    said = own("stack", "diff", str(large), "--stack", "gpu-cluster", code=1).stderr
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe")
    assert "it is not a text file in UTF-8." in own("stack", "diff", str(tmp_path / "binary.yaml"), code=1).stderr
    assert "at most 51,200 bytes. Put the template into an S3 bucket, and create a change set" in said

    ecs.create_service(cluster=cluster, serviceName="again", taskDefinition=outputs["OneGpuTask"], desiredCount=1)
    spawner = own.pid("spawner.lock")
    refused = own("down", "--purge", code=1, given="")
    assert "stops 2 tasks" in refused.stderr and "nothing was deleted" in refused.stderr
    assert own.json("stack", "gpu-cluster")["status"] == "CREATE_COMPLETE"
    (own.data / "corral.toml").write_text("[instance-types]\n")
    done = own.json("down", "--purge", "--yes")  # the task of the service waits for a GPU, so it has nothing to stop
    assert (done["stopped"], done["tasksStopped"], done["tasksLeft"], done["purged"]) == (True, 1, 0, True)
    assert [path.name for path in own.data.iterdir()] == ["corral.toml"]  # only the file that the user wrote
    eventually(lambda: not Path(f"/proc/{spawner}").exists(), "the spawner has ended")


def test_a_failed_stack_says_why(own: Cli, tmp_path: Path) -> None:
    own("up", "--detach", "--port", "0", "--gpus", "none")
    template = {
        "Resources": {
            "First": {"Type": "AWS::SQS::Queue"},
            "Second": {"Type": "AWS::SQS::Queue", "DependsOn": "First", "Properties": {"VisibilityTimeout": 99999999}},
        }
    }
    cloudformation = own.client("cloudformation")
    cloudformation.create_stack(StackName="wrong", TemplateBody=json.dumps(template))
    eventually(lambda: cloudformation.describe_stacks(StackName="wrong")["Stacks"][0]["StackStatus"] == "ROLLBACK_COMPLETE")
    shown = own("stack", "wrong", code=1)
    assert "ROLLBACK_COMPLETE" in shown.stdout and "Second" in shown.stdout
    assert "`aws cloudformation delete-stack --stack-name wrong`, and deploy it again." in shown.stderr
    assert "Second CREATE_FAILED: " in shown.stdout and "VisibilityTimeout" in shown.stdout
    [failed] = own.json("stack", "wrong")["failures"]
    assert (failed["name"], failed["status"]) == ("Second", "CREATE_FAILED") and "VisibilityTimeout" in failed["reason"]
