"""Runs that print as fast as they can: they are paused for a part of the time, and their pause ends whatever happens.

With cgroups of either version, which list the processes to pause, and without any.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.node import procfs
from corral.node.output_bounds import OUTPUT_MAX_BYTES
from corral.node.output_guard import FLOOD_BYTES_PER_S, NAME, OutputGuard
from engines.drivers import Driver, process_engine
from engines.fake_core import FakeCore
from engines.nodes import NodeFolder, is_running, kill, shell
from engines.spawners import skip_without, start_spawner
from eventually import DEADLINE_S, eventually
from memory_files import MEMORY

EXCESS = 4  # times the bound: what a run may have on disk until the guard has noticed, paused and trimmed it


@pytest.fixture(params=["both", "version 1", "none"])
def kind(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


@pytest.fixture
def node() -> Iterator[NodeFolder]:
    """In memory: gigabytes on the disk would delay the writes of other tests."""
    with tempfile.TemporaryDirectory(prefix="corral-floods-", dir=MEMORY) as folder:
        node = NodeFolder(Path(folder) / "data")
        yield node
        node.clean_up()


@pytest.fixture
def driver(node: NodeFolder, kind: str) -> Iterator[Driver]:
    start_spawner(node, kind)
    driver = Driver(process_engine, node)
    yield driver
    driver.close()


def output(driver: Driver, run_id: str) -> os.stat_result:
    return (driver.node.node / "output" / run_id).stat()


def paused(driver: Driver, run_id: str) -> int:
    """Wait until a run is paused. Return its pid."""
    pid = driver.started(run_id).observed.pid
    assert pid is not None
    driver.until(lambda: procfs.is_stopped(pid), f"{run_id} paused")
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
    driver.until(lambda: procfs.is_stopped(writer), "the writer paused")
    size = output(driver, "one").st_size
    pause_max_s = size / FLOOD_BYTES_PER_S  # on a busy machine, the guard is late and the file is large
    # The writer runs for some milliseconds between two pauses of a second, so only its output shows that it was resumed.
    driver.until(lambda: output(driver, "one").st_size > size, "the writer resumed", DEADLINE_S + pause_max_s)
    driver.engine.stop(["one"])
    driver.ended("one")
    assert not driver.node.holders()


def guard_pid(spawner_pid: int) -> int:
    children = Path(f"/proc/{spawner_pid}/task/{spawner_pid}/children").read_text().split()
    [guard] = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == f"{NAME}\n"]
    return guard


def stopped_during_pause(guard: int, pid: int) -> bool:
    """Stop the guard. Return whether the run is paused, and so stays paused."""
    os.kill(guard, signal.SIGSTOP)
    eventually(lambda: procfs.is_stopped(guard), "the guard stopped")
    is_paused = procfs.is_stopped(pid)
    if not is_paused:
        os.kill(guard, signal.SIGCONT)
    return is_paused


@pytest.mark.parametrize("killed", ["spawner", "guard", "both"])
def test_a_paused_run_continues_after_a_crash(driver: Driver, kind: str, killed: str) -> None:
    driver.engine.start([shell("one", "exec yes")])
    pid, spawner = paused(driver, "one"), driver.node.spawner_pid()
    guard = guard_pid(spawner)
    driver.until(lambda: stopped_during_pause(guard, pid), "the guard stopped while the run is paused")
    size = output(driver, "one").st_size
    for each in {"spawner": [spawner], "guard": [guard], "both": [spawner, guard]}[killed]:
        kill(each)
    if killed == "spawner":
        os.kill(guard, signal.SIGCONT)
    driver.until(lambda: output(driver, "one").st_size > size + 2 * OUTPUT_MAX_BYTES, "more output")
    driver.until(lambda: procfs.is_stopped(pid), "paused again")
    driver.engine.stop(["one"])
    driver.ended("one")
    eventually(lambda: not is_running(guard), "the first guard has ended")


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


def test_a_scan_takes_time_in_proportion_to_the_number_of_runs(tmp_path: Path) -> None:
    """Also if all of them have printed much, and print nothing now."""
    (tmp_path / "output").mkdir()
    names = [f"{number:032x}" for number in range(2_000)]
    for name in names:
        (tmp_path / "output" / name).touch()

    def scan_s(calm: list[str]) -> float:
        guard = OutputGuard(tmp_path, os.getpid())
        guard._calm = dict.fromkeys(calm, OUTPUT_MAX_BYTES)
        began_s = time.process_time()
        guard._scan(time.monotonic())
        return time.process_time() - began_s

    assert min(scan_s(names) for _ in range(3)) < 5 * min(scan_s([]) for _ in range(3))
