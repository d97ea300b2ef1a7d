"""`make demo` leaves nothing on the machine, also if it is interrupted. CI runs the whole demonstration."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parent.parent / "bench" / "demo.py"
DEADLINE_S = 60


def test_an_interrupted_demonstration_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(DEMO)], env={**os.environ, "TMPDIR": str(tmp_path)}, stdout=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        url = next(line for line in demo.stdout if line.startswith("export AWS_ENDPOINT_URL=")).strip().partition("=")[2]
        port = int(url.rpartition(":")[2])
        assert len(list(tmp_path.iterdir())) == 1 and port != 4566
        demo.send_signal(signal.SIGINT)
        demo.communicate(timeout=DEADLINE_S)
    assert demo.returncode == 128 + signal.SIGINT
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
