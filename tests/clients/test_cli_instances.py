"""`corral instances`, and instances in `corral status` and `corral top`."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from command import Cli
from eventually import eventually

JOIN = "#!/bin/bash\necho ECS_CLUSTER=train >> /etc/ecs/ecs.config\n"


@pytest.fixture
def instances(cli: Cli) -> Iterator[list[str]]:
    """An instance of g5.xlarge in the cluster `train` and one of m5.large in none; both end with the test."""
    ec2 = cli.client("ec2")
    cli.client("ecs").create_cluster(clusterName="train")
    launched = [
        ec2.run_instances(ImageId="ami-12345678", InstanceType=name, MinCount=1, MaxCount=1, UserData=data)["Instances"][0]
        for name, data in (("g5.xlarge", JOIN), ("m5.large", ""))
    ]
    ids = [each["InstanceId"] for each in launched]
    yield ids
    ec2.terminate_instances(InstanceIds=ids)
    ec2.get_waiter("instance_terminated").wait(InstanceIds=ids)


def run_task(cli: Cli) -> None:
    ecs = cli.client("ecs")
    container = {"name": "main", "image": "corral/host", "command": ["sleep", "600"], "memory": 16}
    gpu = {**container, "resourceRequirements": [{"type": "GPU", "value": "1"}]}
    ecs.register_task_definition(family="on-instance", containerDefinitions=[gpu])
    reply = ecs.run_task(cluster="train", taskDefinition="on-instance", launchType="EC2")
    assert not reply["failures"]


def test_instances_are_listed_with_cluster_gpus_and_tasks(cli: Cli, instances: list[str]) -> None:
    run_task(cli)
    joined, alone = cli.json("instances")
    assert [joined["id"], alone["id"]] == instances
    assert (joined["type"], joined["state"], joined["cluster"]) == ("g5.xlarge", "running", "train")
    assert (joined["gpus"], joined["tasks"], joined["group"], joined["market"]) == (1, 1, None, "on-demand")
    assert (alone["cluster"], alone["gpus"], alone["tasks"]) == (None, 0, 0)
    assert "RunInstances" in joined["launchReason"] and joined["waitReason"] is None and joined["endReason"] is None
    head, first, second = cli("instances").stdout.splitlines()
    assert head.split() == ["ID", "TYPE", "STATE", "CLUSTER", "GPUS", "TASKS", "LAUNCHED", "REASON"]
    assert first.split()[:6] == [instances[0], "g5.xlarge", "running", "train", "1", "1"] and "RunInstances" in first
    assert second.split()[:5] == [instances[1], "m5.large", "running", "0", "0"]


def test_a_narrow_screen_has_the_reasons_below(cli: Cli, instances: list[str]) -> None:
    lines = cli("instances", env={"COLUMNS": "80"}).stdout.splitlines()
    assert "REASON" not in lines[0] and lines[1].strip() == "REASON" and len(lines) == 6
    assert lines[2].startswith(instances[0]) and "RunInstances" in lines[3]


def test_other_regions_and_clusters_are_named(cli: Cli, instances: list[str]) -> None:
    run_task(cli)
    there = {"AWS_DEFAULT_REGION": "eu-west-1"}
    here = cli("instances", env=there)
    assert here.stdout.startswith("No instances.")
    assert here.stderr == "corral: 2 instances in us-east-1: `AWS_DEFAULT_REGION=us-east-1 corral instances`\n"
    listed = cli("ps")
    assert (
        listed.stdout.startswith("No tasks.") and listed.stderr == "corral: 1 task in cluster train: `corral ps --cluster train`\n"
    )
    said = "corral: 1 task in cluster train of us-east-1: `AWS_DEFAULT_REGION=us-east-1 corral ps --cluster train`\n"
    assert cli("ps", env=there).stderr == said
    assert not cli("instances").stderr and not cli("ps", "--cluster", "train").stderr


def test_ended_instances_are_listed_on_request(cli: Cli, instances: list[str]) -> None:
    ec2 = cli.client("ec2")
    ec2.terminate_instances(InstanceIds=instances[:1])
    ec2.get_waiter("instance_terminated").wait(InstanceIds=instances[:1])
    assert [each["id"] for each in cli.json("instances")] == instances[1:]
    ended = next(each for each in cli.json("instances", "--all") if each["id"] == instances[0])
    assert ended["state"] == "terminated" and ended["cluster"] is None and "TerminateInstances" in ended["endReason"]
    [row] = [line for line in cli("instances", "-a").stdout.splitlines() if line.startswith(instances[0])]
    assert "ended: " in row and "TerminateInstances" in row


def test_without_instances_there_is_one_line(own: Cli) -> None:
    own("up", "-d", "--port", "0", "--gpus", "none")
    assert own("instances").stdout == "No instances. `corral instances --all` also lists terminated ones.\n"
    assert own("instances", "--all").stdout == "No instances.\n" and own.json("instances") == []


def test_a_group_gives_reasons_for_launches_waits_and_ends(cli: Cli) -> None:
    ec2, scaling = cli.client("ec2"), cli.client("autoscaling")
    ec2.create_launch_template(
        LaunchTemplateName="small", LaunchTemplateData={"ImageId": "ami-12345678", "InstanceType": "g5.xlarge"}
    )  # fmt: skip
    template = {"LaunchTemplateName": "small"}
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="fleet", LaunchTemplate=template, MinSize=0, MaxSize=3, DesiredCapacity=3,
        AvailabilityZones=["us-east-1a"],
    )  # fmt: skip
    eventually(lambda: len(cli.json("instances")) == 3)
    found = cli.json("instances")
    assert [each["group"] for each in found] == ["fleet"] * 3
    assert all(each["launchReason"].startswith("Auto Scaling group fleet: ") for each in found)
    [waiting] = [each for each in found if each["state"] == "pending"]
    assert waiting["waitReason"].startswith("instances hold 2 of 2 GPUs; needs 1 GPU; first in line; held by instances i-")
    [row] = [line for line in cli("instances").stdout.splitlines() if line.startswith(waiting["id"])]
    assert "pending" in row and "fleet" in row and " waits: instances hold 2 of 2 GPUs; launched: " in row and "2026-" not in row
    assert any(each["group"] == "fleet" and each["state"] == "pending" for each in cli.json("status")["instances"])
    assert f"{waiting['id']}" in cli("status").stdout.partition("WAITING")[2]
    ids = [each["id"] for each in found]
    scaling.delete_auto_scaling_group(AutoScalingGroupName="fleet", ForceDelete=True)
    ec2.get_waiter("instance_terminated").wait(InstanceIds=ids)
    ended = [each for each in cli.json("instances", "--all") if each["id"] in ids]
    assert len(ended) == 3 and all(each["endReason"].startswith("Auto Scaling group fleet: ") for each in ended)


def test_status_and_top_show_instances(cli: Cli, instances: list[str]) -> None:
    run_task(cli)
    page = cli.json("status")
    assert [each["id"] for each in page["instances"]] == instances
    assert page["instances"][0]["gpuIds"] and page["instances"][0]["tasks"] == 1
    text = cli("status").stdout
    assert "1 of 2 GPUs free, 1 taken by instances" in text and f"on {instances[0]}" in text
    [row] = [line for line in text.splitlines() if line.startswith(instances[0])]
    assert row.split()[:6] == [instances[0], "g5.xlarge", "running", "train", "1", "(0)"]
    [row] = [line for line in cli("top", "--once").stdout.splitlines() if line.startswith(instances[0])]
    assert row.split()[:6] == [instances[0], "g5.xlarge", "running", "train", "1", "(0)"]


def test_status_says_that_the_host_is_overcommitted(cli: Cli) -> None:
    ec2 = cli.client("ec2")
    [launched] = ec2.run_instances(ImageId="ami-1", InstanceType="u7i-12tb.224xlarge", MinCount=1, MaxCount=1)["Instances"]
    text = cli("status").stdout
    assert "OVERCOMMITTED: its instances and its own tasks may use 896 CPU cores and" in text
    [over] = cli.json("status")["overcommitted"]
    assert over["cpuUnits"]["promised"] == 896 * 1024 > over["cpuUnits"]["total"]
    ec2.terminate_instances(InstanceIds=[launched["InstanceId"]])
    eventually(lambda: "OVERCOMMITTED" not in cli("status").stdout)


def test_instances_survive_a_restart(own: Cli) -> None:
    own("up", "-d", "--port", "0", "--gpus", "sim:2")
    ec2 = own.client("ec2")
    [launched] = ec2.run_instances(ImageId="ami-1", InstanceType="g5.xlarge", MinCount=1, MaxCount=1)["Instances"]
    before = own.json("instances")
    own("down")
    own("up", "-d", "--port", "0", "--gpus", "sim:2")
    assert own.json("instances") == before and before[0]["id"] == launched["InstanceId"]
    assert own.json("status")["instances"][0]["gpuIds"]


class OnlyAws(BaseHTTPRequestHandler):
    """Forwards requests to a Corral, but has none of Corral's own operations, as AWS."""

    target = ""
    refused = 0

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("X-Amz-Target", "").count(".") == 1 and self.headers["X-Amz-Target"].startswith("Corral."):
            type(self).refused += 1
            self.send_error(404)
            return
        request = urllib.request.Request(self.target + self.path, body or None, dict(self.headers), method=self.command)
        try:
            with urllib.request.urlopen(request) as answer:
                self.answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            self.answer(error.code, error.headers, error.read())

    do_GET = do_POST = handle_any

    def answer(self, status: int, headers: Any, body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: Any) -> None:
        pass


def test_the_list_needs_only_the_apis_of_aws(cli: Cli, instances: list[str]) -> None:
    run_task(cli)
    about, keys = (json.loads((cli.data / name).read_text()) for name in ("server.json", "credentials.json"))
    OnlyAws.target = about["url"]
    server = ThreadingHTTPServer(("127.0.0.1", 0), OnlyAws)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}", "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": keys["access_key"], "AWS_SECRET_ACCESS_KEY": keys["secret_key"],
    }  # fmt: skip
    try:
        head, first, _ = cli("instances", env=env).stdout.splitlines()
    finally:
        server.shutdown()
        server.server_close()
    assert OnlyAws.refused == 1
    assert head.split() == ["ID", "TYPE", "STATE", "CLUSTER", "GPUS", "TASKS", "LAUNCHED"]
    assert first.split()[:6] == [instances[0], "g5.xlarge", "running", "train", "1", "1"]
