"""Secrets Manager through boto3: secrets, their versions and staging labels, deletion, listing, policies and passwords."""

from __future__ import annotations

import json
import sqlite3
import string
from base64 import b64decode
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from each import check_each
from harness import Corral, container, files_with, wait_stopped

VALUE = "hunter2-and-more"
NOT_FOUND = ("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
MARKED = ("InvalidRequestException", "You can't perform this operation on the secret because it was marked for deletion.")
TOKENS = [f"{number:08d}-0000-4000-8000-000000000000" for number in range(10)]
CURRENT, PREVIOUS, PENDING = "AWSCURRENT", "AWSPREVIOUS", "AWSPENDING"


@pytest.fixture
def secrets(client: Callable[..., Any]) -> Any:
    return client("secretsmanager")


def refusal(call: Callable[..., Any], **params: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        call(**params)
    error = caught.value.response["Error"]
    return error["Code"], error["Message"]


def stages(secrets: Any, name: str, **more: Any) -> dict[str, list[str]]:
    """The staging labels of each version, by the number of its token."""
    shown = secrets.list_secret_version_ids(SecretId=name, **more)["Versions"]
    return {str(TOKENS.index(each["VersionId"])): each.get("VersionStages", []) for each in shown}


def test_a_secret_and_its_names(secrets: Any) -> None:
    name = "app/_+=.@-db"
    created = secrets.create_secret(Name=name, SecretString=VALUE, Description="of tests", ClientRequestToken=TOKENS[0])
    arn = created["ARN"]
    assert (created["Name"], created["VersionId"]) == (name, TOKENS[0])
    prefix = f"arn:aws:secretsmanager:us-east-1:123456789012:secret:{name}"
    assert arn.startswith(f"{prefix}-") and len(arn) == len(prefix) + 7 and arn[-6:].isalnum()
    described = secrets.describe_secret(SecretId=name)
    del described["ResponseMetadata"]
    assert described.keys() == {"ARN", "Name", "Description", "LastChangedDate", "VersionIdsToStages", "CreatedDate"}
    for secret_id in (name, arn, prefix):
        got = secrets.get_secret_value(SecretId=secret_id)
        assert (got["ARN"], got["Name"], got["SecretString"], got["VersionStages"]) == (arn, name, VALUE, [CURRENT])
    day = secrets.describe_secret(SecretId=name)["LastAccessedDate"]
    assert (day.hour, day.minute, day.second) == (0, 0, 0)  # only the day is recorded
    for unknown in ("none", arn[:-1] + "!", prefix + "-AbCdEf", arn.replace("us-east-1", "eu-west-1"), arn.replace("1234", "9999")):
        assert refusal(secrets.get_secret_value, SecretId=unknown) == NOT_FOUND
    secrets.create_secret(Name="ends-like-a1b2c3", SecretString="x")  # AWS takes the end of its partial ARN for a suffix
    assert refusal(secrets.get_secret_value, SecretId=f"{prefix.removesuffix(name)}ends-like-a1b2c3") == NOT_FOUND
    assert refusal(secrets.create_secret, Name=name, SecretString="x") == (
        "ResourceExistsException",
        f"The operation failed because the secret {name} already exists.",
    )
    other = secrets.create_secret(Name="no-value")
    assert "VersionId" not in other and "VersionIdsToStages" not in secrets.describe_secret(SecretId="no-value")
    assert refusal(secrets.get_secret_value, SecretId="no-value") == (
        "ResourceNotFoundException",
        "Secrets Manager can't find the specified secret value for staging label: AWSCURRENT",
    )
    data = bytes(range(256))
    assert secrets.put_secret_value(SecretId="no-value", SecretBinary=data, VersionStages=["mine"])["VersionStages"] == [
        CURRENT,
        "mine",
    ]
    got = secrets.get_secret_value(SecretId="no-value", VersionStage="mine")
    assert got["SecretBinary"] == data and "SecretString" not in got


def test_values_are_encrypted_and_regions_are_apart(secrets: Any, client: Callable[..., Any], corral: Corral) -> None:
    created = secrets.create_secret(Name="sealed", SecretString=VALUE)
    secrets.create_secret(Name="other", SecretString="x")
    assert refusal(client("secretsmanager", region="eu-west-1").get_secret_value, SecretId="sealed") == NOT_FOUND
    with sqlite3.connect(corral.data / "state.db", timeout=30) as database:
        [sealed] = database.execute("SELECT value FROM secret_version WHERE secret = 'sealed'").fetchone()
        assert VALUE.encode() not in b64decode(sealed)
        assert [VALUE in str(row) for row in database.execute("SELECT * FROM secret NATURAL JOIN secret_version")].count(True) == 0
        database.execute("UPDATE secret_version SET value = ? WHERE secret = 'other'", (sealed,))
    code, message = refusal(secrets.get_secret_value, SecretId="other")  # the value of another secret cannot be decrypted
    assert code == "DecryptionFailure" and VALUE not in message
    assert VALUE not in corral.log() and created["ARN"]


def test_stages_move_as_on_aws(secrets: Any) -> None:
    secrets.create_secret(Name="stages", SecretString="0", ClientRequestToken=TOKENS[0])

    def put(number: int, *labels: str) -> None:
        given = {"VersionStages": list(labels)} if labels else {}
        made = secrets.put_secret_value(SecretId="stages", SecretString=str(number), ClientRequestToken=TOKENS[number], **given)
        assert made["VersionId"] == TOKENS[number] and made["VersionStages"] == sorted(labels or (CURRENT,))

    def move(stage: str, source: int | None, target: int | None) -> None:
        ends = {"RemoveFromVersionId": source, "MoveToVersionId": target}
        given = {member: TOKENS[number] for member, number in ends.items() if number is not None}
        assert secrets.update_secret_version_stage(SecretId="stages", VersionStage=stage, **given)["Name"] == "stages"

    put(1)
    assert stages(secrets, "stages") == {"0": [PREVIOUS], "1": [CURRENT]}
    put(2, "two", PENDING, "one")
    assert stages(secrets, "stages")["2"] == [PENDING, "one", "two"]
    move(CURRENT, 1, 2)  # the end of a rotation
    assert stages(secrets, "stages") == {"1": [PREVIOUS], "2": [CURRENT, PENDING, "one", "two"]}
    put(3)
    assert stages(secrets, "stages") == {"2": [PREVIOUS, "one", "two"], "3": [CURRENT]}
    put(4, "one", "two")  # without AWSCURRENT
    assert stages(secrets, "stages") == {"2": [PREVIOUS], "3": [CURRENT], "4": ["one", "two"]}
    move("two", 4, None)
    move("three", None, 4)
    assert stages(secrets, "stages")["4"] == ["one", "three"]
    assert stages(secrets, "stages", IncludeDeprecated=True).keys() == {"0", "1", "2", "3", "4"}
    [deprecated] = secrets.list_secret_version_ids(SecretId="stages", IncludeDeprecated=True, MaxResults=1)["Versions"]
    assert deprecated["KmsKeyIds"] == ["DefaultEncryptionKey"] and "VersionStages" not in deprecated
    assert secrets.get_secret_value(SecretId="stages", VersionStage=PREVIOUS)["SecretString"] == "2"
    assert secrets.get_secret_value(SecretId="stages", VersionId=TOKENS[0])["SecretString"] == "0"
    described = secrets.describe_secret(SecretId="stages")["VersionIdsToStages"]
    assert described == {TOKENS[2]: [PREVIOUS], TOKENS[3]: [CURRENT], TOKENS[4]: ["one", "three"]}
    before = stages(secrets, "stages")
    refused = [
        ((CURRENT, 3, None), "You can only move staging label AWSCURRENT to a different secret version. It can't be completely"),
        ((CURRENT, None, 4), f"The parameter RemoveFromVersionId can't be empty. Staging label AWSCURRENT is currently attached to "
                             f"version {TOKENS[3]}, so you must explicitly reference that version in RemoveFromVersionId."),
        ((CURRENT, 2, 4), f"currently attached to version {TOKENS[3]}"),
        (("one", 3, None), "Staging label one isn't attached to version"),
        (("one", None, None), "You must specify RemoveFromVersionId, MoveToVersionId, or both."),
    ]  # fmt: skip
    for (stage, source, target), words in refused:
        code, message = refusal(move, stage=stage, source=source, target=target)
        assert (code, words in message) == ("InvalidParameterException", True), message
    assert refusal(move, stage="one", source=None, target=9)[0] == "ResourceNotFoundException"
    assert refusal(secrets.get_secret_value, SecretId="stages", VersionId=TOKENS[3], VersionStage=PREVIOUS) == (
        "InvalidRequestException",
        "You provided a VersionStage that is not associated to the provided VersionId.",
    )
    assert refusal(secrets.get_secret_value, SecretId="stages", VersionStage="none")[1].endswith("staging label: none")
    many = [f"label{number}" for number in range(17)]
    assert refusal(secrets.put_secret_value, SecretId="stages", SecretString="x", VersionStages=many)[0] == "LimitExceededException"
    assert stages(secrets, "stages") == before


def test_a_token_makes_one_version(secrets: Any) -> None:
    given = {"SecretString": "one", "ClientRequestToken": TOKENS[0]}
    first = secrets.create_secret(Name="token", **given)
    assert secrets.create_secret(Name="token", **given)["ARN"] == first["ARN"]
    again = secrets.put_secret_value(SecretId="token", SecretString="two", ClientRequestToken=TOKENS[1])
    assert secrets.put_secret_value(SecretId="token", **given)["VersionStages"] == [PREVIOUS]  # nothing changes
    assert secrets.update_secret(SecretId="token", SecretString="two", ClientRequestToken=TOKENS[1])["VersionId"] == TOKENS[1]
    assert secrets.get_secret_value(SecretId="token")["VersionId"] == again["VersionId"]
    used = f"{TOKENS[1]} because that value is already in use for a version of secret {first['ARN']}."
    for call, more in (
        (secrets.create_secret, {"Name": "token"}),
        (secrets.put_secret_value, {"SecretId": "token"}),
        (secrets.update_secret, {"SecretId": "token", "Description": "not stored"}),
    ):
        for value in ({"SecretString": "three"}, {"SecretBinary": b"two"}):
            assert refusal(call, ClientRequestToken=TOKENS[1], **more, **value) == (
                "ResourceExistsException",
                f"You can't use ClientRequestToken {used}",
            )
    assert "Description" not in secrets.describe_secret(SecretId="token")


def test_a_secret_keeps_a_hundred_versions(secrets: Any) -> None:
    secrets.create_secret(Name="many", SecretString="0")
    secrets.put_secret_value(SecretId="many", SecretString="kept", VersionStages=["kept"])
    for number in range(103):
        secrets.put_secret_value(SecretId="many", SecretString=str(number))
    shown = secrets.list_secret_version_ids(SecretId="many", IncludeDeprecated=True, MaxResults=100)
    assert len(shown["Versions"]) == 100 and "NextToken" not in shown
    assert secrets.get_secret_value(SecretId="many", VersionStage="kept")["SecretString"] == "kept"


def test_updates_and_tags(secrets: Any) -> None:
    secrets.create_secret(Name="updated", SecretString="1", Tags=[{"Key": "a", "Value": "1"}], KmsKeyId="alias/mine")
    assert "VersionId" not in secrets.update_secret(SecretId="updated", Description="new")
    made = secrets.update_secret(SecretId="updated", SecretString="2", KmsKeyId="alias/other")["VersionId"]
    described = secrets.describe_secret(SecretId="updated")
    assert (described["Description"], described["KmsKeyId"]) == ("new", "alias/other")
    assert described["VersionIdsToStages"][made] == [CURRENT]
    secrets.tag_resource(SecretId="updated", Tags=[{"Key": "b", "Value": "2"}, {"Key": "a", "Value": "3"}])
    secrets.untag_resource(SecretId="updated", TagKeys=["b", "none"])
    assert secrets.describe_secret(SecretId="updated")["Tags"] == [{"Key": "a", "Value": "3"}]
    secrets.untag_resource(SecretId="updated", TagKeys=["a"])
    assert secrets.describe_secret(SecretId="updated")["Tags"] == []
    too_many = [{"Key": str(number), "Value": ""} for number in range(51)]
    assert refusal(secrets.tag_resource, SecretId="updated", Tags=too_many)[0] == "LimitExceededException"
    assert refusal(secrets.tag_resource, SecretId="updated", Tags=[{"Key": "aws:x", "Value": ""}])[0] == "InvalidParameterException"


def test_invalid_requests(secrets: Any, corral: Corral) -> None:
    secrets.create_secret(Name="valid", SecretString="x")
    name = "Invalid name. Must be a valid name containing alphanumeric characters, or any of the following: -/_+=.@!"
    both = "You can't specify both a binary secret value and a string secret value in the same secret."
    either = "You must provide either SecretString or SecretBinary."
    cases: list[tuple[str, dict[str, Any], str, str]] = [
        ("create_secret", {"Name": "with space", "SecretString": VALUE}, "ValidationException", name),
        ("create_secret", {"Name": "a" * 513}, "ValidationException", "less than or equal to 512"),
        ("create_secret", {"Name": "new", "SecretString": VALUE, "SecretBinary": b"x"}, "InvalidParameterException", both),
        ("create_secret", {"Name": "new", "SecretString": VALUE * 5000}, "ValidationException", "'secretString' failed"),
        ("create_secret", {"Name": "new", "SecretString": "ä" * 40_000}, "ValidationException", "65536"),
        ("create_secret", {"Name": "new", "AddReplicaRegions": [{"Region": "eu-west-1"}]}, "InvalidRequestException", "replicate"),
        ("create_secret", {"Name": "new", "Tags": [{"Key": "a"}, {"Key": "a"}]}, "InvalidParameterException", "unique"),
        ("get_secret_value", {"SecretId": "with space"}, "ValidationException", name),
        ("put_secret_value", {"SecretId": "valid"}, "InvalidRequestException", either),
        ("put_secret_value", {"SecretId": "valid", "SecretString": VALUE, "SecretBinary": b"x"}, "InvalidParameterException", both),
        ("put_secret_value", {"SecretId": "none", "SecretString": VALUE}, *NOT_FOUND),
        ("delete_secret", {"SecretId": "valid", "RecoveryWindowInDays": 6}, "InvalidParameterException", "between 7 and 30 days"),
        ("delete_secret", {"SecretId": "valid", "RecoveryWindowInDays": 7, "ForceDeleteWithoutRecovery": True},
         "InvalidParameterException", "You can't use ForceDeleteWithoutRecovery in conjunction with RecoveryWindowInDays."),
        ("list_secrets", {"NextToken": "bogus"}, "InvalidNextTokenException", "NextToken"),
        ("list_secrets", {"Filters": [{"Key": "bogus", "Values": ["x"]}]}, "ValidationException", "filters.1.member.key"),
        ("list_secrets", {"Filters": [{"Values": ["x"]}]}, "InvalidParameterException", "Invalid filter key"),
        ("batch_get_secret_value", {}, "InvalidParameterException", "Filters or SecretIdList, but not both"),
        ("batch_get_secret_value", {"SecretIdList": ["valid"], "MaxResults": 1}, "InvalidParameterException", "Filters"),
        ("rotate_secret", {"SecretId": "valid"}, "InvalidRequestException", "No Lambda rotation function ARN is associated"),
        ("cancel_rotate_secret", {"SecretId": "valid"}, "InvalidRequestException", "No Lambda rotation function ARN is associated"),
        ("put_resource_policy", {"SecretId": "valid", "ResourcePolicy": "{"}, "MalformedPolicyDocumentException", "policy"),
        ("delete_resource_policy", {"SecretId": "valid", "PolicyName": "other"}, "InvalidParameterException", "default"),
        ("get_resource_policy", {"SecretId": "valid", "PolicyName": "other"}, "ResourceNotFoundException", "policy"),
    ]  # fmt: skip

    def check(case: tuple[str, dict[str, Any], str, str]) -> None:
        operation, params, code, words = case
        given = refusal(getattr(secrets, operation), **params)
        assert given[0] == code and words in given[1] and VALUE not in given[1], given

    check_each(cases, check)
    assert refusal(secrets.describe_secret, SecretId="new") == NOT_FOUND


def test_requests_without_a_token(corral: Corral, secrets: Any) -> None:
    """boto3 adds a token to each request. AWS refuses requests of other clients that have none."""
    secrets.create_secret(Name="no-token", SecretString="x")
    bare = corral.new_client("secretsmanager")

    def drop_token(params: dict[str, Any], **_: Any) -> None:
        body = json.loads(params["body"])
        del body["ClientRequestToken"]
        params["body"] = json.dumps(body).encode()

    bare.meta.events.register("before-call.secretsmanager", drop_token)
    for call, params, code in (
        (bare.create_secret, {"Name": "new", "SecretString": "y"}, "InvalidRequestException"),
        (bare.put_secret_value, {"SecretId": "no-token", "SecretString": "y"}, "InvalidRequestException"),
        (bare.update_secret, {"SecretId": "no-token", "SecretString": "y"}, "InvalidRequestException"),
        (bare.rotate_secret, {"SecretId": "no-token"}, "InvalidParameterException"),
    ):
        text = "You must provide a ClientRequestToken value. We recommend a UUID-type value."
        assert refusal(call, **params) == (code, text)


def test_deletion_and_recovery(secrets: Any) -> None:
    arn = secrets.create_secret(Name="gone", SecretString="x", Tags=[{"Key": "a", "Value": "1"}])["ARN"]
    deleted = secrets.delete_secret(SecretId="gone", RecoveryWindowInDays=7)
    days = (deleted["DeletionDate"] - secrets.describe_secret(SecretId="gone")["CreatedDate"]).total_seconds() / 86_400
    assert deleted["ARN"] == arn and 6.9 < days < 7.1
    assert secrets.describe_secret(SecretId=arn)["DeletedDate"] == deleted["DeletionDate"]
    assert secrets.list_secret_version_ids(SecretId="gone")["Versions"]
    by_name: list[dict[str, Any]] = [{"Key": "name", "Values": ["gone"]}]
    assert secrets.list_secrets(Filters=by_name)["SecretList"] == []
    [shown] = secrets.list_secrets(Filters=by_name, IncludePlannedDeletion=True)["SecretList"]
    assert shown["DeletedDate"] == deleted["DeletionDate"]
    for operation, more in (
        ("get_secret_value", {}), ("put_secret_value", {"SecretString": "y"}), ("update_secret", {"Description": "y"}),
        ("update_secret_version_stage", {"VersionStage": "y", "MoveToVersionId": TOKENS[0]}), ("delete_secret", {}),
        ("tag_resource", {"Tags": []}), ("untag_resource", {"TagKeys": ["a"]}), ("get_resource_policy", {}),
        ("put_resource_policy", {"ResourcePolicy": "{}"}), ("rotate_secret", {"RotationLambdaARN": "arn:aws:lambda:x"}),
    ):  # fmt: skip
        assert refusal(getattr(secrets, operation), SecretId="gone", **more) == MARKED, operation
    assert refusal(secrets.create_secret, Name="gone", SecretString="x") == (
        "InvalidRequestException",
        "You can't create this secret because a secret with this name is already scheduled for deletion.",
    )
    assert secrets.restore_secret(SecretId="gone")["Name"] == "gone"
    assert secrets.restore_secret(SecretId="gone")["ARN"] == arn  # of an active secret: nothing changes
    restored = secrets.describe_secret(SecretId="gone")
    assert "DeletedDate" not in restored and restored["Tags"] == [{"Key": "a", "Value": "1"}]
    assert secrets.get_secret_value(SecretId="gone")["SecretString"] == "x"
    secrets.delete_secret(SecretId="gone")
    secrets.delete_secret(SecretId="gone", ForceDeleteWithoutRecovery=True)
    assert refusal(secrets.restore_secret, SecretId="gone") == NOT_FOUND
    assert secrets.delete_secret(SecretId="gone", ForceDeleteWithoutRecovery=True)["Name"] == "gone"  # no error, as on AWS
    assert refusal(secrets.delete_secret, SecretId="gone") == NOT_FOUND
    assert secrets.create_secret(Name="gone", SecretString="new")["ARN"] != arn
    assert refusal(secrets.get_secret_value, SecretId=arn) == NOT_FOUND  # the ARN of the deleted secret does not open the new one


def test_lists_filters_and_batches(secrets: Any) -> None:
    given: dict[str, dict[str, Any]] = {
        "list/a": {"Description": "Of Alice", "Tags": [{"Key": "Team", "Value": "Vision"}]},
        "list/b": {"Description": "second one", "Tags": [{"Key": "team", "Value": "speech"}]},
        "list/c": {},
    }
    for name, more in given.items():
        secrets.create_secret(Name=name, SecretString=f"value of {name}", **more)
    prefix = {"Key": "name", "Values": ["list/"]}

    def names(**params: Any) -> str:
        filters = [prefix, *params.pop("Filters", ())]
        found = secrets.list_secrets(Filters=filters, **params)["SecretList"]
        return "".join(each["Name"].removeprefix("list/") for each in found)

    secrets.update_secret(SecretId="list/a", Description="Of Alice, changed")
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "abc"),
        ({"SortOrder": "desc"}, "cba"),
        ({"SortBy": "name", "SortOrder": "desc"}, "cba"),
        ({"SortBy": "last-changed-date"}, "bca"),
        ({"Filters": [{"Key": "name", "Values": ["list/a", "list/c"]}]}, "ac"),
        ({"Filters": [{"Key": "name", "Values": ["!list/a"]}]}, "bc"),
        ({"Filters": [{"Key": "name", "Values": ["LIST/"]}]}, ""),
        ({"Filters": [{"Key": "description", "Values": ["of al"]}]}, "a"),
        ({"Filters": [{"Key": "tag-key", "Values": ["Te"]}]}, "a"),
        ({"Filters": [{"Key": "tag-value", "Values": ["speech"]}]}, "b"),
        ({"Filters": [{"Key": "tag-key", "Values": ["team"]}, {"Key": "tag-value", "Values": ["Vision"]}]}, ""),
        ({"Filters": [{"Key": "all", "Values": ["ALICE vision"]}]}, "a"),
        ({"Filters": [{"Key": "owning-service", "Values": ["rds"]}]}, ""),
    ]

    def check(case: tuple[dict[str, Any], str]) -> None:
        assert names(**case[0]) == case[1]

    check_each(cases, check)
    for sort in ("created-date", "last-accessed-date", "last-changed-date", "name"):
        pages = secrets.get_paginator("list_secrets").paginate(
            SortBy=sort, SortOrder="desc", Filters=[prefix], PaginationConfig={"PageSize": 1}
        )
        assert sorted(each["Name"] for page in pages for each in page["SecretList"]) == sorted(given)
    entry = secrets.list_secrets(Filters=[{"Key": "name", "Values": ["list/a"]}])["SecretList"][0]
    assert list(entry["SecretVersionsToStages"].values()) == [[CURRENT]] and "SecretString" not in entry
    batch = secrets.batch_get_secret_value(SecretIdList=["list/b", "none", entry["ARN"]])
    assert [each["SecretString"] for each in batch["SecretValues"]] == ["value of list/b", "value of list/a"]
    assert batch["Errors"] == [{"SecretId": "none", "ErrorCode": NOT_FOUND[0], "Message": NOT_FOUND[1]}]
    found, token = [], {}
    while token is not None:
        page = secrets.batch_get_secret_value(Filters=[prefix], MaxResults=2, **token)
        found += [each["Name"] for each in page["SecretValues"]]
        token = {"NextToken": page["NextToken"]} if "NextToken" in page else None
    assert found == ["list/a", "list/b", "list/c"]


def test_policies_and_rotation_are_stored(secrets: Any) -> None:
    secrets.create_secret(Name="stored", SecretString="x")
    statement = {"Effect": "Allow", "Principal": "*", "Action": "secretsmanager:*", "Resource": "*"}
    public = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    own = public.replace('"*", "Action"', '{"AWS": "arn:aws:iam::123456789012:root"}, "Action"')
    assert "ResourcePolicy" not in secrets.get_resource_policy(SecretId="stored")
    assert refusal(secrets.put_resource_policy, SecretId="stored", ResourcePolicy=public, BlockPublicPolicy=True)[0] == (
        "PublicPolicyException"
    )
    assert secrets.put_resource_policy(SecretId="stored", ResourcePolicy=public)["Name"] == "stored"
    assert secrets.get_resource_policy(SecretId="stored")["ResourcePolicy"] == public
    assert secrets.list_resource_policies(SecretId="stored")["ResourcePolicies"] == [{"PolicyName": "default"}]
    assert not secrets.validate_resource_policy(ResourcePolicy=public)["PolicyValidationPassed"]
    passed = secrets.validate_resource_policy(SecretId="stored", ResourcePolicy=own)
    assert passed["PolicyValidationPassed"] and passed["ValidationErrors"] == []
    secrets.delete_resource_policy(SecretId="stored")
    assert "ResourcePolicy" not in secrets.get_resource_policy(SecretId="stored")
    function, rules = "arn:aws:lambda:us-east-1:123456789012:function:rotate", {"AutomaticallyAfterDays": 30}
    rotated = secrets.rotate_secret(SecretId="stored", RotationLambdaARN=function, RotationRules=rules)
    assert "VersionId" not in rotated  # no rotation begins
    described = secrets.describe_secret(SecretId="stored")
    assert (described["RotationEnabled"], described["RotationLambdaARN"], described["RotationRules"]) == (True, function, rules)
    secrets.cancel_rotate_secret(SecretId="stored")
    described = secrets.describe_secret(SecretId="stored")
    assert (described["RotationEnabled"], described["RotationLambdaARN"]) == (False, function)


def test_random_passwords(secrets: Any) -> None:
    def password(**params: Any) -> str:
        return str(secrets.get_random_password(**params)["RandomPassword"])

    default = password()
    assert len(default) == 32 and default != password()
    kinds = (string.ascii_uppercase, string.ascii_lowercase, string.digits, string.punctuation)
    for _ in range(5):
        assert all(set(password(PasswordLength=4)) & set(kind) for kind in kinds)
    assert set(password(PasswordLength=4096)) == set("".join(kinds))
    assert set(password(PasswordLength=2000, IncludeSpace=True, ExcludeCharacters="abc")) == set("".join(kinds)) - set("abc") | {
        " "
    }
    only = {"ExcludeUppercase": True, "ExcludeLowercase": True, "ExcludePunctuation": True}
    assert set(password(PasswordLength=500, **only)) == set(string.digits)
    assert set(password(PasswordLength=4096, ExcludeNumbers=True, ExcludePunctuation=True)) == set(string.ascii_letters)
    assert len(password(PasswordLength=1, RequireEachIncludedType=False)) == 1
    assert refusal(password, PasswordLength=3)[0] == "InvalidParameterException"
    assert refusal(password, ExcludeNumbers=True, **only)[0] == "InvalidParameterException"
    assert refusal(password, PasswordLength=5000)[0] == "ValidationException"


# Secrets in tasks


def test_secrets_reach_only_their_task(corral: Corral, secrets: Any) -> None:
    first = {"user": "me", "password": VALUE + "-1", "port": 5432}
    arn = secrets.create_secret(Name="task/db", SecretString=json.dumps(first), ClientRequestToken=TOKENS[0])["ARN"]
    secrets.put_secret_value(SecretId=arn, SecretString=json.dumps(first | {"password": VALUE + "-2"}))
    sources = {
        "WHOLE": arn,
        "KEY": f"{arn}:password::",
        "STAGE": f"{arn}:password:AWSPREVIOUS:",
        "VERSION": f"{arn}:user::{TOKENS[0]}",
        "NUMBER": f"{arn[:-7]}:port::",  # a partial ARN
        "PARAMETER": "/aws/reference/secretsmanager/task/db:AWSPREVIOUS",
    }
    given = [{"name": name, "valueFrom": source} for name, source in sources.items()]
    command = ["sh", "-c", 'echo "$(echo $KEY | rev) $(echo $STAGE | rev) $VERSION $NUMBER ${#WHOLE} ${#PARAMETER}"']
    ecs, logs = corral.client("ecs"), corral.client("logs")
    ecs.register_task_definition(family="managed", containerDefinitions=[container(command, log_prefix="s", secrets=given)])
    task = ecs.run_task(taskDefinition="managed")["tasks"][0]["taskArn"]
    [stopped] = wait_stopped(ecs, [task])
    [event] = logs.get_log_events(logGroupName="/tests", logStreamName=f"s/main/{task.rpartition('/')[2]}")["events"]
    size = len(json.dumps(first))
    assert event["message"] == f"{(VALUE + '-2')[::-1]} {(VALUE + '-1')[::-1]} me 5432 {size} {size}"
    assert VALUE not in str(stopped) and VALUE not in corral.log()
    assert files_with(corral.data, f"{VALUE}-2") == []


def test_a_task_whose_secret_cannot_be_read_does_not_start(client: Callable[..., Any], secrets: Any) -> None:
    ecs = client("ecs")
    text = secrets.create_secret(Name="broken/text", SecretString=VALUE)["ARN"]
    members = secrets.create_secret(Name="broken/members", SecretString=json.dumps({"a": VALUE}))["ARN"]
    data = secrets.create_secret(Name="broken/data", SecretBinary=b"x")["ARN"]
    gone = secrets.create_secret(Name="broken/gone", SecretString="x")["ARN"]
    secrets.delete_secret(SecretId=gone)
    fetch = "failed to fetch secret {} from secrets manager: "
    cases = {
        f"{text}-none": fetch.format(f"{text}-none") + ": ".join(NOT_FOUND),
        f"{members}:b::": "retrieved secret from Secrets Manager did not contain json key b",
        f"{text}:b::": f"the value of secret {text} is not a JSON object, so it has no json key b",
        f"{text}:b": "unexpected ARN format with parameters when trying to retrieve ASM secret",
        f"{text}::mine:": fetch.format(text)
        + "ResourceNotFoundException: Secrets Manager can't find the specified secret value for",
        gone: fetch.format(gone) + ": ".join(MARKED),
        data: "The secret has a binary value",
        text.replace("us-east-1", "eu-west-1"): ": ".join(NOT_FOUND),
    }
    arns = {}
    for at, source in enumerate(cases):
        given = [{"name": "X", "valueFrom": source}]
        more = {"logConfiguration": {"logDriver": "splunk", "secretOptions": given}} if source == gone else {"secrets": given}
        ecs.register_task_definition(family=f"broken{at}", containerDefinitions=[container(["true"], **more)])
        arns[ecs.run_task(taskDefinition=f"broken{at}")["tasks"][0]["taskArn"]] = source

    def check(task: dict[str, Any]) -> None:
        reason = task["stoppedReason"]
        start = (
            "ResourceInitializationError: unable to pull secrets or registry auth: execution resource retrieval failed: unable to "
        )
        assert task["stopCode"] == "TaskFailedToStart" and reason.startswith(start), reason
        assert cases[arns[task["taskArn"]]] in reason and VALUE not in reason, reason

    check_each(wait_stopped(ecs, list(arns)), check)


def test_parameters_that_are_secrets(secrets: Any, client: Callable[..., Any]) -> None:
    ssm = client("ssm")
    created = secrets.create_secret(Name="as/parameter", SecretString=VALUE, ClientRequestToken=TOKENS[0])
    secrets.put_secret_value(SecretId="as/parameter", SecretString="new")
    name = "/aws/reference/secretsmanager/as/parameter"
    found = ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]
    assert (found["Name"], found["Type"], found["Value"], found["ARN"]) == (name, "SecureString", "new", created["ARN"])
    source = json.loads(found["SourceResult"])
    assert (source["name"], source["ARN"], source["versionStages"], source["secretString"]) == (
        "as/parameter", created["ARN"], [CURRENT], "new",
    )  # fmt: skip
    for selector in (PREVIOUS, TOKENS[0]):
        assert ssm.get_parameter(Name=f"{name}:{selector}", WithDecryption=True)["Parameter"]["Value"] == VALUE
    many = ssm.get_parameters(Names=[name, "/aws/reference/secretsmanager/none"], WithDecryption=True)
    assert [each["Value"] for each in many["Parameters"]] == ["new"]
    assert many["InvalidParameters"] == ["/aws/reference/secretsmanager/none"]
    assert refusal(ssm.get_parameter, Name=name)[0] == "ValidationException"
    assert refusal(ssm.get_parameter, Name="/aws/reference/secretsmanager/none", WithDecryption=True) == (
        "ParameterNotFound",
        "Secret /aws/reference/secretsmanager/none not found.",
    )
    assert refusal(ssm.put_parameter, Name=name, Value="x", Overwrite=True)[0] == "AccessDeniedException"
