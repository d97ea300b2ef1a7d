"""A host is copied, forgotten while it is away, and returns: nothing of its tasks has an effect after they were given up."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from corral.cli.printing.errors import CliError
from corral.model.instance import host_instance_id
from corral.model.stop_reasons import FENCED
from harness import eventually
from hosts.joined import Server, running_server

ZOMBIE = Path(__file__).parent / "zombie.py"
FENCE = "corral:fence-after"
HERE, OTHER = "machine-id=here", ("--machine", "machine-id=other", "--boot-id", "other")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server") / "data", "none") as running:
        yield running


def test_a_host_is_copied_fenced_forgotten_and_drained(server: Server, tmp_path: Path) -> None:
    s3, sqs, ecs = (server.corral.client(name) for name in ("s3", "sqs", "ecs"))
    s3.create_bucket(Bucket="life")
    queue = sqs.create_queue(QueueName="life", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
    sqs.send_message(QueueUrl=queue, MessageBody="work")
    host = server.host(tmp_path / "real", "real")
    assert host.join(server.token(), "--machine", HERE).returncode == 0
    host.start("--machine", HERE)
    server.wait_until_up("real")
    result = tmp_path / "result"
    task = server.run([sys.executable, str(ZOMBIE), "life", queue, str(result)], gpus=2)

    def keys() -> set[str]:
        return {each["Key"] for each in s3.list_objects_v2(Bucket="life").get("Contents", ())}

    eventually(lambda: "ready" in keys(), "the task works")
    dead = server.host(tmp_path / "dead", "dead").joined().start()
    server.wait_until_up("dead")
    fenced = {name: start_fenced(server, tmp_path, name) for name in ("real", "dead")}
    with pytest.raises(ClientError, match="fence-after must be a number of seconds from 10"):
        server.run(["true"], tags={FENCE: "soon"})

    copy = server.host(tmp_path / "copy", "copy")
    shutil.copytree(host.folder, copy.folder, ignore=lambda folder, names: [name for name in names if name.endswith(".sock")])
    copy.start(*OTHER)
    eventually(lambda: "corral join --new" in copy.log(), "the copy is refused")
    assert "another machine" in server.described("real")["reason"]
    assert (server.described("real")["state"], server.state(task)) == ("UP", "RUNNING")
    copy.kill("corral.node")
    with pytest.raises(CliError, match="is connected"):
        server.corral.own("ForgetHost", host="real")

    [agent] = host.pids("corral.node")
    os.kill(agent, signal.SIGSTOP)
    dead.kill("corral.node")
    eventually(lambda: server.described("real")["state"] == "SILENT", "the host is silent", 60.0)
    refusals = copy.log().count("corral join --new")
    copy.start(*OTHER)  # also while the real host is away
    with pytest.raises(CliError, match="tasks with a fence"):
        server.corral.own("ForgetHost", host="real")
    server.corral.own("ForgetHost", host="real", now=True)
    [stopped] = ecs.describe_tasks(tasks=[task])["tasks"]
    assert stopped["lastStatus"] == "STOPPED" and "forget" in stopped["stoppedReason"]
    assert server.described("real") == {}
    found = json.loads(eventually(lambda: result.exists() and result.read_text(), "the task was refused"))
    assert (found["put"], found["delete"]) == ("ExpiredToken", "ExpiredToken"), found
    assert found["upload"] not in (200, 204), found
    assert "begun" not in keys()
    eventually(lambda: copy.log().count("corral join --new") > refusals, "the copy is refused again")
    copy.end()

    eventually(lambda: not any(is_alive(each["fenced"]) for each in fenced.values()), "the fences end their tasks")
    assert all(is_alive(each["free"]) for each in fenced.values())
    dead.start()
    waiting = server.run(["sh", "-c", f"test ! -e /proc/{living(ZOMBIE)}"], gpus=2, host="real")
    os.kill(agent, signal.SIGCONT)
    server.wait(waiting, "STOPPED")
    [ended] = ecs.describe_tasks(tasks=[waiting])["tasks"]
    assert ended["containers"][0]["exitCode"] == 0, "it has started while the old task was alive"
    assert server.described("real")["state"] == "UP"

    assert not is_alive(fenced["real"]["free"]) and is_alive(fenced["dead"]["free"])

    def reasons() -> list[str | None]:
        tasks = ecs.list_tasks(desiredStatus="STOPPED")["taskArns"]
        return [task["containers"][0].get("reason") for task in ecs.describe_tasks(tasks=tasks)["tasks"]]

    eventually(lambda: FENCED in reasons(), "the host reports what its fence has ended")
    copied = copy.join(server.token(), "--new", "true", *OTHER[:2])
    assert copied.returncode == 0 and copy.host_id != host.host_id, copied.stderr
    copy.start(*OTHER)
    server.wait_until_up("copy")
    for name in ("real", "dead"):
        server.corral.own("DrainHost", host=name, deadline=0.0)
    eventually(lambda: not is_alive(fenced["dead"]["free"]), "the drain stops the task")
    placed = server.run(["true"], gpus=2)
    server.wait(placed, "STOPPED")
    [where] = ecs.describe_tasks(tasks=[placed])["tasks"]
    assert where["containerInstanceArn"].rpartition("/")[2] == host_instance_id(copy.host_id), "the other hosts are drained"


def start_fenced(server: Server, folder: Path, name: str) -> dict[str, int]:
    """Start a task with a fence and one without on a host. Return their processes."""
    script = "echo $$ > {0}.new; mv {0}.new {0}; exec sleep 600"
    for kind, tags in (("fenced", {FENCE: "10"}), ("free", {})):
        server.run(["sh", "-c", script.format(folder / f"{name}-{kind}")], host=name, tags=tags)
    files = {kind: folder / f"{name}-{kind}" for kind in ("fenced", "free")}
    return {kind: int(eventually(lambda: path.exists() and path.read_text(), path.name)) for kind, path in files.items()}  # noqa: B023


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def living(program: Path) -> int:
    """The process of a program."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(program).encode() in (path / "cmdline").read_bytes().split(b"\0"):
                return int(path.name)
        except OSError:
            continue
    raise AssertionError(f"{program} does not run")
