"""The processes of tests as forks (`forkserver.py`, `forks.py`)."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys

import pytest

from forkserver import folder_of

REFUSED = [sys.executable, "-m", "corral.server", "--nothing"]  # ends at once, with an error
PIPE_BYTES = 65_536


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\0\x10half of it"])
def test_a_caller_that_is_killed_before_its_request_ends_no_interpreter(sent):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(f"{folder_of('server')}/server.socket")
        caller.sendall(sent)
    assert b"is not an option" in subprocess.run(REFUSED, capture_output=True).stderr


def test_a_process_that_a_reference_cycle_drops_does_not_hinder_the_next_one():
    """A failed test leaves one in its traceback."""
    reader, writer = os.pipe()
    os.write(writer, bytes(PIPE_BYTES))  # the pipe is full: the process waits
    dropped = subprocess.Popen(REFUSED, stderr=writer)
    dropped.itself = dropped
    del dropped
    gc.collect()
    assert b"is not an option" in subprocess.run(REFUSED, capture_output=True).stderr
    os.close(writer)
    os.close(reader)  # ends the process
