"""People: an administrator adds them, they connect from another machine, and see and change what is theirs."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from command import Cli
from eventually import eventually

NAME = "127.0.1.1"  # the address at which other machines reach the server
DENIED = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "AuthorizationError")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("server"))
    try:
        made("up", "--detach", "--port", "0", "--gpus", "sim:2", "--runtime", "process", "--tls", "--tls-names", NAME)
        yield made
    finally:
        made.clear()


@pytest.fixture
def laptop(server: Cli, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes accounts on other machines: without a data folder, without variables."""

    def make() -> Cli:
        made = Cli(tmp_path_factory.mktemp("laptop"))
        for name in [each for each in made.environment if each.startswith(("AWS_", "CORRAL_"))]:
            del made.environment[name]
        return made

    return make


def words(line: str) -> list[str]:
    """The words of a command that `corral user` has printed, without `corral`."""
    return shlex.split(line.strip())[1:]


def connected(server: Cli, laptop: Any, name: str, *groups: str) -> Cli:
    """Add a person, and connect an account of another machine."""
    chosen = [word for group in groups for word in ("--group", group)]
    made: Cli = laptop()
    made(*words(server("user", "add", name, *chosen).stdout))
    return made


def clients(account: Cli) -> Any:
    """Return the function that makes clients with the profile that `corral connect` has written."""
    lines = [(account.home / ".aws" / name).read_text().splitlines() for name in ("config", "credentials")]
    values = dict(line.split(" = ", 1) for each in lines for line in each if " = " in line)
    keys = {name: values[name] for name in ("aws_access_key_id", "aws_secret_access_key")}

    def client(service: str) -> Any:
        return boto3.client(
            service, endpoint_url=values["endpoint_url"], region_name=values["region"], verify=values["ca_bundle"], **keys
        )

    return client


def refused(call: Any, **params: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    assert error["Code"] in DENIED or error["Code"] == "403", error
    return str(error["Message"])


def test_a_person_connects_once_and_only_to_the_server_that_made_the_code(server: Cli, laptop: Any) -> None:
    line = server("user", "add", "ann").stdout
    assert line.startswith(f"corral connect https://{NAME}:")
    ann = laptop()
    verb, url, option, code = words(line)
    other_pin = f"{code.rpartition('.')[0]}.{'A' * 43}"
    said = ann(verb, url, option, other_pin, code=1).stderr
    assert "is not that of the server which made this command" in said and not (ann.home / ".aws").exists()
    assert "has no TLS" in ann(verb, "http://10.0.0.1:1", option, code, code=1).stderr
    assert "is not valid: it is not one of this server" in ann(verb, url, option, f"x{code}", code=1).stderr
    ann.environment["AWS_CA_BUNDLE"] = "/other.pem"
    connected = ann(verb, url, option, code)
    assert f"You are ann on https://{NAME}:" in connected.stdout and "AWS_CA_BUNDLE is set here" in connected.stderr
    del ann.environment["AWS_CA_BUNDLE"]
    assert (ann.home / ".aws" / "credentials").stat().st_mode & 0o777 == 0o600
    assert "has been used" in laptop()(verb, url, option, code, code=1).stderr
    assert re.match(r"Corral 0\S+ at https://\S+\n", ann("status").stdout)  # without variables
    assert "is a user already" in server("user", "add", "ann", code=1).stderr
    assert "there is no group none" in server("user", "add", "x", "--group", "none", code=1).stderr
    assert json.loads(server("user", "list", "--json").stdout)[0]["groups"] == ["users"]
    (laptop_2 := laptop())(*words(server("user", "key", "ann").stdout))
    assert "ann has 2 access keys already" in server("user", "key", "ann", code=1).stderr
    third, replaced = laptop(), words(server("user", "key", "ann", "--replace").stdout)
    assert "has been used" in laptop()(verb, url, option, code, code=1).stderr, "ann has no key again, as when the code was made"
    third(*replaced)
    assert "refused the access key" in laptop_2("status", code=1).stderr
    assert "not authorized to perform: iam:ListUsers" in third("user", "list", code=1).stderr


def test_people_see_the_line_and_read_and_stop_only_what_is_theirs(server: Cli, laptop: Any) -> None:
    bob, carol = (clients(connected(server, laptop, name)) for name in ("bob", "carol"))
    task = server.start_task(
        "--name", "roots", "--env", "TOKEN=hunter2", "--", "sh", "-c", "echo secret; sleep 600", family="roots"
    )
    bob("s3").create_bucket(Bucket="of-bob")
    bob("s3").put_object(Bucket="of-bob", Key="key", Body=b"bob's")
    url = bob("sqs").create_queue(QueueName="of-bob")["QueueUrl"]
    bob("ssm").put_parameter(Name="of-bob", Value="bob's", Type="SecureString")
    bob("secretsmanager").create_secret(Name="of-bob", SecretString="bob's")
    assert bob("s3").get_object(Bucket="of-bob", Key="key")["Body"].read() == b"bob's"
    data = {"LaunchTemplateName": "of-bob", "LaunchTemplateData": {"InstanceType": "g5.xlarge", "UserData": "c2VjcmV0"}}
    bob("ec2").create_launch_template(**data)
    ecs, logs = carol("ecs"), carol("logs")
    attempts = [
        (carol("s3").get_object, {"Bucket": "of-bob", "Key": "key"}),
        (carol("s3").put_object, {"Bucket": "of-bob", "Key": "key", "Body": b"mine now"}),
        (carol("s3").delete_object, {"Bucket": "of-bob", "Key": "key"}),
        (carol("s3").list_objects_v2, {"Bucket": "of-bob"}),
        (carol("s3").put_bucket_policy, {"Bucket": "of-bob", "Policy": "{}"}),
        (carol("sqs").receive_message, {"QueueUrl": url}),
        (carol("sqs").delete_queue, {"QueueUrl": url}),
        (carol("ssm").get_parameter, {"Name": "of-bob", "WithDecryption": True}),
        (carol("ssm").put_parameter, {"Name": "of-bob", "Value": "mine", "Overwrite": True}),
        (carol("secretsmanager").get_secret_value, {"SecretId": "of-bob"}),
        (ecs.stop_task, {"task": task}),
        (ecs.describe_tasks, {"tasks": [task]}),
        (ecs.execute_command, {"task": task, "command": "sh", "interactive": True}),
        (ecs.describe_task_definition, {"taskDefinition": "roots"}),
        (ecs.run_task, {"taskDefinition": "roots"}),
        (ecs.delete_cluster, {"cluster": "default"}),
        (logs.get_log_events, {"logGroupName": "/corral/run", "logStreamName": f"roots/main/{task}"}),
        (logs.delete_log_group, {"logGroupName": "/corral/run"}),
        (ecs.put_account_setting_default, {"name": "containerInsights", "value": "enabled"}),
        (ecs.list_tags_for_resource, {"resourceArn": f"arn:aws:ecs:us-east-1:123456789012:task/default/{task}"}),
        (carol("iam").create_user, {"UserName": "eve"}),
        (carol("iam").attach_user_policy, {"UserName": "carol", "PolicyArn": "arn:aws:iam::aws:policy/AdministratorAccess"}),
        (carol("iam").add_user_to_group, {"UserName": "carol", "GroupName": "admins"}),
        (carol("iam").create_access_key, {"UserName": "bob"}),
        (carol("iam").create_role, {"RoleName": "mine", "AssumeRolePolicyDocument": "{}"}),
        (carol("sts").assume_role, {"RoleArn": "arn:aws:iam::123456789012:role/any", "RoleSessionName": "carol"}),
    ]  # fmt: skip
    for call, params in attempts:
        assert "not authorized" in refused(call, **params) or call.__name__.endswith("object"), call.__name__
    assert [each["Name"] for each in carol("s3").list_buckets()["Buckets"]] == []
    assert carol("sqs").list_queues().get("QueueUrls", []) == [] and carol("secretsmanager").list_secrets()["SecretList"] == []
    assert carol("ec2").describe_launch_template_versions(LaunchTemplateName="of-bob")["LaunchTemplateVersions"] == []
    assert ecs.list_tasks()["taskArns"] == []
    family = {"family": "host", "containerDefinitions": [{"name": "c", "image": "corral/host", "command": ["id"], "memory": 64}]}
    assert "corral:RunOnHost" in refused(ecs.register_task_definition, **family)
    seen = carol("cloudtrail").lookup_events()["Events"]
    assert {each["Username"] for each in seen} == {"carol"} and len(seen) > 10  # of her own calls, those that were denied
    server("stop", task)


def test_the_line_shows_who_runs_what_and_admins_may_do_everything(server: Cli, laptop: Any) -> None:
    adam = connected(server, laptop, "adam", "admins")
    watcher = connected(server, laptop, "watcher", "viewers")
    task = server("run", "--detach", "--name", "of-root", "--", "sleep", "600").stdout.strip()
    own = adam("run", "--detach", "--name", "of-adam", "--", "sleep", "600").stdout.strip()
    shown = {line.split()[1]: line.split()[2] for line in watcher("ps").stdout.splitlines()[1:]}
    assert (shown["of-root"], shown["of-adam"]) == ("root", "adam")
    assert [line.split()[1] for line in adam("ps", "--mine").stdout.splitlines()[1:]] == ["of-adam"]
    assert "not authorized" in watcher("stop", own, code=1).stderr
    adam("stop", own, task)
    eventually(lambda: "of-adam" in server("history", "--json").stdout)
    ended = json.loads(adam("history", "--mine", "--json").stdout)
    assert {each["owner"] for each in ended} == {"user/adam"}
    assert len(json.loads(server("audit", "--user", "adam", "--action", "RunTask", "--json").stdout)) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other Unix accounts")
def test_names_mean_the_tasks_of_the_person(server: Cli, laptop: Any) -> None:
    """Others may have tasks with the same name. A wrong name is said to be wrong: their tasks are not asked for."""
    eli = connected(server, laptop, "eli")
    server("user", "unix", "eli", "daemon")
    ended = server("run", "--detach", "--name", "same", "--", "true").stdout.strip()
    eventually(lambda: server.task(ended)["lastStatus"] == "STOPPED")
    others = server("run", "--detach", "--name", "same", "--gpus", "2", "--", "sleep", "600").stdout.strip()
    own = eli("run", "--detach", "--name", "same", "--gpus", "1", "--", "true").stdout.strip()
    assert json.loads(eli("show", "same", "--json").stdout)["taskArn"].endswith(own)
    assert {line.split()[0] for line in eli("ps", "--all").stdout.splitlines()[1:] if line[0] != " "} == {own[:8], others[:8]}
    for verb in ("show", "logs", "stop", "pause"):
        assert "no task has the name 'sxme'" in eli(verb, "sxme", code=1).stderr, verb
    eli("stop", "same")
    assert server.task(own)["desiredStatus"] == "STOPPED" and server.task(others)["desiredStatus"] == "RUNNING"
    server("stop", others)


def test_the_cost_of_each_user(server: Cli, laptop: Any) -> None:
    cleo = connected(server, laptop, "cleo", "admins")
    for who, name in ((server, "cost-of-root"), (cleo, "cost-of-cleo")):
        who("run", "--gpus", "1", "--name", name, "--", "true")
    found = {line.split()[0]: line.split()[1] for line in cleo("cost").stdout.splitlines() if line.startswith("cost-of-")}
    assert found == {"cost-of-root": "root", "cost-of-cleo": "cleo"}
    mine = cleo("cost", "--mine").stdout
    assert "cost-of-cleo" in mine and "cost-of-root" not in mine and "USER" not in mine
    assert {each["owner"] for each in json.loads(cleo("cost", "--mine", "--json").stdout)["machine"]["names"]} == {"user/cleo"}


def test_a_removed_person_can_do_nothing_at_once(server: Cli, laptop: Any) -> None:
    dan = connected(server, laptop, "dan", "admins")
    session = clients(dan)("sts").get_session_token()["Credentials"]
    task = dan("run", "--detach", "--name", "of-dan", "--", "sleep", "600").stdout.strip()
    said = server("user", "remove", "dan", "--stop")
    assert "dan is removed, with 1 access key" in said.stdout and "1 task stops" in said.stderr
    assert "refused the access key" in dan("status", code=1).stderr
    keys = {"aws_access_key_id": session["AccessKeyId"], "aws_secret_access_key": session["SecretAccessKey"]}
    url = server.client("s3").meta.endpoint_url
    with pytest.raises(ClientError, match=r"InvalidClientTokenId|ExpiredToken"):
        boto3.client(
            "sts", endpoint_url=url, region_name="us-east-1", aws_session_token=session["SessionToken"], **keys
        ).get_caller_identity()
    assert "There is no user dan" in server("user", "remove", "dan", code=1).stderr
    eventually(lambda: task[:8] in server("history", "--json").stdout)
    server("user", "add", "dan")  # the same name, another user
    assert "refused the access key" in dan("status", code=1).stderr


def test_what_a_removed_person_owns_passes_or_stays(server: Cli, laptop: Any) -> None:
    def own_queue(name: str) -> Cli:
        person = connected(server, laptop, name)
        clients(person)("sqs").create_queue(QueueName=f"of-{name}")
        return person

    ina, own_queue_of = own_queue("ina"), server.client("sqs").get_queue_url
    for name in ("fay", "guy"):
        own_queue(name)
    said = server("user", "remove", "fay", "--to", "ina")
    assert said.stdout.splitlines() == ["fay is removed, with 1 access key.", "1 resource of fay passed to ina."]
    urls = [each.rpartition("/")[2] for each in clients(ina)("sqs").list_queues()["QueueUrls"]]
    assert urls == ["of-fay", "of-ina"] and own_queue_of(QueueName="of-fay")
    for wrong, why in (("guy", "cannot pass to the same user"), ("absent", "There is no user absent")):
        assert why in server("user", "remove", "guy", "--to", wrong, code=1).stderr
    assert "stays under this name, and only root and admins reach it" in server("user", "remove", "guy").stderr
    again = server("user", "add", "guy")
    assert "Another guy was removed before. This one owns what that one has left." in again.stderr
    assert "Another guy" not in server("user", "key", "guy").stderr
    server("user", "remove", "guy")
    found = json.loads(server("user", "remove", "guy", "--to", "root", "--json").stdout)  # later
    assert (found["wasGone"], found["to"], found["passed"], found["passing"]) == (True, "root", 1, False)
    assert "Another guy" not in server("user", "add", "guy").stderr, "nothing is left"


def test_the_groups_are_made_once(own: Cli) -> None:
    own("up", "--detach", "--port", "0", "--gpus", "none", "--runtime", "process")
    iam = own.client("iam")
    assert sorted(each["GroupName"] for each in iam.list_groups()["Groups"]) == ["admins", "users", "viewers"]
    [attached] = iam.list_attached_group_policies(GroupName="viewers")["AttachedPolicies"]
    iam.detach_group_policy(GroupName="viewers", PolicyArn=attached["PolicyArn"])
    iam.delete_group(GroupName="viewers")
    own("down")
    own("up", "--detach", "--port", "0")
    assert sorted(each["GroupName"] for each in own.client("iam").list_groups()["Groups"]) == ["admins", "users"]
    line = own("user", "add", "zoe").stdout
    assert line.startswith("corral connect http://127.0.0.1:")  # for another account of this machine


def test_an_account_that_no_host_has_is_named_at_once(server: Cli) -> None:
    added = server("user", "add", "gus", "--unix", "corral-absent")
    assert "corral connect https" in added.stdout and "run processes as corral-absent" in added.stderr
    changed = server("user", "unix", "gus", "corral-gone")
    assert changed.stdout == "Processes of gus run as the Unix account corral-gone.\n"
    assert "run processes as corral-gone: create the account there" in changed.stderr
    if os.geteuid() == 0:
        assert "run processes as" not in server("user", "unix", "gus", "daemon").stderr
    assert "run processes as" not in server("user", "unix", "gus", "--none").stderr
