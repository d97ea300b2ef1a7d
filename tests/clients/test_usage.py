"""Who has used the GPUs, and who holds GPUs that do nothing, as root and as a user see it: boto3 and `corral`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from command import Cli
from eventually import eventually
from harness import SESSION, container

OWN = {"StringEquals": {"corral:Owner": "${corral:Caller}"}}
POLICY = [
    {"Effect": "Allow", "Action": ["ecs:*", "logs:*", "corral:RunOnHost", "corral:GetStatus"], "Resource": "*"},
    {"Effect": "Allow", "Action": "corral:DescribeUsage", "Resource": "*", "Condition": OWN},
]


class People:
    """A server, and the keys of root and of two users."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        about, root = (json.loads((cli.data / name).read_text()) for name in ("server.json", "credentials.json"))
        self.url = about["url"]
        self.keys = {"root": (root["access_key"], root["secret_key"])}
        iam = self.client("root", "iam")
        for name in ("ann", "eve"):
            iam.create_user(UserName=name)
            key = iam.create_access_key(UserName=name)["AccessKey"]
            self.keys[name] = key["AccessKeyId"], key["SecretAccessKey"]
        document = json.dumps({"Version": "2012-10-17", "Statement": POLICY})
        iam.put_user_policy(UserName="ann", PolicyName="p", PolicyDocument=document)

    def client(self, name: str, service: str = "corral") -> Any:
        access_key, secret_key = self.keys[name]
        names = {"aws_access_key_id": access_key, "aws_secret_access_key": secret_key}
        return SESSION.client(service, endpoint_url=self.url, region_name="us-east-1", **names)

    def environment(self, name: str) -> dict[str, str]:
        """The environment in which `corral` runs as a user."""
        access_key, secret_key = self.keys[name]
        names = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
        return {**names, "AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[People]:
    """A Corral that shows GPUs which do nothing for a second. Root holds two of them, and the user ann one."""
    cli = Cli(tmp_path_factory.mktemp("usage"))
    cli.data.mkdir(mode=0o700)
    (cli.data / "corral.toml").write_text("[usage]\nidle_after_s = 1\n")
    cli("up", "--detach", "--port", "0", "--gpus", "sim:4")
    cli("run", "-d", "-g", "2", "-n", "notebook", "--", "sleep", "600")
    people = People(cli)
    ecs = people.client("ann", "ecs")
    ecs.register_task_definition(family="train", containerDefinitions=[container(["sleep", "600"], gpus=1)])
    ecs.run_task(taskDefinition="train")
    yield people
    cli.clear()


def test_root_sees_all_and_a_user_only_their_own(people: People) -> None:
    own = people.client("root")
    found = {each["owner"]: each for each in own.describe_usage()["owners"]}
    assert {owner: each["gpus"] for owner, each in found.items()} == {"root": 2.0, "user/ann": 1.0}
    assert found["root"]["gpuHours"] > 0 and found["root"]["days"]
    assert sum(each["share"] for each in found.values()) == pytest.approx(1.0)
    seen = people.client("ann").describe_usage()["owners"]
    assert [each["owner"] for each in seen] == ["user/ann"] and seen[0]["share"] < 0.6
    assert people.client("ann").describe_usage(owner="root")["owners"] == []
    with pytest.raises(ClientError) as denied:
        people.client("eve").describe_usage()
    assert denied.value.response["Error"]["Code"] == "AccessDeniedException"
    with pytest.raises(own.exceptions.InvalidRequestException):
        own.describe_usage(utcOffset=90_000)


def test_the_command_shows_users_and_days(people: People) -> None:
    cli = people.cli
    said = cli("usage", env={"COLUMNS": "80"}).stdout
    assert all(len(line) <= 80 for line in said.splitlines()) and ("█" in said or "░" in said)
    lines = [line.split() for line in said.splitlines()]
    assert [line[0] for line in lines[3:5]] == ["root", "ann"] and [line[4] for line in lines[3:5]] == ["2", "1"]
    assert cli("usage", "--user", "ann").stdout.startswith("GPU-hours of ann since ")
    assert cli("usage", "--user", "bob").stdout.startswith("No GPU-hours of bob since ")
    assert [each["owner"] for each in cli.json("usage", "--mine")["owners"]] == ["root"]
    as_ann = cli("usage", "--json", env=people.environment("ann")).stdout
    assert [each["owner"] for each in json.loads(as_ann)["owners"]] == ["user/ann"]
    assert "either --user or --mine" in cli("usage", "--mine", "--user", "ann", code=2).stderr


def test_a_killed_server_loses_no_use(people: People) -> None:
    def used() -> dict[str, tuple[float, float]]:
        return {each["owner"]: (each["gpus"], each["gpuHours"]) for each in people.client("root").describe_usage()["owners"]}

    before = used()
    os.kill(json.loads((people.cli.data / "server.json").read_text())["pid"], signal.SIGKILL)
    people.cli("up", "--detach")
    people.url = json.loads((people.cli.data / "server.json").read_text())["url"]
    after = used()
    assert {owner: gpus for owner, (gpus, _) in after.items()} == {owner: gpus for owner, (gpus, _) in before.items()}
    assert all(after[owner][1] > before[owner][1] for owner in before), "the tasks hold their GPUs, also while there is no server"


def test_gpus_that_do_nothing_have_a_line(people: People) -> None:
    own = people.client("root")
    eventually(lambda: {each["owner"]: each["gpus"] for each in own.get_status()["idle"]} == {"root": 2.0, "user/ann": 1.0})
    for words in (("status",), ("top", "--once")):
        said = people.cli(*words).stdout
        assert "root holds 2 GPUs at 0% for " in said and ": notebook" in said
        assert "ann holds 1 GPU at 0% for " in said and ": train" in said
    assert {each["owner"] for each in people.client("ann").get_status()["idle"]} == {"root", "user/ann"}, "as the other tasks"
    eventually(lambda: all(each["idleGpuHours"] > 0 for each in own.describe_usage()["owners"]))
