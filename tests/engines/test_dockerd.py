"""The Docker engine of the tests: what a killed engine left is removed by the next run."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from engines.dockerd import BUSYBOX, LOCK, Dockerd, clear_left_behind, processes
from eventually import eventually

pytestmark = pytest.mark.xdist_group("docker")

TESTS = Path(__file__).parent.parent
MAKER = f"""
import sys, time
sys.path.insert(0, {str(TESTS)!r})
from engines.dockerd import Dockerd
engine = Dockerd()
network = engine("network", "create", "--subnet", "198.51.100.0/24", "left")
engine("run", "-d", "--network", "left", {BUSYBOX!r}, "sleep", "3456")
print(engine.folder, f"br-{{network[:12]}}", flush=True)
time.sleep(3000)
"""


def test_tests_with_an_engine_run_in_one_process(request: pytest.FixtureRequest):
    """In another test process, a second engine would create bridges with the same subnets."""
    assert "PYTEST_XDIST_WORKER" not in os.environ or request.node.nodeid.endswith("@docker")


def test_another_run_of_tests_waits_for_the_networks(dockerd: Dockerd):
    with open(Path(tempfile.gettempdir(), LOCK)) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("engine_too", [False, True], ids=["the test process", "both"])
def test_what_a_killed_run_left_is_removed(dockerd: Dockerd, engine_too: bool):
    maker = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True)
    folder, bridge = maker.stdout.readline().split()
    clear_left_behind()
    assert Path(f"/sys/class/net/{bridge}").exists(), "while its maker lives it is left alone"
    maker.kill()
    maker.communicate()
    if engine_too:
        os.kill(int(Path(folder, "pid").read_text()), signal.SIGKILL)
    clear_left_behind()
    assert not Path(folder).exists()
    assert not Path(f"/sys/class/net/{bridge}").exists()
    assert folder not in Path("/proc/mounts").read_text()
    eventually(lambda: not processes("sleep\0003456"), "its containers have ended")
    assert dockerd("version"), "the engine of this run is there"
