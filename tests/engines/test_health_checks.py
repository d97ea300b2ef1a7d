"""Health checks on a real node: verdicts, timeouts, and agents that die during a check."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.clock import WallClock
from corral.model.run import Health, HealthCheck, Observed
from corral.node import health_checks
from corral.node.engine import Known
from corral.node.health_checks import HealthChecks, HealthTracker
from corral.node.run_command import start_command
from engines.nodes import is_running, kill, shell
from eventually import eventually, soon


def check(script: str, **more) -> HealthCheck:
    return HealthCheck(["/bin/sh", "-c", script], **{"interval_s": 0.1, "timeout_s": 5.0, "retries": 2, **more})


@pytest.mark.parametrize(
    ("results", "verdicts"),
    [
        ("+", "H"),
        ("--", " U"),
        ("-+-", " HH"),
        ("+--", "HHU"),
        ("+-+-+", "HHHHH"),  # never two in a row
        ("--+", " UH"),
    ],
)
def test_verdicts(results: str, verdicts: str) -> None:
    tracker, found = HealthTracker(check("", interval_s=5.0)), ""
    for at, result in enumerate(results):
        before = tracker.verdict
        changed = tracker.add(result == "+", 10.0 + at)
        assert changed == (tracker.verdict is not before)
        found += {Health.HEALTHY: "H", Health.UNHEALTHY: "U", None: " "}[tracker.verdict]
    assert found == verdicts


def test_failures_in_the_start_period_do_not_count_until_the_first_success() -> None:
    tracker = HealthTracker(check("", interval_s=5.0, start_period_s=60.0))
    assert not any(tracker.add(False, age_s) for age_s in (0.0, 5.0, 30.0, 59.0))
    assert tracker.add(True, 59.5) and not tracker.add(False, 59.6) and tracker.add(False, 59.7)
    assert tracker.verdict is Health.UNHEALTHY


def test_a_failure_before_the_first_interval_is_over_does_not_count() -> None:
    tracker = HealthTracker(check("", interval_s=5.0, retries=1))
    assert not tracker.add(False, 4.9) and tracker.add(False, 5.0)


def health(core, run_id: str) -> str | None:
    return core.runs[run_id].health if run_id in core.runs else None


def test_a_verdict_is_reported_when_it_changes(node, core, tmp_path):
    """The check sees the run's environment and folder."""
    node.start_agent("--gpus", "none")
    core.greeted()
    probe = check('test "$WHO" = me && test -e well', start_period_s=60.0)  # the first check may come before the file
    core.order(shell("one", ": > well; exec sleep 1000", environment={"WHO": "me"}, health=probe), shell("two", "sleep 1000"))
    core.until(lambda: health(core, "one") == "HEALTHY", "healthy")
    (node.node / "work" / "one" / "well").unlink()
    core.until(lambda: health(core, "one") == "UNHEALTHY", "unhealthy")
    told = [run.health for report in core.reports for run in report.runs if run.run_id == "one" and run.health]
    assert told == ["HEALTHY", "UNHEALTHY"]
    assert health(core, "two") is None
    core.order(stop=["one", "two"])
    assert core.ended("one")[0].health == "UNHEALTHY"


def test_a_check_that_takes_too_long_is_killed_with_all_its_children(node, core, tmp_path):
    node.start_agent("--gpus", "none")
    core.greeted()
    children = tmp_path / "children"
    children.touch()
    probe = check(f"sleep 1000 & echo $! >> {children}; wait", timeout_s=0.3, retries=1)
    core.order(shell("one", "sleep 1000", health=probe))
    core.until(lambda: health(core, "one") == "UNHEALTHY" and children.read_text(), "unhealthy")
    core.order(stop=["one"])
    core.ended("one")
    pids = [int(pid) for pid in children.read_text().split()]
    eventually(lambda: not any(map(is_running, pids)), "the children of the checks are gone")


def test_a_check_that_is_being_started_when_its_run_ends_is_killed_with_all_its_children(node, monkeypatch):
    async def scenario() -> None:
        ended = asyncio.Event()

        async def late(*arguments: Any) -> Process:
            process = await start_command(*arguments)
            await ended.wait()
            return process

        monkeypatch.setattr(health_checks, "start_command", late)
        checks = HealthChecks(node.node, dict(os.environ), WallClock(), lambda *_: None)
        folder = node.node / "work" / "one"
        folder.mkdir()
        run = Known(Observed("one", started_at_s=WallClock().wall_s()), ships_logs=False, gpu_ids=())
        checks.follow([shell("one", "", health=check("sleep 1000 & echo $! > pid; wait"))], {"one": run})
        await soon(lambda: (folder / "pid").exists() and (folder / "pid").read_text(), "the check runs")
        checks.changed([replace(run, observed=replace(run.observed, stopped_at_s=1.0))])
        await asyncio.sleep(0)
        ended.set()
        child = int((folder / "pid").read_text())
        await soon(lambda: not is_running(child), "the check's child is gone")
        await checks.close()

    asyncio.run(scenario())


def test_a_new_agent_runs_the_checks_it_is_sent_and_kills_those_of_its_predecessor(node, core, tmp_path):
    agent = node.start_agent("--gpus", "none")
    core.greeted()
    hangs = check(f"echo $$ > {tmp_path}/pid; exec sleep 1000", timeout_s=1000.0)
    core.order(shell("one", "sleep 1000", health=hangs))
    core.until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the check runs")
    left = int((tmp_path / "pid").read_text())
    kill(agent.pid)
    assert is_running(left)
    node.start_agent("--gpus", "none")
    core.greeted(2)
    eventually(lambda: not is_running(left), "the check of the dead agent is gone")
    well = shell("one", "sleep 1000", health=check("true"))
    core.order(check=[well, shell("unknown", "sleep 1000", health=check("true"))])
    core.until(lambda: health(core, "one") == "HEALTHY", "healthy")
    assert "unknown" not in core.runs
    core.order(stop=["one"])
    core.ended("one")


def test_a_command_that_cannot_run_is_a_failure(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    core.order(shell("one", "sleep 1000", health=HealthCheck(["/no/such/program"], interval_s=0.1, retries=1)))
    core.until(lambda: health(core, "one") == "UNHEALTHY", "unhealthy")
    core.order(stop=["one"])
    core.ended("one")


def test_an_attempt_is_another_run_to_the_host(node, core):
    node.start_agent("--gpus", "none")
    core.greeted()
    core.order(shell("one", "echo first; exit 1", ships_logs=True))
    core.ended("one")
    core.order(shell("one.1", "echo second; exit 2", ships_logs=True))
    assert core.ended("one.1")[0].exit_code == 2
    assert (core.texts["one"], core.texts["one.1"]) == (["first"], ["second"])
