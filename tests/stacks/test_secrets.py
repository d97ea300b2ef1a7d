"""Secrets on a virtual clock: those that stacks create and refer to, and the end of recovery windows."""

from __future__ import annotations

import string
from typing import Any

import orjson
import pytest

from corral.core.errors import ApiError
from corral.model.stack import StackStatus
from stacks.stack_world import World

DAY_S = 86_400.0
HIDDEN = "hush-hush"
TOKENS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(3)]


def secret(**properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::SecretsManager::Secret", "Properties": properties}


def parameter(name: str, value: Any) -> dict[str, Any]:
    return {"Type": "AWS::SSM::Parameter", "Properties": {"Name": name, "Type": "String", "Value": value}}


def value(world: World, name: str) -> str:
    return str(world.call("secretsmanager", "GetSecretValue", SecretId=name)["SecretString"])


def test_references_to_secrets() -> None:
    world = World()
    for at, text in enumerate(("old", HIDDEN)):
        operation, name = (("CreateSecret", "Name"), ("PutSecretValue", "SecretId"))[at]
        members = orjson.dumps({"password": text, "port": 5432}).decode()
        made = world.call("secretsmanager", operation, SecretString=members, ClientRequestToken=TOKENS[at], **{name: "db"})
    world.call("secretsmanager", "CreateSecret", Name="plain", SecretString="just text", ClientRequestToken=TOKENS[2])
    references = {
        "db:SecretString:password": HIDDEN,
        "db:SecretString:password::": HIDDEN,
        "db:SecretString:password:AWSPREVIOUS": "old",
        f"db:SecretString:password::{TOKENS[0]}": "old",
        f"{made['ARN']}:SecretString:port": "5432",
        f"{made['ARN'][:-7]}:SecretString:password:AWSCURRENT:": HIDDEN,
        "plain": "just text",
        "plain:SecretString": "just text",
        "plain:SecretString:::": "just text",
    }
    texts = {each: f"<{{{{resolve:secretsmanager:{each}}}}}>" for each in references}
    resources = {f"P{at}": parameter(f"/p{at}", text) for at, text in enumerate(texts.values())}
    stack = world.create({"Resources": resources, "Outputs": {"O": {"Value": texts["plain"]}}})
    assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)
    for at, (reference, expected) in enumerate(references.items()):
        assert world.ssm_value(f"/p{at}") == f"<{expected}>", reference
        assert world.row(f"P{at}").version.properties["Value"] == texts[reference]
    assert stack.version.outputs[0].value == texts["plain"]  # as on AWS, outputs are not resolved
    assert HIDDEN not in str(world.store.execute("SELECT * FROM stack_event").fetchall())
    for wrong, reason in (
        ("none", "Secrets Manager can't find the specified secret."),
        ("db:SecretString:none", "Could not find a value associated with JSONKey in SecretString"),
        ("plain:SecretString:a", "Could not parse SecretString JSON"),
        ("db:SecretBinary:a", "Incorrect format is used in the following Secrets Manager reference: [db:SecretBinary:a]"),
        (f"db:SecretString:password:AWSCURRENT:{TOKENS[0]}", "You provided a VersionStage that is not associated to"),
    ):
        stack = world.create({"Resources": {"P": parameter("/wrong", f"{{{{resolve:secretsmanager:{wrong}}}}}")}}, "wrong")
        assert stack.status is StackStatus.ROLLBACK_COMPLETE
        assert any(reason in each for _, _, each in world.events(stack, "P")), world.events(stack, "P")
        world.delete("wrong")
    world.check()


def test_secrets_of_stacks() -> None:
    world = World()
    options = {
        "PasswordLength": 20, "ExcludePunctuation": True, "ExcludeUppercase": True, "ExcludeCharacters": "0",
        "SecretStringTemplate": '{"username": "admin"}', "GenerateStringKey": "password",
    }  # fmt: skip
    copied = {"Fn::Join": ["", ["{{resolve:secretsmanager:", {"Ref": "Db"}, ":SecretString:password::}}"]]}
    resources = {
        "Db": secret(GenerateSecretString=options, Tags=[{"Key": "a", "Value": "1"}]),
        "Plain": secret(GenerateSecretString={}),
        "Empty": secret(Name="empty"),
        "Copy": parameter("/copy", copied),
        "Target": {
            "Type": "AWS::SecretsManager::SecretTargetAttachment",
            "Properties": {"SecretId": {"Ref": "Db"}, "TargetId": "database", "TargetType": "AWS::RDS::DBInstance"},
        },
        "Attached": parameter("/attached", {"Ref": "Target"}),
    }
    stack = world.create({"Resources": resources})
    assert stack.status is StackStatus.CREATE_COMPLETE, world.events(stack)
    arn = world.row("Db").version.physical_id or ""
    assert arn.split(":")[6].startswith("s-Db-") and world.ssm_value("/attached") == arn
    members = orjson.loads(value(world, arn))
    assert members.keys() == {"username", "password"} and members["username"] == "admin" and len(members["password"]) == 20
    assert set(members["password"]) <= set(string.ascii_lowercase + string.digits) - {"0"}
    assert world.ssm_value("/copy") == members["password"]
    assert len(value(world, world.row("Plain").version.physical_id or "")) == 32
    described = world.call("secretsmanager", "DescribeSecret", SecretId=arn)
    tags = {tag["Key"]: tag["Value"] for tag in described["Tags"]}
    assert tags["a"] == "1" and tags["aws:cloudformation:logical-id"] == "Db"
    with pytest.raises(ApiError):
        world.call("secretsmanager", "GetSecretValue", SecretId="empty")
    texts = [str(row) for row in world.store.execute("SELECT * FROM stack_event").fetchall()]
    assert texts and not any(members["password"] in text for text in texts)

    resources["Db"]["Properties"]["Description"] = "changed"
    world.update({"Resources": resources})
    assert orjson.loads(value(world, arn)) == members  # the password stays
    options["PasswordLength"] = 24
    world.update({"Resources": resources})
    assert len(orjson.loads(value(world, arn))["password"]) == 24
    assert world.ssm_value("/copy") == members["password"]  # as on AWS, only a change of the resource resolves the reference again
    for wrong, reason in (
        ({**options, "SecretStringTemplate": "[]"}, "SecretStringTemplate must be a JSON object"),
        ({"GenerateStringKey": "a"}, "must be specified together"),
        ({"PasswordLength": 0}, "greater than or equal to 1"),
    ):
        stack = world.create({"Resources": {"S": secret(GenerateSecretString=wrong)}}, "wrong")
        assert any(reason in each for _, _, each in world.events(stack, "S")), world.events(stack, "S")
        world.delete("wrong")
    assert world.delete().status is StackStatus.DELETE_COMPLETE
    assert world.call("secretsmanager", "ListSecrets", IncludePlannedDeletion=True)["SecretList"] == []
    world.check()


def test_the_end_of_a_recovery_window() -> None:
    world = World()
    for name in ("gone", "restored", "later"):
        world.call("secretsmanager", "CreateSecret", Name=name, SecretString="x", ClientRequestToken=TOKENS[0])
        world.call("secretsmanager", "DeleteSecret", SecretId=name, RecoveryWindowInDays=7)
    world.wait(6 * DAY_S)
    for name in ("restored", "later"):
        world.call("secretsmanager", "RestoreSecret", SecretId=name)
    world.call("secretsmanager", "DeleteSecret", SecretId="later")

    def left() -> list[str]:
        shown = world.call("secretsmanager", "ListSecrets", IncludePlannedDeletion=True, SortBy="name")["SecretList"]
        return [each["Name"] for each in shown]

    assert left() == ["gone", "later", "restored"]
    world.wait(2 * DAY_S)
    assert left() == ["later", "restored"]
    world.wait(27 * DAY_S)
    assert left() == ["later", "restored"]
    world.wait(2 * DAY_S)
    assert left() == ["restored"] and value(world, "restored") == "x"
    assert world.store.execute("SELECT count(*) FROM secret_version").fetchone()[0] == 1
