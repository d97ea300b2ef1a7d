"""Environment files: S3 objects that become variables, in containers and in plain processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from command import BIN
from containers.running import Containers, shell
from harness import Corral, eventually

PRINT = "env | grep ^X_ | sort"


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corral]:
    """A Corral that runs no containers."""
    running = Corral(tmp_path_factory.mktemp("corral") / "data", "none", "--runtime", "process").start()
    yield running
    running.clear()


@pytest.fixture(scope="module", params=["processes", pytest.param("corral", marks=pytest.mark.xdist_group("docker"))])
def either(request: pytest.FixtureRequest) -> Corral:
    """One Corral that runs processes, and one that runs containers."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def run(either: Corral) -> Containers:
    return Containers(either)


class Bucket:
    def __init__(self, corral: Corral) -> None:
        self.s3 = corral.client("s3")
        self.name = f"env-{uuid4().hex[:8]}"
        self.s3.create_bucket(Bucket=self.name)

    def put(self, key: str, text: str) -> dict[str, str]:
        """The member of a container definition that names the file."""
        self.s3.put_object(Bucket=self.name, Key=key, Body=text.encode())
        return self.named(key)

    def named(self, key: str) -> dict[str, str]:
        return {"type": "s3", "value": f"arn:aws:s3:::{self.name}/{key}"}


@pytest.fixture
def bucket(either: Corral) -> Bucket:
    return Bucket(either)


def test_the_lines_of_a_file(run: Containers, bucket: Bucket):
    first = bucket.put(
        "a/first.env", '# X_COMMENT=1\nX_A= a "quoted" $HOME\nX_EMPTY=\n=X_NONE\nX_ALONE\nX_B=x=y\r\nX_SAME=1\nX_T=1\nX_T=2'
    )
    second = bucket.put("second.env", "X_SAME=2\nX_OWN=file\nX_C=c\n")
    environment = [{"name": "X_OWN", "value": "definition"}]
    task = run(shell(PRINT, environmentFiles=[first, second], environment=environment))
    assert run.printed(task) == ['X_A= a "quoted" $HOME', "X_B=x=y", "X_C=c", "X_OWN=definition", "X_SAME=1", "X_T=2"]


def test_files_are_read_at_each_start(run: Containers, bucket: Bucket):
    container = shell(PRINT, environmentFiles=[bucket.put("x.env", "X_A=1")])
    family = run.show(run(container)["taskArn"])["taskDefinitionArn"]
    bucket.put("x.env", "X_A=2")
    [again] = run.ecs.run_task(taskDefinition=family)["tasks"]
    run.until(again["taskArn"], "STOPPED")
    assert run.printed(again) == ["X_A=2"]
    instead = {"name": "main", "environmentFiles": [bucket.put("y.env", "X_B=3")]}
    task = run(container, overrides={"containerOverrides": [instead]})
    assert run.printed(task) == ["X_B=3"]


def test_a_missing_object(run: Containers, bucket: Bucket):
    elsewhere = {"type": "s3", "value": "arn:aws:s3:::no-such-bucket/x.env"}
    for file, why in (
        (bucket.named("none.env"), "none.env: NoSuchKey: The specified key does not exist."),
        (elsewhere, "no-such-bucket/x.env: NoSuchBucket: The specified bucket does not exist"),
        (bucket.put("large.env", "X_A=" + 2**20 * "a"), "at most 1048576 are allowed"),
    ):
        task = run(shell(PRINT, environmentFiles=[file]))
        assert task["stopCode"] == "TaskFailedToStart"
        assert task["stoppedReason"].startswith("ResourceInitializationError: failed to download env files: "), task
        assert task["stoppedReason"].endswith(why)


@pytest.mark.parametrize(
    "files, why",
    [
        ([{"type": "s3", "value": "arn:aws:s3:::b/x.txt"}], "must have the extension .env"),
        ([{"type": "s3", "value": "s3://b/x.env"}], "is not the ARN of an S3 object"),
        ([{"type": "efs", "value": "arn:aws:s3:::b/x.env"}], "must be s3"),
        (11 * [{"type": "s3", "value": "arn:aws:s3:::b/x.env"}], "at most 10 environmentFiles"),
    ],
)
def test_refused_files(run: Containers, files: list[dict[str, Any]], why: str):
    with pytest.raises(run.ecs.exceptions.ClientException, match=why):
        run.start(shell("true", environmentFiles=files))
    with pytest.raises(run.ecs.exceptions.ClientException, match=why):
        run.start(shell("true"), overrides={"containerOverrides": [{"name": "main", "environmentFiles": files}]})


def test_execute_command_sees_the_variables_too(run: Containers, bucket: Bucket, either: Corral):
    container = shell("sleep 300", environmentFiles=[bucket.put("x.env", "X_A=1")])
    [arn] = run.start(container, enableExecuteCommand=True)
    run.until(arn)
    command = [BIN / "corral", "exec", "--data", either.data, arn.rpartition("/")[2], "--", "sh", "-c", "echo it is $X_A"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "it is 1\n", done.stderr
    run.stop(arn)


def test_a_health_check_of_a_new_agent_sees_the_variables_too(processes: Corral, tmp_path: Path):
    run = Containers(processes)
    check = {"command": ["CMD-SHELL", f"test -e {tmp_path}/new && test $X_A = 1"], "interval": 5}
    [arn] = run.start(shell("sleep 300", environmentFiles=[Bucket(processes).put("x.env", "X_A=1")], healthCheck=check))
    run.until(arn)
    processes.kill("corral.node")
    (tmp_path / "new").touch()
    eventually(lambda: run.show(arn)["healthStatus"] == "HEALTHY")
    run.stop(arn)
