"""ExecuteCommand through boto3 and the aws command, with a substitute for AWS's plugin (tests/session_plugin.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

import session_plugin as stand_in
from command import living
from corral.channel import command_relay
from corral.channel.command_relay import CODE, EXIT, INPUT, SIZE, WINDOW, Frames, frame
from harness import Corral, container, eventually, wait_stopped
from session_plugin import Plugin, Refused

SLEEPER = ["sh", "-c", "sleep 600"]


def start(corral: Corral, *containers: dict[str, Any], **more: Any) -> str:
    """The ARN of a running task with enableExecuteCommand."""
    ecs = corral.client("ecs")
    ecs.register_task_definition(family="exec", containerDefinitions=[*containers] or [container(SLEEPER)])
    arn: str = ecs.run_task(taskDefinition="exec", **{"enableExecuteCommand": True, **more})["tasks"][0]["taskArn"]
    eventually(lambda: ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] == "RUNNING", "running")
    return arn


@pytest.fixture(scope="module")
def task(corral: Corral) -> str:
    variable = {"name": "OF_THE_TASK", "value": "here"}
    return start(corral, container(SLEEPER, gpus=1, environment=[variable]))


def execute(corral: Corral, task: str, command: str, *, interactive: bool = True, **more: Any) -> dict[str, str]:
    reply = corral.client("ecs").execute_command(task=task, command=command, interactive=interactive, **more)
    session: dict[str, str] = reply["session"]
    return session


def refusal(corral: Corral, **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        corral.client("ecs").execute_command(**{"command": "true", "interactive": True, **params})
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def test_the_aws_command(corral: Corral, task: str, tmp_path: Path) -> None:
    shim = tmp_path / "session-manager-plugin"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} {stand_in.__file__} "$@"\n')
    shim.chmod(0o755)
    aws = Path(sys.executable).with_name("aws")
    done = subprocess.run(
        [sys.executable, aws, "ecs", "execute-command", "--task", task, "--command", "sh", "--interactive"],
        env=corral.environment | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        input="echo $OF_THE_TASK $CUDA_VISIBLE_DEVICES; stty size\nexit\n",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"here GPU-[-0-9a-f]{36}\n24 80", done.stdout), done.stdout
    assert "Starting session with SessionId: ecs-execute-command-" in done.stdout and "Exiting session" in done.stdout


def test_describe_tasks_shows_the_managed_agent(corral: Corral, task: str) -> None:
    ecs = corral.client("ecs")
    shown = ecs.describe_tasks(tasks=[task])["tasks"][0]
    [managed] = shown["containers"][0]["managedAgents"]
    assert shown["enableExecuteCommand"] and (managed["name"], managed["lastStatus"]) == ("ExecuteCommandAgent", "RUNNING")
    reply = ecs.execute_command(task=task, command="true", interactive=True)
    assert reply["containerName"] == "main" and reply["taskArn"] == task and reply["clusterArn"].endswith(":cluster/default")
    assert reply["session"]["streamUrl"].startswith(corral.url.replace("http", "ws") + "/v1/data-channel/ecs-execute-command-")


def test_refused_commands(corral: Corral, task: str) -> None:
    ecs = corral.client("ecs")
    assert refusal(corral, task="0" * 32) == ("InvalidParameterException", "The referenced task was not found.")
    assert refusal(corral, task=task, cluster="none")[0] == "ClusterNotFoundException"
    assert "container other" in refusal(corral, task=task, container="other")[1]
    assert "blank" in refusal(corral, task=task, command="  ")[1]
    assert "no closing quotation" in refusal(corral, task=task, command="echo 'x")[1]
    plain = start(corral, enableExecuteCommand=False)
    code, message = refusal(corral, task=plain)
    assert code == "InvalidParameterException" and "execute command was not enabled when the task was run" in message
    assert "managedAgents" not in ecs.describe_tasks(tasks=[plain])["tasks"][0]["containers"][0]
    ecs.stop_task(task=plain)
    two = start(corral, container(SLEEPER), container(SLEEPER) | {"name": "side"})
    assert "more than one container" in refusal(corral, task=two)[1]
    assert Plugin(execute(corral, two, "true", container="side")).until_closed() == ""
    ecs.stop_task(task=two)
    wait_stopped(ecs, [two])
    assert "stopped" in refusal(corral, task=two, container="side")[1]


def test_input_output_size_and_the_end(corral: Corral, task: str) -> None:
    person = Plugin(
        execute(corral, task, "sh -c 'echo ready; read x; echo got $x; stty size; read y; stty size; pwd'"), size=(100, 40)
    )
    person.until(b"ready\r\n")
    person.type(b"word\r")
    person.until(b"got word\r\n40 100\r\n")
    person.resize(120, 50)
    person.type(b"\r")
    assert person.until_closed() == ""
    assert b"50 120\r\n" in person.received and b"/work/" in person.received
    assert 12 not in person.kinds  # AWS's plugin would print an exit code


def test_ctrl_c_interrupts_the_command_alone(corral: Corral, task: str) -> None:
    person = Plugin(execute(corral, task, "sh"))
    person.type(b"sleep 500; echo after\r")
    person.until(b"echo after\r\n")
    person.wait_for(lambda: living("sleep", "500"))
    person.type(b"\x03")
    person.wait_for(lambda: not living("sleep", "500"))
    person.type(b"echo still $((1+1))\r")
    person.until(b"still 2")
    person.type(b"exit\r")
    person.until_closed()


def test_input_that_arrives_together_with_the_window_size() -> None:
    ours, theirs = socket.socketpair()
    command = [sys.executable, command_relay.__file__, "exec", "tty", str(theirs.fileno()), "--", "sh"]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True), ours:
        theirs.close()
        ours.sendall(frame(WINDOW, SIZE.pack(24, 80)) + frame(INPUT, b"exit 3\r"))
        ours.settimeout(30)
        frames, received = Frames(), list[tuple[bytes, bytes]]()
        while not received or received[-1][0] != EXIT:
            received += frames.feed(ours.recv(65_536))
    assert CODE.unpack(received[-1][1]) == (3,)


def test_without_a_terminal(corral: Corral, task: str) -> None:
    command = "sh -c 'test -t 1 || echo none; echo err >&2; cat; echo end'"
    person = Plugin(execute(corral, task, command, interactive=False))
    person.until(b"err\n")
    assert b"none\n" in person.received  # no carriage returns
    person.terminate()
    assert "ended" in person.until_closed()


def test_much_output_arrives_whole_and_in_order(corral: Corral, task: str) -> None:
    person = Plugin(execute(corral, task, "sh -c 'seq 200000'", interactive=False))
    assert person.until_closed() == ""
    assert person.received == b"".join(b"%d\n" % number for number in range(1, 200_001))


def test_a_token_opens_one_session_once(corral: Corral, task: str) -> None:
    first, second = execute(corral, task, "echo one"), execute(corral, task, "echo two")
    for wrong in ("", "x", first["tokenValue"][:-8] + "AAAAAAA=", second["tokenValue"]):
        with pytest.raises(ConnectionResetError):
            Plugin(first, token=wrong).until_closed()
    person = Plugin(first)
    person.until(b"one")
    with pytest.raises(ConnectionResetError):
        Plugin(first).until_closed()
    person.until_closed()
    url = second["streamUrl"]
    for forged in (
        url.partition("?")[0],
        url.replace("cell-number=", "cell-number=A"),
        url.replace(second["sessionId"], first["sessionId"]),
        corral.url.replace("http", "ws") + "/",
    ):
        with pytest.raises(Refused, match="403"):
            Plugin({**second, "streamUrl": forged})
    log = corral.log()
    assert "Traceback" not in log and second["tokenValue"] not in log and url.rpartition("=")[2] not in log


def test_an_invalid_message_ends_the_session(corral: Corral, task: str) -> None:
    person = Plugin(execute(corral, task, "sleep 301"))
    eventually(lambda: living("sleep", "301") or person.step(0.01))
    person._send(b"nonsense")
    eventually(lambda: not living("sleep", "301"))


def test_the_command_ends_when_its_client_disconnects(corral: Corral, task: str) -> None:
    for command, interactive in (("sh -c 'trap : HUP; sleep 302; sleep 302'", False), ("sleep 302", True)):
        person = Plugin(execute(corral, task, command, interactive=interactive))
        while not living("sleep", "302"):
            person.step(0.01)
        person.hang_up()
        eventually(lambda: not living("sleep", "302"))
    for steps in range(8):  # also while the command is being started
        person = Plugin(execute(corral, task, "sleep 303", interactive=False))
        for _ in range(steps):
            person.step(0.01)
        person.hang_up()
    Plugin(execute(corral, task, "true")).until_closed()  # earlier sessions have started by now
    eventually(lambda: not living("sleep", "303"))
    assert corral.client("ecs").describe_tasks(tasks=[task])["tasks"][0]["lastStatus"] == "RUNNING"


def test_background_processes_of_a_command_do_not_hold_its_session(corral: Corral, task: str) -> None:
    person = Plugin(execute(corral, task, "sh -c 'trap \"\" HUP PIPE; while echo x; do :; done & echo main $!'"))
    assert person.until_closed() == ""
    [child] = re.findall(rb"main (\d+)", person.received)
    os.kill(int(child), signal.SIGKILL)


def test_a_session_ends_with_its_task(corral: Corral) -> None:
    ecs, mortal = corral.client("ecs"), start(corral)
    before = set((corral.data / "node" / "sessions").iterdir())
    left = Plugin(execute(corral, mortal, "sh -c 'setsid sleep 304 & until grep -q sleep /proc/$!/comm; do sleep 0.01; done'"))
    left.until_closed()
    person = Plugin(execute(corral, mortal, "sleep 305"))
    eventually(lambda: living("sleep", "305") or person.step(0.01))
    assert living("sleep", "304")  # in the background, while the task runs
    ecs.stop_task(task=mortal)
    assert "container has stopped" in person.until_closed()
    wait_stopped(ecs, [mortal])
    eventually(lambda: not living("sleep", "304") and not living("sleep", "305"))
    eventually(lambda: set((corral.data / "node" / "sessions").iterdir()) <= before)


def test_the_token_of_a_session_ends_with_the_task_that_requested_it(corral: Corral, task: str, tmp_path: Path) -> None:
    """Also if the caller's session is revoked."""
    ecs = corral.client("ecs")

    def requested(name: str) -> tuple[str, dict[str, str]]:
        code = (
            "import boto3, json, os, sys, time; call = boto3.client('ecs').execute_command; "
            "found = call(task=sys.argv[1], command='echo here', interactive=True)['session']; "
            "open(sys.argv[2] + '~', 'w').write(json.dumps(found)); os.rename(sys.argv[2] + '~', sys.argv[2]); time.sleep(600)"
        )
        caller = start(corral, container([sys.executable, "-c", code, task, str(tmp_path / name)]))
        eventually((tmp_path / name).exists, "the task has a session")
        return caller, json.loads((tmp_path / name).read_text())

    first, ended = requested("ended")
    ecs.stop_task(task=first)
    wait_stopped(ecs, [first])
    assert "has ended, and its token with it" in Plugin(ended).until_closed()
    second, revoked = requested("revoked")
    corral.own("RevokeSessions", task=second.rpartition("/")[2])
    assert "has ended, and its token with it" in Plugin(revoked).until_closed()
    third, valid = requested("valid")
    person = Plugin(valid)
    person.until(b"here")
    for arn in (second, third):
        ecs.stop_task(task=arn)


@pytest.mark.parametrize("part", ["corral.server", "corral.node"])
def test_kill_9_in_the_middle_ends_the_session_cleanly(own_corral: Callable[..., Corral], part: str) -> None:
    corral = own_corral("sim:1").start()
    task = start(corral)
    before = execute(corral, task, "echo unused")
    person = Plugin(execute(corral, task, "sh -c 'echo begun; sleep 306'"))
    person.until(b"begun")
    corral.kill(part)
    if part == "corral.server":
        with pytest.raises(OSError):
            person.until_closed()
        eventually(lambda: not living("sleep", "306"))
        corral.start()
        with pytest.raises(ConnectionResetError):
            Plugin(before).until_closed()  # an old token: the new server does not know whether it was used
        # AWS's plugin calls this when its connection is lost; without a token it reports that the session is over, and ends.
        assert not corral.client("ssm").resume_session(SessionId=before["sessionId"]).get("TokenValue")
    else:
        assert "ended" in person.until_closed()
        eventually(lambda: not living("sleep", "306"))
    ecs = corral.client("ecs")
    assert ecs.describe_tasks(tasks=[task])["tasks"][0]["lastStatus"] == "RUNNING"

    def works() -> bool:
        again = Plugin(execute(corral, task, "echo again"))
        again.until_closed()
        return b"again" in again.received

    eventually(works, "a new session")
    assert "Traceback" not in corral.log()


def test_an_idle_session_costs_nothing(corral: Corral, task: str) -> None:
    person = Plugin(execute(corral, task, "sh -c 'echo idle; read x'"))
    person.until(b"idle")
    [server] = corral.processes("corral.server")

    def used() -> float:
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    before, began_s = used(), time.monotonic()
    while time.monotonic() < began_s + 1.0:
        person.step(0.1)
    assert used() - before < 0.1 * (time.monotonic() - began_s) and person.sent_again == 0
    person.type(b"exit\r")
    person.until_closed()
