"""Deployments of ECS services with real clients and real tasks: failures, rollbacks, health checks, alarms and history."""

from __future__ import annotations

import pytest

from clients.service_help import clean_ecs, described, family, messages, stable, tasks_of
from eventually import eventually

BREAKER = {"deploymentCircuitBreaker": {"enable": True, "rollback": True}}


@pytest.fixture
def ecs(corral, client):
    yield from clean_ecs(corral, client)


def rollout(ecs, name):
    [newest, *_] = ecs.list_service_deployments(service=name)["serviceDeployments"]
    [described] = ecs.describe_service_deployments(serviceDeploymentArns=[newest["serviceDeploymentArn"]])["serviceDeployments"]
    return described


def ended(ecs, name, status):
    return eventually(lambda: (found := rollout(ecs, name))["status"] == status and found, f"the deployment of {name} is {status}")


def test_a_version_that_crashes_is_rolled_back(ecs):
    first = family(ecs, "breaks")
    ecs.create_service(serviceName="breaks", taskDefinition="breaks", desiredCount=2)
    old = {task["taskArn"] for task in stable(ecs, "breaks") and tasks_of(ecs, "breaks")}
    good = described(ecs, "breaks")["deployments"][0]["id"]
    second = family(ecs, "breaks", ["false"])
    ecs.update_service(service="breaks", taskDefinition="breaks", deploymentConfiguration=BREAKER)
    shown = ended(ecs, "breaks", "ROLLBACK_SUCCESSFUL")
    assert shown["deploymentCircuitBreaker"]["status"] == "TRIGGERED" and shown["deploymentCircuitBreaker"]["threshold"] == 3
    assert shown["rollback"]["reason"] == "ECS deployment circuit breaker: tasks failed to start."
    service = stable(ecs, "breaks")
    assert service["taskDefinition"] == first and {task["taskArn"] for task in tasks_of(ecs, "breaks")} == old
    found = messages(ecs, "breaks")
    assert f"(service breaks) rolling back to deployment {good}." in found
    assert any(message.endswith("deployment failed: tasks failed to start.") for message in found)
    [failed] = ecs.describe_service_revisions(serviceRevisionArns=[shown["targetServiceRevision"]["arn"]])["serviceRevisions"]
    assert failed["taskDefinition"] == second and failed["containerImages"][0]["image"] == "corral/host"
    [source] = shown["sourceServiceRevisions"]
    assert source["arn"] == shown["rollback"]["serviceRevisionArn"] == service["currentServiceRevisions"][0]["arn"]
    assert source["arn"].endswith(f":service-revision/default/breaks/{good.removeprefix('ecs-svc/')}")


def test_a_first_version_that_crashes_fails(ecs, aws):
    family(ecs, "stalls", ["false"])
    ecs.create_service(serviceName="stalls", taskDefinition="stalls", desiredCount=1, deploymentConfiguration=BREAKER)
    ended(ecs, "stalls", "STOPPED")
    [deployment] = described(ecs, "stalls")["deployments"]
    assert deployment["rolloutState"] == "FAILED" and deployment["failedTasks"] == 3
    assert deployment["rolloutStateReason"] == "ECS deployment circuit breaker: tasks failed to start."
    assert not tasks_of(ecs, "stalls") and len(tasks_of(ecs, "stalls", "STOPPED")) == 3
    family(ecs, "stalls")
    ecs.update_service(service="stalls", taskDefinition="stalls")
    assert stable(ecs, "stalls")["runningCount"] == 1
    shown = aws("ecs", "list-service-deployments", "--service", "stalls", "--status", "STOPPED")["serviceDeployments"]
    assert len(shown) == 1


def test_a_deployment_waits_for_the_health_checks_of_its_tasks(ecs, tmp_path):
    """The check of the first version always succeeds. That of the second version succeeds when a file exists."""
    check = {"command": ["CMD", "true"], "interval": 5, "retries": 1}
    family(ecs, "checked", healthCheck=check)
    ecs.create_service(serviceName="checked", taskDefinition="checked", desiredCount=1)
    ended(ecs, "checked", "SUCCESSFUL")
    [old] = tasks_of(ecs, "checked")
    assert old["healthStatus"] == "HEALTHY"
    ready = tmp_path / "ready"
    slow = {"command": ["CMD", "test", "-e", str(ready)], "interval": 5, "retries": 10}
    family(ecs, "checked", healthCheck=slow)
    ecs.update_service(service="checked", taskDefinition="checked")
    eventually(lambda: described(ecs, "checked")["runningCount"] == 2, "both versions run")
    assert rollout(ecs, "checked")["status"] == "IN_PROGRESS"
    ready.touch()
    ended(ecs, "checked", "SUCCESSFUL")
    [new] = tasks_of(ecs, "checked")
    assert new["taskArn"] != old["taskArn"] and new["healthStatus"] == "HEALTHY"


def test_an_unhealthy_task_is_replaced(ecs, tmp_path):
    sick = tmp_path / "sick"
    check = {"command": ["CMD", "test", "!", "-e", str(sick)], "interval": 5, "retries": 1}
    family(ecs, "sick", healthCheck=check)
    ecs.create_service(serviceName="sick", taskDefinition="sick", desiredCount=1)
    ended(ecs, "sick", "SUCCESSFUL")
    [old] = tasks_of(ecs, "sick")
    sick.touch()
    text = f"(service sick) (task {old['taskArn'][-32:]}) failed container health checks."
    eventually(lambda: text in messages(ecs, "sick"), "the event")
    sick.unlink()
    eventually(lambda: old["taskArn"] not in {task["taskArn"] for task in tasks_of(ecs, "sick")}, "the task is replaced")
    [task] = ecs.describe_tasks(tasks=[old["taskArn"]])["tasks"]
    assert (task["stopCode"], task["stoppedReason"]) == ("ServiceSchedulerInitiated", "Task failed container health checks")


def test_an_alarm_rolls_a_deployment_back(ecs, client):
    cloudwatch = client("cloudwatch")
    cloudwatch.put_metric_alarm(
        AlarmName="too-slow", Namespace="Demo", MetricName="Latency", Statistic="Average", Period=60, EvaluationPeriods=1,
        Threshold=1.0, ComparisonOperator="GreaterThanThreshold",
    )  # fmt: skip
    family(ecs, "alarmed")
    ecs.create_service(serviceName="alarmed", taskDefinition="alarmed", desiredCount=1)
    stable(ecs, "alarmed")
    good = described(ecs, "alarmed")["deployments"][0]["id"]
    alarms = {"alarms": {"enable": True, "rollback": True, "alarmNames": ["too-slow"]}}
    ecs.update_service(service="alarmed", forceNewDeployment=True, deploymentConfiguration=alarms)
    eventually(lambda: rollout(ecs, "alarmed").get("lifecycleStage") == "BAKE_TIME", "the bake time")
    assert described(ecs, "alarmed")["deployments"][0]["rolloutState"] == "IN_PROGRESS"
    cloudwatch.set_alarm_state(AlarmName="too-slow", StateValue="ALARM", StateReason="a test")
    shown = ended(ecs, "alarmed", "ROLLBACK_SUCCESSFUL")
    assert shown["alarms"]["triggeredAlarmNames"] == ["too-slow"]
    assert [each["id"] for each in described(ecs, "alarmed")["deployments"]] == [good]
    cloudwatch.delete_alarms(AlarmNames=["too-slow"])


def test_stop_and_continue(ecs):
    family(ecs, "stopped")
    ecs.create_service(serviceName="stopped", taskDefinition="stopped", desiredCount=1)
    stable(ecs, "stopped")
    hooks = {"lifecycleHooks": [{"targetType": "PAUSE", "lifecycleStages": ["PRE_SCALE_UP"]}]}
    ecs.update_service(service="stopped", forceNewDeployment=True, deploymentConfiguration=hooks)
    shown = rollout(ecs, "stopped")
    [hook] = shown["lifecycleHookDetails"]
    assert hook["status"] == "AWAITING_ACTION"
    ecs.stop_service_deployment(serviceDeploymentArn=shown["serviceDeploymentArn"], stopType="ROLLBACK")
    ended(ecs, "stopped", "ROLLBACK_SUCCESSFUL")
    ecs.update_service(service="stopped", forceNewDeployment=True)
    shown = rollout(ecs, "stopped")
    [hook] = shown["lifecycleHookDetails"]
    assert described(ecs, "stopped")["currentServiceDeployment"] == shown["serviceDeploymentArn"]
    ecs.continue_service_deployment(serviceDeploymentArn=shown["serviceDeploymentArn"], hookId=hook["hookId"])
    ended(ecs, "stopped", "SUCCESSFUL")
    with pytest.raises(ecs.exceptions.ConflictException, match="already ended"):
        ecs.stop_service_deployment(serviceDeploymentArn=shown["serviceDeploymentArn"])
    missing = shown["serviceDeploymentArn"][:-5] + "00000"
    with pytest.raises(ecs.exceptions.ServiceDeploymentNotFoundException):
        ecs.stop_service_deployment(serviceDeploymentArn=missing)
    assert [each["reason"] for each in ecs.describe_service_deployments(serviceDeploymentArns=[missing])["failures"]] == ["MISSING"]
    pages = [ecs.list_service_deployments(service="stopped", maxResults=2)]
    pages.append(ecs.list_service_deployments(service="stopped", maxResults=2, nextToken=pages[0]["nextToken"]))
    listed = [each["status"] for page in pages for each in page["serviceDeployments"]]
    assert listed == ["SUCCESSFUL", "ROLLBACK_SUCCESSFUL", "SUCCESSFUL"] and "nextToken" not in pages[1]


def test_refused_configurations(ecs):
    family(ecs, "refused")
    for configuration, text in (
        ({"strategy": "BLUE_GREEN"}, "BLUE_GREEN"),
        ({"lifecycleHooks": [{"hookTargetArn": "arn:aws:lambda:us-east-1:123456789012:function:f"}]}, "AWS_LAMBDA"),
        ({"lifecycleHooks": [{"targetType": "PAUSE", "lifecycleStages": ["POST_TEST_TRAFFIC_SHIFT"]}]}, "shifts no traffic"),
        ({"earlySuccessCriteria": {"enable": True}}, "earlySuccessCriteria"),
    ):
        with pytest.raises(ecs.exceptions.UnsupportedFeatureException, match=text):
            ecs.create_service(
                serviceName="refused", taskDefinition="refused", desiredCount=1, deploymentConfiguration=configuration
            )
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="at least one alarm"):
        alarms = {"alarms": {"enable": True, "rollback": True, "alarmNames": []}}
        ecs.create_service(serviceName="refused", taskDefinition="refused", desiredCount=1, deploymentConfiguration=alarms)
    with pytest.raises(ecs.exceptions.InvalidParameterException, match="not the ARN of a service-revision"):
        ecs.describe_service_revisions(serviceRevisionArns=["other"])


def test_task_sets(ecs):
    family(ecs, "sets")
    ecs.create_service(serviceName="sets", desiredCount=2, deploymentController={"type": "EXTERNAL"})
    place = {"cluster": "default", "service": "sets"}
    made = ecs.create_task_set(**place, taskDefinition="sets", scale={"value": 50, "unit": "PERCENT"})["taskSet"]
    assert made["computedDesiredCount"] == 1 and made["status"] == "ACTIVE"

    def steady():
        [found] = ecs.describe_task_sets(**place, taskSets=[made["taskSetArn"]])["taskSets"]
        return found["stabilityStatus"] == "STEADY_STATE" and found

    assert eventually(steady, "the task set is steady")["runningCount"] == 1
    assert {task["startedBy"] for task in tasks_of(ecs, "sets")} == {made["id"]}
    ecs.update_service_primary_task_set(**place, primaryTaskSet=made["id"])
    [shown] = described(ecs, "sets")["taskSets"]
    assert shown["status"] == "PRIMARY" and described(ecs, "sets")["deployments"] == []
    assert ecs.delete_task_set(**place, taskSet=made["id"], force=True)["taskSet"]["status"] == "DRAINING"
    eventually(lambda: not tasks_of(ecs, "sets"), "its tasks stop")
    with pytest.raises(ecs.exceptions.TaskSetNotFoundException):
        ecs.update_task_set(**place, taskSet=made["id"], scale={"value": 50, "unit": "PERCENT"})


def test_tags_and_execute_command_reach_the_tasks(ecs):
    family(ecs, "tagged")
    ecs.create_service(
        serviceName="tagged", taskDefinition="tagged", desiredCount=1, propagateTags="SERVICE", enableECSManagedTags=True,
        enableExecuteCommand=True, tags=[{"key": "team", "value": "a"}],
    )  # fmt: skip
    stable(ecs, "tagged")
    [task] = ecs.describe_tasks(tasks=ecs.list_tasks(serviceName="tagged")["taskArns"], include=["TAGS"])["tasks"]
    tags = {tag["key"]: tag["value"] for tag in task["tags"]}
    assert tags == {"team": "a", "aws:ecs:clusterName": "default", "aws:ecs:serviceName": "tagged"}
    assert task["enableExecuteCommand"]
    ecs.update_service(service="tagged", propagateTags="NONE", enableExecuteCommand=False, enableECSManagedTags=False)
    assert tasks_of(ecs, "tagged")[0]["taskArn"] == task["taskArn"], "only new tasks change"
    ecs.update_service(service="tagged", forceNewDeployment=True)
    ended(ecs, "tagged", "SUCCESSFUL")
    [new] = ecs.describe_tasks(tasks=ecs.list_tasks(serviceName="tagged")["taskArns"], include=["TAGS"])["tasks"]
    assert not new.get("tags") and not new["enableExecuteCommand"]
