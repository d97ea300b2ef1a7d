"""The settings of a task definition take effect inside the container."""

from __future__ import annotations

from pathlib import Path

import pytest

from command import Cli
from containers.running import Containers, shell
from engines.dockerd import GREEDY, Dockerd
from harness import Corral, eventually

pytestmark = pytest.mark.xdist_group("docker")


def test_command_and_environment(run: Containers):
    task = run(
        shell("", command=["this is overridden"], entryPoint=["sh", "-c"], user="1000",
              workingDirectory="/tmp", environment=[{"name": "A", "value": "a b"}], linuxParameters={"initProcessEnabled": True}),
        overrides={"containerOverrides": [{"name": "main", "command": ["echo $A; pwd; id -u; cat /proc/1/comm"]}]},
    )  # fmt: skip
    assert run.printed(task) == ["a b", "/tmp", "1000", "docker-init"]


def test_corral_run_without_a_command_runs_the_command_of_the_image(corral: Corral, tmp_path: Path):
    cli = Cli(tmp_path)
    cli.environment["CORRAL_DATA"] = str(corral.data)
    run = ("run", "--image", GREEDY, "--env", "COLOUR=blue")
    assert "COLOUR=blue" in cli(*run).stdout.splitlines(), "its command is env"
    assert cli(*run, "--", "sh", "-c", "echo $COLOUR").stdout == "blue\n"


def test_limits(run: Containers, dockerd: Dockerd):
    linux = {
        "sharedMemorySize": 8,
        "tmpfs": [{"containerPath": "/scratch", "size": 4, "mountOptions": ["noexec"]}],
        "devices": [{"hostPath": "/dev/null", "containerPath": "/dev/nothing", "permissions": ["read"]}],
        "capabilities": {"add": ["NET_ADMIN"], "drop": ["CHOWN"]},
        "maxSwap": 0,
    }
    [arn] = run.start(
        shell("ulimit -n; df -m /dev/shm /scratch | awk 'NR>1{print $2, $6}'; ls /dev/nothing; touch /x 2>&1; sleep 300", cpu=512,
              memory=64, memoryReservation=32, linuxParameters=linux, readonlyRootFilesystem=True,
              ulimits=[{"name": "nofile", "softLimit": 99, "hardLimit": 100}],
              dockerLabels={"who": "me", "corral.pause": "of another task"}, dockerSecurityOptions=["no-new-privileges"],
              systemControls=[{"namespace": "net.core.somaxconn", "value": "99"}]),
        networkMode="bridge",
    )  # fmt: skip
    [container] = run.until(arn)["containers"]
    printed = eventually(lambda: len(lines := run.printed(arn)) == 5 and lines)
    assert printed == ["99", "8 /dev/shm", "4 /scratch", "/dev/nothing", "touch: /x: Read-only file system"]
    shown = dockerd("inspect", "--format", "{{json .HostConfig}}{{json .Config.Labels}}", container["runtimeId"])
    for words in (
        '"CpuShares":512', f'"Memory":{64 << 20}', f'"MemoryReservation":{32 << 20}', f'"MemorySwap":{64 << 20}', '"who":"me"',
        '"CapAdd":["NET_ADMIN"]', '"CapDrop":["CHOWN","NET_RAW"]', '"SecurityOpt":["no-new-privileges"]',
        '"net.core.somaxconn":"99"', '"corral.pause":""',
    ):  # fmt: skip
        assert words in shown
    run.stop(arn)


def test_log_drivers_of_the_engine_have_their_options(run: Containers, dockerd: Dockerd):
    """Log drivers that Corral does not serve are passed to the engine."""
    logging = {"logDriver": "json-file", "options": {"max-size": "1m", "labels": "who"}}
    task = run(shell("echo hello", logConfiguration=logging))
    container = task["containers"][0]["runtimeId"]
    assert dockerd("inspect", "--format", "{{json .HostConfig.LogConfig}}", container) == (
        '{"Type":"json-file","Config":{"labels":"who","max-size":"1m"}}'
    )
    assert dockerd("logs", container) == "hello"


def test_secrets_come_from_parameters(run: Containers, corral: Corral):
    corral.client("ssm").put_parameter(Name="/containers/token", Value="keep-it-secret", Type="SecureString")
    task = run(shell("test $TOKEN = keep-it-secret", secrets=[{"name": "TOKEN", "valueFrom": "/containers/token"}]))
    assert task["containers"][0]["exitCode"] == 0


def test_the_size_of_a_task_is_a_limit(run: Containers, dockerd: Dockerd):
    container = {key: value for key, value in shell("sleep 300").items() if key != "memory"}
    [arn] = run.start(container, cpu="512", memory="128", networkMode="host")
    [container] = run.until(arn)["containers"]
    assert (
        dockerd("inspect", "--format", "{{.HostConfig.CpuQuota}} {{.HostConfig.Memory}}", container["runtimeId"])
        == "50000 134217728"
    )
    run.stop(arn)


def test_volumes(run: Containers, dockerd: Dockerd, tmp_path: Path):
    """Volumes of the host, of Docker, of the task, and of another container."""
    (tmp_path / "given").write_text("given\n")
    dockerd("volume", "create", "there")
    volumes = [
        {"name": "host", "host": {"sourcePath": str(tmp_path)}},
        {"name": "own", "host": {}},
        {"name": "there", "dockerVolumeConfiguration": {"scope": "shared", "autoprovision": False}},
        {"name": "made", "dockerVolumeConfiguration": {"scope": "task", "driver": "local", "labels": {"a": "b"}}},
    ]
    mounts = [{"sourceVolume": volume["name"], "containerPath": f"/v/{volume['name']}"} for volume in volumes]
    first = "cat /v/host/given; for v in host own there made; do echo $v > /v/$v/written; done"
    second = "cat /w/own/written; touch /w/own/x 2>&1"
    third = "cat /v/made/written; touch /v/made/y 2>&1"
    done = [{"containerName": "first", "condition": "COMPLETE"}]
    task = run(
        shell(first, name="first", essential=False, mountPoints=mounts),
        shell(second, name="second", essential=False, dependsOn=done,
              mountPoints=[{"sourceVolume": "own", "containerPath": "/w/own", "readOnly": True}]),
        shell(third, name="main", dependsOn=[{"containerName": "second", "condition": "COMPLETE"}],
              volumesFrom=[{"sourceContainer": "first", "readOnly": True}]),
        volumes=volumes,
    )  # fmt: skip
    assert run.printed(task, "first") == ["given"]
    assert run.printed(task, "second") == ["own", "touch: /w/own/x: Read-only file system"]
    assert run.printed(task, "main") == ["made", "touch: /v/made/y: Read-only file system"]
    assert (tmp_path / "written").read_text() == "host\n"
    dockerd("volume", "inspect", "there")


def test_a_shared_volume_that_does_not_exist(run: Containers):
    volumes = [{"name": "nowhere", "dockerVolumeConfiguration": {"scope": "shared"}}]
    task = run(shell("true", mountPoints=[{"sourceVolume": "nowhere", "containerPath": "/v"}]), volumes=volumes)
    assert task["stoppedReason"].startswith("CannotCreateVolumeError: the shared volume nowhere does not exist")


def test_containers_of_one_task_may_share_processes(run: Containers):
    [arn] = run.start(
        shell("sleep 4321", name="first"), shell("until ps | grep -q '[4]321'; do :; done; echo seen"), pidMode="task"
    )
    run.until(arn, "STOPPED")
    assert run.printed(arn) == ["seen"]


def test_health_comes_from_docker(run: Containers):
    check = {"command": ["CMD-SHELL", "test -e /tmp/well"], "interval": 5, "retries": 1}
    [well] = run.start(shell("touch /tmp/well; sleep 300", healthCheck=check))
    [ill] = run.start(shell("sleep 300", healthCheck=check))
    for arn, verdict in ((well, "HEALTHY"), (ill, "UNHEALTHY")):
        run.until(arn)
        eventually(lambda arn=arn: run.show(arn)["healthStatus"] != "UNKNOWN")
        assert run.show(arn)["healthStatus"] == verdict
        run.stop(arn)


def test_a_container_that_ends_at_once_is_not_restarted(run: Containers):
    """It must run for a minimum time first. Restarts are tested in test_engine_contract.py and in the simulation."""
    task = run(shell("exit 1", restartPolicy={"enabled": True, "restartAttemptPeriod": 60}))
    assert task["containers"][0]["exitCode"] == 1


def test_a_terminal(run: Containers):
    assert run.printed(run(shell("test -t 1 && echo yes", pseudoTerminal=True))) == ["yes"]


def test_the_image_host_is_a_plain_process(run: Containers):
    task = run({"name": "main", "image": "corral/host", "command": ["sh", "-c", "cat /proc/1/comm"], "memory": 16})
    assert "imageDigest" not in task["containers"][0]
    assert run.printed(task) == [Path("/proc/1/comm").read_text().strip()]


def test_settings_that_need_a_container_are_refused_for_a_plain_process(run: Containers):
    with pytest.raises(run.ecs.exceptions.ClientException, match="Use another image, and start Corral with"):
        run({"name": "main", "image": "corral/host", "memory": 16})
