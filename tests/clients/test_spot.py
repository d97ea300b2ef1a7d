"""`corral spot interrupt`: the notice, the metadata page that programs read, and the end of the instance."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from command import Cli
from eventually import eventually

JOIN = "#!/bin/bash\necho ECS_CLUSTER=train >> /etc/ecs/ecs.config\n"
WATCH = """
import os, time, urllib.error, urllib.request
base = os.environ["ECS_CONTAINER_METADATA_URI_V4"] + "/latest/meta-data/spot/"
print("started", file=open(PATH + ".started", "w"), flush=True)
while True:
    try:
        pages = [urllib.request.urlopen(base + page).read().decode() for page in ("instance-action", "termination-time")]
        open(PATH, "w").write("\\n".join(pages))
        time.sleep(600)
    except urllib.error.HTTPError as error:
        assert error.code == 404
        time.sleep(0.05)
"""


def test_a_program_reads_the_notice_of_its_interruption(cli: Cli, tmp_path: Path) -> None:
    ec2, ecs, notice = cli.client("ec2"), cli.client("ecs"), tmp_path / "notice"
    ecs.create_cluster(clusterName="train")
    asked = {"ImageId": "ami-12345678", "InstanceType": "m5.large", "MinCount": 1, "MaxCount": 1, "UserData": JOIN}
    launched = ec2.run_instances(**asked, InstanceMarketOptions={"MarketType": "spot"})
    instance = launched["Instances"][0]["InstanceId"]
    command = [sys.executable, "-c", f"PATH = {str(notice)!r}\n{WATCH}"]
    container = {"name": "main", "image": "corral/host", "command": command, "memory": 64}
    ecs.register_task_definition(family="watch", containerDefinitions=[container])
    task = ecs.run_task(cluster="train", taskDefinition="watch", launchType="EC2")["tasks"][0]["taskArn"]
    eventually(Path(f"{notice}.started").exists)
    assert "got the notice of its interruption" in cli("spot", "interrupt", instance).stdout
    eventually(lambda: notice.exists() and "\n" in notice.read_text())
    action, at = notice.read_text().splitlines()
    assert json.loads(action) == {"action": "terminate", "time": at}
    [container_instance] = ecs.list_container_instances(cluster="train", status="DRAINING")["containerInstanceArns"]
    assert container_instance
    assert cli.json("spot", "interrupt", instance, "--notice", "0s")["instance"] == instance
    ec2.get_waiter("instance_terminated").wait(InstanceIds=[instance])
    [stopped] = ecs.describe_tasks(cluster="train", tasks=[task])["tasks"]
    assert (stopped["lastStatus"], stopped["stopCode"]) == ("STOPPED", "TerminationNotice")


def test_refusals(cli: Cli) -> None:
    failed = cli("spot", "interrupt", "i-00000000000000000", code=1)
    assert "does not exist" in failed.stderr
    assert "not a duration" in cli("spot", "interrupt", "i-0", "--notice", "soon", code=2).stderr
