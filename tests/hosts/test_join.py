"""Hosts join a server over TLS, in processes of their own on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import container, eventually
from hosts.joined import Server, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server") / "data", "none") as running:
        yield running


def test_a_host_joins_and_runs_a_task(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "first", "first", "sim:2xH200").joined(rack="r1")
    host.start("--cluster", "other", "--labels", "zone=a")
    server.wait_until_up("first")
    shown = server.described("first")
    assert (shown["address"], shown["rack"], shown["cluster"], shown["joined"]) == ("127.0.0.1", "r1", "default", True)
    assert shown["id"] == host.host_id and {gpu["model"] for gpu in shown["gpus"]} == {"NVIDIA H200"}
    ecs = server.corral.client("ecs")
    definition = container(["sh", "-c", "echo $PWD"], gpus=2, log_prefix="p")
    ecs.register_task_definition(family="two", containerDefinitions=[definition])
    [task] = ecs.run_task(taskDefinition="two")["tasks"]
    arn = task["taskArn"]
    eventually(lambda: ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] == "STOPPED", "it has stopped")
    [stopped] = ecs.describe_tasks(tasks=[arn])["tasks"]
    assert stopped["containers"][0]["exitCode"] == 0
    [event] = server.corral.client("logs").filter_log_events(logGroupName="/tests")["events"]
    assert event["message"].startswith(str(host.folder))
