"""Models and handlers of services are loaded in another thread, and once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from corral import aws
from corral.server.service_loading import FirstUse
from each import check_each


def test_a_slow_function_runs_once_for_each_name_and_not_on_the_event_loop() -> None:
    calls: list[tuple[str, bool]] = []
    release = threading.Event()

    def load(name: str) -> None:
        calls.append((name, threading.current_thread() is threading.main_thread()))
        release.wait()
        if name == "fails" and calls.count((name, False)) == 1:
            raise ValueError(name)

    async def run() -> None:
        first_use = FirstUse(load)
        first, second, other = (asyncio.create_task(first_use.load(name)) for name in ("a", "a", "fails"))
        while len(calls) < 2:
            await asyncio.sleep(0)
        first.cancel()  # its client has disconnected
        release.set()
        await second
        with pytest.raises(ValueError, match="fails"):
            await other
        await first_use.load("fails")
        assert first_use.done == {"a", "fails"}

    asyncio.run(run())
    assert sorted(calls) == [("a", False), ("fails", False), ("fails", False)]


def test_a_service_without_scaling_policies_loads_no_modules_of_auto_scaling() -> None:
    """The first reconciler that needs a module imports it in the lane, and all other commands of the lane wait for that."""
    program = "import sys, corral.reconcile.scaling; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "corral.reconcile.scaling" in loaded and not any(each.startswith("corral.services.autoscaling.") for each in loaded)


def test_the_service_of_a_head_is_known_without_its_model() -> None:
    heads: dict[str, tuple[dict[str, str], str, str | None]] = {
        "a target": ({"x-amz-target": "AmazonSQS.SendMessage"}, "", "sqs"),
        "a target of Corral's": ({"x-amz-target": "Corral.ec2.DescribeInstances"}, "", "ec2"),
        "an unknown target": ({"x-amz-target": "Nothing.Here"}, "", None),
        "a scope": (
            {"authorization": "AWS4-HMAC-SHA256 Credential=A/2026/us-east-1/monitoring/aws4_request, x"},
            "",
            "cloudwatch",
        ),
        "a presigned URL": ({}, "X-Amz-Credential=A%2F20260101%2Fus-east-1%2Fs3%2Faws4_request", "s3"),
        "no signature": ({}, "", None),
    }

    def check(name: str) -> None:
        headers, query, service = heads[name]
        assert aws.service_of(aws.Request("POST", "/", query, headers, b"")) == service

    check_each(heads, check)
