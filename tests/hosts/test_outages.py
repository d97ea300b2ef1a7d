"""Kills of each process, expired certificates and silence: nothing is lost, and nothing happens twice."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.node import node_folder
from corral.node.gateway_ports import read_server_is_here
from corral.server.door import LOCK
from harness import eventually
from hosts.joined import Server, running_server

LINES = 200
PRINTER = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); sleep 0.05; done"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path / "data", "none") as running:
        yield running


def test_kills_of_server_door_and_agent_lose_no_output(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "host", "host").joined()
    assert read_server_is_here(host.folder)  # so no gateway takes the port of the server while it is down
    host.start()
    server.wait_until_up("host")
    arn = server.run(["sh", "-c", PRINTER], gpus=2)
    ecs, logs = server.corral.client("ecs"), server.corral.client("logs")
    server.wait(arn, "RUNNING")
    server.corral.kill("corral.server.door")
    waiting = server.run(["sh", "-c", "echo second"], gpus=2)
    host.kill("corral.node")
    host.start()
    server.corral.kill("corral.server")
    server.corral.start()
    ecs, logs = server.corral.client("ecs"), server.corral.client("logs")
    host.kill("corral.node")
    host.start()
    for each in (arn, waiting):
        server.wait(each, "STOPPED")
        assert ecs.describe_tasks(tasks=[each])["tasks"][0]["containers"][0]["exitCode"] == 0
    messages = [
        event["message"]
        for page in logs.get_paginator("filter_log_events").paginate(logGroupName="/tests")
        for event in page["events"]
    ]
    assert sorted(messages) == sorted([*(f"line {number}" for number in range(LINES)), "second"])


def test_a_server_is_killed_when_it_has_just_started_a_door(server: Server, tmp_path: Path) -> None:
    """The door has the port and has read nothing yet: the next server waits for its end."""
    corral = server.corral
    ended = set(corral.processes("corral.server.door"))
    corral.kill("corral.server.door")
    eventually(lambda: set(corral.processes("corral.server.door")) - ended, "another door")
    lock = tmp_path / "data" / "door" / LOCK
    assert node_folder.try_lock(lock) is None
    eventually(lambda: [int(lock.read_text())] == corral.processes("corral.server.door"), "the lock names the door")
    corral.kill("corral.server")
    corral.start()


def test_a_killed_spawner_of_a_joined_host(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "host", "host").joined().start()
    server.wait_until_up("host")
    arn = server.run(["sleep", "600"], gpus=2)
    ecs = server.corral.client("ecs")
    server.wait(arn, "RUNNING")
    host.kill("corral.node.spawner")
    ecs.stop_task(task=arn)
    server.wait(arn, "STOPPED")
    again = server.run(["true"], gpus=2)
    server.wait(again, "STOPPED")


def test_certificates_are_renewed_also_after_they_expired(tmp_path: Path) -> None:
    lifetime_s = 6.0
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "corral.toml").write_text(f"[hosts]\ncertificate_days = {lifetime_s / 86_400}\n")
    with running_server(tmp_path / "data", "none") as server:
        host = server.host(tmp_path / "host", "host").joined()
        first = (host.folder / "host.pem").read_text()
        expires_at_s = host.record["expires_at_s"]
        host.start()
        server.wait_until_up("host")
        eventually(lambda: (host.folder / "host.pem").read_text() != first, "the certificate was renewed")
        host.kill("corral.node")
        expires_at_s = host.record["expires_at_s"]
        eventually(lambda: time.time() > expires_at_s + 0.5, "the certificate has expired")
        renewed = (host.folder / "host.pem").read_text()
        host.start()
        eventually(lambda: (host.folder / "host.pem").read_text() != renewed, "the certificate was renewed again")
        arn = server.run(["true"], gpus=2)
        server.wait(arn, "STOPPED")


def test_a_stopped_agent_is_disconnected_and_returns(server: Server, tmp_path: Path) -> None:
    host = server.host(tmp_path / "host", "host").joined().start()
    server.wait_until_up("host")
    arn = server.run(["sleep", "600"], gpus=2)
    ecs = server.corral.client("ecs")
    server.wait(arn, "RUNNING")
    [agent] = host.pids("corral.node")
    os.kill(agent, signal.SIGSTOP)
    eventually(lambda: server.described("host")["state"] == "SILENT", "the host is silent", 60.0)
    assert server.state(arn) == "RUNNING"
    os.kill(agent, signal.SIGCONT)
    server.wait_until_up("host")
    ecs.stop_task(task=arn)
    server.wait(arn, "STOPPED")
