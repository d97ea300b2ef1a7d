"""What users may do through the server: their policies decide at once, and listings show what they may see."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

ACCOUNT = "123456789012"
OWN = {"StringEquals": {"corral:Owner": "${corral:Caller}"}}


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def allow(action: Any, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": "*", **more}


def client_of(corral: Any, credentials: dict[str, str], service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=corral.url,
        region_name="us-east-1",
        aws_access_key_id=credentials["AccessKeyId"],
        aws_secret_access_key=credentials["SecretAccessKey"],
        aws_session_token=credentials.get("SessionToken"),
    )


def refused(call: Any, **params: Any) -> str:
    with pytest.raises(ClientError) as caught:
        call(**params)
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)
    assert "AccessDenied" in caught.value.response["Error"]["Code"]
    return str(caught.value.response["Error"]["Message"])


@pytest.fixture
def user(corral: Any, client: Any) -> Any:
    """Return a function that creates a user with an access key."""
    iam = client("iam")

    def create(name: str, *statements: dict[str, Any]) -> dict[str, str]:
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=document(*statements))
        key: dict[str, str] = iam.create_access_key(UserName=name)["AccessKey"]
        return key

    return create


def test_users_see_and_change_what_is_theirs(corral: Any, client: Any, user: Any) -> None:
    """Each of two users has a queue and a bucket, and so has the root user."""
    own = allow(["s3:*", "sqs:*", "ecs:*"], Condition=OWN)
    clients = {"root": client, **{name: keyed(corral, user(name, own)) for name in ("ann", "bob")}}
    for name, of in clients.items():
        of("s3").create_bucket(Bucket=f"data-{name}")
        of("s3").put_object(Bucket=f"data-{name}", Key="k", Body=name.encode())
        of("sqs").create_queue(QueueName=f"jobs-{name}")
    ann, bob = clients["ann"], clients["bob"]
    assert [each["Name"] for each in ann("s3").list_buckets()["Buckets"]] == ["data-ann"]
    assert [each["Name"] for each in bob("s3").list_buckets()["Buckets"]] == ["data-bob"]
    assert {"data-ann", "data-bob", "data-root"} <= {each["Name"] for each in client("s3").list_buckets()["Buckets"]}
    assert ann("s3").get_object(Bucket="data-ann", Key="k")["Body"].read() == b"ann"
    for name in ("root", "bob"):
        assert "s3:GetObject" in refused(ann("s3").get_object, Bucket=f"data-{name}", Key="k")
        assert "s3:PutObject" in refused(ann("s3").put_object, Bucket=f"data-{name}", Key="k", Body=b"x" * 1_000_000)
        copy = {"Bucket": "data-ann", "Key": "c", "CopySource": f"data-{name}/k"}
        assert "s3:GetObject" in refused(ann("s3").copy_object, **copy)
        url = clients[name]("sqs").get_queue_url(QueueName=f"jobs-{name}")["QueueUrl"]
        assert "sqs:ReceiveMessage" in refused(ann("sqs").receive_message, QueueUrl=url)
        assert "sqs:DeleteQueue" in refused(ann("sqs").delete_queue, QueueUrl=url)
    policy = {
        **allow("s3:GetObject"),
        "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/ann"},
        "Resource": "arn:aws:s3:::data-bob/*",
    }
    client("s3").put_bucket_policy(Bucket="data-bob", Policy=document(policy))
    assert ann("s3").get_object(Bucket="data-bob", Key="k")["Body"].read() == b"bob"


def test_page_tokens_do_not_show_what_is_hidden(corral: Any, client: Any, user: Any) -> None:
    """A page ends with a parameter of the root user, which the token must not show."""
    clients = [client_of(corral, user(name, allow("ssm:*", Condition=OWN)), "ssm") for name in ("fay", "gus")]
    for ssm, name in ((client("ssm"), "/hidden/1"), (client("ssm"), "/hidden/2"), (clients[0], "/of-fay")):
        ssm.put_parameter(Name=name, Value="x", Type="String")
    found, tokens, more = list[str](), list[str](), dict[str, str]()
    while True:
        page = clients[0].describe_parameters(MaxResults=1, **more)
        found += [each["Name"] for each in page["Parameters"]]
        if "NextToken" not in page:
            break
        tokens.append(page["NextToken"])
        more = {"NextToken": tokens[-1]}
    assert found == ["/of-fay"] and len(tokens) >= 2
    assert not [each for each in tokens if b"hidden" in b64decode(each, altchars=b"-_")]
    with pytest.raises(ClientError, match="InvalidNextToken"):
        clients[1].describe_parameters(NextToken=tokens[0])


def keyed(corral: Any, credentials: dict[str, str]) -> Any:
    return lambda service: client_of(corral, credentials, service)


def test_a_change_of_a_policy_has_an_effect_at_once(corral: Any, client: Any, user: Any) -> None:
    key, iam = user("cleo", allow("sqs:ListQueues")), client("iam")
    sqs = client_of(corral, key, "sqs")
    sqs.list_queues()
    iam.put_user_policy(UserName="cleo", PolicyName="p", PolicyDocument=document(allow("ecs:*")))
    assert f"arn:aws:iam::{ACCOUNT}:user/cleo is not authorized to perform: sqs:ListQueues" in refused(sqs.list_queues)
    iam.create_group(GroupName="queues")
    iam.put_group_policy(GroupName="queues", PolicyName="p", PolicyDocument=document(allow("sqs:*")))
    iam.add_user_to_group(GroupName="queues", UserName="cleo")
    sqs.list_queues()
    iam.put_user_permissions_boundary(UserName="cleo", PermissionsBoundary="arn:aws:iam::aws:policy/AmazonEC2ReadOnlyAccess")
    assert "because no permissions boundary allows the sqs:ListQueues action" in refused(sqs.list_queues)


def test_sessions_of_a_user(corral: Any, client: Any, user: Any) -> None:
    key = user("dan", allow(["iam:*", "sts:*", "sqs:*"]))
    sts = client_of(corral, key, "sts")
    mine = keyed(corral, sts.get_session_token()["Credentials"])
    assert mine("sts").get_caller_identity()["Arn"] == f"arn:aws:iam::{ACCOUNT}:user/dan"
    mine("sqs").list_queues()
    client_of(corral, key, "iam").list_roles()
    assert "because its credentials are those of GetSessionToken" in refused(mine("iam").list_roles)
    policy = document(allow(["sqs:ListQueues", "iam:*"]))
    guest = keyed(corral, sts.get_federation_token(Name="guest", Policy=policy)["Credentials"])
    guest("sqs").list_queues()
    assert "because no session policy allows the sqs:CreateQueue action" in refused(guest("sqs").create_queue, QueueName="x")
    assert "because its credentials are those of GetFederationToken" in refused(guest("iam").list_roles)
    assert guest("sts").get_caller_identity()["Arn"] == f"arn:aws:sts::{ACCOUNT}:federated-user/guest"
    trust = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{ACCOUNT}:user/dan"}, "Action": "sts:AssumeRole"}
    iam, role = client("iam"), f"arn:aws:iam::{ACCOUNT}:role/of-dan"
    iam.create_role(RoleName="of-dan", AssumeRolePolicyDocument=document(trust))
    iam.put_role_policy(RoleName="of-dan", PolicyName="p", PolicyDocument=document(allow("ecs:ListTasks")))
    assumed = keyed(corral, mine("sts").assume_role(RoleArn=role, RoleSessionName="me")["Credentials"])
    assumed("ecs").list_tasks()
    assert "sqs:ListQueues" in refused(assumed("sqs").list_queues)
    eve = client_of(corral, user("eve", allow("*")), "sts")
    assert "because no role trust policy allows" in refused(eve.assume_role, RoleArn=role, RoleSessionName="me")
