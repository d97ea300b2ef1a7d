"""A server process that cannot end in order ends at a deadline, and `corral down` kills a server that does not end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.cli.client import data_folder
from corral.cli.client.data_folder import DataFolder
from corral.cli.server.down import stop_server
from harness import Corral

BUSY = """
import sys, logging
from pathlib import Path
from corral.server.exit_deadline import exit_when_deleted, exit_within
logging.basicConfig(format="%(message)s")
if sys.argv[1] == "deadline":
    exit_within(0.05)
else:
    exit_when_deleted(Path(sys.argv[2]), 3, 0.05)
print("busy", flush=True)
while True:
    sum(range(100_000))
"""


def busy(what: str, data: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, what, str(data)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "busy\n"
    return process


def test_a_server_that_is_busy_ends_at_its_deadline(tmp_path: Path) -> None:
    said = (process := busy("deadline", tmp_path)).communicate(timeout=60)[1]
    assert (process.returncode, said) == (1, "the server did not stop within 0.05 s: it ends now. No data is lost.\n")


def test_a_server_that_is_busy_ends_when_its_folder_is_deleted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    process = busy("deleted", data)
    shutil.rmtree(data)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 3
    assert said == f"the data folder {data} was deleted or replaced, and the server did not stop: it ends now.\n"


def test_down_kills_a_server_that_does_not_end(own_corral: Callable[..., Corral], capsys: pytest.CaptureFixture[str]) -> None:
    data = DataFolder(own_corral().start().data, chosen=True)
    pid = data_folder.pid_of(data)
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # it gets no SIGTERM now
    stop_server(data, pid, gone_s=0.1)
    assert data_folder.pid_of(data) is None
    assert f"process {pid} did not exit within 0.1 s: `kill -9 {pid}` ends it, without losing data" in capsys.readouterr().err
