"""The owners, tags and policies of resources that policies can test, what listings show, and the condition keys of requests."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from corral.access.caller import Caller
from corral.access.permissions import Permission
from corral.access.resources import ResourceFacts, facts_of
from corral.core.ids import SeededIds
from corral.core.transactions import Tx
from corral.model.principal import ANONYMOUS, ROOT, Principal
from corral.model.settings import ServerFacts, Settings
from corral.operations.listings import listing_of, visible
from corral.operations.services import SERVICES, needed_permissions
from corral.store import Store
from corral.telemetry import LogStore, MetricStore
from store.rows import OWN
from virtual_clock.environment_world import EnvironmentWorld
from virtual_clock.group_world import CALLER
from virtual_clock.service_world import ServiceWorld
from virtual_clock.test_owners import ALICE, CONTAINER, USER, call

HERE = f"{CALLER.region}:{CALLER.account}"
TAGS = [{"key": "team", "value": "ml"}]


def facts(tx: Tx[Any], action: str, arn: str, caller: Caller = USER) -> ResourceFacts | None:
    return facts_of(tx, caller, Permission(action, arn))


def owner_and_tags(world: Any, action: str, arn: str) -> tuple[str | None, dict[str, str]]:
    found = world.run(lambda tx: facts(tx, action, arn))
    return found.owner, dict(found.tags)


def shown(tx: Tx[Any], service: str, operation: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return the response that a caller gets who may see only what belongs to Alice."""
    listing = listing_of(service, operation)
    assert listing is not None
    assert facts(tx, f"{service}:{operation}", f"arn:aws:{service}:{HERE}:x") == ResourceFacts()  # before the handler
    response = SERVICES[service].operations[operation](tx, params, CALLER)
    return visible(tx, listing, USER, params, response, lambda owner: owner == ALICE)


def test_the_resources_of_ecs() -> None:
    world = ServiceWorld(gpus=1)
    call(world, "ecs", "CreateCluster", clusterName="mine", tags=TAGS)
    for name in ("RegisterTaskDefinition",):
        call(world, "ecs", name, family="one", containerDefinitions=[CONTAINER], tags=TAGS)
        world.call(name, "ecs", family="one", containerDefinitions=[CONTAINER])
        world.call(name, "ecs", family="roots", containerDefinitions=[CONTAINER])
    call(world, "ecs", "RunTask", taskDefinition="one", tags=TAGS)
    world.call("RunTask", "ecs", taskDefinition="one")
    call(world, "ecs", "CreateService", serviceName="web", taskDefinition="one", desiredCount=1, tags=TAGS)
    world.call("CreateService", "ecs", serviceName="roots", taskDefinition="roots", desiredCount=0)
    tasks = dict(world.store.execute("SELECT owner, id FROM task WHERE started_by IS NULL").fetchall())
    mine = (ALICE, {"team": "ml"})
    for arn, expected in {
        "cluster/mine": mine,
        "cluster/default": (ROOT, {}),
        "cluster/missing": (None, {}),
        f"task/default/{tasks[ALICE]}": mine,
        f"task/default/{tasks[ROOT]}": (ROOT, {}),
        "task/default/gone": (None, {}),
        "task-definition/one:1": mine,
        "task-definition/one:2": (ROOT, {}),
        "task-definition/one:*": (None, {}),
        "task-definition/one:99999999999999": (None, {}),
        "service/default/web": mine,
        "service/default": (None, {}),
        "service-deployment/default/web/1": mine,
        "task-set/default/roots/ecs-svc/1": (ROOT, {}),
        f"container-instance/default/{OWN}": (ROOT, {}),
        "capacity-provider/x": (None, {}),
    }.items():
        assert owner_and_tags(world, "ecs:Any", f"arn:aws:ecs:{HERE}:{arn}") == expected, arn
    for operation, params, member, ends in (
        ("ListTasks", {}, "taskArns", 2),
        ("ListServices", {}, "serviceArns", ["service/default/web"]),
        ("ListClusters", {}, "clusterArns", ["cluster/mine"]),
        ("ListContainerInstances", {}, "containerInstanceArns", []),
        ("ListTaskDefinitions", {}, "taskDefinitionArns", ["task-definition/one:1"]),
        ("ListTaskDefinitionFamilies", {}, "families", ["one"]),
    ):
        found = world.run(lambda tx, name=operation, given=params: shown(tx, "ecs", name, given))[member]
        assert len(found) == ends if isinstance(ends, int) else [each.split(":", 5)[-1] for each in found] == ends, operation


def test_a_service_with_the_definition_of_another_owner_needs_the_permission_to_run_it() -> None:
    """Otherwise, a user could read the secrets of a definition by commands in the tasks of a service."""
    world = ServiceWorld(gpus=1)
    world.call("RegisterTaskDefinition", "ecs", family="roots", containerDefinitions=[CONTAINER])
    call(world, "ecs", "RegisterTaskDefinition", family="mine", containerDefinitions=[CONTAINER])
    for operation in ("CreateService", "UpdateService", "CreateTaskSet"):
        for family, extra in (("mine", []), ("roots", [f"{ARN}task-definition/roots:1"])):
            given = {"service": "s", "serviceName": "s", "taskDefinition": family}
            needed = world.run(lambda tx, name=operation, given=given: needed_permissions(tx, USER, "ecs", name, given))
            assert [each.resource for each in needed if each.action == "ecs:RunTask"] == extra, (operation, family)


def test_arrays_of_users_do_not_mix() -> None:
    world = ServiceWorld(gpus=2)
    for caller in (USER, CALLER):
        world.run(lambda tx, caller=caller: SERVICES["ecs"].operations["RegisterTaskDefinition"](
            tx, {"family": "one", "containerDefinitions": [CONTAINER]}, caller))  # fmt: skip
        tags = [{"key": "corral:array", "value": "a 0 1 2"}]
        run = {"taskDefinition": "one", "count": 2, "tags": tags}
        world.run(lambda tx, caller=caller, run=run: SERVICES["ecs"].operations["RunTask"](tx, run, caller))
    assert world.store.execute("SELECT key FROM task_array ORDER BY key").fetchall() == [
        (f"{CALLER.region}/a",), (f"{CALLER.region}/{ALICE}/a",),
    ]  # fmt: skip


def test_the_resources_of_batch() -> None:
    world = EnvironmentWorld(gpus=1)
    world.queue("roots")
    container = {"image": "busybox", "resourceRequirements": [{"type": "VCPU", "value": "1"}, {"type": "MEMORY", "value": "64"}]}
    given = {"jobDefinitionName": "job", "type": "container", "containerProperties": container}
    call(world, "batch", "RegisterJobDefinition", **given, tags={"team": "ml"})
    world.call("RegisterJobDefinition", "batch", **given)
    mine = call(world, "batch", "SubmitJob", jobName="a", jobQueue="roots", jobDefinition="job", arrayProperties={"size": 2})
    roots = world.call("SubmitJob", "batch", jobName="b", jobQueue="roots", jobDefinition="job")
    for arn, owner in {
        "job-definition/job:1": ALICE,
        "job-definition/job:2": ROOT,
        "job-definition/job": None,
        f"job/{mine['jobId']}": ALICE,
        f"job/{mine['jobId']}:1": ALICE,
        f"job/{roots['jobId']}": ROOT,
        "job-queue/roots": ROOT,
        "job-queue/missing": None,
    }.items():
        assert owner_and_tags(world, "batch:Any", f"arn:aws:batch:{HERE}:{arn}")[0] == owner, arn
    assert owner_and_tags(world, "batch:Any", f"arn:aws:batch:{HERE}:job-definition/job:1")[1] == {"team": "ml"}
    for operation, params, member, expected in (
        ("DescribeJobs", {"jobs": [mine["jobId"], roots["jobId"]]}, "jobs", [mine["jobId"]]),
        ("ListJobs", {"jobQueue": "roots", "filters": [{"name": "BEFORE_CREATED_AT", "values": ["9000000000000"]}]},
         "jobSummaryList", [mine["jobId"]]),
        ("DescribeJobDefinitions", {}, "jobDefinitions", [1]),
        ("DescribeJobQueues", {}, "jobQueues", []),
        ("DescribeComputeEnvironments", {}, "computeEnvironments", []),
    ):  # fmt: skip
        found = world.run(lambda tx, name=operation, given=params: shown(tx, "batch", name, given))[member]
        assert [each.get("jobId") or each.get("revision") for each in found] == expected, operation


def test_corrals_own_operations_name_tasks() -> None:
    world = ServiceWorld(gpus=1)
    call(world, "ecs", "RegisterTaskDefinition", family="one", containerDefinitions=[CONTAINER])
    call(world, "ecs", "RunTask", taskDefinition="one")
    world.call("RunTask", "ecs", taskDefinition="one")
    tasks = dict(world.store.execute("SELECT owner, id FROM task").fetchall())

    def needed(operation: str, **params: Any) -> list[tuple[str, str | None]]:
        def read(tx: Tx[Store]) -> list[tuple[str, str | None]]:
            permissions = needed_permissions(tx, USER, "corral", operation, params)
            return [(each.resource.rpartition(":")[2], (facts_of(tx, USER, each) or ResourceFacts()).owner) for each in permissions]

        return world.run(read)

    assert needed("SignalTask", task=tasks[ROOT]) == [(f"task/default/{tasks[ROOT]}", ROOT)]
    assert needed("ListOutputFiles", task=tasks[ALICE]) == [(f"task/default/{tasks[ALICE]}", ALICE)]
    both = [(f"task/default/{tasks[each]}", each) for each in (ALICE, ROOT)]
    assert needed("UpdateWaitingTasks", tasks=[tasks[ALICE], tasks[ROOT]]) == both
    assert needed("StopAllTasks", pause=1) == [("*", None)]
    for params, member in (({}, "running"), ({}, "waiting")):
        found = world.run(lambda tx, params=params: shown(tx, "corral", "ListRuns", params))[member]
        assert {each["owner"] for each in found} <= {ALICE}
    status = world.run(lambda tx: SERVICES["corral"].operations["GetStatus"](tx, {}, USER))
    assert {each["owner"] for each in (*status["running"], *status["waiting"])} == {ALICE, ROOT}
    assert {gpu["owner"] for host in status["hosts"] for gpu in host["gpus"]} <= {ALICE, ROOT}


def test_streams_belong_to_their_writers() -> None:
    logs = Tx(LogStore(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())

    def do(operation: str, caller: Caller = CALLER, **params: Any) -> Any:
        return SERVICES["logs"].operations[operation](logs, params, caller)

    do("CreateLogGroup", logGroupName="shared")
    for name, caller in (("mine", USER), ("roots", CALLER)):
        do("CreateLogStream", caller, logGroupName="shared", logStreamName=name)
        events = [{"timestamp": 1_700_000_000_000, "message": name}]
        do("PutLogEvents", caller, logGroupName="shared", logStreamName=name, logEvents=events)
    do("CreateLogGroup", USER, logGroupName="own", tags={"team": "ml"})
    group = f"arn:aws:logs:{HERE}:log-group:"
    for arn, owner in {
        "shared:log-stream:mine": ALICE, "shared:log-stream:roots": ROOT, "shared:log-stream:new": ROOT, "shared:*": ROOT,
        "own:*": ALICE, "own": ALICE, "own:log-stream:new": ALICE, "missing:*": None, "*": None,
    }.items():  # fmt: skip
        found = facts(logs, "logs:GetLogEvents", group + arn)
        assert found is not None and found.owner == owner, arn
    assert facts(logs, "logs:PutRetentionPolicy", f"{group}own:*") == ResourceFacts(ALICE, {"team": "ml"})
    shared = {"logGroupName": "shared"}
    assert [each["message"] for each in shown(logs, "logs", "FilterLogEvents", shared)["events"]] == ["mine"]
    assert [each["logStreamName"] for each in shown(logs, "logs", "DescribeLogStreams", shared)["logStreams"]] == ["mine"]
    for operation in ("DescribeLogGroups", "ListLogGroups"):
        assert [each["logGroupName"] for each in shown(logs, "logs", operation, {})["logGroups"]] == ["own"]
    states = shown(logs, "corral", "DescribeLogStates", {"group": "shared", "streams": ["mine", "roots", "missing"]})["logs"]
    assert [each["name"] for each in states] == ["mine", "missing"]
    # In the state lane, the facts come from the lane of the logs. Without it, they are unknown, and policies cannot test them.
    state = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    assert facts(state, "logs:GetLogEvents", f"{group}shared:*") is None
    read = ServerFacts(read_lane=lambda lane, read: read(logs) if lane == "logs" else None)
    state = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings(server=read))
    found = facts(state, "logs:GetLogEvents", f"{group}shared:log-stream:mine")
    assert found is not None and found.owner == ALICE


def test_alarms_and_dashboards_have_owners() -> None:
    metrics = Tx(MetricStore(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    alarm = {"Namespace": "N", "MetricName": "m", "Statistic": "Sum", "Period": 60, "EvaluationPeriods": 1, "Threshold": 1.0,
             "ComparisonOperator": "GreaterThanThreshold"}  # fmt: skip
    for name, caller in (("mine", USER), ("roots", CALLER)):
        tags = [{"Key": "team", "Value": name}]
        SERVICES["cloudwatch"].operations["PutMetricAlarm"](metrics, {**alarm, "AlarmName": name, "Tags": tags}, caller)
        board = {"DashboardName": name, "DashboardBody": '{"widgets": []}'}
        SERVICES["cloudwatch"].operations["PutDashboard"](metrics, board, caller)
        SERVICES["cloudwatch"].operations["PutDashboard"](metrics, board, CALLER)  # it keeps its owner
    assert facts(metrics, "cloudwatch:DeleteAlarms", f"arn:aws:cloudwatch:{HERE}:alarm:mine") == ResourceFacts(
        ALICE, {"team": "mine"}
    )
    for name, owner in (("mine", ALICE), ("roots", ROOT), ("missing", None)):
        found = facts(metrics, "cloudwatch:GetDashboard", f"arn:aws:cloudwatch::{CALLER.account}:dashboard/{name}")
        assert found is not None and found.owner == owner
    described = shown(metrics, "cloudwatch", "DescribeAlarms", {})
    assert [each["AlarmName"] for each in described["MetricAlarms"]] == ["mine"]
    assert [each["DashboardName"] for each in shown(metrics, "cloudwatch", "ListDashboards", {})["DashboardEntries"]] == ["mine"]
    history = shown(metrics, "cloudwatch", "DescribeAlarmHistory", {})["AlarmHistoryItems"]
    assert {each["AlarmName"] for each in history} == {"mine"}


def test_an_alarm_that_uses_resources_of_others_needs_permissions() -> None:
    world = ServiceWorld(gpus=1)
    topics = [
        world.call("CreateTopic", "sns", Name="roots")["TopicArn"],
        call(world, "sns", "CreateTopic", Name="mine")["TopicArn"],
    ]
    params = {"AlarmName": "a", "AlarmActions": topics}
    needed = world.run(lambda tx: needed_permissions(tx, USER, "cloudwatch", "PutMetricAlarm", params))
    assert [(each.action, each.resource) for each in needed[1:]] == [("sns:Publish", topics[0])]
    assert needed[0].context["cloudwatch:alarmactions"] == tuple(topics)


def s3_tx() -> Tx[Store]:
    tx = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    for name, caller in (("mine", USER), ("roots", CALLER), ("corral-run-environments", USER)):
        SERVICES["s3"].operations["CreateBucket"](tx, {"Bucket": name}, caller)
    return tx


def test_an_object_belongs_to_the_owner_of_its_bucket() -> None:
    tx = s3_tx()
    for resource, action, owner in (
        ("mine/k", "GetObject", ALICE), ("roots/k", "PutObject", ROOT), ("mine", "ListBucket", ALICE),
        ("none/k", "GetObject", None),
        ("corral-run-environments/k", "PutObject", None), ("corral-run-environments/k", "GetObject", ROOT),
    ):  # fmt: skip
        found = facts(tx, f"s3:{action}", f"arn:aws:s3:::{resource}")
        assert found is not None and found.owner == owner, resource
    assert [each["Name"] for each in shown(tx, "s3", "ListBuckets", {})["Buckets"]] == ["mine"]


def test_anonymous_callers_get_a_public_policy_only_without_the_block_of_public_access() -> None:
    tx, anonymous = s3_tx(), replace(CALLER, principal=Principal(CALLER.account, ANONYMOUS, "anonymous"))
    policy = '{"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::mine/*"}}'  # noqa: E501
    SERVICES["s3"].operations["PutBucketPolicy"](tx, {"Bucket": "mine", "Policy": policy}, USER)

    def policy_for(caller: Caller) -> str | None:
        found = facts(tx, "s3:GetObject", "arn:aws:s3:::mine/k", caller)
        return found.policy if found is not None else None

    assert (policy_for(USER), policy_for(anonymous)) == (policy, None)
    SERVICES["s3"].operations["DeletePublicAccessBlock"](tx, {"Bucket": "mine"}, USER)
    assert policy_for(anonymous) == policy


@pytest.mark.parametrize(
    ("operation", "params", "expected"),
    [
        ("PutObject", {"_headers": {"x-amz-tagging": "a=1&b=2"}}, ["PutObject", "PutObjectTagging"]),
        ("PutObject", {"_headers": {"x-amz-acl": "private"}}, ["PutObject", "PutObjectAcl"]),
        ("CopyObject", {"CopySource": "/roots/a%20b"}, ["PutObject", "GetObject roots/a b"]),
        ("CopyObject", {"CopySource": "roots/k?versionId=v"}, ["PutObject", "GetObjectVersion roots/k"]),
        ("UploadPartCopy", {"CopySource": "roots/k"}, ["PutObject", "GetObject roots/k"]),
        ("UploadPart", {}, ["PutObject"]),
        ("AbortMultipartUpload", {}, ["AbortMultipartUpload"]),
        ("GetObjectAttributes", {}, ["GetObjectAttributes", "GetObject"]),
        ("DeleteObject", {"VersionId": "v"}, ["DeleteObjectVersion"]),
        ("PutObjectTagging", {"VersionId": "v"}, ["PutObjectVersionTagging"]),
    ],
)
def test_what_a_request_for_an_object_needs(operation: str, params: dict[str, Any], expected: list[str]) -> None:
    needed = needed_permissions(s3_tx(), USER, "s3", operation, {"Bucket": "mine", "Key": "k", **params})
    found = [
        f"{each.action.removeprefix('s3:')} {each.resource.removeprefix('arn:aws:s3:::')}".removesuffix(" mine/k")
        for each in needed
    ]
    assert found == expected


ARN = f"arn:aws:ecs:{HERE}:"


@pytest.mark.parametrize(
    ("service", "operation", "params", "expected"),
    [
        ("ecs", "RunTask", {"taskDefinition": "f", "cluster": "c", "capacityProviderStrategy": [{"capacityProvider": "p"}]},
         {"ecs:cluster": (f"{ARN}cluster/c",), "ecs:capacity-provider": (f"{ARN}capacity-provider/p",),
          "ecs:enable-execute-command": ("false",), "ecs:task-definition": (f"{ARN}task-definition/f",)}),
        ("ecs", "CreateService", {"serviceName": "s", "enableExecuteCommand": True, "propagateTags": "SERVICE",
                                  "serviceConnectConfiguration": {"enabled": True, "namespace": "n"}},
         {"ecs:enable-execute-command": ("true",), "ecs:propagate-tags": ("SERVICE",), "ecs:enable-service-connect": ("true",),
          "ecs:namespace": ("n",), "ecs:enable-ebs-volumes": ("false",)}),
        ("ecs", "RegisterTaskDefinition", {"family": "f", "cpu": "256", "memory": "512", "requiresCompatibilities": ["EC2"],
                                           "containerDefinitions": [{"privileged": True}]},
         {"ecs:privileged": ("true",), "ecs:task-cpu": ("256",), "ecs:task-memory": ("512",),
          "ecs:compute-compatibility": ("EC2",)}),
        ("ecs", "StartTask", {"taskDefinition": "f", "containerInstances": ["i", f"{ARN}container-instance/default/j"]},
         {"ecs:container-instances": (f"{ARN}container-instance/default/i", f"{ARN}container-instance/default/j")}),
        ("ecs", "ExecuteCommand", {"task": "t", "container": "c"},
         {"ecs:container-name": ("c",), "ecs:task": (f"{ARN}task/default/t",)}),
        ("ecs", "PutAccountSetting", {"name": "containerInsights", "value": "on"}, {"ecs:account-setting": ("containerInsights",)}),
        ("ecs", "CreateCluster", {"tags": TAGS}, {"aws:tagkeys": ("team",), "aws:requesttag/team": ("ml",)}),
        ("batch", "RegisterJobDefinition",
         {"jobDefinitionName": "j", "type": "container",
          "containerProperties": {"image": "busybox", "user": "me", "vcpus": 1, "memory": 64, "privileged": True,
                                  "logConfiguration": {"logDriver": "awslogs", "options": {"awslogs-group": "g"}}}},
         {"batch:image": ("busybox",), "batch:user": ("me",), "batch:privileged": ("true",), "batch:logdriver": ("awslogs",),
          "batch:awslogsgroup": ("g",)}),
        ("batch", "SubmitJob", {"jobName": "j", "jobQueue": "q", "jobDefinition": "d", "shareIdentifier": "s"},
         {"batch:shareidentifier": ("s",)}),
        ("cloudwatch", "PutMetricData", {"Namespace": "N"}, {"cloudwatch:namespace": ("N",)}),
        ("s3", "ListObjectsV2", {"Bucket": "b", "Prefix": "p/", "Delimiter": "/", "MaxKeys": "9"},
         {"s3:prefix": ("p/",), "s3:delimiter": ("/",), "s3:max-keys": ("9",)}),
        ("s3", "PutObject", {"Bucket": "b", "Key": "k", "_headers": {"x-amz-tagging": "A=1", "x-amz-storage-class": "GLACIER",
                                                                     "authorization": "AWS4-HMAC-SHA256 …"}},
         {"s3:requestobjecttag/a": ("1",), "s3:requestobjecttagkeys": ("A",), "s3:x-amz-storage-class": ("GLACIER",),
          "s3:authtype": ("REST-HEADER",)}),
    ],
)  # fmt: skip
def test_condition_keys(service: str, operation: str, params: dict[str, Any], expected: dict[str, Any]) -> None:
    tx = Tx(Store(None), 1_700_000_000.0, SeededIds(Random(0)), Settings())
    context = needed_permissions(tx, USER, service, operation, params)[0].context
    assert {key: tuple(context.get(key, ())) for key in expected} == expected


def test_environment_files_need_the_permission_to_read_them() -> None:
    tx = s3_tx()
    files = [{"type": "s3", "value": f"arn:aws:s3:::{name}/e.env"} for name in ("roots", "mine", "corral-run-environments")]
    definition = {"family": "f", "containerDefinitions": [{"name": "c", "environmentFiles": files}]}

    def reads(caller: Caller, operation: str, params: dict[str, Any]) -> list[str]:
        needed = needed_permissions(tx, caller, "ecs", operation, params)
        return [each.resource.removeprefix("arn:aws:s3:::") for each in needed if each.action == "s3:GetObject"]

    assert reads(USER, "RegisterTaskDefinition", definition) == ["roots/e.env", "mine/e.env"]
    overrides = {"containerOverrides": [{"name": "c", "environmentFiles": files[:1]}]}
    assert reads(USER, "RunTask", {"taskDefinition": "f", "overrides": overrides}) == ["roots/e.env"]
    assert reads(replace(CALLER, confined=True), "RegisterTaskDefinition", definition) == ["mine/e.env"]  # it is open to containers
