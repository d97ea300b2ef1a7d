"""`corral hold`: a GPU that is withheld from tasks, with its reason wherever the GPU is shown."""

from __future__ import annotations

import json

import pytest

from command import UNTIL_TOLD, Cli
from eventually import eventually

AWAY = "corral.hold."


@pytest.fixture(autouse=True)
def nothing_held(cli: Cli) -> object:
    yield
    ecs = cli.client("ecs")
    for each in ecs.list_attributes(targetType="container-instance")["attributes"]:
        if each["name"].startswith(AWAY):
            target = {"targetType": "container-instance", "targetId": each["targetId"]}
            ecs.delete_attributes(attributes=[{"name": each["name"], **target}])


def test_a_held_gpu_gets_no_task_until_it_is_released(cli: Cli) -> None:
    second = cli.json("status")["hosts"][0]["gpus"][1]
    assert cli("hold").stdout == "No GPU is held.\n"
    assert f"GPU 1 ({second['id']}) is held: desktop of ada" in cli("hold", "1", "--for", "desktop of ada").stdout
    [held] = cli.json("hold")
    assert (held["gpu"], held["index"], held["reason"]) == (second["id"], 1, "desktop of ada")
    assert "desktop of ada" in cli("hold").stdout
    for verb in (["status"], ["top", "--once"]):
        assert "held: desktop of ada" in cli(*verb).stdout

    task_id = cli("run", "-d", "--gpus", "1", "--", "sh", "-c", UNTIL_TOLD).stdout.strip()
    waiter = cli("run", "-d", "--gpus", "1", "--name", "waiter", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES").stdout.strip()
    assert [gpu["task"] for gpu in cli.json("status")["hosts"][0]["gpus"]] == [task_id, None]
    assert cli.task(waiter)["lastStatus"] == "PROVISIONING"
    assert "free for tasks again" in cli("hold", second["id"][:12], "--release").stdout
    eventually(lambda: cli.task(waiter)["lastStatus"] == "STOPPED")
    assert cli("logs", waiter).stdout == f"{second['id']}\n"
    assert cli.json("hold") == []


def test_a_gpu_in_use_is_held_after_its_task(cli: Cli) -> None:
    task_id = cli.start_task("--gpus", "2", "--", "sh", "-c", UNTIL_TOLD)
    cli("hold", "0")
    assert cli.json("hold")[0]["reason"] == "by hand"
    gpus = cli.json("status")["hosts"][0]["gpus"]
    assert [gpu["task"] for gpu in gpus] == [task_id, task_id]
    waiter = cli("run", "-d", "--gpus", "1", "--", "true").stdout.strip()
    reason = cli.task(waiter)["containers"][0]["reason"]
    assert reason.startswith("begun holds 2 of 2 GPUs; 1 GPU is withheld: 'by hand'; needs 1 GPU; first in line"), reason
    cli("stop", "--wait", waiter, task_id)
    after = cli("run", "-d", "--gpus", "1", "--", "sh", "-c", UNTIL_TOLD).stdout.strip()
    assert [gpu["task"] for gpu in cli.json("status")["hosts"][0]["gpus"]] == [None, after]


def test_a_hold_is_an_attribute(cli: Cli) -> None:
    cli("hold", "0", "--for", "a/b:c@d.e-f_g h")
    [attribute] = [each for each in cli.client("ecs").list_attributes(targetType="container-instance")["attributes"]
                   if each["name"].startswith(AWAY)]  # fmt: skip
    assert attribute["value"] == "a/b:c@d.e-f_g h"
    assert json.loads(cli("hold", "0", "--release", "--json").stdout) == []


def test_what_cannot_be_held(cli: Cli) -> None:
    assert "GPU 7 does not exist" in cli("hold", "7", code=1).stderr
    assert "2 GPUs match GPU-" in cli("hold", "GPU-", code=1).stderr
    assert "is not held" in cli("hold", "0", "--release", code=1).stderr
    assert "use at most 128 letters" in cli("hold", "0", "--for", "what?!", code=2).stderr
    assert "128" in cli("hold", "0", "--for", "x" * 129, code=2).stderr
    assert "require a GPU" in cli("hold", "--release", code=2).stderr
    assert "cannot be used together" in cli("hold", "0", "--release", "--for", "x", code=2).stderr
