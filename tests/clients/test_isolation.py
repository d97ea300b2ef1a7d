"""`corral up --isolate`: no task definition that gives access to the host is registered, launched or started."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from command import Cli
from harness import Corral, container, eventually

PLAIN = {"name": "main", "image": "busybox", "memory": 64, "command": ["true"]}
HOST = {
    "image: corral/host of container main": {"containerDefinitions": [PLAIN | {"image": "corral/host"}]},
    "image: corral/host:2 of container main": {"containerDefinitions": [PLAIN | {"image": "corral/host:2"}]},
    "privileged: true of container main": {"containerDefinitions": [PLAIN | {"privileged": True}]},
    "networkMode: host": {"networkMode": "host"},
    "pidMode: host": {"pidMode": "host"},
    "ipcMode: host": {"ipcMode": "host"},
    "host.sourcePath /etc of volume v": {"volumes": [{"name": "v", "host": {"sourcePath": "/etc"}}]},
    "dockerVolumeConfiguration.driverOpts of volume v": {
        "volumes": [{"name": "v", "dockerVolumeConfiguration": {"driverOpts": {"type": "none", "o": "bind", "device": "/"}}}]
    },
    "linuxParameters.devices: /dev/sda of container main": {
        "containerDefinitions": [PLAIN | {"linuxParameters": {"devices": [{"hostPath": "/dev/sda"}]}}]
    },
    "linuxParameters.capabilities.add: SYS_ADMIN of container main": {
        "containerDefinitions": [PLAIN | {"linuxParameters": {"capabilities": {"add": ["CHOWN", "SYS_ADMIN"]}}}]
    },
    "dockerSecurityOptions: seccomp=unconfined of container main": {
        "containerDefinitions": [PLAIN | {"dockerSecurityOptions": ["seccomp=unconfined"]}]
    },
}


def refused(call: Any, **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


@pytest.fixture(scope="module")
def corral(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """It has tasks and definitions from before: one task runs on the host, one waits for its GPUs."""
    data = tmp_path_factory.mktemp("corral") / "data"
    before = Corral(data).start()
    ecs = before.client("ecs")
    ecs.register_task_definition(family="old", containerDefinitions=[container(["sleep", "600"], gpus=2, image="corral/host")])
    strategy = [{"capacityProvider": "host"}]
    running, waiting = (
        ecs.run_task(taskDefinition="old", capacityProviderStrategy=strategy)["tasks"][0]["taskArn"] for _ in range(2)
    )
    eventually(lambda: ecs.describe_tasks(tasks=[running])["tasks"][0]["lastStatus"] == "RUNNING", "running")
    before.stop()
    isolated = Corral(data, "sim:2", "--isolate", "true").start()
    isolated.running, isolated.waiting = running, waiting  # type: ignore[attr-defined]
    yield isolated
    isolated.clear()


@pytest.mark.parametrize("setting", HOST)
def test_settings_with_access_to_the_host_are_refused(corral: Corral, setting: str) -> None:
    given = {"family": "t", "containerDefinitions": [PLAIN], **HOST[setting]}
    code, text = refused(corral.client("ecs").register_task_definition, **given)
    assert code == "ClientException" and text.startswith(f"{setting} gives a task access to the host") and "--isolate" in text


def test_other_settings_are_not(corral: Corral) -> None:
    harmless = PLAIN | {
        "linuxParameters": {"capabilities": {"add": ["CHOWN"]}},
        "mountPoints": [{"sourceVolume": "v", "containerPath": "/v"}],
    }
    corral.client("ecs").register_task_definition(
        family="harmless", networkMode="bridge", pidMode="task", volumes=[{"name": "v"}], containerDefinitions=[harmless]
    )


def test_definitions_from_before_do_not_start(corral: Any) -> None:
    ecs = corral.client("ecs")
    code, text = refused(ecs.run_task, taskDefinition="old")
    assert code == "ClientException" and "image: corral/host" in text and "--isolate" in text
    [running] = ecs.describe_tasks(tasks=[corral.running])["tasks"]
    assert running["lastStatus"] == "RUNNING"
    ecs.stop_task(task=corral.running)  # its GPUs go to the task that waits

    def stopped() -> Any:
        [task] = ecs.describe_tasks(tasks=[corral.waiting])["tasks"]
        return task if task["lastStatus"] == "STOPPED" else None

    task = eventually(stopped, "the waiting task failed")
    assert task["stopCode"] == "TaskFailedToStart" and "--isolate" in task["stoppedReason"] + str(task["containers"])


def test_the_command_line(own: Cli) -> None:
    assert "cannot be used with --runtime process" in own("up", "--isolate", "--runtime", "process", code=2).stderr
    own("up", "--detach", "--port", "0", "--gpus", "none", "--isolate")
    assert own.json("status")["isolate"] is True
    assert "Isolated: tasks run in containers without access to the host (--isolate)" in own("status").stdout
    assert "--isolate" in own("run", "true", code=1).stderr
