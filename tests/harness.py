"""A real Corral for tests: its own data folder, its own port, and ways to kill any part of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
from botocore.awsrequest import AWSHTTPConnectionPool
from botocore.config import Config

import forkserver
from answers.recorder import follow_clients, handled
from command import command_lines, living_in, parent_of
from corral.aws.models import OWN_DATA
from corral.cli.client.endpoint import Endpoint, call
from engines.nodes import remove_cgroups
from eventually import eventually
from ports import free_port

REGION = "us-east-1"
DEADLINE_S = 30.0
REUSED_MAX_S = 30.0
CANARY = {"CORRAL_TEST_SECRET": "of the server alone"}  # in its environment: no task may see it

follow_clients()
# Clients of one session share the service models, which take 0.1 s to load. Making a client is not thread-safe.
SESSION = boto3.session.Session()
SESSION._session.get_component("data_loader").search_paths.insert(0, str(OWN_DATA))  # the model of Corral's own operations
MAKING_A_CLIENT = threading.Lock()

__all__ = ["CANARY", "Corral", "container", "eventually", "files_with", "wait_stopped"]


class RecentConnections(AWSHTTPConnectionPool):
    """Replaces connections that were idle for long.

    A server closes a connection that is idle for 75 s. A request that a client sends at this moment fails, and the clients of tests
    do not retry, so that tests find requests that the server fails to answer.
    """

    def _put_conn(self, conn: Any) -> None:
        if conn is not None:
            conn.idle_since = time.monotonic()
        super()._put_conn(conn)

    def _get_conn(self, timeout: float | None = None) -> Any:
        conn = super()._get_conn(timeout)
        if time.monotonic() - getattr(conn, "idle_since", float("inf")) > REUSED_MAX_S:
            conn.close()  # the next request opens another one
        return conn


class Corral:
    def __init__(self, data: Path, gpus: str = "sim:2", *options: str, environment: dict[str, str] | None = None) -> None:
        self.data = data
        self._environment = CANARY | (environment or {})
        self._command = [sys.executable, "-m", "corral.server", "--data", str(data), "--gpus", gpus, *options]
        self.port, self.console_port = str(free_port()), str(free_port())  # a restart keeps them: tasks and browsers know them
        self.process: subprocess.Popen[bytes] | None = None
        self._clients: dict[tuple[str, ...], Any] = {}

    def start(self) -> Corral:
        reader, writer = os.pipe()
        log = open(self.data.parent / f"{self.data.name}.log", "ab")  # noqa: SIM115
        with log:
            self.process = subprocess.Popen(
                [*self._command, "--port", self.port, "--console-port", self.console_port, "--ready-fd", str(writer)],
                pass_fds=(writer,),
                stdout=log,
                stderr=log,
                env=os.environ | self._environment,
            )
        os.close(writer)
        with open(reader) as ready:
            line = ready.readline()
        assert line, f"the server did not start: {self.log()[-2000:]}"
        return self

    def log(self) -> str:
        return (self.data.parent / f"{self.data.name}.log").read_text()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def keys(self) -> dict[str, str]:
        return json.loads((self.data / "credentials.json").read_text())

    @property
    def host_id(self) -> str:
        """This machine's, as this Corral calls it."""
        return json.loads((self.data / "node" / "host.json").read_text())["host_id"]

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        return kept | {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.keys["access_key"],
            "AWS_SECRET_ACCESS_KEY": self.keys["secret_key"],
            "AWS_DEFAULT_REGION": REGION,
        }

    def client(self, service: str, region: str = REGION, **options: Any) -> Any:
        """Return a boto3 client. Tests share it, because making one takes up to 30 ms."""
        key = (service, region, repr(options), self.url, self.keys["access_key"])
        if key not in self._clients:
            self._clients[key] = self.new_client(service, region, **options)
        return self._clients[key]

    def own(self, operation: str, **params: Any) -> dict[str, Any]:
        """Call one of Corral's own operations as the command line does. Unlike boto3, this keeps members that are null."""
        endpoint = Endpoint(self.url, REGION, self.keys["access_key"], self.keys["secret_key"])
        return handled("corral", operation, lambda: call(endpoint, operation, params)[0])

    def new_client(self, service: str, region: str = REGION, **options: Any) -> Any:
        """Return a client that no other test has, for a test that changes it."""
        keys = self.keys
        with MAKING_A_CLIENT:
            client = SESSION.client(
                service,
                region_name=region,
                endpoint_url=self.url,
                aws_access_key_id=keys["access_key"],
                aws_secret_access_key=keys["secret_key"],
                config=Config(retries={"max_attempts": 0}, max_pool_connections=64, **options),
            )
        client._endpoint.http_session._manager.pool_classes_by_scheme["http"] = RecentConnections
        return client

    def group(self, name: str, type_: str = "g5.xlarge", most: int = 4, **more: Any) -> str:
        """Create an Auto Scaling group without instances, and return its ARN."""
        autoscaling = self.client("autoscaling")
        autoscaling.create_launch_configuration(LaunchConfigurationName=name, ImageId="ami-0123456789abcdef0", InstanceType=type_)
        given = {"LaunchConfigurationName": name, "AvailabilityZones": [f"{REGION}a"], "MinSize": 0, "MaxSize": most, **more}
        autoscaling.create_auto_scaling_group(AutoScalingGroupName=name, **given)
        [group] = autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return str(group["AutoScalingGroupARN"])

    def aws(self, *arguments: str) -> Any:
        """The stock aws command; its JSON output."""
        command = [forkserver.program("aws"), "--output", "json", *arguments]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"aws {' '.join(arguments)}: {done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else None

    def stop_tasks(self) -> None:
        """Stop every task and wait until all have stopped, so that the next test finds a machine without tasks."""
        ecs = self.client("ecs")
        listed = [arn for desired in ("RUNNING", "STOPPED") for arn in ecs.list_tasks(desiredStatus=desired)["taskArns"]]
        unfinished = [arn for arn in listed if ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] != "STOPPED"]
        for arn in unfinished:
            ecs.stop_task(task=arn)
        if unfinished:
            wait_stopped(ecs, unfinished)

    def processes(self, module: str) -> list[int]:
        """Ids of this Corral's processes of one kind: corral.server, corral.node, corral.node.spawner.

        The child of a spawner looks like the spawner until it executes the program of its run. It is left out.
        """
        data, name = str(self.data).encode(), b"\0" + module.encode() + b"\0"
        found = {pid: parent_of(pid) for pid, line in command_lines() if data in line and name in line}
        return [pid for pid, parent in found.items() if parent not in found]

    def kill(self, *modules: str) -> None:
        """kill -9."""
        for module in modules:
            for pid in self.processes(module):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if "corral.server" in modules and self.process is not None:
            self.process.wait()

    def stop(self) -> None:
        """The orderly way."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=DEADLINE_S)

    def clear(self) -> None:
        """End everything of this Corral, tasks too, whatever state it is in."""
        self.kill("corral.server", "corral.node", "corral.node.spawner")
        for pid in living_in(self.data):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove_cgroups(self.data / "node")


def container(command: list[str], gpus: int = 0, log_prefix: str | None = None, **more: Any) -> dict[str, Any]:
    """A container definition as people write it. `memory` is a hard limit, which Python programs would exceed."""
    size = {"memoryReservation": 16} if command and "python" in command[0] else {"memory": 16}
    definition: dict[str, Any] = {"name": "main", "image": "corral/host", "command": command, **size, **more}
    if gpus:
        definition["resourceRequirements"] = [{"type": "GPU", "value": str(gpus)}]
    if log_prefix:
        definition["logConfiguration"] = {
            "logDriver": "awslogs",
            "options": {"awslogs-group": "/tests", "awslogs-create-group": "true", "awslogs-stream-prefix": log_prefix},
        }
    return definition


def files_with(folder: Path, text: str) -> list[Path]:
    """Return the files that contain a text. Meanwhile, servers and agents may delete files."""
    found = []
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file() and text.encode() in path.read_bytes():
                    found.append(path)
    return found


def wait_stopped(ecs: Any, arns: list[str], within_s: float = DEADLINE_S) -> list[dict[str, Any]]:
    def all_stopped() -> Any:
        tasks = [task for at in range(0, len(arns), 100) for task in ecs.describe_tasks(tasks=arns[at : at + 100])["tasks"]]
        return tasks if all(task["lastStatus"] == "STOPPED" for task in tasks) and len(tasks) == len(arns) else None

    return eventually(all_stopped, f"{len(arns)} tasks stopped", within_s)
