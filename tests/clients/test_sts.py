"""STS through boto3 and the aws command: temporary credentials and the checks of requests."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from corral.access import sessions
from corral.model.principal import root_user

ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/service/worker"


@pytest.fixture
def sts(client):
    return client("sts")


def session_of(corral, credentials, service, token=None):
    return boto3.session.Session().client(
        service,
        region_name="us-east-1",
        endpoint_url=corral.url,
        aws_access_key_id=credentials["AccessKeyId"],
        aws_secret_access_key=credentials["SecretAccessKey"],
        aws_session_token=token or credentials["SessionToken"],
        config=Config(retries={"max_attempts": 0}),
    )


def refused(call, **params):
    with pytest.raises(ClientError) as caught:
        call(**params)
    return caught.value.response["Error"]["Code"], caught.value.response["Error"]["Message"]


def left(credentials) -> timedelta:
    return credentials["Expiration"] - datetime.now(UTC)


def test_assume_role(corral, sts):
    reply = sts.assume_role(RoleArn=ROLE, RoleSessionName="me@work")
    assert reply["AssumedRoleUser"]["Arn"] == f"arn:aws:sts::{ACCOUNT}:assumed-role/worker/me@work"
    assert reply["AssumedRoleUser"]["AssumedRoleId"].startswith("AROA")
    assert reply["AssumedRoleUser"]["AssumedRoleId"].endswith(":me@work")
    assert timedelta(minutes=59) < left(reply["Credentials"]) <= timedelta(hours=1)
    assert "PackedPolicySize" not in reply
    mine = session_of(corral, reply["Credentials"], "sts").get_caller_identity()
    assert (mine["UserId"], mine["Arn"]) == (reply["AssumedRoleUser"]["AssumedRoleId"], reply["AssumedRoleUser"]["Arn"])
    assert mine["Account"] == ACCOUNT
    for service, call in (("ecs", "list_tasks"), ("logs", "describe_log_groups")):
        assert getattr(session_of(corral, reply["Credentials"], service), call)()


def test_a_session_survives_a_restart(own_corral):
    corral = own_corral().start()
    made = corral.client("sts").assume_role(RoleArn=ROLE, RoleSessionName="me")["Credentials"]
    corral.kill("corral.server")
    corral.start()
    assert session_of(corral, made, "sts").get_caller_identity()["Arn"].endswith("assumed-role/worker/me")
    assert oct((corral.data / "sessions.json").stat().st_mode)[-3:] == "600"


def test_options_of_assume_role(corral, sts):
    reply = sts.assume_role(
        RoleArn=ROLE, RoleSessionName="me", DurationSeconds=43200, ExternalId="partner", SourceIdentity="alice",
        Tags=[{"Key": "team", "Value": "blue"}], TransitiveTagKeys=["team"],
    )  # fmt: skip
    assert timedelta(hours=11) < left(reply["Credentials"]) <= timedelta(hours=12)
    assert reply["SourceIdentity"] == "alice" and 0 < reply["PackedPolicySize"] <= 100


def test_a_session_policy_limits_what_a_session_may_do(corral, sts):
    allowed = {"Effect": "Allow", "Action": "ecs:ListTasks", "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed], "Id": "x" * 1700})  # the token is compressed
    reads = [{"arn": "arn:aws:iam::aws:policy/AmazonSSMReadOnlyAccess"}]
    for made in (
        sts.assume_role(RoleArn=ROLE, RoleSessionName="me", Policy=policy, PolicyArns=reads),
        sts.get_federation_token(Name="me", Policy=policy, PolicyArns=reads),
    ):
        assert session_of(corral, made["Credentials"], "ecs").list_tasks()
        assert session_of(corral, made["Credentials"], "ssm").describe_parameters()
        assert session_of(corral, made["Credentials"], "sts").get_caller_identity()
        code, message = refused(session_of(corral, made["Credentials"], "ecs").list_clusters)
        assert code == "AccessDeniedException" and "because no session policy allows the ecs:ListClusters action" in message
        login = session_of(corral, made["Credentials"], "ecr")
        assert refused(login.get_authorization_token)[0] == "AccessDeniedException"
    contexts = [{"ProviderArn": "arn:aws:iam::aws:contextProvider/IdentityCenter", "ContextAssertion": "abcd"}]
    assert refused(sts.assume_role, RoleArn=ROLE, RoleSessionName="me", ProvidedContexts=contexts)[0] == "ValidationError"


def test_a_session_created_with_a_session_lasts_at_most_an_hour(corral, sts):
    first = session_of(corral, sts.assume_role(RoleArn=ROLE, RoleSessionName="first")["Credentials"], "sts")
    second = first.assume_role(RoleArn=f"arn:aws:iam::{ACCOUNT}:role/other", RoleSessionName="second", DurationSeconds=3600)
    assert session_of(corral, second["Credentials"], "sts").get_caller_identity()["Arn"].endswith("assumed-role/other/second")
    code, message = refused(first.assume_role, RoleArn=ROLE, RoleSessionName="x2", DurationSeconds=3601)
    assert (code, "role chaining" in message) == ("ValidationError", True)


@pytest.mark.parametrize(
    "change, code, word",
    [
        ({"RoleArn": "arn:aws:iam:role"}, "ValidationError", "greater than or equal to 20"),
        ({"RoleArn": "the worker role of this account"}, "ValidationError", "is invalid"),
        ({"RoleArn": "arn::b:::something/test-role"}, "ValidationError", "arn::b:::something/test-role is invalid"),
        ({"RoleArn": "arn:a:::something/test-role"}, "ValidationError", "arn:a:::something/test-role is invalid"),
        ({"RoleArn": "arn:a:a::aaaaaaaaaa:"}, "ValidationError", "arn:a:a::aaaaaaaaaa: is invalid"),
        (
            {"Tags": [{"Key": "a", "Value": "1"}, {"Key": "A", "Value": "2"}]},
            "InvalidParameterValue",
            "Duplicate tag keys found. Please note that Tag keys are case insensitive.",
        ),
        (
            {"TransitiveTagKeys": ["a"]},
            "InvalidParameterValue",
            "The specified transitive tag key must be included in the requested tags.",
        ),
        ({"RoleArn": f"arn:aws:iam::{ACCOUNT}:user/worker"}, "ValidationError", "Request ARN is invalid"),
        ({"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/"}, "ValidationError", "Request ARN is invalid"),
        ({"RoleArn": f"arn:aws:iam::{ACCOUNT}:role/worker/"}, "ValidationError", "Request ARN is invalid"),
        ({"RoleArn": "arn:aws:iam::999999999999:role/worker"}, "AccessDenied", "sts:AssumeRole on resource"),
        ({"RoleSessionName": "m"}, "ValidationError", "at 'roleSessionName'"),
        ({"RoleSessionName": "m" * 65}, "ValidationError", "less than or equal to 64"),
        ({"RoleSessionName": "me and you"}, "ValidationError", "regular expression pattern"),
        ({"RoleSessionName": "a/b"}, "ValidationError", "regular expression pattern"),
        ({"DurationSeconds": 899}, "ValidationError", "greater than or equal to 900"),
        ({"DurationSeconds": 43201}, "ValidationError", "less than or equal to 43200"),
        ({"SourceIdentity": "?!"}, "ValidationError", "at 'sourceIdentity'"),
        ({"Policy": "{"}, "MalformedPolicyDocument", "JSON"),
        ({"Policy": '{"x": "' + "y" * 3000 + '"}'}, "PackedPolicyTooLarge", "%"),
        ({"SerialNumber": "arn:aws:iam::1:mfa/x", "TokenCode": "123456"}, "AccessDenied", "MultiFactor"),
    ],
)
def test_refusals_of_assume_role(client, change, code, word):
    sts = client("sts", parameter_validation=False)  # otherwise botocore itself refuses some of them
    got, message = refused(sts.assume_role, **{"RoleArn": ROLE, "RoleSessionName": "me", **change})
    assert got == code and word in message


def test_typed_errors(sts):
    with pytest.raises(sts.exceptions.MalformedPolicyDocumentException):
        sts.assume_role(RoleArn=ROLE, RoleSessionName="me", Policy="no")
    with pytest.raises(sts.exceptions.PackedPolicyTooLargeException):
        sts.assume_role(RoleArn=ROLE, RoleSessionName="me", Policy='{"x": "' + "y" * 3000 + '"}')


def test_session_token(corral, sts):
    made = sts.get_session_token()["Credentials"]
    assert timedelta(hours=11) < left(made) <= timedelta(hours=12)
    mine = session_of(corral, made, "sts")
    assert mine.get_caller_identity()["Arn"] == sts.get_caller_identity()["Arn"] == f"arn:aws:iam::{ACCOUNT}:root"
    assert mine.get_caller_identity()["UserId"] == ACCOUNT
    assert left(sts.get_session_token(DurationSeconds=129600)["Credentials"]) > timedelta(hours=35)
    assert refused(sts.get_session_token, DurationSeconds=129601)[0] == "ValidationError"
    assert refused(mine.get_session_token) == ("AccessDenied", "Cannot call GetSessionToken with session credentials")


def test_federation_token(corral, sts):
    reply = sts.get_federation_token(Name="alice", DurationSeconds=900)
    assert reply["PackedPolicySize"] == 0
    assert reply["FederatedUser"] == {"FederatedUserId": f"{ACCOUNT}:alice", "Arn": f"arn:aws:sts::{ACCOUNT}:federated-user/alice"}
    mine = session_of(corral, reply["Credentials"], "sts")
    assert mine.get_caller_identity()["UserId"] == f"{ACCOUNT}:alice"
    assert refused(mine.get_federation_token, Name="bob")[0] == "AccessDenied"
    assert refused(sts.get_federation_token, Name="a b")[0] == "ValidationError"


def test_the_account_of_an_access_key(corral, sts):
    made = sts.get_session_token()["Credentials"]
    assert sts.get_access_key_info(AccessKeyId=made["AccessKeyId"])["Account"] == ACCOUNT
    assert sts.get_access_key_info(AccessKeyId=corral.keys["access_key"])["Account"] == ACCOUNT
    assert refused(sts.get_access_key_info, AccessKeyId="ASIA" + "A" * 16)[0] == "InvalidClientTokenId"


def test_wrong_missing_and_expired_tokens(corral, sts):
    one, two = (sts.get_session_token()["Credentials"] for _ in range(2))
    key = bytes.fromhex(json.loads((corral.data / "sessions.json").read_text())["key"])
    old = sessions.issue(key, b"nonce!", root_user(ACCOUNT), 1_600_000_000, None)
    expired = {"AccessKeyId": old.session.access_key_id, "SecretAccessKey": old.secret_key, "SessionToken": old.token}
    for service, call, unknown, ended in (
        ("sts", "get_caller_identity", "InvalidClientTokenId", "ExpiredToken"),
        ("ecs", "list_tasks", "UnrecognizedClientException", "ExpiredTokenException"),
        ("logs", "describe_log_groups", "UnrecognizedClientException", "ExpiredTokenException"),
    ):
        for token in (two["SessionToken"], one["SessionToken"][:-4] + "AAAA", "x"):
            assert refused(getattr(session_of(corral, one, service, token), call))[0] == unknown
        bare = corral.client(service)
        bare._request_signer._credentials.access_key = one["AccessKeyId"]
        bare._request_signer._credentials.secret_key = one["SecretAccessKey"]
        assert refused(getattr(bare, call))[0] == unknown
        wrong_secret = {**one, "SecretAccessKey": two["SecretAccessKey"]}
        assert refused(getattr(session_of(corral, wrong_secret, service), call))[0] in (
            "SignatureDoesNotMatch",
            "InvalidSignatureException",
        )
        assert refused(getattr(session_of(corral, expired, service), call))[0] == ended
    assert old.token not in corral.log() and one["SessionToken"] not in corral.log()


def test_the_aws_command(aws):
    reply = aws("sts", "assume-role", "--role-arn", ROLE, "--role-session-name", "cli")
    assert reply["AssumedRoleUser"]["Arn"].endswith("/worker/cli")
    assert aws("sts", "get-session-token")["Credentials"]["SessionToken"]


def test_corral_does_not_start_with_a_damaged_session_key(own_corral):
    corral = own_corral().start()
    corral.stop()
    (corral.data / "sessions.json").write_text('{"key": "abc"}')
    with pytest.raises(AssertionError, match=r"sessions\.json is damaged"):
        corral.start()
