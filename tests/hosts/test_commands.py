"""`corral token`, `corral join` and `corral hosts`, as a user runs them."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from command import Cli, Running, command_lines
from corral.cli.client.endpoint import STATUS_S
from corral.cli.commands import main
from corral.cli.hosts import hosts
from corral.cli.hosts.hosts import _agent_versions
from corral.cli.server.systemd_unit import Unit
from eventually import eventually
from harness import files_with
from hosts.joined import end_host
from ports import free_port


def test_a_second_machine_joins(own: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "host"
    door = f"127.0.0.1:{free_port()}"
    own("up", "--detach", "--port", "0", "--gpus", "none", "--runtime", "process", "--door", door)
    line = own("token", "create", "--uses", "2", "--rack", "r7", "--cluster", "default").stdout.split()
    assert line[:4] == ["corral", "join", door, "--token"]
    running = own.begin(*line[1:], "--data", str(folder), "--name", "box2", "--gpus", "sim:2", "--runtime", "process",
                        "--label", "zone=a", "--exclude-gpus", "1")  # fmt: skip
    try:
        running.until("stdout", "Host box2 has joined the server")
        eventually(lambda: box(own) == "UP", "the host is up")
        secret = line[4].split(".")[1].encode()
        assert not [pid for pid, words in command_lines() if secret in words]
        assert files_with(folder, secret.decode()) == []
        shown = own("hosts").stdout
        assert (
            "box2" in shown
            and "127.0.0.1" in shown
            and "r7" in shown
            and "1 NVIDIA H100 80GB HBM3 (simulated)" in shown
            and "commit" not in shown
        )
        [listed] = own.json("token", "list")
        assert (listed["used"], listed["uses"]) == (1, 2)
        assert own("run", "--gpus", "1", "--", "echo", "here").stdout == "here\n"
        ecs = own.client("ecs")
        ecs.register_task_definition(family="a", containerDefinitions=[{"name": "m", "image": "corral/host", "memory": 16,
                                                                        "command": ["true"]}])  # fmt: skip
        expressions = {"attribute:zone == a and attribute:corral.rack == r7": 1, "attribute:zone == b": 0}
        for expression, placed in expressions.items():
            constraint = {"type": "memberOf", "expression": expression}
            started = ecs.run_task(taskDefinition="a", placementConstraints=[constraint])
            assert [each["reason"] for each in started["failures"]] == [] or not placed
            assert len([each for each in started["tasks"] if "containerInstanceArn" in each]) == placed
        check_doctor(own, folder, door)
        assert "box2" in own("ps", "--all").stdout
        stop(running)
        interrupted(own, folder)
        again = own.begin("join", "--data", str(folder))  # with the remembered options
        again.until("stderr", "This machine runs tasks")
        eventually(lambda: len(own.json("hosts")) == 2 and box(own) == "UP", "it is up again")
        own("hosts", "revoke", "box2")
        assert box(own) == "REVOKED"
        refused(own, folder, door, line[4])
        own("backup", str(tmp_path / "backup"))
        assert list((tmp_path / "backup").glob("**/authority.pem"))
        stop(again)
    finally:
        end_host(folder)


def check_doctor(own: Cli, folder: Path, door: str) -> None:
    # Without --data, because this machine has the folder of a host and no server of its own.
    env = {"CORRAL_DATA": str(folder / "none"), "CORRAL_HOST_DATA": str(folder)}
    checked = " ".join(own("doctor", env=env).stdout.split())
    assert f"this is host box2, which reaches the door of its server at {door}" in checked
    port = own.json("status")["url"].rpartition(":")[2]
    for text in ("its agent runs", f"127.0.0.1:{port} leads tasks to the server", "clock differ by 0 s", "does not join at boot"):
        assert text in checked, checked
    host = door.rpartition(":")[0]
    assert f"This machine is host box2 of the server at {host}. Run this command there." in own("status", env=env, code=3).stderr


def refused(own: Cli, folder: Path, door: str, token: str) -> None:
    assert "copy the line" in own("join", door, "--data", str(folder), code=2).stderr
    assert "has not joined a server yet" in own("join", "--data", str(folder / "none"), code=2).stderr
    assert "gpus is 'many'" in own("join", "--data", str(folder), "--gpus", "many", code=2).stderr
    assert "The models are B200" in own("join", "--data", str(folder), "--gpus", "sim:2xP0", code=2).stderr
    for text in ("a", token[:-1]):
        assert "is not complete" in own("join", door, "--token", "-", "--data", str(folder), given=f"{text}\n", code=1).stderr
    lost = own("join", "127.0.0.1:1", "--token", token, "--data", str(folder / "new"), code=1).stderr
    assert "cannot be reached: Connection refused." in lost
    assert not (folder / "new").exists()
    assert "belongs to a host" in own("up", "--detach", "--port", "0", "--data", str(folder), code=1).stderr
    assert (
        "is the data folder of a server"
        in own("join", door, "--token", "-", "--data", str(own.data), given=f"{token}\n", code=1).stderr
    )
    assert "There is no token nope" in own("token", "revoke", "nope", code=1).stderr
    assert "Host nope was not found" in own("hosts", "revoke", "nope", code=1).stderr
    assert "Host nope was not found" in own("hosts", "upgrade", "nope", code=1).stderr
    local = next(each["name"] for each in own.json("hosts") if not each["joined"])
    assert "is the machine of the server" in own("hosts", "revoke", local, code=1).stderr
    said = own("hosts", "upgrade", "nope", local, code=1).stderr
    assert "nope: Host nope was not found" in said and f"{local}: " in said


def interrupted(own: Cli, folder: Path) -> None:
    """Ctrl-C in the first moment of the agent."""
    running = own.begin("join", "--data", str(folder))
    running.until("stderr", "This machine runs tasks")
    running.interrupt()
    _, _, said = running.end()
    assert "Traceback" not in said


def box(own: Cli) -> str:
    return next((str(each["state"]) for each in own.json("hosts") if each["name"] == "box2"), "")


def test_versions_of_agents_are_short() -> None:
    def shown(*versions: str) -> list[str]:
        return list(_agent_versions([{"agent": version} for version in versions]).values())

    assert shown("0.1.0 (commit 0123456789ab)", "0.2.0 (commit ba9876543210)", "", "0.1.0 (commit 0123456789ab)") == [
        "0.1.0",
        "0.2.0",
    ]
    assert shown("0.1.0 (commit 0123456789ab)", "0.1.0") == ["0.1.0 0123456", "0.1.0"]


def test_an_upgrade_gives_the_server_time_to_pack_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one after a start takes a second of CPU time, and a busy server much longer."""
    timeouts = {}

    def noted(endpoint: object, operation: str, parameters: object, timeout_s: float = STATUS_S) -> tuple[dict[str, Any], None]:
        timeouts[operation] = timeout_s
        return {"hosts": [], "name": "box2", "agent": "1", "version": "1"}, None

    monkeypatch.setattr(hosts, "call", noted)
    monkeypatch.setattr(hosts, "find_endpoint", lambda data: None)
    assert CliRunner().invoke(main, ["hosts", "upgrade", "box2"]).output == "box2 has 1 already\n"
    assert timeouts["UpgradeHost"] > timeouts["DescribeHosts"] == STATUS_S


def stop(running: Running) -> None:
    running.process.send_signal(signal.SIGTERM)
    running.end()


def test_the_unit_of_a_host_runs_join(tmp_path: Path) -> None:
    unit = Unit(tmp_path, system=False, joins=True)
    assert f'"join" "--data" "{tmp_path}"' in unit.text({"PATH": "/bin"})
    assert unit.mark.startswith("# Written by `corral join --service`")
    assert Unit(Path.home() / ".corral-host", system=False, joins=True).name == "corral-host.service"
