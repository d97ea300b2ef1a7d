"""`corral run --time`: Corral stops the task at its time limit, and the exit code says so."""

from __future__ import annotations

from command import UNTIL_TOLD, Cli


def test_a_task_stops_at_its_time_limit(cli: Cli) -> None:
    done = cli("run", "--time", "1s", "--", "sh", "-c", UNTIL_TOLD, code=124)
    assert done.stdout.startswith("ready\n")  # the shell may print that its sleep was killed
    assert "was stopped at its time limit of 1s" in done.stderr


def test_a_task_that_ends_before_its_limit_keeps_its_exit_code(cli: Cli) -> None:
    cli("run", "--time", "1h", "--", "sh", "-c", "exit 3", code=3)
