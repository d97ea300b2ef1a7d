"""A run has ended when its last process has, wherever that process has gone; and its limits hold.

With cgroups of version 1, with those of version 2 (which list processes and limit nothing here), and without any.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.model.stop_reasons import OUT_OF_MEMORY
from corral.node.spawner_recovery import EXIT_STATUS_LOST
from engines.drivers import Driver, process_engine
from engines.nodes import NodeFolder, is_running, kill, shell, spec
from engines.spawners import KINDS, skip_without, start_spawner
from eventually import eventually

# Leaves its process group, session and parent, and closes every descriptor: neither a signal nor a lock reaches it.
HIDES = """
import os, sys, time
if os.fork():
    sys.exit()
os.setsid()
if os.fork():
    os._exit(0)
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
os.closerange(0, 300)
while True:
    time.sleep(60)
"""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    skip_without(request.param)
    return request.param


@pytest.fixture
def driver(node: NodeFolder, kind: str) -> Iterator[Driver]:
    start_spawner(node, kind)
    driver = Driver(process_engine, node)
    yield driver
    driver.close()


def hidden(path: Path) -> int:
    return int(eventually(lambda: path.exists() and path.read_text(), "a hidden process"))


def test_a_process_that_hides_ends_with_its_run(driver: Driver, tmp_path: Path, kind: str) -> None:
    wait = f"while [ ! -e {tmp_path}/pid ]; do sleep 0.01; done"
    one = shell("one", f"{sys.executable} -c '{HIDES}' {tmp_path}/pid; {wait}; exit 3")
    driver.engine.start([one, shell("other", "sleep 300")])
    assert driver.ended("one").observed.exit_code == 3
    assert not is_running(hidden(tmp_path / "pid"))
    assert driver.engine.observe()["other"].alive
    driver.engine.stop(["other"])
    driver.ended("other")


def test_a_process_that_hides_ends_after_a_crash_of_the_spawner(driver: Driver, tmp_path: Path, kind: str) -> None:
    """The main process ends while there is no spawner."""
    driver.engine.start([shell("one", f"{sys.executable} -c '{HIDES}' {tmp_path}/pid; exec sleep 300")])
    pid = hidden(tmp_path / "pid")
    main = driver.started("one").observed.pid
    kill(driver.node.spawner_pid())
    kill(main)
    assert driver.ended("one").observed.reason == EXIT_STATUS_LOST
    assert not is_running(pid)


def test_a_process_that_hides_keeps_its_run_alive_for_the_next_spawner(driver: Driver, tmp_path: Path, kind: str) -> None:
    """The journal has no pid, no process holds the lock: the run is found all the same, and it is not reported as never started."""
    main_hides = HIDES.replace("os.fork()", "0").replace("os.setsid()", "")
    driver.engine.start([spec("one", sys.executable, "-c", main_hides, f"{tmp_path}/pid")])
    pid = hidden(tmp_path / "pid")
    driver.started("one")
    eventually(lambda: not driver.node.holders(), "hidden")
    driver._loop.run_until_complete(driver.engine.close(quit=False))
    kill(driver.node.spawner_pid())
    journal = driver.node.node / "journal"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(line for line in lines if b'"pid":%d' % pid not in line))
    start_spawner(driver.node, kind)
    again = Driver(process_engine, driver.node)
    assert again.engine.observe()["one"].alive and again.engine.observe()["one"].observed.pid == pid
    again.engine.stop(["one"])
    assert again.ended("one").observed.reason == EXIT_STATUS_LOST
    assert not is_running(pid)
    again.close()


def test_a_clean_environment_hides_nothing_in_a_cgroup(driver: Driver, tmp_path: Path, kind: str) -> None:
    if kind == "none":
        pytest.skip("without cgroups a process is found by its environment")
    script = f"env -i {sys.executable} -c '{HIDES}' {tmp_path}/pid; while [ ! -e {tmp_path}/pid ]; do sleep 0.01; done"
    driver.run(shell("one", script))
    assert not is_running(hidden(tmp_path / "pid"))


def test_cgroups_are_used_again_and_removed_in_the_end(driver: Driver, kind: str) -> None:
    base, *_ = [*(driver.node.node / "cgroups").read_text().splitlines(), ""]
    assert bool(base) == (kind != "none")
    for i in range(20):
        driver.run(shell(f"r{i}", "true"))
    if base:
        assert len([entry for entry in os.scandir(base) if entry.is_dir()]) < 5
        pid = driver.node.spawner_pid()
        driver._loop.run_until_complete(driver.engine.close(quit=True))
        eventually(lambda: not is_running(pid), "the spawner has ended")
        assert not os.path.exists(base)


def test_a_run_that_uses_more_memory_than_it_may_is_killed(node: NodeFolder) -> None:
    skip_without("version 1")
    driver = Driver(process_engine, node)
    grow = "x = bytearray(40_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('grown')"
    python = [sys.executable, "-c", grow]
    stays = [sys.executable, "-c", f"{grow}\nimport time\ntime.sleep(300)"]  # on a busy machine, the limit may be set later
    driver.engine.start([spec("small", *stays, memory_mib=30), spec("large", *python, memory_mib=200), spec("free", *python)])
    small = driver.ended("small").observed
    assert (small.exit_code, small.reason) == (137, OUT_OF_MEMORY)
    assert driver.ended("large").observed.exit_code == driver.ended("free").observed.exit_code == 0
    again = driver.run(spec("again", *python)).observed  # the cgroup of an earlier run limits no later one
    assert (again.exit_code, again.reason) == (0, None)
    driver.close()


def test_a_run_of_an_earlier_spawner_leaves_no_limit_to_later_runs(node: NodeFolder) -> None:
    skip_without("version 1")
    driver = Driver(process_engine, node)
    driver.engine.start([shell("small", "echo up; exec sleep 300", memory_mib=30)])
    driver.started("small")
    kill(driver.node.spawner_pid())
    driver.engine.stop(["small"])
    driver.ended("small")
    grow = "x = bytearray(80_000_000)\nfor i in range(0, len(x), 4096): x[i] = 1"
    after = driver.run(spec("after", sys.executable, "-c", grow)).observed
    assert (after.exit_code, after.reason) == (0, None)
    driver.close()


def test_busy_cpus_are_shared_by_cpu_units(node: NodeFolder) -> None:
    skip_without("version 1")
    driver = Driver(process_engine, node)
    driver.engine.start([shell("big", "echo up; sleep 300", cpu_units=1024), shell("small", "echo up; sleep 300")])

    pid = {run_id: driver.started(run_id).observed.pid for run_id in ("big", "small")}

    def shares(run_id: str) -> int:
        lines = Path(f"/proc/{pid[run_id]}/cgroup").read_text().splitlines()
        (path,) = [line.split(":", 2)[2] for line in lines if "cpu" in line.split(":")[1].split(",")]
        file = Path(f"/sys/fs/cgroup/cpu{path}/cpu.shares")
        return int(file.read_text()) if "corral-" in path else 0

    driver.until(lambda: (shares("big"), shares("small")) == (1024, 2), "shares")
    driver.engine.stop(["big", "small"])
    driver.close()
