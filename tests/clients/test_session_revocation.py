"""Sessions end before they expire: by `corral revoke`, and when the root key that created them is replaced."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from command import Cli
from corral.access import sessions
from corral.model.principal import role_session
from harness import MAKING_A_CLIENT, REGION, SESSION, Corral, container, eventually
from ports import free_port

ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/worker"


def identity(url: str, credentials: dict[str, str]) -> str:
    """The ARN of the caller, or the code of the refusal."""
    with MAKING_A_CLIENT:
        sts = SESSION.client(
            "sts",
            region_name=REGION,
            endpoint_url=url,
            aws_access_key_id=credentials["AccessKeyId"],
            aws_secret_access_key=credentials["SecretAccessKey"],
            aws_session_token=credentials["SessionToken"],
            config=Config(retries={"max_attempts": 0}),
        )
    try:
        return str(sts.get_caller_identity()["Arn"])
    except ClientError as error:
        return str(error.response["Error"]["Code"])


def of_task(data: Path, task_id: str, epoch: str = "0") -> dict[str, str]:
    """What the credentials endpoint gives to a task."""
    key = bytes.fromhex(json.loads((data / "sessions.json").read_text())["key"])
    principal = role_session(ACCOUNT, "worker", task_id, "root")
    made = sessions.issue(key, b"a-task", principal, 4_000_000_000, task_id, epoch=epoch)
    return {"AccessKeyId": made.session.access_key_id, "SecretAccessKey": made.secret_key, "SessionToken": made.token}


def requested(url: str, data: Path, task_id: str) -> str:
    """What the credentials endpoint answers to a task: the code of the refusal, or a member of the response."""
    key = bytes.fromhex(json.loads((data / "sessions.json").read_text())["key"])
    headers = {"Authorization": sessions.password_of_task(key, task_id)}
    try:
        content = json.load(urllib.request.urlopen(urllib.request.Request(f"{url}/v2/credentials/{task_id}", headers=headers)))
    except urllib.error.HTTPError as error:
        return str(json.load(error)["code"])
    return str(next(iter(content)))


def start(ecs: Any) -> str:
    ecs.register_task_definition(family="holder", containerDefinitions=[container(["sleep", "600"])])
    arn = ecs.run_task(taskDefinition="holder")["tasks"][0]["taskArn"]
    eventually(lambda: ecs.describe_tasks(tasks=[arn])["tasks"][0]["lastStatus"] == "RUNNING", "running")
    return str(arn.rpartition("/")[2])


def test_revoke(own: Cli) -> None:
    up = ("up", "--detach", "--port", str(free_port()), "--gpus", "sim:2")
    own(*up)
    url, data = own.json("env")["AWS_ENDPOINT_URL"], own.data
    sts, ecs = own.client("sts"), own.client("ecs")
    first, second = start(ecs), start(ecs)
    root = sts.assume_role(RoleArn=ROLE, RoleSessionName="me")["Credentials"]
    one, two = of_task(data, first), of_task(data, second)
    assert identity(url, one).endswith(first) and identity(url, two).endswith(second)

    assert own.json("revoke", "--task", first[:8]) == {"task": first}
    assert identity(url, one) == "ExpiredToken"
    assert identity(url, two).endswith(second) and identity(url, root).endswith("worker/me")
    assert own("revoke", "--task", first).stdout == f"{first[:8]} has no valid credentials now\n"
    assert [requested(url, data, each) for each in (first, second)] == ["InvalidIdInRequest", "RoleArn"]

    assert own("revoke", "--all").stdout.startswith("All temporary credentials are revoked")
    assert [identity(url, each) for each in (one, two, root)] == ["ExpiredToken"] * 3
    assert identity(url, of_task(data, second, "1")).endswith(second), "a task gets new credentials"
    assert identity(url, sts.assume_role(RoleArn=ROLE, RoleSessionName="me")["Credentials"]).endswith("worker/me")

    own("down")
    own(*up)
    assert [identity(url, each) for each in (one, two, root)] == ["ExpiredToken"] * 3
    assert identity(url, of_task(data, first, "1")) == "ExpiredToken", "a restart forgets no revocation"
    assert identity(url, of_task(data, second, "1")).endswith(second)
    assert oct((data / "sessions.json").stat().st_mode)[-3:] == "600"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "either --task TASK or --all"),
        (("--all", "--task", "x"), 2, "either --task TASK or --all"),
        (("--task", "f" * 32), 1, "f" * 8),
    ],
)
def test_refusals_of_revoke(cli: Cli, arguments: tuple[str, ...], code: int, text: str) -> None:
    assert text in cli("revoke", *arguments, code=code).stderr


def test_sessions_cannot_revoke(cli: Cli) -> None:
    made = cli.client("sts").assume_role(RoleArn=ROLE, RoleSessionName="me")["Credentials"]
    environment = cli.json("env") | {
        "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
        "AWS_SESSION_TOKEN": made["SessionToken"],
    }
    assert "sign the request with the root key" in cli("revoke", "--all", code=1, env=environment).stderr


def test_another_root_key_ends_the_sessions_of_the_old_one(own_corral: Any) -> None:
    corral: Corral = own_corral().start()
    made = corral.client("sts").assume_role(RoleArn=ROLE, RoleSessionName="me")["Credentials"]
    task_id = start(corral.client("ecs"))
    task = of_task(corral.data, task_id)
    corral.kill("corral.server")
    corral.start()
    assert identity(corral.url, made).endswith("worker/me"), "a restart alone ends no session"
    corral.kill("corral.server")
    (corral.data / "credentials.json").unlink()
    corral.start()
    assert identity(corral.url, made) == "ExpiredToken"
    assert identity(corral.url, task).endswith(task_id), "tasks did not get their credentials from the root key"
