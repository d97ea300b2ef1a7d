"""`corral run --time`: the task is stopped when its time is over, and the exit code says so."""

from __future__ import annotations

from command import UNTIL_TOLD, Cli


def test_a_task_ends_with_its_time(cli: Cli) -> None:
    done = cli("run", "--time", "1s", "--", "sh", "-c", UNTIL_TOLD, code=124)
    assert done.stdout.startswith("ready\n")  # the shell may add what became of its sleep
    assert "was stopped after its 1s" in done.stderr


def test_a_task_that_ends_in_time_ends_as_it_does(cli: Cli) -> None:
    cli("run", "--time", "1h", "--", "sh", "-c", "exit 3", code=3)
