"""A whole Corral with launches that cannot work, and with parts that do not respond: `status` says so, other tasks run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from command import Cli
from eventually import eventually
from harness import container, wait_stopped


@pytest.fixture
def up(own: Cli) -> Cli:
    own("up", "--detach", "--port", "0", "--gpus", "sim:1", "--runtime", "process")
    return own


def test_launches_that_cannot_work_fail_alone(up: Cli) -> None:
    ecs, s3 = up.client("ecs"), up.client("s3")
    s3.create_bucket(Bucket="settings")
    s3.put_object(Bucket="settings", Key="large.env", Body=b"A=" + b"x" * 500_000)
    s3.put_object(Bucket="settings", Key="lost.env", Body=b"B=" + b"y" * 300_000)
    for name in ("large", "lost"):
        file = {"type": "s3", "value": f"arn:aws:s3:::settings/{name}.env"}
        ecs.register_task_definition(family=name, containerDefinitions=[container(["true"], environmentFiles=[file])])
    ecs.register_task_definition(family="nul", containerDefinitions=[container(["true"], workingDirectory="/tmp/a\0b")])
    ecs.register_task_definition(family="good", containerDefinitions=[container(["sh", "-c", "exit 3"])])
    (blob,) = [path for path in Path(up.data, "blobs").rglob("*") if path.is_file() and path.stat().st_size == 300_002]
    blob.unlink()
    agent = up.pid("agent.lock")

    families = ["large", "good", "lost", "nul", "good"]
    arns = [ecs.run_task(taskDefinition=family)["tasks"][0]["taskArn"] for family in families]
    stopped = {task["taskArn"]: task for task in wait_stopped(ecs, arns)}
    reasons = [stopped[arn]["stoppedReason"] for arn in arns]
    assert "argument list too long" in reasons[0]
    assert "failed to download env files" in reasons[2] and "null byte" in reasons[3]
    assert [stopped[arn]["containers"][0].get("exitCode") for arn in arns] == [None, 3, None, None, 3]
    assert up.json("status")["problems"] == [] and up.pid("agent.lock") == agent
    assert "reconnecting" not in Path(up.data, "node", "agent.log").read_text()

    def with_override(length: int) -> str:
        """A run with overrides of so many characters as JSON."""
        value = "é" * (length - len('{"containerOverrides":[{"name":"main","environment":[{"name":"V","value":""}]}]}'))
        override = {"name": "main", "environment": [{"name": "V", "value": value}]}
        return ecs.run_task(taskDefinition="good", overrides={"containerOverrides": [override]})["tasks"][0]["taskArn"]

    assert wait_stopped(ecs, [with_override(8192)])[0]["containers"][0]["exitCode"] == 3
    with pytest.raises(ClientError, match="Container Overrides length must be at most 8192") as refused:
        with_override(8193)
    assert refused.value.response["Error"]["Code"] == "InvalidParameterException"


def test_status_says_which_part_does_not_respond(up: Cli) -> None:
    for lock, part in (("spawner.lock", "spawner"), ("agent.lock", "agent")):
        pid = up.pid(lock)
        os.kill(pid, signal.SIGSTOP)
        try:
            eventually(lambda: up.json("status")["problems"], "a problem")
            said = up("status").stdout
            assert f"PROBLEM: the {part} of host " in said and f"kill -CONT {pid}" in said
            findings = [finding for finding in up.json("doctor", code=1) if finding["level"] == "failure"]
            assert f"kill -CONT {pid}" in findings[0]["found"]
        finally:
            os.kill(pid, signal.SIGCONT)
        eventually(lambda: not up.json("status")["problems"], "no problem")


def test_damaged_files_of_the_host_are_refused_at_up(up: Cli) -> None:
    up("down")
    node = up.data / "node"
    damages = [("host.json", b'{"host'), ("host.json", b'{"host_id": ""}'), ("host.json", b"[]"), ("journal", b"nonsense\n")]
    for name, text in damages:
        good = (node / name).read_bytes() if (node / name).exists() else None
        (node / name).write_bytes(text)
        refused = up("up", "--detach", "--port", "0", "--gpus", "sim:1", code=1)
        assert str(node / name) in refused.stderr and "Restore it" in refused.stderr
        assert (node / name).read_bytes() == text
        (node / name).unlink() if good is None else (node / name).write_bytes(good)
    up("up", "--detach", "--port", "0", "--gpus", "sim:1", "--runtime", "process")
    assert up.json("status")["hosts"][0]["connected"]
