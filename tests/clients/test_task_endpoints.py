"""The endpoints of a task: boto3 without configuration, credentials, metadata and statistics. All end with the task."""

from __future__ import annotations

import json
import os
import signal
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.credentials import ContainerProvider
from botocore.exceptions import ClientError

from corral.access import sessions
from harness import container, eventually, files_with, wait_stopped

ACCOUNT = "123456789012"
PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)), flush=True)"
LIVE_ON = "import signal; signal.pause()"

# A program as people write it: it knows nothing of Corral.
WORKER = """
import json, os, time, urllib.request
import boto3

def metadata(page):
    with urllib.request.urlopen(os.environ["ECS_CONTAINER_METADATA_URI_V4"] + page) as answer:
        return json.load(answer)

task = metadata("/task")
me = boto3.client("sts").get_caller_identity()["Arn"]
[shown] = boto3.client("ecs").describe_tasks(cluster=task["Cluster"], tasks=[task["TaskARN"]])["tasks"]
logs = boto3.client("logs")
logs.create_log_group(logGroupName="/results")
logs.create_log_stream(logGroupName="/results", logStreamName="one")
event = {"timestamp": int(time.time() * 1000), "message": json.dumps([me, shown["taskArn"], metadata("/stats")["id"]])}
logs.put_log_events(logGroupName="/results", logStreamName="one", logEvents=[event])
"""


@pytest.fixture
def ecs(client):
    return client("ecs")


def python(program: str, **more) -> dict:
    return container([sys.executable, "-c", program], log_prefix="inside", **more)


def run(ecs, *containers, overrides=None, **definition) -> str:
    """The ARN of a new task."""
    family = f"inside-{os.urandom(4).hex()}"
    ecs.register_task_definition(family=family, containerDefinitions=list(containers), **definition)
    return ecs.run_task(taskDefinition=family, overrides=overrides or {})["tasks"][0]["taskArn"]


def id_of(arn: str) -> str:
    return arn.rpartition("/")[2]


def events(corral, arn: str, name: str = "main") -> list[str]:
    page = corral.client("logs").get_log_events(
        logGroupName="/tests", logStreamName=f"inside/{name}/{id_of(arn)}", startFromHead=True
    )
    return [event["message"] for event in page["events"]]


def environment_of(corral, arn: str, name: str = "main") -> dict[str, str]:
    """The environment of a task, as the task prints it."""
    logs = corral.client("logs")

    def printed():
        try:
            return events(corral, arn, name)
        except logs.exceptions.ResourceNotFoundException:
            return None

    return json.loads(eventually(printed, "the task printed its environment")[0])


def start_living(corral, **more) -> tuple[str, dict[str, str]]:
    """A task that runs until it is stopped, and its environment."""
    arn = run(corral.client("ecs"), python(f"{PRINT_ENVIRONMENT}\n{LIVE_ON}"), **more)
    return arn, environment_of(corral, arn)


def keys_of(environment: dict[str, str]):
    return ContainerProvider(environ=environment).load()


def client_with(corral, credentials, service):
    frozen = credentials.get_frozen_credentials()
    return boto3.session.Session().client(
        service,
        region_name="us-east-1",
        endpoint_url=corral.url,
        aws_access_key_id=frozen.access_key,
        aws_secret_access_key=frozen.secret_key,
        aws_session_token=frozen.token,
        config=Config(retries={"max_attempts": 0}),
    )


def fetch(url: str, method: str = "GET", body: bytes | None = None, **headers) -> tuple[int, dict]:
    request = urllib.request.Request(url, data=body, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def refusal(call, **params) -> str:
    with pytest.raises(ClientError) as caught:
        call(**params)
    return caught.value.response["Error"]["Code"]


def stop(ecs, arn: str) -> None:
    ecs.stop_task(task=arn)
    wait_stopped(ecs, [arn])


def test_boto3_needs_no_configuration_and_takes_no_keys_from_our_home(own_corral, tmp_path, monkeypatch):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[default]\naws_access_key_id = AKIAFOREIGN\naws_secret_access_key = x\n")
    (tmp_path / ".aws" / "config").write_text("[default]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    corral = own_corral().start()
    ecs = corral.client("ecs")
    arn = run(ecs, python(WORKER))
    [task] = wait_stopped(ecs, [arn])
    assert task["containers"][0]["exitCode"] == 0, events(corral, arn)
    page = corral.client("logs").get_log_events(logGroupName="/results", logStreamName="one")
    me, shown, measured = json.loads(page["events"][0]["message"])
    assert me == f"arn:aws:sts::{ACCOUNT}:assumed-role/corral-host/{id_of(arn)}"
    assert shown == arn
    assert measured == task["containers"][0]["runtimeId"]


def test_keys_in_the_environment_of_a_task_have_priority(corral, ecs):
    keys = corral.keys
    given = {"AWS_ACCESS_KEY_ID": keys["access_key"], "AWS_SECRET_ACCESS_KEY": keys["secret_key"]}
    program = "import boto3; print(boto3.client('sts').get_caller_identity()['Arn'])"
    environment = [{"name": name, "value": value} for name, value in given.items()]
    arn = run(ecs, python(program, environment=environment))
    wait_stopped(ecs, [arn])
    assert events(corral, arn) == [f"arn:aws:iam::{ACCOUNT}:root"]


def test_the_credentials_endpoint(corral, ecs):
    arn, environment = start_living(corral, taskRoleArn=f"arn:aws:iam::{ACCOUNT}:role/team/trainer")
    url, token = environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"], environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
    status, given = fetch(url, Authorization=token)
    assert status == 200
    assert set(given) == {"RoleArn", "AccessKeyId", "SecretAccessKey", "Token", "Expiration"}
    assert given["RoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/team/trainer"
    expires = datetime.fromisoformat(given["Expiration"].replace("Z", "+00:00"))
    assert timedelta(minutes=15) < expires - datetime.now(UTC) <= timedelta(hours=6)
    assert fetch(url, Authorization=token) == (200, given)

    for status, code, answer in (
        (401, "Unauthorized", fetch(url)),
        (403, "Forbidden", fetch(url, Authorization="x")),
        (403, "Forbidden", fetch(url, Authorization=token.lower())),
        (403, "Forbidden", fetch(f"{corral.url}/v2/credentials/{'0' * 32}", Authorization=token)),
        (405, "MethodNotAllowed", fetch(url, "POST", Authorization=token)),
    ):
        assert answer[0] == answer[1]["HTTPErrorCode"] == status and answer[1]["code"] == code
        assert token not in json.dumps(answer)
    stop(ecs, arn)


def test_two_tasks_are_two_principals_and_neither_can_be_the_other(corral, ecs):
    one, told_one = start_living(corral, taskRoleArn=f"arn:aws:iam::{ACCOUNT}:role/team/trainer")
    role = {"taskRoleArn": f"arn:aws:iam::{ACCOUNT}:role/chief"}
    two, told_two = start_living(corral, taskRoleArn=f"arn:aws:iam::{ACCOUNT}:role/team/trainer", overrides=role)
    principals = [client_with(corral, keys_of(told), "sts").get_caller_identity()["Arn"] for told in (told_one, told_two)]
    assert principals == [
        f"arn:aws:sts::{ACCOUNT}:assumed-role/trainer/{id_of(one)}",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/chief/{id_of(two)}",
    ]
    url, token = told_two["AWS_CONTAINER_CREDENTIALS_FULL_URI"], told_one["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
    assert fetch(url, Authorization=token)[0] == 403
    seal_one = told_one["ECS_CONTAINER_METADATA_URI_V4"].rpartition("-")[2]
    run_two, seal_two = told_two["ECS_CONTAINER_METADATA_URI_V4"].rpartition("/")[2].split("-")
    assert fetch(f"{corral.url}/v4/{run_two}-{seal_two}")[0] == 200
    assert fetch(f"{corral.url}/v4/{run_two}-{seal_one}")[0] == 404  # what is public of a task does not open its pages
    for arn in (one, two):
        stop(ecs, arn)


def test_credentials_live_and_die_with_the_task_whatever_the_server_does(own_corral):
    corral = own_corral().start()
    arn, environment = start_living(corral)
    keys = keys_of(environment)
    child = client_with(corral, keys, "sts").assume_role(RoleArn=f"arn:aws:iam::{ACCOUNT}:role/x", RoleSessionName="child")
    child_keys = boto3.session.Session(
        child["Credentials"]["AccessKeyId"], child["Credentials"]["SecretAccessKey"], child["Credentials"]["SessionToken"]
    ).get_credentials()

    corral.kill("corral.server")
    corral.start()
    for credentials in (keys, child_keys):
        assert client_with(corral, credentials, "sts").get_caller_identity()
        assert client_with(corral, credentials, "ecs").list_tasks()["taskArns"] == [arn]
        assert "logGroups" in client_with(corral, credentials, "logs").describe_log_groups()
    assert keys_of(environment).access_key == keys.access_key
    assert fetch(environment["ECS_CONTAINER_METADATA_URI_V4"])[0] == 200

    def all_is_over() -> None:
        for credentials in (keys, child_keys):
            assert refusal(client_with(corral, credentials, "sts").get_caller_identity) == "ExpiredToken"
            assert refusal(client_with(corral, credentials, "ecs").list_tasks) == "ExpiredTokenException"
            assert refusal(client_with(corral, credentials, "logs").describe_log_groups) == "ExpiredTokenException"
        url, token = environment["AWS_CONTAINER_CREDENTIALS_FULL_URI"], environment["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
        status, answer = fetch(url, Authorization=token)
        assert (status, answer["code"]) == (400, "InvalidIdInRequest")
        for page in ("", "/task", "/taskWithTags", "/stats", "/task/stats"):
            assert fetch(environment["ECS_CONTAINER_METADATA_URI_V4"] + page)[0] == 404

    stop(corral.client("ecs"), arn)
    all_is_over()
    corral.kill("corral.server")
    corral.start()
    all_is_over()


def test_a_stopping_task_keeps_its_credentials(corral, ecs, tmp_path):
    program = f"import os, signal, time; signal.signal(signal.SIGTERM, lambda *_: open({str(tmp_path / 'told')!r}, 'w').close())"
    arn = run(ecs, python(f"{program}\n{PRINT_ENVIRONMENT}\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)"))
    keys = keys_of(environment_of(corral, arn))
    ecs.stop_task(task=arn)
    eventually(lambda: (tmp_path / "told").exists(), "the task was told")
    assert client_with(corral, keys, "sts").get_caller_identity()
    (tmp_path / "go").touch()
    wait_stopped(ecs, [arn])
    assert refusal(client_with(corral, keys, "sts").get_caller_identity) == "ExpiredToken"


def test_metadata_of_a_task_with_two_containers(corral, ecs):
    side = container(["sleep", "600"], name="side", memory=32, essential=False, dockerLabels={"team": "blue"})
    main = python(f"{PRINT_ENVIRONMENT}\n{LIVE_ON}", cpu=128)
    ecs.register_task_definition(family="meta", containerDefinitions=[main, side], cpu="512", memory="256")
    [task] = ecs.run_task(taskDefinition="meta", tags=[{"key": "color", "value": "red"}])["tasks"]
    arn, told = task["taskArn"], environment_of(corral, task["taskArn"])
    base = told["ECS_CONTAINER_METADATA_URI_V4"]
    document = eventually(lambda: (page := fetch(f"{base}/task")[1])["KnownStatus"] == "RUNNING" and page, "running")
    assert document | {"Containers": [], "PullStartedAt": "", "PullStoppedAt": ""} == {
        "Cluster": "default",
        "TaskARN": arn,
        "Family": "meta",
        "Revision": "1",
        "DesiredStatus": "RUNNING",
        "KnownStatus": "RUNNING",
        "Limits": {"CPU": 0.5, "Memory": 256},
        "PullStartedAt": "",
        "PullStoppedAt": "",
        "AvailabilityZone": "us-east-1a",
        "LaunchType": "EC2",
        "Containers": [],
        "FaultInjectionEnabled": False,
    }
    by_name = {each["Name"]: each for each in document["Containers"]}
    [shown] = ecs.describe_tasks(tasks=[arn])["tasks"]
    for each in shown["containers"]:
        mine = by_name[each["name"]]
        assert (mine["ContainerARN"], mine["DockerId"], mine["KnownStatus"]) == (each["containerArn"], each["runtimeId"], "RUNNING")
        assert mine["Labels"]["com.amazonaws.ecs.task-arn"] == arn
        assert mine["Labels"]["com.amazonaws.ecs.container-name"] == mine["Name"] == mine["DockerName"]
        assert "ExitCode" not in mine and "FinishedAt" not in mine
        assert datetime.fromisoformat(mine["StartedAt"].replace("Z", "+00:00")) >= task["createdAt"] - timedelta(seconds=1)
    assert by_name["main"]["Limits"] == {"CPU": 128}  # it only reserves memory
    assert by_name["main"]["LogDriver"] == "awslogs"
    assert by_name["main"]["LogOptions"] == {
        "awslogs-group": "/tests", "awslogs-region": "us-east-1", "awslogs-stream": f"inside/main/{id_of(arn)}",
    }  # fmt: skip
    assert by_name["side"]["Labels"]["team"] == "blue" and "LogDriver" not in by_name["side"]
    assert fetch(base)[1] == by_name["main"]
    assert fetch(f"{base}/taskWithTags")[1] == document | {"TaskTags": {"color": "red"}}
    assert fetch(f"{told['ECS_CONTAINER_METADATA_URI']}/task")[1] == document
    assert fetch(f"{base}/nothing")[1]["code"] == "NotFound"
    assert fetch(base, "POST")[0] == 405
    assert told["AWS_EXECUTION_ENV"] == "AWS_ECS_EC2"

    stats = fetch(f"{base}/task/stats")[1]
    assert set(stats) == {by_name["main"]["DockerId"], by_name["side"]["DockerId"]}
    assert stats[by_name["side"]["DockerId"]]["name"] == "/side"
    side_pid = next(pid for pid in pids_of(corral) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    os.kill(side_pid, signal.SIGKILL)
    gone = eventually(lambda: "ExitCode" in (page := fetch(f"{base}/task")[1]["Containers"][1]) and page, "the container ended")
    assert (gone["KnownStatus"], gone["ExitCode"]) == ("STOPPED", 137) and gone["FinishedAt"]
    assert fetch(f"{base}/task/stats")[1][by_name["side"]["DockerId"]] is None
    stop(ecs, arn)


def pids_of(corral) -> list[int]:
    """Processes that live in a folder of this Corral."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and os.readlink(f"/proc/{entry}/cwd").startswith(str(corral.data)):
                found.append(int(entry))
        except OSError:
            continue
    return found


def test_stats_are_of_the_whole_session_and_of_the_time_between(corral, ecs):
    """A busy child counts, and a child that has ended counts on."""
    program = (
        f"{PRINT_ENVIRONMENT}\nimport subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import time\\nwhile time.process_time() < 0.5: pass'])\n"
        "held = b'x' * 50_000_000\nsubprocess.run([sys.executable, '-c', 'while True: pass'])"
    )
    arn = run(ecs, python(program))
    base = environment_of(corral, arn)["ECS_CONTAINER_METADATA_URI_V4"]

    def between():
        status, stats = fetch(f"{base}/stats")
        assert status == 200
        return stats if stats["precpu_stats"]["cpu_usage"]["total_usage"] >= 0.5e9 else None

    stats = eventually(between, "two measurements")
    now, before = stats["cpu_stats"], stats["precpu_stats"]
    used = now["cpu_usage"]["total_usage"] - before["cpu_usage"]["total_usage"]
    of_all = now["system_cpu_usage"] - before["system_cpu_usage"]
    assert 0 < used <= of_all * 1.1
    assert now["cpu_usage"]["total_usage"] == now["cpu_usage"]["usage_in_usermode"] + now["cpu_usage"]["usage_in_kernelmode"]
    assert now["online_cpus"] >= 1
    assert stats["preread"] < stats["read"]
    assert 50_000_000 < stats["memory_stats"]["usage"] < stats["memory_stats"]["limit"]
    assert stats["pids_stats"]["current"] >= 2
    assert {entry["op"] for entry in stats["blkio_stats"]["io_service_bytes_recursive"]} == {"Read", "Write"}
    assert "networks" not in stats  # it has the host's
    stop(ecs, arn)


def test_the_password_is_in_no_answer_and_in_no_file(corral, ecs):
    arn = run(ecs, container(["sleep", "600"]))
    eventually(lambda: ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] == "RUNNING", "running")
    key = bytes.fromhex(json.loads((corral.data / "sessions.json").read_text())["key"])
    password = sessions.password_of_task(key, id_of(arn))
    assert password not in json.dumps(ecs.describe_tasks(tasks=[arn]), default=str)
    assert password not in corral.log()
    assert files_with(corral.data, password) == []
    stop(ecs, arn)


def test_a_task_protects_itself(corral, ecs):
    arn, told = start_living(corral)
    url = told["ECS_AGENT_URI"] + "/task-protection/v1/state"
    nothing = {"ExpirationDate": None, "ProtectionEnabled": False, "TaskArn": arn}
    assert fetch(url) == (200, {"protection": nothing})
    status, answer = fetch(url, "PUT", b'{"ProtectionEnabled": true, "ExpiresInMinutes": 60}')
    assert status == 200 and answer["protection"]["ProtectionEnabled"] and answer["protection"]["TaskArn"] == arn
    until = datetime.fromisoformat(answer["protection"]["ExpirationDate"].replace("Z", "+00:00"))
    assert timedelta(minutes=59) < until - datetime.now(UTC) <= timedelta(minutes=60)
    assert fetch(url) == (200, answer)
    [shown] = ecs.get_task_protection(cluster="default", tasks=[arn])["protectedTasks"]
    assert shown["protectionEnabled"]
    for wrong in ("", "[]", "{}", '{"ProtectionEnabled": 1}', '{"ProtectionEnabled": true, "x": 1}',
                  '{"ProtectionEnabled": true, "ExpiresInMinutes": true}',
                  '{"ProtectionEnabled": true, "ExpiresInMinutes": 0}'):  # fmt: skip
        status, answer = fetch(url, "PUT", wrong.encode())
        assert status == 400 and answer["error"]["Code"] == "InvalidParameterException"
    assert fetch(url, "PUT", b'{"ProtectionEnabled": false}') == (200, {"protection": nothing})
    assert fetch(url, "POST", b"{}")[0] == 405
    stop(ecs, arn)
    status, answer = fetch(url)
    assert (status, answer["error"]["Code"]) == (404, "ResourceNotFoundException")
