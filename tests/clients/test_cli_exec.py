"""`corral exec` on pipes: ExecuteCommand's channel with Corral's own client. tests/screens tests it in a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import pytest

from command import BIN, Cli, living
from eventually import eventually


@pytest.fixture(scope="module")
def task(shared_cli: Cli) -> str:
    return shared_cli.start_task(
        "--gpus", "1", "--env", "OF_THE_TASK=here", "--", "sh", "-c", "echo begun; sleep 600", family="exec"
    )


def test_it_runs_where_the_task_does_and_ends_as_the_command(shared_cli: Cli, task: str) -> None:
    script = "echo $OF_THE_TASK ${CUDA_VISIBLE_DEVICES%%-*} $PWD; echo wrong >&2; test -t 1 || exit 3"
    done = shared_cli("exec", task[:8], "--", "sh", "-c", script, code=3)
    assert done.stdout == f"here GPU {shared_cli.home}\n" and done.stderr == "wrong\n"
    assert shared_cli("exec", task, "sh", "-c", "kill -9 $$", code=137).stdout == ""
    assert "nosuch" in shared_cli("exec", task, "nosuch", code=127).stderr
    assert shared_cli("exec", task, "cat", given="not passed on").stdout == ""


def test_it_waits_for_a_task_that_starts(shared_cli: Cli) -> None:
    """`corral run -d` returns before the program runs."""
    for _ in range(5):
        started = shared_cli("run", "-d", "--", "sleep", "600").stdout.strip()
        assert shared_cli("exec", started, "echo", "here").stdout == "here\n"
        shared_cli("stop", started)


def test_input_and_output_are_passed_on_byte_for_byte(shared_cli: Cli, task: str) -> None:
    given = "one\n\n  three\t\n" * 100_000 + "last"
    done = shared_cli("exec", "-i", "--container", "main", task, "--", "cat", given=given)
    assert done.stdout == given


def test_refusals_are_one_line(shared_cli: Cli, task: str) -> None:
    assert "is not in the task" in shared_cli("exec", "-c", "other", task, "true", code=1).stderr
    ecs = shared_cli.client("ecs")
    definition = shared_cli.task(task)["taskDefinitionArn"]
    plain = ecs.run_task(taskDefinition=definition)["tasks"][0]["taskArn"]
    eventually(lambda: shared_cli.task(plain)["lastStatus"] == "RUNNING")
    assert "was not enabled" in shared_cli("exec", plain, "true", code=1).stderr
    ecs.stop_task(task=plain)
    aws = {"AWS_ENDPOINT_URL": "https://ecs.us-east-1.amazonaws.com", "AWS_DEFAULT_REGION": "us-east-1"}
    assert "the endpoint is AWS" in shared_cli("exec", task, "true", code=1, env=aws).stderr


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_client_that_exits_ends_the_command(shared_cli: Cli, task: str, number: signal.Signals, code: int) -> None:
    running = shared_cli.begin("exec", task, "--", "sh", "-c", "echo begun; sleep 311")
    running.until("stdout", "begun")
    running.process.send_signal(number)
    assert running.end()[0] == code
    eventually(lambda: not living("sleep", "311"))


def test_a_reader_that_closes_the_pipe_ends_the_command(shared_cli: Cli, task: str) -> None:
    pipe = f"{BIN}/corral exec {task} -- yes 313 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipe], env=shared_cli.environment, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("313\n141\n", "")
    eventually(lambda: not living("yes", "313"))


def test_a_slow_reader_slows_the_command_down(shared_cli: Cli, task: str) -> None:
    """Output is not buffered without limit: the command waits for its reader."""
    running = shared_cli.begin("exec", task, "--", "sh", "-c", "head -c 10000000 /dev/zero; echo written >&2")
    running.until("stdout", "\0")
    [head] = living("head", "-c", "10000000")
    written: list[int] = []

    def stands_still() -> bool:
        [count] = re.findall(r"wchar: (\d+)", Path(f"/proc/{head}/io").read_text())
        written.append(int(count))
        return written[-10:].count(written[-1]) == 10

    eventually(stands_still)
    assert 0 < written[-1] < 4_000_000  # the buffers of sockets, whose size the kernel chooses
    code, out, err = running.end()
    assert (code, len(out), err) == (0, 10_000_000, "written\n")


def test_the_server_is_killed(own: Cli) -> None:
    own("up", "-d", "--port", "0", "--gpus", "sim:1")
    task = own.start_task("--", "sh", "-c", "echo begun; sleep 600")
    running = own.begin("exec", task, "--", "sh", "-c", "echo begun; sleep 312")
    running.until("stdout", "begun")
    [server] = living("corral.server", "--data", str(own.data))
    subprocess.run(["kill", "-9", str(server)], check=True)
    code, _, err = running.end()
    assert (code, err) == (1, "corral: the connection to the server was lost, and the command was stopped.\n")
    eventually(lambda: not living("sleep", "312"))
