"""awslogs without a stream prefix: as on ECS, the stream has the runtime id of the container, which DescribeTasks shows."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

import forkserver
from containers.running import Containers, shell
from harness import Corral, eventually

pytestmark = pytest.mark.xdist_group("docker")

GROUP = "/no/prefix"
LOGGING = {"logDriver": "awslogs", "options": {"awslogs-group": GROUP, "awslogs-create-group": "true"}}


def lines(run: Containers, stream: str, group: str = GROUP) -> list[str]:
    events = run.logs.get_log_events(logGroupName=group, logStreamName=stream, startFromHead=True)["events"]
    return [event["message"] for event in events]


def streams(run: Containers, group: str) -> list[str]:
    return [each["logStreamName"] for each in run.logs.describe_log_streams(logGroupName=group)["logStreams"]]


def corral_logs(corral: Corral, *words: str) -> list[str]:
    environment = os.environ | {"CORRAL_DATA": str(corral.data)}
    return subprocess.run(
        [forkserver.program("corral"), "logs", *words], env=environment, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def logging_to(group: str) -> dict[str, Any]:
    return {**LOGGING, "options": {**LOGGING["options"], "awslogs-group": group}}


def test_the_stream_has_the_runtime_id_of_its_container(run: Containers, corral: Corral):
    metadata = "wget -qO- $ECS_CONTAINER_METADATA_URI_V4 | grep -oE 'awslogs-stream.{3}[0-9a-f]{64}'"
    script = f"echo one; until {metadata}; do sleep 0.1; done; sleep 300"
    [arn] = run.start(shell(script, logConfiguration=LOGGING), networkMode="host")
    runtime_id = run.until(arn)["containers"][0]["runtimeId"]
    assert streams(run, GROUP) == [runtime_id]  # it exists as soon as DescribeTasks shows its name
    printed = ["one", f'awslogs-stream":"{runtime_id}']
    eventually(lambda: lines(run, runtime_id) == printed)
    assert corral_logs(corral, arn) == printed
    run.stop(arn)
    assert corral_logs(corral, "--follow", arn) == printed
    assert json.loads(corral_logs(corral, "--json", arn)[0])["message"] == "one"


def test_containers_of_one_task_have_a_stream_each(run: Containers, corral: Corral):
    """A container without output has an empty stream, and one that is a plain process has one as well."""
    logging = logging_to("/no/prefix/each")
    process = {"name": "process", "image": "corral/host", "command": ["echo", "process"], "memory": 16, "essential": False}
    after_both = [{"containerName": name, "condition": "COMPLETE"} for name in ("silent", "process")]
    task = run(
        shell("echo main", logConfiguration=logging, dependsOn=after_both),
        shell("true", name="silent", essential=False, logConfiguration=logging),
        {**process, "logConfiguration": logging},
        networkMode="host",
    )
    ids = {container["name"]: container["runtimeId"] for container in task["containers"]}
    assert sorted(streams(run, "/no/prefix/each")) == sorted(ids.values())
    found = {name: lines(run, runtime_id, "/no/prefix/each") for name, runtime_id in ids.items()}
    assert found == {"main": ["main"], "silent": [], "process": ["process"]}
    assert sorted(corral_logs(corral, task["taskArn"])) == ["main    | main", "process | process"]


def test_a_task_that_cannot_start_has_no_stream(run: Containers):
    logging = logging_to("/no/prefix/failed")
    task = run(shell("", command=["no-such-program"], logConfiguration=logging), networkMode="host")
    assert task["stopCode"] == "TaskFailedToStart"
    assert streams(run, "/no/prefix/failed") == []


def test_killed_agents_and_servers_leave_one_stream(own_docker_corral):
    corral = own_docker_corral("--runtime", "docker").start()
    run = Containers(corral)
    script = "i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.05; done"
    arns = run.start(shell(script, logConfiguration=LOGGING), count=3, networkMode="host")
    corral.kill("corral.node")
    eventually(lambda: any(run.show(arn)["lastStatus"] == "RUNNING" for arn in arns))
    corral.kill("corral.node", "corral.server")
    corral.start()
    tasks = [run.until(arn, "STOPPED") for arn in arns]
    ids = [task["containers"][0]["runtimeId"] for task in tasks]
    assert sorted(streams(run, GROUP)) == sorted(ids)
    for runtime_id in ids:
        assert lines(run, runtime_id) == [f"line {i}" for i in range(40)]
