"""Runs that print as fast as they can: they are paused for a part of the time, and their pause ends whatever happens.

With the freezer of cgroups of version 2, with cgroups of version 1, and without any, where SIGSTOP pauses.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.node import procfs
from corral.node.output_bounds import OUTPUT_MAX_BYTES
from corral.node.output_guard import FLOOD_BYTES_PER_S
from engines.drivers import Driver, process_engine
from engines.fake_core import FakeCore
from engines.nodes import NodeFolder, kill, shell
from engines.spawners import skip_without, start_spawner
from eventually import eventually

EXCESS = 4  # times the bound: what a run may have on disk until the guard has noticed, paused and trimmed it


@pytest.fixture(params=["both", "version 1", "none"])
def kind(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


@pytest.fixture
def driver(node: NodeFolder, kind: str) -> Iterator[Driver]:
    start_spawner(node, kind)
    driver = Driver(process_engine, node)
    yield driver
    driver.close()


def output(driver: Driver, run_id: str) -> os.stat_result:
    return (driver.node.node / "output" / run_id).stat()


def is_paused(node: NodeFolder, pid: int) -> bool:
    """Whether SIGSTOP or the freezer has stopped a process."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        frozen = Path(f"/sys/fs/cgroup/unified{line.removeprefix('0::')}/cgroup.freeze")
        if line.startswith("0::") and frozen.exists() and frozen.read_text() == "1\n":
            return True
    return procfs.is_stopped(pid)


def paused(driver: Driver, run_id: str) -> int:
    """Wait until a run is paused. Return its pid."""
    pid = driver.started(run_id).observed.pid
    assert pid is not None
    driver.until(lambda: is_paused(driver.node, pid), f"{run_id} paused")
    return pid


def test_the_output_on_disk_is_bounded_and_so_is_its_rate(driver: Driver) -> None:
    """The neighbour prints for some seconds meanwhile, and does not wait for the floods."""
    began, largest = time.monotonic(), {"one": 0, "two": 0}
    driver.engine.start([shell("one", "exec yes"), shell("two", "yes & wait")])
    driver.engine.start([shell("neighbour", "for i in $(seq 150); do echo $i; sleep 0.02; done")])
    driver.started("one"), driver.started("two"), driver.started("neighbour")

    def neighbour_is_done() -> bool:
        for run_id in largest:
            largest[run_id] = max(largest[run_id], 512 * output(driver, run_id).st_blocks)
        return not driver.engine.observe()["neighbour"].alive

    driver.until(neighbour_is_done, "the neighbour ended")
    for run_id, most in largest.items():
        assert OUTPUT_MAX_BYTES / 2 < most < EXCESS * OUTPUT_MAX_BYTES, f"{run_id}: {most >> 20} MiB on disk"
        printed = output(driver, run_id).st_size
        assert printed < EXCESS * OUTPUT_MAX_BYTES + FLOOD_BYTES_PER_S * (time.monotonic() - began), f"{printed >> 20} MiB printed"
    driver.engine.stop(["one", "two"])
    assert {driver.ended(run_id).observed.exit_code for run_id in largest} == {143}


def test_a_paused_run_handles_sigterm(driver: Driver) -> None:
    driver.engine.start([shell("one", "trap 'exit 7' TERM; while :; do head -c 8000000 /dev/zero; done", stop_grace_s=60.0)])
    paused(driver, "one")
    driver.engine.stop(["one"])
    assert driver.ended("one").observed.exit_code == 7


def test_a_run_that_ignores_sigterm_is_killed_while_it_is_paused(driver: Driver) -> None:
    driver.engine.start([shell("one", "trap '' TERM; exec yes", stop_grace_s=0.1)])
    paused(driver, "one")
    driver.engine.stop(["one"])
    assert driver.ended("one").observed.exit_code == 137
    assert not driver.node.holders()
    assert driver.run(shell("next", "echo up")).observed.exit_code == 0  # also if it has the cgroup of the paused run


def test_a_flood_in_another_process_group_is_paused(driver: Driver) -> None:
    driver.engine.start([shell("one", "setsid yes & wait")])
    driver.started("one")
    driver.until(lambda: output(driver, "one").st_size > 2 * OUTPUT_MAX_BYTES, "a flood")
    [writer] = [pid for pid in driver.node.holders() if Path(f"/proc/{pid}/comm").read_text() == "yes\n"]
    driver.until(lambda: is_paused(driver.node, writer), "the writer paused")
    driver.until(lambda: not is_paused(driver.node, writer), "the writer resumed")
    driver.engine.stop(["one"])
    driver.ended("one")
    assert not driver.node.holders()


def test_a_paused_run_continues_after_a_crash_of_the_spawner(driver: Driver, kind: str) -> None:
    driver.engine.start([shell("one", "exec yes")])
    pid, first = driver.started("one").observed.pid, driver.node.spawner_pid()
    assert pid is not None
    driver._loop.run_until_complete(driver.engine.close(quit=False))  # so that no other spawner is started
    eventually(lambda: is_paused(driver.node, pid), "paused")
    kill(first)
    assert is_paused(driver.node, pid)
    before = output(driver, "one").st_size
    start_spawner(driver.node, kind)
    again = Driver(process_engine, driver.node)
    eventually(lambda: output(again, "one").st_size > before + 2 * OUTPUT_MAX_BYTES, "more output")
    eventually(lambda: is_paused(again.node, pid), "paused again")
    again.engine.stop(["one"])
    again.ended("one")
    again.close()


def test_the_log_of_a_neighbour_arrives_while_others_flood(node: NodeFolder, core: FakeCore) -> None:
    node.start_agent()
    core.greeted()
    core.order(*(shell(f"flood{i}", "exec yes", ships_logs=True) for i in range(2)))
    core.until(lambda: all(len(core.texts[f"flood{i}"]) > 20_000 for i in range(2)), "floods")
    core.order(shell("neighbour", "echo hello; exec sleep 300", ships_logs=True))
    core.until(lambda: core.runs["neighbour"].pid is not None if "neighbour" in core.runs else False, "started")
    before = len(core.reports)
    core.until(lambda: core.texts["neighbour"] == ["hello"], "the line")
    assert len(core.reports) <= before + 3
    core.order(stop=["flood0", "flood1", "neighbour"])
    core.ended("flood0", "flood1", "neighbour")
