"""Two users whose policies allow everything on what is theirs: neither reads or changes what belongs to the other."""

from __future__ import annotations

import json
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

from clients.test_iam_users import client_of
from harness import container, wait_stopped

OWN = {"Effect": "Allow", "Action": "*", "Resource": "*", "Condition": {"StringEquals": {"corral:Owner": "${corral:Caller}"}}}
LOOK = {"Effect": "Allow", "Action": ["corral:ListRuns", "corral:GetStatus", "ecs:ListClusters"], "Resource": "*"}
GROUP = "/corral/run"


@pytest.fixture
def users(client: Any) -> dict[str, dict[str, str]]:
    iam, keys = client("iam"), {}
    for name in ("ann", "bob"):
        iam.create_user(UserName=name)
        document = json.dumps({"Version": "2012-10-17", "Statement": [OWN, LOOK]})
        iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=document)
        keys[name] = iam.create_access_key(UserName=name)["AccessKey"]
    return keys


def test_users_see_and_change_only_what_is_theirs(corral: Any, users: dict[str, dict[str, str]]) -> None:
    ann, bob = (lambda service, key=users[name]: client_of(corral, key, service) for name in ("ann", "bob"))
    options = {"awslogs-group": GROUP, "awslogs-region": "us-east-1", "awslogs-stream-prefix": "x", "awslogs-create-group": "true"}
    program = container(["sh", "-c", "echo $SECRET"], environment=[{"name": "SECRET", "value": "hidden"}])
    program |= {"logConfiguration": {"logDriver": "awslogs", "options": options}}
    for user in (ann, bob):  # a family may have revisions of several users
        user("ecs").register_task_definition(family="train", containerDefinitions=[program])
    task = ann("ecs").run_task(taskDefinition="train")["tasks"][0]
    task_id = task["taskArn"].rpartition("/")[2]
    assert task["taskDefinitionArn"].endswith("train:1")
    wait_stopped(ann("ecs"), [task["taskArn"]])
    stream, bucket = {"logGroupName": GROUP, "logStreamName": f"x/main/{task_id}"}, {"Bucket": "anns", "Key": "k"}
    ann("s3").create_bucket(Bucket="anns")
    ann("s3").put_object(**bucket, Body=b"hidden")
    queue = ann("sqs").create_queue(QueueName="anns")["QueueUrl"]

    def attempts(user: Any) -> list[tuple[Any, dict[str, Any]]]:
        return [
            (user("ecs").describe_tasks, {"tasks": [task_id]}),
            (user("ecs").describe_task_definition, {"taskDefinition": "train:1"}),
            (user("ecs").run_task, {"taskDefinition": "train:1", "count": 1}),
            (user("ecs").tag_resource, {"resourceArn": task["taskArn"], "tags": [{"key": "k", "value": "v"}]}),
            (user("ecs").stop_task, {"task": task_id}),
            (user("logs").get_log_events, stream),
            (user("logs").put_log_events, {**stream, "logEvents": [{"timestamp": 1_700_000_000_000, "message": "x"}]}),
            (user("logs").delete_log_stream, stream),
            (user("s3").get_object, bucket),
            (user("s3").copy_object, {"Bucket": f"{user.__defaults__[0]['UserName']}s", "Key": "c", "CopySource": "anns/k"}),
            (user("s3").delete_object, bucket),
            (user("sqs").send_message, {"QueueUrl": queue, "MessageBody": "x"}),
        ]

    bob("s3").create_bucket(Bucket="bobs")
    for call, params in attempts(bob):
        with pytest.raises(ClientError, match="not authorized to perform") as refused:
            call(**params)
        assert refused.value.response["Error"]["Code"] in ("AccessDenied", "AccessDeniedException"), params
    presigned = bob("s3").generate_presigned_url("get_object", Params=bucket)
    with pytest.raises(HTTPError, match="403"):
        urlopen(presigned)
    for user in (ann, bob):
        with pytest.raises(ClientError, match="logs:DeleteLogGroup on resource"):
            user("logs").delete_log_group(logGroupName=GROUP)  # the logs of all users are in it
    events = {name: user("logs").filter_log_events(logGroupName=GROUP)["events"] for name, user in (("ann", ann), ("bob", bob))}
    assert [each["message"] for each in events["ann"]] == ["hidden"] and events["bob"] == []
    seen = {name: user("ecs").list_tasks(desiredStatus="STOPPED")["taskArns"] for name, user in (("ann", ann), ("bob", bob))}
    assert seen == {"ann": [task["taskArn"]], "bob": []}
    assert [each["Name"] for each in bob("s3").list_buckets()["Buckets"]] == ["bobs"]
    for call, params in attempts(ann):
        call(**params)
