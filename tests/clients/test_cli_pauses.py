"""`corral pause` and `corral resume`, and the options of `corral run` that let runs share the time of a GPU."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clients.test_cli_run import AWS
from command import UNTIL_TOLD, Cli
from eventually import eventually

MEMORY = ("-e", "CORRAL_SIM_GPU_MEMORY_MIB=2048")
HOST = "in the memory of the host"


@pytest.fixture
def one(own: Cli) -> Cli:
    """A Corral with one simulated GPU."""
    own("up", "--detach", "--gpus", "sim:1", "--port", "0")
    return own


def start(one: Cli, name: str, *options: str) -> str:
    return one.start_task("--gpus", "1", *MEMORY, *options, "--", "sh", "-c", UNTIL_TOLD, family=name)


def submit(one: Cli, name: str, *options: str, script: str = UNTIL_TOLD) -> str:
    return one("run", "--detach", "--gpus", "1", "--name", name, *options, "--", "sh", "-c", script).stdout.strip()


def state(one: Cli, task_id: str) -> str:
    """The phase of a pause of a task that runs, or its lastStatus."""
    task = one.task(task_id)
    attributes = {each["name"]: each["value"] for each in task["attributes"]}
    return str(attributes.get("corral.pause-phase", task["lastStatus"]))


def row(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if f" {name} " in f" {line} ")


def gpu_of(one: Cli) -> dict[str, Any]:
    [gpu] = one.json("status")["hosts"][0]["gpus"]
    return dict(gpu)


def test_another_run_gets_the_gpu_of_a_paused_one(one: Cli) -> None:
    task_id = start(one, "train")
    first = one("pause", "train", "--reason", "for the demo").stdout
    assert first.startswith(f"train ({task_id[:8]}) is paused: 2 GiB moved to the memory of the host in "), first
    assert "PAUSED" in row(one("ps").stdout, "train") and f"for the demo; 2 GiB {HOST}" in one("ps").stdout
    assert "PAUSED" in row(one("ps", "train").stdout, "train")
    assert "PAUSED" in row(one("ps", "--all").stdout, "train")
    status = one("status").stdout
    assert "1 running (1 paused)" in status and f"for the demo; 2 GiB {HOST}" in status
    assert gpu_of(one)["task"] is None
    assert "PAUSED" in one("top", "--once").stdout
    shown = one("show", "train").stdout
    assert (
        "State     PAUSED" in shown
        and "Reason    for the demo" in shown
        and "Paused    since " in shown
        and f"2 GiB {HOST}" in shown
    )
    assert one.json("show", "train")["pause"]["phase"] == "paused"
    other = start(one, "other")
    assert gpu_of(one)["task"] == other
    waits = one("resume", "train").stdout
    assert waits == f"train ({task_id[:8]}) waits for its GPUs: its GPU is held by other\n"
    assert "waits to continue: its GPU is held by other" in one("ps").stdout
    one("stop", "--wait", "other")
    eventually(lambda: state(one, task_id) == "RUNNING")
    assert gpu_of(one)["task"] == task_id
    assert "Paused    1 time, for " in one("show", "train").stdout
    one("pause", "train")
    assert one("resume", "--wait", "train").stdout.startswith(f"train ({task_id[:8]}) runs again, after ")
    one("stop", "--wait", "train")
    [ended] = [each for each in one.json("history") if each["name"] == "train"]
    assert ended["pausedSeconds"] > 0 and "PAUSED" in one("history").stdout.splitlines()[0]
    assert "Paused    for " in one("show", "train").stdout


def test_no_command_runs_in_a_paused_run_and_stop_ends_it(one: Cli) -> None:
    task_id = start(one, "train")
    one("pause", "--no-wait", "train")
    eventually(lambda: state(one, task_id) == "paused")
    assert "`corral resume train` continues it" in one("exec", "train", "--", "true", code=1).stderr
    one("stop", "--wait", "train")
    assert one.task(task_id)["containers"][0]["exitCode"] == 7


def test_why_a_run_could_not_be_paused(one: Cli) -> None:
    start(one, "train", "-e", "CORRAL_SIM_PAUSE_FAILS=checkpoint")
    waiting = submit(one, "waiting")
    refused = one("pause", "train", code=1)
    assert "could not be paused: " in refused.stderr and not refused.stdout
    assert "the last pause has failed" in one("show", "train").stdout
    assert "waiting is WAITING: `corral pause` pauses only tasks that run" in one("pause", "waiting", code=1).stderr
    assert "train is RUNNING: `corral resume` continues only paused tasks" in one("resume", "train", code=1).stderr
    assert "no task has the name 'absent'" in one("pause", "absent", code=1).stderr
    assert state(one, waiting) == "PROVISIONING"


def test_an_array_is_paused_and_continues(one: Cli) -> None:
    one("run", "--detach", "--name", "sweep", "--array", "0-2", "--", "sh", "-c", UNTIL_TOLD)
    ids = [arn.rpartition("/")[2] for arn in one.client("ecs").list_tasks(family="sweep")["taskArns"]]
    eventually(lambda: all(state(one, each) == "RUNNING" for each in ids))
    rows = json.loads(one("pause", "sweep", "--json").stdout)
    assert sorted(each["name"] for each in rows) == ["sweep:0", "sweep:1", "sweep:2"]
    assert {each["phase"] for each in rows} == {"paused"} and {each["hostMemoryMiB"] for each in rows} == {0}
    assert one("resume", "--wait", "sweep:1", "sweep:2").stdout.count("runs again") == 2
    assert sorted(state(one, each) for each in ids) == ["RUNNING", "RUNNING", "paused"]
    assert "1 task did not run" not in one("pause", "sweep", "--no-wait").stderr
    one("stop", "--wait", "sweep")


def test_a_preemptible_run_lends_its_gpu(one: Cli) -> None:
    lender = start(one, "lender", "--preemptible")
    assert "Options   --preemptible" in one("show", "lender").stdout
    urgent = submit(one, "urgent", "--priority", "10", script="until [ -e go ]; do sleep 0.05; done")
    eventually(lambda: state(one, urgent) == "RUNNING")
    assert state(one, lender) == "paused"
    assert "urgent has a higher priority" in one("ps").stdout
    (one.home / "go").touch()
    eventually(lambda: state(one, lender) == "RUNNING" and state(one, urgent) == "STOPPED")


def test_a_run_is_stopped_for_another_and_runs_again(one: Cli) -> None:
    lender = start(one, "lender", "--preempt", "kill")
    assert "Options   --preempt kill" in one("show", "lender").stdout
    one("run", "--gpus", "1", "--priority", "10", "--", "true")
    stopped = one.task(lender)
    assert stopped["lastStatus"] == "STOPPED" and "has a higher priority" in stopped["stoppedReason"]
    again = eventually(lambda: one.client("ecs").list_tasks(family="lender")["taskArns"])
    assert again != [stopped["taskArn"]]


def test_runs_take_turns(one: Cli) -> None:
    first = start(one, "first", "--turns", "10s")
    second = submit(one, "second", "--turns", "10s")
    assert "Options   --turns 10s" in one("show", "first").stdout
    eventually(lambda: state(one, second) == "RUNNING" and state(one, first) == "paused", within_s=60)
    assert "its turn was over, second has the next one" in one("ps").stdout
    eventually(lambda: state(one, first) == "RUNNING" and state(one, second) == "paused", within_s=60)


def test_refusals(one: Cli) -> None:
    aws = {**AWS, "AWS_ENDPOINT_URL": "https://ecs.us-east-1.amazonaws.com"}
    for command in ("pause", "resume"):
        assert f"`corral {command}` works only with Corral" in one(command, "train", code=1, env=aws).stderr
    for option in (["--preemptible"], ["--preempt", "kill"], ["--turns", "5m"]):
        assert f"have no {option[0]}" in one("run", "--image", "i", *option, "--", "true", code=1, env=aws).stderr
    assert "a turn lasts at least 10 seconds" in one("run", "--turns", "5s", "--", "true", code=2).stderr
    share = ["--share", "--gpu-memory", "1g", "--preemptible"]
    assert "only whole GPUs are lent" in one("run", *share, "--", "true", code=2).stderr
