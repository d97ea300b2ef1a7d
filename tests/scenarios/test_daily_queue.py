"""A day with the queue of a GPU machine: runs of many sizes, an array, a chain, a stop, a failure, a reboot, and the history.

The runs are submitted with the `corral` command, on four simulated GPUs. The reboot ends all processes of this Corral with SIGKILL,
and starts it with another boot id.
"""

from __future__ import annotations

import subprocess
import uuid
from itertools import takewhile
from pathlib import Path

import pytest

from command import BIN, Cli
from eventually import eventually
from terminal import Terminal

GPUS = 4
RUNS = 20
MEMBERS, AT_ONCE = 50, 4
COLUMNS = (80, 120, 200)
# Each member of the array counts the members that run now.
MEMBER = "mkdir now/$CORRAL_INDEX && ls now | wc -l >> counts && sleep 0.05 && rmdir now/$CORRAL_INDEX"


@pytest.fixture
def corral(own: Cli) -> Cli:
    own("up", "--detach", "--port", "0", "--gpus", f"sim:{GPUS}")
    (own.home / "now").mkdir()
    return own


def test_a_day(corral: Cli, tmp_path_factory: pytest.TempPathFactory) -> None:
    # The whole machine is busy, so everything that follows waits in line.
    corral("run", "-d", "-n", "busy", "-g", "all", "-t", "1h", "--", "sh", "-c", "while ! test -e go; do sleep 0.02; done")
    names = [f"train{number:02}" for number in range(RUNS)]
    for number, name in enumerate(names):
        limit = ("-t", f"{number + 1}m") if number % 2 else ()
        priority = ("--priority", "5") if number == RUNS - 1 else ()
        corral("run", "-d", "-n", name, "-g", str(1 + number % GPUS), *limit, *priority, "--", "sh", "-c", f"echo {name} >> order")
    array = corral("run", "-d", "-n", "sweep", "--array", f"0-{MEMBERS - 1}%{AT_ONCE}", "--", "sh", "-c", MEMBER).stdout.strip()
    corral("run", "-d", "-n", "prepare", "-g", "1", "--", "sh", "-c", "echo 42 > answer")
    corral("run", "-d", "-n", "evaluate", "--after", "prepare", "--", "cat", "answer")
    corral("run", "-d", "-n", "broken", "--", "test", "-e", "mended")
    corral("run", "-d", "-n", "endless", "--", "sleep", "600")
    for columns in COLUMNS:
        looks_right(corral, tmp_path_factory.mktemp("ps"), columns, "corral ps", ("busy", "train00", "evaluate"))
    corral("stop", "--wait", "endless")
    (corral.home / "go").touch()
    corral("wait", "busy", *names, array, "prepare", "evaluate")
    assert corral("logs", "evaluate").stdout == "42\n"
    order = (corral.home / "order").read_text().split()
    assert sorted(order) == names and order[0] == names[-1], "the run with the priority is first"
    counts = [int(line) for line in (corral.home / "counts").read_text().split()]
    assert len(counts) == MEMBERS and max(counts) <= AT_ONCE
    corral("wait", "broken", code=1)
    (corral.home / "mended").touch()
    corral("rerun", "broken")

    a_reboot_in_the_middle(corral)

    runs = {each["name"]: each for each in corral.json("history", "--limit", "200")}
    expected = {"busy", *names, "prepare", "evaluate", "broken", "endless", "survivor", "victim"}
    assert expected <= runs.keys()
    failed = [each["name"] for each in corral.json("history", "--failed", "--limit", "200")]
    assert sorted(set(failed)) == ["broken", "survivor", "victim"]  # `endless` was stopped by its user, so it did not fail
    shown = corral("show", names[3]).stdout
    assert names[3] in shown and f"echo {names[3]} >> order" in shown
    for columns in COLUMNS:
        looks_right(corral, tmp_path_factory.mktemp("history"), columns, "corral history --limit 8", ("survivor", "broken"))


def a_reboot_in_the_middle(corral: Cli) -> None:
    until_again = "echo up >> starts; test -e again || exec sleep 600"
    corral("run", "-d", "-n", "survivor", "-g", "1", "--requeue", "--", "sh", "-c", until_again)
    corral("run", "-d", "-n", "victim", "-g", "1", "--", "sh", "-c", "echo up >> starts; exec sleep 600")
    corral("run", "-d", "-n", "waits", "-g", "all", "--", "true")
    starts = corral.home / "starts"
    eventually(lambda: starts.exists() and len(starts.read_text().split()) == 2)
    corral.clear()
    (corral.home / "again").touch()
    boot_id = corral.home / "boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    up = f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id && exec {BIN}/corral up --detach"
    subprocess.run(["unshare", "--mount", "sh", "-c", up], env=corral.environment, cwd=corral.home, check=True, timeout=60)
    corral("wait", "survivor", "waits")
    assert len(starts.read_text().split()) == 3, "only the run with --requeue has started again"
    victim = next(each for each in corral.json("history", "--limit", "200") if each["name"] == "victim")
    [container] = victim["containers"]
    assert "exitCode" not in container and "the host was restarted" in container["reason"]


def looks_right(corral: Cli, folder: Path, columns: int, command: str, texts: tuple[str, ...]) -> None:
    """Run a command in a terminal. Check that the table has these texts, and that only its last column continues on other lines."""
    terminal = Terminal(folder, {**corral.environment, "LC_ALL": "C.UTF-8"}, columns, rows=100)
    try:
        terminal.type(f"clear; {command}")
        terminal.until("ID")
        screen = terminal.until_prompt()
    finally:
        terminal.close()
    assert screen[0].startswith("ID") and all(text in "\n".join(screen) for text in texts), "\n".join(screen)
    rows = list(takewhile(lambda line: not line.startswith("corral: "), screen[1:-1]))  # a message follows the table
    assert all(line[0] != " " or line.startswith("    ") for line in rows if line), "a row is broken:\n" + "\n".join(screen)
