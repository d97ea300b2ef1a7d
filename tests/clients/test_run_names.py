"""Names of runs: any text, the name of the script by default, and commands that find runs by name, id or glob."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from clients.test_cli_machine import completed
from command import UNTIL_TOLD, Cli
from corral.cli.runs.names import check_name, default_name, family_of
from eventually import eventually
from harness import container


@pytest.mark.parametrize(
    "command, name",
    [
        ("python train.py --lr 0.1", "train"),
        ("/usr/bin/python3.11 -u lab/train_v2.0.py", "train_v2.0"),
        ("python -m lab.train --lr 1", "lab.train"),
        ("python -c code.py", "python"),
        ("sh -ec true.sh", "sh"),
        ("bash run.sh a.py", "run"),
        ("./sweep.sh", "sweep"),
        ("torchrun --nproc-per-node 4 train.py", "train"),
        ("uv run --with torch train.py", "train"),
        ("nvidia-smi -q", "nvidia-smi"),
        ("python", "python"),
        ("./a(b)", "a-b"),
    ],
)
def test_the_default_name_is_the_script(command: str, name: str) -> None:
    assert default_name(command.split()) == name
    check_name(default_name(command.split()))


def test_every_name_has_a_family() -> None:
    for name in ("lr0.1", "größe 7", "a/b:c=d+e@f", "...", "x" * 255):
        check_name(name)
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,255}", family_of(name))
    assert (family_of("lr0.1"), family_of("plain_name-2")) == ("lr0-1", "plain_name-2")
    for name in ("", " ", "a\nb", "a\x1b[0m", "lr*", "x" * 256, "aws:x", "-x", "x ", "d" * 32, "arn:x"):
        with pytest.raises(click.BadParameter):
            check_name(name)


def test_commands_find_runs_by_name_glob_and_beginning_of_the_id(cli: Cli) -> None:
    first = cli.start_task("--name", "lr0.1", "--", "sh", "-c", UNTIL_TOLD, family="lr0-1")
    other = cli.start_task("--name", "lr0-1", "--", "sh", "-c", UNTIL_TOLD, family="lr0-1")  # the same family, another name
    second = cli.start_task("--name", "lr0.1", "--", "sh", "-c", UNTIL_TOLD, family="lr0-1")
    third = cli.start_task("--gpus", "1", "--name", "lr0.2", "--", "sh", "-c", UNTIL_TOLD, family="lr0-2")
    task = cli.client("ecs").describe_tasks(tasks=[first], include=["TAGS"])["tasks"][0]
    assert task["taskDefinitionArn"].rpartition("/")[2].startswith("lr0-1:")
    assert {"key": "corral:name", "value": "lr0.1"} in task["tags"]
    listed = {line.split()[0]: line.split()[1] for line in cli("ps", "lr*").stdout.splitlines()[1:]}
    assert {first[:8]: "lr0.1", second[:8]: "lr0.1", third[:8]: "lr0.2"}.items() <= listed.items()
    assert [row["taskArn"].rpartition("/")[2] for row in cli.json("ps", "lr0.1")] == [first, second]
    assert [row["taskArn"].rpartition("/")[2] for row in cli.json("ps", third[:6])] == [third]
    assert cli("ps", "nothing").stdout.startswith("No tasks.")

    shown = cli("logs", "lr0.1")
    assert shown.stdout == "ready\n"
    assert shown.stderr == f"corral: 2 tasks have the name lr0.1: using the latest, {second[:8]}\n"
    assert cli("logs", "lr0-1").stderr == ""
    assert set(cli("logs", "lr0.?").stdout.splitlines()) == {"lr0.1 | ready", "lr0.2 | ready"}
    assert cli("exec", "lr0.2", "--", "echo", "inside").stdout.strip() == "inside"
    for text in (cli("top", "--once").stdout, cli("status").stdout):
        assert f"{third[:8]} lr0.2" in text
    assert set(completed(cli, "stop", "lr0.")) == {"lr0.1", "lr0.2"}

    stopped = cli("stop", "--wait", "lr0.1")
    assert stopped.stdout == f"{second[:8]} has stopped\n" and "using the latest" in stopped.stderr
    assert cli("stop", "--wait", "lr0.1").stdout == f"{first[:8]} has stopped\n"  # the stopped one is no candidate
    assert set(completed(cli, "stop", "lr0.")) == {"lr0.2"} and "lr0.1" in completed(cli, "logs", "lr0.")
    assert set(cli("stop", "--wait", "lr0*").stdout.splitlines()) == {f"{each[:8]} has stopped" for each in (other, third)}
    assert "no task that has not stopped has a name that matches lr0*" in cli("stop", "lr0*", code=1).stderr
    assert "no task has the name 'lr9.9': `corral ps --all`" in cli("stop", "lr9.9", code=1).stderr
    assert "is not a name" in cli("run", "--name", "a,b", "--", "true", code=2).stderr


def test_wait_ends_with_the_exit_code(cli: Cli) -> None:
    script = "while [ ! -e {0} ]; do sleep 0.05; done; exit {1}"
    for number, name in enumerate(("wait.0", "wait.3")):
        cli("run", "-d", "--name", name, "--", "sh", "-c", script.format(name, 3 * number))
    waiting = cli.begin("wait", "wait.0", "wait.3")
    only = cli.begin("wait", "wait.0")
    (cli.home / "wait.0").touch()
    assert only.end()[0] == 0 and waiting.process.poll() is None
    (cli.home / "wait.3").touch()
    assert waiting.end() == (3, "", "")
    assert [task["containers"][0]["exitCode"] for task in cli.json("wait", "wait.?", code=3)] == [0, 3]
    assert cli("wait", "--cluster", "default", "nothing", code=1).stderr


def test_the_script_names_its_run(cli: Cli) -> None:
    Path(cli.home / "my.train.py").write_text("print('trained')\n")
    cli("run", "--", "python3", "my.train.py")
    assert cli("logs", "my.train").stdout == "trained\n"


def test_commands_accept_every_name_that_commands_print(cli: Cli) -> None:
    """Runs, members of arrays, tasks of other clusters and other families, tasks of services and of Batch jobs."""
    ecs, batch = cli.client("ecs"), cli.client("batch")
    script = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    cli.start_task("--", "sh", "-c", script, family="exp2")
    cli("run", "-d", "-n", "grid", "--array", "3-4", "--", "sh", "-c", script)
    cli("run", "-d", "-n", "lr:1", "-g", "9", "--wait-anyway", "--", "true")
    [exp2] = ecs.describe_tasks(tasks=ecs.list_tasks(family="exp2")["taskArns"])["tasks"]
    ecs.run_task(taskDefinition=exp2["taskDefinitionArn"], tags=[{"key": "corral:name", "value": "by.hand"}])
    made = container(["sh", "-c", script], log_prefix="web-family")
    ecs.register_task_definition(family="web-family", containerDefinitions=[made])
    ecs.create_service(serviceName="web", taskDefinition="web-family", desiredCount=1)
    ecs.create_cluster(clusterName="lab")
    sizes = {"cpu": "256", "memory": "512", "networkMode": "awsvpc", "requiresCompatibilities": ["FARGATE"]}
    ecs.register_task_definition(family="elsewhere", containerDefinitions=[made], **sizes)
    network = {"awsvpcConfiguration": {"subnets": ["subnet-1"]}}
    ecs.run_task(cluster="lab", taskDefinition="elsewhere", launchType="FARGATE", networkConfiguration=network)
    batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
    order = [{"order": 1, "computeEnvironment": "here"}]
    eventually(lambda: batch.describe_compute_environments()["computeEnvironments"][0]["status"] == "VALID")
    batch.create_job_queue(jobQueueName="q", priority=1, computeEnvironmentOrder=order)
    eventually(lambda: batch.describe_job_queues(jobQueues=["q"])["jobQueues"][0]["status"] == "VALID")
    needs = [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}]
    properties = {"image": "corral/host", "command": ["sh", "-c", script], "resourceRequirements": needs}
    batch.register_job_definition(jobDefinitionName="fit", type="container", containerProperties=properties)
    batch.submit_job(jobName="first", jobQueue="q", jobDefinition="fit")
    eventually(lambda: all(ecs.list_tasks(family=family)["taskArns"] for family in ("web-family", "batch-fit")))

    def printed(*words: str, heading: str) -> set[str]:
        [head, *rows] = [line for line in cli(*words).stdout.splitlines() if line.strip()]
        while heading not in head:
            head, *rows = rows
        at = head.index(heading)
        return {name for line in rows if re.match("[0-9a-f]{8} ", line) and (name := line[at:].split()[0]) != "and"}

    names = {"exp2", "grid:3", "grid:4", "lr:1", "by.hand", "web-family", "batch-fit"}
    assert printed("ps", heading="TASK") == names
    assert printed("top", "--once", heading="TASK") == names | {"elsewhere"}
    every = sorted(names | {"elsewhere"})
    for name in every:
        shown = cli.json("show", name)
        assert shown["name"] + name.removeprefix(shown["name"]) == name
    eventually(lambda: cli("logs", *every).stdout.count("ready") == len(every) - 1)  # lr:1 waits
    assert len(cli.json("stop", *every)) == len(every)
    ecs.update_service(service="web", desiredCount=0)
    cli("wait", *every, code=125)  # lr:1 has no exit code
    recorded = printed("history", heading="NAME")
    assert names | {"elsewhere"} <= recorded
    assert len(cli.json("stop", *every)) == len(every)
    for name in sorted(names):
        owned = name in ("web-family", "batch-fit")
        again = cli("rerun", "-d", name, code=1 if owned else 0)
        assert "belongs to a" in again.stderr or not owned
    cli("stop", "--wait", *sorted(names - {"web-family", "batch-fit"}))


def test_a_rerun_of_an_array_keeps_the_indexes(cli: Cli) -> None:
    Path(cli.home / "good").mkdir()
    script = "echo index $CORRAL_INDEX; [ $CORRAL_INDEX -lt 6 ] || [ -e good/$CORRAL_INDEX ] || exit 3"
    cli("run", "-n", "sweep", "--array", "4-7%2", "--", "sh", "-c", script, code=3)
    cli("run", "-n", "sweep", "--", "echo", "a newer run")
    assert cli("logs", "sweep:5").stdout == "index 5\n", "a newer run of the same name does not hide the array"
    [fifth] = cli.json("ps", "--all", "sweep:5")
    prefix = fifth["taskArn"].rpartition("/")[2][:8]
    assert cli("logs", prefix).stdout == "index 5\n", "the beginning of an id does not mean the whole array"
    assert "sweep:5" in cli("show", prefix).stdout
    Path(cli.home / "good" / "6").touch()
    again = cli("rerun", "--failed", "sweep", code=3)
    assert set(again.stdout.splitlines()) == {"sweep:6 | index 6", "sweep:7 | index 7"}
    assert re.search(r"sweep means array \w{12}; `corral rerun \w{8}` runs the newer run", again.stderr)
    assert cli("rerun", "--failed", "sweep", code=3).stdout == "index 7\n"
    Path(cli.home / "good" / "7").touch()
    whole = cli.json("rerun", "sweep")
    words = [next(tag["value"] for tag in task["tags"] if tag["key"] == "corral:array").split() for task in whole]
    assert sorted(int(index) for _, index, _, limit in words if limit == "2") == [4, 5, 6, 7], "not only the part that ran again"
    assert cli("rerun", "sweep:4").stdout == "index 4\n"
    assert cli("rerun", prefix).stdout == "index 5\n"
    assert "no task of sweep has failed" in cli("rerun", "--failed", "sweep", code=1).stderr
