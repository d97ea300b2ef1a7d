"""The usage of runs: summed over a session, and compared with an earlier measurement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from corral.core.clock import WallClock
from corral.model.run import Usage
from corral.node.usage import UsageHistory, usage_of
from eventually import eventually


def at(second: float) -> Usage:
    return Usage(second, second, 0.0, second, 0, 1, 0, 0)


def test_the_processes_of_a_session_are_one_run(tmp_path):
    program = (
        "import os, subprocess, sys\n"
        f"file = open({str(tmp_path / 'file')!r}, 'wb', 0); file.write(b'x' * 5_000_000); os.fsync(file.fileno())\n"
        "subprocess.run([sys.executable, '-c', 'held = bytearray(30_000_000)\\nwhile True: pass'])"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
    try:
        session = {"one": parent.pid}

        def used():
            use = usage_of(session, WallClock().now_s())["one"]
            return use if use.threads == 2 and use.memory_bytes > 30_000_000 and use.cpu_user_s > 0.1 else None

        use = eventually(used, "parent and child are counted")
        assert use.host_cpu_s > use.cpu_user_s + use.cpu_system_s
        assert use.written_bytes >= 5_000_000
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    eventually(lambda: usage_of(session, 1.0)["one"].threads == 0, "nothing of it is left")
    assert usage_of({}, 1.0) == {}


def test_an_earlier_time_is_at_least_a_second_ago():
    earlier = UsageHistory()
    assert earlier.update({"a": at(10)}, {"a"}) == {}
    assert earlier.update({"a": at(10.5)}, {"a"}) == {}
    assert earlier.update({"a": at(11)}, {"a"}) == {"a": at(10)}
    assert earlier.update({"a": at(11.5), "b": at(11.5)}, {"a", "b"}) == {"a": at(10)}
    assert earlier.update({"a": at(13)}, {"a"}) == {"a": at(11)}
    assert earlier.update({"b": at(13)}, {"b"}) == {}  # it was forgotten while it was not alive
    assert earlier.update({"a": at(15)}, {"a", "b"}) == {}
