"""The `corral` command as a user runs it: the real executable, a real server, real tasks.

Most tests share one Corral. Tests that stop it or start a second one have their own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from command import BIN, DEADLINE_S, UNTIL_TOLD, Cli, Running, living, living_in, processes_about
from corral.cli.aws import installed_version
from corral.cli.client.aws_profiles import MARK, with_section
from eventually import eventually

# up, down, status


def test_up_twice_is_refused_and_says_who_holds_the_folder(cli: Cli) -> None:
    about = json.loads((cli.data / "server.json").read_text())
    for words in (("up", "--detach", "--port", "0"), ("up", "--port", "0")):
        refused = cli(*words, code=1).stderr
        assert f"process {about['pid']}" in refused
        assert f"corral down --data {cli.data}" in refused
    assert cli.json("status")["pid"] == about["pid"]


def test_up_in_the_foreground_ends_by_ctrl_c_and_names_the_flag_where_there_is_no_gpu(own: Cli) -> None:
    server = own.begin("up", "--port", "0", "--gpus", "auto")
    server.until("stdout", "Corral is up at http://127.0.0.1:")
    if not any(host["gpus"] for host in own.json("status")["hosts"]):
        assert "no NVIDIA GPU" in server.until("stderr", "--gpus sim:8")
    server.interrupt()
    assert server.end()[0] == 0
    assert "not running" in own("status", code=3).stderr


def test_what_up_cannot_do_is_said_in_one_line(own: Cli) -> None:
    assert "is not one of" in own("up", "--runtime", "podman", code=2).stderr
    assert "sim:2xH200" in own("up", "--detach", "--port", "0", "--gpus", "many", code=2).stderr
    assert "The models are B200" in own("up", "--detach", "--port", "0", "--gpus", "sim:2xP0", code=2).stderr
    assert "twelve digits" in own("up", "--account", "12", code=2).stderr
    assert "must be used together" in own("up", "--access-key", "AKIAEXAMPLE", code=2).stderr
    assert not (own.data / "server.json").exists()


def _stopped_while_it_starts(own: Cli) -> tuple[Running, int]:
    """Begin `corral up`, and stop the process of the server before it has started."""
    while True:
        starting = own.begin("up", "--detach", "--port", "0", "--gpus", "sim:1")
        [pid, *_] = eventually(lambda: living("-m", "corral.server", "--data", str(own.data)), "the server starts")
        os.kill(pid, signal.SIGSTOP)
        if not (own.data / "server.json").exists():
            return starting, pid
        os.kill(pid, signal.SIGCONT)  # it was faster than this test
        starting.end()
        own("down")


def test_up_waits_while_the_server_starts_and_says_for_what(own: Cli) -> None:
    """SIGSTOP makes the start of the server take as long as this test wants."""
    for number in (signal.SIGCONT, signal.SIGKILL):
        starting, pid = _stopped_while_it_starts(own)
        assert "Corral is starting: " in starting.until("stderr", "Corral is starting: ")
        os.kill(pid, number)
        code, _, said = starting.end()
        assert (code, "the server exited with -9" in said) == ((0, False) if number == signal.SIGCONT else (1, True)), said
        own("down")


def test_up_names_the_process_that_holds_the_port(cli: Cli, own: Cli) -> None:
    about = json.loads((cli.data / "server.json").read_text())
    refused = own("up", "-d", "--port", about["url"].rpartition(":")[2], code=1).stderr
    assert f"another Corral (process {about['pid']}, data folder {cli.data}) listens on it. Choose another port" in refused
    with socket.create_server(("0.0.0.0", 0)) as taken:
        refused = own("up", "-d", "--port", str(taken.getsockname()[1]), code=1).stderr
    assert f"process {os.getpid()} (" in refused and "python" in refused


def test_down_leaves_tasks_alive_and_up_finds_them_again(own: Cli) -> None:
    about = json.loads(own("up", "-d", "--port", "0", "--gpus", "sim:2", "--json").stdout)
    task_id = own.start_task("--gpus", "1", "--", "sh", "-c", UNTIL_TOLD)
    waiting = [own("run", "--detach", *words, "--", "true").stdout.strip() for words in (["--hold"], ["--gpus", "2"])]
    said = own("down").stdout
    assert "is down" in said and "1 task keeps running" in said and "2 tasks wait: no task starts before" in said
    assert not (own.data / "server.json").exists()
    assert "not running" in own("down").stdout  # twice is no error
    for verb in (["status"], ["ps"], ["env"], ["aws", "ecs", "list-tasks"], ["stop", task_id]):
        assert "corral up --detach" in own(*verb, code=3).stderr
    again = json.loads(own("up", "-d", "--port", "0", "--gpus", "sim:2", "--json").stdout)
    assert again["pid"] != about["pid"]
    own("stop", "--wait", *waiting)
    [task] = own.json("ps")
    assert task["taskArn"].endswith(task_id) and task["lastStatus"] == "RUNNING"
    done = json.loads(own("down", "--stop-tasks", "--json").stdout)
    left = {"tasksLeft": 0, "servicesLeft": 0, "jobsLeft": 0, "purged": False}
    assert done == {"stopped": True, "data": str(own.data), "tasksStopped": 1, **left}
    own("up", "-d", "--port", "0", "--gpus", "sim:2")
    assert own.json("ps") == []
    ended = own.task(task_id)
    assert (ended["containers"][0]["exitCode"], ended["stoppedReason"]) == (7, "corral down --stop-tasks")
    assert own("logs", task_id).stdout.startswith("ready\n")


def test_nothing_starts_again_after_down_with_stop_tasks(own: Cli) -> None:
    own("up", "-d", "--port", "0", "--gpus", "sim:2")
    ecs, batch = own.client("ecs"), own.client("batch")
    one_gpu = [{"type": "GPU", "value": "1"}]
    forever = {"image": "corral/host", "command": ["sleep", "600"]}
    ecs.register_task_definition(
        family="web", containerDefinitions=[{"name": "main", "memory": 16, "resourceRequirements": one_gpu, **forever}]
    )
    ecs.create_service(serviceName="web", taskDefinition="web", desiredCount=1)
    eventually(lambda: len(own.unfinished()) == 1)
    batch.create_compute_environment(computeEnvironmentName="here", type="UNMANAGED", tags={"corral:cluster": "default"})
    order = [{"order": 1, "computeEnvironment": "here"}]
    batch.create_job_queue(jobQueueName="jobs", priority=1, computeEnvironmentOrder=order)
    sizes = [*one_gpu, {"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "16"}]
    batch.register_job_definition(
        jobDefinitionName="job", type="container", containerProperties={**forever, "resourceRequirements": sizes}
    )
    jobs = [batch.submit_job(jobName=name, jobQueue="jobs", jobDefinition="job")["jobId"] for name in ("first", "second")]

    def states() -> list[str]:
        found = {job["jobId"]: job["status"] for job in own.client("batch").describe_jobs(jobs=jobs)["jobs"]}
        return [found[job] for job in jobs]

    eventually(lambda: states() == ["RUNNING", "RUNNABLE"])
    own("run", "-d", "-g", "1", "-n", "waits", "--", "sleep", "600")
    said = own("down", "--stop-tasks").stdout  # each of the four would take the GPU of another one that stops
    assert "3 tasks stopped." in said
    assert f"The next `corral up --detach --data {own.data}` starts tasks again for 1 service and 1 job." in said
    ending = processes_about(own.data)  # agent and spawner end after the server
    assert {*living_in(own.data)} <= {*ending} and eventually(lambda: not processes_about(own.data))
    own("up", "-d", "--port", "0", "--gpus", "sim:2")
    eventually(lambda: states() == ["FAILED", "RUNNING"])
    running = eventually(lambda: len(own.unfinished()) == 2 and own.unfinished())
    [service] = own.client("ecs").list_tasks(serviceName="web")["taskArns"]
    assert service in running
    stopped = own.client("ecs").list_tasks(family="waits", desiredStatus="STOPPED")["taskArns"]
    assert own.task(stopped[0])["stoppedReason"] == "corral down --stop-tasks"


def test_status_shows_gpus_and_who_waits_for_them(cli: Cli) -> None:
    holder = cli.start_task("--gpus", "2", "--", "sh", "-c", UNTIL_TOLD, family="holder")
    waiter = cli("run", "-d", "--gpus", "1", "--name", "waiter", "--", "true").stdout.strip()
    page = cli.json("status")
    [host] = page["hosts"]
    assert [(gpu["index"], gpu["simulated"], gpu["task"]) for gpu in host["gpus"]] == [(0, True, holder), (1, True, holder)]
    assert [claim["task"] for claim in page["waiting"]] == [waiter]
    text = cli("status").stdout
    assert "NVIDIA H100 80GB HBM3 (simulated)" in text and "1 running, 1 waiting" in text
    assert f"{waiter[:8]}" in text and "holder holds 2 of 2 GPUs" in text

    listed = cli("ps").stdout.splitlines()
    assert "0-1" in listed[1] and "RUNNING" in listed[1] and "  holder  " in listed[1]
    assert "WAITING" in listed[2] and listed[2].endswith("holder holds 2 of 2 GPUs")
    assert max(map(len, cli("ps", env={"COLUMNS": "80"}).stdout.splitlines())) <= 80
    assert "has not started: holder holds 2 of 2 GPUs; needs 1 GPU" in cli("logs", waiter).stderr
    never = cli("run", "--detach", "--gpus", "2", "--name", "never", "--", "true").stdout.strip()
    cli("stop", never)
    assert "Needs     2 GPUs" in cli("show", never).stdout, "also of a run that has not started"


# env, aws


def test_env_lines_are_all_that_boto3_and_aws_need(cli: Cli) -> None:
    program = "import boto3; print(boto3.client('sts').get_caller_identity()['Account'])"
    command = "aws sts get-caller-identity --query Account --output text"
    script = f'eval "$(corral env)" && python -c "{program}" && {command}'
    foreign = {"AWS_SESSION_TOKEN": "of another account", "AWS_ENDPOINT_URL_STS": "http://127.0.0.1:9"}
    done = subprocess.run(
        ["bash", "-c", script], env={**cli.environment, **foreign}, cwd=cli.home, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.stdout.split() == ["123456789012", "123456789012"], done.stderr
    assert cli("env", "--shell", "fish").stdout.startswith("set -gx AWS_ENDPOINT_URL 'http://127.0.0.1:")
    assert cli.json("env")["AWS_DEFAULT_REGION"] == "us-east-1"


def test_a_profile_is_used_by_boto3_and_aws_and_leaves_the_rest_of_the_files_alone(cli: Cli) -> None:
    folder = cli.home / ".aws"
    folder.mkdir()
    config, credentials = folder / "config", folder / "credentials"
    before = "# mine\n[default]\nregion = eu-west-1\n\n[profile taken]\nregion=x\n# about the next\n[profile other]\noutput = json"
    config.write_text(before)
    credentials.write_text("[taken]\naws_access_key_id = THEIRS\n")
    cli("env", "--profile", "corral")
    assert config.read_text().startswith(before + "\n\n[profile corral]\n")
    assert credentials.read_text().startswith("[taken]\naws_access_key_id = THEIRS\n\n[corral]\n")
    assert credentials.stat().st_mode & 0o777 == 0o600
    told = json.loads(cli("env", "--profile", "corral", "--json").stdout)  # again: nothing is doubled
    assert told == {"profile": "corral", "config": str(config), "credentials": str(credentials)}
    assert config.read_text().count("corral]") == 1

    refused = cli("env", "--profile", "taken", code=1).stderr
    assert "Corral did not write" in refused and "THEIRS" in credentials.read_text()
    cli("env", "--profile", "taken", "--force")
    assert "THEIRS" not in credentials.read_text() and "# about the next\n[profile other]\n" in config.read_text()

    program = "import boto3; print(boto3.Session(profile_name='taken').client('sts').get_caller_identity()['Account'])"
    asks = [
        [BIN / "aws", "--profile", "corral", "sts", "get-caller-identity", "--query", "Account", "--output", "text"],
        [sys.executable, "-c", program],
    ]
    for ask in asks:
        assert subprocess.check_output(ask, env=cli.environment, text=True).strip() == "123456789012"
    assert cli("ps", env={"AWS_PROFILE": "corral", "CORRAL_DATA": "/nowhere"}).stdout.startswith("No tasks")


@pytest.mark.parametrize(
    "before, after",
    [
        ("", "[x]\n{mark}k = 1\n"),
        ("[a]\nk=0", "[a]\nk=0\n\n[x]\n{mark}k = 1\n"),
        ("[x]\r\nk=0\r\n\r\n[b]\r\n", "[x]\r\n{mark}k = 1\n\r\n[b]\r\n"),
        ('[ "x" ] ; mine\nk: 0\nown = 2\n# b\'s\n[b]\n', '[ "x" ] ; mine\n{mark}k = 1\nown = 2\n# b\'s\n[b]\n'),
    ],
)
def test_a_section_is_put_in_and_every_other_byte_stays(before: str, after: str) -> None:
    lines = before.splitlines(keepends=True)
    put = with_section(lines, "x", {"k": "1"}, keep=True)
    assert "".join(put) == after.format(mark=MARK)
    assert with_section(put, "x", {"k": "1"}, keep=True) == put


def test_aws_has_the_endpoint_and_its_own_exit_code(cli: Cli) -> None:
    assert "arn:aws:ecs:us-east-1:123456789012:cluster/default" in cli("aws", "ecs", "list-clusters").stdout
    assert "arn:aws:ecs:eu-west-1:" in cli("aws", "--region", "eu-west-1", "ecs", "list-clusters").stdout
    failed = cli("aws", "ecs", "describe-task-definition", "--task-definition", "nope", code=255).stderr
    assert "ClientException" in failed


def aws_of(folder: Path, version: str) -> dict[str, str]:
    """Put an aws command into a folder that prints this version, its endpoint and its arguments. Return the environment."""
    program = folder / "aws"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo "aws-cli/{version} Python/3"\necho "$AWS_ENDPOINT_URL $*"\nexit 9\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_aws_is_the_first_on_the_path(cli: Cli, tmp_path: Path) -> None:
    url = cli.json("env")["AWS_ENDPOINT_URL"]
    one = aws_of(tmp_path, "1.46.0")
    queues = cli("aws", "sqs", "list-queues", env=one, code=9)
    assert queues.stdout == f"{url} --endpoint-url {url} sqs list-queues\n"
    assert queues.stderr == ""  # this command works with version 1
    assert "no `aws logs tail`, so use `corral logs -f`" in cli("aws", "logs", "tail", "/corral/run", env=one, code=9).stderr
    [found] = [each for each in json.loads(cli("doctor", "--json", env=one).stdout) if each["check"] == "aws command"]
    assert found["level"] == "warning" and "aws-cli/1.46.0" in found["found"] and "version 2" in found["advice"]
    two = aws_of(tmp_path, "2.31.0")
    assert cli("aws", "logs", "tail", "/corral/run", env=two, code=9).stderr == ""
    [found] = [each for each in json.loads(cli("doctor", "--json", env=two).stdout) if each["check"] == "aws command"]
    assert (found["level"], found["found"]) == ("ok", f"aws-cli/2.31.0 ({tmp_path / 'aws'})")


def test_env_warns_of_an_aws_that_ignores_it(cli: Cli, tmp_path: Path) -> None:
    """Version 1 sends the calls of SQS to AWS, whatever AWS_ENDPOINT_URL says. The files of an installation show its version."""
    program, packages = tmp_path / "bin" / "aws", tmp_path / "lib" / "python3.11" / "site-packages"
    for folder in (program.parent, packages):
        folder.mkdir(parents=True)
    program.write_text("#!/usr/bin/python3\nimport awscli.clidriver\n")
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{cli.environment['PATH']}"}
    assert installed_version(str(program)) is None
    for name, version in (("awscli-1.46.2.dist-info", 1), ("awscli-2.31.0.egg-info", 2)):
        (packages / name).mkdir()
        assert installed_version(str(program)) == version
        printed = cli("env", env=environment)
        assert ("sends the calls of `aws sqs` to AWS itself" in printed.stderr) == (version == 1)
        assert {line.split()[0] for line in printed.stdout.splitlines()} == {"export"}
        (packages / name).rmdir()
    program.write_bytes(b"\x7fELF...")
    assert installed_version(str(program)) == 2 and installed_version(str(BIN / "aws")) == 1


def test_a_machine_without_aws_gets_advice(cli: Cli, tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path)}
    missing = cli("aws", "ecs", "list-clusters", env=nothing, code=1).stderr
    assert "there is no aws command on PATH: install version 2 (https://" in missing
    [found] = [each for each in json.loads(cli("doctor", "--json", env=nothing).stdout) if each["check"] == "aws command"]
    assert found["level"] == "warning" and "https://" in found["advice"]


def test_a_person_at_a_terminal_learns_about_sqs_of_version_1(cli: Cli, tmp_path: Path) -> None:
    leader, follower = os.openpty()
    try:
        environment = {**cli.environment, **aws_of(tmp_path, "1.46.0")}
        subprocess.run([BIN / "corral", "env"], env=environment, stderr=follower, stdout=subprocess.PIPE)
        assert b"is version 1" in os.read(leader, 4096)  # the files of this aws do not show its version
    finally:
        os.close(leader)
        os.close(follower)


# run, ps, logs, stop


@pytest.mark.parametrize("code", [0, 3])
def test_run_shows_the_output_and_ends_as_the_command_does(cli: Cli, code: int) -> None:
    script = 'echo "$PWD|$GREETING|$WHO|$AWS_ACCESS_KEY_ID|$CUDA_VISIBLE_DEVICES|"; echo to stderr >&2; exit ' + str(code)
    done = cli(
        "run", "--gpus", "1", "--env", "WHO=you", "--", "sh", "-c", script, code=code,
        env={"GREETING": "hello there", "AWS_ACCESS_KEY_ID": "AKIAOFSOMEBODY", "CUDA_VISIBLE_DEVICES": "7"},
    )  # fmt: skip
    first, second = done.stdout.splitlines()
    where, greeting, who, key, gpus, _ = first.split("|")
    assert (where, greeting, who, key) == (str(cli.home), "hello there", "you", "")
    assert gpus.startswith("GPU-") and gpus in done.stderr
    assert second == "to stderr"


def test_run_json_prints_the_final_task_and_the_log_on_stderr(cli: Cli) -> None:
    done = cli("run", "--json", "--name", "as-json", "--memory", "64", "--cpu", "256", "sh", "-c", "echo hello")
    task = json.loads(done.stdout)
    assert task["containers"][0]["exitCode"] == 0 and task["cpu"] == "256" and task["memory"] == "64"
    assert "hello\n" in done.stderr


def test_run_without_an_exit_code_says_why(cli: Cli, tmp_path: Path) -> None:
    container = {"name": "main", "image": "corral/host", "memory": 16, "command": ["no-such-program"]}
    file = tmp_path / "missing.json"
    file.write_text(json.dumps({"family": "missing", "containerDefinitions": [container]}))
    assert "executable file not found" in cli("run", str(file), code=125).stderr


def test_run_waits_in_line_says_why_and_goes_on(cli: Cli) -> None:
    holder = cli.start_task("--gpus", "2", "--", "sh", "-c", UNTIL_TOLD)
    waiter = cli.begin("run", "--gpus", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    waiting = waiter.until("stderr", "held by")
    assert f"begun holds 2 of 2 GPUs; needs 2 GPUs; first in line; held by task {holder[:8]}" in waiting
    assert "is stopping" in cli("stop", holder[:10], "--reason", "make room").stdout
    code, out, _ = waiter.end()
    assert code == 0 and out.count("GPU-") == 2
    assert cli.task(holder)["stoppedReason"] == "make room"
    assert "make room" in cli("ps", "--all").stdout


def test_logs_follow_until_the_task_stops(cli: Cli, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    task_id = cli.start_task("--", "sh", "-c", f"echo one; read line < {gate}; echo $line; exit 4")
    assert cli("logs", task_id[:12]).stdout == "one\n"
    following = cli.begin("logs", "-f", task_id[:12])
    following.until("stdout", "one\n")
    gate.write_text("two\n")
    code, out, err = following.end()
    assert (code, out) == (0, "one\ntwo\n"), err
    lines = [json.loads(line)["message"] for line in cli("logs", "--json", task_id).stdout.splitlines()]
    assert lines == ["one", "two"]
    arn = cli.task(task_id)["taskArn"]
    assert cli("logs", arn).stdout == "one\ntwo\n"


def test_a_stream_named_after_the_container_is_found(cli: Cli) -> None:
    options = {"awslogs-group": "/own", "awslogs-region": "us-east-1", "awslogs-create-group": "true"}
    container = {
        "name": "main", "image": "corral/host", "memory": 64, "command": ["sh", "-c", "echo without a prefix"],
        "logConfiguration": {"logDriver": "awslogs", "options": options},
    }  # fmt: skip
    silent = {"name": "main", "image": "corral/host", "memory": 64, "command": ["true"]}
    ecs, ids = cli.client("ecs"), []
    for family, defined in (("own-log", container), ("no-log", silent)):
        ecs.register_task_definition(family=family, containerDefinitions=[defined])
        ids.append(ecs.run_task(taskDefinition=family)["tasks"][0]["taskArn"])
    assert cli("logs", "-f", ids[0]).stdout == "without a prefix\n"
    assert "does not use the awslogs log driver" in cli("logs", ids[1], code=1).stderr


def test_the_pipe_breaks_and_the_task_is_stopped(cli: Cli) -> None:
    script = "corral run --name piped -- sh -c 'while :; do echo more; sleep 0.05; done' | head -1; echo ${PIPESTATUS[0]}"
    piped = subprocess.run(
        ["bash", "-c", script],
        env=cli.environment, cwd=cli.home, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert piped.stdout.split() == ["more", "141"], piped.stderr
    assert "Traceback" not in piped.stderr
    eventually(lambda: not cli.unfinished())


def test_control_characters_of_tasks_are_shown_escaped(cli: Cli) -> None:
    attack = "\x1b]52;c;aGk=\x07\x1b[2Jstop\x9b31m\u202e\x7f\ttab"
    task_id = cli.start_task("--", "sh", "-c", UNTIL_TOLD)
    ecs = cli.client("ecs")
    ecs.stop_task(task=task_id, reason=attack)
    cli("stop", "--wait", task_id)
    shown = cli("ps", "--all").stdout
    assert "\\x1b]52;c;aGk=\\x07\\x1b[2Jstop\\x9b31m\\u202e\\x7f" in " ".join(shown.split("\n")), shown
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown)
    described = cli("ps", "--all", "--json").stdout
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", described) and any(
        task["stoppedReason"] == attack for task in json.loads(described)
    )
    refused = cli("logs", "a\x1b[2kb", code=1).stderr
    assert "\x1b" not in refused and "a\\x1b[2kb" in refused


def test_what_up_prints_in_the_foreground_is_escaped(own: Cli) -> None:
    """The path is text that Corral did not choose: in its log, in its messages, and in `corral status`."""
    data = own.home / "a\x1b[2Jb"
    for folder in (*product("0123456789abcdef", repeat=2), ("arriving",)):
        Path(data, "blobs", *folder).mkdir(parents=True)
    for at in range(17):  # enough orphans for a warning in the log
        (data / "blobs" / "0" / "0" / f"00{at:030x}").write_bytes(b"")
    refused = own("up", "--port", "0", "--data", str(data), code=1).stderr
    assert "\x1b" not in refused and "a\\x1b[2Jb/state.db is missing" in refused
    server = own.begin("up", "--port", "0", "--gpus", "none", "--data", str(data), "--discard-blobs")
    assert "(data in " in server.until("stdout", "a\\x1b[2Jb;")
    assert "\x1b" not in server.until("stderr", "a\\x1b[2Jb/blobs/quarantine/")
    shown = own("status", "--data", str(data)).stdout
    assert "\x1b" not in shown and "Quarantine: 17 blobs without a row in state.db, moved on" in shown
    assert own.json("status", "--data", str(data))["quarantine"][0]["blobs"] == 17
    server.interrupt()
    assert server.end()[0] == 0


def test_every_kind_of_text_in_a_table_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Group
    from rich.table import Table

    from corral.cli.printing.safe_text import SafeConsole, SafeText

    table = Table("NAME", "REASON", "TITLE \x1b[2J", box=None)
    table.add_row("plain \x1b[2J", SafeText("text \x1b[2J").append(" and \x1b[2J"), SafeText.assemble(("styled \x1b[2J", "bold")))
    SafeConsole(width=200).print(Group(table, "line \x1b[2J"), "words \x1b[2J")
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and shown.count("\\x1b[2J") == 7
    assert shown.index("TITLE") == shown.split("\n")[1].index("styled")  # the columns are as wide as their text


def test_logs_reach_a_pipe_as_they_are(cli: Cli) -> None:
    raw = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J 50% \u202e"
    ran = cli.begin("run", "--name", "raw", "--", "printf", "%s\\n", raw)
    assert ran.end()[:2] == (0, raw + "\n")
    task_id = cli.json("ps", "--all")[-1]["taskArn"].rpartition("/")[2]
    done = subprocess.run([BIN / "corral", "logs", task_id], env=cli.environment, capture_output=True, check=True)
    assert done.stdout == raw.encode() + b"\n"


def test_tasks_that_are_not_there(cli: Cli) -> None:
    assert "`corral ps --all` lists the tasks" in cli("logs", "0123456789", code=1).stderr
    assert "no task has the name 'my-task'" in cli("stop", "my-task", code=1).stderr
    assert "there is no run" in cli("stop", "0" * 32, code=1).stderr
    assert cli("run", code=2).stderr.startswith("Usage: ")
    assert "NAME=VALUE" in cli("run", "--env", "oops", "true", code=2).stderr


def test_an_endpoint_that_does_not_answer_is_one_line(cli: Cli) -> None:
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    said = cli("ps", code=1, env={**nowhere, "AWS_DEFAULT_REGION": "us-east-1"}).stderr
    assert said.count("\n") == 1 and "cannot connect to http://127.0.0.1:9" in said
    assert cli("ps", "--data", str(cli.data), env=nowhere).stdout.startswith("No tasks")  # --data comes before the environment
    wrong = {"AWS_ENDPOINT_URL": cli.json("env")["AWS_ENDPOINT_URL"], "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    for verb in ("ps", "status"):
        assert cli(verb, code=1, env={**wrong, "AWS_DEFAULT_REGION": "us-east-1"}).stderr.count("\n") == 1
