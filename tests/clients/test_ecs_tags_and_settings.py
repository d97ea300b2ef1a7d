"""Tags of ECS resources, account settings and task protection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from harness import container

HERE = "arn:aws:ecs:us-east-1:123456789012"
A_B = [{"key": "a", "value": "b"}]


def waiting_task(ecs: Any, **more: Any) -> str:
    """A task that never fits, so it keeps its state."""
    ecs.register_task_definition(family="waits", containerDefinitions=[container(["true"], gpus=60)], tags=A_B)
    return ecs.run_task(taskDefinition="waits", **more)["tasks"][0]["taskArn"]


# Tags


@pytest.fixture
def taggable(corral, client) -> dict[str, str]:
    ecs = client("ecs")
    ecs.register_task_definition(family="tagged", containerDefinitions=[container(["true"])])
    names = {provider["name"] for provider in ecs.describe_capacity_providers()["capacityProviders"]}
    if "tagged" not in names:
        ecs.create_capacity_provider(name="tagged", autoScalingGroupProvider={"autoScalingGroupArn": corral.group("tagged")})
    return {
        "cluster": ecs.create_cluster(clusterName="tagged")["cluster"]["clusterArn"],
        "default": f"{HERE}:cluster/default",
        "definition": ecs.describe_task_definition(taskDefinition="tagged")["taskDefinition"]["taskDefinitionArn"],
        "task": waiting_task(ecs),
        "instance": ecs.list_container_instances()["containerInstanceArns"][0],
        "provider": f"{HERE}:capacity-provider/tagged",
    }


@pytest.mark.parametrize("kind", ["cluster", "default", "definition", "task", "instance", "provider"])
def test_tagging(client, taggable, kind):
    ecs, arn = client("ecs"), taggable[kind]
    ecs.tag_resource(resourceArn=arn, tags=[{"key": "a", "value": "1"}, {"key": "b", "value": ""}])
    ecs.tag_resource(resourceArn=arn, tags=[{"key": "a", "value": "2"}])
    listed = ecs.list_tags_for_resource(resourceArn=arn)["tags"]
    assert listed == [{"key": "a", "value": "2"}, {"key": "b", "value": ""}]
    ecs.untag_resource(resourceArn=arn, tagKeys=["a", "never there"])
    assert ecs.list_tags_for_resource(resourceArn=arn)["tags"] == [{"key": "b", "value": ""}]


@pytest.mark.parametrize("kind", ["cluster", "default", "definition", "task", "instance", "provider"])
def test_only_the_arn_itself_finds_a_resource(client, taggable, kind):
    """Policies are checked for the ARN in the request, so another spelling could evade a policy."""
    ecs, arn = client("ecs"), taggable[kind]
    type_, _, path = arn.removeprefix(f"{HERE}:").partition("/")
    name = path.rpartition("/")[2]
    paths = (name, f"/{name}", f"other/{name}", f"x/{path}", f"{path}/", path.upper(), path.replace(":", ":0"), arn)
    spellings = {
        arn.replace("arn:aws:", "arn:aws-cn:"),
        arn.replace("us-east-1", "eu-west-1"),
        arn.replace("us-east-1", ""),
        arn.replace("123456789012", "999999999999"),
        arn.replace("123456789012", ""),
        *(f"{HERE}:{type_}/{each}" for each in paths),
    }
    for spelling in spellings - {arn}:
        with pytest.raises(ecs.exceptions.ClientError) as caught:
            ecs.tag_resource(resourceArn=spelling, tags=[{"key": "evaded", "value": ""}])
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400, spelling
    assert "evaded" not in [tag["key"] for tag in ecs.list_tags_for_resource(resourceArn=arn)["tags"]]


def test_describe_operations_return_tags(client, taggable):
    ecs = client("ecs")
    for arn in taggable.values():
        ecs.tag_resource(resourceArn=arn, tags=[{"key": "seen", "value": "yes"}])
    seen = {"key": "seen", "value": "yes"}
    assert seen in ecs.describe_clusters(clusters=["tagged"], include=["TAGS"])["clusters"][0]["tags"]
    assert seen in ecs.describe_task_definition(taskDefinition=taggable["definition"], include=["TAGS"])["tags"]
    assert seen in ecs.describe_tasks(tasks=[taggable["task"]], include=["TAGS"])["tasks"][0]["tags"]
    assert seen in ecs.describe_capacity_providers(capacityProviders=["tagged"], include=["TAGS"])["capacityProviders"][0]["tags"]
    [instance] = ecs.describe_container_instances(containerInstances=[taggable["instance"]], include=["TAGS"])["containerInstances"]
    assert seen in instance["tags"]
    [instance] = ecs.describe_container_instances(containerInstances=[taggable["instance"]])["containerInstances"]
    assert instance["tags"] == []


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ([{"value": "without a key"}], "1 to 128"),
        ([{"key": "k" * 129, "value": ""}], "length less than or equal to 128"),
        ([{"key": "k", "value": "v" * 257}], "length less than or equal to 256"),
        ([{"key": "AWS:k", "value": ""}], "reserved"),
        ([{"key": "k", "value": "aws:v"}], "reserved"),
        ([{"key": "k"}, {"key": "k"}], "unique"),
        ([{"key": f"k{at}"} for at in range(51)], "50"),
    ],
)
def test_tags_that_are_refused(client, taggable, tags, words):
    ecs = client("ecs")
    with pytest.raises(ecs.exceptions.InvalidParameterException, match=words):
        ecs.tag_resource(resourceArn=taggable["cluster"], tags=tags)


def test_at_most_fifty_tags(client):
    ecs = client("ecs")
    arn = ecs.create_cluster(clusterName="full", tags=[{"key": f"k{at}"} for at in range(50)])["cluster"]["clusterArn"]
    ecs.tag_resource(resourceArn=arn, tags=[{"key": "k0", "value": "changed"}])
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="50"):
        ecs.tag_resource(resourceArn=arn, tags=[{"key": "one more"}])


def test_unknown_resources(client):
    ecs = client("ecs")
    for what in ("task/default/0", "task-definition/never:1", "container-instance/default/0", "capacity-provider/never"):
        with pytest.raises(ecs.exceptions.ResourceNotFoundException, match="was not found"):
            ecs.tag_resource(resourceArn=f"{HERE}:{what}", tags=A_B)
        with pytest.raises(ecs.exceptions.InvalidParameterException, match="was not found"):
            ecs.list_tags_for_resource(resourceArn=f"{HERE}:{what}")
    for arn in (f"{HERE}:cluster/never", "arn:aws:ecs:eu-west-1:123456789012:cluster/default"):
        with pytest.raises(ecs.exceptions.ClusterNotFoundException):
            ecs.untag_resource(resourceArn=arn, tagKeys=["a"])
    for arn in ("nonsense", "arn:aws:s3:::bucket", f"{HERE}:daemon/x"):
        with pytest.raises(ecs.exceptions.InvalidParameterException):
            ecs.tag_resource(resourceArn=arn, tags=A_B)


def test_tags_of_a_new_task(client):
    ecs = client("ecs")

    def tags(**more: Any) -> dict[str, str]:
        [task] = ecs.describe_tasks(tasks=[waiting_task(ecs, **more)], include=["TAGS"])["tasks"]
        return {tag["key"]: tag["value"] for tag in task["tags"]}

    assert tags() == {}
    assert tags(propagateTags="TASK_DEFINITION") == {"a": "b"}
    own = [{"key": "a", "value": "of the request"}, {"key": "c", "value": "d"}]
    assert tags(propagateTags="TASK_DEFINITION", tags=own) == {"a": "of the request", "c": "d"}
    assert tags(enableECSManagedTags=True) == {"aws:ecs:clusterName": "default"}
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="SERVICE"):
        tags(propagateTags="SERVICE")
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="reserved"):
        tags(tags=[{"key": "aws:mine", "value": ""}])


# Account settings


def test_account_settings(client):
    ecs = client("ecs", "eu-central-1")  # settings belong to a region

    def settings(**given: Any) -> dict[str, str]:
        return {setting["name"]: setting["value"] for setting in ecs.list_account_settings(**given)["settings"]}

    assert settings() == {}
    effective = settings(effectiveSettings=True)
    assert set(effective) == set(ecs.meta.service_model.shape_for("SettingName").enum)
    assert (effective["taskLongArnFormat"], effective["containerInsights"]) == ("enabled", "disabled")

    user = "arn:aws:iam::123456789012:user/someone"
    ecs.put_account_setting_default(name="containerInsights", value="enabled")
    assert settings(effectiveSettings=True, principalArn=user)["containerInsights"] == "enabled"
    assert settings(principalArn=user) == {}
    put = ecs.put_account_setting(name="containerInsights", value="enhanced", principalArn=user)["setting"]
    assert (put["value"], put["principalArn"]) == ("enhanced", user)
    assert settings(principalArn=user) == {"containerInsights": "enhanced"}
    assert settings(principalArn=user, name="containerInsights", value="disabled") == {}
    ecs.delete_account_setting(name="containerInsights", principalArn=user)
    assert settings(effectiveSettings=True, principalArn=user)["containerInsights"] == "enabled"

    made = ecs.create_cluster(clusterName="by-default")["cluster"]
    assert made["settings"] == [{"name": "containerInsights", "value": "enabled"}], "new clusters follow the account"
    for name, value in (("containerInsights", "perhaps"), ("guardDutyActivate", "on"), ("fargateTaskRetirementWaitPeriod", "8")):
        with pytest.raises(ecs.exceptions.InvalidParameterException):
            ecs.put_account_setting(name=name, value=value)
    with pytest.raises(ecs.exceptions.InvalidParameterException):
        ecs.list_account_settings(value="enabled")


# Task protection


def test_task_protection(client):
    ecs = client("ecs")
    task = waiting_task(ecs)
    assert ecs.get_task_protection(cluster="default", tasks=[task])["protectedTasks"] == [
        {"taskArn": task, "protectionEnabled": False}
    ]
    before = datetime.now(UTC)
    ecs.update_task_protection(cluster="default", tasks=[task], protectionEnabled=True)
    [protected] = ecs.get_task_protection(cluster="default", tasks=[task])["protectedTasks"]
    assert protected["protectionEnabled"]
    assert timedelta(minutes=119) < protected["expirationDate"] - before < timedelta(minutes=121)
    ecs.update_task_protection(cluster="default", tasks=[task], protectionEnabled=True, expiresInMinutes=1)
    [protected] = ecs.get_task_protection(cluster="default", tasks=[task])["protectedTasks"]
    assert protected["expirationDate"] - before < timedelta(minutes=2)
    reply = ecs.update_task_protection(cluster="default", tasks=[task, "0" * 32], protectionEnabled=False)
    assert reply["protectedTasks"] == [{"taskArn": task, "protectionEnabled": False}]
    assert [failure["reason"] for failure in reply["failures"]] == ["MISSING"]
    for minutes in (0, 2881):
        with pytest.raises(ecs.exceptions.InvalidParameterException):
            ecs.update_task_protection(cluster="default", tasks=[task], protectionEnabled=True, expiresInMinutes=minutes)
    ecs.stop_task(task=task)
    reply = ecs.update_task_protection(cluster="default", tasks=[task], protectionEnabled=True)
    assert [failure["reason"] for failure in reply["failures"]] == ["TASK_NOT_VALID"]
    with pytest.raises(ecs.exceptions.ClusterNotFoundException):
        ecs.get_task_protection(cluster="nowhere", tasks=[task])


def test_a_protected_task_can_still_be_stopped_and_keeps_its_tags(client):
    ecs = client("ecs")
    task = waiting_task(ecs, tags=A_B)
    ecs.update_task_protection(cluster="default", tasks=[task], protectionEnabled=True)
    assert ecs.stop_task(task=task)["task"]["lastStatus"] == "STOPPED"
    assert ecs.describe_tasks(tasks=[task], include=["TAGS"])["tasks"][0]["tags"] == A_B
    ecs.tag_resource(resourceArn=task, tags=[{"key": "late", "value": "tag"}])
    assert len(ecs.list_tags_for_resource(resourceArn=task)["tags"]) == 2


def test_with_the_aws_command(aws):
    arn = aws("ecs", "create-cluster", "--cluster-name", "cli-tags")["cluster"]["clusterArn"]
    aws("ecs", "tag-resource", "--resource-arn", arn, "--tags", "key=team,value=vision", "key=empty,value=")
    aws("ecs", "untag-resource", "--resource-arn", arn, "--tag-keys", "empty")
    assert aws("ecs", "list-tags-for-resource", "--resource-arn", arn)["tags"] == [{"key": "team", "value": "vision"}]
    settings = aws("ecs", "list-account-settings", "--effective-settings", "--name", "awsvpcTrunking")["settings"]
    assert settings[0]["value"] == "disabled"
