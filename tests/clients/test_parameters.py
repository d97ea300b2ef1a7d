"""The Parameter Store through boto3 and the stock aws command, and its values inside tasks."""

from __future__ import annotations

import sqlite3
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from harness import Corral, container, files_with, wait_stopped

SECRET = "hunter2-and-more"


@pytest.fixture
def ssm(client: Callable[..., Any]) -> Any:
    return client("ssm")


def refusal(call: Callable[..., Any], **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def names(reply: dict[str, Any]) -> list[str]:
    return [parameter["Name"] for parameter in reply["Parameters"]]


def test_a_parameter_and_its_versions(ssm: Any) -> None:
    put = ssm.put_parameter(Name="/app/db/host", Value="one", Type="String", Description="where", Tags=[{"Key": "a", "Value": "b"}])
    assert (put["Version"], put["Tier"]) == (1, "Standard")
    assert refusal(ssm.put_parameter, Name="/app/db/host", Value="two", Type="String")[0] == "ParameterAlreadyExists"
    assert ssm.put_parameter(Name="/app/db/host", Value="two", Overwrite=True)["Version"] == 2
    found = ssm.get_parameter(Name="/app/db/host")["Parameter"]
    assert (found["Value"], found["Type"], found["Version"], found["DataType"]) == ("two", "String", 2, "text")
    assert found["ARN"] == "arn:aws:ssm:us-east-1:123456789012:parameter/app/db/host"
    by_version = ssm.get_parameter(Name="/app/db/host:1")["Parameter"]
    assert (by_version["Value"], by_version["Selector"], by_version["Name"]) == ("one", ":1", "/app/db/host")
    assert ssm.get_parameter(Name=found["ARN"])["Parameter"]["Value"] == "two"
    code, message = refusal(ssm.get_parameter, Name="/app/db/host:9")
    assert (code, "version 9" in message) == ("ParameterVersionNotFound", True)
    history = ssm.get_parameter_history(Name="/app/db/host")["Parameters"]
    assert [(each["Version"], each["Value"]) for each in history] == [(1, "one"), (2, "two")]
    assert history[0]["Description"] == "where" and history[0]["LastModifiedUser"].endswith(":root")
    ssm.delete_parameter(Name="/app/db/host")
    assert refusal(ssm.get_parameter, Name="/app/db/host")[0] == "ParameterNotFound"
    assert refusal(ssm.delete_parameter, Name="/app/db/host")[0] == "ParameterNotFound"
    assert ssm.put_parameter(Name="/app/db/host", Value="new", Type="String")["Version"] == 1


def test_a_root_parameter_has_one_name_with_and_without_a_slash(ssm: Any) -> None:
    for stored, other in (("root-a", "/root-a"), ("/root-b", "root-b")):
        ssm.put_parameter(Name=stored, Value="1", Type="String", Tags=[{"Key": "a", "Value": "1"}])
        assert refusal(ssm.put_parameter, Name=other, Value="2", Type="String")[0] == "ParameterAlreadyExists"
        assert ssm.put_parameter(Name=other, Value="2", Overwrite=True)["Version"] == 2
        found = ssm.get_parameter(Name=other)["Parameter"]
        assert (found["Name"], found["Value"], found["ARN"]) == (other, "2", ssm.get_parameter(Name=stored)["Parameter"]["ARN"])
        assert ssm.get_parameter(Name=f"{other}:1")["Parameter"]["Value"] == "1"
        assert names(ssm.get_parameters(Names=[other])) == [other]
        ssm.add_tags_to_resource(ResourceType="Parameter", ResourceId=other, Tags=[{"Key": "b", "Value": "2"}])
        assert len(ssm.list_tags_for_resource(ResourceType="Parameter", ResourceId=stored)["TagList"]) == 2
        assert len(ssm.get_parameter_history(Name=other)["Parameters"]) == 2
        ssm.label_parameter_version(Name=other, ParameterVersion=1, Labels=["first"])
        assert ssm.delete_parameters(Names=[other])["DeletedParameters"] == [other]
        assert refusal(ssm.get_parameter, Name=stored)[0] == "ParameterNotFound"
    ssm.put_parameter(Name="/root-c/d", Value="1", Type="String")
    for wrong in ("root-c/d", "/root-c//d", "root c"):
        assert refusal(ssm.get_parameter, Name=wrong)[0] == "ValidationException"


def test_several_parameters_in_one_request(ssm: Any) -> None:
    for name in ("many-a", "many-b"):
        ssm.put_parameter(Name=name, Value=name, Type="StringList")
    got = ssm.get_parameters(Names=["many-b", "many-none", "many-a:1", "many-a:7"])
    assert (names(got), got["InvalidParameters"]) == (["many-a", "many-b"], ["many-none", "many-a:7"])
    assert names(ssm.get_parameters(Names=[" many-a", "many-b "])) == ["many-a", "many-b"]  # AWS removes such spaces
    assert ssm.get_parameter(Name="arn:aws:ssm:us-east-1:123456789012:parameter/many-a")["Parameter"]["Name"] == "many-a"
    gone = ssm.delete_parameters(Names=["many-a", "many-none"])
    assert (gone["DeletedParameters"], gone["InvalidParameters"]) == (["many-a"], ["many-none"])
    code, message = refusal(ssm.get_parameters, Names=[f"n{at}" for at in range(11)])
    assert (code, "less than or equal to 10" in message) == ("ValidationException", True)


@pytest.mark.parametrize(
    "params, code, words",
    [
        ({"Name": "awsome"}, "ValidationException", "can't be prefixed with"),
        ({"Name": "/aws/mine"}, "AccessDeniedException", "No access to reserved parameter name"),
        ({"Name": "/SSM/mine"}, "ValidationException", "ssm"),
        ({"Name": "a/b"}, "ValidationException", "fully qualified"),
        ({"Name": "with space"}, "ValidationException", "letters, numbers"),
        ({"Name": "/x" * 16}, "HierarchyLevelLimitExceededException", "15 levels"),
        ({"Name": "x" * 1000}, "ValidationException", "1011"),
        ({"Value": ""}, "ValidationException", "greater than or equal to 1"),
        ({"Value": "a {{ssm:b}} c"}, "ValidationException", 'Do not use "{{}}" in the value.'),
        ({"Value": "x" * 4097}, "ValidationException", "4096"),
        ({"Value": "x" * 8193, "Tier": "Advanced"}, "ValidationException", "8192"),
        ({"Type": "Number"}, "ValidationException", "enum value set"),
        ({"Type": None}, "ValidationException", "type is required"),
        ({"AllowedPattern": "[0-9"}, "InvalidAllowedPatternException", "missing ]"),
        ({"AllowedPattern": r"^\d+$"}, "ParameterPatternMismatchException", r"^\d+$"),
        ({"DataType": "Text"}, "ValidationException", "data type is not supported"),
        ({"KeyId": "alias/mine"}, "ValidationException", "SecureString"),
        (
            {"Policies": '[{"Type":"Expiration","Attributes":{"Timestamp":"2099-01-01T00:00:00Z"}}]'},
            "ValidationException",
            "advanced-parameter tier",
        ),
        ({"Policies": '[{"Type":"Odd"}]', "Tier": "Advanced"}, "InvalidPolicyTypeException", "Odd"),
        ({"Overwrite": True, "Tags": [{"Key": "a", "Value": "b"}]}, "ValidationException", "can't be used together"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_invalid_parameters(ssm: Any, params: dict[str, Any], code: str, words: str) -> None:
    given = {"Name": "refused", "Value": "v-a-l-u-e", "Type": "String", **params}
    refused, message = refusal(ssm.put_parameter, **{key: value for key, value in given.items() if value is not None})
    assert refused == code and words in message and "v-a-l-u-e" not in message
    assert refusal(ssm.get_parameter, Name="refused")[0] == "ParameterNotFound"


def test_tiers_and_patterns(ssm: Any) -> None:
    assert ssm.put_parameter(Name="tier", Value="x" * 5000, Type="String", Tier="Intelligent-Tiering")["Tier"] == "Advanced"
    assert "downgrade" in refusal(ssm.put_parameter, Name="tier", Value="x", Overwrite=True, Tier="Standard")[1]
    assert ssm.put_parameter(Name="tier", Value="y", Overwrite=True)["Tier"] == "Advanced"
    ssm.put_parameter(Name="number", Value="42", Type="String", AllowedPattern=r"^\d+$")
    assert (
        refusal(ssm.put_parameter, Name="number", Value="42", Type="StringList", Overwrite=True)[0]
        == "HierarchyTypeMismatchException"
    )
    policy = '[{"Type":"Expiration","Version":"1.0","Attributes":{"Timestamp":"2099-01-01T00:00:00.000Z"}}]'
    ssm.put_parameter(Name="kept", Value="x", Type="String", Tier="Advanced", Policies=policy)
    [shown] = ssm.describe_parameters(ParameterFilters=[{"Key": "Name", "Values": ["kept"]}])["Parameters"]
    assert [each["PolicyType"] for each in shown["Policies"]] == ["Expiration"]
    assert shown["ARN"].endswith(":parameter/kept") and "Value" not in shown


def test_a_parameter_has_at_most_a_hundred_versions(ssm: Any) -> None:
    for at in range(100):
        ssm.put_parameter(Name="long", Value=str(at), Type="String", Overwrite=True)
    ssm.label_parameter_version(Name="long", ParameterVersion=1, Labels=["first"])
    code, message = refusal(ssm.put_parameter, Name="long", Value="x", Overwrite=True)
    assert (code, "Version 1, the oldest version" in message) == ("ParameterMaxVersionLimitExceeded", True)
    ssm.label_parameter_version(Name="long", Labels=["first"])
    ssm.put_parameter(Name="long", Value="x", Overwrite=True)
    history = [each for page in ssm.get_paginator("get_parameter_history").paginate(Name="long") for each in page["Parameters"]]
    assert [each["Version"] for each in history] == list(range(2, 102))


def test_labels(ssm: Any) -> None:
    for value in ("a", "b"):
        ssm.put_parameter(Name="/labels/x", Value=value, Type="String", Overwrite=True)
    reply = ssm.label_parameter_version(Name="/labels/x", ParameterVersion=1, Labels=["stable", "aws-no", "1st"])
    assert (reply["InvalidLabels"], reply["ParameterVersion"]) == (["aws-no", "1st"], 1)
    assert ssm.get_parameter(Name="/labels/x:stable")["Parameter"]["Value"] == "a"
    by_label = [{"Key": "Label", "Values": ["stable"]}]
    assert [each["Value"] for each in ssm.get_parameters_by_path(Path="/labels", ParameterFilters=by_label)["Parameters"]] == ["a"]
    ssm.label_parameter_version(Name="/labels/x", Labels=["stable"])  # the label moves
    assert ssm.get_parameter(Name="/labels/x:stable")["Parameter"]["Value"] == "b"
    assert [each["Labels"] for each in ssm.get_parameter_history(Name="/labels/x")["Parameters"]] == [[], ["stable"]]
    more = [f"label{at}" for at in range(10)]
    assert refusal(ssm.label_parameter_version, Name="/labels/x", Labels=more)[0] == "ParameterVersionLabelLimitExceeded"
    gone = ssm.unlabel_parameter_version(Name="/labels/x", ParameterVersion=2, Labels=["stable", "other"])
    assert (gone["RemovedLabels"], gone["InvalidLabels"]) == (["stable"], ["other"])
    assert refusal(ssm.get_parameter, Name="/labels/x:stable")[0] == "ParameterVersionNotFound"


def test_paths_and_filters(ssm: Any) -> None:
    for name in ("/tree/a", "/tree/b/c", "/tree/b/d", "/treetop", "tree-root"):
        ssm.put_parameter(Name=name, Value="x", Type="String")
    ssm.put_parameter(Name="/tree/s", Value="x", Type="SecureString", KeyId="alias/mine")
    ssm.add_tags_to_resource(ResourceType="Parameter", ResourceId="/tree/a", Tags=[{"Key": "team", "Value": "one"}])
    assert names(ssm.get_parameters_by_path(Path="/tree/")) == ["/tree/a", "/tree/s"]
    pages = ssm.get_paginator("get_parameters_by_path").paginate(Path="/tree", Recursive=True, PaginationConfig={"PageSize": 1})
    assert [name for page in pages for name in names(page)] == ["/tree/a", "/tree/b/c", "/tree/b/d", "/tree/s"]
    root = [name for page in ssm.get_paginator("get_parameters_by_path").paginate(Path="/") for name in names(page)]
    assert {"/treetop", "tree-root"} <= set(root) and "/tree/a" not in root

    def found(*filters: dict[str, Any]) -> list[str]:
        pages = ssm.get_paginator("describe_parameters").paginate(ParameterFilters=[*filters])
        return [name for page in pages for name in names(page)]

    under = {"Key": "Path", "Option": "Recursive", "Values": ["/tree"]}
    assert found(under) == ["/tree/a", "/tree/b/c", "/tree/b/d", "/tree/s"]
    assert found({"Key": "Path", "Values": ["/tree"]}) == ["/tree/a", "/tree/s"]
    assert found(under, {"Key": "Type", "Values": ["SecureString"]}) == ["/tree/s"]
    assert found(under, {"Key": "KeyId", "Values": ["alias/mine"]}) == ["/tree/s"]
    assert found({"Key": "tag:team", "Values": ["one", "two"]}) == ["/tree/a"]
    assert found({"Key": "Name", "Option": "Contains", "Values": ["reeto"]}) == ["/treetop"]
    assert found({"Key": "Name", "Option": "BeginsWith", "Values": ["/tree/b"]}) == ["/tree/b/c", "/tree/b/d"]
    assert names(ssm.describe_parameters(Filters=[{"Key": "Name", "Values": ["/tree/b/"]}])) == ["/tree/b/c", "/tree/b/d"]
    by_path = ssm.get_parameters_by_path
    assert refusal(by_path, Path="tree")[0] == "ValidationException"
    assert refusal(by_path, Path="/", NextToken="abc")[0] == "InvalidNextToken"
    assert refusal(by_path, Path="/", ParameterFilters=[{"Key": "Name", "Values": ["x"]}])[0] == "InvalidFilterKey"
    odd = [{"Key": "Type", "Option": "Contains", "Values": ["x"]}]
    assert refusal(ssm.describe_parameters, ParameterFilters=odd)[0] == "InvalidFilterOption"
    assert refusal(ssm.describe_parameters, ParameterFilters=[{"Key": "Name"}])[0] == "InvalidFilterValue"


def test_tags(ssm: Any) -> None:
    ssm.put_parameter(Name="tagged", Value="x", Type="String", Tags=[{"Key": "a", "Value": "1"}])
    about = {"ResourceType": "Parameter", "ResourceId": "tagged"}
    ssm.add_tags_to_resource(**about, Tags=[{"Key": "b", "Value": "2"}])
    ssm.remove_tags_from_resource(**about, TagKeys=["a"])
    assert ssm.list_tags_for_resource(**about)["TagList"] == [{"Key": "b", "Value": "2"}]
    assert refusal(ssm.list_tags_for_resource, ResourceType="Parameter", ResourceId="none")[0] == "InvalidResourceId"
    assert refusal(ssm.list_tags_for_resource, ResourceType="Document", ResourceId="x")[0] == "InvalidResourceType"
    ssm.delete_parameter(Name="tagged")
    ssm.put_parameter(Name="tagged", Value="x", Type="String")
    assert ssm.list_tags_for_resource(**about)["TagList"] == []


def test_public_parameters_with_image_ids(ssm: Any, aws: Callable[..., Any]) -> None:
    root = "/aws/service/ecs/optimized-ami/amazon-linux-2"
    image = ssm.get_parameter(Name=f"{root}/gpu/recommended/image_id")["Parameter"]
    assert image["Value"].startswith("ami-c044a1") and len(image["Value"]) == len("ami-") + 17
    assert image["ARN"] == f"arn:aws:ssm:us-east-1::parameter{root}/gpu/recommended/image_id"
    assert image["Value"] in ssm.get_parameter(Name=f"{root}/gpu/recommended")["Parameter"]["Value"]
    listed = names(ssm.get_parameters_by_path(Path="/aws/service/ami-amazon-linux-latest"))
    assert "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64" in listed
    assert f"{root}-none" in ssm.get_parameters(Names=[f"{root}-none"])["InvalidParameters"]
    latest = aws("ssm", "get-parameters", "--names", "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64")
    assert latest["Parameters"][0]["DataType"] == "aws:ec2:image"
    assert refusal(ssm.delete_parameter, Name=image["Name"])[0] == "AccessDeniedException"


def test_a_secure_string_is_encrypted_on_disk(corral: Corral, ssm: Any) -> None:
    ssm.put_parameter(Name="/secure/x", Value=SECRET, Type="SecureString")
    sealed = ssm.get_parameter(Name="/secure/x")["Parameter"]["Value"]
    assert SECRET not in sealed and SECRET.encode() not in b64decode(sealed)
    assert ssm.get_parameter(Name="/secure/x", WithDecryption=True)["Parameter"]["Value"] == SECRET
    ssm.put_parameter(Name="/secure/y", Value=SECRET, Type="SecureString")
    assert ssm.get_parameter(Name="/secure/y")["Parameter"]["Value"] != sealed  # a fresh nonce each time
    assert [each["KeyId"] for each in ssm.get_parameter_history(Name="/secure/x")["Parameters"]] == ["alias/aws/ssm"]
    assert files_with(corral.data, SECRET) == [] and SECRET not in corral.log()
    assert (corral.data / "secrets.json").stat().st_mode & 0o777 == 0o600


def test_a_value_of_another_parameter_or_key_is_not_decrypted(own_corral: Callable[..., Corral]) -> None:
    corral = own_corral().start()
    ssm = corral.client("ssm")
    for name in ("x", "y"):
        ssm.put_parameter(Name=name, Value=f"{name}-{SECRET}", Type="SecureString")
    corral.stop()
    database = sqlite3.connect(corral.data / "state.db")
    [sealed] = database.execute("SELECT value FROM parameter_version WHERE name = 'x'").fetchone()
    database.execute("UPDATE parameter_version SET value = ? WHERE name = 'y'", (sealed,))
    database.commit()
    database.close()
    ssm = corral.start().client("ssm")
    assert ssm.get_parameter(Name="x", WithDecryption=True)["Parameter"]["Value"] == f"x-{SECRET}"
    code, message = refusal(ssm.get_parameter, Name="y", WithDecryption=True)
    assert (code, SECRET in message) == ("InvalidKeyId", False)


def test_secrets_reach_only_their_task(corral: Corral, ssm: Any) -> None:
    ecs, logs = corral.client("ecs"), corral.client("logs")
    ssm.put_parameter(Name="/task/password", Value=SECRET + "-1", Type="SecureString")
    ssm.put_parameter(Name="task-plain", Value="plain", Type="String")
    arn = "arn:aws:ssm:us-east-1:123456789012:parameter/task/password"
    secrets = [{"name": "PASSWORD", "valueFrom": arn}, {"name": "PLAIN", "valueFrom": "task-plain"}]
    command = ["sh", "-c", "echo $(echo $PASSWORD | rev) $PLAIN"]
    ecs.register_task_definition(family="secret", containerDefinitions=[container(command, log_prefix="s", secrets=secrets)])
    task = ecs.run_task(taskDefinition="secret")["tasks"][0]
    [stopped] = wait_stopped(ecs, [task["taskArn"]])
    stream = f"s/main/{task['taskArn'].rpartition('/')[2]}"
    [event] = logs.get_log_events(logGroupName="/tests", logStreamName=stream)["events"]
    assert event["message"] == f"{(SECRET + '-1')[::-1]} plain"
    assert SECRET not in str(stopped) and SECRET not in str(ecs.describe_task_definition(taskDefinition="secret"))
    assert files_with(corral.data, f"{SECRET}-1") == [] and SECRET not in corral.log()


def test_a_task_whose_secret_is_missing_does_not_start(client: Callable[..., Any]) -> None:
    ecs = client("ecs")
    for family, more in (
        ("no-secret", {"secrets": [{"name": "X", "valueFrom": "/none/such"}]}),
        ("no-option", {"logConfiguration": {"logDriver": "splunk", "secretOptions": [{"name": "t", "valueFrom": "/none/such"}]}}),
    ):
        ecs.register_task_definition(family=family, containerDefinitions=[container(["true"], **more)])
        [task] = wait_stopped(ecs, [ecs.run_task(taskDefinition=family)["tasks"][0]["taskArn"]])
        assert task["stopCode"] == "TaskFailedToStart" and "startedAt" not in task
        assert task["stoppedReason"].startswith("ResourceInitializationError: unable to pull secrets")
        assert task["stoppedReason"].endswith("/none/such")


def test_invalid_secrets(client: Callable[..., Any]) -> None:
    ecs = client("ecs")
    twice = container(["true"], secrets=[{"name": "X", "valueFrom": "x"}], environment=[{"name": "X", "value": "1"}])
    assert "must be unique" in refusal(ecs.register_task_definition, family="twice", containerDefinitions=[twice])[1]
