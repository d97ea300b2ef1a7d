"""Names of runs: any text, the name of the script by default, and commands that find runs by name, id or glob."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from clients.test_cli_machine import completed
from command import UNTIL_TOLD, Cli
from corral.cli.run_names import check_name, default_name, family_of


@pytest.mark.parametrize(
    "command, name",
    [
        ("python train.py --lr 0.1", "train"),
        ("/usr/bin/python3.11 -u lab/train_v2.0.py", "train_v2.0"),
        ("python -m lab.train --lr 1", "lab.train"),
        ("python -c code.py", "python"),
        ("sh -ec true.sh", "sh"),
        ("bash run.sh a.py", "run"),
        ("./sweep.sh", "sweep"),
        ("torchrun --nproc-per-node 4 train.py", "train"),
        ("uv run --with torch train.py", "train"),
        ("nvidia-smi -q", "nvidia-smi"),
        ("python", "python"),
        ("./a(b)", "a-b"),
    ],
)
def test_the_default_name_is_the_script(command: str, name: str) -> None:
    assert default_name(command.split()) == name
    check_name(default_name(command.split()))


def test_every_name_has_a_family() -> None:
    for name in ("lr0.1", "größe 7", "a/b:c=d+e@f", "...", "x" * 255, "-"):
        check_name(name)
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,255}", family_of(name))
    assert (family_of("lr0.1"), family_of("plain_name-2")) == ("lr0-1", "plain_name-2")
    for name in ("", " ", "a\nb", "a\x1b[0m", "lr*", "x" * 256, "aws:x"):
        with pytest.raises(click.BadParameter):
            check_name(name)


def test_commands_find_runs_by_name_glob_and_beginning_of_the_id(cli: Cli) -> None:
    first = cli.start_task("--name", "lr0.1", "--", "sh", "-c", UNTIL_TOLD, family="lr0-1")
    other = cli.start_task("--name", "lr0-1", "--", "sh", "-c", UNTIL_TOLD, family="lr0-1")  # the same family, another name
    second = cli.start_task("--name", "lr0.1", "--", "sh", "-c", UNTIL_TOLD, family="lr0-1")
    third = cli.start_task("--gpus", "1", "--name", "lr0.2", "--", "sh", "-c", UNTIL_TOLD, family="lr0-2")
    task = cli.client("ecs").describe_tasks(tasks=[first], include=["TAGS"])["tasks"][0]
    assert task["taskDefinitionArn"].rpartition("/")[2].startswith("lr0-1:")
    assert {"key": "corral:name", "value": "lr0.1"} in task["tags"]
    listed = {line.split()[0]: line.split()[1] for line in cli("ps", "lr*").stdout.splitlines()[1:]}
    assert {first[:8]: "lr0.1", second[:8]: "lr0.1", third[:8]: "lr0.2"}.items() <= listed.items()
    assert [row["taskArn"].rpartition("/")[2] for row in cli.json("ps", "lr0.1")] == [first, second]
    assert [row["taskArn"].rpartition("/")[2] for row in cli.json("ps", third[:6])] == [third]
    assert cli("ps", "nothing").stdout.startswith("No tasks.")

    shown = cli("logs", "lr0.1")
    assert shown.stdout == "ready\n"
    assert shown.stderr == f"corral: 2 tasks have the name lr0.1: using the latest, {second[:8]}\n"
    assert cli("logs", "lr0-1").stderr == ""
    assert set(cli("logs", "lr0.?").stdout.splitlines()) == {"lr0.1 | ready", "lr0.2 | ready"}
    assert cli("exec", "lr0.2", "--", "echo", "inside").stdout.strip() == "inside"
    for text in (cli("top", "--once").stdout, cli("status").stdout):
        assert f"{third[:8]} lr0.2" in text
    assert set(completed(cli, "stop", "lr0.")) == {"lr0.1", "lr0.2"}

    stopped = cli("stop", "--wait", "lr0.1")
    assert stopped.stdout == f"{second[:8]} has stopped\n" and "using the latest" in stopped.stderr
    assert cli("stop", "--wait", "lr0.1").stdout == f"{first[:8]} has stopped\n"  # the stopped one is no candidate
    assert set(completed(cli, "stop", "lr0.")) == {"lr0.2"} and "lr0.1" in completed(cli, "logs", "lr0.")
    assert set(cli("stop", "--wait", "lr0*").stdout.splitlines()) == {f"{each[:8]} has stopped" for each in (other, third)}
    assert "no task that has not stopped has a name that matches lr0*" in cli("stop", "lr0*", code=1).stderr
    assert "no task has the name 'lr9.9': `corral ps --all`" in cli("stop", "lr9.9", code=1).stderr
    assert "is not a name" in cli("run", "--name", "a,b", "--", "true", code=2).stderr


def test_wait_ends_with_the_exit_code(cli: Cli) -> None:
    script = "while [ ! -e {0} ]; do sleep 0.05; done; exit {1}"
    for number, name in enumerate(("wait.0", "wait.3")):
        cli("run", "-d", "--name", name, "--", "sh", "-c", script.format(name, 3 * number))
    waiting = cli.begin("wait", "wait.0", "wait.3")
    only = cli.begin("wait", "wait.0")
    (cli.home / "wait.0").touch()
    assert only.end()[0] == 0 and waiting.process.poll() is None
    (cli.home / "wait.3").touch()
    assert waiting.end() == (3, "", "")
    assert [task["containers"][0]["exitCode"] for task in cli.json("wait", "wait.?", code=3)] == [0, 3]
    assert cli("wait", "--cluster", "default", "nothing", code=1).stderr


def test_the_script_names_its_run(cli: Cli) -> None:
    Path(cli.home / "my.train.py").write_text("print('trained')\n")
    cli("run", "--", "python3", "my.train.py")
    assert cli("logs", "my.train").stdout == "trained\n"
