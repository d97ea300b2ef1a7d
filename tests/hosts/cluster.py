"""A server on this machine, and hosts in a lab that join it. Their workers count their work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import corral
from command import BIN, Cli
from corral.access import sessions
from corral.model.agent_protocol import PROTOCOL
from corral.model.principal import role_session
from eventually import eventually
from harness import Corral, container
from hosts.lab import Lab, Machine
from ports import free_port

WORKER = Path(__file__).parent / "worker.py"
ROLE = "arn:aws:iam::123456789012:role/worker"
BUCKET, GROUP = "lab", "/tests"
TYPES = ("p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "g4dn.xlarge", "g4dn.12xlarge", "g5.xlarge", "g5.12xlarge", "p4d.24xlarge")

# Sends a request through the gateway and waits until the connection ends. Then no other request is answered.
UNTIL_CLOSED = """
import socket, sys
def ask():
    connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    connection.settimeout(30)
    connection.sendall(b"GET /_corral/health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    try:
        return connection, connection.recv(4096)
    except ConnectionError:
        return connection, b""
connection, first = ask()
assert first.startswith(b"HTTP/1.1 200"), first
print("open", flush=True)
try:
    assert not connection.recv(1)
except ConnectionError:
    pass
assert not ask()[1]
print("closed", flush=True)
"""
# Stores an object and reads it by a presigned URL.
THROUGH_TLS = """
import boto3, os, ssl, urllib.request
s3, body = boto3.client("s3"), os.urandom(3_000_000)
s3.put_object(Bucket="lab", Key="through-tls", Body=body)
url = s3.generate_presigned_url("get_object", Params={"Bucket": "lab", "Key": "through-tls"})
tls = ssl.create_default_context(cafile=os.environ["AWS_CA_BUNDLE"])
assert urllib.request.urlopen(url, context=tls).read() == body
print(url)
"""
LIST_ROLES = """
import boto3, botocore.exceptions
try:
    boto3.client("iam").list_roles()
    print("allowed")
except botocore.exceptions.ClientError as error:
    print(error.response["Error"]["Code"])
"""
WITHOUT_CERTIFICATE = """
import socket, ssl, sys
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
tls.set_alpn_protocols(["corral-gateway/1"])
answer = b""
try:
    connection = tls.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2]))))
    connection.settimeout(30)
    connection.sendall(b"GET /_corral/health HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    while data := connection.recv(4096):
        answer += data
except ConnectionError:
    pass
assert b"HTTP/1.1 200" not in answer, answer
"""


def other_version(folder: Path, version: str, protocol: int) -> dict[str, str]:
    """Make a copy of Corral with another version and another number of the protocol. Return the environment that uses it."""
    package, copy = Path(corral.__file__).parent, folder / "corral"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for path, before, after in (
        (copy / "__init__.py", corral.__version__, version),
        (copy / "model" / "agent_protocol.py", f"\nPROTOCOL = {PROTOCOL} ", f"\nPROTOCOL = {protocol} "),
    ):
        text = path.read_text()
        assert before in text, path
        path.write_text(text.replace(before, after))
    (copy / "commit.txt").write_text("0" * 40)
    return {"PYTHONPATH": str(folder)}


class Cluster:
    """A server with its door on the network of the lab, and hosts that join it."""

    def __init__(self, folder: Path, lab: Lab, *more: str, settings: str = "", environment: dict[str, str] | None = None) -> None:
        """`more` are options of the server, `settings` is the text of corral.toml, and `environment` is of the server."""
        self.folder = folder
        self._types: dict[str, str] = {}  # name of a machine → its instance type, by which a placement constraint chooses it
        self.lab = lab
        self.cli = Cli(folder)
        self.door_port = free_port(lab.address)
        if settings:
            self.cli.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            (self.cli.data / "corral.toml").write_text(settings)
        options = ("--runtime", "process", "--door", f"{lab.address}:{self.door_port}")
        self.corral = Corral(self.cli.data, "none", *options, *more, environment=environment).start()
        self.ecs, self.s3, self.logs = (self.corral.client(name) for name in ("ecs", "s3", "logs"))
        self.s3.create_bucket(Bucket=BUCKET)

    def token(self, *options: str) -> dict[str, Any]:
        return self.cli.json("token", "create", *options)

    def join(
        self, machine: Machine, token: dict[str, Any] | None = None, *options: str, environment: dict[str, str] | None = None
    ) -> None:
        """Run `corral join` on a machine until it is killed. Without a token, it continues."""
        self._types.setdefault(machine.name, TYPES[len(self._types)])
        words = [str(BIN / "corral"), "join", "--data", str(self.folder / machine.name), "--gpus", "sim:2", "--runtime", "process"]
        words += ["--instance-type", self._types[machine.name]]
        words += [token["address"], "--token", token["token"], "--name", machine.name] if token else []
        machine.start(*words, *options, log=self.folder / f"{machine.name}.log", environment=environment)

    def state(self, machine: Machine) -> str | None:
        found = self.corral.own("DescribeHosts")["hosts"]
        return next((host["state"] for host in found if host["name"] == machine.name), None)

    def until(self, machine: Machine, state: str) -> None:
        eventually(lambda: self.state(machine) == state, f"{machine.name} {state}")

    def work(self, machine: Machine, command: list[str] | None = None) -> str:
        """Start a task on a machine, and return its ARN."""
        words = command or [sys.executable, str(WORKER), BUCKET, machine.name]
        main = container(words, log_prefix="lab")
        self.ecs.register_task_definition(family=machine.name, taskRoleArn=ROLE, containerDefinitions=[main])
        there = [{"type": "memberOf", "expression": f"attribute:ecs.instance-type == {self._types[machine.name]}"}]
        placed = self.ecs.run_task(taskDefinition=machine.name, placementConstraints=there, enableExecuteCommand=True)
        assert not placed["failures"], placed
        return str(placed["tasks"][0]["taskArn"])

    def lines(self, task: str) -> list[str]:
        """Return the lines that a task has printed so far. Its log begins with the first of them."""
        stream, found, more = f"lab/main/{task.rpartition('/')[2]}", list[str](), dict[str, str]()
        while True:
            try:
                page = self.logs.get_log_events(logGroupName=GROUP, logStreamName=stream, startFromHead=True, **more)
            except self.logs.exceptions.ResourceNotFoundException:
                return []
            if not page["events"]:
                return found
            found += [event["message"] for event in page["events"]]
            more = {"nextToken": page["nextForwardToken"]}

    def first_line(self, task: str) -> dict[str, Any]:
        return json.loads(eventually(lambda: self.lines(task), "the first line of a worker")[0])  # type: ignore[no-any-return]

    def check_first_line(self, machine: Machine, task: str) -> None:
        """Check what the worker has found at the addresses of the server: all of them lead through the gateway."""
        assert self.first_line(task) == {
            "host": machine.name,
            "endpoint": self.corral.url,
            "role": f"arn:aws:sts::123456789012:assumed-role/worker/{task.rpartition('/')[2]}",
            "large": True,
            "metadata": task,
        }

    def check_source(self, machine: Machine, other: Machine, task: str) -> None:
        """For policies, requests through a gateway come from the address of its host. `task` is a running task.

        Policies apply to tasks in containers, so the requests have the credentials of such a task.
        """
        iam, task_id = self.corral.client("iam"), task.rpartition("/")[2]
        here = {
            "Effect": "Allow",
            "Action": "iam:ListRoles",
            "Resource": "*",
            "Condition": {"IpAddress": {"aws:SourceIp": machine.address}},
        }
        trust = {"Effect": "Allow", "Principal": {"Service": "ecs-tasks.amazonaws.com"}, "Action": "sts:AssumeRole"}
        documents = [json.dumps({"Version": "2012-10-17", "Statement": [each]}) for each in (trust, here)]
        iam.create_role(RoleName="here", AssumeRolePolicyDocument=documents[0])
        iam.put_role_policy(RoleName="here", PolicyName="own", PolicyDocument=documents[1])
        key = bytes.fromhex(json.loads((self.corral.data / "sessions.json").read_text())["key"])
        principal = role_session("123456789012", "here", task_id, "root")
        made = sessions.issue(key, b"inside", principal, 4_000_000_000, task_id, confined=True)
        credentials = {
            "AWS_ACCESS_KEY_ID": made.session.access_key_id, "AWS_SECRET_ACCESS_KEY": made.secret_key,
            "AWS_SESSION_TOKEN": made.token, "AWS_ENDPOINT_URL": self.corral.url, "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip
        asked = [each.run(sys.executable, "-c", LIST_ROLES, environment=credentials).strip() for each in (machine, other)]
        assert asked == ["allowed", "AccessDenied"], asked

    def check_exec(self, machine: Machine, task: str) -> None:
        assert self.cli("exec", task.rpartition("/")[2], "--", "hostname").stdout == f"{machine.name}\n"

    def check_tls(self, machine: Machine) -> None:
        """Use the API from another machine: with TLS, and not without it."""
        url = f"https://{self.lab.address}:{self.corral.url.rpartition(':')[2]}"
        variables = {**self.corral.environment, "AWS_ENDPOINT_URL": url, "AWS_CA_BUNDLE": str(self.cli.data / "door" / "ca.pem")}
        assert url in machine.run(sys.executable, "-c", THROUGH_TLS, environment=variables)
        words = str(BIN / "corral"), "ps"
        assert machine.run(*words, environment=variables)
        plain = {**variables, "AWS_ENDPOINT_URL": url.replace("https", "http")}
        with pytest.raises(AssertionError, match="answers other machines with TLS only: use https://"):
            machine.run(*words, environment=plain)

    def check_stranger(self, machine: Machine) -> None:
        """Without a certificate, no request is served."""
        machine.run(sys.executable, "-c", WITHOUT_CERTIFICATE, self.lab.address, str(self.door_port))

    def check_revoked(self, machine: Machine) -> None:
        """Revoke a host. Its open connections through the gateway end, and it gets no new ones."""
        asking = machine.command(sys.executable, "-c", UNTIL_CLOSED, self.corral.url.rpartition(":")[2])
        with subprocess.Popen(asking, stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            assert watching.stdout.readline() == "open\n"
            self.cli("hosts", "revoke", machine.name)
            assert watching.communicate(timeout=60)[0] == "closed\n"

    def objects(self, machine: Machine) -> list[str]:
        pages = self.s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{machine.name}/done/")
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def until_works(self, *machines: Machine) -> None:
        """Wait until the worker of each machine has stored another object."""
        for machine, before in [(machine, len(self.objects(machine))) for machine in machines]:
            eventually(lambda: len(self.objects(machine)) > before, f"work on {machine.name}")  # noqa: B023

    def stop(self, machine: Machine) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=f"{machine.name}/stop")

    def until_stopped(self, machine: Machine, task: str) -> None:
        def has_stopped() -> bool:
            [found] = self.ecs.describe_tasks(tasks=[task])["tasks"]
            return bool(found["lastStatus"] == "STOPPED")

        eventually(has_stopped, f"the end of a task on {machine.name}")

    def check_all(self, machine: Machine, task: str) -> None:
        """Check that the log of an ended worker has each line once, and that the bucket has each object."""
        lines = self.lines(task)[1:]
        ends = [line.split(" ") for line in lines[-2:]]
        assert [word for word, _ in ends] == ["lines", "objects"]
        printed, stored = (int(number) for _, number in ends)
        assert lines[:-2] == [f"line {number}" for number in range(printed)]
        assert self.objects(machine) == [f"{machine.name}/done/{number:06}" for number in range(stored)]
