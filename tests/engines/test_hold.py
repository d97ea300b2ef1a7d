"""The hold on the allocation of a host: when the other end of the pipe is closed, all runs end at once, also without an agent."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from corral.model.stop_reasons import ALLOCATION_OVER
from engines.fake_core import FakeCore
from engines.nodes import NodeFolder, is_locked, is_running, kill, shell
from eventually import eventually

IGNORES_TERM = "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 600' & wait; wait"


class Held:
    def __init__(self, node: NodeFolder) -> None:
        self._node = node
        self.reading, self._writing = os.pipe()

    def start_agent(self, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "corral.node", "--data", str(self._node.data), "--gpus", "none"]
        command += ["--runtime", "process", "--held-by", str(self.reading), *more]
        agent = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=[self.reading])
        self._node.agents.append(agent)
        return agent

    def release(self) -> None:
        if self._writing >= 0:
            os.close(self._writing)
            self._writing = -1


@pytest.fixture
def held(node: NodeFolder) -> Iterator[Held]:
    found = Held(node)
    yield found
    found.release()
    os.close(found.reading)


def started(core: FakeCore, run_id: str = "one") -> int:
    """Start a run that ignores SIGTERM, and return the pid of a child of it that has left its session."""
    core.order(shell(run_id, IGNORES_TERM, ships_logs=True, stop_grace_s=600.0))
    core.until(lambda: core.texts[run_id], "a run")
    return int(core.texts[run_id][0])


def test_the_runs_end_with_the_hold(node: NodeFolder, core: FakeCore, held: Held) -> None:
    agent = held.start_agent()
    core.greeted()
    child = started(core)
    held.release()
    (one,) = core.ended("one")
    assert one.reason == ALLOCATION_OVER and not is_running(child)
    assert any(report.leaves for report in core.reports)
    core.until(lambda: agent.poll() is not None, "the agent exits")
    assert agent.returncode == 0
    eventually(lambda: not is_locked(node.node / "spawner.lock"), "the spawner exits")


def test_the_runs_end_without_an_agent_and_the_next_agent_reports_them(node: NodeFolder, core: FakeCore, held: Held) -> None:
    agent = held.start_agent()
    core.greeted()
    child = started(core)
    kill(agent.pid)
    agent.wait()
    held.release()
    eventually(lambda: not is_running(child), "the end of the run")
    held.start_agent()
    (one,) = core.ended("one")
    assert one.reason == ALLOCATION_OVER
    assert core.hellos[-1].leaves


def test_an_agent_that_was_restarted_keeps_the_runs(node: NodeFolder, core: FakeCore, held: Held) -> None:
    agent = held.start_agent()
    core.greeted()
    child = started(core)
    kill(agent.pid)
    agent.wait()
    held.start_agent()
    core.greeted(2)
    assert is_running(child) and not core.hellos[-1].leaves


def test_an_agent_that_leaves_on_sigterm_lets_its_runs_end_and_reports_them(node: NodeFolder, core: FakeCore, held: Held) -> None:
    agent = held.start_agent("--leaves-on-term", "true")
    core.greeted()
    core.order(
        shell("one", "trap 'sleep 0.2; exit 7' TERM; echo up; while :; do sleep 0.05; done", ships_logs=True, stop_grace_s=600.0)
    )
    core.until(lambda: core.texts["one"], "a run")
    agent.terminate()
    (one,) = core.ended("one")
    assert (one.exit_code, one.reason) == (7, None)
    said = [report.leaves for report in core.reports]
    ended = [any(run.run_id == "one" and run.stopped_at_s is not None for run in report.runs) for report in core.reports]
    assert said.index(True) <= ended.index(True)
    core.until(lambda: agent.poll() is not None, "the agent exits")
    assert agent.returncode == 0


def test_the_runs_of_an_agent_that_leaves_end_with_the_hold(node: NodeFolder, core: FakeCore, held: Held) -> None:
    agent = held.start_agent("--leaves-on-term", "true")
    core.greeted()
    child = started(core)
    agent.terminate()
    core.until(lambda: any(report.leaves for report in core.reports), "the agent leaves")
    assert is_running(child)
    held.release()
    (one,) = core.ended("one")
    assert one.reason == ALLOCATION_OVER and not is_running(child)
