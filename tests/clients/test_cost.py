"""`corral cost`: the hours of instances, and their price on AWS."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from command import Cli
from corral.fleet.instance_types import price_of
from eventually import eventually

SMALLEST_H = 60 / 3600  # a start is billed for a minute at least


@pytest.fixture
def billed(tmp_path: Path) -> Iterator[Cli]:
    """A Corral with four simulated GPUs and a type of its own in corral.toml."""
    made = Cli(tmp_path)
    made.data.mkdir(mode=0o700)
    types = '[instance-types]\n"mine.large" = {gpus = 1, vcpus = 2, memory_gib = 1}\n'
    (made.data / "corral.toml").write_text(f"{types}[cost]\ngpu_hour = 2.5\n")
    made("up", "-d", "--port", "0", "--gpus", "sim:4")
    yield made
    made.clear()


def launch(cli: Cli, kind: str, **more: Any) -> str:
    ec2 = cli.client("ec2")
    reply = ec2.run_instances(ImageId="ami-12345678", InstanceType=kind, MinCount=1, MaxCount=1, **more)
    return str(reply["Instances"][0]["InstanceId"])


def terminate(cli: Cli, *ids: str) -> None:
    ec2 = cli.client("ec2")
    ec2.terminate_instances(InstanceIds=list(ids))
    ec2.get_waiter("instance_terminated").wait(InstanceIds=list(ids))


def test_hours_are_priced_on_demand_and_spot(billed: Cli) -> None:
    assert billed("cost").stdout == "No instance has run, and no task has had a GPU of this machine.\n"
    spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
    terminate(billed, launch(billed, "g5.xlarge"), launch(billed, "g5.xlarge", **spot), launch(billed, "mine.large"))
    report = billed.json("cost")
    price = price_of("g5.xlarge")
    assert price is not None and price.on_demand is not None and price.spot is not None
    assert report["prices"] == {"region": "us-east-1", "date": price.date, "currency": "USD"}
    [entry] = report["groups"]
    known, own = entry["types"]
    assert (entry["group"], known["type"], known["instances"], own["type"]) == (None, "g5.xlarge", 2, "mine.large")
    assert known["hours"] == known["gpuHours"] == pytest.approx(2 * SMALLEST_H)
    assert known["spotHours"] == pytest.approx(SMALLEST_H)
    assert known["onDemand"] == pytest.approx(known["hours"] * price.on_demand, abs=1e-6)
    assert known["spot"] == pytest.approx(known["hours"] * price.spot, abs=1e-6)
    assert own["onDemand"] is None and own["spot"] is None
    assert report["total"]["instances"] == 3 and report["total"]["onDemand"] == known["onDemand"]

    lines = billed("cost").stdout.splitlines()
    assert "Prices of AWS in us-east-1 on" in lines[0] and price.date in lines[0]
    assert lines[2].split() == ["GROUP", "TYPE", "INSTANCES", "HOURS", "GPU", "HOURS", "ON", "DEMAND", "SPOT"]
    assert lines[3].split()[:6] == ["no", "group", "g5.xlarge", "2", "0.0333", "0.0333"]
    assert lines[4].split()[:2] == ["mine.large", "1"] and lines[4].endswith("no price  no price")
    assert lines[5].split()[:2] == ["total", "3"]
    assert lines[6] == "No on-demand price is known for mine.large: the total of ON DEMAND does not include it."
    assert "mine.large" in lines[7] and "SPOT" in lines[7] and len(lines) == 8


def test_hours_of_groups(billed: Cli) -> None:
    """An instance of a group, and one that is attached later: its hours before belong to no group."""
    ec2, scaling = billed.client("ec2"), billed.client("autoscaling")
    data = {"ImageId": "ami-12345678", "InstanceType": "g5.xlarge"}
    ec2.create_launch_template(LaunchTemplateName="small", LaunchTemplateData=data)
    scaling.create_auto_scaling_group(
        AutoScalingGroupName="fleet", LaunchTemplate={"LaunchTemplateName": "small"}, MinSize=0, MaxSize=3, DesiredCapacity=1,
        AvailabilityZones=["us-east-1a"],
    )  # fmt: skip
    eventually(lambda: [each["state"] for each in billed.json("instances")] == ["running"])
    alone = launch(billed, "g5.2xlarge")
    assert [each["group"] for each in billed.json("cost")["groups"]] == ["fleet", None]
    scaling.attach_instances(AutoScalingGroupName="fleet", InstanceIds=[alone])
    [attached] = [each for each in billed.json("instances") if each["id"] == alone]
    assert attached["group"] == "fleet"
    fleet, none = billed.json("cost")["groups"]
    assert [each["type"] for each in fleet["types"]] == ["g5.2xlarge", "g5.xlarge"]
    scaling.detach_instances(AutoScalingGroupName="fleet", InstanceIds=[alone], ShouldDecrementDesiredCapacity=True)
    [detached] = [each for each in billed.json("instances") if each["id"] == alone]
    assert detached["group"] is None
    before, after = ({each["group"]: each for each in billed.json("cost")["groups"]} for _ in range(2))
    of_type = [{each["type"]: each["hours"] for each in report["fleet"]["types"]} for report in (before, after)]
    assert of_type[0]["g5.2xlarge"] == of_type[1]["g5.2xlarge"], "its hours count for no group again"
    assert after[None]["hours"] > before[None]["hours"] > none["hours"]
    assert after["fleet"]["onDemand"] and after["fleet"]["spot"]


def test_only_hours_since_a_time(billed: Cli) -> None:
    launch(billed, "g5.xlarge")
    recent, all_of_it = (billed("cost", "--json", *words).stdout for words in (("--since", "7d"), ()))
    assert '"g5.xlarge"' in recent and '"g5.xlarge"' in all_of_it
    none = "No instance has run since 2126-01-31 08:00 UTC, and no task has had a GPU of this machine.\n"
    assert billed("cost", "--since", "2126-01-31T08:00:00Z").stdout == none
    assert "not a duration" in billed("cost", "--since", "yesterday", code=2).stderr
    assert "not a time" in billed("cost", "--since", "2026-99-99", code=2).stderr


def test_gpu_hours_of_this_machine(billed: Cli) -> None:
    """Tasks on this machine have the price per GPU-hour of corral.toml, from their placement on. Tasks on instances do not."""
    billed("run", "--gpus", "2", "--name", "train", "--", "sleep", "0.2")
    billed("run", "--gpus", "1", "--name", "train", "--", "false", code=1)
    billed("run", "--name", "without", "--", "true")
    launch(billed, "g5.xlarge", UserData="#!/bin/bash\necho ECS_CLUSTER=other >> /etc/ecs/ecs.config\n")
    billed.client("ecs").create_cluster(clusterName="other")
    eventually(lambda: billed.client("ecs").list_container_instances(cluster="other")["containerInstanceArns"])
    billed("run", "--gpus", "1", "--cluster", "other", "--name", "on-ec2", "--", "true")
    billed("run", "-d", "--share", "--gpu-memory", "20g", "--name", "share", "--", "sleep", "600")
    eventually(lambda: len(billed.json("cost")["machine"]["names"]) == 2, "the GPUs of both names count")
    machine = billed.json("cost")["machine"]
    names = {each["name"]: each for each in machine["names"]}
    train, share = names["train"], names["share"]
    described = {each["gpus"]: each for each in billed.json("history") if each.get("name") == "train"}
    times = {
        gpus: (datetime.fromisoformat(each["stoppedAt"]) - datetime.fromisoformat(each["createdAt"])).total_seconds()
        for gpus, each in described.items()
    }
    assert machine["gpuHourPrice"] == 2.5 and train["tasks"] == 2
    assert 0.2 * 2 / 3600 < train["gpuHours"] <= 1.01 * (times[2] * 2 + times[1]) / 3600
    assert train["hours"] < train["gpuHours"] and share["gpuHours"] == pytest.approx(share["hours"] * 20 / 80, rel=0.01)
    assert train["cost"] == pytest.approx(train["gpuHours"] * 2.5, abs=1e-6)
    assert machine["total"]["gpuHours"] == pytest.approx(train["gpuHours"] + share["gpuHours"])
    screen = billed("cost").stdout
    lines = screen[screen.index("GPU-hours of this machine since") :].splitlines()
    assert lines[0].endswith(" UTC, at 2.5 USD per GPU-hour.")
    assert lines[2].split() == ["NAME", "TASKS", "HOURS", "GPU", "HOURS", "COST"]
    assert {lines[3].split()[0], lines[4].split()[0]} == {"train", "share"} and lines[5].startswith("total ")

    refused = billed("config", "set", "cost.gpu_hour", "2e6", code=1).stderr
    assert "cost.gpu_hour is 2000000.0, but it must be a number from 0 to 1000000" in refused
    assert "cost.gpu_hour is 'free'" in billed("config", "set", "cost.gpu_hour", "free", code=1).stderr


def test_hours_survive_kill_9(billed: Cli) -> None:
    """The ledger is written with the state of the instance, so a restart finds either both or none."""
    ended, running = launch(billed, "g5.xlarge"), launch(billed, "g5.2xlarge")
    terminate(billed, ended)
    pid = billed.json("status")["pid"]
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2])
    billed("up", "-d", "--port", "0", "--gpus", "sim:4")
    assert [each["id"] for each in billed.json("instances")] == [running]
    first = {each["type"]: each for each in billed.json("cost")["groups"][0]["types"]}
    assert first["g5.xlarge"]["hours"] == pytest.approx(SMALLEST_H)
    later = {each["type"]: each for each in billed.json("cost")["groups"][0]["types"]}
    assert later["g5.2xlarge"]["hours"] > first["g5.2xlarge"]["hours"] > 0, "it still runs"
    assert later["g5.xlarge"] == first["g5.xlarge"]


def test_cost_is_refused_on_aws(cli: Cli) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": "us-east-1"}
    said = cli("cost", env={**keys, "AWS_ENDPOINT_URL": "https://ecs.us-east-1.amazonaws.com"}, code=1).stderr
    assert said.startswith("corral: `corral cost` reports the instances of a Corral server.")
