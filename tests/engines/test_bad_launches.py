"""Launches that cannot work: each fails its own run with a reason, and other runs start."""

from __future__ import annotations

import os
import signal
from itertools import pairwise

import msgspec
import pytest

from corral.model.agent_protocol import START_MAX_BYTES
from corral.model.run import RunSpec
from corral.node.process_engine import RESTART_MAX_S, RESTART_MIN_S, restart_wait_s
from corral.server.agents.orders import ORDERS_BYTES, encode_starts, order_messages
from engines.drivers import Driver
from engines.nodes import is_running, kill, shell, spec
from eventually import eventually

MIB = 2**20


@pytest.mark.parametrize(
    "bad, reason",
    [
        ({"working_directory": "/tmp/a\0b"}, "null byte"),
        ({"working_directory": "/nowhere"}, "does not exist"),
        ({"working_directory": "/" + "x" * 5000}, "name too long"),
        ({"environment": {"LARGE": "x" * (9 * MIB)}}, "bytes; at most"),
        ({"environment": {f"V{i}": "x" * 100_000 for i in range(60)}}, "argument list too long"),
        ({"environment": {"A": "\ud800"}}, "CannotStartContainerError"),
        ({"command": ["x" * MIB]}, "CannotStartContainerError"),
    ],
)
def test_a_launch_that_cannot_work_fails_alone(process_driver: Driver, bad: dict, reason: str) -> None:
    driver, first = process_driver, process_driver.node.spawner_pid()
    launch = msgspec.structs.replace(shell("bad", "true"), **bad)
    driver.engine.start([shell("before", "exit 3"), launch, shell("after", "exit 4")])
    assert driver.ended("after").observed.exit_code == 4
    assert driver.ended("before").observed.exit_code == 3
    observed = driver.ended("bad").observed
    assert observed.started_at_s is None and reason in observed.reason and len(observed.reason) < 1000
    assert driver.node.spawner_pid() == first and driver.run(shell("later", "exit 5")).observed.exit_code == 5
    driver.engine.forget(["bad"])
    assert not (driver.node.node / "output" / "bad").exists() or driver.run(shell("last", "true"))


def test_a_stopped_spawner_is_reported_until_it_continues(process_driver: Driver) -> None:
    pid = process_driver.node.spawner_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        process_driver.until(lambda: process_driver.engine.problem, "a problem")
        assert process_driver.engine.problem == f"does not respond: process {pid} is stopped; continue it with `kill -CONT {pid}`"
    finally:
        os.kill(pid, signal.SIGCONT)
    process_driver.until(lambda: not process_driver.engine.problem, "no problem")
    assert process_driver.run(shell("one", "exit 3")).observed.exit_code == 3


def test_a_spawner_that_dies_again_and_again_is_restarted_later_and_later() -> None:
    waits = [0.0]
    while waits[-1] < RESTART_MAX_S:
        waits.append(restart_wait_s(waits[-1], lived_s=0.1))
    assert waits[1] == RESTART_MIN_S
    assert all(after >= 2 * before or after == RESTART_MAX_S for before, after in pairwise(waits))
    assert restart_wait_s(RESTART_MAX_S, lived_s=0.1) == RESTART_MAX_S
    assert restart_wait_s(RESTART_MAX_S, lived_s=3600.0) == 0.0


def test_runs_survive_the_loss_of_the_journal(process_driver: Driver) -> None:
    """Who follows the advice to move a damaged journal away loses no live run, and no GPU is promised twice."""
    driver = process_driver
    driver.engine.start([shell("one", "echo up; exec sleep 300")])
    driver.printed("one", "up")
    pid = driver.started("one").observed.pid
    first = driver.node.spawner_pid()
    (driver.node.node / "journal").unlink()
    kill(first)
    driver.until(lambda: driver.node.spawner_pid() != first, "another spawner")
    driver.engine.stop(["one"])
    assert driver.ended("one").observed.pid == pid
    eventually(lambda: not is_running(pid), "ended")


def test_orders_that_cannot_be_sent_are_refused_one_by_one() -> None:
    good = [spec(f"good{i}", "true", environment={"A": "x" * MIB}) for i in range(9)]
    bad = [spec("surrogate", "true", environment={"A": "\ud800"}), spec("large", "true", environment={"A": "x" * START_MAX_BYTES})]
    encoded, refused = encode_starts([*good[:4], *bad, *good[4:]])
    assert refused.keys() == {"surrogate", "large"} and str(START_MAX_BYTES) in refused["large"]
    messages = list(order_messages(encoded, ["good1"], [], []))
    assert all(len(msgspec.json.encode(message)) <= ORDERS_BYTES + 1000 for message in messages) and len(messages) == 3
    sent = [msgspec.json.decode(start, type=RunSpec).run_id for message in messages for start in message["start"]]
    assert sent == [each.run_id for each in good]
    assert "stop" not in messages[0] and messages[-1]["stop"] == ["good1"]
