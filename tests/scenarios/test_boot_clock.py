"""A real server in a time namespace: the boot-time clock is an hour later than after its last start, and the wall clock is not."""

from __future__ import annotations

import subprocess
import time

import pytest

from command import BIN, Cli

UP = ("up", "--detach", "--port", "0", "--gpus", "none", "--runtime", "process")
LATER = ("unshare", "--time", "--boottime", "3600", "--monotonic", "3600", "--fork")


def test_a_visibility_timeout_follows_the_boot_time_clock_across_a_restart(own: Cli) -> None:
    if subprocess.run([*LATER, "true"], capture_output=True).returncode:
        pytest.skip("no time namespaces")
    own(*UP)
    sqs = own.client("sqs")
    url = sqs.create_queue(QueueName="q", Attributes={"VisibilityTimeout": "1800"})["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="m")
    assert sqs.receive_message(QueueUrl=url)["Messages"]
    own("down")
    subprocess.run([*LATER, f"{BIN}/corral", *UP], env=own.environment, cwd=own.home, check=True, timeout=120, capture_output=True)
    [again] = own.client("sqs").receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])["Messages"]
    for name in ("SentTimestamp", "ApproximateFirstReceiveTimestamp"):
        assert abs(int(again["Attributes"][name]) / 1000 - time.time()) < 600, "responses have wall times"
